"""ClusterQueues and Cohorts: who may use how much, and what is in use.

Kueue's tree of quotas: leaves are ClusterQueues, inner nodes Cohorts. A node lends what it does not use to its parent,
up to its lending limit, and borrows from it, up to its borrowing limit. Facts from `pkg/cache/scheduler/
resource_node.go` and `fair_sharing.go` of kubernetes-sigs/kueue at commit ff69552e.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from nvlenv.common.errors import InputError

FlavorResource = tuple[str, str]  # a resource in one flavor, e.g. ("gb200", "nvidia.com/gpu")
Amounts = Mapping[FlavorResource, int]


class PreemptionPolicy(StrEnum):
    """Which workloads may be preempted, compared with the one that preempts."""

    NEVER = "Never"
    ANY = "Any"  # for reclaimWithinCohort only
    LOWER_PRIORITY = "LowerPriority"
    LOWER_OR_NEWER_EQUAL_PRIORITY = "LowerOrNewerEqualPriority"


@dataclass(frozen=True)
class ResourceQuota:
    """The quota of one resource in one flavor. None: no limit."""

    nominal: int = 0
    borrowing_limit: int | None = None
    lending_limit: int | None = None


@dataclass(frozen=True)
class BorrowWithinCohort:
    """Lower priorities in the cohort may be preempted even if the preemptor borrows: those up to the threshold."""

    max_priority_threshold: int | None = None  # None: no threshold


@dataclass(frozen=True)
class ClusterQueue:
    """A ClusterQueue: its quotas and whom its workloads may preempt. Defaults are Kueue's."""

    name: str
    quotas: Mapping[FlavorResource, ResourceQuota]
    cohort: str | None = None
    within_cluster_queue: PreemptionPolicy = PreemptionPolicy.NEVER
    reclaim_within_cohort: PreemptionPolicy = PreemptionPolicy.NEVER
    borrow_within_cohort: BorrowWithinCohort | None = None  # None: Never
    fair_weight: float = 1.0


@dataclass(frozen=True)
class Cohort:
    """A Cohort with quotas or a parent of its own; one that is only named by its members needs no declaration."""

    name: str
    parent: str | None = None
    quotas: Mapping[FlavorResource, ResourceQuota] = field(default_factory=dict)
    fair_weight: float = 1.0


