"""A cluster from Slurm: topology/block's topology.conf or topology.yaml, with the state of the nodes.

A block is an NVLink domain here. Higher block sizes join consecutive blocks: BlockSizes=18,72 makes levels
("block-72", "block", "hostname"), four blocks to a domain of the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from nvlenv.engine.importers.document import Field
from nvlenv.engine.importers.hostlist import expand
from nvlenv.engine.importers.options import Options
from nvlenv.engine.importers.slurm_nodes import NodeStatus, is_sinfo, read_scontrol, read_sinfo
from nvlenv.engine.snapshot import ClusterSnapshot, Job, Node, Pod, make_snapshot
from nvlenv.errors import InputError

BLOCK, NODE = "block", "hostname"
HEAD = 5  # lines in which a text must show what it is
TOPOLOGY_LINE = re.compile(r"\s*(BlockName|BlockSizes|SwitchName|RingName)\s*=", re.IGNORECASE)


@dataclass(frozen=True)
class Blocks:
    """topology/block: nodes of each block in order, and the enforced sizes in nodes, the base size first."""

    where: str
    blocks: dict[str, tuple[str, ...]]
    sizes: tuple[int, ...] = ()


@dataclass
class Parts:
    """What the files of a Slurm cluster have given so far."""

    topologies: list[Blocks] = field(default_factory=list)
    nodes: list[NodeStatus] = field(default_factory=list)

    @property
    def sources(self) -> list[Blocks | NodeStatus]:
        return [*self.topologies, *self.nodes]

    def take_text(self, where: str, text: str) -> bool:
        """Read a text of one of Slurm's formats; False if it is none."""
        if re.match(r"\s*[\[{]", text):  # JSON may be one line of many megabytes
            return False
        head = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")][:HEAD]
        if any(TOPOLOGY_LINE.match(line) for line in head):
            self.topologies.append(read_topology_conf(where, text))
        elif any(line.startswith("NodeName=") for line in head):
            self.nodes += read_scontrol(where, text)
        elif any(is_sinfo(line) for line in head):
            self.nodes += read_sinfo(where, text)
        else:
            return False
        return True

    def take_document(self, document: Field, options: Options) -> bool:
        """Read topology.yaml; False if the document is something else."""
        entries = document.value
        if not isinstance(entries, list) or not any(isinstance(e, dict) and "topology" in e for e in entries):
            return False
        self.topologies.append(read_topology_yaml(document, options.topology))
        return True


def read_slurm(where: str, parts: Parts, options: Options) -> ClusterSnapshot:
    """The cluster of one topology and the states of its nodes.

    Slurm tells how much of a node is taken, not by whom: what is taken becomes one job per node, neither preemptible
    nor movable. Nodes without GPUs and nodes that only the topology knows are left out, and noted.

    Raises
    ------
    InputError : a missing half, a node in no block (unless `skip_unlabelled`) or described twice.
    """
    if len(parts.topologies) != 1 or not parts.nodes:
        found = f"{len(parts.topologies)} topologies and the states of {len(parts.nodes)} nodes"
        raise InputError(where, "", found, "one topology.conf or topology.yaml, and sinfo or scontrol show node")
    topology, notes = parts.topologies[0], list[str]()
    paths = dict(_paths(topology))
    levels = (*(f"{BLOCK}-{size}" for size in topology.sizes[:0:-1]), BLOCK, NODE)
    machines = [node for node in parts.nodes if node.gpus > 0]
    unplaced = next((node for node in machines if node.name not in paths), None)
    if unplaced is not None and not options.skip_unlabelled:
        expected = f"a block in {topology.where}; skip_unlabelled leaves such nodes out"
        raise InputError(unplaced.where, f"node {unplaced.name}, {BLOCK}", "none", expected)
    kept = [node for node in machines if node.name in paths]
    reported = {node.name for node in parts.nodes}
    _note(notes, len(parts.nodes) - len(machines), "without GPUs")
    _note(notes, len(machines) - len(kept), "in no block")
    _note(notes, sum(name not in reported for name in paths), "whose state is not reported")
    if not kept:
        raise InputError(where, "nodes", "none with GPUs in a block", "at least one")
    return make_snapshot(
        where,
        levels,
        BLOCK,
        [Node(n.name, paths[n.name], n.gpus, n.cpu, n.memory, state=n.state) for n in kept],
        [
            Job(f"slurm/{n.name}", (Pod(n.name, n.used_gpus, n.used_cpu, n.used_memory),), name="allocated")
            for n in kept
            if n.used_gpus or n.used_cpu or n.used_memory
        ],
        notes=notes,
    )


