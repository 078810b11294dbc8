"""The placement engine: a live cluster, a policy, and transactions between them.

>>> engine = PlacementEngine(parse_snapshot('{"racks": [[4, 4, 0], [4, 2, 2]]}'), "best-fit+easy+open")
>>> answer = engine.place(parse_job('{"name": "tune", "gpus": 8, "mode": "required"}'))
>>> answer.nodes
('rack-000-node-00', 'rack-000-node-01')
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nvlenv.cluster.fragmentation import free_slot_table, largest_slice
from nvlenv.common.errors import InputError
from nvlenv.engine.core import state_file
from nvlenv.engine.core.attempt import Attempt, No, Plan
from nvlenv.engine.core.book import Book, Held, names
from nvlenv.engine.core.build import NO_QUEUE, crowded, live_of, queues_of, seat_rest, set_state
from nvlenv.engine.core.defrag import clearings
from nvlenv.engine.core.explain import SHOWN, by_size
from nvlenv.engine.core.live import Row
from nvlenv.engine.core.parts import Part, parts_of
from nvlenv.engine.core.replacement import replace_node
from nvlenv.engine.model.answers import Cause, Clearing, Eviction, Loss, NodeLoss, Placed, Refused, Slots, Why
from nvlenv.engine.model.jobs import JobRequest, check_job
from nvlenv.engine.model.settings import Settings
from nvlenv.engine.model.snapshot import ClusterSnapshot, Job, NodeState, Pod
from nvlenv.policies import UNTUNED
from nvlenv.policies.resolver import fresh_policy, policy_name, resolve_policy
from nvlenv.simulator.decision import Policy
from nvlenv.simulator.events import finish
from nvlenv.simulator.state import SLOT_SIZES

SECONDS = 3600.0


def job_id(job: JobRequest) -> str:
    """The name by which the engine knows a job: "namespace/name"."""
    return f"{job.namespace}/{job.name}"


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
        self._turn = 0
        self._queues = queues_of(cluster)
        self._live = live_of(cluster, self._queues, self.settings, self._began)
        self._book = Book(cluster)
        self._crowded = crowded(cluster)

    @classmethod
    def from_state(cls, state: dict[str, Any], policy: Policy | str | Path = UNTUNED) -> PlacementEngine:
        """The engine that `state()` was taken from. `InputError` for anything else than such a state."""
        with state_file.as_written():
            found = state_file.read(state)
            engine = cls(replace(found.cluster, jobs=()), policy, found.settings, found.began)
            engine._last, engine._turn = found.last, found.turn
            engine._crowded = crowded(found.cluster)
            state_file.restore(found, engine._live, engine._book)
            engine._live.set_now(engine._hours(found.last))
        return engine

    def state(self) -> dict[str, Any]:
        """Everything, as JSON data: after `from_state`, all further calls have the same answers."""
        times = state_file.Times(self._began, self._last, self._turn)
        return state_file.write(self.snapshot(), self.settings, times, self._live, self._book)

    def snapshot(self) -> ClusterSnapshot:
        """The cluster as it is now; `snapshot().as_json()` is its JSON."""
        return self._book.snapshot()

    @property
    def waiting(self) -> tuple[str, ...]:
        """Ids of the jobs that wait, first in turn first."""
        sim = self._live.sim
        job_of = {row: job for job, rows in self._live.rows.items() for row in rows}
        return tuple(dict.fromkeys(job_of[row] for row in sim.waiting[: int(sim.clock["n_waiting"][0])].tolist()))

    # Jobs

    def place(self, job: JobRequest, *, dry_run: bool = False, at: float | None = None) -> Placed | Refused:
        """Place the whole job, or nothing of it, and say why.

        The id of a job is `job_id(job)`, "namespace/name". A job of this id that already runs gets its placement again.
        With `dry_run` nothing changes ever. A refusal changes nothing either, unless the job waits: then the engine
        knows from now on what it asks for, and that it found no room.

        Raises `InputError` for a job that this cluster can never have as it is written (a level or queue that is not
        there, pods larger than any node).
        """
        return self._place(job, dry_run, at, SHOWN)

    def explain(self, job: JobRequest, *, at: float | None = None) -> Placed | Refused:
        """What `place` would answer now, with every candidate rack listed; changes nothing."""
        return self._place(job, True, at, 2 * self._live.spec.racks)

    def enqueue(self, job: JobRequest, *, at: float | None = None) -> str:
        """The job waits: reservations are made for it, and it keeps its turn. Returns its id.

        `place` asks for its placement as often as its owner likes; `finish` withdraws it. Jobs that this engine placed
        and later evicted wait again by themselves.

        Raises `InputError` as `place` does, and for a job that would not fit if the whole cluster were empty.
        """
        parts, _ = self._parts(job)
        name = job_id(job)
        for part in parts:
            never = by_size(self._live, self._book.reserves, part)
            if never:
                raise InputError(f"job {job.name}, pod set {part.name}", "", never, f"room for all {part.units}")
        if name in self._book.jobs:
            raise InputError(f"job {name}", "", "a job of this name that runs", "a new name")
        self._tick(at)
        self._queue_up(name, [part.row for part in parts])
        return name

    def finish(self, job: str, *, at: float | None = None) -> None:
        """The job of this id has ended, or is withdrawn while it waits. `InputError` for an unknown id."""
        if job not in self._book.jobs and job not in self._live.rows:
            raise InputError(f"job {job}", "id", repr(job), "a job that runs or waits")
        self._tick(at)
        held = self._book.remove(job)
        if held is not None:
            for row in self._live.rows.get(job, ()):
                finish(self._live.sim, row)
            self._live.drop(job)
            self._left(held)
        else:
            self._live.withdraw(job)

    # Nodes

    def cordon(self, node: str, *, at: float | None = None) -> None:
        """Running pods stay, no new ones come. `InputError` for an unknown node."""
        if self._state_of(node) == NodeState.UP:
            self._set_state(node, NodeState.CORDONED, at)

    def uncordon(self, node: str, *, at: float | None = None) -> None:
        """Lift a cordon; changes nothing where there is none."""
        if self._state_of(node) == NodeState.CORDONED:
            self._set_state(node, NodeState.UP, at)

    def fail_node(self, node: str, *, at: float | None = None) -> NodeLoss:
        """The node is gone: each of its jobs goes on with a spare of the same rack, or else is evicted."""
        if self._state_of(node) == NodeState.FAILED:
            return NodeLoss(node, (), ())
        self._set_state(node, NodeState.FAILED, at)
        ended = [self._verification(name, node, pods) for name, pods in self._book.stop_verification(node)]
        loss = replace_node(self._live, self._book, node)
        for eviction in loss.evictions:
            if eviction.gpus:
                self._forget(eviction.job)
        return replace(loss, evictions=(*ended, *loss.evictions))

    def repair_node(self, node: str, *, at: float | None = None) -> None:
        """The node is back; changes nothing if it had not failed."""
        if self._state_of(node) == NodeState.FAILED:
            self._set_state(node, NodeState.UP, at)

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
        saved, last = self._live.save(), self._last
        self._tick(at)
        try:
            return clearings(self._live, self._book, nodes, limit)
        finally:
            self._live.restore(saved)
            self._last = last

    # Behind them

    def _place(self, job: JobRequest, dry_run: bool, at: float | None, shown: int) -> Placed | Refused:
        parts, notes = self._parts(job)
        name = job_id(job)
        if name in self._book.jobs:
            return self._placed_before(name, parts)
        last, turn = self._last, self._turn
        self._tick(at)
        waited, stalled = name in self._live.rows, int(self._live.sim.clock["stall_gpus"][0])
        saved = self._live.save() if dry_run or len(parts) != 1 or len(job.pod_sets) > 1 else None
        try:
            rows = self._queue_up(name, [part.row for part in parts])
            found: Plan | No | None = self._behind(name, rows[0])
            if found is None:
                attempt = Attempt(self._live, self._book, fresh_policy(self.policy), self._turns(), shown)
                found = attempt.run(job, parts, rows)
            why = Why(policy_name(self.policy), "", tuple(found.steps), tuple(notes))
            if isinstance(found, Plan):
                speed = min(float(self._live.sim.jobs["speed"][row]) for row in rows)
                evictions = (*self._verified(found), *found.evictions)
                why = replace(why, rule=found.steps[-1].rule)
                answer = Placed(name, tuple(found.bindings), evictions, speed, why)
                if not dry_run:
                    self._commit(job, found, answer)
                return answer
            if not dry_run:
                self._turn = turn
                if saved is not None:
                    self._live.restore(saved)
                elif not waited:
                    self._live.withdraw(name)
                    self._live.sim.clock["stall_gpus"] = stalled
            return Refused(name, found.cause, found.reason, found.racks, replace(why, rule=found.reason))
        finally:
            if dry_run and saved is not None:
                self._live.restore(saved)
                self._last, self._turn = last, turn

    def _parts(self, job: JobRequest) -> tuple[tuple[Part, ...], list[str]]:
        check_job("job", job)
        full = job.on(self._cluster.levels, self._cluster.nvlink_level)
        return parts_of(full, self._live.spec, self._queue(job), self.settings)

    def _queue(self, job: JobRequest) -> int:
        """The number of the ClusterQueue that the job is charged to; the last one is outside of all queues."""
        known = [queue.name for queue in self._queues]
        if not job.queue or known == [NO_QUEUE]:
            return len(known) - 1
        name = self._cluster.local_queues.get(f"{job.namespace}/{job.queue}", job.queue)
        if name not in known:
            expected = f"one of {known[:-1]} or a LocalQueue of namespace {job.namespace}"
            raise InputError(f"job {job.name}", "queue", repr(job.queue), expected)
        return known.index(name)

    def _queue_up(self, name: str, rows: list[Row]) -> list[int]:
        """The rows of a waiting job, described anew."""
        if name in self._live.rows and len(self._live.rows[name]) != len(rows):
            self._live.withdraw(name)
        if name in self._live.rows:
            for number, row in zip(self._live.rows[name], rows, strict=True):
                self._live.refill(number, row)
        else:
            self._live.add(name, rows)
            self._live.wait(name)
        return self._live.rows[name]

    def _behind(self, name: str, row: int) -> No | None:
        """The refusal of a job behind another one in a StrictFIFO queue."""
        sim = self._live.sim
        queue = int(sim.jobs["queue"][row])
        if not sim.queues["strict"][queue]:
            return None
        for other in sim.waiting[: int(sim.clock["n_waiting"][0])].tolist():
            if other == row:
                return None
            if int(sim.jobs["queue"][other]) == queue and self._live.name_of(other) != name:
                ahead = self._live.name_of(other)
                return No(Cause.BEHIND, f"{ahead} waits before it in queue {self._queues[queue].name} (StrictFIFO)")
        return None

    def _placed_before(self, name: str, parts: tuple[Part, ...]) -> Placed:
        held = self._book.jobs[name]
        gpus = sum(part.row.gpus for part in parts)
        if not held.ours or held.job.gpus != gpus:
            raise InputError(f"job {name}", "name", f"that of a running job of {held.job.gpus} GPUs", "a new name")
        why = Why(policy_name(self.policy), "it was placed before")
        return Placed(name, held.bindings, (), held.speed, why)

    def _commit(self, job: JobRequest, plan: Plan, answer: Placed) -> None:
        """The book follows the arrays."""
        for eviction in answer.evictions:
            if eviction.reason == Loss.VERIFICATION:
                self._book.stop_verification(eviction.nodes[0])
            elif eviction.reason == Loss.MOVED:
                self._rebook(eviction.job, plan.moved[eviction.job])
            else:
                self._forget(eviction.job)
        queue = self._queues[self._queue(job)].name
        running = Job(
            id=answer.job,
            pods=tuple(plan.pods),
            name=job.name,
            namespace=job.namespace,
            uid=job.uid,
            queue=queue or job.queue,
            priority=job.priority,
            preemptible=job.preemptible,
            movable=job.movable,
            start=self._last,
            estimate=job.estimate,
        )
        self._book.add(Held(running, answer.bindings, answer.speed))

    def _forget(self, job: str) -> None:
        """An evicted job: it waits again if it can be placed again, else it is gone."""
        held = self._book.remove(job)
        if held is not None and not held.ours and job in self._live.rows:
            self._live.withdraw(job)
        if held is not None:
            self._left(held)

    def _left(self, held: Held) -> None:
        """There is room where this job was, apart from what others hold there."""
        seat_rest(self._live, self._book, self._crowded.intersection(held.job.nodes))
        self._live.capacity_grew()

    def _rebook(self, job: str, nodes: dict[int, int]) -> None:
        """A job that was moved: its pods in their order, on the nodes where they are now."""
        held = self._book.jobs[job]
        size = held.job.pods[0].gpus
        places = [self._book.name(node) for node, gpus in nodes.items() for _ in range(gpus // size)]
        pods = tuple(replace(pod, node=node) for pod, node in zip(held.job.pods, places, strict=True))
        racks = {self._book.name(node): self._live.spec.rack_names[self._live.spec.node_rack[node]] for node in nodes}
        bindings = tuple(
            replace(first, node=node, rack=rack, pods=places.count(node), gpus=size * places.count(node))
            for first in held.bindings[:1]  # none of a job that was there before
            for node, rack in racks.items()
        )
        self._book.add(replace(held, job=replace(held.job, pods=pods), bindings=bindings))

    def _verified(self, plan: Plan) -> Iterator[Eviction]:
        """Verification pods on the nodes of a plan, node by node."""
        for node in dict.fromkeys(binding.node for binding in plan.bindings):
            for held in self._book.on(node, verification=True):
                yield self._verification(held.job.id, node, tuple(pod for pod in held.job.pods if pod.node == node))

    def _verification(self, job: str, node: str, pods: tuple[Pod, ...]) -> Eviction:
        return Eviction(job, Loss.VERIFICATION, (node,), names(pods), sum(pod.gpus for pod in pods), 0.0)

    def _state_of(self, node: str) -> NodeState:
        if node not in self._book.reserves.index:
            raise InputError("node", "name", repr(node), f"a node of {self._cluster.source}")
        return self._book.state(node)

    def _set_state(self, node: str, state: NodeState, at: float | None) -> None:
        self._tick(at)
        set_state(self._live.sim, self._book.number(node), state)
        self._book.set_state(node, state)
        if state == NodeState.UP:
            self._live.capacity_grew()

    def _turns(self) -> Iterator[int]:
        while True:
            self._turn += 1
            yield self._turn

    def _hours(self, at: float) -> float:
        return (at - self._began) / SECONDS

    def _tick(self, at: float | None) -> None:
        """Time passes; it never goes back."""
        self._last = max(self._last, time.time() if at is None else float(at))
        self._live.set_now(self._hours(self._last))
