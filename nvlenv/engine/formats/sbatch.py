"""Jobs from Slurm: the #SBATCH lines of a batch script, or an sbatch option line."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from itertools import takewhile

from nvlenv.cluster.types import Mode
from nvlenv.common.errors import InputError
from nvlenv.engine.formats.slurm import gres_gpus
from nvlenv.engine.formats.values import parse_span
from nvlenv.engine.model.jobs import Job, PodSet
from nvlenv.policies.kueue.types import Layer


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SHORT = _words(
    "N:nodes n:ntasks c:cpus-per-task G:gpus t:time p:partition q:qos J:job-name o:output e:error A:account "
    "C:constraint D:chdir L:licenses M:clusters a:array b:begin d:dependency i:input m:distribution w:nodelist "
    "x:exclude H:hold I:immediate O:overcommit Q:quiet W:wait h:help k:no-kill s:oversubscribe v:verbose V:version"
)
SHORT = dict(word.split(":") for word in _SHORT)
# Options that stand alone, or have a value only behind "=".
FLAGS = _words(
    "hold immediate overcommit quiet wait help no-kill oversubscribe verbose version exclusive requeue no-requeue "
    "contiguous get-user-env ignore-pbs parsable propagate reboot spread-job test-only usage use-min-nodes nice "
    "consolidate-segments spread-segments stepmgr"
)
READ = _words(
    "nodes ntasks cpus-per-task gpus gpus-per-node gpus-per-task gres ntasks-per-node cpus-per-gpu mem mem-per-cpu "
    "mem-per-gpu segment switches time partition qos job-name priority exclusive requeue no-requeue"
)
# Options that say nothing about where a job can go.
IRRELEVANT = _words(
    "output error input open-mode account chdir export export-file comment mail-type mail-user parsable quiet verbose "
    "wait wrap signal uid gid get-user-env ignore-pbs wckey bell no-bell"
)
BYTES = {"K": 2**10, "M": 2**20, "": 2**20, "G": 2**30, "T": 2**40}
OPTION_LINE = re.compile(r"\s*(sbatch\s|--?[A-Za-z])")
ENDLESS = ("UNLIMITED", "INFINITE", "-1", "0")


@dataclass(frozen=True)
class _Options:
    """Long option names and their values; those that stand alone have an empty one."""

    where: str
    values: dict[str, str]

    def error(self, name: str, expected: str) -> InputError:
        return InputError(self.where, f"--{name}", repr(self.values.get(name, "")[:60]), expected)

    def count(self, name: str) -> int | None:
        """A whole number >= 1, or a range of one number such as 16-16; None if it is not given."""
        if name not in self.values:
            return None
        match = re.fullmatch(r"([0-9]{1,7})(?:-\1)?", self.values[name])
        if match is None or int(match[1]) < 1:
            raise self.error(name, "one whole number >= 1")
        return int(match[1])

    def gpus(self, name: str) -> int | None:
        """GPUs in `4`, `gb200:4` or, for --gres, `gpu:gb200:4`."""
        if name not in self.values:
            return None
        kind = "" if name == "gres" else "gpu:"
        listed = ",".join(kind + entry for entry in self.values[name].split(","))
        return gres_gpus(self.where, f"--{name}", listed) or None

    def memory(self, name: str) -> int:
        """Bytes; Slurm's unit is the megabyte. 0 if it is not given."""
        if name not in self.values:
            return 0
        match = re.fullmatch(r"([0-9]{1,9})([KMGT]?)B?", self.values[name].upper())
        if match is None:
            raise self.error(name, "a size such as 500G")
        return int(match[1]) * BYTES[match[2]]


def is_sbatch(text: str) -> bool:
    """Whether a text is an option line of sbatch or a script with #SBATCH lines."""
    return OPTION_LINE.match(text) is not None or re.search(r"(?m)^#SBATCH\b", text) is not None


