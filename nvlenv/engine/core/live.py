"""A cluster that lives on in the arrays of the simulator: jobs come and go, rows are taken and given back.

A job that is asked for becomes *parts*, each of them one job of the simulator. Kueue can ask for more than that knows:
pods that must share a host become one large pod, a leader of the size of its workers is one of them, slices inside a
coarser domain try domain by domain. A job that runs where a cluster's file says becomes one part too.

A part has one *row* of the arrays. Rows are handed out in ascending order and never twice, since the simulator settles
equal priorities by the number of the job; when the table is full, the rows that are left move together in their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nvlenv.cluster.types import ClusterSpec, IntArray, Mode, QueueSpec, Workload
from nvlenv.common.errors import InputError
from nvlenv.engine.core.kernels import assign_nodes
from nvlenv.engine.model.jobs import MAX_GPUS, Job, PodSet
from nvlenv.engine.model.settings import Settings
from nvlenv.engine.model.snapshot import ClusterSnapshot, NodeState
from nvlenv.simulator.events import lost_work
from nvlenv.simulator.load import load, load_jobs
from nvlenv.simulator.occupancy import occupy, set_node
from nvlenv.simulator.queues import dequeue, enqueue
from nvlenv.simulator.state import DONE, NO_DEMAND, Dims, Sim, allocate

SECONDS = 3600.0  # of an hour
SPARE_ROWS = 1024
NO_TARGET = -2  # unlike any row, and unlike -1, "no target": reservations are made anew
NO_QUEUE = ""  # the queue of jobs outside of all queues: it has no limit

CONSTANT = ("ancestors", "level_start", "events", "samples", "mix", "scratch", "scratch_float")  # or work space
KEPT = ["submit", "waited", "evictions", "lost", "first_start"]  # of a waiting job that is described anew

Saved = tuple[Sim, dict[str, list[int]], int]  # a `Live` at one moment

COLUMNS: dict[str, Any] = {  # fields of a part that are columns of a `Workload`
    **dict.fromkeys(("gpus", "gpus_per_pod", "priority", "queue", "slice_gpus"), np.int32),
    **dict.fromkeys(("estimate", "comm_fraction", "checkpoint_interval", "restart_time"), np.float64),
    **dict.fromkeys(("mode", "height"), np.int8),
    **dict.fromkeys(("preemptible", "preempts", "movable"), np.bool_),
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
    preempts: bool = True
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
    by_size = sorted(job.pod_sets, key=lambda pods: -pods.gpus)
    together: dict[tuple[str, str, int], list[PodSet]] = {}  # leader and workers, if their pods have as many GPUs
    for pods in by_size:
        if pods.gpus_per_pod:
            own = "" if pods.group else pods.name
            together.setdefault((pods.group, own, pods.gpus_per_pod), []).append(pods)
    parts = (_part(job, members, spec, queue, settings) for members in together.values())
    aside = (pods.name for pods in by_size if not pods.gpus_per_pod and not pods.group)
    return tuple(parts), tuple(f"pod set {name} asks for no GPUs: any scheduler may place it" for name in aside)


def _part(job: Job, members: Sequence[PodSet], spec: ClusterSpec, queue: int, settings: Settings) -> Part:
    members = sorted(members, key=lambda member: member.pods)
    pods, count = members[-1], sum(member.pods for member in members)
    where = f"job {job.name}, pod set {pods.name}"
    if len(pods.slices) > 1:
        found = f"{len(pods.slices)} layers of slices"
        raise InputError(where, "slices", found, "one layer: the engine does not divide slices further")
    mode, level, fused, slice_pods, within, strict = _promise(pods, count, spec.levels[-1])
    if level and level not in spec.levels:
        raise InputError(where, "level", repr(level), f"one of {list(spec.levels)}: links inside a rack are alike")
    height = max(0, spec.height_of(level)) if level else 0  # a host promises no less than its rack
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
        members=tuple(members),
        fused=fused,
        cpu=max(member.cpu for member in members) * fused,
        memory=max(member.memory for member in members) * fused,
        within=within,
        strict=strict,
    )


def _promise(pods: PodSet, count: int, host: str) -> tuple[Mode, str, int, int, str, bool]:
    """Mode, level, pods fused on one host, pods of a slice (0: none), the domain around it all, if that is strict."""
    whole = pods.mode == Mode.REQUIRED
    if not pods.slices and whole and pods.level == host:
        return Mode.UNCONSTRAINED, "", count, 0, "", True
    if not pods.slices:
        return pods.mode, pods.level, 1, 0, "", True
    layer = pods.slices[0]
    if layer.level == host:
        return pods.mode, pods.level, layer.size, 0, "", True
    if whole and pods.level == layer.level:
        return Mode.REQUIRED, layer.level, 1, 0, "", True
    return Mode.REQUIRED, layer.level, 1, layer.size, pods.level, whole


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
        held = [(row, number[pod.node], pod.gpus) for row, job in enumerate(self.jobs) for pod in job.pods if pod.gpus]
        assign_nodes(sim, len(self.jobs), *np.array(held, np.int32).reshape(-1, 3).T)
        jobs, runs = sim.jobs[: len(self.jobs)], np.array(self.runs).reshape(-1, 2)
        jobs["start"], jobs["predicted"], jobs["first_start"] = runs[:, 0], runs[:, 1], runs[:, 0]


class Live:
    """A `Sim` without a workload of its own. `sim` is replaced, not only changed: never keep it."""

    def __init__(self, cluster: ClusterSnapshot, settings: Settings, began: float) -> None:
        """The cluster at the moment `began` (s since 1970) with everything that runs on it."""
        self.settings, self.queues = settings, queues_of(cluster)
        self.spec = cluster.cluster_spec(settings.nvlink, settings.network)
        running = Running.of(cluster, settings, began)
        self.rows = {job.id: [row] for row, job in enumerate(running.jobs)}  # id of a job -> its rows, one per part
        self._next = len(running.jobs)
        priorities = sorted(settings.weights)
        self._classes = {priority: number for number, priority in enumerate(priorities, 1)}
        weights = [1.0, *(settings.weights[priority] for priority in priorities)]
        dims = Dims.of(self.spec, self._next + SPARE_ROWS, len(self.queues), len(weights))
        self.sim = Sim(*(array[0] for array in allocate(1, dims)))
        load(self.sim, self.spec, self._workload(running.parts), settings.rules(), weights, self.queues)
        running.begin(self.sim, cluster)
        assigned = np.bincount(self.sim.gpu_job[self.sim.gpu_job >= 0], minlength=self._next)
        rows = self.sim.jobs[: self._next]
        rows["movable"][assigned < rows["gpus"]] = 0  # on overcommitted nodes: its pods are not to be told apart

    @property
    def node_size(self) -> int:
        """GPUs of the largest node."""
        return int(self.sim.cap.shape[1]) - 1

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

    def domains(self, height: int) -> IntArray:
        """(M,) each node's domain so many levels above its rack."""
        domains: IntArray = self.sim.ancestors[: self.spec.racks, height][self.spec.node_rack]
        return domains

    # Rows

    def add(self, job: str, parts: Sequence[Part]) -> list[int]:
        """Rows for a job, filled by the simulator's own loader. It does not wait yet."""
        if self._next + len(parts) > len(self.sim.jobs):
            self._make_room(len(parts))
        rows = list(range(self._next, self._next + len(parts)))
        self._fill(self._next, parts)
        self.sim.jobs["submit"][rows] = self.sim.clock["now"]
        self.rows.setdefault(job, []).extend(rows)
        self._next += len(rows)
        return rows

    def enqueue(self, job: str, parts: Sequence[Part]) -> list[int]:
        """The job waits; if it did before it is described anew, and keeps its turn, its waits and evictions."""
        if job in self.rows and len(self.rows[job]) != len(parts):
            self.withdraw(job)
        new = job not in self.rows
        rows = self.add(job, parts) if new else self.rows[job]
        for row, part in zip(rows, parts, strict=True):
            if not new:
                dequeue(self.sim, row)
                kept = self.sim.jobs[KEPT][row].copy()
                self._fill(row, [part])
                self.sim.jobs[KEPT][row] = kept
            enqueue(self.sim, row)
        return rows

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

    def set_slots(self, row: int, slots: Sequence[int]) -> None:
        """These are the GPUs of a row, in the order in which it got them."""
        sim, before = self.sim, self.slots_of(row)
        sim.gpu_job[before], sim.gpu_next[before] = -1, -1
        sim.gpu_job[slots], sim.gpu_next[slots] = row, [-1, *slots[:-1]]
        sim.jobs["first_gpu"][row] = slots[-1] if slots else -1
        more = Counter(slot // self.node_size for slot in slots)
        more.subtract(slot // self.node_size for slot in before)
        for node, gpus in more.items():
            if gpus:
                set_node(sim, node, int(sim.nodes["free"][node]) - gpus, int(sim.nodes["blocked"][node]))

    def move(self, row: int, nodes: Container[int], to: Mapping[int, int]) -> None:
        """What a row holds on some nodes goes to others: so many GPUs to each."""
        self.set_slots(row, [slot for slot in self.slots_of(row) if slot // self.node_size not in nodes])
        for place, gpus in to.items():
            occupy(self.sim, row, place, gpus)

    def work_lost(self, row: int, keeps_progress: bool = False) -> float:
        """GPU-hours of work that stopping a row now costs."""
        return float(self.sim.jobs["gpus"][row]) * float(lost_work(self.sim, row, keeps_progress))

    # Copies

    def save(self) -> Saved:
        """All of it as it is, apart from what changes from now on."""
        arrays = {name: array if name in CONSTANT else array.copy() for name, array in self.sim._asdict().items()}
        return Sim(**arrays), dict(self.rows), self._next

    def restore(self, saved: Saved) -> None:
        """Go back to what was saved; it must not be used again."""
        self.sim, self.rows, self._next = saved

    def _fill(self, first: int, parts: Sequence[Part]) -> None:
        rows = self.sim.jobs[first : first + len(parts)]
        load_jobs(self.sim._replace(jobs=rows), self.spec, self._workload(parts))

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


def crowded(cluster: ClusterSnapshot) -> frozenset[str]:
    """Nodes whose pods hold more GPUs than they have: some of these pods are about to end, or a GPU was lost."""
    held: Counter[str] = Counter()
    for job in cluster.jobs:
        for pod in () if job.verification else job.pods:
            held[pod.node] += pod.gpus
    return frozenset(node.name for node in cluster.nodes if held[node.name] > node.gpus)
