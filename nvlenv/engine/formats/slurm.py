"""A cluster from Slurm: the state of its nodes (sinfo, scontrol show node), its blocks, and its host lists.

The blocks are those of topology/block, from topology.conf or topology.yaml. A block is an NVLink domain here. Higher
block sizes join consecutive blocks: BlockSizes=18,72 makes levels ("block-72", "block", "hostname"), four blocks to a
domain of the first.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import NamedTuple

from nvlenv.common.errors import InputError
from nvlenv.engine.formats.document import Field
from nvlenv.engine.formats.options import Options
from nvlenv.engine.model.jobs import UNLIMITED, Job, Pod
from nvlenv.engine.model.snapshot import ClusterSnapshot, Node, NodeState, make_snapshot

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


class NodeStatus(NamedTuple):
    """A node as Slurm reports it."""

    where: str
    node: Node  # without its path
    used: Pod  # what is taken of it


@dataclass(frozen=True)
class _Report:
    """A line of sinfo or an entry of scontrol: its values by column, and the place that errors name."""

    where: str
    place: str
    values: Mapping[str, str]

    def status(self, name: str, state: NodeState, gpus: int, used_gpus: int, columns: Sequence[str]) -> NodeStatus:
        """A node of it; the columns are those of its CPUs, CPUs in use, MiB and MiB in use."""
        defaults = (UNLIMITED // 1000, 0, UNLIMITED // MIB, 0)
        cpu, used_cpu, memory, used_memory = map(self.count, columns, defaults)
        node = Node(name, (), gpus, 1000 * cpu, MIB * memory, state=state)
        return NodeStatus(self.where, node, Pod(name, used_gpus, 1000 * used_cpu, MIB * used_memory))

    def state(self, column: str) -> NodeState:
        """The worst that a state with its flags says: `MIXED+DRAIN`, `idle*`, `DOWN*+CLOUD`."""
        states, text = list[NodeState](), self.values.get(column, "")
        for part in text.split("+"):
            match = re.fullmatch(r"([A-Za-z_]+)([*~#!%$@^-]*)", part)
            if match is None or match[1].lower() not in WORDS:
                expected = f"a node state of Slurm: {', '.join(WORDS)}"
                raise InputError(self.where, f"{self.place}, {column}", repr(text[:60]), expected)
            states += [WORDS[match[1].lower()], *(SIGNS[sign] for sign in match[2])]
        return max(states, key=SEVERITY.index)

    def count(self, column: str, default: int) -> int:
        """A whole number; the default where there is none."""
        text = self.values.get(column)
        return _count(self.where, f"{self.place}, {column}", text) if text else default

    def gres(self, column: str) -> int:
        """GPUs among generic resources."""
        return gres_gpus(self.where, f"{self.place}, {column}", self.values.get(column))

    def tres(self, column: str) -> int | None:
        """GPUs in trackable resources like `cpu=72,mem=500G,gres/gpu=4,gres/gpu:gb200=4`; None if none are listed."""
        counts = dict(entry.partition("=")[::2] for entry in self.values.get(column, "").split(","))
        typed = [value for key, value in counts.items() if key.startswith("gres/gpu:")]
        values = [counts["gres/gpu"]] if "gres/gpu" in counts else typed
        return sum(_count(self.where, f"{self.place}, {column}", value or "0") for value in values) if values else None


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
            name = status.node.name
            if found.setdefault(name, status) != status:
                raise InputError(where, f"{place}, node {name}", "another state than above", "one state a node")
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
    cpus = row.get("CPUS(A/I/O/T)", "").split("/")
    row |= {"CPUS": cpus[-1] or row.get("CPUS", ""), "CPUS(A/I/O/T)": cpus[0]}
    report = _Report(where, place, row)
    gpus = report.gres("GRES")
    for name in expand_hosts(row["NODELIST"], where, f"{place}, NODELIST"):
        columns = ("CPUS", "CPUS(A/I/O/T)", "MEMORY", "ALLOCMEM")
        yield report.status(name, report.state("STATE"), gpus, _used(report, gpus), columns)


def _used(report: _Report, gpus: int) -> int:
    """GPUs in use; without the column, none or all where the state alone tells."""
    if "GRES_USED" in report.values:
        return report.gres("GRES_USED")
    state = report.values["STATE"]
    word = re.split(r"[^a-z_]", state.lower())[0]
    if word not in (*UNUSED, "alloc", "allocated"):
        found, expected = f"state {state} and no column GRES_USED", "that column (sinfo -O ...,GresUsed)"
        raise InputError(report.where, report.place, found, expected)
    return 0 if word in UNUSED else gpus


def read_scontrol(where: str, text: str) -> list[NodeStatus]:
    """The nodes that `scontrol show node` prints, also with `-o` (one a line) or `-d` (GresUsed)."""
    statuses = []
    for entry in re.split(r"(?m)^(?=NodeName=)", text):
        if not entry.startswith("NodeName="):
            continue
        pairs = re.findall(r"(?:^|\s)([A-Za-z][A-Za-z/:_]*)=(\S*)", entry)
        fields = dict(reversed(pairs))  # the first of a name counts
        fields["CPUTot"] = fields.get("CPUEfctv") or fields.get("CPUTot", "")
        for name in expand_hosts(fields["NodeName"], where, "NodeName"):
            report = _Report(where, f"node {name}", fields)
            state, gpus, used = report.state("State"), _configured(report), _allocated(report)
            columns = ("CPUTot", "CPUAlloc", "RealMemory", "AllocMem")
            statuses.append(report.status(name, state, gpus, used, columns))
    return statuses


def _configured(report: _Report) -> int:
    return report.gres("Gres") if "Gres" in report.values else report.tres("CfgTRES") or 0


def _allocated(report: _Report) -> int:
    """GPUs in use. AllocTRES lists them only if Slurm accounts for GPUs, which CfgTRES then shows."""
    if "GresUsed" in report.values:
        return report.gres("GresUsed")
    used = report.tres("AllocTRES")
    if used is not None:
        return used
    busy = report.values.get("CPUAlloc", "0") != "0"
    if report.tres("CfgTRES") is None and _configured(report) and busy:
        expected = "the output of scontrol show node -d"
        raise InputError(report.where, report.place, "no GPUs in CfgTRES and no GresUsed", expected)
    return 0


def gres_gpus(where: str, place: str, text: str | None) -> int:
    """GPUs in a list of generic resources such as `gpu:gb200:4(S:0-1),shard:8`."""
    if text is None:
        raise InputError(where, place, "no such column", "generic resources such as gpu:4 or (null)")
    entries = (re.sub(r"\(.*\)$", "", entry).split(":") for entry in re.split(r",(?![^(]*\))", text))
    return sum(_count(where, place, (parts[-1] or "0") if parts else "1") for name, *parts in entries if name == "gpu")


def _count(where: str, place: str, text: str) -> int:
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
    nor movable. Nodes without GPUs and nodes that only the topology knows are left out, and noted. `InputError` for a
    missing half, a node in no block (unless `skip_unlabelled`) or described twice.
    """
    if len(parts.topologies) != 1 or not parts.nodes:
        found = f"{len(parts.topologies)} topologies and the states of {len(parts.nodes)} nodes"
        raise InputError(where, "", found, "one topology.conf or topology.yaml, and sinfo or scontrol show node")
    topology = parts.topologies[0]
    paths = dict(_paths(topology))
    levels = (*(f"{BLOCK}-{size}" for size in topology.sizes[:0:-1]), BLOCK, NODE)
    machines = [status for status in parts.nodes if status.node.gpus > 0]
    kept = [status for status in machines if status.node.name in paths]
    for unplaced, node, _ in machines:
        if node.name not in paths and not options.skip_unlabelled:
            expected = f"a block in {topology.where}; skip_unlabelled leaves such nodes out"
            raise InputError(unplaced, f"node {node.name}, {BLOCK}", "none", expected)
    left_out = {
        "without GPUs": len(parts.nodes) - len(machines),
        "in no block": len(machines) - len(kept),
        "whose state is not reported": len(paths.keys() - {status.node.name for status in parts.nodes}),
    }
    if not kept:
        raise InputError(where, "nodes", "none with GPUs in a block", "at least one")
    nodes = [replace(node, path=paths[node.name]) for _, node, _ in kept]
    taken = (used for *_, used in kept if used.gpus or used.cpu or used.memory)
    jobs = [Job(f"slurm/{used.node}", (used,), name="allocated") for used in taken]
    notes = [f"left out {count} nodes {why}" for why, count in left_out.items() if count]
    return make_snapshot(where, levels, BLOCK, nodes, jobs, notes=notes)


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


