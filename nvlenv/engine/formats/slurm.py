"""A cluster from Slurm: the state of its nodes (sinfo, scontrol show node), its blocks, and its host lists.

The blocks are those of topology/block, from topology.conf or topology.yaml. A block is an NVLink domain here. Higher
block sizes join consecutive blocks: BlockSizes=18,72 makes levels ("block-72", "block", "hostname"), four blocks to a
domain of the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod

from nvlenv.common.errors import InputError
from nvlenv.engine.formats.document import Field
from nvlenv.engine.model.jobs import UNLIMITED, Job, Pod
from nvlenv.engine.model.snapshot import ClusterSnapshot, Node, NodeState, Options, make_snapshot

MIB = 2**20

# States and flags by what a new job can do there, as sinfo and scontrol write them (short and long).
STATES = {
    NodeState.UP: "idle alloc allocated mix mixed comp completing plnd planned perfctrs npc cloud dynamic_norm "
    "dynamic_future powered_down powering_up pow_up power_up undrain",
    NodeState.CORDONED: "drain drained draining drng maint resv reserved failing failg blocked powering_down pow_dn "
    "power_down reboot_requested",
    NodeState.FAILED: "down error unk unknown fail future futr inval invalid_reg noresp not_responding no_respond boot "
    "reboot reboot_issued external",
}
WORDS = {word: state for state, words in STATES.items() for word in words.split()}
SIGNS = {
    **dict.fromkeys("~#-", NodeState.UP),  # asleep, waking, planned for a job
    **dict.fromkeys("$@!%", NodeState.CORDONED),  # maintenance, reboot pending, powering down
    **dict.fromkeys("*^", NodeState.FAILED),  # not responding, rebooting
}
SEVERITY = list(NodeState)  # up, cordoned, failed
UNUSED = ("idle", "down", "drained", "planned", "plnd")  # nothing runs in these states; for sinfo without GRES_USED


@dataclass(frozen=True)
class NodeStatus:
    """A node as Slurm reports it; cpu in milli-cores, memory in bytes."""

    where: str
    name: str
    state: NodeState
    gpus: int
    used_gpus: int
    cpu: int = UNLIMITED
    used_cpu: int = 0
    memory: int = UNLIMITED
    used_memory: int = 0


def is_sinfo(line: str) -> bool:
    """Whether a line is the header of a sinfo table."""
    return {"NODELIST", "STATE"} <= set(line.split())


def read_sinfo(where: str, text: str) -> list[NodeStatus]:
    """The nodes of a table such as `sinfo -N -O NodeList,StateLong,Gres,GresUsed,CPUsState,Memory,AllocMem` prints.

    A line may stand for several nodes, and a node may come once for each of its partitions.
    """
    header: list[str] = []
    found: dict[str, NodeStatus] = {}
    for number, line in enumerate(text.splitlines(), 1):
        place = f"line {number}"
        if not header:  # sinfo --long prints the date first
            header = line.split() if is_sinfo(line) else []
            continue
        for status in _sinfo_line(where, place, header, line):
            if found.setdefault(status.name, status) != status:
                raise InputError(where, f"{place}, node {status.name}", "another state than above", "one state a node")
    if not found:
        raise InputError(where, "", "no nodes", "a line for each node below NODELIST STATE GRES GRES_USED")
    return list(found.values())


def _sinfo_line(where: str, place: str, header: list[str], line: str) -> Iterator[NodeStatus]:
    values = line.split(maxsplit=len(header) - 1 if header[-1] == "REASON" else -1)
    if not values:
        return
    if len(values) != len(header):
        raise InputError(where, place, f"{len(values)} values", f"{len(header)}, one below each of {header}")
    row = dict(zip(header, values, strict=True))
    gpus = gres_gpus(where, f"{place}, GRES", row.get("GRES"))
    cpus = row.get("CPUS(A/I/O/T)", "").split("/")
    for name in expand_hosts(row["NODELIST"], where, f"{place}, NODELIST"):
        yield NodeStatus(
            where,
            name,
            _state(where, f"{place}, STATE", row["STATE"]),
            gpus,
            _used(where, place, row, gpus),
            cpu=1000 * _count(where, f"{place}, CPUS", cpus[-1] or row.get("CPUS"), UNLIMITED // 1000),
            used_cpu=1000 * _count(where, f"{place}, CPUS(A/I/O/T)", cpus[0], 0),
            memory=MIB * _count(where, f"{place}, MEMORY", row.get("MEMORY"), UNLIMITED // MIB),
            used_memory=MIB * _count(where, f"{place}, ALLOCMEM", row.get("ALLOCMEM"), 0),
        )


def _used(where: str, place: str, row: Mapping[str, str], gpus: int) -> int:
    """GPUs in use; without the column, none or all where the state alone tells."""
    if "GRES_USED" in row:
        return gres_gpus(where, f"{place}, GRES_USED", row["GRES_USED"])
    word = re.split(r"[^a-z_]", row["STATE"].lower())[0]
    if word in UNUSED:
        return 0
    if word in ("alloc", "allocated"):
        return gpus
    expected = "that column (sinfo -O ...,GresUsed)"
    raise InputError(where, place, f"state {row['STATE']} and no column GRES_USED", expected)


def read_scontrol(where: str, text: str) -> list[NodeStatus]:
    """The nodes that `scontrol show node` prints, also with `-o` (one a line) or `-d` (GresUsed)."""
    statuses = []
    for entry in re.split(r"(?m)^(?=NodeName=)", text):
        if not entry.startswith("NodeName="):
            continue
        fields: dict[str, str] = {}
        for key, value in re.findall(r"(?:^|\s)([A-Za-z][A-Za-z/:_]*)=(\S*)", entry):
            fields.setdefault(key, value)
        statuses += [
            _scontrol_node(where, name, fields) for name in expand_hosts(fields["NodeName"], where, "NodeName")
        ]
    return statuses


def _scontrol_node(where: str, name: str, fields: Mapping[str, str]) -> NodeStatus:
    place = f"node {name}"
    return NodeStatus(
        where,
        name,
        _state(where, f"{place}, State", fields.get("State", "")),
        _configured(where, place, fields),
        _allocated(where, place, fields),
        cpu=1000 * _count(where, f"{place}, CPUTot", fields.get("CPUEfctv") or fields.get("CPUTot"), UNLIMITED // 1000),
        used_cpu=1000 * _count(where, f"{place}, CPUAlloc", fields.get("CPUAlloc"), 0),
        memory=MIB * _count(where, f"{place}, RealMemory", fields.get("RealMemory"), UNLIMITED // MIB),
        used_memory=MIB * _count(where, f"{place}, AllocMem", fields.get("AllocMem"), 0),
    )


def _configured(where: str, place: str, fields: Mapping[str, str]) -> int:
    if "Gres" in fields:
        return gres_gpus(where, f"{place}, Gres", fields["Gres"])
    return _tres(where, f"{place}, CfgTRES", fields.get("CfgTRES", "")) or 0


def _allocated(where: str, place: str, fields: Mapping[str, str]) -> int:
    """GPUs in use. AllocTRES lists them only if Slurm accounts for GPUs, which CfgTRES then shows."""
    if "GresUsed" in fields:
        return gres_gpus(where, f"{place}, GresUsed", fields["GresUsed"])
    used = _tres(where, f"{place}, AllocTRES", fields.get("AllocTRES", ""))
    if used is not None:
        return used
    accounted = _tres(where, f"{place}, CfgTRES", fields.get("CfgTRES", "")) is not None
    if not accounted and _configured(where, place, fields) and fields.get("CPUAlloc", "0") != "0":
        raise InputError(where, place, "no GPUs in CfgTRES and no GresUsed", "the output of scontrol show node -d")
    return 0


def _state(where: str, place: str, text: str) -> NodeState:
    """The worst that a state with its flags says: `MIXED+DRAIN`, `idle*`, `DOWN*+CLOUD`."""
    states = []
    for part in text.split("+"):
        match = re.fullmatch(r"([A-Za-z_]+)([*~#!%$@^-]*)", part)
        if match is None or match[1].lower() not in WORDS:
            raise InputError(where, place, repr(text[:60]), f"a node state of Slurm: {', '.join(WORDS)}")
        states += [WORDS[match[1].lower()], *(SIGNS[sign] for sign in match[2])]
    return max(states, key=SEVERITY.index)


def gres_gpus(where: str, place: str, text: str | None) -> int:
    """GPUs in a list of generic resources such as `gpu:gb200:4(S:0-1),shard:8`."""
    total = 0
    for entry in re.split(r",(?![^(]*\))", "" if text is None else text):
        name, *parts = re.sub(r"\(.*\)$", "", entry).split(":")
        if name == "gpu":
            total += _count(where, place, parts[-1] if parts else "1", 0)
    if text is None:
        raise InputError(where, place, "no such column", "generic resources such as gpu:4 or (null)")
    return total


def _tres(where: str, place: str, text: str) -> int | None:
    """GPUs in trackable resources such as `cpu=72,mem=500G,gres/gpu=4,gres/gpu:gb200=4`; None if none are listed."""
    counts = dict(entry.partition("=")[::2] for entry in text.split(","))
    typed = [value for key, value in counts.items() if key.startswith("gres/gpu:")]
    values = [counts["gres/gpu"]] if "gres/gpu" in counts else typed
    return sum(_count(where, place, value, 0) for value in values) if values else None


def _count(where: str, place: str, text: str | None, default: int) -> int:
    if not text:
        return default
    if not re.fullmatch(r"[0-9]{1,12}", text):
        raise InputError(where, place, repr(text[:60]), "a whole number")
    return int(text)


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
        """Everything read so far; empty: no file was Slurm's."""
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
            nodes = expand_hosts(fields.get("nodes", ""), where, f"{place}, Nodes")
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
        nodes = expand_hosts(block["nodes"].text(), block.where, block["nodes"].path)
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


