"""The descent: hand the pods of the selected domains down to the leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nvlenv.policies.kueue.demand import Demand
from nvlenv.policies.kueue.orders import Need, Profile, leader_to_front
from nvlenv.policies.kueue.rooms import Room


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
