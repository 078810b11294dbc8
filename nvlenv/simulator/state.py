"""The arrays of a simulator: what they hold, how they are made and copied. `nvlenv.simulator.load` fills them.

A *batch* is a `Sim` whose arrays have a leading axis of N simulators; `view(batch, i)` is the same `Sim` without it,
sharing memory. Kernels and policies always work on such a view, in Python and in numba alike.

Shape letters: J jobs, R racks, M nodes, G GPUs of the largest node, D domains (racks first, then each coarser level,
the whole cluster last), H levels from the rack (0) to the whole cluster (H - 1), Q queues, K classes, E node events.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from nvlenv.cluster.types import ClusterSpec
from nvlenv.common.kernel import compiled, tell_if_compiling

SLOT_SIZES = (1, 2, 4, 8, 16, 18)  # slice sizes in nodes whose free slots are counted all the time

PENDING, WAITING, RUNNING, DONE = 0, 1, 2, 3  # JOB.status

JOB = np.dtype(
    [
        # what the workload says
        ("submit", "f8"),  # h
        ("duration", "f8"),  # h at the ideal shape
        ("noise", "f8"),  # estimate / duration
        ("comm", "f8"),  # share of a step spent in communication at the ideal shape
        ("ideal", "f8"),  # communication ratio of the best shape for this size and slice
        ("checkpoint", "f8"),  # h of work between checkpoints
        ("restart", "f8"),  # h of work lost to a restart
        ("gpus", "i4"),
        ("pod_gpus", "i4"),
        ("unit_pods", "i4"),  # pods of one slice
        ("units", "i4"),  # slices
        ("priority", "i4"),
        ("queue", "i4"),
        ("klass", "i4"),
        ("mode", "i1"),
        ("height", "i1"),
        ("preemptible", "i1"),
        ("movable", "i1"),
        # what has become of it
        ("status", "i1"),
        ("evictions", "i4"),  # by `open`; failures are not counted here
        ("held", "i4"),  # instant at which it was last held
        ("mark", "i8"),  # stamp of the kernel call that last came across it
        ("mark_node", "i4"),  # and where
        ("seen", "i4"),  # epoch in which the scan last looked at it
        ("first_gpu", "i4"),  # head of its chain in gpu_next; -1: holds no GPU
        ("heap_pos", "i4"),  # its place in the completion heap
        ("work", "f8"),  # h of work left at the start of the current run (or now, if waiting)
        ("queued", "f8"),  # when it last joined the waiting list
        ("start", "f8"),  # of the current run
        ("end", "f8"),  # of the current run
        ("predicted", "f8"),  # end of the current run as estimated at its start
        ("speed", "f8"),  # of the current run, relative to the ideal shape
        ("first_start", "f8"),  # inf: never started
        ("finish", "f8"),  # inf: not finished
        ("waited", "f8"),  # h in the waiting list before the current stay
        ("lost", "f8"),  # h of work lost to evictions, moves and failures
    ],
    align=True,
)

NODE = np.dtype(
    [
        ("rack", "i4"),
        ("gpus", "i4"),
        ("free", "i4"),  # GPUs without a pod, blocked or not
        ("blocked", "i4"),  # how many reasons (the next two, and counted verification) keep new pods away
        ("failed", "i4"),  # failures not yet repaired
        ("cordoned", "i4"),  # cordons not yet lifted
        ("verify", "i4"),  # 1: a verification pod runs here
    ],
    align=True,
)

RACK = np.dtype(
    [
        ("node0", "i4"),  # its nodes are node0 <= n < node1
        ("node1", "i4"),
        ("usable", "i4"),  # nodes that are not blocked
        ("part", "i4"),  # usable nodes with some GPUs free and some taken
        ("opened", "i4"),  # decision number of the job for which it was last opened
        ("stale", "i4"),  # 1: occupancy changed since the outlook below was made
        ("drain", "f8"),  # when its last job ends, by estimates; <= now: empty
        ("ready", "f8"),  # when it first has clock.hero_nodes free nodes, by estimates
        ("recheck", "f8"),  # when one of its jobs outlives its estimate and the outlook must be made again
        ("reserved", "i4"),  # 1: kept, by EASY's rule, for clock.hero
    ],
    align=True,
)

QUEUE = np.dtype(
    [
        ("nominal", "i8"),
        ("limit", "i8"),  # nominal plus what it may borrow
        ("used", "i8"),
        ("cohort", "i4"),
        ("strict", "i4"),
        ("blocker", "i4"),  # StrictFIFO: its first job that stays waiting
        ("blocker_epoch", "i4"),
    ],
    align=True,
)

COHORT = np.dtype([("nominal", "i8"), ("used", "i8")], align=True)

CLASS = np.dtype([("weight", "f8"), ("waiting_gpus", "i8"), ("waiting_hours", "f8")], align=True)

NODE_EVENT = np.dtype([("time", "f8"), ("node", "i4"), ("kind", "i4")], align=True)

CLOCK = np.dtype(
    [
        # rules of this simulator
        ("horizon", "f8"),  # end of the window, h
        ("measure_from", "f8"),  # totals below count from here on
        ("sample_every", "f8"),
        ("cliff", "f8"),
        ("model", "i4"),  # collective model, an id of collectives.MODELS
        ("rack_gpus", "i4"),  # GPUs of the largest rack
        ("capacity", "i4"),  # GPUs of the cluster
        ("slice_nodes", "i4"),  # the slice that outlook and samples speak about
        ("hero_gpus", "i4"),  # a job of at least so many GPUs is a hero
        ("max_evictions", "i4"),
        ("allow_open", "i4"),
        ("allow_fill", "i4"),
        ("allow_hold", "i4"),  # 0: `hold` is only legal where nothing else is, so it never comes up
        ("verify_counted", "i4"),  # 1: verification pods count as usage and capacity
        ("evict_whole_rack", "i4"),  # 1: `open` evicts everything in the rack, as the hero controller does
        ("n_jobs", "i4"),
        ("n_events", "i4"),
        # where it is
        ("now", "f8"),
        ("done", "i4"),  # 1: the window has ended
        ("next_job", "i4"),
        ("next_event", "i4"),
        ("next_sample", "f8"),
        ("n_samples", "i4"),
        ("n_waiting", "i4"),
        ("n_running", "i4"),
        # the scan of the waiting list
        ("instant", "i4"),  # number of the last event at which capacity grew: holds last for one instant
        ("epoch", "i4"),  # number of the last time capacity grew, evictions included
        ("cursor", "i4"),
        ("unseen", "i4"),  # waiting jobs not looked at in this epoch
        ("rescan", "i4"),  # 1: the current job's evictions made room, look at everybody again
        # the decision at hand
        ("current", "i4"),  # job; -1: none
        ("units_left", "i4"),  # slices still to be placed
        ("pods_left", "i4"),  # pods of the present slice still to be placed
        ("scope", "i4"),  # domain to which the present slice is bound; -1: not yet
        ("reach", "i4"),  # height of the domains inside which the present slice fits; -1: nowhere
        ("stamp", "i8"),  # numbers kernel calls that mark jobs
        ("hero", "i4"),  # the waiting job for which racks are reserved; -1: none
        ("hero_nodes", "i4"),  # nodes in a rack that make it ready
        ("shadow", "f8"),  # when it can start, by estimates; inf: never or there is none
        ("pool_start", "f8"),  # the same if its GPUs may be anywhere
        ("decisions", "i8"),  # jobs that came up for a decision; numbers them
        # rates and totals
        ("free_all", "i8"),  # free GPUs, blocked ones included
        ("hero_waiting", "i8"),  # GPUs that waiting heroes ask for
        ("stall_gpus", "i8"),  # smallest demand that has quota but no shape; large: none
        ("slow_rate", "f8"),  # GPUs lost to slowdown at this moment
        ("waiting", "f8"),  # weighted waiting GPU-hours
        ("slowdown", "f8"),  # GPU-hours
        ("lost", "f8"),  # GPU-hours lost to evictions, moves and failures
        ("stall", "f8"),  # h of fragmentation stall
        ("busy", "f8"),  # GPU-hours with a pod
        ("unreachable", "f8"),  # idle GPU-hours on blocked nodes
        ("evictions", "i8"),
        ("moves", "i8"),
        ("failures", "i8"),  # job runs ended by a failing node
        ("verify_evictions", "i8"),
        ("illegal", "i8"),  # illegal actions, treated as hold
    ],
    align=True,
)

SAMPLE_FIELDS = (
    "hour",
    "free_gpus",
    "whole_racks",
    "waiting_gpus",
    "hero_waiting_gpus",
    "stalled",
    "running_gpus",
) + tuple(f"slots_{s}" for s in SLOT_SIZES)


class Row(IntEnum):
    """Rows of `Sim.scratch`. Each kernel call that needs work space has rows of its own."""

    COUNTS = 0  # placement_speed: GPUs in each rack that the job touches
    WHERE = 1  # and that rack
    STATE = 2  # eviction: state of each node
    OFFER = 3  # 1: part-used node that takes moved pods
    SPARE = 4  # whole nodes of each rack that moved pods may take
    POTENTIAL = 5  # slices that each rack could hold at most
    ROOM = 6  # offered nodes by free GPUs
    HERE = 7  # the same, outside one rack
    PARENT = 8  # groups of nodes: union-find over the nodes of one rack
    WEIGHT = 9  # nodes of each group
    JOBS = 10  # jobs of each group
    TAKES = 11  # cover: was the group taken, by (group, nodes still needed)
    CHOSEN = 12
    VICTIMS = 13
    RELEASED = 14  # outlook: GPUs given back, by bin of time
    POLICY = 15  # free for policies


NO_DEMAND = 2**40  # stall_gpus when nobody is stalled
RELEASE_BINS = 64  # of the outlook's count of GPUs given back


class Sim(NamedTuple):
    """One simulator (or, with a leading axis, a batch of them)."""

    clock: np.ndarray  # (1,) CLOCK
    jobs: np.ndarray  # (J,) JOB
    nodes: np.ndarray  # (M,) NODE
    gpu_job: np.ndarray  # (M * G,) int32: job on each GPU; -1 free, -2 no such GPU
    gpu_next: np.ndarray  # (M * G,) int32: next GPU of the same job; -1 last
    racks: np.ndarray  # (R,) RACK
    ancestors: np.ndarray  # (R, H) int32: domain of each rack at each height; [:, 0] the rack itself
    level_start: np.ndarray  # (H + 1,) int32: domains of height h are level_start[h] <= d < level_start[h + 1]
    cap: np.ndarray  # (D, G + 1) int32: pods of p GPUs that fit domain d now; cap[d, 1] = its free GPUs
    slots: np.ndarray  # (2, 6) float64: free slots by SLOT_SIZES now, and their time integral
    waiting: np.ndarray  # (J,) int32: waiting jobs, first n_waiting entries, by priority then submit
    heap: np.ndarray  # (J,) int32: running jobs, first n_running entries, a binary heap by end
    queues: np.ndarray  # (Q,) QUEUE
    cohorts: np.ndarray  # (Q,) COHORT
    classes: np.ndarray  # (K,) CLASS
    events: np.ndarray  # (E,) NODE_EVENT
    samples: np.ndarray  # (T, len(SAMPLE_FIELDS)) float64
    mask: np.ndarray  # (2R + 2,) bool: legal actions of the decision at hand
    open_gpus: np.ndarray  # (R,) float64: GPUs that open[r] would evict; valid where open[r] is legal
    open_lost: np.ndarray  # (R,) float64: GPU-hours that open[r] would lose
    scratch: np.ndarray  # (len(Row), max(R, M, G + 1, GPUs of a rack, (nodes of a rack + 1) ** 2, bins)) int64, see Row
    scratch_float: np.ndarray  # (4, nodes of a rack + 1) float64: the same
    mix: np.ndarray  # (G + 1, GPUs of a rack + 1) float64: mix[p, k] = share of jobs with more than k pods of p GPUs


@dataclass(frozen=True)
class Dims:
    """How large the arrays of every simulator of a batch must be."""

    jobs: int
    racks: int
    nodes: int
    rack_nodes: int
    gpus_per_node: int
    heights: int
    domains: int
    queues: int
    classes: int
    events: int = 0
    samples: int = 0

    @classmethod
    def of(cls, cluster: ClusterSpec, jobs: int, queues: int, classes: int, events: int = 0, samples: int = 0) -> Dims:
        """The smallest arrays that hold this cluster and so many jobs."""
        coarser = [int(column.max(initial=-1)) + 1 for column in cluster.rack_parents.T]
        return cls(
            jobs=jobs,
            racks=cluster.racks,
            nodes=cluster.nodes,
            rack_nodes=int(np.bincount(cluster.node_rack, minlength=1).max()),
            gpus_per_node=cluster.gpus_per_node,
            heights=len(coarser) + 2,
            domains=cluster.racks + sum(coarser) + 1,
            queues=queues,
            classes=classes,
            events=events,
            samples=samples,
        )

    def cover(self, other: Dims) -> Dims:
        """Large enough for both."""
        sizes = {name: max(size, vars(other)[name]) for name, size in vars(self).items()}
        # Padded racks come before the coarser domains; a cluster has one domain on each level that only the other has.
        coarser = max(d.domains - d.racks + sizes["heights"] - d.heights for d in (self, other))
        return Dims(**{**sizes, "domains": sizes["racks"] + coarser})


def allocate(n: int, dims: Dims) -> Sim:
    """A batch of n empty simulators; every one must be filled by `load` before use."""
    tell_if_compiling()
    d = dims
    jobs, rack_gpus = max(d.jobs, 1), d.rack_nodes * d.gpus_per_node
    work_space = max(d.racks, d.nodes, d.gpus_per_node + 1, rack_gpus, (d.rack_nodes + 1) ** 2, RELEASE_BINS)
    return Sim(
        clock=np.zeros((n, 1), CLOCK),
        jobs=np.zeros((n, jobs), JOB),
        nodes=np.zeros((n, d.nodes), NODE),
        gpu_job=np.full((n, d.nodes * d.gpus_per_node), -2, np.int32),
        gpu_next=np.full((n, d.nodes * d.gpus_per_node), -1, np.int32),
        racks=np.zeros((n, d.racks), RACK),
        ancestors=np.zeros((n, d.racks, d.heights), np.int32),
        level_start=np.zeros((n, d.heights + 1), np.int32),
        cap=np.zeros((n, d.domains, d.gpus_per_node + 1), np.int32),
        slots=np.zeros((n, 2, len(SLOT_SIZES))),
        waiting=np.zeros((n, jobs), np.int32),
        heap=np.zeros((n, jobs), np.int32),
        queues=np.zeros((n, d.queues), QUEUE),
        cohorts=np.zeros((n, d.queues), COHORT),
        classes=np.zeros((n, d.classes), CLASS),
        events=np.zeros((n, d.events), NODE_EVENT),
        samples=np.zeros((n, d.samples, len(SAMPLE_FIELDS))),
        mask=np.zeros((n, 2 * d.racks + 2), np.bool_),
        open_gpus=np.zeros((n, d.racks)),
        open_lost=np.zeros((n, d.racks)),
        scratch=np.zeros((n, len(Row), work_space), np.int64),
        scratch_float=np.zeros((n, 4, max(d.rack_nodes, d.racks) + 1)),
        mix=np.zeros((n, d.gpus_per_node + 1, d.rack_nodes * d.gpus_per_node + 1)),
    )


@compiled
def view(b, i):
    """Simulator i of a batch, sharing its memory."""
    return Sim(
        b.clock[i], b.jobs[i], b.nodes[i], b.gpu_job[i], b.gpu_next[i], b.racks[i], b.ancestors[i], b.level_start[i],
        b.cap[i], b.slots[i], b.waiting[i], b.heap[i], b.queues[i], b.cohorts[i], b.classes[i], b.events[i],
        b.samples[i], b.mask[i], b.open_gpus[i], b.open_lost[i], b.scratch[i], b.scratch_float[i], b.mix[i],
    )  # fmt: skip


@compiled
def copy_into(target, source):
    """Overwrite one simulator with another of the same dimensions."""
    target.clock[:] = source.clock
    n = source.clock[0].n_jobs
    target.jobs[:n] = source.jobs[:n]
    target.nodes[:] = source.nodes
    target.gpu_job[:] = source.gpu_job
    target.gpu_next[:] = source.gpu_next
    target.racks[:] = source.racks
    target.ancestors[:] = source.ancestors
    target.level_start[:] = source.level_start
    target.cap[:] = source.cap
    target.slots[:] = source.slots
    target.waiting[: source.clock[0].n_waiting] = source.waiting[: source.clock[0].n_waiting]
    target.heap[: source.clock[0].n_running] = source.heap[: source.clock[0].n_running]
    target.queues[:] = source.queues
    target.cohorts[:] = source.cohorts
    target.classes[:] = source.classes
    target.events[:] = source.events
    target.samples[: source.clock[0].n_samples] = source.samples[: source.clock[0].n_samples]
    target.mask[:] = source.mask
    target.open_gpus[:] = source.open_gpus
    target.open_lost[:] = source.open_lost
    target.mix[:] = source.mix
