"""Whom Kueue preempts so that a workload gets quota and a place.

Facts from github.com/kubernetes-sigs/kueue at commit ff69552e, in the order of this file:

    the request        pkg/scheduler/flavorassigner/flavorassigner.go: does it fit, may it preempt, or must it wait
    the candidates     pkg/scheduler/preemption/classical/*.go, common/*.go: who may be preempted, in which order
    the minimal set    pkg/scheduler/preemption/preemption.go: remove one by one until it fits, then give back
    fair sharing       the same file and fairsharing/*.go: the ClusterQueue that borrows most gives first

A request *fits* if its ClusterQueue has the quota, and if every flavor with a topology places its pods (`snapshot.py`),
asked anew after each removal. Every resource comes from one flavor, chosen beforehand: which of several flavors Kueue
would try is not decided here, nor the share of LocalQueues (AdmissionFairSharing).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import partial

from nvlenv.common.errors import InputError
from nvlenv.policies.kueue.quota import (
    Amounts,
    ClusterQueue,
    Cohort,
    FlavorResource,
    PreemptionPolicy,
    QuotaNode,
    QuotaTree,
)
from nvlenv.policies.kueue.snapshot import Snapshot
from nvlenv.policies.kueue.types import Failure, PodSetRequest, Usage

# --------------------------------------------------------------------------------------------------------------------
# What goes in and what comes out
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkloadInfo:
    """A workload, admitted or asking to be. Names are unique; among equals the lower name is preempted first."""

    name: str
    cluster_queue: str
    requests: Amounts  # of all its pods, by flavor and resource; for an admitted one what it is charged for
    priority: int = 0
    created: float = 0.0  # any clock; what LowerOrNewerEqualPriority compares
    quota_reserved: float = 0.0  # since when it is admitted
    evicted: bool = False  # already on its way out
    podsets: Mapping[str, Sequence[PodSetRequest]] = field(default_factory=dict)  # of one that asks, by TAS flavor
    usage: Mapping[str, Sequence[Usage]] = field(default_factory=dict)  # of an admitted one, by TAS flavor


class PreemptionReason(StrEnum):
    """Why a workload is preempted, as Kueue's Preempted condition says."""

    IN_CLUSTER_QUEUE = "InClusterQueue"
    IN_COHORT_RECLAMATION = "InCohortReclamation"
    IN_COHORT_RECLAIM_WHILE_BORROWING = "InCohortReclaimWhileBorrowing"
    IN_COHORT_FAIR_SHARING = "InCohortFairSharing"


@dataclass(frozen=True)
class Target:
    """A workload that is preempted."""

    workload: WorkloadInfo
    reason: PreemptionReason


class AssignmentMode(IntEnum):
    """What a workload may hope for, from Kueue's flavor assigner."""

    NO_FIT = 0  # wait, nobody is preempted
    PREEMPT = 1  # fits once enough workloads are gone, if they can be found
    FIT = 2


class FairSharingStrategy(StrEnum):
    """When another ClusterQueue must give: compared is the preemptor's share with its workload."""

    LESS_THAN_OR_EQUAL_TO_FINAL_SHARE = "LessThanOrEqualToFinalShare"  # with the share that the other keeps
    LESS_THAN_INITIAL_SHARE = "LessThanInitialShare"  # with the share that the other has


STRATEGIES = (
    FairSharingStrategy.LESS_THAN_OR_EQUAL_TO_FINAL_SHARE,
    FairSharingStrategy.LESS_THAN_INITIAL_SHARE,
)  # Kueue's default


