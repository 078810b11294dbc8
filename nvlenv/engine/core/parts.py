"""A job in the terms of the simulator: parts, each of them one job of a `Workload`.

A job that is asked for becomes one part per promise. Kueue can ask for more than the simulator knows, and it is brought
down to that: pods that must share a host become one large pod, a leader of the size of its workers is one of them,
slices inside a coarser domain try domain by domain. A job that runs where a cluster's file says becomes one part too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvlenv.cluster.types import ClusterSpec, Mode, Workload
from nvlenv.common.errors import InputError
from nvlenv.engine.model.jobs import MAX_GPUS, Job, PodSet
from nvlenv.engine.model.settings import Settings

COLUMNS: dict[str, Any] = {  # fields of a part that are columns of a `Workload`
    **dict.fromkeys(("gpus", "gpus_per_pod", "priority", "queue", "slice_gpus"), np.int32),
    **dict.fromkeys(("estimate", "comm_fraction", "checkpoint_interval", "restart_time"), np.float64),
    **dict.fromkeys(("mode", "height"), np.int8),
    **dict.fromkeys(("preemptible", "movable"), np.bool_),
}


@dataclass(frozen=True)
class Part:
    """Pods that the simulator places as one job. The first fields are the columns of `Workload`, with their units.

    A *pod* of a part is `fused` pods of the job that must share a host.
    """

    gpus: int
    gpus_per_pod: int
    priority: int
    queue: int
    estimate: float
    mode: Mode = Mode.UNCONSTRAINED
    height: int = 0
    slice_gpus: int = 0
    comm_fraction: float = 0.0
    checkpoint_interval: float = 0.0
    restart_time: float = 0.0
    preemptible: bool = False
    movable: bool = False
    # What the simulator does not know
    members: tuple[PodSet, ...] = ()  # their pods take the places of the part in this order
    fused: int = 1
    cpu: int = 0  # milli-cores of a pod
    memory: int = 0  # bytes of a pod
    within: str = ""  # level of which one domain must hold the whole part, beside its promise
    strict: bool = True  # False: that domain is only preferred

    @property
    def pods(self) -> int:
        """Pods of the simulator."""
        return self.gpus // self.gpus_per_pod

    @property
    def slice_pods(self) -> int:
        """Pods that its promise keeps together: those of one slice."""
        return (self.slice_gpus or self.gpus) // self.gpus_per_pod

    @property
    def name(self) -> str:
        """The pod set that it is, or that has most of it."""
        return self.members[-1].name


def parts_of(job: Job, spec: ClusterSpec, queue: int, settings: Settings) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """The parts of a job that is asked for (levels in full, see `Job.on`), most GPUs first, and notes on what is not.

    Raises `InputError` for what the simulator has no terms for.
    """
    parts: list[Part] = []
    notes: list[str] = []
    done: set[str] = set()
    for pods in sorted(job.pod_sets, key=lambda pods: -pods.gpus):
        if pods.name in done:
            continue
        if pods.gpus_per_pod == 0:
            if not pods.group:
                notes.append(f"pod set {pods.name} asks for no GPUs: any scheduler may place it")
            continue
        equal = [other for other in job.pod_sets if other is pods or _like(other, pods)]
        done.update(other.name for other in equal)
        parts.append(_part(job, tuple(sorted(equal, key=lambda member: member.pods)), spec, queue, settings))
    return tuple(parts), tuple(notes)


def leaders_without_gpus(job: Job) -> list[PodSet]:
    """Pod sets without GPUs that are placed together with others: leaders that only coordinate."""
    return [pods for pods in job.pod_sets if pods.group and pods.gpus_per_pod == 0]


def running_part(job: Job, queue: int, settings: Settings, largest: int) -> Part:
    """A running job, of which its cluster's file knows where it is, not what it asked for.

    A job with pods of several sizes is not moved; nor is one with pods of more than the `largest` node has now (GPUs
    fall off nodes).
    """
    sizes = {pod.gpus for pod in job.pods if pod.gpus}
    equal = len(sizes) == 1 and all(0 < pod.gpus <= largest for pod in job.pods)
    return Part(
        gpus=job.gpus,
        gpus_per_pod=sizes.pop() if equal else 1,
        priority=job.priority,
        queue=queue,
        estimate=settings.estimate_hours if job.estimate is None else job.estimate,
        checkpoint_interval=settings.checkpoint_hours,
        restart_time=settings.restart_hours,
        preemptible=job.preemptible and not any(pod.terminating for pod in job.pods),
        movable=job.movable and equal,
    )


def workload_of(
    parts: Sequence[Part], classes: Sequence[int], class_names: Sequence[str], queue_names: Sequence[str]
) -> Workload:
    """Parts as a workload, all submitted at 0; `classes` are numbers of `class_names`."""
    columns = {name: np.array([getattr(part, name) for part in parts], kind) for name, kind in COLUMNS.items()}
    return Workload(
        submit=np.zeros(len(parts)),
        duration=columns["estimate"],
        job_class=np.array(classes, np.int32),
        class_names=tuple(class_names),
        queue_names=tuple(queue_names),
        source="engine",
        **columns,
    )


def _like(other: PodSet, pods: PodSet) -> bool:
    """True for the other pod set of a group, if its pods have as many GPUs."""
    return bool(pods.group) and other.group == pods.group and other.gpus_per_pod == pods.gpus_per_pod


def _part(job: Job, members: tuple[PodSet, ...], spec: ClusterSpec, queue: int, settings: Settings) -> Part:
    pods, count = members[-1], sum(member.pods for member in members)
    where = f"job {job.name}, pod set {pods.name}"
    if len(pods.slices) > 1:
        found = f"{len(pods.slices)} layers of slices"
        raise InputError(where, "slices", found, "one layer: the engine does not divide slices further")
    mode, height, fused, slice_pods, within, strict = _promise(where, pods, count, spec)
    per_pod = pods.gpus_per_pod
    if job.exclusive and per_pod < spec.gpus_per_node:
        per_pod = spec.gpus_per_node
    if per_pod * fused > spec.gpus_per_node:
        what = f"{fused} pods of {per_pod} GPUs on one host" if fused > 1 else f"{per_pod} GPUs"
        raise InputError(where, "gpus_per_pod", what, f"at most {spec.gpus_per_node}, the GPUs of the largest node")
    if count * per_pod > MAX_GPUS:  # of whole nodes, where the job is exclusive
        raise InputError(where, "pods", f"{count} pods of {per_pod} GPUs", f"at most {MAX_GPUS} GPUs")
    return Part(
        gpus=count * per_pod,
        gpus_per_pod=per_pod * fused,
        priority=job.priority,
        queue=queue,
        estimate=settings.estimate_hours if job.estimate is None else job.estimate,
        mode=mode,
        height=height,
        slice_gpus=slice_pods * per_pod,
        comm_fraction=settings.comm_fraction if job.comm_fraction is None else job.comm_fraction,
        checkpoint_interval=settings.checkpoint_hours if job.checkpoint_hours is None else job.checkpoint_hours,
        restart_time=settings.restart_hours if job.restart_hours is None else job.restart_hours,
        preemptible=job.preemptible,
        movable=job.movable and mode == Mode.UNCONSTRAINED,
        members=members,
        fused=fused,
        cpu=max(member.cpu for member in members) * fused,
        memory=max(member.memory for member in members) * fused,
        within=within,
        strict=strict,
    )


def _promise(where: str, pods: PodSet, count: int, spec: ClusterSpec) -> tuple[Mode, int, int, int, str, bool]:
    """Mode, height, pods fused on one host, pods of a slice (0: none), and the domain around it all."""
    host = spec.levels[-1]
    if not pods.slices:
        if pods.mode == Mode.REQUIRED and pods.level == host:
            return Mode.UNCONSTRAINED, 0, count, 0, "", True
        return pods.mode, _height(where, pods.level, spec) if pods.level else 0, 1, 0, "", True
    layer = pods.slices[0]
    if layer.level == host:
        return pods.mode, _height(where, pods.level, spec) if pods.level else 0, layer.size, 0, "", True
    height = _height(where, layer.level, spec)
    if pods.mode == Mode.REQUIRED and pods.level == layer.level:
        return Mode.REQUIRED, height, 1, 0, "", True
    within = pods.level if pods.mode != Mode.UNCONSTRAINED else ""
    return Mode.REQUIRED, height, 1, layer.size, within, pods.mode == Mode.REQUIRED


def _height(where: str, level: str, spec: ClusterSpec) -> int:
    """Levels above the rack; a host promises no less than its rack where it is only preferred."""
    if level not in spec.levels:
        raise InputError(where, "level", repr(level), f"one of {list(spec.levels)}: links inside a rack are alike")
    return max(0, spec.height_of(level))
