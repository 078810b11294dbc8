"""A job request in the terms of the simulator: parts of equal pods, each with one promise.

Kueue can ask for more than the simulator knows, and it is brought down to that: pods that must share a host become one
large pod, a leader of the size of its workers is one of them, slices inside a coarser domain try domain by domain.
"""

from __future__ import annotations

from dataclasses import dataclass

from nvlenv.cluster.types import ClusterSpec, Mode
from nvlenv.common.errors import InputError
from nvlenv.engine.core.live import Row
from nvlenv.engine.model.jobs import MAX_GPUS, JobRequest, PodSet
from nvlenv.engine.model.settings import Settings


@dataclass(frozen=True)
class Part:
    """Pods that the simulator places as one job. A *unit* is what it calls a pod: `fused` pods of one host."""

    members: tuple[PodSet, ...]  # their pods take the units in this order
    row: Row
    fused: int
    cpu: int  # milli-cores of a unit
    memory: int  # bytes of a unit
    within: str = ""  # level of which one domain must hold the whole part, beside the promise of the row
    strict: bool = True  # False: that domain is only preferred

    @property
    def units(self) -> int:
        return self.row.gpus // self.row.pod_gpus

    @property
    def name(self) -> str:
        return self.members[-1].name


def parts_of(job: JobRequest, spec: ClusterSpec, queue: int, settings: Settings) -> tuple[tuple[Part, ...], list[str]]:
    """The parts of a job (with levels in full, see `JobRequest.on`), most GPUs first, and notes on what is left out.

    Raises `InputError` for what no simulator row can hold.
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
        equal = [other for other in job.pod_sets if _goes_with(other, pods)]
        done.update(other.name for other in equal)
        parts.append(_part(job, tuple(sorted(equal, key=lambda member: member.pods)), spec, queue, settings))
    return tuple(parts), notes


def companions(job: JobRequest) -> list[PodSet]:
    """Pod sets without GPUs that are placed together with others: leaders that only coordinate."""
    return [pods for pods in job.pod_sets if pods.group and pods.gpus_per_pod == 0]


def _goes_with(other: PodSet, pods: PodSet) -> bool:
    grouped = bool(pods.group) and other.group == pods.group and other.gpus_per_pod == pods.gpus_per_pod
    return other is pods or grouped


def _part(job: JobRequest, members: tuple[PodSet, ...], spec: ClusterSpec, queue: int, settings: Settings) -> Part:
    pods, count = members[-1], sum(member.pods for member in members)
    where = f"job {job.name}, pod set {pods.name}"
    if len(pods.slices) > 1:
        found = f"{len(pods.slices)} layers of slices"
        raise InputError(where, "slices", found, "one layer: the engine does not divide slices further")
    mode, height, fused, unit, within, strict = _promise(where, pods, count, spec)
    per_pod = pods.gpus_per_pod
    if job.exclusive and per_pod < spec.gpus_per_node:
        per_pod = spec.gpus_per_node
    pod_gpus = per_pod * fused
    if pod_gpus > spec.gpus_per_node:
        what = f"{fused} pods of {per_pod} GPUs on one host" if fused > 1 else f"{per_pod} GPUs"
        raise InputError(where, "gpus_per_pod", what, f"at most {spec.gpus_per_node}, the GPUs of the largest node")
    if count * per_pod > MAX_GPUS:  # of whole nodes, where the job is exclusive
        raise InputError(where, "pods", f"{count} pods of {per_pod} GPUs", f"at most {MAX_GPUS} GPUs")
    row = Row(
        gpus=count * per_pod,
        pod_gpus=pod_gpus,
        priority=job.priority,
        queue=queue,
        estimate=settings.estimate_hours if job.estimate is None else job.estimate,
        mode=mode,
        height=height,
        slice_gpus=unit * per_pod,
        comm=settings.comm_fraction if job.comm_fraction is None else job.comm_fraction,
        checkpoint=settings.checkpoint_hours if job.checkpoint_hours is None else job.checkpoint_hours,
        restart=settings.restart_hours if job.restart_hours is None else job.restart_hours,
        preemptible=job.preemptible,
        movable=job.movable and mode == Mode.UNCONSTRAINED,
    )
    cpu, memory = (max(getattr(member, name) for member in members) * fused for name in ("cpu", "memory"))
    return Part(members, row, fused, cpu, memory, within, strict)


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
