"""What somebody asks for: a job's pods, and what they promise themselves from the topology.

>>> job = parse_job("sbatch --nodes=16 --gpus-per-node=4 --segment=8 --time=1-00:00:00 train.sh")
>>> job.pods, job.gpus, job.slice_pods, job.estimate
(16, 64, 8, 24.0)

`load_job` reads a Kubernetes Job, JobSet, Deployment, StatefulSet, Pod or Kueue Workload with Kueue's topology
annotations, a batch script or option line of Slurm, or the project's own JSON:

    {"name": "hero", "pods": 128, "gpus_per_pod": 4, "slice_pods": 16, "priority": 4, "estimate_hours": 24}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nvlenv.cluster.types import Mode
from nvlenv.common.errors import InputError
from nvlenv.engine.model.snapshot import UNLIMITED, check_priority
from nvlenv.policies.kueue.types import Layer, Toleration

MAX_GPUS = 2**31 - 1  # of one job: the arrays of the simulator hold 32 bits


@dataclass(frozen=True)
class PodSet:
    """Equal pods, and their topology request in Kueue's terms.

    With slices, every `slices[0].size` pods (every slice) share one domain of `slices[0].level`, further layers divide
    a slice in turn, and `mode` and `level` speak of the pod set as a whole; without, of all pods.
    """

    name: str
    pods: int
    gpus_per_pod: int
    cpu: int = 0  # milli-cores of one pod
    memory: int = 0  # bytes of one pod
    mode: Mode = Mode.UNCONSTRAINED
    level: str = ""  # node label that REQUIRED or PREFERRED speaks of; empty: the NVLink domain
    slices: tuple[Layer, ...] = ()  # coarse to fine; an empty level is the NVLink domain here too
    group: str = ""  # the two pod sets of a group, leader and workers, are placed together
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()

    @property
    def gpus(self) -> int:
        return self.pods * self.gpus_per_pod


@dataclass(frozen=True)
class JobRequest:
    """A job to be placed as a whole or not at all. Short names speak of its workers, by far the most of it."""

    name: str
    pod_sets: tuple[PodSet, ...]
    namespace: str = "default"
    uid: str = ""
    gang: str = ""  # the name by which its pods find each other, where it is another than `name`
    queue: str = ""  # LocalQueue, or Slurm partition
    qos: str = ""
    priority: int = 0
    estimate: float | None = None  # h that it may run
    preemptible: bool = True
    movable: bool = False
    exclusive: bool = False  # takes whole nodes, however few GPUs it uses there
    comm_fraction: float | None = None  # share of a step spent in communication at the ideal shape, in [0, 1)
    checkpoint_hours: float | None = None  # h of work between checkpoints; inf: none
    restart_hours: float | None = None  # h of work that a restart costs
    notes: tuple[str, ...] = ()  # what the reader had to decide or leave out, for people

    @property
    def workers(self) -> PodSet:
        """The pod set with the most GPUs; of a group, as in Kueue, the one with more pods; the first of equals."""
        largest = max(self.pod_sets, key=lambda pods: pods.gpus)
        members = [pods for pods in self.pod_sets if largest.group and pods.group == largest.group]
        return max(members or [largest], key=lambda pods: pods.pods)

    @property
    def leader(self) -> PodSet | None:
        """The other pod set of the workers' group."""
        grouped = (p for p in self.pod_sets if p.group and p.group == self.workers.group and p is not self.workers)
        return next(grouped, None)

    @property
    def pods(self) -> int:
        return self.workers.pods

    @property
    def gpus_per_pod(self) -> int:
        return self.workers.gpus_per_pod

    @property
    def gpus(self) -> int:
        """GPUs of all pod sets."""
        return sum(pods.gpus for pods in self.pod_sets)

    @property
    def cpu(self) -> int:
        """Milli-cores of one worker."""
        return self.workers.cpu

    @property
    def memory(self) -> int:
        """Bytes of one worker."""
        return self.workers.memory

    @property
    def mode(self) -> Mode:
        return self.workers.mode

    @property
    def level(self) -> str:
        return self.workers.level

    @property
    def slice_level(self) -> str:
        return self.workers.slices[0].level if self.workers.slices else ""

    @property
    def slice_pods(self) -> int:
        """Pods of one slice; 0: no slices."""
        return self.workers.slices[0].size if self.workers.slices else 0

    def on(self, levels: Sequence[str], nvlink_level: str) -> JobRequest:
        """The job with its levels named in full, or why this topology cannot have it.

        Parameters
        ----------
        levels, nvlink_level : of a `ClusterSnapshot`.

        Raises
        ------
        InputError : a level that the topology does not have, slices coarser than the request, inner layers not finer.
        """
        return replace(self, pod_sets=tuple(_on(self.name, pods, levels, nvlink_level) for pods in self.pod_sets))


