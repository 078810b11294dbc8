"""A job in the project's own JSON, the format for jobs typed by hand.

    {"name": "hero", "gpus": 512, "slice_pods": 16, "priority": 4, "estimate_hours": 24, "queue": "research"}

`pods`, `gpus` and `gpus_per_pod` give each other; `mode` is required, preferred or unconstrained at `level`; every
`slice_pods` pods share a domain of `slice_level`; levels default to the NVLink domain; cpu and memory of one pod are
quantities as in Kubernetes; `leader` adds a single pod placed together with the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from nvlenv.cluster.types import Mode, QueueSpec
from nvlenv.engine.formats.document import Field
from nvlenv.engine.formats.values import read_quantity
from nvlenv.engine.model.jobs import UNLIMITED, Job, Pod, PodSet
from nvlenv.engine.model.snapshot import FORMAT, ClusterSnapshot, Node, NodeState, make_snapshot
from nvlenv.policies.kueue.types import Layer, Taint

# --------------------------------------------------------------------------------------------------------------------
# The project's own JSON: racks as lists of free GPUs, or everything that a snapshot holds.
#
# The short form, for a cluster typed by hand:
#
#     {"racks": [[4, 4, 0], [4, 2, 2]], "gpus_per_node": 4}          or with names: {"racks": {"rack-a": [4, 4, 0]}}
#
# What is not free there belongs to work of which nothing is known, so it is neither preemptible nor movable. The long
# form is what `ClusterSnapshot.as_json` writes.
# --------------------------------------------------------------------------------------------------------------------


GPUS_PER_NODE = 4  # NVL72
SHORT_KEYS = frozenset({"racks", "gpus_per_node"})
LONG_KEYS = frozenset({"format", "levels", "nvlink_level", "nodes", "jobs", "queues", "local_queues", "notes"})
NODE_KEYS = frozenset({"name", "path", "gpus", "cpu", "memory", "pods", "state", "taints", "labels"})
POD_KEYS = frozenset({"node", "gpus", "cpu", "memory", "name", "uid", "terminating"})
JOB_KEYS = frozenset(
    {"id", "pods", "name", "namespace", "uid", "queue", "priority", "preemptible", "movable", "verification"}
    | {"start", "estimate"}
)
QUEUE_KEYS = frozenset({"name", "nominal", "cohort", "borrowing_limit", "strict"})
TAINT_KEYS = frozenset({"key", "value", "effect"})


def is_native(document: Field) -> bool:
    return isinstance(document.value, dict) and ("racks" in document.value or "format" in document.value)


def read_native(document: Field) -> ClusterSnapshot:
    """The cluster of one document of either form."""
    if document["racks"].present:
        return _read_short(document)
    if document["format"].value != FORMAT:
        raise document["format"].error(repr(FORMAT))
    return _read_long(document)


def _read_short(document: Field) -> ClusterSnapshot:
    document.known_keys(SHORT_KEYS)
    size = document["gpus_per_node"].integer(GPUS_PER_NODE, at_least=1)
    nodes, jobs = [], []
    for rack, frees in _racks(document["racks"]):
        for number, entry in enumerate(frees):
            free = entry.integer(at_least=0)
            if free > size:
                raise entry.error(f"at most {size} GPUs (gpus_per_node)")
            name = f"{rack}-node-{number:02d}"
            nodes.append(Node(name, (rack, name), size))
            if free < size:
                jobs.append(Job(f"{name}/used", (Pod(name, size - free),), name="used"))
    return make_snapshot(document.where, ("rack", "hostname"), "rack", nodes, jobs)


def _racks(racks: Field) -> Iterator[tuple[str, Field]]:
    """Each rack's name and its list."""
    if isinstance(racks.value, dict):
        yield from racks.entries()
    else:
        yield from ((f"rack-{number:03d}", rack) for number, rack in enumerate(racks))


