"""The simulator's arrays for a cluster that lives on: jobs come and go, rows are taken and given back.

A *row* is one job of the simulator, which is one part of a job (`nvlenv.engine.core.parts`). Rows are handed out in
ascending order and never twice, since the simulator settles equal priorities by the number of the job; when the table
is full, the rows that are left move together in their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nvlenv.cluster.types import ClusterSpec, Mode, QueueSpec, Workload
from nvlenv.engine.core.kernels import assign_nodes
from nvlenv.engine.core.parts import Part, running_part, workload_of
from nvlenv.engine.model.jobs import Job
from nvlenv.engine.model.settings import Settings
from nvlenv.engine.model.snapshot import ClusterSnapshot, NodeState
from nvlenv.simulator.events import lost_work
from nvlenv.simulator.load import load, load_jobs
from nvlenv.simulator.occupancy import set_node
from nvlenv.simulator.queues import dequeue, enqueue
from nvlenv.simulator.state import DONE, NO_DEMAND, Dims, Sim, allocate

SECONDS = 3600.0  # of an hour
SPARE_ROWS = 1024
NO_TARGET = -2  # unlike any row, and unlike -1, "no target": reservations are made anew
NO_QUEUE = ""  # the queue of jobs outside of all queues: it has no limit

CONSTANT = ("ancestors", "level_start", "events", "samples", "mix", "scratch", "scratch_float")  # or work space
KEPT = ("submit", "waited", "evictions", "lost", "first_start")  # of a waiting job that is described anew


class Saved(NamedTuple):
    """A `Live` at one moment."""

    sim: Sim
    rows: dict[str, list[int]]
    next_row: int


class Live:
    """A `Sim` without a workload of its own. `sim` is replaced, not only changed: never keep it."""

    def __init__(
        self, spec: ClusterSpec, queues: Sequence[QueueSpec], settings: Settings, jobs: Sequence[tuple[str, Part]] = ()
    ) -> None:
        """An idle cluster; `jobs` (their ids) have rows, in this order, but neither wait nor run yet."""
        self.spec, self.queues, self.settings = spec, tuple(queues), settings
        self._classes = {priority: number + 1 for number, priority in enumerate(sorted(settings.weights))}
        weights = [1.0, *(settings.weights[priority] for priority in sorted(settings.weights))]
        dims = Dims.of(spec, len(jobs) + SPARE_ROWS, len(queues), len(weights))
        self.sim = Sim(*(array[0] for array in allocate(1, dims)))
        self.rows: dict[str, list[int]] = {}  # id of a job -> its rows, one per part
        self._next = 0
        load(self.sim, spec, self._workload([part for _, part in jobs]), settings.rules(), weights, queues)
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
        """Move the clock to so many hours since the engine began."""
        self.sim.clock["now"] = hours

    def capacity_grew(self) -> None:
        """Somebody left: nobody is known to be stalled any more."""
        self.sim.clock["stall_gpus"] = NO_DEMAND

    def set_state(self, node: int, state: NodeState) -> None:
        """Change what keeps new pods from a node: nothing, a cordon or a failure."""
        record = self.sim.nodes[node]
        blocked = int(record["blocked"]) - int(record["cordoned"]) - int(record["failed"])
        record["cordoned"], record["failed"] = int(state == NodeState.CORDONED), int(state == NodeState.FAILED)
        set_node(self.sim, node, int(record["free"]), blocked + int(state != NodeState.UP))
        if state == NodeState.UP:
            self.capacity_grew()

    def rack_of(self, node: int) -> str:
        """The name of a node's rack."""
        return self.spec.rack_names[int(self.spec.node_rack[node])]

    # Rows

    def add(self, job: str, parts: Sequence[Part]) -> list[int]:
        """Rows for a job, filled by the simulator's own loader. It does not wait yet."""
        if self._next + len(parts) > len(self.sim.jobs):
            self._make_room(len(parts))
        self._fill(slice(self._next, self._next + len(parts)), parts)
        self.sim.jobs["submit"][self._next : self._next + len(parts)] = self.now
        return self._number([job] * len(parts))

    def enqueue(self, job: str, parts: Sequence[Part]) -> list[int]:
        """The job waits; if it did before it is described anew, and keeps its turn, its waits and evictions."""
        if job in self.rows and len(self.rows[job]) != len(parts):
            self.withdraw(job)
        if job not in self.rows:
            for row in self.add(job, parts):
                enqueue(self.sim, row)
            return self.rows[job]
        for row, part in zip(self.rows[job], parts, strict=True):
            dequeue(self.sim, row)
            kept = {name: self.sim.jobs[name][row] for name in KEPT}
            self._fill(slice(row, row + 1), [part])
            for name, value in kept.items():
                self.sim.jobs[name][row] = value
            enqueue(self.sim, row)
        return self.rows[job]

    def withdraw(self, job: str) -> None:
        """The job waits no longer."""
        for row in self.rows[job]:
            dequeue(self.sim, row)
            self.sim.jobs["status"][row] = DONE
        self.drop(job)

    def drop(self, job: str) -> None:
        """This job neither waits nor runs any more: its rows are given back."""
        target = int(self.sim.clock["target"][0])
        if target in self.rows.pop(job, ()):
            self.sim.clock["target"] = NO_TARGET

    def waiting(self) -> list[int]:
        """The rows that wait, first in turn first."""
        return list(self.sim.waiting[: int(self.sim.clock["n_waiting"][0])].tolist())

    def name_of(self, row: int) -> str:
        """The job of a row in use; empty if there is none."""
        return next((job for job, rows in self.rows.items() if row in rows), "") if row >= 0 else ""

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

    def work_lost(self, row: int, keeps_progress: bool = False) -> float:
        """GPU-hours of work that stopping a row now costs."""
        return float(self.sim.jobs["gpus"][row]) * float(lost_work(self.sim, row, keeps_progress))

    # Copies

    def save(self) -> Saved:
        """All of it as it is, apart from what changes from now on."""
        arrays = {name: array if name in CONSTANT else array.copy() for name, array in self.sim._asdict().items()}
        return Saved(Sim(**arrays), dict(self.rows), self._next)

    def restore(self, saved: Saved) -> None:
        """Go back to what was saved; it must not be used again."""
        self.sim, self.rows, self._next = saved

    def _number(self, jobs: Sequence[str]) -> list[int]:
        numbers = list(range(self._next, self._next + len(jobs)))
        for number, job in zip(numbers, jobs, strict=True):
            self.rows.setdefault(job, []).append(number)
        self._next += len(jobs)
        return numbers

    def _fill(self, where: slice, parts: Sequence[Part]) -> None:
        load_jobs(self.sim._replace(jobs=self.sim.jobs[where]), self.spec, self._workload(parts))

    def _workload(self, parts: Sequence[Part]) -> Workload:
        names = [f"class-{number}" for number in range(len(self._classes) + 1)]
        classes = [self._classes.get(part.priority, 0) if part.mode == Mode.REQUIRED else 0 for part in parts]
        return workload_of(parts, classes, names, [queue.name for queue in self.queues])

    def _make_room(self, rows: int) -> None:
        """Move the rows in use together; double the table if that leaves it more than half full."""
        sim, used = self.sim, np.array(sorted(row for rows in self.rows.values() for row in rows), np.int64)
        room = max(len(sim.jobs), 2 * (len(used) + rows))
        number = np.full(len(sim.jobs), NO_TARGET, np.int32)
        number[used] = np.arange(len(used))
        jobs = np.zeros(room, sim.jobs.dtype)
        jobs[: len(used)] = sim.jobs[used]
        waiting, heap = np.zeros(room, np.int32), np.zeros(room, np.int32)
        n_waiting, n_running = int(sim.clock["n_waiting"][0]), int(sim.clock["n_running"][0])
        waiting[:n_waiting] = number[sim.waiting[:n_waiting]]
        heap[:n_running] = number[sim.heap[:n_running]]
        taken = sim.gpu_job >= 0
        sim.gpu_job[taken] = number[sim.gpu_job[taken]]
        target = int(sim.clock["target"][0])
        sim.clock["target"] = number[target] if target >= 0 else target
        self.sim = sim._replace(jobs=jobs, waiting=waiting, heap=heap)
        self.rows = {job: [int(number[row]) for row in rows] for job, rows in self.rows.items()}
        self._next = len(used)


