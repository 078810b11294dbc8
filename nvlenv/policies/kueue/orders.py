"""Orders of domains, and the two rules that bend them: the tight pick and the place of the leader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from nvlenv.policies.kueue.rooms import Room


@dataclass(frozen=True)
class Need:
    """What is still to be placed: `amount` slices or single pods, and perhaps a leader."""

    amount: int
    leaders: int
    in_slices: bool = True

    def offer(self, room: Room) -> int:
        """What the room holds of the kind that is needed."""
        if self.in_slices:
            return room.slices_led if self.leaders else room.slices
        return room.pods_led if self.leaders else room.pods

    def met_by(self, room: Room) -> bool:
        return self.offer(room) >= self.amount and room.leaders >= self.leaders


@dataclass(frozen=True)
class Profile:
    """BestFit (most slices first, tight last pick) or LeastFreeCapacity (fewest first).

    Both prefer fewer pods at equal slices, then names. With `by_affinity`, preferred nodes come before all that.
    """

    best_fit: bool
    by_affinity: bool

    def plain(self, rooms: Sequence[Room]) -> list[Room]:
        sign = -1 if self.best_fit else 1
        if self.by_affinity:
            return sorted(rooms, key=lambda r: (-r.affinity, sign * r.slices, r.pods, r.domain.rank))
        return sorted(rooms, key=lambda r: (sign * r.slices, r.pods, r.domain.rank))

    def leader_first(self, rooms: Sequence[Room]) -> list[Room]:
        sign = -1 if self.best_fit else 1
        by_room = [(r.leaders, r.affinity if self.by_affinity else 0, r) for r in rooms]
        ordered = sorted(by_room, key=lambda e: (-e[0], -e[1], sign * e[2].slices_led, e[2].pods_led, e[2].domain.rank))
        return [room for _, _, room in ordered]

    def tightest(self, rooms: Sequence[Room], need: Need) -> Room:
        """The room that meets the need with the least to spare, the first of equals; the head if none does.

        Affinity goes before tightness: only the rooms as preferred as the head are looked at.
        """
        head = rooms[0]
        if self.by_affinity:
            rooms = list(takewhile(lambda room: room.affinity == head.affinity, rooms))
        return min(filter(need.met_by, rooms), key=need.offer, default=head)


def leader_to_front(rooms: list[Room], need: Need) -> list[Room]:
    """Move the first room that can host the leader and still leaves the workers enough room overall to the front."""
    if not need.leaders or len(rooms) < 2:
        return rooms
    alone = Need(need.amount, 0, need.in_slices)
    slack = sum(map(alone.offer, rooms)) - need.amount
    for index, room in enumerate(rooms):
        if room.leaders and alone.offer(room) - need.offer(room) <= slack:
            return [room, *rooms[:index], *rooms[index + 1 :]]
    return rooms