class KueueState:
    """Queues, cohorts and admitted workloads as one scheduling cycle sees them; what can be removed and returned.

    topologies: an empty `Snapshot` by TAS flavor, less only what is outside Kueue. protected: what is in use but is no
    workload that may be preempted. Raises InputError for a workload in a ClusterQueue that there is not.
    """

    def __init__(
        self,
        cluster_queues: Sequence[ClusterQueue],
        cohorts: Sequence[Cohort] = (),
        admitted: Sequence[WorkloadInfo] = (),
        topologies: Mapping[str, Snapshot] | None = None,
        protected: Sequence[WorkloadInfo] = (),
    ) -> None:
        self.queues = QuotaTree(cluster_queues, cohorts).cluster_queues
        self.empty = dict(topologies or {})
        self.topologies = {flavor: _copied(snapshot) for flavor, snapshot in self.empty.items()}
        self.admitted: dict[str, dict[str, WorkloadInfo]] = {name: {} for name in self.queues}
        for workload in admitted:
            self.add(workload)
        for workload in protected:
            self._use(workload)

    def queue(self, workload: WorkloadInfo) -> QuotaNode:
        """The workload's ClusterQueue. Raises InputError if there is none of that name."""
        if workload.cluster_queue not in self.queues:
            found, known = repr(workload.cluster_queue), f"one of {sorted(self.queues)}"
            raise InputError("workload", f"{workload.name}.cluster_queue", found, known)
        return self.queues[workload.cluster_queue]

    def add(self, workload: WorkloadInfo) -> None:
        """Admit a workload: charge its quota and its pods."""
        self._use(workload)
        self.admitted[workload.cluster_queue][workload.name] = workload

    def remove(self, workload: WorkloadInfo) -> None:
        """Undo `add`."""
        self._use(workload, -1)
        del self.admitted[workload.cluster_queue][workload.name]

    def _use(self, workload: WorkloadInfo, sign: int = 1) -> None:
        self.charge(workload, sign)
        for flavor, entries in workload.usage.items():
            for entry in entries if flavor in self.topologies else ():
                self.topologies[flavor].charge(Usage(entry.values, entry.requests, sign * entry.count))

    def charge(self, workload: WorkloadInfo, sign: int = 1) -> None:
        """Charge the workload's quota, or (-1) give it back."""
        node = self.queue(workload)
        change = node.add if sign > 0 else node.remove
        for what, amount in workload.requests.items():
            change(what, amount)

    def fits(self, workload: WorkloadInfo, may_borrow: bool = True) -> bool:
        """True if the workload has quota and a place, as things are."""
        queue = self.queue(workload)
        for what, amount in workload.requests.items():
            if (not may_borrow and queue.exceeds(what, amount)) or amount > max(0, queue.available(what)):
                return False
        return _has_place(workload, self.topologies)


def assignment_mode(
    state: KueueState, incoming: WorkloadInfo, fair_sharing: bool = False
) -> tuple[AssignmentMode, frozenset[FlavorResource]]:
    """What the workload may hope for, and the resources for which it must preempt.

    Without quota it may preempt if it stays within the nominal quota, if some smaller part of the hierarchy has the
    quota, or if its ClusterQueue may preempt while it borrows. Without a place it may, if an empty cluster has one.
    """
    queue, needs = state.queue(incoming), set()
    for what, amount in incoming.requests.items():
        if amount > queue.potential_available(what):
            return AssignmentMode.NO_FIT, frozenset()
        if amount > max(0, queue.available(what)):
            within_nominal = amount <= queue.quota(what).nominal
            if not (within_nominal or _may_reclaim(queue, what, amount) or _may_borrow(queue, fair_sharing)):
                return AssignmentMode.NO_FIT, frozenset()
            needs.add(what)
    if not needs and _has_place(incoming, state.topologies):
        return AssignmentMode.FIT, frozenset()
    if not _has_place(incoming, state.empty):
        return AssignmentMode.NO_FIT, frozenset()
    fragmented = {what for what in incoming.requests if what[0] in incoming.podsets}
    return AssignmentMode.PREEMPT, frozenset(needs | fragmented)


def find_targets(
    state: KueueState,
    incoming: WorkloadInfo,
    needs: Collection[FlavorResource],
    strategies: Sequence[FairSharingStrategy] | None = None,
) -> list[Target]:
    """The workloads to preempt so that `incoming` fits, in Kueue's order; empty if no legal set is enough.

    needs: the resources for which it must preempt; only workloads that use some of them are touched. strategies: those
    of fair sharing; None: classical preemption. The state is the same afterwards.
    """
    removed: list[Target] = []
    try:
        if strategies is None:
            return _classical(state, incoming, frozenset(needs), removed)
        return _fair(state, incoming, frozenset(needs), strategies, removed)
    finally:
        for target in removed:
            state.add(target.workload)


def _copied(snapshot: Snapshot) -> Snapshot:
    copied = copy(snapshot)
    copied.free = list(snapshot.free)
    return copied


def _has_place(workload: WorkloadInfo, topologies: Mapping[str, Snapshot]) -> bool:
    for flavor, podsets in workload.podsets.items():
        if any(isinstance(placed, Failure) for placed in topologies[flavor].assign(podsets).values()):
            return False
    return True


def _may_borrow(queue: QuotaNode, fair_sharing: bool) -> bool:
    spec = _spec(queue)
    return spec.borrow_within_cohort is not None or (
        fair_sharing and spec.reclaim_within_cohort != PreemptionPolicy.NEVER
    )


def _may_reclaim(queue: QuotaNode, what: FlavorResource, amount: int) -> bool:
    """True if a subtree smaller than the whole has the quota, used or not by others."""
    for node in (queue, *queue.ancestors):
        if not node.exceeds(what, amount):
            return node.parent is not None
        amount -= node.local_available(what)
    return False


