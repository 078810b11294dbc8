"""A job, on its whole way from the file that asks for it to the nodes that it runs on: one record.

While it waits, `pod_sets` say what it asks for; once it runs, `pods` say where it is. A cluster's file knows its
running jobs by their pods alone, a job's file knows what is asked for alone.

>>> job = parse_job("sbatch --nodes=16 --gpus-per-node=4 --segment=8 --time=1-00:00:00 train.sh")
>>> job.workers.pods, job.gpus, job.workers.slices[0].size, job.estimate
(16, 64, 8, 24.0)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nvlenv.cluster.types import Mode
from nvlenv.common.errors import InputError
from nvlenv.engine.model.answers import Binding, Eviction, Loss
from nvlenv.policies.kueue.types import Layer, Toleration

UNLIMITED = 2**63 - 1  # of a resource that the source says nothing about: it never keeps a pod away
MAX_GPUS = 2**31 - 1  # of one job: the arrays of the simulator hold 32 bits
MAX_PRIORITY = 2**31 - 1  # of Kubernetes: 32 bits with a sign
NOT_OF_FILES = {"bindings", "speed"}  # fields of a job that no cluster's file tells


@dataclass(frozen=True)
class PodSet:
    """Equal pods that are asked for, and their topology request in Kueue's terms.

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
        """GPUs of all its pods."""
        return self.pods * self.gpus_per_pod


@dataclass(frozen=True)
class Pod:
    """A pod of a running job, on its node."""

    node: str
    gpus: int
    cpu: int = 0  # milli-cores
    memory: int = 0  # bytes
    name: str = ""  # empty: promised by Kueue's assignment, not created yet
    uid: str = ""
    terminating: bool = False  # holds its resources until it is gone


@dataclass(frozen=True)
class Job:
    """Pods that belong together, placed as a whole or not at all: a gang, the replicas of a service, a single pod."""

    id: str = ""  # unique in its cluster; empty: "namespace/name"
    pods: tuple[Pod, ...] = ()  # its assignment; empty: it has none
    name: str = ""
    namespace: str = ""
    uid: str = ""
    queue: str = ""  # LocalQueue or Slurm partition, of a running job ClusterQueue; empty: outside all queues
    priority: int = 0
    preemptible: bool = False  # may be evicted for a job of higher priority
    movable: bool = False  # may be restarted elsewhere
    verification: bool = False  # a test of idle nodes, evicted at once by any real job: shown, never counted
    start: float | None = None  # s since 1970 (UTC)
    estimate: float | None = None  # h that it may run from its start
    # What it asks for. None of it is known of a running job: its pods have taken the place of it.
    pod_sets: tuple[PodSet, ...] = ()
    gang: str = ""  # the name by which its pods find each other, where it is another than `name`
    qos: str = ""
    exclusive: bool = False  # takes whole nodes, however few GPUs it uses there
    comm_fraction: float | None = None  # share of a step spent in communication at the ideal shape, in [0, 1)
    checkpoint_hours: float | None = None  # h of work between checkpoints; inf: none
    restart_hours: float | None = None  # h of work that a restart costs
    notes: tuple[str, ...] = ()  # what the reader had to decide or leave out, for people
    # How this engine placed it; no cluster's file tells that.
    bindings: tuple[Binding, ...] = field(default=(), compare=False)
    speed: float = field(default=1.0, compare=False)  # relative to the best shape of its size and slice

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", f"{self.namespace or 'default'}/{self.name}")

    @property
    def ours(self) -> bool:
        """True if this engine placed it, so that it can place it again."""
        return bool(self.bindings)

    @property
    def gpus(self) -> int:
        """GPUs that it holds; those that it asks for while it holds none."""
        return sum(pod.gpus for pod in self.pods) if self.pods else sum(pods.gpus for pods in self.pod_sets)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of its nodes, sorted, each once."""
        return tuple(sorted({pod.node for pod in self.pods}))

    def pods_on(self, node: str) -> tuple[Pod, ...]:
        """Its pods on one node."""
        return tuple(pod for pod in self.pods if pod.node == node)

    @property
    def workers(self) -> PodSet:
        """The pod set with the most GPUs; of a group, as in Kueue, the one with more pods; the first of equals."""
        largest = max(self.pod_sets, key=lambda pods: pods.gpus)
        members = [pods for pods in self.pod_sets if largest.group and pods.group == largest.group]
        return max(members or [largest], key=lambda pods: pods.pods)

    def on(self, levels: Sequence[str], nvlink_level: str) -> Job:
        """The job with the levels of its request named in full, by those of a `ClusterSnapshot`.

        `InputError` for a level that it does not have, slices coarser than the request, inner layers not finer.
        """
        return replace(self, pod_sets=tuple(_on(self.name, pods, levels, nvlink_level) for pods in self.pod_sets))

    def placed(self, pods: Sequence[Pod], bindings: tuple[Binding, ...], speed: float, queue: str, start: float) -> Job:
        """The job as it runs from `start` (s since 1970) on, with what a cluster's file would tell of it."""
        return Job(
            self.id, tuple(pods), self.name, self.namespace, self.uid, queue, self.priority, self.preemptible,
            self.movable, start=start, estimate=self.estimate, bindings=bindings, speed=speed,
        )  # fmt: skip

    def eviction(self, reason: Loss, cost: float = 0.0, node: str = "", moved_to: tuple[Binding, ...] = ()) -> Eviction:
        """The answer that this job leaves its nodes, or only the pods on one node; `cost` in GPU-hours of work."""
        leaving = self.pods_on(node) if node else self.pods
        names = tuple(pod.name for pod in leaving if pod.name)
        nodes, gpus = (node,) if node else self.nodes, sum(pod.gpus for pod in leaving)
        return Eviction(self.id, reason, nodes, names, gpus, cost, moved_to)


def check_job(where: str, job: Job) -> None:
    """Raise `InputError` for a request that no cluster could have as it stands."""
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


def check_priority(where: str, place: str, priority: int) -> None:
    """Raise `InputError` for a priority that neither Kubernetes nor the simulator could hold."""
    if not -MAX_PRIORITY - 1 <= priority <= MAX_PRIORITY:
        raise InputError(where, place, priority, f"{-MAX_PRIORITY - 1} to {MAX_PRIORITY}")


def _check_group(where: str, place: str, pods: PodSet, members: Sequence[PodSet]) -> None:
    """Kueue's rules for leader and workers."""
    if pods.slices or pods.mode == Mode.UNCONSTRAINED:
        found = f"group {pods.group} with {_shape(pods)}"
        raise InputError(where, place, found, "required or preferred, without slices")
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