# From a snapshot to the arrays


def queues_of(cluster: ClusterSnapshot) -> tuple[QueueSpec, ...]:
    """The ClusterQueues, and one without a limit for jobs outside of them."""
    return (*cluster.queues, QueueSpec(NO_QUEUE, NO_DEMAND))


class Running(NamedTuple):
    """The running jobs that the arrays know: verification pods and pods without GPUs are not in them."""

    jobs: list[Job]
    parts: list[Part]  # of each
    runs: list[tuple[float, float]]  # start and end, by its estimate: h from now

    @classmethod
    def of(cls, cluster: ClusterSnapshot, settings: Settings, now: float) -> Running:
        """Those of a cluster at the moment `now` (s since 1970)."""
        queue = {queue.name: number for number, queue in enumerate(cluster.queues)}
        outside, largest = len(cluster.queues), max(node.gpus for node in cluster.nodes)
        jobs = [job for job in cluster.jobs if job.gpus and not job.verification]
        parts = [running_part(job, queue.get(job.queue, outside), settings, largest) for job in jobs]
        starts = [0.0 if job.start is None else min(0.0, (job.start - now) / SECONDS) for job in jobs]
        return cls(jobs, parts, [(start, start + part.estimate) for start, part in zip(starts, parts, strict=True)])

    def begin(self, sim: Sim, cluster: ClusterSnapshot) -> None:
        """The first rows of an idle simulator of this cluster run on the nodes of the jobs.

        Nodes that are down have failed; so far, as in `ClusterSnapshot.cluster_spec`, they are cordoned.
        """
        for index, node in enumerate(cluster.nodes):
            if node.state == NodeState.FAILED:
                sim.nodes["cordoned"][index], sim.nodes["failed"][index] = 0, 1
        number = {node.name: index for index, node in enumerate(cluster.nodes)}
        pods = [[pod for pod in job.pods if pod.gpus] for job in self.jobs]
        first = np.cumsum([0, *map(len, pods)]).astype(np.int32)
        nodes = np.array([number[pod.node] for own in pods for pod in own], np.int32)
        gpus = np.array([pod.gpus for own in pods for pod in own], np.int32)
        start, end = (np.array([run[i] for run in self.runs], np.float64) for i in (0, 1))
        assign_nodes(sim, np.arange(len(pods), dtype=np.int32), first, nodes, gpus, start, end)