def read_sbatch(where: str, text: str) -> Job:
    """The job that the options ask for: one pod for each node, slices of `--segment` nodes in one block each.

    Without a segment, a job of several nodes prefers one block, as topology/block does; `--switches=1` requires it.
    `InputError` for options that contradict each other, are not understood, or say nothing about GPUs.
    """
    options = _Options(where, _parse(where, _tokens(where, text)))
    values = options.values
    nodes, gpus, tasks = _shape(options)
    cpu = (options.count("cpus-per-gpu") or 0) * gpus or (options.count("cpus-per-task") or 0) * tasks
    memory = options.memory("mem") or options.memory("mem-per-gpu") * gpus or options.memory("mem-per-cpu") * cpu
    mode, slices = _promise(options, nodes)
    unused = sorted(values.keys() - READ - IRRELEVANT)
    return Job(
        name=values.get("job-name") or "sbatch",
        namespace="default",
        pod_sets=(PodSet("main", nodes, gpus, 1000 * cpu, memory, mode=mode, slices=slices),),
        queue=values.get("partition", ""),
        qos=values.get("qos", ""),
        priority=options.count("priority") or 0,
        estimate=_hours(options),
        preemptible="no-requeue" not in values,
        exclusive="exclusive" in values,
        notes=(f"options without effect here: {', '.join(f'--{name}' for name in unused)}",) if unused else (),
    )


def _shape(options: _Options) -> tuple[int, int, int]:
    """Nodes, GPUs on each and tasks on each, from whichever options say so."""
    total, per_task = options.gpus("gpus"), options.gpus("gpus-per-task")
    per_node = options.gpus("gpus-per-node") or options.gpus("gres")
    tasks, tasks_per_node = options.count("ntasks"), options.count("ntasks-per-node")
    nodes = options.count("nodes")
    if nodes is None:
        divide = (total, per_node) if total and per_node else (tasks, tasks_per_node)
        nodes = -(-divide[0] // divide[1]) if divide[0] and divide[1] else 1
    tasks_per_node = tasks_per_node or -(-(tasks or 1) // nodes)
    gpus = per_node or (total // nodes if total else (per_task or 0) * tasks_per_node)
    if not gpus:
        raise InputError(options.where, "", "no GPUs", "--gpus-per-node, --gres=gpu:N, --gpus or --gpus-per-task")
    if total and nodes * gpus != total:
        raise options.error("gpus", f"the GPUs of {nodes} nodes with {gpus} each")
    return nodes, gpus, tasks_per_node


def _promise(options: _Options, nodes: int) -> tuple[Mode, tuple[Layer, ...]]:
    segment = options.count("segment")
    if segment and nodes % segment:
        raise options.error("segment", f"a divisor of {nodes} nodes")
    if segment and segment < nodes:
        return Mode.UNCONSTRAINED, (Layer("", segment),)
    if segment or options.values.get("switches", "").split("@")[0] == "1":
        return Mode.REQUIRED, ()
    return (Mode.PREFERRED if nodes > 1 else Mode.UNCONSTRAINED), ()


def _hours(options: _Options) -> float | None:
    text = options.values.get("time", "UNLIMITED")
    if text.upper() in ENDLESS:
        return None
    if (hours := parse_span(text)) is None:
        raise options.error("time", "minutes, h:m:s, d-h or d-h:m:s")
    return hours


def _tokens(where: str, text: str) -> list[str]:
    """The words of the option line, or of the script's #SBATCH lines."""
    lines = re.sub(r"\\\r?\n", " ", text).splitlines()
    if OPTION_LINE.match(text):
        words = _shell_words(where, " ".join(lines))
        return words[1:] if words[0] == "sbatch" else words
    head = takewhile(lambda line: not line.strip() or line.startswith("#"), lines)  # Slurm stops at the first command
    options = (line.removeprefix("#SBATCH") for line in head if line.startswith("#SBATCH"))
    return [word for line in options for word in _shell_words(where, line)]


def _shell_words(where: str, line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise InputError(where, repr(line.strip()[:60]), str(error), "options as a shell reads them") from None


def _parse(where: str, tokens: list[str]) -> dict[str, str]:
    """Options by their long names, the last one of a name; what follows the script's name is the script's."""
    values: dict[str, str] = {}
    words = iter(tokens)
    for word in words:
        if not word.isprintable():
            raise InputError(where, "", ascii(word[:60]), "options of printable characters")
        if word in (":", "hetjob"):
            raise InputError(where, "", "a heterogeneous job", "a job of equal nodes")
        if not word.startswith("-") or word in ("-", "--"):
            values.setdefault("job-name", word.rsplit("/", 1)[-1])
            break
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            name, value = SHORT.get(word[1], ""), word[2:]
            equals = value
        if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
            raise InputError(where, repr(word[:60]), "an unknown option", "options of sbatch")
        if not equals and name not in FLAGS:
            value = next(words, "")
            if not value:
                raise InputError(where, f"--{name}", "no value", "a value")
        values[name] = value
    return values
