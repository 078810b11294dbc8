"""What a live cluster needs beside the simulator's own kernels: seats for jobs that already run, one decision at a
time, nodes that cannot take a certain pod, and failed nodes that are replaced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nvlenv.cluster.types import ClusterSpec, Mode, QueueSpec, Workload
from nvlenv.common.kernel import kernel
from nvlenv.engine.model.settings import Settings
from nvlenv.policies.heuristics.choose import FORECASTS, look, rack_keys
from nvlenv.policies.heuristics.packing import part_here
from nvlenv.policies.heuristics.reservation import is_kept, keeps_pool, refresh_forecast, what_is_kept
from nvlenv.policies.heuristics.spreading import waits_for_domain
from nvlenv.simulator.events import lost_work, run
from nvlenv.simulator.feasibility import consider
from nvlenv.simulator.load import load, load_jobs
from nvlenv.simulator.occupancy import occupy, set_node
from nvlenv.simulator.preemption import mark_opens, node_state
from nvlenv.simulator.queues import dequeue, enqueue, has_quota
from nvlenv.simulator.state import DONE, NO_DEMAND, Dims, Sim, allocate

# --------------------------------------------------------------------------------------------------------------------
# The simulator's arrays for a cluster that lives on: jobs come and go, rows are taken and given back.
#
# A row is one job of the simulator. Rows are handed out in ascending order and never twice, since the simulator settles
# equal priorities by the number of the job; when the table is full, the rows that are left move together in their order.
# --------------------------------------------------------------------------------------------------------------------


SPARE_ROWS = 1024
NO_HERO = -2  # unlike any row, and unlike -1, "no hero": reservations are made anew

CONSTANT = ("ancestors", "level_start", "events", "samples", "mix", "scratch", "scratch_float")  # or work space

ROW_FIELDS = (  # what a row is, wherever it stands
    *("submit", "duration", "estimate_error", "comm", "ideal", "checkpoint", "restart"),
    *("gpus", "pod_gpus", "slice_pods", "slices", "priority", "queue", "klass", "mode", "height"),
    *("preemptible", "movable", "evictions", "work", "queued", "start", "predicted", "speed"),
    *("first_start", "waited", "lost"),
)


class Row(NamedTuple):
    """A job as the simulator knows it. Units as in `nvlenv.cluster.types.Workload`."""

    gpus: int
    pod_gpus: int
    priority: int
    queue: int
    estimate: float
    mode: Mode = Mode.UNCONSTRAINED
    height: int = 0
    slice_gpus: int = 0
    comm: float = 0.0
    checkpoint: float = 0.0
    restart: float = 0.0
    preemptible: bool = False
    movable: bool = False


@dataclass(frozen=True)
class Seat:
    """Where a running job sits: GPUs on each of its nodes, since when, and until when by its estimate (h)."""

    nodes: Sequence[int]
    gpus: Sequence[int]
    start: float
    predicted: float


def workload_of(
    rows: Sequence[Row], classes: Sequence[int], class_names: Sequence[str], queue_names: Sequence[str]
) -> Workload:
    """Rows as a workload, all submitted at 0; `classes` are numbers of `class_names`."""
    columns: dict[str, Any] = {name: [row[i] for row in rows] for i, name in enumerate(Row._fields)}
    integers = ("gpus", "pod_gpus", "priority", "queue", "slice_gpus")
    columns.update({name: np.array(columns[name], np.int32) for name in integers})
    columns.update({name: np.array(columns[name], np.int8) for name in ("mode", "height")})
    columns.update({name: np.array(columns[name], np.bool_) for name in ("preemptible", "movable")})
    columns.update({name: np.array(columns[name], np.float64) for name in ("comm", "checkpoint", "restart")})
    estimate = np.array(columns.pop("estimate"), np.float64)
    return Workload(
        submit=np.zeros(len(rows)),
        gpus_per_pod=columns.pop("pod_gpus"),
        duration=estimate,
        estimate=estimate,
        comm_fraction=columns.pop("comm"),
        job_class=np.array(classes, np.int32),
        checkpoint_interval=columns.pop("checkpoint"),
        restart_time=columns.pop("restart"),
        class_names=tuple(class_names),
        queue_names=tuple(queue_names),
        source="engine",
        **columns,
    )


def seat_all(sim: Sim, rows: Sequence[int], seats: Sequence[Seat]) -> None:
    """Rows of a simulator run where they are said to."""
    first = np.cumsum([0, *(len(place.nodes) for place in seats)]).astype(np.int32)
    nodes = np.array([node for place in seats for node in place.nodes], np.int32)
    gpus = np.array([count for place in seats for count in place.gpus], np.int32)
    start = np.array([place.start for place in seats], np.float64)
    predicted = np.array([place.predicted for place in seats], np.float64)
    seat(sim, np.array(rows, np.int32), first, nodes, gpus, start, predicted)


class Saved(NamedTuple):
    """A `Live` at one moment."""

    sim: Sim
    rows: dict[str, list[int]]
    next_row: int


class Live:
    """A `Sim` without a workload of its own. `sim` is replaced, not only changed: never keep it."""

    def __init__(
        self, spec: ClusterSpec, queues: Sequence[QueueSpec], settings: Settings, jobs: Sequence[tuple[str, Row]] = ()
    ) -> None:
        """An idle cluster; `jobs` have rows, in this order, but neither wait nor run yet."""
        self.spec, self.queues, self.settings = spec, tuple(queues), settings
        self._classes = {priority: number + 1 for number, priority in enumerate(sorted(settings.weights))}
        weights = [1.0, *(settings.weights[priority] for priority in sorted(settings.weights))]
        dims = Dims.of(spec, len(jobs) + SPARE_ROWS, len(queues), len(weights))
        self.sim = Sim(*(array[0] for array in allocate(1, dims)))
        self.rows: dict[str, list[int]] = {}  # job -> its rows, one per part
        self._next = 0
        load(self.sim, spec, self._workload([row for _, row in jobs]), settings.rules(), weights, queues)
        self._number([job for job, _ in jobs])

    @property
    def now(self) -> float:
        """h since the engine began."""
        return float(self.sim.clock["now"][0])

    @property
    def node_size(self) -> int:
        """GPUs of the largest node."""
        return int(self.sim.cap.shape[1]) - 1

    def set_now(self, hours: float) -> None:
        self.sim.clock["now"] = hours

    def capacity_grew(self) -> None:
        """Somebody left: nobody is known to be stalled any more."""
        self.sim.clock["stall_gpus"] = NO_DEMAND

    # Rows

    def add(self, job: str, rows: Sequence[Row]) -> list[int]:
        """Rows for a job, filled by the simulator's own loader. It does not wait yet."""
        if self._next + len(rows) > len(self.sim.jobs):
            self._make_room(len(rows))
        self._fill(slice(self._next, self._next + len(rows)), rows)
        self.sim.jobs["submit"][self._next : self._next + len(rows)] = self.now
        return self._number([job] * len(rows))

    def _number(self, jobs: Sequence[str]) -> list[int]:
        numbers = list(range(self._next, self._next + len(jobs)))
        for number, job in zip(numbers, jobs, strict=True):
            self.rows.setdefault(job, []).append(number)
        self._next += len(jobs)
        return numbers

    def name_of(self, row: int) -> str:
        """The job of a row in use; empty if there is none."""
        return next((job for job, rows in self.rows.items() if row in rows), "") if row >= 0 else ""

    def refill(self, number: int, row: Row) -> None:
        """The waiting job of this row is now described so; its turn, its waits and evictions stay."""
        leave(self.sim, number)
        kept = {name: self.sim.jobs[name][number] for name in ("submit", "waited", "evictions", "lost", "first_start")}
        self._fill(slice(number, number + 1), [row])
        for name, value in kept.items():
            self.sim.jobs[name][number] = value
        join(self.sim, number)

    def drop(self, job: str) -> None:
        """This job neither waits nor runs any more: its rows are given back."""
        hero = int(self.sim.clock["target"][0])
        if hero in self.rows.pop(job, ()):
            self.sim.clock["target"] = NO_HERO

    def wait(self, job: str) -> None:
        for row in self.rows[job]:
            join(self.sim, row)

    def withdraw(self, job: str) -> None:
        """The job waits no longer."""
        for row in self.rows[job]:
            leave(self.sim, row)
        self.drop(job)

    def seat(self, rows: Sequence[int], seats: Sequence[Seat]) -> None:
        """These rows run where they are said to."""
        seat_all(self.sim, rows, seats)

    def gpus_of(self, row: int) -> dict[int, int]:
        """GPUs that a row holds on each node, in node order."""
        nodes, counts = np.unique(np.flatnonzero(self.sim.gpu_job == row) // self.node_size, return_counts=True)
        return dict(zip(nodes.tolist(), counts.tolist(), strict=True))

    def slots_of(self, row: int) -> list[int]:
        """The GPUs that a row holds, in the order in which it got them."""
        slots, slot = [], int(self.sim.jobs["first_gpu"][row])
        while slot >= 0:
            slots.append(slot)
            slot = int(self.sim.gpu_next[slot])
        return slots[::-1]

    # Copies

    def save(self) -> Saved:
        """All of it as it is, apart from what changes from now on."""
        arrays = {name: array if name in CONSTANT else array.copy() for name, array in self.sim._asdict().items()}
        return Saved(Sim(**arrays), dict(self.rows), self._next)

    def restore(self, saved: Saved) -> None:
        self.sim, self.rows, self._next = saved

    def _fill(self, where: slice, rows: Sequence[Row]) -> None:
        load_jobs(self.sim._replace(jobs=self.sim.jobs[where]), self.spec, self._workload(rows))

    def _workload(self, rows: Sequence[Row]) -> Workload:
        names = [f"class-{number}" for number in range(len(self._classes) + 1)]
        return workload_of(rows, [self._class_of(row) for row in rows], names, [queue.name for queue in self.queues])

    def _class_of(self, row: Row) -> int:
        return self._classes.get(row.priority, 0) if row.mode == Mode.REQUIRED else 0

    def _make_room(self, rows: int) -> None:
        """Move the rows in use together; double the table if that leaves it more than half full."""
        sim, used = self.sim, np.array(sorted(row for rows in self.rows.values() for row in rows), np.int64)
        room = max(len(sim.jobs), 2 * (len(used) + rows))
        number = np.full(len(sim.jobs), NO_HERO, np.int32)
        number[used] = np.arange(len(used))
        jobs = np.zeros(room, sim.jobs.dtype)
        jobs[: len(used)] = sim.jobs[used]
        waiting, heap = np.zeros(room, np.int32), np.zeros(room, np.int32)
        n_waiting, n_running = int(sim.clock["n_waiting"][0]), int(sim.clock["n_running"][0])
        waiting[:n_waiting] = number[sim.waiting[:n_waiting]]
        heap[:n_running] = number[sim.heap[:n_running]]
        taken = sim.gpu_job >= 0
        sim.gpu_job[taken] = number[sim.gpu_job[taken]]
        hero = int(sim.clock["target"][0])
        sim.clock["target"] = number[hero] if hero >= 0 else hero
        self.sim = sim._replace(jobs=jobs, waiting=waiting, heap=heap)
        self.rows = {job: [int(number[row]) for row in rows] for job, rows in self.rows.items()}
        self._next = len(used)


# --------------------------------------------------------------------------------------------------------------------
# What a live cluster needs beside the simulator's own kernels: seats for jobs that already run, one decision at a
#
# time, nodes that cannot take a certain pod, and failed nodes that are replaced.
# --------------------------------------------------------------------------------------------------------------------


@kernel
def seat(sim, rows, first, nodes, gpus, start, predicted):
    """Jobs that already run: job rows[i] holds gpus[k] of nodes[k] for first[i] <= k < first[i + 1], since start[i]."""
    for i in range(len(rows)):
        j = rows[i]
        for k in range(first[i], first[i + 1]):
            taken = min(gpus[k], sim.nodes[nodes[k]].free)
            if taken > 0:
                occupy(sim, j, nodes[k], taken)
        run(sim, j)
        job = sim.jobs[j]
        job.start, job.predicted = start[i], predicted[i]
        job.first_start = start[i]


@kernel
def seat_again(sim, rows, first, slots):
    """Jobs that ran before: job rows[i] gets the GPUs slots[k] for first[i] <= k < first[i + 1], in this order."""
    g = sim.cap.shape[1] - 1
    for i in range(len(rows)):
        j = rows[i]
        for k in range(first[i], first[i + 1]):
            slot, n = slots[k], slots[k] // g
            sim.gpu_job[slot] = j
            sim.gpu_next[slot] = sim.jobs[j].first_gpu
            sim.jobs[j].first_gpu = slot
            set_node(sim, n, sim.nodes[n].free - 1, sim.nodes[n].blocked)
        run(sim, j)


@kernel
def join(sim, j):
    """Job j begins to wait."""
    enqueue(sim, j)


@kernel
def leave(sim, j):
    """Job j waits no longer, and does not run either."""
    dequeue(sim, j)
    sim.jobs[j].status = DONE


@kernel
def begin(sim, j, turn, preempt):
    """Put waiting job j at hand, as decision number `turn`. Returns 0: nothing to decide, 1: by quota, 2: at hand.

    With `preempt`, racks may also be opened where the free GPUs of the whole cluster would not suffice: the simulator
    leaves such a job to wait, a live cluster gives way to priority.
    """
    c = sim.clock[0]
    c.current, c.decisions = -1, turn
    if not has_quota(sim, j):
        return 1
    found = consider(sim, j)
    if not found and preempt and c.reach < 0:
        for a in range(len(sim.mask)):
            sim.mask[a] = False
        sim.mask[len(sim.mask) - 1] = True
        found = mark_opens(sim, j)
    if not found:
        return 0
    c.current = j
    return 2


@kernel
def restrict(sim, limits, p, hidden):
    """Let node n take at most limits[n] pods of p GPUs; `hidden` remembers what was taken from view."""
    for n in range(len(limits)):
        node = sim.nodes[n]
        hidden[n] = 0
        if node.blocked > 0 or node.free // p <= limits[n]:
            if limits[n] == 0 and node.blocked == 0:  # a full node: opening it would not help these pods
                hidden[n] = -1
                set_node(sim, n, node.free, 1)
            continue
        if limits[n] == 0:
            hidden[n] = -1
            set_node(sim, n, node.free, 1)
        else:
            hidden[n] = node.free - limits[n] * p
            set_node(sim, n, limits[n] * p, 0)


@kernel
def unrestrict(sim, hidden):
    """Undo `restrict`, whatever was placed in between."""
    for n in range(len(hidden)):
        node = sim.nodes[n]
        if hidden[n] < 0:
            set_node(sim, n, node.free, node.blocked - 1)
        elif hidden[n] > 0:
            set_node(sim, n, node.free + hidden[n], node.blocked)


@kernel
def swap(sim, j, n, spares, gpus):
    """Move what job j holds on node n: gpus[k] of it to node spares[k]. Chain order of its other GPUs is kept."""
    g = sim.cap.shape[1] - 1
    job, count = sim.jobs[j], 0
    before, slot = -1, job.first_gpu
    while slot >= 0:
        after = sim.gpu_next[slot]
        if slot // g == n:
            if before < 0:
                job.first_gpu = after
            else:
                sim.gpu_next[before] = after
            sim.gpu_job[slot], sim.gpu_next[slot] = -1, -1
            count += 1
        else:
            before = slot
        slot = after
    set_node(sim, n, sim.nodes[n].free + count, sim.nodes[n].blocked)
    for k in range(len(spares)):
        occupy(sim, j, spares[k], gpus[k])


@kernel
def hours_lost(sim, j, keeps_progress):
    """Hours of work that stopping job j now costs it."""
    return lost_work(sim, j, keeps_progress)


@kernel
def count_states(sim, j, counts):
    """counts[r, s]: nodes of rack r that are 0 taken, 1 free, 2 clearable, 3 movable for whole-node pods of job j."""
    for r in range(len(sim.racks)):
        for s in range(4):
            counts[r, s] = 0
        for n in range(sim.racks[r].node0, sim.racks[r].node1):
            counts[r, node_state(sim, j, n)] += 1


@kernel
def score_racks(sim, rule, keys, parts, kept):
    """What `choose` weighs for the decision at hand.

    keys (R, 2): of the packing rule; parts (R,): pods that would go there; kept (R,): 1 where a legal rack is kept for
    others. Returns four flags: it waits for one domain, it leaves its GPUs to the pool of another job, reserved racks
    are kept, hero-ready racks are kept.
    """
    if rule.easy == 1 or rule.drain == 1 or FORECASTS[rule.packing]:
        refresh_forecast(sim, rule)
    may_hold = sim.mask[2 * len(sim.racks) + 1]
    waits, drains = may_hold and waits_for_domain(sim, rule), may_hold and keeps_pool(sim, rule)
    flags = what_is_kept(sim, rule) if may_hold else (False, False)
    seen = look(sim, rule)
    for r in range(len(sim.racks)):
        parts[r], kept[r] = part_here(sim, r), 0
        keys[r, 0] = keys[r, 1] = 0.0
        if sim.mask[r]:
            keys[r, 0], keys[r, 1] = rack_keys(sim, rule, r, seen)
            kept[r] = int(is_kept(sim, rule, flags, r, parts[r]))
    return waits, drains, flags[0], flags[1]
