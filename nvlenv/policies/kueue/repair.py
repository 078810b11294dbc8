"""Workloads that keep most of their pods: a lost node is replaced, an elastic workload grows or shrinks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from nvlenv.policies.kueue.placement import Ground, place
from nvlenv.policies.kueue.topology import Tree
from nvlenv.policies.kueue.types import Assignment, Failure, Layer, Mode, Path, PodSet


def replace_node(ground: Ground, podset: PodSet, old: Assignment, node: str) -> tuple[Assignment, Assignment] | Failure:
    """The repaired assignment and the part of it that is new. The surviving pods never move.

    Where a single host is the domain to stay in (which no assignment that Kueue made asks for), the pods stay there;
    Kueue itself then finds no node, because it takes the host's name for a whole path.
    """
    missing = sum(count for values, count in old.domains if values[-1] == node)
    kept = Assignment(old.levels, tuple(entry for entry in old.domains if entry[0][-1] != node))
    stale = stale_domain(ground.tree, kept)
    if stale is not None:
        return Failure(
            "Cannot replace the node, because the existing topologyAssignment is invalid, "
            f"as it contains the stale domain {stale}"
        )
    request = podset.topology
    layers = request.slices if ground.gates.multi_layer else request.slices[:1]
    within: Path | None
    if kept.domains and layers and all(layer.size > 0 for layer in layers) and missing % layers[0].size != 0:
        within = _incomplete_domain(ground.tree, kept, layers, missing)
        if within is not None:
            request = replace(request, slices=_dividing(layers, missing))
    else:
        within = _required_domain(ground.tree, kept, podset)
    placed = place(ground, replace(podset, count=missing, topology=request), within=within or ())
    if isinstance(placed, Failure):
        return placed
    new = placed[podset.name]
    if not new.domains:
        return Failure(f"cannot find replacement assignment for unhealthy node: {node}")
    return merge(ground.tree, kept, new), new


def stale_domain(tree: Tree, assignment: Assignment) -> str | None:
    """The first leaf of the assignment that is gone, by its first value."""
    return next((values[0] for values, _ in assignment.domains if tree.leaf_at(values) is None), None)


def merge(tree: Tree, one: Assignment, other: Assignment) -> Assignment:
    """Both assignments in one, in ascending order of the leaves; they must not be stale."""
    counts: Counter[Path] = Counter()
    for values, count in (*one.domains, *other.domains):
        counts[values] += count
    ordered = sorted(counts.items(), key=lambda entry: _leaf_path(tree, entry[0]))
    return Assignment(other.levels, tuple(ordered))


def truncate(assignment: Assignment, count: int) -> Assignment:
    """The first `count` pods of the assignment: an elastic workload shrinks from the end of the list."""
    domains = []
    for values, pods in assignment.domains:
        if count > 0:
            domains.append((values, min(pods, count)))
        count -= pods
    return Assignment(assignment.levels, tuple(domains))


def _leaf_path(tree: Tree, values: Path) -> Path:
    leaf = tree.leaf_at(values)
    assert leaf is not None, "checked by stale_domain"
    return leaf.path


def _required_domain(tree: Tree, kept: Assignment, podset: PodSet) -> Path | None:
    """Where a required placement already stands: the domain of its first remaining leaf."""
    level = podset.topology.level
    if podset.topology.mode != Mode.REQUIRED or not kept.domains or level not in tree.levels:
        return None
    return _leaf_path(tree, kept.domains[0][0])[: tree.levels.index(level) + 1]


def _incomplete_domain(tree: Tree, kept: Assignment, layers: Sequence[Layer], missing: int) -> Path | None:
    """The domain whose slice lost its pods: with the missing pods it holds whole slices again.

    The finest layer that the missing pods do not fill by themselves decides.
    """
    layer = next(layer for layer in reversed(layers) if missing % layer.size != 0)
    if layer.level not in tree.levels:
        return None
    depth = tree.levels.index(layer.level) + 1
    counts: Counter[Path] = Counter()
    for values, count in kept.domains:
        counts[_leaf_path(tree, values)[:depth]] += count
    return min((path for path, count in counts.items() if (count + missing) % layer.size == 0), default=None)


def _dividing(layers: Sequence[Layer], missing: int) -> tuple[Layer, ...]:
    """The finest layer whose slices the missing pods fill, as the only one; none if they fill no slice."""
    return next(((layer,) for layer in reversed(layers) if missing % layer.size == 0), ())