# Host lists, such as "rack01-node[001-018,020]" for nineteen names. By hand: the libraries for them are GPL.

MAX_HOSTS = 65536  # names in one list; a mistyped range must not fill the memory
HOST_LIST = "a host list like rack01-node[001-018,020]"

_ENDING = re.compile(r"(.*?)([0-9]{1,18})")


def expand_hosts(text: str, where: str = "host list", field: str = "") -> tuple[str, ...]:
    """The names of a host list, in its order.

    >>> expand_hosts("rack[1-2]-node[08-10],login")[2:]
    ('rack1-node10', 'rack2-node08', 'rack2-node09', 'rack2-node10', 'login')
    """
    names: list[str] = []
    for entry in _host_entries(text, where, field):
        pieces = [_host_choices(piece, text, where, field) for piece in re.split(r"(\[[^\[\]]*\])", entry) if piece]
        if len(names) + prod(len(choices) for choices in pieces) > MAX_HOSTS:
            raise InputError(where, field, repr(text[:60]), f"at most {MAX_HOSTS} hosts")
        names.extend("".join(combination) for combination in product(*pieces))
    return tuple(names)


def compress_hosts(names: Iterable[str]) -> str:
    """The shortest usual host list of these names, sorted by name and number, doubles dropped.

    >>> compress_hosts(["rack01-node010", "rack01-node008", "rack01-node009", "login"])
    'login,rack01-node[008-010]'
    """
    ranges: dict[str, list[tuple[str, str]]] = {}
    for prefix, digits in sorted({_ending(name) for name in names}, key=_host_order):
        found = ranges.setdefault(prefix, [])
        if found and found[-1][1] and digits == f"{int(found[-1][1]) + 1:0{len(found[-1][0])}d}":
            found[-1] = (found[-1][0], digits)
        else:
            found.append((digits, digits))
    return ",".join(entry for prefix, found in ranges.items() for entry in _ranges_of(prefix, found))