def check_job(where: str, job: JobRequest) -> None:
    """Raise `InputError` for a job that no cluster could have as it stands."""
    if not 1 <= job.gpus <= MAX_GPUS:
        raise InputError(where, f"job {job.name}", f"{job.gpus} GPUs", f"1 to {MAX_GPUS} GPUs")
    check_priority(where, f"job {job.name}, priority", job.priority)
    for what in ("cpu", "memory"):
        if sum(pods.pods * getattr(pods, what) for pods in job.pod_sets) > UNLIMITED:
            raise InputError(where, f"job {job.name}, {what}", "more than 64 bits hold", "less for all pods together")
    for pods in job.pod_sets:
        place = f"job {job.name}, pod set {pods.name}"
        if sum(other.name == pods.name for other in job.pod_sets) > 1:
            raise InputError(where, place, "two of this name", "one")
        for outer, inner in zip(pods.slices, pods.slices[1:], strict=False):
            if outer.size % inner.size:
                raise InputError(where, place, f"slices of {outer.size} in layers of {inner.size}", "a divisor")
        size = pods.slices[0].size if pods.slices else 1
        if pods.pods % size:
            raise InputError(where, place, f"{pods.pods} pods in slices of {size}", "a slice size that divides them")
        if pods.group:
            _check_group(where, place, pods, [other for other in job.pod_sets if other.group == pods.group])


def _check_group(where: str, place: str, pods: PodSet, members: Sequence[PodSet]) -> None:
    """Kueue's rules for leader and workers."""
    if pods.slices or pods.mode == Mode.UNCONSTRAINED:
        raise InputError(
            where, place, f"group {pods.group} with {_shape(pods)}", "required or preferred, without slices"
        )
    if len(members) != 2 or min(member.pods for member in members) != 1:
        found = f"group {pods.group} of pod sets with {[member.pods for member in members]} pods"
        raise InputError(where, place, found, "two pod sets, one of them of one pod")
    if len({(member.mode, member.level) for member in members}) > 1:
        found = f"group {pods.group} with {[_shape(member) for member in members]}"
        raise InputError(where, place, found, "one request for both")


def _shape(pods: PodSet) -> str:
    what = f"{pods.mode.name.lower()} {pods.level}".strip()
    return f"{what} in slices of {pods.slices[0].size}" if pods.slices else what


def _on(job: str, pods: PodSet, levels: Sequence[str], nvlink_level: str) -> PodSet:
    """The pod set with full level names; the checks are Kueue's, in its order."""

    def depth(level: str, what: str) -> int:
        if level not in levels:
            raise InputError(f"job {job}", f"pod set {pods.name}, {what}", repr(level), f"one of {list(levels)}")
        return levels.index(level)

    level = "" if pods.mode == Mode.UNCONSTRAINED else pods.level or nvlink_level
    slices = tuple(Layer(layer.level or nvlink_level, layer.size) for layer in pods.slices)
    above = depth(level, "level") if level else 0
    for number, layer in enumerate(slices):
        found = depth(layer.level, "slice level")
        if found < above or (number and found == above):
            outer = slices[number - 1].level if number else level
            expected = f"a level {'below' if number else 'not above'} {outer}"
            raise InputError(f"job {job}", f"pod set {pods.name}, slice level", repr(layer.level), expected)
        above = found
    return replace(pods, level=level, slices=slices)
