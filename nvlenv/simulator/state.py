"""The arrays of a simulator: what they hold, how they are made and copied. `nvlenv.simulator.load` fills them.

The records (JOB, NODE, ..., CLOCK) say what is known of one job, one node, and so on; `Sim` lists the arrays, once: how
they are made, viewed and copied follows from that list.

A *batch* is a `Sim` whose arrays have a leading axis of N simulators; `view(batch, i)` is the same `Sim` without it,
sharing memory. Kernels and policies always work on such a view, in Python and in numba alike.

Shape letters: J jobs, R racks, M nodes, G GPUs of the largest node, D domains (racks first, then each coarser level,
the whole cluster last), H levels from the rack (0) to the whole cluster (H - 1), Q queues, K classes, E node events,
T samples, F sample fields, S slot sizes, RG GPUs of the largest rack.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, NamedTuple, get_type_hints

import numpy as np

from nvlenv.cluster.types import ClusterSpec
from nvlenv.common.kernel import compiled, tell_if_compiling

SLOT_SIZES = (1, 2, 4, 8, 16, 18)  # slice sizes in nodes whose free slots are counted all the time

PENDING, WAITING, RUNNING, DONE = 0, 1, 2, 3  # JOB.status
NEVER, SHAPE, PRIORITY = 0, 1, 2  # CLOCK.preemption
LOWER, ANY = 1, 2  # QUEUE.within and others, beside NEVER
NO_PRIORITY = 2**31 - 1  # CLOCK.victim_priority: any

JOB = np.dtype(
    [
        # what the workload says
        ("submit", "f8"),  # h
        ("duration", "f8"),  # h at the ideal shape
        ("estimate_error", "f8"),  # estimate / duration; 1: the estimate is right
        ("comm", "f8"),  # share of a step spent in communication at the ideal shape
        ("ideal", "f8"),  # communication ratio of the best shape for this size and slice
        ("checkpoint", "f8"),  # h of work between checkpoints
        ("restart", "f8"),  # h of work lost to a restart
        ("gpus", "i4"),
        ("pod_gpus", "i4"),
        ("slice_pods", "i4"),  # pods of one slice
        ("slices", "i4"),  # slices
        ("priority", "i4"),
        ("queue", "i4"),
        ("klass", "i4"),
        ("mode", "i1"),
        ("height", "i1"),
        ("preemptible", "i1"),
        ("preempts", "i1"),
        ("movable", "i1"),
        # what has become of it
        ("status", "i1"),
        ("evictions", "i4"),  # by `open`; failures are not counted here
        ("held", "i4"),  # instant at which it was last held
        ("mark", "i8"),  # stamp of the kernel call that last came across it
        ("reclaimed", "i8"),  # stamp of the opener that may take it from a queue that borrows
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
        ("stale", "i4"),  # 1: occupancy changed since the forecast below was made
        ("drain", "f8"),  # when its last job ends, by estimates; <= now: empty
        ("ready", "f8"),  # when it first has clock.target_nodes free nodes, by estimates
        ("recheck", "f8"),  # when one of its jobs outlives its estimate and the forecast must be made again
        ("reserved", "i4"),  # 1: kept, by EASY's rule, for clock.target
    ],
    align=True,
)

QUEUE = np.dtype(
    [
        ("nominal", "i8"),
        ("limit", "i8"),  # nominal plus what it may borrow
        ("used", "i8"),
        ("cohort", "i4"),
        ("within", "i4"),  # whom its jobs may evict: NEVER, LOWER, ANY (or newer ones of the same priority)
        ("reclaim", "i4"),
        ("borrow_within", "i4"),
        ("borrow_priority", "i4"),
        ("strict", "i4"),
        ("blocker", "i4"),  # StrictFIFO: its first job that stays waiting
        ("blocker_epoch", "i4"),
    ],
    align=True,
)

COHORT = np.dtype([("nominal", "i8"), ("used", "i8"), ("limit", "i8"), ("parent", "i4")], align=True)  # parent -1: none

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
        ("slice_nodes", "i4"),  # the slice that forecast and samples speak about
        ("hero_gpus", "i4"),  # a job of at least so many GPUs is a hero
        ("max_evictions", "i4"),
        ("allow_open", "i4"),
        ("any_victims", "i4"),  # 1: some may be evicted by a job of no higher priority
        ("preemption", "i4"),  # when racks may be opened: NEVER, SHAPE or PRIORITY
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
        ("slices_left", "i4"),  # slices still to be placed
        ("pods_left", "i4"),  # pods of the present slice still to be placed
        ("scope", "i4"),  # domain to which the present slice is bound; -1: not yet
        ("borrows", "i4"),  # 1: with it, its queue uses more than its own
        ("open_reach", "i4"),  # the same as reach, if others are evicted
        ("victim_urgency", "f8"),  # bars: a victim's weight per remaining hour, in times the opener's; inf: none
        ("victim_priority", "i4"),  # and its priority
        ("priced", "i4"),  # 1: open_gpus and open_lost are those of the decision at hand
        ("reclaim_stamp", "i8"),  # jobs that carry it may be evicted for quota that their queues borrow
        ("reach", "i4"),  # height of the domains inside which the present slice fits; -1: nowhere
        ("stamp", "i8"),  # numbers kernel calls that mark jobs
        ("target", "i4"),  # the waiting job for which racks are reserved; -1: none
        ("target_nodes", "i4"),  # nodes in a rack that make it ready
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


class Scratch(IntEnum):
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
    TAKES = 11  # preemption set: was the group taken, by (group, nodes still needed)
    CHOSEN = 12
    VICTIMS = 13
    EXTRA = 16  # preemption: victims for quota that were looked at again
    HOLDS = 17  # pods of the opener that each rack could hold at most
    GAINS = 18  # jobs of a node that may be evicted
    GONE = 19  # GPUs of each node whose jobs may be evicted
    MOVING = 20  # and whose jobs may only be moved
    SUMS = 21  # HOLDS of the racks of each domain, at its first rack
    RELEASED = 14  # forecast: GPUs given back, by bin of time
    POLICY = 15  # free for policies


NO_DEMAND = 2**40  # stall_gpus when nobody is stalled
RELEASE_BINS = 64  # of the forecast's count of GPUs given back


class Array(NamedTuple):
    """How one array of a simulator is made and copied."""

    dtype: Any
    shape: str  # letters of `Dims.lengths`
    fill: int = 0
    copied: str = ":"  # what `copy_into` copies; in it `c` is the clock; "": nothing, for work space


class Sim(NamedTuple):
    """One simulator, or, with a leading axis, a batch of them. This is the only list of the arrays."""

    clock: Annotated[np.ndarray, Array(CLOCK, "1")]
    jobs: Annotated[np.ndarray, Array(JOB, "J", copied=":c.n_jobs")]
    nodes: Annotated[np.ndarray, Array(NODE, "M")]
    gpu_job: Annotated[np.ndarray, Array(np.int32, "MG", -2)]  # job on each GPU; -1 free, -2 no such GPU
    gpu_next: Annotated[np.ndarray, Array(np.int32, "MG", -1)]  # next GPU of the same job; -1 last
    racks: Annotated[np.ndarray, Array(RACK, "R")]
    ancestors: Annotated[np.ndarray, Array(np.int32, "R H")]  # domain of each rack at each height; [:, 0] the rack
    level_start: Annotated[np.ndarray, Array(np.int32, "H+1")]  # first domain of each height, and the end
    cap: Annotated[np.ndarray, Array(np.int32, "D G+1")]  # pods of p GPUs that fit domain d now; cap[d, 1] = free GPUs
    slots: Annotated[np.ndarray, Array(float, "2 S")]  # free slots by SLOT_SIZES now, and their time integral
    waiting: Annotated[np.ndarray, Array(np.int32, "J", copied=":c.n_waiting")]  # by priority, then submit
    heap: Annotated[np.ndarray, Array(np.int32, "J", copied=":c.n_running")]  # running jobs, a binary heap by end
    queues: Annotated[np.ndarray, Array(QUEUE, "Q")]
    cohorts: Annotated[np.ndarray, Array(COHORT, "C")]
    evictable: Annotated[
        np.ndarray, Array(np.int64, "RANKS")
    ]  # GPUs of preemptible running jobs, by `rank_of` priority
    classes: Annotated[np.ndarray, Array(CLASS, "K")]
    events: Annotated[np.ndarray, Array(NODE_EVENT, "E")]
    samples: Annotated[np.ndarray, Array(float, "T F", copied=":c.n_samples")]  # columns: SAMPLE_FIELDS
    mask: Annotated[np.ndarray, Array(np.bool_, "2R+2")]  # legal actions of the decision at hand
    open_gpus: Annotated[np.ndarray, Array(float, "R")]  # GPUs that open[r] would evict, once `price_opens` was called
    open_lost: Annotated[np.ndarray, Array(float, "R")]  # GPU-hours that open[r] would lose
    scratch: Annotated[np.ndarray, Array(np.int64, "W LONGEST", copied="")]  # see `Scratch`
    scratch_float: Annotated[np.ndarray, Array(float, "4 LONGEST_FLOAT", copied="")]
    gain_cost: Annotated[
        np.ndarray, Array(float, "2 N G+1", copied="")
    ]  # GPUs and lost work of gaining k pods on a node
    gain_jobs: Annotated[np.ndarray, Array(np.int32, "N G+1", copied="")]  # and which of its jobs go, as bits
    gain_taken: Annotated[np.ndarray, Array(np.int8, "N RG+1", copied="")]  # pods gained there, by pods still needed
    mix: Annotated[np.ndarray, Array(float, "G+1 RG+1")]  # [p, k]: share of jobs with more than k pods of p GPUs


ARRAYS: dict[str, Array] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(Sim, include_extras=True).items()
}


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
    cohorts: int = 0

    @classmethod
    def of(
        cls, cluster: ClusterSpec, jobs: int, queues: int, classes: int, events: int = 0, samples: int = 0,
        cohorts: int = 0,
    ) -> Dims:  # fmt: skip
        """The smallest arrays that hold this cluster and so many jobs; `cohorts` beside one for each queue."""
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
            cohorts=queues + cohorts,
        )

    def union(self, other: Dims) -> Dims:
        """Large enough for both."""
        sizes = {name: max(size, vars(other)[name]) for name, size in vars(self).items()}
        # Padded racks come before the coarser domains; a cluster has one domain on each level that only the other has.
        coarser = max(d.domains - d.racks + sizes["heights"] - d.heights for d in (self, other))
        return Dims(**{**sizes, "domains": sizes["racks"] + coarser})

    def lengths(self) -> dict[str, int]:
        """What the letters in `Array.shape` stand for."""
        rack_gpus, cleared = self.rack_nodes * self.gpus_per_node, (self.rack_nodes + 1) ** 2
        return {
            "1": 1, "2": 2, "4": 4, "J": max(self.jobs, 1), "R": self.racks, "2R+2": 2 * self.racks + 2,
            "M": self.nodes, "MG": self.nodes * self.gpus_per_node, "G+1": self.gpus_per_node + 1,
            "RG+1": rack_gpus + 1, "H": self.heights, "H+1": self.heights + 1, "D": self.domains,
            "Q": self.queues, "C": self.cohorts, "RANKS": 16, "N": self.rack_nodes, "K": self.classes,
            "E": self.events, "T": self.samples, "F": len(SAMPLE_FIELDS), "S": len(SLOT_SIZES), "W": len(Scratch),
            "LONGEST": max(self.racks, self.nodes, self.gpus_per_node + 1, rack_gpus, cleared, RELEASE_BINS),
            "LONGEST_FLOAT": max(rack_gpus, self.racks) + 1,
        }  # fmt: skip


def allocate(n: int, dims: Dims) -> Sim:
    """A batch of n empty simulators; every one must be filled by `load` before use."""
    tell_if_compiling()
    lengths = dims.lengths()
    arrays = {}
    for name, array in ARRAYS.items():
        shape = [n, *(lengths[letter] for letter in array.shape.split())]
        arrays[name] = np.full(shape, array.fill, array.dtype) if array.fill else np.zeros(shape, array.dtype)
    return Sim(**arrays)


def written(text: str, scope: dict[str, Any]) -> Any:
    """The function that a text defines in a module (whose `globals()` are `scope`), as if it stood in its file.

    For kernels that say the same of everything in a list, which numba cannot loop over.
    """
    found: dict[str, Any] = {}
    exec(compile(text, scope["__file__"], "exec"), scope, found)
    return next(iter(found.values()))


# view(batch, i): simulator i of a batch, sharing its memory.
view = compiled(written(f"def view(b, i): return Sim({', '.join(f'b.{name}[i]' for name in ARRAYS)})", globals()))

# copy_into(target, source): overwrite one simulator with another of the same dimensions.
_COPIES = [f"target.{name}[{a.copied}] = source.{name}[{a.copied}]" for name, a in ARRAYS.items() if a.copied]
copy_into = compiled(
    written("\n    ".join(["def copy_into(target, source):", "c = source.clock[0]", *_COPIES]), globals())
)
