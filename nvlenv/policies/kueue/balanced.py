"""Balanced placement: the same number of slices on every domain used, as far as possible (preferred requests only).

Kueue's `tas_balanced_placement.go`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nvlenv.policies.kueue.counting import AssignmentParameters, DomainState, Levels
from nvlenv.policies.kueue.search import Assigned, sorted_domains, sorted_with_leader


@dataclass(frozen=True)
class Greedy:
    """What a greedy run over some domains uses."""

    used: int  # domains
    threshold: int  # the most slices that every one of them can be given at least
    last: DomainState | None  # the last domain without a leader


@dataclass(frozen=True)
class Siblings:
    """Domains of the requested level under one parent, cut down to those that can take `threshold` slices."""

    threshold: int
    used: int  # domains a greedy run needs
    states: list[DomainState]


def balanced(levels: Levels, parameters: AssignmentParameters) -> tuple[int, list[Assigned]] | None:
    """The level of a balanced placement and what its domains are given; None if there is none."""
    parameters = replace(parameters, slice_size_at_level={})  # it does not know of inner slice layers
    best = _best_siblings(levels, parameters) if parameters.slice_count else None
    if best is None:
        return None
    level, states = parameters.level, best.states
    if level < parameters.slice_level:
        chosen = _optimal_set(sorted(states, key=_capacity_then_entropy), parameters)
        if chosen is None:
            return None
        level, states = level + 1, [child for state in chosen for child in state.children]
    assigned = _level_out(states, best.threshold, parameters)
    return None if assigned is None else (level, assigned)


def greedy(states: Sequence[DomainState], parameters: AssignmentParameters) -> Greedy | None:
    """Domains in order until all slices are covered, without a tight last pick; None if they never are."""
    left, used, last = parameters.slice_count, 0, None
    least = []  # what the domains at the end of either order hold
    if parameters.leader_count:
        host, *states = sorted_with_leader(states, parameters)
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


def _best_siblings(levels: Levels, parameters: AssignmentParameters) -> Siblings | None:
    """Those with the largest threshold, on ties those that need fewer domains, then the first by name."""
    groups = [parent.children for parent in levels[parameters.level - 1]] if parameters.level else [levels[0]]
    found = [_weigh(states, parameters) for states in groups]
    return max(filter(None, found), key=lambda siblings: (siblings.threshold, -siblings.used), default=None)


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
            return Siblings(threshold, fits.used, pruned)
    return None


def _prune(states: list[DomainState], threshold: int, parameters: AssignmentParameters) -> list[DomainState]:
    """Private copies of the domains in which neither they nor their children fall below the threshold."""
    copies = [state.copy() for state in states]
    for state in copies:
        for child in state.children:
            _drop_below(child, threshold)
        _recount(state, parameters.level, parameters)
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


def _recount(state: DomainState, level: int, parameters: AssignmentParameters) -> None:
    for child in state.children:
        _recount(child, level + 1, parameters)
    state.sum_up(level, parameters)


def _capacity_then_entropy(state: DomainState) -> tuple[int, int, float, int]:
    """Order by what fits, then by how evenly the pods lie among the children, then by name."""
    entropy = _entropy([child.pod_count for child in state.children])
    return -state.leader_count, -state.slice_count_with_leader, -entropy, state.domain.rank


def _entropy(counts: Sequence[int]) -> float:
    """In bits; summed so that the order of the counts does not matter."""
    total = sum(counts)
    return -math.fsum(count / total * math.log2(count / total) for count in counts if count > 0)


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
    for state in sorted_with_leader(chosen, parameters):
        more = min((state.slice_count_with_leader if leaders else state.slice_count) - threshold, extra)
        assigned.append(Assigned(state, (threshold + more) * parameters.slice_size, leaders))
        extra, leaders = extra - more, 0
    return assigned if extra == 0 else None
