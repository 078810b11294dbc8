"""The second half: on which level and in which of its domains the pods go, and from there down to the leaves.

Kueue's `findLevelWithFitDomains`, `updateCountsToMinimumGeneric` and `consumeWithLeadersGeneric`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


def sorted_domains(states: Sequence[DomainState], parameters: AssignmentParameters) -> list[DomainState]:
    """In the order in which workers fill them: BestFit has most slices first, LeastFreeCapacity fewest.

    Both prefer fewer pods at equal slices, then names. Preferred nodes come before all that; without the gate for them
    all domains are equally preferred.
    """
    sign = -1 if parameters.best_fit else 1
    return sorted(states, key=lambda s: (-s.affinity_score, sign * s.slice_count, s.pod_count, s.domain.rank))


def sorted_with_leader(states: Sequence[DomainState], parameters: AssignmentParameters) -> list[DomainState]:
    """The same order for a leader with its workers, domains that can host the leader first."""
    sign = -1 if parameters.best_fit else 1

    def key(s: DomainState) -> tuple[int, int, int, int, int]:
        slices = sign * s.slice_count_with_leader
        return -s.leader_count, -s.affinity_score, slices, s.pod_count_with_leader, s.domain.rank

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
        ordered = sorted_with_leader(levels[level], parameters)
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
        child.cut(slice_size)
    return distribute(children, Remaining(above.pod_count // slice_size, above.leader_count), slice_size, parameters)