class QuotaNode:
    """A ClusterQueue or a Cohort in the tree, with what it and everything below it use."""

    def __init__(self, spec: ClusterQueue | Cohort) -> None:
        self.spec = spec
        self.parent: QuotaNode | None = None
        self.cohorts: list[QuotaNode] = []
        self.cluster_queues: list[QuotaNode] = []
        self.subtree_quota = Counter({what: quota.nominal for what, quota in spec.quotas.items()})
        self.usage: Counter[FlavorResource] = Counter()

    @property
    def ancestors(self) -> Iterator[QuotaNode]:
        """From the parent to the root."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    def quota(self, what: FlavorResource) -> ResourceQuota:
        """The node's own quota; zero where it has none."""
        return self.spec.quotas.get(what, _NO_QUOTA)

    def local_quota(self, what: FlavorResource) -> int:
        """The part of the subtree's quota that its lending limit keeps from everybody outside."""
        limit = self.quota(what).lending_limit
        return 0 if limit is None else max(0, self.subtree_quota[what] - limit)

    def local_available(self, what: FlavorResource) -> int:
        """What is unused of the local quota."""
        return max(0, self.local_quota(what) - self.usage[what])

    def available(self, what: FlavorResource) -> int:
        """What the node could use more, now, by borrowing too; negative if more is in use than there is."""
        quota, used = self.subtree_quota[what], self.usage[what]
        if self.parent is None:
            return quota - used
        from_parent, limit = self.parent.available(what), self.quota(what).borrowing_limit
        if limit is not None:
            local = self.local_quota(what)
            from_parent = min(quota - local - max(0, used - local) + limit, from_parent)
        return self.local_available(what) + from_parent

    def potential_available(self, what: FlavorResource) -> int:
        """The same if nothing were in use."""
        quota, limit = self.subtree_quota[what], self.quota(what).borrowing_limit
        if self.parent is None:
            return quota
        most = self.local_quota(what) + self.parent.potential_available(what)
        return most if limit is None else min(quota + limit, most)

    def exceeds(self, what: FlavorResource, more: int = 0) -> bool:
        """True if the usage, with so much more, is above the subtree's quota: the node borrows."""
        return self.usage[what] + more > self.subtree_quota[what]

    def borrows(self, resources: Collection[FlavorResource]) -> bool:
        """True if the node borrows some of the resources."""
        return any(self.exceeds(what) for what in resources)

    def split(self, requests: Amounts) -> tuple[bool, dict[FlavorResource, int]]:
        """Whether the requests fit under the subtree's quota, and what of them would be charged to the parent."""
        fits = not any(self.exceeds(what, amount) for what, amount in requests.items())
        return fits, {what: max(0, amount - self.local_available(what)) for what, amount in requests.items()}

    def add(self, what: FlavorResource, amount: int) -> None:
        """Charge usage here, and what exceeds the local quota to the parent."""
        beyond = amount - self.local_available(what)
        self.usage[what] += amount
        if self.parent is not None and beyond > 0:
            self.parent.add(what, beyond)

    def remove(self, what: FlavorResource, amount: int) -> None:
        """Undo `add`."""
        in_parent = self.usage[what] - self.local_quota(what)
        self.usage[what] -= amount
        if self.parent is not None and in_parent > 0:
            self.parent.remove(what, min(amount, in_parent))

    def dominant_resource_share(self) -> tuple[bool, float]:
        """How unfair the node's borrowing is, as a key to compare by; larger is less fair.

        The share is the largest, over resources, of what is borrowed per mille of what the parent could lend, divided
        by the fair weight. A borrower of weight zero is above all others. (False, 0.0): borrows nothing that counts.
        """
        if self.parent is None:
            return False, 0.0
        borrowed, lendable = Counter[str](), Counter[str]()
        for what, quota in self.subtree_quota.items():
            if (over := self.usage[what] - quota) > 0:
                borrowed[what[1]] += over
        root = [self.parent, *self.parent.ancestors][-1]
        for what in root.subtree_quota if borrowed else ():
            lendable[what[1]] += self.parent.potential_available(what)
        ratios = [over * 1000.0 / lendable[name] for name, over in borrowed.items() if lendable[name] > 0]
        ratio = max(ratios, default=0.0)
        if ratio == 0.0:
            return False, 0.0
        weight = self.spec.fair_weight
        return (True, ratio) if weight == 0 else (False, ratio / weight)

    def is_borrowing(self) -> bool:
        """True if the node borrows any resource for which it has a quota."""
        return self.borrows(self.subtree_quota)


class QuotaTree:
    """All ClusterQueues by name, linked through their Cohorts. Raises InputError for cohorts in a circle."""

    def __init__(self, cluster_queues: Sequence[ClusterQueue], cohorts: Sequence[Cohort] = ()) -> None:
        self._cohorts = {cohort.name: QuotaNode(cohort) for cohort in cohorts}
        for cohort in cohorts:
            if cohort.parent is not None:
                self._cohort(cohort.parent).cohorts.append(self._link(self._cohorts[cohort.name], cohort.parent))
        self.cluster_queues: dict[str, QuotaNode] = {}
        for queue in cluster_queues:
            node = self.cluster_queues[queue.name] = QuotaNode(queue)
            if queue.cohort is not None:
                self._cohort(queue.cohort).cluster_queues.append(self._link(node, queue.cohort))
        roots = [node for node in self._cohorts.values() if node.parent is None]
        if sum(_add_up(root) for root in roots) < len(self._cohorts):
            raise InputError("cohorts", "parent", "a circle", "cohorts that form trees")

    def _cohort(self, name: str) -> QuotaNode:
        if name not in self._cohorts:
            self._cohorts[name] = QuotaNode(Cohort(name))
        return self._cohorts[name]

    def _link(self, node: QuotaNode, parent: str) -> QuotaNode:
        node.parent = self._cohort(parent)
        return node


_NO_QUOTA = ResourceQuota()


def _add_up(cohort: QuotaNode) -> int:
    """Sum the quotas below a cohort, as far as they are lent; returns how many cohorts there are."""
    count = 1 + sum(_add_up(child) for child in cohort.cohorts)
    for child in (*cohort.cohorts, *cohort.cluster_queues):
        for what, quota in child.subtree_quota.items():
            cohort.subtree_quota[what] += quota - child.local_quota(what)
    return count
