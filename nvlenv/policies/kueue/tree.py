"""The tree of topology domains over the participating nodes. It never changes; what fits in it is counted elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nvlenv.errors import InputError
from nvlenv.policies.kueue.nodes import participates
from nvlenv.policies.kueue.types import HOSTNAME, Node, Path

MAX_LEVELS = 16


@dataclass(eq=False, slots=True)
class Domain:
    path: Path  # label values down to this level; the same rack name in two blocks makes two domains
    rank: int  # position among all domains of the level, in ascending order of path
    children: list[Domain] = field(default_factory=list)  # in ascending order of path
    nodes: list[Node] = field(default_factory=list)  # of a leaf

    def under(self, path: Path) -> bool:
        return self.path[: len(path)] == path


class Tree:
    """Domains by level, each level in ascending order of path (compared as strings: "h10" < "h2").

    levels: node label keys, coarse to fine. Raises InputError for levels or nodes no topology can have.
    """

    def __init__(self, levels: Sequence[str], nodes: Sequence[Node], flavor_labels: Mapping[str, str]) -> None:
        _check_levels(levels)
        self.levels = tuple(levels)
        self.by_host = levels[-1] == HOSTNAME
        self.domains: list[list[Domain]] = [[] for _ in levels]
        members = [node for node in nodes if participates(node, levels, flavor_labels)]
        for path, node in sorted(((self._path(node), node) for node in members), key=lambda entry: entry[0]):
            self._leaf(path).nodes.append(node)
        self.leaf_by_id = {self.id_of(leaf.path): leaf for leaf in self.leaves}
        self.leaf_by_node = {node.name: leaf for leaf in self.leaves for node in leaf.nodes}
        if self.by_host and not len(members) == len(self.leaf_by_id) == len(self.leaves):
            raise InputError("nodes", HOSTNAME, "the same value on two nodes", "a host name of its own for every node")

    @property
    def leaves(self) -> list[Domain]:
        return self.domains[-1]

    @property
    def last(self) -> int:
        return len(self.levels) - 1

    def id_of(self, path: Path) -> str:
        """A host is known by its name alone, every other domain by its whole path."""
        return path[-1] if self.by_host and len(path) == len(self.levels) else ",".join(path)

    def leaf_at(self, values: Path) -> Domain | None:
        """The leaf that an assignment or a usage names; hosts may be named with or without their racks."""
        return self.leaf_by_id.get(values[-1] if self.by_host else ",".join(values)) if values else None

    def _path(self, node: Node) -> Path:
        return tuple(node.labels[level] for level in self.levels)

    def _leaf(self, path: Path) -> Domain:
        """The leaf at `path`, with all domains above; paths come in ascending order, so it is the newest one or new."""
        parent: Domain | None = None
        for depth, domains in enumerate(self.domains, start=1):
            if not domains or domains[-1].path != path[:depth]:
                domains.append(Domain(path[:depth], rank=len(domains)))
                if parent is not None:
                    parent.children.append(domains[-1])
            parent = domains[-1]
        return self.leaves[-1]


def _check_levels(levels: Sequence[str]) -> None:
    if not 1 <= len(levels) <= MAX_LEVELS or len(set(levels)) != len(levels):
        raise InputError("topology", "levels", list(levels), f"1 to {MAX_LEVELS} different node labels, coarse to fine")
    if HOSTNAME in levels[:-1]:
        raise InputError("topology", "levels", list(levels), f"{HOSTNAME} as the last level only")
