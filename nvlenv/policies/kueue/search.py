"""The second half: on which level and in which of its domains the pods go, and from there down to the leaves.

Kueue's `findLevelWithFitDomains`, `updateCountsToMinimumGeneric` and `consumeWithLeadersGeneric`; and, for preferred
requests where its gate is on, balanced placement (`tas_balanced_placement.go`): the same number of slices on every
domain used, as far as possible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from nvlenv.policies.kueue.counting import AssignmentParameters, DomainState, Levels


@dataclass(frozen=True)
class Remaining:
    """What is still to be placed: some slices, and perhaps a leader."""

    slice_count: int
    leader_count: int

    def offer(self, state: DomainState) -> int:
        """How many slices the domain holds, beside the leader if there is one to place."""
        return state.slice_count_with_leader if self.leader_count else state.slice_count

    def fits(self, state: DomainState) -> bool:
        """Whether the domain holds all of it."""
        return self.offer(state) >= self.slice_count and state.leader_count >= self.leader_count


@dataclass(frozen=True)
class Assigned:
    """What one domain was given."""

    state: DomainState
    pod_count: int
    leader_count: int


@dataclass(frozen=True)
class Shortfall:
    """The search found no place."""

    level: int  # where it gave up
    fitting: int  # slices that would have fitted


def assign_to_leaves(levels: Levels, parameters: AssignmentParameters) -> list[Assigned] | Shortfall:
    """What the leaves are given, balanced if that is asked for and possible."""
    if parameters.gates.balanced_placement and not parameters.required and not parameters.unconstrained:
        even = balanced(levels, parameters)
        if even is not None:
            level, assigned = even
            return descend(assigned, level, len(levels) - 1, parameters, pooled=False)
    found = search(levels, parameters)
    if isinstance(found, Shortfall):
        return found
    level, states = found
    everything = Remaining(parameters.slice_count, parameters.leader_count)
    assigned = distribute(states, everything, parameters.slice_size, parameters)
    return descend(assigned, level, len(levels) - 1, parameters, pooled=True)


def sorted_domains(
    states: Sequence[DomainState], parameters: AssignmentParameters, with_leader: bool = False
) -> list[DomainState]:
    """In the order in which workers fill them: BestFit has most slices first, LeastFreeCapacity fewest.

    Both prefer fewer pods at equal slices, then names. Preferred nodes come before all that; without the gate for them
    all domains are equally preferred. For workers with their leader, domains that can host it come first of all.
    """
    sign = -1 if parameters.best_fit else 1

    def key(s: DomainState) -> tuple[int, int, int, int, int]:
        if with_leader:
            slices = sign * s.slice_count_with_leader
            return -s.leader_count, -s.affinity_score, slices, s.pod_count_with_leader, s.domain.rank
        return 0, -s.affinity_score, sign * s.slice_count, s.pod_count, s.domain.rank

    return sorted(states, key=key)


def _tightest(states: Sequence[DomainState], remaining: Remaining) -> DomainState:
    """The domain that fits with the least to spare, the first of equals; the head if none does.

    Affinity goes before tightness: only the domains as preferred as the head are looked at.
    """
    head = states[0]
    equals = takewhile(lambda state: state.affinity_score == head.affinity_score, states)
    return min(filter(remaining.fits, equals), key=remaining.offer, default=head)


def search(levels: Levels, parameters: AssignmentParameters) -> tuple[int, list[DomainState]] | Shortfall:
    """A level, and the domains of it to fill.

    One domain of the requested level; for preferred, else one of a coarser level; else several where it ends.
    """
    level, remaining = parameters.level, Remaining(parameters.slice_count, parameters.leader_count)
    while True:
        ordered = sorted_domains(levels[level], parameters, with_leader=True)
        state = _one_domain(ordered, remaining, parameters)
        if state is not None:
            return level, [state]
        if parameters.required:
            return Shortfall(level, ordered[0].slice_count)
        if level == 0 or parameters.unconstrained:
            return _several(level, ordered, remaining, parameters)
        level -= 1


def _one_domain(
    ordered: list[DomainState], remaining: Remaining, parameters: AssignmentParameters
) -> DomainState | None:
    """A domain that holds everything.

    BestFit looks at the head alone, which offers most; but preferred nodes may put a small domain there, and a required
    placement then looks further. LeastFreeCapacity takes the first domain that holds everything.
    """
    for index, state in enumerate(ordered[:1] if parameters.best_fit and not parameters.required else ordered):
        if remaining.fits(state):
            return _tightest(ordered[index:], remaining) if parameters.best_fit else state
    return None


def _several(
    level: int, ordered: list[DomainState], remaining: Remaining, parameters: AssignmentParameters
) -> tuple[int, list[DomainState]] | Shortfall:
    """Domains in order until nothing remains: the leader's first, the last one as tight as possible.

    LeastFreeCapacity needs no exception: in its order the first domain that fits the rest is the tightest.
    """
    chosen: list[DomainState] = []
    left = remaining.slice_count
    if remaining.leader_count:
        ordered = _leader_to_front(ordered, remaining)
        if not ordered[0].leader_count:
            return Shortfall(level, 0)
        chosen.append(_tightest(ordered, remaining) if remaining.fits(ordered[0]) else ordered[0])
        left -= chosen[0].slice_count_with_leader
        ordered = ordered[1:]
    ordered = sorted_domains(ordered, parameters)
    for index, state in enumerate(ordered):
        if left <= 0:
            break
        rest = Remaining(left, 0)
        chosen.append(_tightest(ordered[index:], rest) if rest.fits(state) else state)
        left -= chosen[-1].slice_count
    return (level, chosen) if left <= 0 else Shortfall(level, remaining.slice_count - left)


def _leader_to_front(states: list[DomainState], remaining: Remaining) -> list[DomainState]:
    """Move the first domain that can host the leader and still leaves the workers enough overall to the front."""
    if not remaining.leader_count:
        return states
    slack = sum(state.slice_count for state in states) - remaining.slice_count
    for index, state in enumerate(states):
        if state.leader_count and state.slice_count - state.slice_count_with_leader <= slack:
            return [state, *states[:index], *states[index + 1 :]]
    return states


def distribute(
    states: list[DomainState], remaining: Remaining, slice_size: int, parameters: AssignmentParameters
) -> list[Assigned]:
    """Fill the domains in the given order; the last one may be swapped for a tighter one.

    Empty if the domains do not hold everything: the counts promised otherwise, and Kueue then goes on with nothing too.
    """
    states = _leader_to_front(states, remaining)
    assigned: list[Assigned] = []
    for index, state in enumerate(states):
        if parameters.best_fit and remaining.fits(state):
            state = _tightest(states[index:], remaining)
        if remaining.fits(state):
            return [*assigned, Assigned(state, remaining.slice_count * slice_size, remaining.leader_count)]
        slices = min(remaining.offer(state), remaining.slice_count)
        leaders = min(state.leader_count, remaining.leader_count)
        assigned.append(Assigned(state, slices * slice_size, leaders))
        remaining = Remaining(remaining.slice_count - slices, remaining.leader_count - leaders)
    return []


def descend(
    assigned: list[Assigned], level: int, last: int, parameters: AssignmentParameters, pooled: bool
) -> list[Assigned]:
    """What the leaves (level `last`) are given, from what domains of `level` are.

    pooled: above the slice level the children of all selected domains form one list, and what the parents were given is
    forgotten. From the slice level on, and if not pooled, every parent hands down exactly its own share.
    """
    while pooled and level < parameters.slice_level:
        children = sorted_domains([child for above in assigned for child in above.state.children], parameters)
        everything = Remaining(parameters.slice_count, parameters.leader_count)
        assigned = distribute(children, everything, parameters.slice_size, parameters)
        level += 1
    while level < last:
        size = parameters.slice_size
        if level >= parameters.slice_level:
            size = parameters.slice_size_at_level.get(level + 1, 1)
        givers = [above for above in assigned if above.pod_count or above.leader_count]
        assigned = [below for above in givers for below in _hand_down(above, size, parameters)]
        level += 1
    return assigned


def _hand_down(above: Assigned, slice_size: int, parameters: AssignmentParameters) -> list[Assigned]:
    """What one parent was given among its own children, in slices of `slice_size` pods.

    The order is that of the counting: below the slice level no slices were counted there, so that the children with the
    fewest pods come first.
    """
    children = sorted_domains(above.state.children, parameters)
    for child in children:
        child.count_slices(slice_size)
    return distribute(children, Remaining(above.pod_count // slice_size, above.leader_count), slice_size, parameters)


# Balanced placement


def balanced(levels: Levels, parameters: AssignmentParameters) -> tuple[int, list[Assigned]] | None:
    """The level of a balanced placement and what its domains are given; None if there is none."""
    parameters = replace(parameters, slice_size_at_level={})  # it does not know of inner slice layers
    best = _best_siblings(levels, parameters) if parameters.slice_count else None
    if best is None:
        return None
    level, (threshold, _, states) = parameters.level, best
    if level < parameters.slice_level:
        chosen = _optimal_set(sorted(states, key=_capacity_then_entropy), parameters)
        if chosen is None:
            return None
        level, states = level + 1, [child for state in chosen for child in state.children]
    assigned = _level_out(states, threshold, parameters)
    return None if assigned is None else (level, assigned)


@dataclass(frozen=True)
class Greedy:
    """What a greedy run over some domains uses."""

    used: int  # domains
    threshold: int  # the most slices that every one of them can be given at least
    last: DomainState | None  # the last domain without a leader


def greedy(states: Sequence[DomainState], parameters: AssignmentParameters) -> Greedy | None:
    """Domains in order until all slices are covered, without a tight last pick; None if they never are."""
    left, used, last = parameters.slice_count, 0, None
    least = []  # what the domains at the end of either order hold
    if parameters.leader_count:
        host, *states = sorted_domains(states, parameters, with_leader=True)
        if not host.leader_count:
            return None
        left, used = left - host.slice_count_with_leader, 1
        least.append(host.slice_count_with_leader)
    for state in sorted_domains(states, parameters):
        if left <= 0 or state.slice_count == 0:
            break
        left, used, last = left - state.slice_count, used + 1, state
    if last is not None:
        least.append(last.slice_count)
    return Greedy(used, min(parameters.slice_count // used, *least), last) if left <= 0 else None


# Domains of the requested level under one parent: the slices that every one used is to take, minus the domains that a
# greedy run uses, and copies of them cut down to what can take so many slices.
Siblings = tuple[int, int, list[DomainState]]


def _best_siblings(levels: Levels, parameters: AssignmentParameters) -> Siblings | None:
    """Those with the largest threshold, on ties those that need fewer domains, then the first by name."""
    groups = [parent.children for parent in levels[parameters.level - 1]] if parameters.level else [levels[0]]
    found = [_weigh(states, parameters) for states in groups]
    return max(filter(None, found), key=lambda siblings: siblings[:2], default=None)


def _weigh(states: list[DomainState], parameters: AssignmentParameters) -> Siblings | None:
    """Siblings at their threshold, if that is at least 1.

    Where the leader is what breaks the fit, one lower threshold is tried, which leaves room for it in the last domain.
    """
    lower = states
    if parameters.level < parameters.slice_level:
        lower = [child for state in states for child in state.children]
    run = greedy(lower, parameters)
    if run is None:
        return None
    thresholds = [run.threshold]
    if parameters.leader_count and run.last is not None:
        thresholds.append(min(run.threshold, run.last.slice_count_with_leader))
    for threshold in dict.fromkeys(thresholds):
        if threshold < 1:
            break
        pruned = _prune(states, threshold, parameters)
        fits = greedy(pruned, parameters)
        if fits is not None:
            return threshold, -fits.used, pruned
    return None


def _prune(states: list[DomainState], threshold: int, parameters: AssignmentParameters) -> list[DomainState]:
    """Private copies of the domains in which neither they nor their children fall below the threshold."""
    copies = [state.copy() for state in states]
    for state in copies:
        for child in state.children:
            _drop_below(child, threshold)
        state.sum_up(parameters.level, parameters)
        _drop_below(state, threshold)
    return copies


def _drop_below(state: DomainState, threshold: int) -> None:
    if state.slice_count < threshold:
        _clear(state, leader_only=False)
    elif state.leader_count and state.slice_count_with_leader < threshold:
        _clear(state, leader_only=True)


def _clear(state: DomainState, leader_only: bool) -> None:
    """Nothing fits any more, or no leader, here and below."""
    state.pod_count_with_leader = state.slice_count_with_leader = state.leader_count = 0
    if not leader_only:
        state.pod_count = state.slice_count = 0
    for child in state.children:
        _clear(child, leader_only)


def _capacity_then_entropy(state: DomainState) -> tuple[int, int, float, int]:
    """Order by what fits, then by how evenly the pods lie among the children (entropy in bits), then by name."""
    total = sum(child.pod_count for child in state.children)
    shares = [child.pod_count / total for child in state.children if child.pod_count > 0]
    entropy = -math.fsum(share * math.log2(share) for share in shares)  # the order of the shares does not matter
    return -state.leader_count, -state.slice_count_with_leader, -entropy, state.domain.rank


Chain = tuple[DomainState, "Chain"] | None  # domains picked so far, the newest first


def _optimal_set(ordered: Sequence[DomainState], parameters: AssignmentParameters) -> list[DomainState] | None:
    """As few domains as a greedy run needs, with the least capacity to spare.

    Dynamic programming over the domains in the given order. It counts pods, not slices, as Kueue does. The first way to
    reach (domains picked, leaders left, pods left) is kept.
    """
    run = greedy(ordered, parameters)
    if run is None:
        return None
    picked: list[dict[tuple[int, int], Chain]] = [{} for _ in range(run.used + 1)]
    picked[0][parameters.leader_count, parameters.slice_count * parameters.slice_size] = None
    for state in ordered:
        for number in range(run.used, 0, -1):
            for left in sorted(picked[number - 1]):
                for after in _after(left, state):
                    picked[number].setdefault(after, (state, picked[number - 1][left]))
    ends = [left for left in picked[run.used] if left[0] == 0 and left[1] <= 0]
    if not ends:
        return None
    chain, states = picked[run.used][max(ends)], []
    while chain is not None:
        state, chain = chain
        states.append(state)
    return states


def _after(left: tuple[int, int], state: DomainState) -> list[tuple[int, int]]:
    """What is left once the domain is picked, with the leader or without; nothing if nothing was left to place."""
    leaders, pods = left
    if not leaders and pods <= 0:
        return []
    ways = []
    if leaders and state.leader_count:
        ways.append((leaders - 1, pods - state.pod_count_with_leader))
    if state.slice_count > 0:
        ways.append((leaders, pods - state.pod_count))
    return ways


def _level_out(states: list[DomainState], threshold: int, parameters: AssignmentParameters) -> list[Assigned] | None:
    """`threshold` slices for each domain of an optimal set; what is left over fills them up in leader order."""
    chosen = _optimal_set(sorted(states, key=lambda state: state.domain.rank), parameters)
    if chosen is None:
        return None
    extra = parameters.slice_count - threshold * len(chosen)
    if extra < 0:
        return None
    leaders = parameters.leader_count
    assigned = []
    for state in sorted_domains(chosen, parameters, with_leader=True):
        more = min((state.slice_count_with_leader if leaders else state.slice_count) - threshold, extra)
        assigned.append(Assigned(state, (threshold + more) * parameters.slice_size, leaders))
        extra, leaders = extra - more, 0
    return assigned if extra == 0 else None