def _spec(queue: QuotaNode) -> ClusterQueue:
    assert isinstance(queue.spec, ClusterQueue)
    return queue.spec


# --------------------------------------------------------------------------------------------------------------------
# The candidates
# --------------------------------------------------------------------------------------------------------------------


class _Variant(IntEnum):
    """In which group a candidate is, in the order in which they are preempted."""

    HIERARCHICAL_RECLAIM = 0  # the preemptor is nearer to the quota that the candidate uses
    RECLAIM = 1  # by priority
    WITHIN_CLUSTER_QUEUE = 2


@dataclass(frozen=True)
class _Candidate:
    workload: WorkloadInfo
    variant: _Variant
    reason: PreemptionReason
    only_without_borrowing: bool = False
    outside: tuple[QuotaNode, ...] = ()  # its ClusterQueue and the cohorts that do not hold the preemptor

    def is_valid(self, needs: Collection[FlavorResource], may_borrow: bool) -> bool:
        """True if it may still be preempted: another queue, only while everything on the way to it still borrows."""
        if may_borrow and self.only_without_borrowing:
            return False
        return all(node.borrows(needs) for node in self.outside)


def _order(workload: WorkloadInfo, queue: str) -> tuple[bool, bool, int, float, str]:
    """Evicted ones, other queues', lower priorities, later admitted ones, lower names first."""
    same = workload.cluster_queue == queue
    return not workload.evicted, same, workload.priority, -workload.quota_reserved, workload.name


def _satisfies(policy: PreemptionPolicy, preemptor: WorkloadInfo, candidate: WorkloadInfo) -> bool:
    if policy == PreemptionPolicy.ANY:
        return True
    lower = preemptor.priority > candidate.priority
    newer = preemptor.priority == candidate.priority and preemptor.created < candidate.created
    if policy == PreemptionPolicy.LOWER_PRIORITY:
        return lower
    return policy == PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY and (lower or newer)


def _preemptible(
    state: KueueState, queue: QuotaNode, incoming: WorkloadInfo, needs: Collection[FlavorResource]
) -> Iterator[WorkloadInfo]:
    """Workloads of a ClusterQueue that use what is needed and that the preemptor's policy delivers."""
    own = _spec(state.queue(incoming))
    same = queue.spec.name == incoming.cluster_queue
    policy = own.within_cluster_queue if same else own.reclaim_within_cohort
    for workload in state.admitted[queue.spec.name].values():
        uses = any(what in needs for what in workload.requests)
        if uses and _satisfies(policy, incoming, workload):
            yield workload


def _candidates(state: KueueState, incoming: WorkloadInfo, needs: Collection[FlavorResource]) -> list[_Candidate]:
    queue = state.queue(incoming)
    found = [
        _Candidate(workload, _Variant.WITHIN_CLUSTER_QUEUE, PreemptionReason.IN_CLUSTER_QUEUE)
        for workload in _preemptible(state, queue, incoming, needs)
    ]
    if _spec(queue).reclaim_within_cohort != PreemptionPolicy.NEVER:
        # From the inside out: once a subtree around the preemptor has the quota, all that is further away must yield.
        advantage, rest = queue.split(incoming.requests)
        below: QuotaNode = queue
        for root in queue.ancestors:
            for path in _borrowers(root, below, needs):
                others = _preemptible(state, path[0], incoming, needs)
                found += [_from_cohort(queue, incoming, workload, path, advantage) for workload in others]
            fits, rest = root.split(rest)
            advantage, below = advantage or fits, root
    found.sort(key=lambda c: (not c.workload.evicted, c.variant, *_order(c.workload, incoming.cluster_queue)))
    return found


def _borrowers(
    cohort: QuotaNode, skip: QuotaNode, needs: Collection[FlavorResource]
) -> Iterator[tuple[QuotaNode, ...]]:
    """ClusterQueues below a cohort, except in `skip`, that borrow as does all between: (queue, ..., child)."""
    for child in cohort.cohorts:
        if child is not skip and child.borrows(needs):
            for path in _borrowers(child, skip, needs):
                yield (*path, child)
    for queue in cohort.cluster_queues:
        if queue is not skip and queue.borrows(needs):
            yield (queue,)