def _read_long(document: Field) -> ClusterSnapshot:
    document.known_keys(LONG_KEYS)
    return make_snapshot(
        document.where,
        _texts(document["levels"]),
        document["nvlink_level"].text(),
        [_node(node) for node in document["nodes"]],
        [_job(job) for job in document["jobs"]],
        [_queue(queue) for queue in document["queues"]],
        document["local_queues"].texts(),
        _texts(document["notes"]),
    )


def _node(node: Field) -> Node:
    node.known_keys(NODE_KEYS)
    state = node["state"].text(str(NodeState.UP))
    if state not in list(NodeState):
        raise node["state"].error(f"one of {[str(known) for known in NodeState]}")
    return Node(
        name=node["name"].text(),
        path=_texts(node["path"]),
        gpus=node["gpus"].integer(at_least=1),
        cpu=node["cpu"].integer(UNLIMITED, at_least=0),
        memory=node["memory"].integer(UNLIMITED, at_least=0),
        pods=node["pods"].integer(UNLIMITED, at_least=0),
        state=NodeState(state),
        taints=tuple(_taint(taint) for taint in node["taints"]),
        labels=node["labels"].texts(),
    )


def _taint(taint: Field) -> Taint:
    taint.known_keys(TAINT_KEYS)
    return Taint(taint["key"].text(), taint["value"].text(""), taint["effect"].text("NoSchedule"))


def _job(job: Field) -> Job:
    job.known_keys(JOB_KEYS)
    return Job(
        id=job["id"].text(),
        pods=tuple(_pod(pod) for pod in job["pods"]),
        name=job["name"].text(""),
        namespace=job["namespace"].text(""),
        uid=job["uid"].text(""),
        queue=job["queue"].text(""),
        priority=job["priority"].integer(0),
        preemptible=job["preemptible"].flag(False),
        movable=job["movable"].flag(False),
        verification=job["verification"].flag(False),
        start=job["start"].number() if job["start"].present else None,
        estimate=job["estimate"].number() if job["estimate"].present else None,
    )


def _pod(pod: Field) -> Pod:
    pod.known_keys(POD_KEYS)
    return Pod(
        node=pod["node"].text(),
        gpus=pod["gpus"].integer(at_least=0),
        cpu=pod["cpu"].integer(0, at_least=0),
        memory=pod["memory"].integer(0, at_least=0),
        name=pod["name"].text(""),
        uid=pod["uid"].text(""),
        terminating=pod["terminating"].flag(False),
    )


def _queue(queue: Field) -> QueueSpec:
    queue.known_keys(QUEUE_KEYS)
    return QueueSpec(
        name=queue["name"].text(),
        nominal=queue["nominal"].integer(at_least=0),
        cohort=queue["cohort"].text(""),
        borrowing_limit=queue["borrowing_limit"].integer(-1, at_least=-1),
        strict=queue["strict"].flag(False),
    )


def _texts(field: Field) -> tuple[str, ...]:
    return tuple(entry.text() for entry in field)


# --------------------------------------------------------------------------------------------------------------------
# A job in the project's own JSON, the format for jobs typed by hand.
#
#     {"name": "hero", "gpus": 512, "slice_pods": 16, "priority": 4, "estimate_hours": 24, "queue": "research"}
#
# `pods`, `gpus` and `gpus_per_pod` give each other; `mode` is required, preferred or unconstrained at `level`; every
# `slice_pods` pods share a domain of `slice_level`; levels default to the NVLink domain; cpu and memory of one pod are
# quantities as in Kubernetes; `leader` adds a single pod placed together with the others.
# --------------------------------------------------------------------------------------------------------------------


GPUS_PER_POD = 4  # of a job in own JSON that only says how many GPUs it wants; a whole NVL72 node
OWN_KEYS = frozenset(
    {"name", "namespace", "pods", "gpus", "gpus_per_pod", "cpu", "memory", "mode", "level", "slice_level", "slice_pods"}
    | {"leader", "queue", "priority", "estimate_hours", "preemptible", "movable", "exclusive"}
    | {"comm_fraction", "checkpoint_hours", "restart_hours"}
)
LEADER_KEYS = frozenset({"gpus", "cpu", "memory"})


def read_own(job: Field) -> Job:
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
    return Job(
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