def slurm_node_list(nodes: Iterable[str]) -> str:
    """Node names for `--nodelist`, e.g. `rack01-node[001-016]`; `InputError` without any."""
    names = list(nodes)
    if not names:
        raise InputError("placement", "nodes", "none", "at least one node")
    return compress_hosts(names)


def _host_entries(text: str, where: str, field: str) -> Iterator[str]:
    """The entries between the commas that are outside brackets."""
    for entry in re.split(r",(?![^\[\]]*\])", text.strip()):
        if not entry.isprintable() or not entry or " " in entry:
            raise InputError(where, field, repr(text[:60]), HOST_LIST)
        yield entry


def _host_choices(piece: str, text: str, where: str, field: str) -> tuple[str, ...]:
    """The texts that one piece of an entry stands for: itself, or the numbers in brackets."""
    if "[" not in piece and "]" not in piece:
        return (piece,)
    numbers: list[str] = []
    for part in piece[1:-1].split(","):
        match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", part)
        if match is None or piece[0] != "[" or piece[-1] != "]" or int(match[2] or match[1]) < int(match[1]):
            raise InputError(where, field, repr(text[:60]), HOST_LIST)
        first, last = int(match[1]), int(match[2] or match[1])
        if len(numbers) + last - first >= MAX_HOSTS:
            raise InputError(where, field, repr(text[:60]), f"at most {MAX_HOSTS} hosts")
        numbers.extend(f"{number:0{len(match[1])}d}" for number in range(first, last + 1))
    return tuple(numbers)


def _ending(name: str) -> tuple[str, str]:
    """A name as what comes before its last digits, and those."""
    if not name or re.search(r"[\[\],\s]", name):
        raise InputError("host list", "name", repr(name), "a host name without brackets, commas and blanks")
    match = _ENDING.fullmatch(name)
    return (match[1], match[2]) if match else (name, "")


def _host_order(ending: tuple[str, str]) -> tuple[str, bool, int, int]:
    prefix, digits = ending
    return prefix, bool(digits), int(digits or "0"), len(digits)


def _ranges_of(prefix: str, ranges: list[tuple[str, str]]) -> Iterator[str]:
    """One bracket for all numbered names of a prefix; a name without a number stands for itself."""
    if not ranges[0][0]:
        yield prefix
        ranges = ranges[1:]
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        yield prefix + ranges[0][0]
    elif ranges:
        inside = ",".join(first if first == last else f"{first}-{last}" for first, last in ranges)
        yield f"{prefix}[{inside}]"
