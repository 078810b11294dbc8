"""The placement engine: a live cluster, a policy, and transactions between them.

>>> engine = PlacementEngine(parse_snapshot('{"racks": [[4, 4, 0], [4, 2, 2]]}'), "best-fit+easy+open")
>>> answer = engine.place(parse_job('{"name": "tune", "gpus": 8, "mode": "required"}'))
>>> answer.nodes
('rack-000-node-00', 'rack-000-node-01')

A job comes in as its file says (`Job.pod_sets`), becomes rows of the simulator (`live`), is tried (`attempt`), and goes
into the book as what runs (`Job.pods`).
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nvlenv.cluster.fragmentation import free_slot_table, largest_slice
from nvlenv.common.errors import InputError
from nvlenv.engine.core import state_file
from nvlenv.engine.core.attempt import Attempt
from nvlenv.engine.core.book import Book
from nvlenv.engine.core.defrag import Defragmentation
from nvlenv.engine.core.evictions import replace_node
from nvlenv.engine.core.explain import SHOWN, never_fits
from nvlenv.engine.core.live import NO_QUEUE, SECONDS, Live, Part, crowded, parts_of
from nvlenv.engine.model.answers import Clearing, Loss, NodeLoss, Placed, Refused, Slots, Why
from nvlenv.engine.model.jobs import Job, Pod, check_job
from nvlenv.engine.model.settings import Settings
from nvlenv.engine.model.snapshot import ClusterSnapshot, NodeState
from nvlenv.policies import UNTUNED
from nvlenv.policies.resolver import fresh_policy, policy_name, resolve_policy
from nvlenv.simulator.decision import Policy
from nvlenv.simulator.events import finish
from nvlenv.simulator.occupancy import occupy
from nvlenv.simulator.state import RUNNING, SLOT_SIZES


class PlacementEngine:
    """A cluster whose jobs are placed by a policy, one transaction after another.

    Parameters
    ----------
    cluster : the cluster as it is at the start.
    policy : a name ("best-fit+easy+open"), a policy file (.npz), or any policy.
    settings : what the simulator's scenario would say: hero size, weights, the slice that reservations speak of.

    Every method that changes something takes `at`, seconds since 1970 (UTC; default: the clock of the machine; never
    before the last one). The same calls with the same `at` give the same answers and the same `state()`: a journal of
    calls is a complete record. A call that raises `InputError` has changed nothing.

    An engine is not safe to share between threads; whoever shares it locks it.
    """

    def __init__(
        self,
        cluster: ClusterSnapshot,
        policy: Policy | str | Path = UNTUNED,
        settings: Settings | None = None,
        at: float | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.policy = resolve_policy(policy)
        self._began = self._last = time.time() if at is None else float(at)
        self._cluster = cluster
        self._turn = 0  # the number of the last decision
        self._live = Live(cluster, self.settings, self._began)
        self._book = Book(cluster)
        self._crowded = crowded(cluster)

    @classmethod
    def from_state(cls, state: dict[str, Any], policy: Policy | str | Path = UNTUNED) -> PlacementEngine:
        """The engine that `state()` was taken from. `InputError` for anything else than such a state."""
        with state_file.as_written():
            cluster, settings, times = state_file.read_engine_state(state)
            engine = cls(replace(cluster, jobs=()), policy, settings, times.began)
            engine._turn, engine._crowded = times.turn, crowded(cluster)
            state_file.restore(state, cluster, engine._live, engine._book)
            engine._last = times.last
            engine._tick(times.last)
        return engine

    def state(self) -> dict[str, Any]:
        """Everything, as JSON data: after `from_state`, all further calls have the same answers."""
        times = state_file.Times(self._began, self._last, self._turn)
        return state_file.state_of(self.snapshot(), self.settings, times, self._live, self._book)

    def snapshot(self) -> ClusterSnapshot:
        """The cluster as it is now; `snapshot().as_json()` is its JSON."""
        return self._book.snapshot()

    @property
    def waiting(self) -> tuple[str, ...]:
        """Ids of the jobs that wait, first in turn first."""
        job_of = {row: job for job, rows in self._live.rows.items() for row in rows}
        return tuple(dict.fromkeys(job_of[row] for row in self._live.waiting()))

    # Jobs

    def place(self, job: Job, *, dry_run: bool = False, at: float | None = None) -> Placed | Refused:
        """Place the whole job, or nothing of it, and say why.

        A job of this id ("namespace/name") that already runs gets its placement again. With `dry_run` nothing changes
        ever. A refusal changes nothing either, unless the job waits: then the engine knows from now on what it asks
        for, and that it found no room.

        Raises `InputError` for a job that this cluster can never have as it is written (a level or queue that is not
        there, pods larger than any node).
        """
        return self._place(job, dry_run, at, SHOWN)

    def explain(self, job: Job, *, at: float | None = None) -> Placed | Refused:
        """What `place` would answer now, with every candidate rack listed; changes nothing."""
        return self._place(job, True, at, 2 * self._live.spec.racks)

    def enqueue(self, job: Job, *, at: float | None = None) -> str:
        """The job waits: reservations are made for it, and it keeps its turn. Returns its id.

        `place` asks for its placement as often as its owner likes; `finish` withdraws it. Jobs that this engine placed
        and later evicted wait again by themselves.

        Raises `InputError` as `place` does, and for a job that would not fit if the whole cluster were empty.
        """
        parts, _ = self._parts(job)
        for part in parts:
            never = never_fits(self._live, self._book.resources, part)
            if never:
                raise InputError(f"job {job.name}, pod set {part.name}", "", never, f"room for all {part.pods}")
        if job.id in self._book.jobs:
            raise InputError(f"job {job.id}", "", "a job of this name that runs", "a new name")
        self._tick(at)
        self._live.enqueue(job.id, parts)
        return job.id

    def finish(self, job: str, *, at: float | None = None) -> None:
        """The job of this id has ended, or is withdrawn while it waits. `InputError` for an unknown id."""
        if job not in self._book.jobs and job not in self._live.rows:
            raise InputError(f"job {job}", "id", repr(job), "a job that runs or waits")
        self._tick(at)
        ended = self._book.remove(job)
        if ended is None:
            self._live.withdraw(job)
            return
        for row in self._live.rows.get(job, ()):
            finish(self._live.sim, row)
        self._live.drop(job)
        self._gave_room(ended)

    # Nodes

    def cordon(self, node: str, *, at: float | None = None) -> None:
        """Running pods stay, no new ones come. `InputError` for an unknown node."""
        self._change_state(node, (NodeState.UP,), NodeState.CORDONED, at)

    def uncordon(self, node: str, *, at: float | None = None) -> None:
        """Lift a cordon; changes nothing where there is none."""
        self._change_state(node, (NodeState.CORDONED,), NodeState.UP, at)

    def fail_node(self, node: str, *, at: float | None = None) -> NodeLoss:
        """The node is gone: each of its jobs goes on with a spare of the same rack, or else is evicted."""
        if not self._change_state(node, (NodeState.UP, NodeState.CORDONED), NodeState.FAILED, at):
            return NodeLoss(node, (), ())
        loss = replace_node(self._live, self._book, node)
        for eviction in loss.evictions:
            if eviction.gpus and eviction.reason == Loss.FAILED:
                self._forget(eviction.job)
        return loss

    def repair_node(self, node: str, *, at: float | None = None) -> None:
        """The node is back; changes nothing if it had not failed."""
        self._change_state(node, (NodeState.FAILED,), NodeState.UP, at)

    def slots(self, sizes: Iterable[int] = SLOT_SIZES) -> Slots:
        """Free slots by slice size in nodes, as the policy sees them."""
        sim, spec = self._live.sim, self._live.spec
        whole = sim.cap[: spec.racks, self._live.node_size]
        usable = int(sim.cap[-1, 1])
        return Slots(
            free=free_slot_table(whole, tuple(sizes)),
            racks=dict(zip(spec.rack_names, whole.tolist(), strict=True)),
            free_gpus=usable,
            unreachable_gpus=int(sim.clock["free_all"][0]) - usable,
            gpus=spec.gpus,
            largest_slice=largest_slice(whole),
            whole_racks=int((whole == np.bincount(spec.node_rack, minlength=spec.racks)).sum()),
        )

    def defrag(self, nodes: int, limit: int = 5, *, at: float | None = None) -> tuple[Clearing, ...]:
        """Moves that free room for slices of so many nodes, at most `limit` slices, in the order in which to make them.

        Each follows from the ones before and is the one that frees most per node moved, then costs least. Work that is
        neither movable nor preemptible stays where it is. Changes nothing.
        """
        with self._what_if(at):
            return tuple(Defragmentation(self._live, self._book, nodes).clearings(limit))

    # From a job to an answer

    def _place(self, job: Job, dry_run: bool, at: float | None, shown: int) -> Placed | Refused:
        parts, notes = self._parts(job)
        if job.id in self._book.jobs:
            return self._placed_before(self._book.jobs[job.id], parts)
        live = self._live
        attempt = Attempt(live, self._book, fresh_policy(self.policy), self._turn, job, parts, notes, shown)
        if dry_run:
            with self._what_if(at):
                return attempt.run()
        self._tick(at)
        waited, stalled = job.id in live.rows, int(live.sim.clock["stall_gpus"][0])
        saved = live.save() if len(parts) != 1 or len(job.pod_sets) > 1 else None
        answer = attempt.run()
        if isinstance(answer, Placed):
            self._turn = attempt.turn
            self._commit(job, attempt.pods, answer)
        elif saved is not None:
            live.restore(saved)
        elif not waited:
            live.withdraw(job.id)
            live.sim.clock["stall_gpus"] = stalled
        return answer

    def _parts(self, job: Job) -> tuple[tuple[Part, ...], tuple[str, ...]]:
        check_job("job", job)
        full = job.on(self._cluster.levels, self._cluster.nvlink_level)
        return parts_of(full, self._live.spec, self._queue(job), self.settings)

    def _queue(self, job: Job) -> int:
        """The number of the ClusterQueue that the job is charged to; the last one is outside of all queues."""
        known = [queue.name for queue in self._live.queues]
        if not job.queue or known == [NO_QUEUE]:
            return len(known) - 1
        name = self._cluster.local_queues.get(f"{job.namespace or 'default'}/{job.queue}", job.queue)
        if name not in known:
            expected = f"one of {known[:-1]} or a LocalQueue of namespace {job.namespace}"
            raise InputError(f"job {job.name}", "queue", repr(job.queue), expected)
        return known.index(name)

    def _placed_before(self, job: Job, parts: tuple[Part, ...]) -> Placed:
        """The answer that a running job got, if it is one that this engine placed and as large as what is asked."""
        if not job.ours or job.gpus != sum(part.gpus for part in parts):
            raise InputError(f"job {job.id}", "name", f"that of a running job of {job.gpus} GPUs", "a new name")
        return Placed(job.id, job.bindings, (), job.speed, Why(policy_name(self.policy), "it was placed before"))

    def _commit(self, job: Job, pods: Sequence[Pod], answer: Placed) -> None:
        """The book follows the arrays."""
        for eviction in answer.evictions:
            if eviction.reason == Loss.VERIFICATION:
                self._book.end_pods(self._book.jobs[eviction.job], eviction.nodes[0])
            elif eviction.reason == Loss.MOVED:
                self._book.move(self._book.jobs[eviction.job], eviction.moved_to)
            else:
                self._forget(eviction.job)
        queue = self._live.queues[self._queue(job)].name or job.queue
        self._book.add(job.placed(pods, answer.bindings, answer.speed, queue, self._last))

    def _forget(self, name: str) -> None:
        """An evicted job: it waits again if it can be placed again, else it is gone."""
        job = self._book.remove(name)
        if job is None:
            return
        if not job.ours and name in self._live.rows:
            self._live.withdraw(name)
        self._gave_room(job)

    def _gave_room(self, left: Job) -> None:
        """There is room where this job was, apart from what others hold there.

        On crowded nodes the others are now seen to hold what they have held all along.
        """
        for node in filter(self._crowded.__contains__, left.nodes):  # in order, so that a journal replays
            number = self._book.number[node]
            for job in self._book.on(node):
                if job.ours or not job.gpus:
                    continue
                row = self._live.rows[job.id][0]
                lacks = sum(pod.gpus for pod in job.pods_on(node)) - self._live.gpus_of(row).get(number, 0)
                more = min(lacks, int(self._live.sim.nodes["free"][number]))
                if more > 0 and self._live.sim.jobs["status"][row] == RUNNING:  # not evicted at this very moment
                    occupy(self._live.sim, row, number, more)
        self._live.capacity_grew()

    # Nodes and time

    def _change_state(self, node: str, before: Container[NodeState], after: NodeState, at: float | None) -> bool:
        """The node is in another state now; False if its state is none of those `before`, and it stays in it."""
        if node not in self._book.number:
            raise InputError("node", "name", repr(node), f"a node of {self._cluster.source}")
        if self._book.states[node] not in before:
            return False
        self._tick(at)
        self._live.set_state(self._book.number[node], after)
        self._book.states[node] = after
        return True

    def _tick(self, at: float | None) -> None:
        """Time passes; it never goes back."""
        self._last = max(self._last, time.time() if at is None else float(at))
        self._live.sim.clock["now"] = (self._last - self._began) / SECONDS  # h since it began

    @contextmanager
    def _what_if(self, at: float | None) -> Iterator[None]:
        """A moment that never was: at its end the arrays and the clock are as they were before."""
        saved, last = self._live.save(), self._last
        self._tick(at)
        try:
            yield
        finally:
            self._live.restore(saved)
            self._last = last
