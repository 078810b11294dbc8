"""The search: on which level, and in which of its domains, the pods go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from nvlenv.policies.kueue.counting import Levels, Room
from nvlenv.policies.kueue.request import Demand

# --------------------------------------------------------------------------------------------------------------------
# Orders of domains, and the two rules that bend them: the tight pick and the place of the leader.
# --------------------------------------------------------------------------------------------------------------------


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


# --------------------------------------------------------------------------------------------------------------------
# The descent: hand the pods of the selected domains down to the leaves.
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Share:
    room: Room
    pods: int
    leaders: int


def distribute(rooms: Sequence[Room], need: Need, unit: int, profile: Profile) -> list[Share]:
    """Fill the rooms in the given order; the last one may be swapped for a tighter one.

    unit: pods per slice. Empty if the rooms do not hold everything: the counts promised otherwise, and Kueue then goes
    on with nothing too.
    """
    rooms = leader_to_front(list(rooms), need)
    shares: list[Share] = []
    for index, room in enumerate(rooms):
        if profile.best_fit and need.met_by(room):
            room = profile.tightest(rooms[index:], need)
        if need.met_by(room):
            return [*shares, Share(room, need.slices * unit, need.leaders)]
        given = min(need.offer(room), need.slices)
        leaders = min(room.leaders, need.leaders)
        shares.append(Share(room, given * unit, leaders))
        need = Need(need.slices - given, need.leaders - leaders)
    return []


def descend(shares: list[Share], level: int, last: int, demand: Demand, profile: Profile, pooled: bool) -> list[Share]:
    """Shares on the leaves (level `last`) from shares on `level`.

    pooled: above the slice level the children of all selected rooms form one list, and what the parents were given is
    forgotten. From the slice level on, and if not pooled, every parent hands down exactly its own share.
    """
    while pooled and level < demand.slice_level:
        children = profile.plain([child for share in shares for child in share.room.children])
        shares = distribute(children, Need(demand.slices, demand.leaders), demand.slice_size, profile)
        level += 1
    while level < last:
        unit = demand.slice_size if level < demand.slice_level else demand.inner.get(level + 1, 1)
        shares = [
            below for share in shares if share.pods or share.leaders for below in _hand_down(share, unit, profile)
        ]
        level += 1
    return shares


def _hand_down(share: Share, unit: int, profile: Profile) -> list[Share]:
    """One parent's share among its own children, in slices of `unit` pods.

    The order is that of the counting phase: below the slice level no slices were counted there, so that the children
    with the fewest pods come first.
    """
    children = profile.plain(share.room.children)
    for child in children:
        child.cut(unit)
    return distribute(children, Need(share.pods // unit, share.leaders), unit, profile)


# --------------------------------------------------------------------------------------------------------------------
# The search: on which level, and in which of its domains, the pods go.
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Selection:
    level: int
    rooms: list[Room]


@dataclass(frozen=True)
class Shortfall:
    level: int  # where the search gave up
    fitting: int  # slices that would have fitted


def search(levels: Levels, demand: Demand, profile: Profile) -> Selection | Shortfall:
    """One domain of the requested level; for preferred, else one of a coarser level; else several where it ends."""
    level = demand.level
    need = Need(demand.slices, demand.leaders)
    while True:
        ordered = profile.leader_first(levels[level])
        room = _one_room(ordered, need, demand.required, profile)
        if room is not None:
            return Selection(level, [room])
        if demand.required:
            return Shortfall(level, ordered[0].slices)
        if level == 0 or demand.unconstrained:
            return _spread(level, ordered, need, profile)
        level -= 1


def _one_room(ordered: list[Room], need: Need, required: bool, profile: Profile) -> Room | None:
    """A room that holds everything.

    BestFit looks at the head alone, which offers most; but preferred nodes may put a small room there, and a required
    placement then looks further. LeastFreeCapacity takes the first room that holds everything.
    """
    for index, room in enumerate(ordered[:1] if profile.best_fit and not required else ordered):
        if need.met_by(room):
            return profile.tightest(ordered[index:], need) if profile.best_fit else room
    return None


def _spread(level: int, ordered: list[Room], need: Need, profile: Profile) -> Selection | Shortfall:
    """Rooms in order until the need is met: the leader's first, the last one as tight as possible.

    LeastFreeCapacity needs no exception: in its order the first room that meets the rest is the tightest.
    """
    chosen: list[Room] = []
    left = need.slices
    if need.leaders:
        ordered = leader_to_front(ordered, need)
        if not ordered[0].leaders:
            return Shortfall(level, 0)
        host = profile.tightest(ordered, need) if need.met_by(ordered[0]) else ordered[0]
        chosen.append(host)
        left -= host.slices_led
        ordered = profile.plain(ordered[1:])
    else:
        ordered = profile.plain(ordered)
    for index, room in enumerate(ordered):
        if left <= 0:
            break
        rest = Need(left, 0)
        chosen.append(profile.tightest(ordered[index:], rest) if rest.met_by(room) else room)
        left -= chosen[-1].slices
    return Selection(level, chosen) if left <= 0 else Shortfall(level, need.slices - left)
