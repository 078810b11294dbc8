"""The simulator's arrays for a cluster that lives on: jobs come and go, rows are taken and given back.

A row is one job of the simulator. Rows are handed out in ascending order and never twice, since the simulator settles
equal priorities by the number of the job; when the table is full, the rows that are left move together in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nvlenv.engine.live_kernels import join, leave, seat
from nvlenv.engine.settings import Settings
from nvlenv.simulator.load import load, load_jobs
from nvlenv.simulator.state import NO_DEMAND, Dims, Sim, allocate
from nvlenv.types import ClusterSpec, Mode, QueueSpec, Workload

SPARE_ROWS = 1024
NO_HERO = -2  # unlike any row, and unlike -1, "no hero": reservations are made anew

CONSTANT = ("ancestors", "level_start", "events", "samples", "mix", "scratch", "scratch_float")  # or work space

ROW_FIELDS = (  # what a row is, wherever it stands
    *("submit", "duration", "noise", "comm", "ideal", "checkpoint", "restart"),
    *("gpus", "pod_gpus", "unit_pods", "units", "priority", "queue", "klass", "mode", "height"),
    *("preemptible", "movable", "evictions", "work", "queued", "start", "predicted", "speed"),
    *("first_start", "waited", "lost"),
)


class Row(NamedTuple):
    """A job as the simulator knows it. Units as in `nvlenv.types.Workload`."""

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
        hero = int(self.sim.clock["hero"][0])
        if hero in self.rows.pop(job, ()):
            self.sim.clock["hero"] = NO_HERO

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
        load_jobs(self.sim._replace(jobs=self.sim.jobs[where]), self.spec, self._workload(rows), self.settings.rules())

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
        hero = int(sim.clock["hero"][0])
        sim.clock["hero"] = number[hero] if hero >= 0 else hero
        self.sim = sim._replace(jobs=jobs, waiting=waiting, heap=heap)
        self.rows = {job: [int(number[row]) for row in rows] for job, rows in self.rows.items()}
        self._next = len(used)
