"""Orders of domains, and the two rules that bend them: the tight pick and the place of the leader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from nvlenv.policies.kueue.rooms import Room


@dataclass(frozen=True)
class Need:
    """What is still to be placed: some slices, and perhaps a leader."""

    slices: int
    leaders: int

    def offer(self, room: Room) -> int:
        """How many slices the room holds, beside the leader if there is one to place."""
        return room.slices_led if self.leaders else room.slices

    def met_by(self, room: Room) -> bool:
        return self.offer(room) >= self.slices and room.leaders >= self.leaders


@dataclass(frozen=True)
class Profile:
    """BestFit (most slices first, tight last pick) or LeastFreeCapacity (fewest first).

    Both prefer fewer pods at equal slices, then names. Preferred nodes come before all that; without the gate for them
    all rooms are equally preferred.
    """

    best_fit: bool

    def plain(self, rooms: Sequence[Room]) -> list[Room]:
        def key(room: Room) -> tuple[int, int, int, int]:
            return -room.affinity, self._rising(room.slices), room.pods, room.domain.rank

        return sorted(rooms, key=key)

    def leader_first(self, rooms: Sequence[Room]) -> list[Room]:
        def key(room: Room) -> tuple[int, int, int, int, int]:
            return -room.leaders, -room.affinity, self._rising(room.slices_led), room.pods_led, room.domain.rank

        return sorted(rooms, key=key)

    def tightest(self, rooms: Sequence[Room], need: Need) -> Room:
        """The room that meets the need with the least to spare, the first of equals; the head if none does.

        Affinity goes before tightness: only the rooms as preferred as the head are looked at.
        """
        head = rooms[0]
        equals = takewhile(lambda room: room.affinity == head.affinity, rooms)
        return min(filter(need.met_by, equals), key=need.offer, default=head)

    def _rising(self, slices: int) -> int:
        return -slices if self.best_fit else slices


def leader_to_front(rooms: list[Room], need: Need) -> list[Room]:
    """Move the first room that can host the leader and still leaves the workers enough room overall to the front."""
    if not need.leaders:
        return rooms
    slack = sum(room.slices for room in rooms) - need.slices
    for index, room in enumerate(rooms):
        if room.leaders and room.slices - room.slices_led <= slack:
            return [room, *rooms[:index], *rooms[index + 1 :]]
    return rooms
