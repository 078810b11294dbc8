"""One try to place a whole job: its parts one after another, then what they need besides GPUs.

First without evicting anybody for anything but shape, as in the simulator. Where the policy is not even asked, because
nothing is legal, racks may also be opened by priority, and pods of lower priority that hold the cpu, memory or places
of a node that the job needs give way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nvlenv.cluster.types import IntArray, Mode
from nvlenv.engine.core.book import Book, Held, names
from nvlenv.engine.core.explain import by_quota, by_shape, judge, room
from nvlenv.engine.core.live import Live, begin, hours_lost, join, restrict, unrestrict
from nvlenv.engine.core.parts import Part, companions
from nvlenv.engine.model.answers import Binding, Cause, Eviction, Loss, Step
from nvlenv.engine.model.jobs import JobRequest, PodSet
from nvlenv.engine.model.snapshot import Pod
from nvlenv.simulator.decision import ActionLayout, Decision, Policy
from nvlenv.simulator.events import evict, stop
from nvlenv.simulator.state import RUNNING, WAITING, Sim
from nvlenv.simulator.step import apply

# --------------------------------------------------------------------------------------------------------------------
# One row of the simulator is decided by a policy, slice by slice, or everything stays as it was.
# --------------------------------------------------------------------------------------------------------------------


NOTHING, NO_QUOTA = 0, 1  # what `begin` says if there is nothing to decide


@dataclass(frozen=True)
class Outcome:
    """What became of a row."""

    placed: bool
    begun: int  # what `begin` said
    steps: tuple[Step, ...]
    could_place: bool  # the last decision had a rack for it without eviction
    before: Sim | None  # the arrays before the first eviction, where there was one


def decide(
    live: Live, policy: Policy, row: int, turn: int, shown: int, preempt: bool = False, limits: IntArray | None = None
) -> Outcome:
    """Let the policy decide about a waiting row. If it is not placed, the arrays are as before.

    Parameters
    ----------
    turn : a number that no decision had before.
    shown : candidates to be listed in each step.
    preempt : racks may be opened even where the free GPUs would not suffice.
    limits : (M,) pods that each node could take; None: as many as its GPUs allow.
    """
    hidden = np.zeros(live.spec.nodes, np.int32)
    if limits is not None:
        restrict(live.sim, limits, int(live.sim.jobs["pod_gpus"][row]), hidden)
    outcome = _decide(live, policy, row, turn, shown, preempt)
    if limits is not None:
        unrestrict(live.sim, hidden)
        if outcome.before is not None and outcome.before is not live.sim:
            unrestrict(outcome.before, hidden)
    return outcome


def _decide(live: Live, policy: Policy, row: int, turn: int, shown: int, preempt: bool) -> Outcome:
    begun = begin(live.sim, row, turn, preempt)
    if begun in (NOTHING, NO_QUOTA):
        return Outcome(False, begun, (), False, None)
    racks, layout = live.spec.rack_names, ActionLayout(live.spec.racks)
    steps: list[Step] = []
    before: Sim | None = None
    again = True
    while again:
        sim = live.sim
        verdict = judge(policy, Decision(sim, sim.mask, layout), racks, live.name_of, shown)
        kind = layout.describe(verdict.action).partition("[")[0]
        if kind == "open" and before is None:
            before = live.save().sim
        left = _left(live, row)
        again = bool(apply(sim, verdict.action))
        pods = left - (_left(live, row) if int(sim.clock["current"][0]) == row else 0) if kind != "hold" else 0
        rack = racks[verdict.action % layout.racks] if kind in ("place", "open") else ""
        steps.append(Step(kind, rack, pods, verdict.rule, verdict.legal, verdict.candidates))
    placed = steps[-1].action != "hold" and bool((live.sim.gpu_job == row).any())
    outcome = Outcome(placed, begun, tuple(steps), verdict.could_place, before)
    if not placed and before is not None:
        undo(live, row, outcome)
    return outcome


def undo(live: Live, row: int, outcome: Outcome) -> None:
    """A row that was decided waits again, and nobody was evicted for it."""
    if outcome.before is None:
        stop(live.sim, row)
        join(live.sim, row)
    else:  # the row is still at hand there, perhaps with slices that went to free racks
        live.sim = outcome.before
        apply(live.sim, ActionLayout(live.spec.racks).hold)


def _left(live: Live, row: int) -> int:
    """Pods of the row at hand still to be placed."""
    c = live.sim.clock
    return int((c["slices_left"][0] - 1) * live.sim.jobs["slice_pods"][row] + c["pods_left"][0])


# --------------------------------------------------------------------------------------------------------------------
# One try to place a whole job: its parts one after another, then what they need besides GPUs.
#
# First without evicting anybody for anything but shape, as in the simulator. Where the policy is not even asked, because
# nothing is legal, racks may also be opened by priority, and pods of lower priority that hold the cpu, memory or places
# of a node that the job needs give way.
# --------------------------------------------------------------------------------------------------------------------


@dataclass
class Plan:
    """What a placement is going to be; the arrays already show it, the book does not yet."""

    bindings: list[Binding] = field(default_factory=list)
    pods: list[Pod] = field(default_factory=list)
    evictions: list[Eviction] = field(default_factory=list)
    moved: dict[str, dict[int, int]] = field(default_factory=dict)  # job -> GPUs on each of its new nodes
    steps: list[Step] = field(default_factory=list)


@dataclass(frozen=True)
class No:
    """Why there is no plan. The arrays may hold parts that were placed before: the caller has a copy."""

    cause: Cause
    reason: str
    racks: dict[str, str] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()


class Attempt:
    """The waiting rows of a job, tried against a live cluster."""

    def __init__(self, live: Live, book: Book, policy: Policy, turns: Iterator[int], shown: int) -> None:
        self._live, self._book, self._policy, self._turns, self._shown = live, book, policy, turns, shown

    def run(self, job: JobRequest, parts: Sequence[Part], rows: Sequence[int]) -> Plan | No:
        plan = Plan()
        for part, row in zip(parts, rows, strict=True):
            no = self._place_part(job, part, row, plan)
            if no is not None:
                return no
        for leader in companions(job):
            no = self._place_companion(leader, plan)
            if no is not None:
                return no
        order = {pods.name: number for number, pods in enumerate(job.pod_sets)}
        plan.bindings.sort(key=lambda binding: (order[binding.pod_set], self._book.number(binding.node)))
        return plan

    # One part

    def _place_part(self, job: JobRequest, part: Part, row: int, plan: Plan) -> No | None:
        strict = self._narrow(self._book.reserves.limits(part), part, plan)
        steps: tuple[Step, ...] = ()
        for limits in self._domains(part, strict):
            outcome = decide(self._live, self._policy, row, next(self._turns), self._shown, limits=limits)
            if outcome.placed:
                if self._settle(job, part, row, outcome, plan):
                    return None
                continue  # what had to move found GPUs, but no cpu, memory or place for its pods
            if outcome.begun == NO_QUOTA:
                return No(Cause.QUOTA, by_quota(self._live, part.row.queue, part.row.gpus))
            if outcome.could_place:
                return No(Cause.HELD, f"held: {outcome.steps[-1].rule}", {}, outcome.steps)
            steps = outcome.steps
        may_clear = part.row.height == 0 and part.row.pod_gpus == self._live.node_size
        if not steps and may_clear and self._live.settings.by_priority:
            by_priority = self._by_priority(job, part, row, plan)
            if by_priority is None:
                return None
            steps = by_priority
        cause, reason, racks = by_shape(self._live, self._book.reserves, part, row, strict, bool(steps))
        return No(cause, reason, racks, steps)

    def _domains(self, part: Part, limits: IntArray | None) -> Iterator[IntArray | None]:
        """The limits to try in turn: one domain of `part.within` after another, the fullest first."""
        spec = self._live.spec
        if part.within:
            height = spec.height_of(part.within)
            domain = self._live.sim.ancestors[: spec.racks, height][spec.node_rack]
            fits = np.bincount(domain, room(self._live, part, limits))
            for number in sorted(np.flatnonzero(fits >= part.units), key=lambda number: fits[number]):
                everywhere = np.full(spec.nodes, part.units, np.int32) if limits is None else limits
                yield np.where(domain == number, everywhere, 0).astype(np.int32)
        if not part.within or not part.strict:
            yield limits

    def _narrow(self, limits: IntArray | None, part: Part, plan: Plan) -> IntArray | None:
        """A pod set that belongs to one already placed goes where that went: into the domain of their level."""
        pods, spec = part.members[-1], self._live.spec
        others = {other.node for other in plan.bindings} if pods.group else set()
        if not others or not pods.level:
            return limits
        domain = self._live.sim.ancestors[: spec.racks, max(0, spec.height_of(pods.level))][spec.node_rack]
        inside = np.isin(domain, [domain[self._book.number(node)] for node in others])
        return np.where(inside, part.units if limits is None else limits, 0).astype(np.int32)

    # Eviction by priority

    def _by_priority(self, job: JobRequest, part: Part, row: int, plan: Plan) -> tuple[Step, ...] | None:
        """Place a whole-node part by evicting work of lower priority. None: done; else the steps of the refusal."""
        returned = self._book.reserves.returnable(job.priority)
        if returned is None:
            return ()
        limits = self._narrow(self._book.reserves.limits(part, returned), part, plan)
        jobs = self._live.sim.jobs
        before = {name: jobs[name][row].copy() for name in ("mode", "slices", "slice_pods")}
        if part.row.mode == Mode.UNCONSTRAINED:  # to the simulator racks are opened for required slices: single nodes
            jobs["slices"][row], jobs["slice_pods"][row] = part.units, 1
        jobs["mode"][row] = Mode.REQUIRED
        steps: tuple[Step, ...] = ()
        for narrowed in self._domains(part, limits) if part.within else iter([limits]):
            outcome = decide(self._live, self._policy, row, next(self._turns), self._shown, True, narrowed)
            steps = outcome.steps
            if outcome.placed and self._settle(job, part, row, outcome, plan):
                break
        else:
            for name, value in before.items():
                self._live.sim.jobs[name][row] = value
            return steps
        for name, value in before.items():
            self._live.sim.jobs[name][row] = value
        return None

    def may_evict(self, held: Held, job: JobRequest) -> bool:
        """The simulator's rule, for jobs with and without GPUs."""
        if held.job.verification or not held.job.preemptible or held.job.priority >= job.priority:
            return False
        rows = self._live.rows.get(held.job.id, ())
        most = self._live.settings.max_evictions
        return all(int(self._live.sim.jobs["evictions"][row]) < most for row in rows)

    # What a placed row means for everybody

    def _settle(self, job: JobRequest, part: Part, row: int, outcome: Outcome, plan: Plan) -> bool:
        """Note where the part went and who has to leave. False, and all undone, if cpu, memory or pods are too few."""
        evicted, moved = _changed(outcome.before, self._live) if outcome.before is not None else ({}, {})
        units = {node: gpus // part.row.pod_gpus for node, gpus in self._live.gpus_of(row).items()}
        beside = self._beside(job, part, units, set(evicted), plan)
        if beside is None or not self._have_room(moved):
            undo(self._live, row, outcome)
            return False
        for name, cost in evicted.items():
            plan.evictions.append(self._eviction(name, Loss.PREEMPTED, cost))
        for held in beside:
            plan.evictions.append(self._eviction(held.job.id, Loss.BESIDE, 0.0))
        for name, cost in moved.items():
            plan.moved[name] = self._live.gpus_of(self._live.rows[name][0])
            plan.evictions.append(self._move(name, cost, plan.moved[name]))
        plan.steps += outcome.steps
        self._bind(part, units, plan)
        return True

    def _beside(
        self, job: JobRequest, part: Part, units: dict[int, int], leaving: set[str], plan: Plan
    ) -> list[Held] | None:
        """Jobs that must leave nodes beside those already leaving, so that all fits; None: that is not enough."""
        chosen: dict[str, Held] = {}
        for node, count in units.items():
            name = self._book.name(node)
            here = {held.job.id: held for held in self._book.on(name)}
            gone = [pod for other in here if other in leaving or other in chosen for pod in here[other].job.pods]
            need = np.array([part.cpu, part.memory, part.fused], np.int64) * count + _at(name, plan.pods)
            need -= _at(name, gone)
            mine = [here[other] for other in here if other not in leaving and other not in chosen]
            found = self._give_way(node, need, [held for held in mine if self.may_evict(held, job)])
            if found is None:
                return None
            chosen.update({held.job.id: held for held in found})
        return list(chosen.values())

    def _give_way(self, node: int, need: NDArray[np.int64], candidates: list[Held]) -> list[Held] | None:
        """Of these jobs as few and as cheap as possible, so that a node has what is needed; None: all are too few."""
        reserves, name, chosen = self._book.reserves, self._book.name(node), []
        for held in sorted(candidates, key=lambda held: (held.job.priority, held.job.gpus, held.job.id)):
            lacks = reserves.shortage(node, need.tolist())
            if any(lack and gift for lack, gift in zip(lacks, _at(name, held.job.pods), strict=True)):
                chosen.append(held)
                need = need - _at(name, held.job.pods)
        if any(reserves.shortage(node, need.tolist())):
            return None
        for held in list(chosen):
            without = need + _at(name, held.job.pods)
            if not any(reserves.shortage(node, without.tolist())):
                chosen.remove(held)
                need = without
        return chosen

    def _have_room(self, moved: dict[str, float]) -> bool:
        """True if the nodes to which jobs were moved let them in and have the cpu, memory and places for them."""
        reserves = self._book.reserves
        for name in moved:
            job = self._book.jobs[name].job
            pod = job.pods[0]
            for node, gpus in self._live.gpus_of(self._live.rows[name][0]).items():
                count = gpus // max(1, pod.gpus)
                needs = (pod.cpu * count, pod.memory * count, count)
                if reserves.repels(node, job.nodes) or any(reserves.shortage(node, needs)):
                    return False
        return True

    def _eviction(self, name: str, reason: Loss, cost: float) -> Eviction:
        """The eviction of a whole job; what still runs of it ends now."""
        held, sim = self._book.jobs[name], self._live.sim
        for row in self._live.rows.get(name, ()):
            if sim.jobs["status"][row] == RUNNING:
                cost += float(sim.jobs["gpus"][row]) * float(hours_lost(sim, row, False))
                evict(sim, row)
        return Eviction(name, reason, held.job.nodes, names(held.job.pods), held.job.gpus, cost)

    def _move(self, name: str, cost: float, to: dict[int, int]) -> Eviction:
        held = self._book.jobs[name]
        size = max(1, held.job.pods[0].gpus)
        moved_to = tuple(self._binding("", node, gpus // size, gpus) for node, gpus in to.items())
        return Eviction(name, Loss.MOVED, held.job.nodes, names(held.job.pods), held.job.gpus, cost, moved_to)

    def _binding(self, pod_set: str, node: int, pods: int, gpus: int) -> Binding:
        rack = self._live.spec.rack_names[self._live.spec.node_rack[node]]
        return Binding(pod_set, self._book.name(node), rack, pods, gpus)

    def _bind(self, part: Part, units: dict[int, int], plan: Plan) -> None:
        """Hand the places of a part to its pod sets in order, node by node."""
        left = {member.name: member.pods for member in part.members}
        each = part.row.pod_gpus // part.fused
        for node, count in units.items():
            places = count * part.fused
            for member in part.members:
                pods = min(places, left[member.name])
                if pods:
                    plan.bindings.append(self._binding(member.name, node, pods, pods * each))
                    plan.pods += [Pod(self._book.name(node), each, member.cpu, member.memory)] * pods
                left[member.name] -= pods
                places -= pods

    def _place_companion(self, leader: PodSet, plan: Plan) -> No | None:
        """A pod without GPUs goes to a node of its group, or else to one of the same rack."""
        near = {self._book.number(binding.node): None for binding in plan.bindings}
        node_rack, usable = self._live.spec.node_rack, self._live.sim.nodes["blocked"] == 0
        others = np.flatnonzero(np.isin(node_rack, node_rack[list(near)]) & usable)
        for node in [*near, *(int(node) for node in others if int(node) not in near)]:
            name = self._book.name(node)
            need = np.array([leader.cpu, leader.memory, 1], np.int64) + _at(name, plan.pods)
            gone = [pod for eviction in plan.evictions for pod in self._book.jobs[eviction.job].job.pods]
            if not any(self._book.reserves.shortage(node, (need - _at(name, gone)).tolist())):
                plan.bindings.append(self._binding(leader.name, node, 1, 0))
                plan.pods.append(Pod(name, 0, leader.cpu, leader.memory))
                return None
        return No(Cause.CAPACITY, f"no node beside its workers has cpu, memory and a place for pod set {leader.name}")


def _at(node: str, pods: Sequence[Pod]) -> NDArray[np.int64]:
    """cpu, memory and number of those of the pods that are on this node."""
    here = [(pod.cpu, pod.memory, 1) for pod in pods if pod.node == node]
    return np.array([sum(column) for column in zip((0, 0, 0), *here, strict=True)], np.int64)


def _changed(before: Sim, live: Live) -> tuple[dict[str, float], dict[str, float]]:
    """Jobs that were evicted, and jobs that were moved, each with the GPU-hours of work that it lost."""
    old, new, n = before.jobs, live.sim.jobs, len(before.jobs)
    cost = (new["lost"][:n] - old["lost"]) * new["gpus"][:n]
    ran = old["status"] == RUNNING
    evicted = np.flatnonzero(ran & (new["status"][:n] == WAITING))
    touched = np.unique(before.gpu_job[before.gpu_job != live.sim.gpu_job])
    moved = [int(row) for row in touched if row >= 0 and ran[row] and new["status"][row] == RUNNING]
    return _by_job(live, evicted.tolist(), cost), _by_job(live, moved, cost)


def _by_job(live: Live, rows: list[int], cost: NDArray[np.float64]) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in rows:
        name = live.name_of(row)
        found[name] = found.get(name, 0.0) + float(cost[row])
    return found
