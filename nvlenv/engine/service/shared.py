"""The engine that many ask at once: one lock, and nothing is answered before it is in the journal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nvlenv.common.errors import InputError
from nvlenv.engine.core.engine import PlacementEngine
from nvlenv.engine.formats.load import parse_job
from nvlenv.engine.model.answers import Answer, Placed, Refused, Slots, Why
from nvlenv.engine.model.jobs import Job
from nvlenv.engine.model.snapshot import ClusterSnapshot
from nvlenv.engine.service.journal import Journal
from nvlenv.engine.service.plans import PLAN_SECONDS, GangPlan, GangPlans
from nvlenv.simulator.decision import Policy

# Operations that a start may have to replay. A checkpoint of 72,000 GPUs takes 0.8 s: it waits for a quiet moment.
CHECKPOINT_QUIET, CHECKPOINT_LATEST = 1_000, 50_000
UNSAID = Why("", "")
Changes = Mapping[str, GangPlan | None]  # of plans, by gang

# What changes the engine, by the name that the journal keeps: (engine, argument, at) -> answer
OPERATIONS: Mapping[str, Callable[[PlacementEngine, str, float], Any]] = {
    "place": lambda engine, job, at: engine.place(_job(job), at=at),
    "enqueue": lambda engine, job, at: engine.enqueue(_job(job), at=at),
    "finish": lambda engine, job, at: engine.finish(job, at=at),
    "cordon": lambda engine, node, at: engine.cordon(node, at=at),
    "uncordon": lambda engine, node, at: engine.uncordon(node, at=at),
    "fail": lambda engine, node, at: engine.fail_node(node, at=at),
    "repair": lambda engine, node, at: engine.repair_node(node, at=at),
}


class UnavailableError(RuntimeError):
    """Nothing more is answered until the service has started again from its journal."""


class SharedEngine:
    """A `PlacementEngine` with a journal and a lock.

    Parameters
    ----------
    journal : of this engine alone. If it holds a state the engine goes on from there, else it starts with `cluster`.
    policy : as for `PlacementEngine`.
    cluster : the cluster at the very start; for a journal with a state it must be None.
    clock : seconds since 1970.
    plan_seconds : how long a gang plan waits for pods that have not come yet.

    Raises
    ------
    InputError : none or two states to start from, or an answer in the journal that this policy would not give.
    """

    def __init__(
        self,
        journal: Journal,
        policy: Policy | str | Path,
        cluster: ClusterSnapshot | None = None,
        clock: Callable[[], float] = time.time,
        plan_seconds: float = PLAN_SECONDS,
    ) -> None:
        self._journal, self._clock = journal, clock
        self.path = journal.path  # the file that the state is in
        self.problem = ""  # why nothing is answered any more; empty while all is well
        self._lock = threading.Lock()
        self._latest = 0.0
        self._since_checkpoint = 0  # operations
        self._asked = 0.0  # when somebody last did, on the monotonic clock
        self._engine = self._begin(policy, cluster)
        self._plans = GangPlans(journal.plans(), plan_seconds)
        jobs = self._engine.snapshot().jobs
        self._uids = {job.id: [(pod.node, pod.uid) for pod in job.pods if pod.uid] for job in jobs}  # where known

    def _begin(self, policy: Policy | str | Path, cluster: ClusterSnapshot | None) -> PlacementEngine:
        """The engine as it was when the last answer went out."""
        state = self._journal.state()
        if state is None:
            if cluster is None:
                raise InputError(self.path, "", "a new journal and no cluster", "a cluster to start with")
            engine = PlacementEngine(cluster, policy, at=self._now())
            self._journal.begin({"cluster": cluster.source}, engine.state())
            return engine
        if cluster is not None:
            expected = "no cluster beside a journal, whose state is newer; or a new journal"
            raise InputError(self.path, "cluster", cluster.source, expected)
        engine = PlacementEngine.from_state(state, policy)
        for record in self._journal.operations():
            name, argument, self._latest = (record.operation[key] for key in ("name", "argument", "at"))
            answer = _kept(OPERATIONS[name](engine, argument, self._latest))
            if answer != record.answer:
                expected = "the answer that it records. Start with the policy and version that wrote it, and stop: that"
                expected += " leaves a checkpoint, from which another policy can go on"
                raise InputError(self.path, f"operation {record.seq}, {name}", f"{answer} on replay", expected)
        self._journal.checkpoint(engine.state())
        return engine

    def close(self) -> None:
        """Leave a checkpoint, and let go of the journal."""
        with self._lock:
            if not self.problem:
                self._checkpoint()
            self._journal.close()

    def tidy(self, quiet: float) -> None:
        """Make a checkpoint if it is worth it and nobody has asked for anything for so many seconds."""
        due = self._since_checkpoint >= CHECKPOINT_QUIET and time.monotonic() - self._asked >= quiet
        if due and not self.problem:
            with self._open():
                self._checkpoint()

    # Changing: what these return is durable

    def do(self, name: str, argument: str) -> Any:
        """One of `OPERATIONS`. `InputError` if the engine does not know what is meant."""
        with self._open():
            return self._do(name, argument)

    def plan(self, gang: str, uid: str, rank: int | None, job: str) -> GangPlan | Refused:
        """The gang's plan with a place for this pod; the gang is decided now if it has none.

        Parameters
        ----------
        gang : its name, unique in the cluster.
        uid, rank : of the pod; None: it has no rank.
        job : the gang as a text for `parse_job`, of equal pods.
        """
        with self._open():
            workers, deadline = _job(job).workers, self._now() + self._plans.seconds
            shape = (workers.gpus_per_pod, workers.cpu, workers.memory)
            if self._plans.get(gang) is None:
                answer = self._do("place", job, lambda placed: {gang: self._first_plan(placed, shape, deadline)})
                if isinstance(answer, Refused):
                    return answer
            plan = self._plans.get(gang)
            assert plan is not None
            taken = plan.take(uid, rank, shape, deadline)
            if taken is not plan:
                self._write(None, None, {gang: taken})
            return taken

    def planned(self, gang: str) -> GangPlan | None:
        """The gang's plan, if it has been decided."""
        with self._open():
            return self._plans.get(gang)

    def knows(self, uid: str) -> bool:
        """Whether the pod belongs to a job of the cluster at the start, or has a place in a plan."""
        with self._open():
            return self._plans.holds(uid) or any(uid == own for pods in self._uids.values() for _, own in pods)

    def _first_plan(self, placed: Placed, shape: tuple[int, ...], deadline: float) -> GangPlan:
        victims: dict[str, tuple[str, ...]] = {}
        for eviction in placed.evictions:
            for node, uid in (*self._uids.get(eviction.job, ()), *self._plans.pods_on(eviction.job)):
                if node in eviction.nodes:
                    victims[node] = (*victims.get(node, ()), uid)
        slots = tuple(binding.node for binding in placed.bindings for _ in range(binding.pods))
        return GangPlan(placed.job, slots, shape, victims, deadline, {})

    def _do(self, name: str, argument: str, planned: Callable[[Placed], Changes] = lambda placed: {}) -> Any:
        at = self._now()
        answer = OPERATIONS[name](self._engine, argument, at)
        changes = {**(self._plans.ended(argument) if name == "finish" else {}), **self._plans.after(answer)}
        if isinstance(answer, Placed):
            changes.update(planned(answer))
        self._write({"name": name, "argument": argument, "at": at}, _kept(answer), changes)
        return answer

    def _write(self, operation: Any, answer: Any, plans: Changes) -> None:
        self._journal.append(operation, answer, {gang: plan and asdict(plan) for gang, plan in plans.items()})
        self._since_checkpoint += operation is not None
        if self._since_checkpoint >= CHECKPOINT_LATEST:
            self._checkpoint()
        self._plans.set(plans)

    def _checkpoint(self) -> None:
        self._journal.checkpoint(self._engine.state())
        self._since_checkpoint = 0

    # Asking

    def dry_run(self, job: str) -> Placed | Refused:
        """What `place` would answer; changes nothing."""
        with self._open():
            return self._engine.place(_job(job), dry_run=True, at=self._now())

    def explain(self, job: str) -> Placed | Refused:
        """The same with every candidate rack of every decision."""
        with self._open():
            return self._engine.explain(_job(job), at=self._now())

    def slots(self, sizes: Iterable[int]) -> Slots:
        """Free slots for slices of these sizes, in nodes."""
        with self._open():
            return self._engine.slots(sizes)

    def snapshot(self) -> ClusterSnapshot:
        """The cluster as it is now."""
        with self._open():
            return self._engine.snapshot()

    @contextmanager
    def _open(self) -> Iterator[None]:
        """The engine to oneself, without the plans whose time is up.

        After any error but `InputError` the engine may be ahead of its journal, or half changed: only a restart tells.
        """
        with self._lock:
            if self.problem:
                raise UnavailableError(self.problem)
            self._asked = time.monotonic()
            try:
                for job in self._plans.expired(self._now()):
                    self._do("finish", job)
                yield
            except InputError:
                raise
            except Exception as error:
                self.problem = f"{type(error).__name__}: {error}; restart the service"
                raise UnavailableError(self.problem) from error

    def _now(self) -> float:
        """The time; it never goes back, as a clock that is set may do."""
        self._latest = max(self._latest, self._clock())
        return self._latest


def _job(text: str) -> Job:
    job = parse_job(text, "request")
    if not -(2**31) <= job.priority < 2**31:  # as in Kubernetes, and in the simulator's arrays
        raise InputError("request", "priority", job.priority, "a whole number of 32 bits")
    return job


def _kept(answer: Any) -> Any:
    """An answer as the journal keeps it: without the explanation, which is long and follows from the rest."""
    if isinstance(answer, Placed):
        answer = replace(answer, why=UNSAID)
    elif isinstance(answer, Refused):
        answer = replace(answer, racks={}, why=UNSAID)
    return answer.to_dict() if isinstance(answer, Answer) else answer
