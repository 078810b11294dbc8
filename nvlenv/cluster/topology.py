"""Building a `ClusterSpec`: from a few numbers, or from a list of labelled nodes.

A topology is an ordered list of node labels, coarse to fine: the last names the node, one of them the NVLink domain
("rack"), those before it the coarser domains. A domain is the *path* of label values down to it, so the same rack name
under two blocks means two racks, and `rack_names` holds the paths, joined by "/" (which no label value may contain):
with levels ("block", "rack", "hostname") a rack is called "block-00/rack-007".

Racks, nodes and domains are numbered in the order of their paths, and label values compare as strings, because that is
how Kueue orders domains and breaks ties. The trap: "rack-10" sorts before "rack-2". Zero-pad names ("rack-002"), as is
done here, and both orders agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from nvlenv.cluster.hardware import GPUS_PER_NODE, NETWORK, NODES_PER_RACK, NVLINK
from nvlenv.cluster.types import ClusterSpec
from nvlenv.common.errors import InputError

NodeRow = tuple[Mapping[str, str], int, bool]
"""One node: its labels, its GPUs, and whether it is cordoned."""

SEPARATOR = "/"

LEVELS = ("block", "rack", "hostname")  # node labels, coarse to fine


def uniform_cluster(
    racks: int,
    blocks: int = 1,
    nodes_per_rack: int | Sequence[int] = NODES_PER_RACK,
    gpus_per_node: int = GPUS_PER_NODE,
    levels: Sequence[str] = LEVELS,
    nvlink: float = NVLINK,
    network: float = NETWORK,
) -> ClusterSpec:
    """Racks of equal nodes with zero-padded names, spread evenly over blocks.

    Parameters
    ----------
    racks, blocks : how many, at least one block and no block without a rack. `blocks` counts the domains of the level
        above the rack; levels above that have a single domain.
    nodes_per_rack : one number, or one for each rack.
    gpus_per_node : GPUs of every node.
    levels : node labels, coarse to fine; the one before the last is the NVLink domain.
    nvlink, network : GB/s per GPU inside and between racks.

    Raises
    ------
    InputError : numbers that do not fit together.

    >>> uniform_cluster(16, blocks=2).rack_names[7:9]
    ('block-00/rack-007', 'block-01/rack-008')
    """
    levels_to_rack(levels)
    if racks < 1:
        raise InputError("cluster", "racks", racks, "at least 1 rack")
    if not 1 <= blocks <= racks:
        raise InputError("cluster", "blocks", blocks, f"at least 1 block and at most one per rack ({racks})")
    if blocks > 1 and len(levels) < 3:
        raise InputError("cluster", "blocks", blocks, f"1, as levels {list(levels)} have none above the rack")
    sizes = [nodes_per_rack] * racks if isinstance(nodes_per_rack, int) else list(nodes_per_rack)
    if len(sizes) != racks or min(sizes) < 1:
        raise InputError("cluster", "nodes_per_rack", nodes_per_rack, f"at least 1 node in each of {racks} racks")
    *coarser, rack_level, node_level = levels
    block_digits, rack_digits = max(2, len(str(blocks - 1))), max(3, len(str(racks - 1)))
    node_digits = max(2, len(str(max(sizes) - 1)))
    rows: list[NodeRow] = []
    for rack, size in enumerate(sizes):
        labels = {level: f"{_short(level)}-00" for level in coarser}
        if coarser:
            labels[coarser[-1]] = f"{_short(coarser[-1])}-{rack * blocks // racks:0{block_digits}d}"
        labels[rack_level] = f"{_short(rack_level)}-{rack:0{rack_digits}d}"
        names = (f"{labels[rack_level]}-node-{node:0{node_digits}d}" for node in range(size))
        rows += [({**labels, node_level: name}, gpus_per_node, False) for name in names]
    return cluster_from_nodes(levels, rows, nvlink=nvlink, network=network)


def cluster_from_nodes(
    levels: Sequence[str],
    rows: Iterable[NodeRow],
    nvlink_level: str | None = None,
    nvlink: float = NVLINK,
    network: float = NETWORK,
    where: str = "cluster",
) -> ClusterSpec:
    """The cluster that these labelled nodes form; their order does not matter, racks may be unequal.

    Parameters
    ----------
    levels : node labels, coarse to fine, the node's own name last; at least ("rack", "hostname").
    rows : (labels, gpus, cordoned) of each node; other labels than `levels` are ignored.
    nvlink_level : the label of the NVLink domain; default: the one before the last. Levels between it and the node are
        left out of the spec, since all links inside an NVLink domain are alike.
    nvlink, network : GB/s per GPU inside and between racks.
    where : the file or object that an error names.

    Raises
    ------
    InputError : a node without one of the labels (names node and label), two nodes of one name, impossible numbers.
    """
    levels = levels_to_rack(levels, nvlink_level, where)
    if not nvlink >= network > 0:
        raise InputError(where, "nvlink, network", f"{nvlink} and {network} GB/s", "nvlink >= network > 0")
    nodes = sorted((_path(where, levels, number, row), row[1], row[2]) for number, row in enumerate(rows))
    if not nodes:
        raise InputError(where, "nodes", "none", "at least one node")
    seen: set[str] = set()
    for path, gpus, _ in nodes:
        if path[-1] in seen:
            raise InputError(where, f"node {path[-1]}", "two nodes of this name", "one")
        if gpus < 0:
            raise InputError(where, f"node {path[-1]}, gpus", gpus, "0 or more GPUs")
        seen.add(path[-1])
    if not any(gpus for _, gpus, _ in nodes):
        raise InputError(where, "gpus", "no GPU in any node", "at least one")
    racks = sorted({path[:-1] for path, _, _ in nodes})
    number = {rack: i for i, rack in enumerate(racks)}
    parents = [np.array(_numbers(racks, depth), np.int32) for depth in range(1, len(levels) - 1)]
    return ClusterSpec(
        levels=tuple(levels),
        rack_names=tuple(SEPARATOR.join(rack) for rack in racks),
        rack_parents=np.column_stack([np.empty((len(racks), 0), np.int32), *parents]),
        node_names=tuple(path[-1] for path, _, _ in nodes),
        node_rack=np.array([number[path[:-1]] for path, _, _ in nodes], np.int32),
        node_gpus=np.array([gpus for _, gpus, _ in nodes], np.int32),
        cordoned=np.array([cordoned for _, _, cordoned in nodes], np.bool_),
        nvlink=float(nvlink),
        network=float(network),
    )


def domain_names(spec: ClusterSpec, level: str) -> tuple[str, ...]:
    """Names of the domains of a level, in the order of their numbers: node names, or paths of label values.

    Raises `InputError` for a level that the cluster does not have.

    >>> domain_names(uniform_cluster(16, blocks=2), "block")
    ('block-00', 'block-01')
    """
    height = spec.height_of(level)
    if height < 0:
        return spec.node_names
    depth = len(spec.levels) - 1 - height
    return tuple(dict.fromkeys(SEPARATOR.join(name.split(SEPARATOR)[:depth]) for name in spec.rack_names))


def levels_to_rack(levels: Sequence[str], nvlink_level: str | None = None, where: str = "cluster") -> tuple[str, ...]:
    """The levels that a cluster keeps: those down to the NVLink domain, and the node."""
    levels = tuple(levels)
    if len(levels) < 2 or len(set(levels)) < len(levels) or not all(levels):
        raise InputError(where, "levels", list(levels), "two or more distinct labels, coarse to fine, the node last")
    rack = levels[-2] if nvlink_level is None else nvlink_level
    if rack not in levels[:-1]:
        raise InputError(where, "nvlink_level", repr(rack), f"one of {list(levels[:-1])}")
    return (*levels[: levels.index(rack) + 1], levels[-1])


def _path(where: str, levels: Sequence[str], number: int, row: NodeRow) -> tuple[str, ...]:
    """The label values of a node, coarse to fine."""
    labels = row[0]
    for level in levels:
        value = labels.get(level, "")
        if not value or SEPARATOR in value:
            node = labels.get(levels[-1]) or f"number {number}"
            found = repr(value) if level in labels else "no such label"
            raise InputError(where, f"node {node}, label {level}", found, f"a value without {SEPARATOR!r}")
    return tuple(labels[level] for level in levels)


def _numbers(racks: Sequence[tuple[str, ...]], depth: int) -> list[int]:
    """Number of the domain above each rack whose path has `depth` values."""
    number = {path: i for i, path in enumerate(sorted({rack[:depth] for rack in racks}))}
    return [number[rack[:depth]] for rack in racks]


def _short(level: str) -> str:
    """A label without its domain: "topology-block" of "cloud.provider.com/topology-block"."""
    return level.rsplit("/", 1)[-1]