def read_topology_conf(where: str, text: str) -> Blocks:
    """`BlockName=b1 Nodes=rack01-node[001-018]` lines and `BlockSizes=18,72`; names of parameters in any case."""
    blocks: dict[str, tuple[str, ...]] = {}
    sizes: tuple[int, ...] = ()
    others = ""
    for place, fields in _conf_lines(where, text):
        if "blockname" in fields:
            nodes = expand(fields.get("nodes", ""), where, f"{place}, Nodes")
            _add_block(where, place, blocks, fields["blockname"], nodes)
        elif "blocksizes" in fields:
            sizes = _sizes(where, f"{place}, BlockSizes", fields["blocksizes"].split(","))
        else:
            others = others or f"{place}: {next(iter(fields))}"
    if not blocks:  # switches may stand beside blocks, but alone they say nothing about NVLink
        raise InputError(where, "", f"no BlockName line ({others})", "topology/block: BlockName=b1 Nodes=node[001-018]")
    return Blocks(where, blocks, sizes)


def _conf_lines(where: str, text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Place and parameters of each line; a backslash at its end continues it."""
    joined = ""
    for number, line in enumerate(text.splitlines(), 1):
        joined += line.split("#", 1)[0].rstrip()
        if joined.endswith("\\"):
            joined = joined[:-1] + " "
            continue
        fields = {}
        for token in joined.split():
            key, equals, value = token.partition("=")
            if not equals or not value or not token.isprintable():
                raise InputError(where, f"line {number}", repr(token[:60]), "Parameter=value")
            fields[key.lower()] = value
        if fields:
            yield f"line {number}", fields
        joined = ""


def read_topology_yaml(document: Field, name: str) -> Blocks:
    """The topology of that name, else the cluster's default, else the only one with blocks."""
    entries = list(document)
    if name:
        chosen = [entry for entry in entries if entry["topology"].value == name]
    else:
        blocks = [entry for entry in entries if entry["block"].present]
        chosen = [entry for entry in blocks if entry["cluster_default"].flag(False)][:1] or blocks
    if len(chosen) != 1 or not chosen[0]["block"].present:
        names = [entry["topology"].text() for entry in entries]
        raise InputError(document.where, "topology", f"topologies {names}", "one with block, or the name of one such")
    spec = chosen[0]["block"]
    found: dict[str, tuple[str, ...]] = {}
    for block in spec["blocks"]:
        nodes = expand(block["nodes"].text(), block.where, block["nodes"].path)
        _add_block(document.where, block.path, found, block["block"].text(), nodes)
    if not found:
        raise spec["blocks"].error("at least one block")
    sizes = _sizes(document.where, spec["block_sizes"].path, [str(size.integer()) for size in spec["block_sizes"]])
    return Blocks(document.where, found, sizes)


def _add_block(where: str, place: str, blocks: dict[str, tuple[str, ...]], name: str, nodes: tuple[str, ...]) -> None:
    if name in blocks:
        raise InputError(where, place, f"block {name} again", "every block once")
    blocks[name] = nodes


def _sizes(where: str, place: str, texts: Iterable[str]) -> tuple[int, ...]:
    """Block sizes, each a power of two times the base size and larger than the one before."""
    texts = list(texts)
    sizes = tuple(int(text) if re.fullmatch(r"[0-9]{1,6}", text) else 0 for text in texts)
    for before, size in zip((0, *sizes), sizes, strict=False):
        factor = size // sizes[0] if sizes[0] else 0
        if size <= before or size % sizes[0] or factor & (factor - 1):
            raise InputError(where, place, ",".join(texts), "growing sizes, each a power of two times the first")
    return sizes


def _paths(topology: Blocks) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each node and its label values: the joined blocks that it is in, the block, the node."""
    factors = [size // topology.sizes[0] for size in topology.sizes[:0:-1]]
    digits = len(str(len(topology.blocks)))
    seen: dict[str, str] = {}
    for number, (block, nodes) in enumerate(topology.blocks.items()):
        above = tuple(f"{number // factor:0{digits}d}" for factor in factors)
        for node in nodes:
            if seen.setdefault(node, block) != block:
                raise InputError(topology.where, f"node {node}", f"blocks {seen[node]} and {block}", "one block")
            yield node, (*above, block, node)


def _note(notes: list[str], count: int, why: str) -> None:
    if count:
        notes.append(f"left out {count} nodes {why}")
