"""Balanced placement: the same number of slices on every domain used, as far as possible (preferred requests only).

Kueue's `tas_balanced_placement.go`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nvlenv.policies.kueue.counting import AssignmentParameters, DomainState, Levels
from nvlenv.policies.kueue.search import Assigned, Profile


@dataclass(frozen=True)
class Greedy:
    """What a greedy run over some domains uses."""

    domains: int
    last_with_leader: DomainState | None  # the last domain that hosts a leader
    last: DomainState | None  # the last domain without one

    def threshold(self, slices: int) -> int:
        """The most slices that every domain used can be given at least."""
        bounds = [slices // self.domains]
        if self.last_with_leader is not None:
            bounds.append(self.last_with_leader.slice_count_with_leader)
        if self.last is not None:
            bounds.append(self.last.slice_count)
        return min(bounds)


@dataclass(frozen=True)
class Siblings:
    """Domains of the requested level under one parent, cut down to those that can take `threshold` slices."""

    threshold: int
    used: int  # domains a greedy run needs
    states: list[DomainState]


def balanced(levels: Levels, parameters: AssignmentParameters, profile: Profile) -> tuple[int, list[Assigned]] | None:
    """The level of a balanced placement and what its domains are given; None if there is none."""
    parameters = replace(parameters, slice_size_at_level={})  # it does not know of inner slice layers
    best = _best_siblings(levels, parameters, profile) if parameters.slice_count else None
    if best is None:
        return None
    level, states = parameters.level, best.states
    if level < parameters.slice_level:
        chosen = _optimal_set(sorted(states, key=_capacity_then_entropy), parameters, profile)
        if chosen is None:
            return None
        level, states = level + 1, [child for state in chosen for child in state.children]
    assigned = _level_out(states, best.threshold, parameters, profile)
    return None if assigned is None else (level, assigned)


def greedy(states: Sequence[DomainState], parameters: AssignmentParameters, profile: Profile) -> Greedy | None:
    """Domains in order until all slices are covered, without a tight last pick; None if they never are."""
    left, used = parameters.slice_count, 0
    last_with_leader = last = None
    if parameters.leader_count:
        last_with_leader, *states = profile.sorted_with_leader(states)
        if not last_with_leader.leader_count:
            return None
        left, used = left - last_with_leader.slice_count_with_leader, 1
    for state in profile.sorted(states):
        if left <= 0 or state.slice_count == 0:
            break
        left, used, last = left - state.slice_count, used + 1, state
    return Greedy(used, last_with_leader, last) if left <= 0 else None


def _best_siblings(levels: Levels, parameters: AssignmentParameters, profile: Profile) -> Siblings | None:
    """Those with the largest threshold, on ties those that need fewer domains, then the first by name."""
    groups = [parent.children for parent in levels[parameters.level - 1]] if parameters.level else [levels[0]]
    best: Siblings | None = None
    for states in groups:
        found = _weigh(states, 1 if best is None else best.threshold, parameters, profile)
        if found is not None and (best is None or (found.threshold, -found.used) > (best.threshold, -best.used)):
            best = found
    return best


def _weigh(
    states: list[DomainState], floor: int, parameters: AssignmentParameters, profile: Profile
) -> Siblings | None:
    """Siblings at their threshold, if that is not below `floor`.

    Where the leader is what breaks the fit, one lower threshold is tried, which leaves room for it in the last domain.
    """
    below_slices = parameters.level < parameters.slice_level
    lower = [child for state in states for child in state.children] if below_slices else states
    run = greedy(lower, parameters, profile)
    if run is None:
        return None
    thresholds = [run.threshold(parameters.slice_count)]
    if parameters.leader_count and run.last is not None:
        thresholds.append(min(thresholds[0], run.last.slice_count_with_leader))
    for threshold in dict.fromkeys(thresholds):
        if threshold < floor:
            break
        pruned = _prune(states, threshold, parameters)
        fits = greedy(pruned, parameters, profile)
        if fits is not None:
            return Siblings(threshold, fits.domains, pruned)
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


def _optimal_set(
    ordered: Sequence[DomainState], parameters: AssignmentParameters, profile: Profile
) -> list[DomainState] | None:
    """As few domains as a greedy run needs, with the least capacity to spare.

    Dynamic programming over the domains in the given order. It counts pods, not slices, as Kueue does. The first way to
    reach (domains picked, leaders left, pods left) is kept.
    """
    run = greedy(ordered, parameters, profile)
    if run is None:
        return None
    picked: list[dict[tuple[int, int], Chain]] = [{} for _ in range(run.domains + 1)]
    picked[0][parameters.leader_count, parameters.slice_count * parameters.slice_size] = None
    for state in ordered:
        for number in range(run.domains, 0, -1):
            for left in sorted(picked[number - 1]):
                for after in _after(left, state):
                    picked[number].setdefault(after, (state, picked[number - 1][left]))
    ends = [left for left in picked[run.domains] if left[0] == 0 and left[1] <= 0]
    if not ends:
        return None
    chain, states = picked[run.domains][max(ends)], []
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


def _level_out(
    states: list[DomainState], threshold: int, parameters: AssignmentParameters, profile: Profile
) -> list[Assigned] | None:
    """`threshold` slices for each domain of an optimal set; what is left over fills them up in leader order."""
    chosen = _optimal_set(sorted(states, key=lambda state: state.domain.rank), parameters, profile)
    if chosen is None:
        return None
    extra = parameters.slice_count - threshold * len(chosen)
    if extra < 0:
        return None
    leaders = parameters.leader_count
    assigned = []
    for state in profile.sorted_with_leader(chosen):
        more = min((state.slice_count_with_leader if leaders else state.slice_count) - threshold, extra)
        assigned.append(Assigned(state, (threshold + more) * parameters.slice_size, leaders))
        extra, leaders = extra - more, 0
    return assigned if extra == 0 else None
