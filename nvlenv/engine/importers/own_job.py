"""A job in the project's own JSON, the format for jobs typed by hand.

    {"name": "hero", "gpus": 512, "slice_pods": 16, "priority": 4, "estimate_hours": 24, "queue": "research"}

`pods`, `gpus` and `gpus_per_pod` give each other; `mode` is required, preferred or unconstrained at `level`; every
`slice_pods` pods share a domain of `slice_level`; levels default to the NVLink domain; cpu and memory of one pod are
quantities as in Kubernetes; `leader` adds a single pod placed together with the others.
"""

from __future__ import annotations

from dataclasses import replace

from nvlenv.engine.importers.document import Field
from nvlenv.engine.importers.quantities import read_quantity
from nvlenv.engine.jobs import JobRequest, PodSet
from nvlenv.policies.kueue.types import Layer
from nvlenv.types import Mode

GPUS_PER_POD = 4  # of a job in own JSON that only says how many GPUs it wants; a whole NVL72 node
OWN_KEYS = frozenset(
    {"name", "namespace", "pods", "gpus", "gpus_per_pod", "cpu", "memory", "mode", "level", "slice_level", "slice_pods"}
    | {"leader", "queue", "priority", "estimate_hours", "preemptible", "movable", "exclusive"}
    | {"comm_fraction", "checkpoint_hours", "restart_hours"}
)
LEADER_KEYS = frozenset({"gpus", "cpu", "memory"})


def read_own(job: Field) -> JobRequest:
    """The job of one document; unknown keys are errors."""
    job.known_keys(OWN_KEYS)
    pods, per_pod = _size(job)
    names = {mode.name.lower(): mode for mode in Mode}
    if job["mode"].text("unconstrained") not in names:
        raise job["mode"].error(f"one of {list(names)}")
    if job["level"].present and names[job["mode"].text("unconstrained")] == Mode.UNCONSTRAINED:
        raise job["level"].error("mode required or preferred beside it")
    sliced = job["slice_pods"].present or job["slice_level"].present
    main = PodSet(
        name="main",
        pods=pods,
        gpus_per_pod=per_pod,
        cpu=read_quantity(job["cpu"], 1000),
        memory=read_quantity(job["memory"]),
        mode=names[job["mode"].text("unconstrained")],
        level=job["level"].text(""),
        slices=(Layer(job["slice_level"].text(""), job["slice_pods"].integer(at_least=1)),) if sliced else (),
    )
    return JobRequest(
        name=job["name"].text("job"),
        pod_sets=_with_leader(main, job["leader"]),
        namespace=job["namespace"].text("default"),
        queue=job["queue"].text(""),
        priority=job["priority"].integer(0),
        estimate=job["estimate_hours"].number() if job["estimate_hours"].present else None,
        preemptible=job["preemptible"].flag(True),
        movable=job["movable"].flag(False),
        exclusive=job["exclusive"].flag(False),
        comm_fraction=_share(job["comm_fraction"]),
        checkpoint_hours=_hours(job["checkpoint_hours"]),
        restart_hours=_hours(job["restart_hours"]),
    )


def _share(field: Field) -> float | None:
    if not field.present:
        return None
    share = field.number()
    if not 0 <= share < 1:
        raise field.error("a share of at least 0 and less than 1")
    return share


def _hours(field: Field) -> float | None:
    return field.number() if field.present else None


def _with_leader(workers: PodSet, leader: Field) -> tuple[PodSet, ...]:
    """The workers, and before them their leader if there is one: a single pod that asks for the same shape."""
    if not leader.present:
        return (workers,)
    leader.known_keys(LEADER_KEYS)
    first = replace(
        workers,
        name="leader",
        pods=1,
        gpus_per_pod=leader["gpus"].integer(0, at_least=0),
        cpu=read_quantity(leader["cpu"], 1000),
        memory=read_quantity(leader["memory"]),
        group="main",
    )
    return first, replace(workers, group="main")


def _size(job: Field) -> tuple[int, int]:
    """Pods and GPUs of each: two of pods, gpus and gpus_per_pod give the third; a pod takes a node by default."""
    if not job["gpus"].present:
        return job["pods"].integer(at_least=1), job["gpus_per_pod"].integer(GPUS_PER_POD, at_least=1)
    gpus = job["gpus"].integer(at_least=1)
    if job["pods"].present:
        pods = job["pods"].integer(at_least=1)
        per_pod = job["gpus_per_pod"].integer(gpus // pods, at_least=0)
    else:
        per_pod = job["gpus_per_pod"].integer(min(GPUS_PER_POD, gpus), at_least=1)
        pods = gpus // per_pod
    if pods * per_pod != gpus:
        raise job["gpus"].error("pods times gpus_per_pod")
    return pods, per_pod
