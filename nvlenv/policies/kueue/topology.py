"""The tree of topology domains over the nodes that take part, and which of these a pod may run on.

The tree never changes; how much fits in it is counted elsewhere (`counting`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nvlenv.common.errors import InputError
from nvlenv.policies.kueue.types import HOSTNAME, Expression, KueueNode, NodeAffinity, Path, Taint, Term, Toleration

MAX_LEVELS = 16
_SCHEDULING_EFFECTS = ("NoSchedule", "NoExecute")  # PreferNoSchedule only advises


@dataclass(eq=False, slots=True)
class Domain:
    """One value of a topology level, below one value of each level above."""

    path: Path  # label values down to this level; the same rack name in two blocks makes two domains
    rank: int  # position among all domains of the level, in ascending order of path
    children: list[Domain] = field(default_factory=list)  # in ascending order of path
    nodes: list[KueueNode] = field(default_factory=list)  # of a leaf


class TopologyTree:
    """Domains by level, each level in ascending order of path (compared as strings: "h10" < "h2").

    levels: node label keys, coarse to fine. Raises InputError for levels or nodes no topology can have.
    """

    def __init__(self, levels: Sequence[str], nodes: Sequence[KueueNode], flavor_labels: Mapping[str, str]) -> None:
        if not 1 <= len(levels) <= MAX_LEVELS or len(set(levels)) != len(levels):
            expected = f"1 to {MAX_LEVELS} different node labels, coarse to fine"
            raise InputError("topology", "levels", list(levels), expected)
        if HOSTNAME in levels[:-1]:
            raise InputError("topology", "levels", list(levels), f"{HOSTNAME} as the last level only")
        self.levels = tuple(levels)
        self.by_host = levels[-1] == HOSTNAME
        self.domains: list[list[Domain]] = [[] for _ in levels]
        members = [node for node in nodes if participates(node, levels, flavor_labels)]
        paths = [(tuple(node.labels[level] for level in levels), node) for node in members]
        for path, node in sorted(paths, key=lambda entry: entry[0]):
            self._leaf(path).nodes.append(node)
        self.leaves = self.domains[-1]
        self.leaf_by_node = {node.name: leaf for leaf in self.leaves for node in leaf.nodes}
        self._leaf_by_id = {self.id_of(leaf.path): leaf for leaf in self.leaves}
        if self.by_host and not len(members) == len(self._leaf_by_id) == len(self.leaves):
            raise InputError("nodes", HOSTNAME, "the same value on two nodes", "a host name of its own for every node")

    def id_of(self, path: Path) -> str:
        """A host is known by its name alone, every other domain by its whole path."""
        return path[-1] if self.by_host and len(path) == len(self.levels) else ",".join(path)

    def leaf_at(self, values: Path) -> Domain | None:
        """The leaf that an assignment or a usage names; hosts may be named with or without their racks."""
        return self._leaf_by_id.get(values[-1] if self.by_host else ",".join(values)) if values else None

    def _leaf(self, path: Path) -> Domain:
        """The leaf at `path`, with all domains above; paths come in ascending order, so it is the newest one or new."""
        parent: Domain | None = None
        for depth, domains in enumerate(self.domains, start=1):
            if not domains or domains[-1].path != path[:depth]:
                domains.append(Domain(path[:depth], rank=len(domains)))
                if parent is not None:
                    parent.children.append(domains[-1])
            parent = domains[-1]
        return self.domains[-1][-1]


def participates(node: KueueNode, levels: Sequence[str], flavor_labels: Mapping[str, str]) -> bool:
    """Whether the node is part of the topology at all: usable, of the flavor, and labelled on every level."""
    labelled = flavor_labels.items() <= node.labels.items() and node.labels.keys() >= set(levels)
    return labelled and node.ready and not node.unschedulable


def obstacle(
    node: KueueNode, selector: Mapping[str, str], tolerations: Sequence[Toleration], affinity: NodeAffinity
) -> str | None:
    """Why a pod may not run on the node, in the words of a failure message; None if it may. The first reason counts."""
    for taint in node.taints:
        if taint.effect in _SCHEDULING_EFFECTS and not any(_tolerates(t, taint) for t in tolerations):
            return f'taint "{taint}"'
    if not selector.items() <= node.labels.items():
        return "nodeSelector"
    if affinity.required is not None and not any(_matches(term, node) for term in affinity.required):
        return "affinity"
    return None


def affinity_score(node: KueueNode, affinity: NodeAffinity) -> int:
    """Sum of the weights of all preferred terms that the node matches."""
    return sum(weight for weight, term in affinity.preferred if _matches(term, node))


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    return (
        toleration.effect in ("", taint.effect)
        and toleration.key in ("", taint.key)
        and (toleration.operator == "Exists" or toleration.value == taint.value)
    )


def _matches(term: Term, node: KueueNode) -> bool:
    """A term without any expression matches no node."""
    fields = {"metadata.name": node.name}
    return bool(term.expressions or term.fields) and (
        all(_holds(expression, node.labels) for expression in term.expressions)
        and all(_holds(expression, fields) for expression in term.fields)
    )


def _holds(expression: Expression, labels: Mapping[str, str]) -> bool:
    found = labels.get(expression.key)
    match expression.operator:
        case "In":
            return found in expression.values
        case "NotIn":
            return found not in expression.values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt" | "Lt" if found is not None:
            try:
                excess = int(found) - int(expression.values[0])
            except (ValueError, IndexError):  # what is no integer compares with nothing
                return False
            return excess > 0 if expression.operator == "Gt" else excess < 0
    return False