def live_of(cluster: ClusterSnapshot, settings: Settings, began: float) -> Live:
    """The arrays of a cluster at the moment `began` (s since 1970) with everything that runs on it."""
    running = Running.of(cluster, settings, began)
    jobs = [(job.id, part) for job, part in zip(running.jobs, running.parts, strict=True)]
    live = Live(cluster.cluster_spec(settings.nvlink, settings.network), queues_of(cluster), settings, jobs)
    running.begin(live.sim, cluster)
    assigned = np.bincount(live.sim.gpu_job[live.sim.gpu_job >= 0], minlength=len(jobs))
    rows = live.sim.jobs[: len(jobs)]
    rows["movable"][assigned < rows["gpus"]] = 0  # on overcommitted nodes: its pods are not to be told apart
    return live


def gpus_by_node(job: Job) -> Counter[str]:
    """GPUs of a job on each node that it has pods with GPUs on."""
    found: Counter[str] = Counter()
    for pod in job.pods:
        found[pod.node] += pod.gpus
    return found


def crowded(cluster: ClusterSnapshot) -> frozenset[str]:
    """Nodes whose pods hold more GPUs than they have: some of these pods are about to end, or a GPU was lost."""
    held: Counter[str] = Counter()
    for job in cluster.jobs:
        held.update({} if job.verification else gpus_by_node(job))
    return frozenset(node.name for node in cluster.nodes if held[node.name] > node.gpus)
