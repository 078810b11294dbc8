"""The state of Slurm's nodes: a `sinfo` table, or the output of `scontrol show node`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nvlenv.engine.importers.hostlist import expand
from nvlenv.engine.snapshot import UNLIMITED, NodeState
from nvlenv.errors import InputError

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
    for name in expand(row["NODELIST"], where, f"{place}, NODELIST"):
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
        statuses += [_scontrol_node(where, name, fields) for name in expand(fields["NodeName"], where, "NodeName")]
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
