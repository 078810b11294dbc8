"""The first half: what a pod set asks of the topology, and how many of its pods and slices fit in every domain.

Kueue's `topologyAssignmentParameters` and `fillInCounts`; counts go from the leaves upward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from nvlenv.policies.kueue.topology import Domain, TopologyTree, affinity_score, obstacle
from nvlenv.policies.kueue.types import (
    PODS,
    Failure,
    Gates,
    Layer,
    Path,
    PodSetRequest,
    Resources,
    Toleration,
    TopologyMode,
    TopologyRequest,
)

MAX_COUNT = 0x7FFFFFFF  # pods of one domain are 32-bit numbers


@dataclass(frozen=True)
class AssignmentParameters:
    """`count` worker pods, perhaps with one leader pod, to be placed in slices of `slice_size` pods."""

    workers: PodSetRequest
    leader: PodSetRequest | None
    gates: Gates
    level: int  # where the search starts; levels are counted from the coarsest, 0
    required: bool
    unconstrained: bool
    slice_level: int
    slice_size: int
    layers: tuple[Layer, ...] = ()  # all slice layers, if there is more than one
    slice_size_at_level: dict[int, int] = field(default_factory=dict)  # pods that come together below the slice level

    @property
    def best_fit(self) -> bool:
        """Fill the largest domains first and the last one tightly; else (LeastFreeCapacity) the fullest first."""
        return not (self.unconstrained and self.gates.mixed_profile)

    @property
    def slice_count(self) -> int:
        """Whole slices only: a remainder of the workers is dropped, as in Kueue."""
        return self.workers.count // self.slice_size

    @property
    def leader_count(self) -> int:
        """1 with a leader, else 0."""
        return 0 if self.leader is None else 1

    @classmethod
    def of(
        cls, levels: Sequence[str], workers: PodSetRequest, leader: PodSetRequest | None, gates: Gates
    ) -> AssignmentParameters | Failure:
        """What the workers' request means on these levels; the leader's own request is not looked at."""
        request = workers.topology
        layers = request.slices if gates.multi_layer else request.slices[:1]
        outer, *inner = layers or (Layer(levels[-1], 1),)  # without slices, every pod is one of its own
        if any(layer.size <= 0 for layer in layers):
            return Failure("slice topology requested, but slice size not provided")
        key = _requested_level(request, levels)
        if key is None:
            return Failure("topology level not specified")
        if key not in levels:
            return Failure(f"no requested topology level: {key}")
        if outer.level not in levels:
            return Failure(f"no requested topology level for slices: {outer.level}")
        if levels.index(outer.level) < levels.index(key):
            return Failure(f"podset slice topology {outer.level} is above the podset topology {key}")
        sizes = _inner_sizes(outer, inner, levels)
        if isinstance(sizes, Failure):
            return sizes
        return cls(
            workers,
            leader,
            gates,
            level=levels.index(key),
            required=request.mode == TopologyMode.REQUIRED,
            unconstrained=request.mode not in (TopologyMode.REQUIRED, TopologyMode.PREFERRED),
            slice_level=levels.index(outer.level),
            slice_size=outer.size,
            layers=layers if inner else (),
            slice_size_at_level=sizes,
        )


def _requested_level(request: TopologyRequest, levels: Sequence[str]) -> str | None:
    if request.mode in (TopologyMode.REQUIRED, TopologyMode.PREFERRED):
        return request.level
    if request.slices:
        return levels[0]
    return levels[-1] if request.mode in (TopologyMode.UNCONSTRAINED, TopologyMode.IMPLIED) else None


def _inner_sizes(outer: Layer, inner: Sequence[Layer], levels: Sequence[str]) -> dict[int, int] | Failure:
    """Pods that come together on each level below the slice level; a layer also rules the levels above it."""
    sizes: dict[int, int] = {}
    for layer in inner:
        if layer.level not in levels:
            return Failure(f"no requested topology level for additional slice layer: {layer.level}")
        above, level = levels.index(outer.level), levels.index(layer.level)
        if level <= above:
            return Failure(f"additional slice layer topology {layer.level} must be at a lower level than {outer.level}")
        if outer.size % layer.size != 0:
            return Failure(
                f"additional slice layer size {layer.size} must evenly divide parent layer size {outer.size}"
            )
        sizes.update(dict.fromkeys(range(above + 1, level + 1), layer.size))
        outer = layer
    return sizes


@dataclass(eq=False, slots=True)
class DomainState:
    """What fits in one domain.

    `pod_count` and `slice_count` are for workers alone; the `_with_leader` pair is what is left for them once the
    leader sits somewhere inside (the same without a leader). Slices are 0 below the slice level.
    """

    domain: Domain
    children: list[DomainState] = field(default_factory=list)
    pod_count: int = 0
    pod_count_with_leader: int = 0
    slice_count: int = 0
    slice_count_with_leader: int = 0
    leader_count: int = 0  # 1 if a leader pod fits
    affinity_score: int = 0  # weights of the preferred affinity terms met by the nodes inside

    def copy(self) -> DomainState:
        """A private copy of the whole subtree."""
        return replace(self, children=[child.copy() for child in self.children])

    def count_slices(self, slice_size: int) -> None:
        """Cut the pods into slices of `slice_size`."""
        self.slice_count = self.pod_count // slice_size
        self.slice_count_with_leader = self.pod_count_with_leader // slice_size

    def sum_up(self, level: int, parameters: AssignmentParameters) -> None:
        """Set the counts of the subtree, which begins on `level`, from those of the leaves; these only count slices."""
        for child in self.children:
            child.sum_up(level + 1, parameters)
        if self.children:
            self._sum_children(parameters.slice_size_at_level.get(level + 1, 1), parameters.leader_count)
        if level == parameters.slice_level:
            self.count_slices(parameters.slice_size)

    def _sum_children(self, multiple: int, leader_count: int) -> None:
        """Children take pods in multiples; the leader goes to that child that can host it where workers lose least."""
        pods = [child.pod_count - child.pod_count % multiple for child in self.children]
        self.pod_count, self.slice_count = sum(pods), sum(child.slice_count for child in self.children)
        self.leader_count = max(child.leader_count for child in self.children)
        self.affinity_score = sum(child.affinity_score for child in self.children)
        self.pod_count_with_leader = self.slice_count_with_leader = 0
        hosts = [(child, n) for child, n in zip(self.children, pods, strict=True) if child.leader_count >= leader_count]
        if hosts:
            lost = min(n - c.pod_count_with_leader + c.pod_count_with_leader % multiple for c, n in hosts)
            self.pod_count_with_leader = self.pod_count - lost
            lost = min(child.slice_count - child.slice_count_with_leader for child, _ in hosts)
            self.slice_count_with_leader = self.slice_count - lost


Levels = list[list[DomainState]]  # of every level, in the order of the tree's domains


def one_pod(requests: Resources) -> list[tuple[str, int]]:
    """What one pod takes, by name. `pods` itself counts like any other resource, one per pod."""
    taken = Counter(requests)
    taken[PODS] += 1
    return sorted(taken.items())


def count_in(request: Sequence[tuple[str, int]], free: Resources) -> tuple[int, str]:
    """How many pods fit, and the resource that says so (the first by name on ties)."""
    count, limit = MAX_COUNT, ""
    for name, quantity in request:
        if quantity > 0 and (fitting := max(free.get(name, 0) // quantity, 0)) < count:
            count, limit = fitting, name
    return count, limit


def less(free: Resources, requests: Resources, pods: int = 1) -> Resources:
    """What `pods` pods leave; they take one unit of `pods` each, besides what they request."""
    left = Counter(free)
    left.subtract({name: quantity * pods for name, quantity in one_pod(requests)})
    return left


def fill_in_counts(
    tree: TopologyTree,
    free: Sequence[Resources],
    parameters: AssignmentParameters,
    tolerations: Sequence[Toleration],
    within: Path = (),
) -> tuple[Levels, str]:
    """The states of all levels, and why leaves take no pod, as failure messages end ("" if all take some).

    free: resources left on each leaf, by rank; within: the domain to stay in. Only hosts are asked for taints,
    selectors and affinity, and only for the workers, even in a group.
    """
    workers, leader = parameters.workers, parameters.leader
    request, leader_request = one_pod(workers.requests), one_pod(leader.requests) if leader is not None else ()
    reasons: Counter[str] = Counter()
    leaves = [DomainState(leaf) for leaf in tree.leaves]
    for state, left in zip(leaves, free, strict=True):
        if tree.by_host:
            node = state.domain.nodes[0]
            reason = obstacle(node, workers.node_selector, tolerations, workers.affinity)
            if reason is not None:
                reasons[reason] += 1
                continue
            if parameters.gates.respect_preferred_affinity:
                state.affinity_score = affinity_score(node, workers.affinity)
        if state.domain.path[: len(within)] != within:
            reasons["topologyDomain"] += 1
            continue
        state.pod_count, limit = count_in(request, left)
        state.pod_count_with_leader = state.pod_count
        if leader is not None and count_in(leader_request, left)[0] > 0:
            state.leader_count = 1
            state.pod_count_with_leader = count_in(request, less(left, leader.requests))[0]
        if state.pod_count == 0:
            reasons[f'resource "{limit}"'] += 1
    levels = [leaves]
    for domains in reversed(tree.domains[:-1]):
        below = levels[0]
        levels.insert(0, [DomainState(domain, [below[child.rank] for child in domain.children]) for domain in domains])
    for state in levels[0]:
        state.sum_up(0, parameters)
    items = sorted(f"{reason}: {count}" for reason, count in reasons.items())
    return levels, f". Total nodes: {len(leaves)}; excluded: {', '.join(items)}" if items else ""
