"""Counting: how many pods and slices fit in every domain, from the leaves upward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from nvlenv.policies.kueue.request import Demand
from nvlenv.policies.kueue.topology import Domain, Tree, obstacle, preference
from nvlenv.policies.kueue.types import PODS, Path, PodSet, Resources, Toleration

MAX_COUNT = 0x7FFFFFFF  # pods of one domain are 32-bit numbers

Request = tuple[tuple[str, int], ...]  # resources of one pod, by name
Levels = list[list["Room"]]  # rooms of every level, in the order of the tree's domains


class Room:
    """What fits in one domain.

    `pods` and `slices` are for workers alone; the `_led` pair is what is left for them once the leader sits somewhere
    inside (the same without a leader). Slices are 0 below the slice level.
    """

    __slots__ = ("affinity", "children", "domain", "leaders", "pods", "pods_led", "slices", "slices_led")

    def __init__(self, domain: Domain, children: list[Room]) -> None:
        self.domain = domain
        self.children = children
        self.pods = self.pods_led = self.slices = self.slices_led = 0
        self.leaders = 0  # 1 if a leader pod fits
        self.affinity = 0  # weights of the preferred affinity terms met by the nodes inside

    def copy(self) -> Room:
        """A private copy of the whole subtree."""
        twin = Room(self.domain, [child.copy() for child in self.children])
        twin.pods, twin.pods_led = self.pods, self.pods_led
        twin.slices, twin.slices_led = self.slices, self.slices_led
        twin.leaders, twin.affinity = self.leaders, self.affinity
        return twin

    def cut(self, size: int) -> None:
        """Count slices of `size` pods anew."""
        self.slices, self.slices_led = self.pods // size, self.pods_led // size

    def total(self, inner_size: int, leaders: int) -> None:
        """Sum up the children, who take pods in multiples of `inner_size`.

        The leader goes where it costs the workers least: the smallest loss among the children that can host it.
        """
        self.pods = self.pods_led = self.slices = self.slices_led = self.leaders = self.affinity = 0
        pod_losses, slice_losses = [], []
        for child in self.children:
            pods = child.pods - child.pods % inner_size
            self.pods += pods
            self.slices += child.slices
            self.leaders = max(self.leaders, child.leaders)
            self.affinity += child.affinity
            if child.leaders >= leaders:
                pod_losses.append(pods - (child.pods_led - child.pods_led % inner_size))
                slice_losses.append(child.slices - child.slices_led)
        if pod_losses:
            self.pods_led = self.pods - min(pod_losses)
            self.slices_led = self.slices - min(slice_losses)


class Exclusions:
    """Why leaves take no pod, for failure messages."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.reasons: Counter[str] = Counter()

    def tail(self) -> str:
        if not self.reasons:
            return ""
        items = sorted(f"{reason}: {count}" for reason, count in self.reasons.items())
        return f". Total nodes: {self.total}; excluded: {', '.join(items)}"


def one_pod(podset: PodSet) -> Request:
    """What one pod takes. `pods` itself counts like any other resource, one per pod."""
    taken = Counter(podset.requests)
    taken[PODS] += 1
    return tuple(sorted(taken.items()))


def fit(request: Request, free: Resources) -> tuple[int, str]:
    """How many pods fit, and the resource that says so (the first by name on ties)."""
    count, limit = MAX_COUNT, ""
    for name, quantity in request:
        if quantity > 0:
            room = max(free.get(name, 0) // quantity, 0)
            if room < count:
                count, limit = room, name
    return count, limit


def count_rooms(
    tree: Tree,
    free: Sequence[Resources],
    demand: Demand,
    tolerations: Sequence[Toleration],
    respect_affinity: bool,
    within: Path = (),
) -> tuple[Levels, Exclusions]:
    """Rooms of all levels. free: resources left on each leaf, by rank; within: the domain to stay in."""
    exclusions = Exclusions(len(tree.leaves))
    leaves = [Room(leaf, []) for leaf in tree.leaves]
    request = one_pod(demand.workers)
    leader_request = None if demand.leader is None else one_pod(demand.leader)
    for room in leaves:
        reason = _closed(room.domain, tree, demand.workers, tolerations)
        if reason is not None:
            exclusions.reasons[reason] += 1
            continue
        if respect_affinity and tree.by_host:
            room.affinity = preference(room.domain.nodes[0], demand.workers.affinity)
        if not room.domain.under(within):
            exclusions.reasons["topologyDomain"] += 1
            continue
        limit = _fill(room, free[room.domain.rank], request, leader_request)
        if room.pods == 0:
            exclusions.reasons[f'resource "{limit}"'] += 1
    return _pile_up(tree, leaves, demand), exclusions


def sum_up(room: Room, level: int, demand: Demand) -> None:
    """Set the counts of a room from those of its children; a leaf only counts its slices."""
    if room.children:
        room.total(demand.inner.get(level + 1, 1), demand.leaders)
    if level == demand.slice_level:
        room.cut(demand.slice_size)


def _closed(leaf: Domain, tree: Tree, workers: PodSet, tolerations: Sequence[Toleration]) -> str | None:
    """Why no worker may run on the leaf. Only hosts are asked, and only for the workers, even in a group."""
    if not tree.by_host:
        return None
    return obstacle(leaf.nodes[0], workers.node_selector, tolerations, workers.affinity)


def _fill(room: Room, free: Resources, request: Request, leader: Request | None) -> str:
    """Count the pods of a leaf; returns the resource that limits them."""
    room.pods, limit = fit(request, free)
    room.pods_led = room.pods
    if leader is not None and fit(leader, free)[0] > 0:
        room.leaders = 1
        taken = dict(leader)
        room.pods_led = fit(request, {name: left - taken.get(name, 0) for name, left in free.items()})[0]
    return limit


def _pile_up(tree: Tree, leaves: list[Room], demand: Demand) -> Levels:
    """The rooms of the upper levels on top of the leaves."""
    levels = [leaves]
    for domains in reversed(tree.domains[:-1]):
        below = levels[0]
        levels.insert(0, [Room(domain, [below[child.rank] for child in domain.children]) for domain in domains])
    for level in range(tree.last, -1, -1):
        for room in levels[level]:
            sum_up(room, level, demand)
    return levels
