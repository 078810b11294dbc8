"""One try to place a whole job: its parts one after another, then what they need besides GPUs.

First without evicting anybody for anything but shape, as in the simulator. Where the policy is not even asked, because
nothing is legal, racks may also be opened by priority, and pods of lower priority that hold the cpu, memory or places
of a node that the job needs give way.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from nvlenv.cluster.types import IntArray, Mode
from nvlenv.engine.core.book import Book, need_of
from nvlenv.engine.core.evictions import make_way, tests_end
from nvlenv.engine.core.explain import ask_policy, room, why_no_quota, why_no_room
from nvlenv.engine.core.kernels import AT_HAND, NO_QUOTA, restrict, take_up, unrestrict
from nvlenv.engine.core.live import Live, Part
from nvlenv.engine.model.answers import Binding, Cause, Eviction, Placed, Refused, Step, Why
from nvlenv.engine.model.jobs import Job, Pod, PodSet
from nvlenv.policies.resolver import policy_name
from nvlenv.simulator.decision import ActionLayout, Policy
from nvlenv.simulator.events import stop
from nvlenv.simulator.queues import enqueue
from nvlenv.simulator.state import Sim
from nvlenv.simulator.step import apply


@dataclass(frozen=True)
class Tried:
    """What came of asking the policy about one row."""

    placed: bool
    no_quota: bool = False
    steps: tuple[Step, ...] = ()  # none: nothing was legal
    could_place: bool = False  # the last decision had a rack for it without eviction
    before: Sim | None = None  # the arrays before the first eviction, where there was one


@dataclass
class Attempt:
    """A waiting job, tried against a live cluster.

    While it runs, the arrays show what has its place, the book does not yet. After a refusal they may hold parts that
    were placed before the one that was refused: the caller has a copy.
    """

    live: Live
    book: Book
    policy: Policy
    turn: int  # number of the last decision
    job: Job
    parts: tuple[Part, ...]
    notes: tuple[str, ...]
    shown: int  # candidates listed in each step
    pods: list[Pod] = field(default_factory=list)  # that have their places
    _bindings: list[Binding] = field(default_factory=list)
    _evictions: list[Eviction] = field(default_factory=list)
    _steps: list[Step] = field(default_factory=list)

    def run(self) -> Placed | Refused:
        """Place it all, or say why not."""
        rows = self.live.enqueue(self.job.id, self.parts)
        if (ahead := self._ahead(rows[0])) is not None:
            queue = self.live.queues[self.parts[0].queue].name
            return self._refused(Cause.BEHIND, f"{ahead} waits before it in queue {queue} (StrictFIFO)")
        for part, row in zip(self.parts, rows, strict=True):
            refused = self._place_part(part, row)
            if refused is not None:
                return refused
        for leader in self.job.pod_sets:
            if leader.group and not leader.gpus_per_pod and not self._place_leader(leader):
                said = f"no node beside its workers has cpu, memory and a place for pod set {leader.name}"
                return self._refused(Cause.CAPACITY, said)
        order = {pods.name: number for number, pods in enumerate(self.job.pod_sets)}
        self._bindings.sort(key=lambda binding: (order[binding.pod_set], self.book.number[binding.node]))
        why = Why(policy_name(self.policy), self._steps[-1].rule, tuple(self._steps), self.notes)
        speed = min(float(self.live.sim.jobs["speed"][row]) for row in rows)
        evictions = (*tests_end(self.book, [binding.node for binding in self._bindings]), *self._evictions)
        return Placed(self.job.id, tuple(self._bindings), evictions, speed, why)

    def _refused(
        self, cause: Cause, reason: str, racks: dict[str, str] | None = None, steps: tuple[Step, ...] = ()
    ) -> Refused:
        why = Why(policy_name(self.policy), reason, steps, self.notes)
        return Refused(self.job.id, cause, reason, racks or {}, why)

    def _ahead(self, row: int) -> str | None:
        """The job that a StrictFIFO queue lets go first; None: it is our turn."""
        sim = self.live.sim
        if sim.queues["strict"][sim.jobs["queue"][row]]:
            for other in itertools.takewhile(lambda other: other != row, self.live.waiting()):
                if sim.jobs["queue"][other] == sim.jobs["queue"][row] and other not in self.live.rows[self.job.id]:
                    return self.live.name_of(other)
        return None

    # One part

    def _place_part(self, part: Part, row: int) -> Refused | None:
        limits = self._near_placed(part, self.book.resources.limits(part))
        steps: tuple[Step, ...] = ()
        for narrowed in self._domains(part, limits):
            tried = self._try_row(row, limits=narrowed)
            if tried.placed:
                if self._settle(part, row, tried):
                    return None
                continue  # what had to move found GPUs, but no cpu, memory or place for its pods
            if tried.no_quota:
                return self._refused(Cause.QUOTA, why_no_quota(self.live, part))
            if tried.could_place:
                return self._refused(Cause.HELD, f"held: {tried.steps[-1].rule}", steps=tried.steps)
            steps = tried.steps
        whole_nodes = part.height == 0 and part.gpus_per_pod == self.live.node_size
        if not steps and whole_nodes and self.live.settings.by_priority:
            placed, steps = self._place_by_priority(part, row)
            if placed:
                return None
        reasons = why_no_room(self.live, self.book.resources, part, row, limits, declined=bool(steps))
        return self._refused(*reasons, steps=steps)

    def _place_by_priority(self, part: Part, row: int) -> tuple[bool, tuple[Step, ...]]:
        """Place a part of whole nodes by evicting work of lower priority, or else the steps that led to no place."""
        returned = self.book.resources.returnable(self.job.priority)
        if returned is None:
            return False, ()
        limits = self._near_placed(part, self.book.resources.limits(part, returned))
        jobs, tried, fields = self.live.sim.jobs, Tried(False), ["mode", "slices", "slice_pods"]
        asked = jobs[fields][row].copy()
        if part.mode == Mode.UNCONSTRAINED:  # to the simulator racks are opened for required slices: single nodes
            jobs["slices"][row], jobs["slice_pods"][row] = part.pods, 1
        jobs["mode"][row] = Mode.REQUIRED
        placed = False
        for narrowed in self._domains(part, limits):
            tried = self._try_row(row, preempt=True, limits=narrowed)
            placed = tried.placed and self._settle(part, row, tried)
            if placed:
                break
        self.live.sim.jobs[fields][row] = asked
        return placed, tried.steps

    def _domains(self, part: Part, limits: IntArray | None) -> Iterator[IntArray | None]:
        """The limits to try in turn: one domain of `part.within` after another, the fullest first."""
        if part.within:
            domain = self.live.domains(self.live.spec.height_of(part.within))
            fits = np.bincount(domain, room(self.live, part, limits))
            for number in sorted(np.flatnonzero(fits >= part.pods), key=lambda number: fits[number]):
                yield np.where(domain == number, part.pods if limits is None else limits, 0).astype(np.int32)
        if not part.within or not part.strict:
            yield limits

    def _near_placed(self, part: Part, limits: IntArray | None) -> IntArray | None:
        """A pod set that belongs to one already placed goes where that went: into the domain of their level."""
        pods, spec = part.members[-1], self.live.spec
        others = {other.node for other in self._bindings} if pods.group else set()
        if not others or not pods.level:
            return limits
        domain = self.live.domains(max(0, spec.height_of(pods.level)))
        inside = np.isin(domain, [domain[self.book.number[node]] for node in others])
        return np.where(inside, part.pods if limits is None else limits, 0).astype(np.int32)

    # One row of the simulator is decided by the policy, slice by slice, or everything stays as it was

    def _try_row(self, row: int, preempt: bool = False, limits: IntArray | None = None) -> Tried:
        """Let the policy decide about a waiting row. If it is not placed, the arrays are as before.

        With `preempt`, racks may be opened even where the free GPUs would not suffice. `limits` (M,) are the pods that
        each node could take; None: as many as its GPUs allow.
        """
        live = self.live
        if limits is None:
            return self._ask(row, preempt)
        hidden = np.zeros(live.spec.nodes, np.int32)
        restrict(live.sim, limits, int(live.sim.jobs["pod_gpus"][row]), hidden)
        tried = self._ask(row, preempt)
        unrestrict(live.sim, hidden)
        if tried.before is not None and tried.before is not live.sim:
            unrestrict(tried.before, hidden)
        return tried

    def _ask(self, row: int, preempt: bool) -> Tried:
        live = self.live
        self.turn += 1
        found = take_up(live.sim, row, self.turn, preempt)
        if found != AT_HAND:
            return Tried(False, no_quota=found == NO_QUOTA)
        sim, racks = live.sim, live.spec.racks
        steps: list[Step] = []
        before: Sim | None = None
        again = True
        while again:
            action, step = ask_policy(self.policy, live, self.shown)
            could_place = bool(sim.mask[:racks].any() or sim.mask[ActionLayout(racks).fill])
            if step.action == "open" and before is None:
                before, *_ = live.save()
            left = self._left(row)
            again = bool(apply(sim, action))
            still = self._left(row) if int(sim.clock["current"][0]) == row else 0
            steps.append(replace(step, pods=0 if step.action == "hold" else left - still))
        placed = steps[-1].action != "hold" and bool((sim.gpu_job == row).any())
        tried = Tried(placed, False, tuple(steps), could_place, before)
        if not placed and before is not None:
            self._undo(row, tried)
        return tried

    def _undo(self, row: int, tried: Tried) -> None:
        """A row that was decided waits again, and nobody was evicted for it."""
        if tried.before is None:
            stop(self.live.sim, row)
            enqueue(self.live.sim, row)
        else:  # the row is still at hand there, perhaps with slices that went to free racks
            self.live.sim = tried.before
            apply(self.live.sim, ActionLayout(self.live.spec.racks).hold)

    def _left(self, row: int) -> int:
        """Pods of the row at hand still to be placed."""
        c = self.live.sim.clock
        return int((c["slices_left"][0] - 1) * self.live.sim.jobs["slice_pods"][row] + c["pods_left"][0])

    # What a placed row means for everybody

    def _settle(self, part: Part, row: int, tried: Tried) -> bool:
        """Note who has to leave, and where the part went. False, and all undone, if cpu, memory or pods are too few."""
        evictions = make_way(self.live, self.book, self.job, part, row, self.pods, tried.before)
        if evictions is None:
            self._undo(row, tried)
            return False
        self._evictions += evictions
        self._steps += tried.steps
        members = iter([member for member in part.members for _ in range(member.pods)])
        each = part.gpus_per_pod // part.fused
        for node, gpus in self.live.gpus_of(row).items():
            here = list(itertools.islice(members, gpus // each))  # the places go to the pod sets in order
            self.pods += [Pod(self.book.names[node], each, member.cpu, member.memory) for member in here]
            for name, pods in Counter(member.name for member in here).items():
                self._bindings.append(self.book.binding(node, pods, pods * each, name))
        return True

    def _place_leader(self, leader: PodSet) -> bool:
        """A pod without GPUs goes to a node of its group, or else to one of the same rack."""
        near = {self.book.number[binding.node]: None for binding in self._bindings}
        node_rack, usable = self.live.spec.node_rack, self.live.sim.nodes["blocked"] == 0
        others = np.flatnonzero(np.isin(node_rack, node_rack[list(near)]) & usable).tolist()
        gone = [pod for eviction in self._evictions for pod in self.book.jobs[eviction.job].pods]
        for node in [*near, *(node for node in others if node not in near)]:
            pod = Pod(self.book.names[node], 0, leader.cpu, leader.memory)
            need = need_of([pod]) + need_of(self.pods, pod.node) - need_of(gone, pod.node)
            if self.book.resources.has_room(node, need):
                self._bindings.append(self.book.binding(node, 1, 0, leader.name))
                self.pods.append(pod)
                return True
        return False
