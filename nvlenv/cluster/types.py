"""The data of the whole project, in one file: what a cluster, a workload, a decision and a placement are.

Units everywhere: time in hours (float64), GPUs and nodes as integers, bandwidth in GB/s.
Shape letters: n jobs, R racks, M nodes, G GPUs of the largest node, D domains (racks, blocks, ..., root), Q queues.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nvlenv.common.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]


class Mode(IntEnum):
    """What a job asks of the topology (Kueue's three annotations)."""

    UNCONSTRAINED = 0  # any nodes; inference, single-node work
    PREFERRED = 1  # one domain of `level` if any can hold it, else coarser ones; post-training
    REQUIRED = 2  # each slice inside one domain of `level`, or wait; pre-training


class NodeEventKind(IntEnum):
    """What can happen to a node while the simulation runs."""

    FAIL = 0  # jobs on it end and requeue from their last checkpoint
    REPAIR = 1
    CORDON = 2  # running jobs stay, nothing new is placed
    UNCORDON = 3
    VERIFY = 4  # a verification pod starts, if the node is idle
    VERIFY_END = 5


# --------------------------------------------------------------------------------------------------------------------
# The cluster
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClusterSpec:
    """A cluster as its owner declares it: nodes in racks, racks in coarser domains, links between them.

    Racks are numbered in the order of their zero-padded names and nodes are numbered rack by rack, so that the nodes
    of a rack are one contiguous run. `levels` is the ordered list of node labels, coarse to fine; the last one is the
    node itself, and `nvlink_level` (default: the one before it) is the NVLink domain, here called rack.
    """

    levels: tuple[str, ...]  # node labels, coarse to fine, e.g. ("block", "rack", "hostname")
    rack_names: tuple[str, ...]  # (R,)
    rack_parents: IntArray  # (R, len(levels) - 2): domain number at each level above the rack, coarse to fine
    node_names: tuple[str, ...]  # (M,)
    node_rack: IntArray  # (M,) rack of each node, non-decreasing
    node_gpus: IntArray  # (M,) GPUs of each node
    cordoned: BoolArray  # (M,) True: up, but takes no new pods at the start
    nvlink: float = 900.0  # GB/s inside the NVLink domain
    network: float = 50.0  # GB/s between racks

    @property
    def racks(self) -> int:
        """Number of NVLink domains."""
        return len(self.rack_names)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.node_names)

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return int(self.node_gpus.sum())

    @property
    def gpus_per_node(self) -> int:
        """GPUs of the largest node."""
        return int(self.node_gpus.max(initial=0))

    @property
    def cliff(self) -> float:
        """How many times slower a link between racks is than one inside (18 on NVL72)."""
        return self.nvlink / self.network

    def height_of(self, level: str) -> int:
        """Levels above the rack: 0 for the rack, 1 for a block, ..., -1 for a single node."""
        if level not in self.levels:
            raise InputError("job", "level", repr(level), f"one of the topology's levels {list(self.levels)}")
        return len(self.levels) - 2 - self.levels.index(level)


