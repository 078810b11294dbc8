"""One placement: a pod set, or a leader and its workers, into what is free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nvlenv.policies.kueue.balanced import balanced
from nvlenv.policies.kueue.counting import Exclusions, Levels, Room, count_rooms
from nvlenv.policies.kueue.orders import Need, Profile, Share, Shortfall, descend, distribute, search
from nvlenv.policies.kueue.request import Demand, understand
from nvlenv.policies.kueue.topology import Tree
from nvlenv.policies.kueue.types import Assignment, Failure, Gates, Layer, Path, PodSet, Resources, Toleration


@dataclass(frozen=True)
class Ground:
    """What a placement stands on: the domains, what is left on each leaf (by rank), and the flavor's settings."""

    tree: Tree
    free: list[Resources]
    topology: str
    tolerations: tuple[Toleration, ...]
    gates: Gates


def place(
    ground: Ground, workers: PodSet, leader: PodSet | None = None, within: Path = ()
) -> dict[str, Assignment] | Failure:
    """Assignments by pod set. within: path of the domain in which the pods must stay."""
    demand = understand(ground.tree.levels, workers, leader, ground.gates)
    if isinstance(demand, Failure):
        return demand
    if not ground.tree.leaves:
        return Failure(f"no topology domains at level: {ground.tree.levels[demand.level]}")
    tolerations = (*workers.tolerations, *ground.tolerations)
    respect_affinity = ground.gates.respect_preferred_affinity
    levels, exclusions = count_rooms(ground.tree, ground.free, demand, tolerations, respect_affinity, within)
    profile = Profile(best_fit=not (demand.unconstrained and ground.gates.mixed_profile))
    shares = _leaf_shares(levels, demand, profile, ground.gates)
    if isinstance(shares, Shortfall):
        return Failure(_not_fit(ground, levels, demand, shares, exclusions))
    placed = {workers.name: _assignment(ground.tree, [(share.room, share.pods) for share in shares])}
    if leader is not None:
        placed[leader.name] = _assignment(ground.tree, [(share.room, share.leaders) for share in shares])
    return placed


def _leaf_shares(levels: Levels, demand: Demand, profile: Profile, gates: Gates) -> list[Share] | Shortfall:
    last = len(levels) - 1
    if gates.balanced_placement and not demand.required and not demand.unconstrained:
        even = balanced(levels, demand, profile)
        if even is not None:
            level, shares = even
            return descend(shares, level, last, demand, profile, pooled=False)
    found = search(levels, demand, profile)
    if isinstance(found, Shortfall):
        return found
    shares = distribute(found.rooms, Need(demand.slices, demand.leaders), demand.slice_size, profile)
    return descend(shares, found.level, last, demand, profile, pooled=True)


def _assignment(tree: Tree, counts: Sequence[tuple[Room, int]]) -> Assignment:
    first = tree.last if tree.by_host else 0
    ordered = sorted(counts, key=lambda entry: entry[0].domain.rank)
    domains = tuple((room.domain.path[first:], count) for room, count in ordered if count > 0)
    return Assignment(tree.levels[first:], domains)


def _not_fit(ground: Ground, levels: Levels, demand: Demand, short: Shortfall, exclusions: Exclusions) -> str:
    tail = exclusions.tail()
    if demand.layers:
        fits = _layer_fits(ground.tree, levels, demand, short.level)
        return f'topology "{ground.topology}" doesn\'t allow to fit; {fits}{tail}'
    if short.fitting == 0:
        text = f"doesn't allow to fit any of {demand.slices}"
    else:
        text = f"allows to fit only {short.fitting} out of {demand.slices}"
    return f'topology "{ground.topology}" {text} {demand.unit}(s){tail}'


def _layer_fits(tree: Tree, levels: Levels, demand: Demand, level: int) -> str:
    """For every layer, how many of its slices fit into the best domain of the searched level."""
    best = min(levels[level], key=lambda room: (-room.slices, tree.id_of(room.domain.path)))

    def fitting(layer: Layer) -> int:
        inside = [best]
        for _ in range(tree.levels.index(layer.level) - level):
            inside = [child for room in inside for child in room.children]
        return sum(room.pods // layer.size for room in inside)

    return "; ".join(
        f"{fitting(layer)}/{demand.count // layer.size} slice(s) fit on level {layer.level}" for layer in demand.layers
    )
