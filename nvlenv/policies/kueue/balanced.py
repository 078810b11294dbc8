"""Balanced placement: the same number of slices on every domain used, as far as possible (preferred requests only)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nvlenv.policies.kueue.counting import Levels, Room, sum_up
from nvlenv.policies.kueue.orders import Profile, Share
from nvlenv.policies.kueue.request import Demand


@dataclass(frozen=True)
class Greedy:
    """What a greedy run over some rooms uses."""

    rooms: int
    last_led: Room | None  # the last room that hosts a leader
    last: Room | None  # the last room without one

    def threshold(self, slices: int) -> int:
        """The most slices that every room used can be given at least."""
        bounds = [slices // self.rooms]
        if self.last_led is not None:
            bounds.append(self.last_led.slices_led)
        if self.last is not None:
            bounds.append(self.last.slices)
        return min(bounds)


@dataclass(frozen=True)
class Group:
    """Sibling rooms of the requested level, cut down to those that can take `threshold` slices."""

    threshold: int
    used: int  # rooms a greedy run needs
    rooms: list[Room]


def balanced(levels: Levels, demand: Demand, profile: Profile) -> tuple[int, list[Share]] | None:
    """Level and shares of a balanced placement, None if there is none."""
    demand = replace(demand, inner={})  # balanced placement does not know of inner slice layers
    group = _best_group(levels, demand, profile) if demand.slices else None
    if group is None:
        return None
    level, rooms = demand.level, group.rooms
    if level < demand.slice_level:
        chosen = _optimal_set(rooms, demand, profile, sorted(rooms, key=_capacity_then_entropy))
        if chosen is None:
            return None
        level, rooms = level + 1, [child for room in chosen for child in room.children]
    shares = _level_out(rooms, group.threshold, demand, profile)
    return None if shares is None else (level, shares)


def greedy(rooms: Sequence[Room], demand: Demand, profile: Profile) -> Greedy | None:
    """Rooms in order until all slices are covered, without a tight last pick; None if they never are."""
    left, used = demand.slices, 0
    last_led = last = None
    if demand.leaders:
        rooms = profile.leader_first(rooms)
        if not rooms[0].leaders:
            return None
        last_led, rooms = rooms[0], rooms[1:]
        left, used = left - last_led.slices_led, 1
    for room in profile.plain(rooms):
        if left <= 0 or room.slices == 0:
            break
        left, used, last = left - room.slices, used + 1, room
    return Greedy(used, last_led, last) if left <= 0 else None


def _best_group(levels: Levels, demand: Demand, profile: Profile) -> Group | None:
    """The group with the largest threshold, on ties the one that needs fewer rooms, then the first by name."""
    groups = [levels[0]] if demand.level == 0 else [parent.children for parent in levels[demand.level - 1]]
    best: Group | None = None
    for rooms in groups:
        group = _weigh(rooms, 1 if best is None else best.threshold, demand, profile)
        if group is not None and (best is None or (group.threshold, -group.used) > (best.threshold, -best.used)):
            best = group
    return best


def _weigh(rooms: list[Room], floor: int, demand: Demand, profile: Profile) -> Group | None:
    """The group at its threshold, if that is not below `floor`.

    Where the leader is what breaks the fit, one lower threshold is tried, which leaves room for it in the last room.
    """
    lower = [child for room in rooms for child in room.children] if demand.level < demand.slice_level else rooms
    run = greedy(lower, demand, profile)
    if run is None:
        return None
    thresholds = [run.threshold(demand.slices)]
    if demand.leaders and run.last is not None:
        thresholds.append(min(thresholds[0], run.last.slices_led))
    for threshold in dict.fromkeys(thresholds):
        if threshold < floor:
            break
        trimmed = _trim(rooms, threshold, demand)
        fits = greedy(trimmed, demand, profile)
        if fits is not None:
            return Group(threshold, fits.rooms, trimmed)
    return None


def _trim(rooms: list[Room], threshold: int, demand: Demand) -> list[Room]:
    """Private copies of the rooms in which neither they nor their children fall below the threshold."""
    copies = [room.copy() for room in rooms]
    for room in copies:
        for child in room.children:
            _drop_below(child, threshold)
        _recount(room, demand.level, demand)
        _drop_below(room, threshold)
    return copies


def _drop_below(room: Room, threshold: int) -> None:
    if room.slices < threshold:
        _clear(room)
    elif room.leaders and room.slices_led < threshold:
        _close_to_leaders(room)


def _clear(room: Room) -> None:
    room.pods = room.slices = room.pods_led = room.slices_led = room.leaders = 0
    for child in room.children:
        _clear(child)


def _close_to_leaders(room: Room) -> None:
    room.pods_led = room.slices_led = room.leaders = 0
    for child in room.children:
        _close_to_leaders(child)


def _recount(room: Room, level: int, demand: Demand) -> None:
    for child in room.children:
        _recount(child, level + 1, demand)
    sum_up(room, level, demand)


def _capacity_then_entropy(room: Room) -> tuple[int, int, float, int]:
    """Order by what fits, then by how evenly the pods lie among the children, then by name."""
    return -room.leaders, -room.slices_led, -_entropy([child.pods for child in room.children]), room.domain.rank


def _entropy(counts: Sequence[int]) -> float:
    """In bits; summed so that the order of the counts does not matter."""
    total = sum(counts)
    return -math.fsum(count / total * math.log2(count / total) for count in counts if count > 0)


Chain = tuple[Room, "Chain"] | None
"""Rooms picked so far, the newest first."""


def _optimal_set(rooms: Sequence[Room], demand: Demand, profile: Profile, ordered: Sequence[Room]) -> list[Room] | None:
    """As few rooms as a greedy run needs, with the least capacity to spare.

    Dynamic programming over the rooms in the given order. It counts pods, not slices, as Kueue does. The first way to
    reach a state (rooms picked, leaders left, pods left) is kept.
    """
    run = greedy(rooms, demand, profile)
    if run is None:
        return None
    picked: list[dict[tuple[int, int], Chain]] = [{} for _ in range(run.rooms + 1)]
    picked[0][demand.leaders, demand.slices * demand.slice_size] = None
    for room in ordered:
        for number in range(run.rooms, 0, -1):
            for state in sorted(picked[number - 1]):
                for after in _after(state, room):
                    picked[number].setdefault(after, (room, picked[number - 1][state]))
    ends = [state for state in picked[run.rooms] if state[0] == 0 and state[1] <= 0]
    return _unroll(picked[run.rooms][max(ends)]) if ends else None


def _after(state: tuple[int, int], room: Room) -> list[tuple[int, int]]:
    """States reached by picking the room, with the leader or without; none if nothing is left to place."""
    leaders, pods = state
    if not leaders and pods <= 0:
        return []
    states = []
    if leaders and room.leaders:
        states.append((leaders - 1, pods - room.pods_led))
    if room.slices > 0:
        states.append((leaders, pods - room.pods))
    return states


def _unroll(chain: Chain) -> list[Room]:
    rooms: list[Room] = []
    while chain is not None:
        room, chain = chain
        rooms.append(room)
    return rooms


def _level_out(rooms: list[Room], threshold: int, demand: Demand, profile: Profile) -> list[Share] | None:
    """`threshold` slices for each room of an optimal set; what is left over fills them up in leader order."""
    chosen = _optimal_set(rooms, demand, profile, sorted(rooms, key=lambda room: room.domain.rank))
    if chosen is None:
        return None
    extra = demand.slices - threshold * len(chosen)
    if extra < 0:
        return None
    leaders = demand.leaders
    shares = []
    for room in profile.leader_first(chosen):
        more = min((room.slices_led if leaders else room.slices) - threshold, extra)
        shares.append(Share(room, (threshold + more) * demand.slice_size, leaders))
        extra, leaders = extra - more, 0
    return shares if extra == 0 else None