def _sizes(where: str, place: str, texts: Sequence[str]) -> tuple[int, ...]:
    """Block sizes, each a power of two times the base size and larger than the one before."""
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
    for entry in re.split(r",(?![^\[\]]*\])", text.strip()):  # commas inside brackets part numbers
        if not entry.isprintable() or not entry or " " in entry:
            raise InputError(where, field, repr(text[:60]), HOST_LIST)
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
    endings = {_ending(name) for name in names}
    for prefix, digits in sorted(endings, key=lambda ending: (ending[0], int(ending[1] or "-1"), len(ending[1]))):
        found = ranges.setdefault(prefix, [])
        if found and found[-1][1] and digits == f"{int(found[-1][1]) + 1:0{len(found[-1][0])}d}":
            found[-1] = (found[-1][0], digits)
        else:
            found.append((digits, digits))
    entries = []
    for prefix, found in ranges.items():
        numbered = [(first, last) for first, last in found if first]
        inside = ",".join(first if first == last else f"{first}-{last}" for first, last in numbered)
        if len(numbered) < len(found):  # a name without a number stands for itself
            entries.append(prefix)
        if numbered:
            entries.append(prefix + inside if inside.isdigit() else f"{prefix}[{inside}]")
    return ",".join(entries)


def slurm_node_list(nodes: Collection[str]) -> str:
    """Node names for `--nodelist`, e.g. `rack01-node[001-016]`; `InputError` without any."""
    if not nodes:
        raise InputError("placement", "nodes", "none", "at least one node")
    return compress_hosts(nodes)


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
