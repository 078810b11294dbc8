"""The search: on which level, and in which of its domains, the pods go."""

from __future__ import annotations

from dataclasses import dataclass

from nvlenv.policies.kueue.demand import Demand
from nvlenv.policies.kueue.orders import Need, Profile, leader_to_front
from nvlenv.policies.kueue.rooms import Levels, Room


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