# --------------------------------------------------------------------------------------------------------------------
# The workload
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Workload:
    """Jobs as a struct of arrays, sorted by submit time; drawn before the episode starts.

    Every array has length n. `class_names` names the numbers in `job_class`, `queue_names` those in `queue`.
    """

    submit: FloatArray  # h since the start of the episode
    gpus: IntArray  # all GPUs of the job; a multiple of gpus_per_pod
    gpus_per_pod: IntArray  # a pod never spans nodes
    mode: NDArray[np.int8]  # Mode
    height: NDArray[np.int8]  # level that it asks for as levels above the rack: 0 rack, 1 block, ...
    slice_gpus: IntArray  # GPUs of one slice, a divisor of gpus; 0: the whole job is one slice
    duration: FloatArray  # h at the job's ideal shape
    estimate: FloatArray  # h, what the user or a predictor says; policies see this, never `duration`
    comm_fraction: FloatArray  # share of a step spent in communication at the ideal shape, in [0, 1)
    priority: IntArray  # larger goes first
    queue: IntArray  # index into queue_names
    job_class: IntArray  # index into class_names
    preemptible: BoolArray  # may be evicted by `open` for a job of strictly higher priority
    movable: BoolArray  # unconstrained job that may be restarted elsewhere (a rolling restart)
    checkpoint_interval: FloatArray  # h of work between checkpoints; inf: none; 0: continuous
    restart_time: FloatArray  # h of work lost to every restart, on top of the work since the last checkpoint
    class_names: tuple[str, ...]
    queue_names: tuple[str, ...] = ("default",)
    source: str = "synthetic"
    preempts: BoolArray = None  # type: ignore[assignment]  # may evict others (Kubernetes: preemptionPolicy); None: all

    def __post_init__(self) -> None:
        if self.preempts is None:
            object.__setattr__(self, "preempts", np.ones(len(self.submit), np.bool_))

    @classmethod
    def columns(cls) -> tuple[str, ...]:
        """The names of the per-job arrays."""
        return tuple(f.name for f in fields(cls) if f.name not in ("class_names", "queue_names", "source"))

    def __len__(self) -> int:
        return len(self.submit)

    def select(self, index: Any) -> Workload:
        """The jobs that `index` (slice, mask or integer array) picks, everything else kept."""
        picked = {name: getattr(self, name)[index] for name in self.columns()}
        return Workload(**picked, class_names=self.class_names, queue_names=self.queue_names, source=self.source)

    def gpu_hours(self) -> float:
        """GPU-hours of useful work in all jobs."""
        return float(np.dot(self.gpus.astype(np.float64), self.duration))

    def offered_load(self, cluster_gpus: int) -> float:
        """GPU-hours asked for per GPU-hour that the cluster has over the span of the submits."""
        span = float(self.submit[-1] - self.submit[0]) if len(self) > 1 else 0.0
        return self.gpu_hours() / (cluster_gpus * span) if span > 0 else float("inf")

    def check(self, where: str = "workload") -> Workload:
        """Raise `InputError` for the first job that breaks a rule of the field comments above."""
        submit_order = np.ones(len(self), bool)
        submit_order[1:] = self.submit[1:] >= self.submit[:-1]
        slices = np.where(self.slice_gpus > 0, self.slice_gpus, np.maximum(self.gpus, 1))
        movable_ok = ~self.movable | (self.mode == Mode.UNCONSTRAINED)
        rules: tuple[tuple[str, BoolArray, str], ...] = (
            ("submit", np.isfinite(self.submit) & (self.submit >= 0), "a finite hour >= 0"),
            ("submit", submit_order, "non-decreasing submit times"),
            ("gpus", self.gpus >= 1, "at least 1 GPU"),
            ("gpus_per_pod", self.gpus_per_pod >= 1, "at least 1 GPU per pod"),
            ("gpus", self.gpus % np.maximum(self.gpus_per_pod, 1) == 0, "a multiple of gpus_per_pod"),
            ("mode", (self.mode >= 0) & (self.mode <= 2), "0 unconstrained, 1 preferred or 2 required"),
            ("height", self.height >= 0, "a level that is the rack or coarser"),
            ("slice_gpus", (self.slice_gpus >= 0) & (self.gpus % slices == 0), "0 or a divisor of gpus"),
            ("slice_gpus", slices % np.maximum(self.gpus_per_pod, 1) == 0, "a multiple of gpus_per_pod"),
            ("duration", np.isfinite(self.duration) & (self.duration >= 0), "finite hours >= 0"),
            ("estimate", np.isfinite(self.estimate) & (self.estimate >= 0), "finite hours >= 0"),
            ("comm_fraction", (self.comm_fraction >= 0) & (self.comm_fraction < 1), "a share in [0, 1)"),
            ("queue", (self.queue >= 0) & (self.queue < len(self.queue_names)), "an index into queue_names"),
            (
                "job_class",
                (self.job_class >= 0) & (self.job_class < len(self.class_names)),
                "an index into class_names",
            ),
            ("movable", movable_ok, "movable jobs to be unconstrained"),
            ("checkpoint_interval", self.checkpoint_interval >= 0, "hours >= 0, inf for none"),
            ("restart_time", np.isfinite(self.restart_time) & (self.restart_time >= 0), "finite hours >= 0"),
        )
        for name, good, expected in rules:
            if not good.all():
                job = int(np.argmin(good))
                raise InputError(where, f"job {job}, {name}", getattr(self, name)[job], expected)
        return self


@dataclass(frozen=True)
class QueueSpec:
    """One ClusterQueue: its share of the cluster and how its jobs are ordered (Kueue's names)."""

    name: str
    nominal: int  # GPUs
    cohort: str = ""  # queues of one cohort lend each other what they do not use; "": no cohort
    borrowing_limit: int = -1  # GPUs above nominal; -1: as much as the cohort has
    strict: bool = False  # StrictFIFO: a blocked job blocks those behind it; else BestEffortFIFO
    # Whom its jobs may evict, in Kueue's words: "Never", "LowerPriority", and what stands beside each.
    within: str = "LowerPriority"  # in the queue itself: or "LowerOrNewerEqualPriority"
    reclaim: str = "Any"  # in queues of the cohort that borrow, if the job stays within nominal: or "LowerPriority"
    borrow_within: str = "Never"  # the same, if the job borrows itself
    borrow_priority: int = 2**31 - 1  # then no job of a higher priority than this


@dataclass(frozen=True)
class CohortSpec:
    """A cohort that has quota of its own or belongs to another one (Kueue's Cohort); others need no description."""

    name: str
    nominal: int = 0  # GPUs beside those of its queues
    parent: str = ""  # cohort with which it lends and borrows; "": none
    borrowing_limit: int = -1  # GPUs that all below it may use above their own; -1: as much as the parent has


@dataclass(frozen=True)
class NodeEvents:
    """What happens to nodes, drawn beforehand; sorted by time. All arrays (E,)."""

    time: FloatArray  # h
    node: IntArray
    kind: NDArray[np.int8]  # NodeEventKind

    @classmethod
    def none(cls) -> NodeEvents:
        """No events."""
        return cls(np.empty(0), np.empty(0, np.int32), np.empty(0, np.int8))