def _from_cohort(
    queue: QuotaNode,
    incoming: WorkloadInfo,
    workload: WorkloadInfo,
    path: tuple[QuotaNode, ...],
    advantage: bool,
) -> _Candidate:
    reclamation = PreemptionReason.IN_COHORT_RECLAMATION
    if advantage:
        return _Candidate(workload, _Variant.HIERARCHICAL_RECLAIM, reclamation, outside=path)
    borrow = _spec(queue).borrow_within_cohort
    if borrow is not None and workload.priority < incoming.priority:
        threshold = borrow.max_priority_threshold
        if threshold is None or workload.priority <= threshold:
            while_borrowing = PreemptionReason.IN_COHORT_RECLAIM_WHILE_BORROWING
            return _Candidate(workload, _Variant.RECLAIM, while_borrowing, outside=path)
    return _Candidate(workload, _Variant.RECLAIM, reclamation, True, path)


# --------------------------------------------------------------------------------------------------------------------
# The minimal set
# --------------------------------------------------------------------------------------------------------------------


def _classical(
    state: KueueState, incoming: WorkloadInfo, needs: Collection[FlavorResource], removed: list[Target]
) -> list[Target]:
    """`removed` holds what is out of the state at any moment."""
    candidates = _candidates(state, incoming, needs)
    for may_borrow in _attempts(state.queue(incoming), candidates, needs):
        for candidate in candidates:
            if not candidate.is_valid(needs, may_borrow):
                continue
            state.remove(candidate.workload)
            removed.append(Target(candidate.workload, candidate.reason))
            if state.fits(incoming, may_borrow):
                _give_back(state, removed, partial(state.fits, incoming, may_borrow))
                return list(removed)
        while removed:
            state.add(removed.pop().workload)
    return []


def _attempts(
    queue: QuotaNode, candidates: Sequence[_Candidate], needs: Collection[FlavorResource]
) -> tuple[bool, ...]:
    """With and without borrowing: what is tried, in which order. More candidates are legal for one that borrows not."""
    variants = {candidate.variant for candidate in candidates}
    never_borrows = _spec(queue).borrow_within_cohort is None
    under_nominal = all(queue.usage[what] < queue.quota(what).nominal for what in needs)
    if not variants - {_Variant.WITHIN_CLUSTER_QUEUE} or (never_borrows and not under_nominal):
        return (True,)
    if never_borrows and _Variant.HIERARCHICAL_RECLAIM not in variants:
        return (False, True)
    return (True, False)


def _give_back(state: KueueState, removed: list[Target], fits: Callable[[], bool]) -> None:
    """Return what is not needed after all, last removed first; the very last one is needed.

    The order of the others changes as Kueue's does: the last one moves to the place of one that is returned.
    """
    for at in range(len(removed) - 2, -1, -1):
        state.add(removed[at].workload)
        if fits():
            removed[at] = removed[-1]
            removed.pop()
        else:
            state.remove(removed[at].workload)


# --------------------------------------------------------------------------------------------------------------------
# Fair sharing
# --------------------------------------------------------------------------------------------------------------------


def _fair(
    state: KueueState,
    incoming: WorkloadInfo,
    needs: Collection[FlavorResource],
    strategies: Sequence[FairSharingStrategy],
    removed: list[Target],
) -> list[Target]:
    """All shares count the incoming workload as admitted."""
    queue = state.queue(incoming)
    candidates = list(_preemptible(state, queue, incoming, needs))
    if _spec(queue).reclaim_within_cohort != PreemptionPolicy.NEVER and queue.parent is not None:
        for other in state.queues.values():
            same_tree = other.parent is not None and _root(other) is _root(queue)
            if same_tree and other is not queue and other.borrows(needs):
                candidates += _preemptible(state, other, incoming, needs)
    candidates.sort(key=lambda workload: _order(workload, incoming.cluster_queue))

    def fits() -> bool:
        state.charge(incoming, -1)
        result = state.fits(incoming)
        state.charge(incoming)
        return result

    state.charge(incoming)
    rest: list[WorkloadInfo] = []
    done = _first_strategy(state, queue, candidates, needs, strategies[0], fits, removed, rest)
    if not done and len(strategies) > 1:
        done = _second_strategy(state, queue, rest, fits, removed)
    state.charge(incoming, -1)
    if not done:
        return []
    _give_back(state, removed, lambda: state.fits(incoming))
    return list(removed)


class _Tournament:
    """From which ClusterQueue to take next: down from the root, each time the child with the largest share."""

    def __init__(self, state: KueueState, preemptor: QuotaNode, candidates: Sequence[WorkloadInfo]) -> None:
        self._preemptor, self._ancestors = preemptor, list(preemptor.ancestors)
        self._pruned: set[QuotaNode] = set()
        self.left: dict[QuotaNode, list[WorkloadInfo]] = {queue: [] for queue in state.queues.values()}
        for workload in candidates:
            self.left[state.queue(workload)].append(workload)

    def __iter__(self) -> Iterator[QuotaNode]:
        if not self._ancestors:
            while self._preemptor not in self._pruned and self.left[self._preemptor]:
                yield self._preemptor
            return
        root = self._ancestors[-1]
        while root not in self._pruned:
            if (queue := self._next(root)) is not None:
                yield queue

    def drop(self, queue: QuotaNode) -> None:
        """Take nothing more from it."""
        self._pruned.add(queue)

    def shares(self, target: QuotaNode) -> tuple[tuple[bool, float], tuple[bool, float]]:
        """Shares of the preemptor and the target, each on the level right below their first common cohort."""
        common = next(node for node in target.ancestors if node in self._ancestors)
        return _child(common, self._preemptor).dominant_resource_share(), self.share(target)

    def share(self, target: QuotaNode) -> tuple[bool, float]:
        """The target's share on the level right below its first common cohort with the preemptor."""
        common = next(node for node in target.ancestors if node in self._ancestors)
        return _child(common, target).dominant_resource_share()

    def _next(self, cohort: QuotaNode) -> QuotaNode | None:
        queue, of_queue = None, _NO_SHARE
        for child in cohort.cluster_queues:
            if child in self._pruned:
                continue
            if not self.left[child] or (child is not self._preemptor and not child.is_borrowing()):
                self._pruned.add(child)
                continue
            share = child.dominant_resource_share()
            if share > of_queue or (queue is not None and share == of_queue and self._goes_before(child, queue)):
                queue, of_queue = child, share
        inner, of_inner = None, _NO_SHARE
        for child in cohort.cohorts:
            if child in self._pruned:
                continue
            share = child.dominant_resource_share()
            if child not in self._ancestors and not child.is_borrowing():
                self._pruned.add(child)
            elif share >= of_inner:
                inner, of_inner = child, share
        if inner is None and queue is None:
            self._pruned.add(cohort)
            return None
        return self._next(inner) if inner is not None and of_inner >= of_queue else queue

    def _goes_before(self, a: QuotaNode, b: QuotaNode) -> bool:
        first, second = (_order(self.left[queue][0], self._preemptor.spec.name) for queue in (a, b))
        return first < second


_NO_SHARE = (False, -1.0)


def _first_strategy(
    state: KueueState,
    queue: QuotaNode,
    candidates: Sequence[WorkloadInfo],
    needs: Collection[FlavorResource],
    strategy: FairSharingStrategy,
    fits: Callable[[], bool],
    removed: list[Target],
    rest: list[WorkloadInfo],
) -> bool:
    """Remove by the strategy until it fits; what the strategy spared goes to `rest`.

    A preemptor that stays within its nominal quota is entitled to it, whatever the shares.
    """
    tournament = _Tournament(state, queue, candidates)
    entitled = not queue.borrows(needs)
    for target in tournament:
        left = tournament.left[target]
        if target is queue or entitled:
            in_queue, reclaimed = PreemptionReason.IN_CLUSTER_QUEUE, PreemptionReason.IN_COHORT_RECLAMATION
            removed.append(Target(left.pop(0), in_queue if target is queue else reclaimed))
            state.remove(removed[-1].workload)
            if fits():
                return True
            continue
        own, before = tournament.shares(target)
        while left:
            workload = left.pop(0)
            state.charge(workload, -1)
            after = tournament.share(target)
            state.charge(workload)
            if own <= after if strategy == STRATEGIES[0] else own < before:
                removed.append(Target(workload, PreemptionReason.IN_COHORT_FAIR_SHARING))
                state.remove(workload)
                if fits():
                    return True
                break
            rest.append(workload)
    return False


def _second_strategy(
    state: KueueState,
    queue: QuotaNode,
    candidates: Sequence[WorkloadInfo],
    fits: Callable[[], bool],
    removed: list[Target],
) -> bool:
    """One workload of each ClusterQueue whose present share is above the preemptor's."""
    tournament = _Tournament(state, queue, candidates)
    for target in tournament:
        own, before = tournament.shares(target)
        workload = tournament.left[target].pop(0)
        if own < before:
            removed.append(Target(workload, PreemptionReason.IN_COHORT_FAIR_SHARING))
            state.remove(workload)
            if fits():
                return True
        tournament.drop(target)
    return False


def _root(node: QuotaNode) -> QuotaNode:
    return [node, *node.ancestors][-1]


def _child(common: QuotaNode, node: QuotaNode) -> QuotaNode:
    """The ancestor of `node`, or itself, that is a child of `common`."""
    return next(each for each in (node, *node.ancestors) if each.parent is common)
