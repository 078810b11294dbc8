"""Logs of batch schedulers, most of them Slurm: Acme, Helios, MIT SuperCloud, AIST's AAIC, and the SWF archive.

Acme (InternLM/AcmeTrace, NSDI'24) and Helios (S-Lab HeliosData, SC'21) look alike. Their `duration` is not used: in
Kalos it includes the time in the queue. Acme's times carry an offset (Seren +08:00, Kalos +00:00), which is honoured;
Helios' are local time of a zone without daylight saving.

The Standard Workload Format of the Parallel Workloads Archive has 18 columns separated by blanks, some archives append
more; `;` starts a comment, -1 is missing, and processors stand for GPUs, one for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nvlenv.common.errors import InputError, brief
from nvlenv.workload.table import TableRow, read_lines, read_table, timestamp
from nvlenv.workload.trace import NO_USER, UNKNOWN, Entry, Format, TraceJob

_ACME = ("user", "gpu_num", "type", "state", "submit_time", "start_time", "end_time", "gpu_time")
_HELIOS = ("user", "vc", "gpu_num", "state", "submit_time", "start_time", "end_time")
_KINDS = {"eval": "eval", "pretrain": "pretrain", "mllm": "pretrain", "sft": "finetune", "debug": "debug"}
_FAILURES = {"TIMEOUT": "FAILED", "NODE_FAIL": "FAILED"}
_UNFINISHED = {"RUNNING": "still running", "SUSPENDED": "still running", "PENDING": "never started"}
_HELIOS_START = timestamp("2020-04-01 00:00:00")  # its authors leave out the few submits before
_SUPERCLOUD = ("id_user", "state", "time_submit", "time_start", "time_end", "tres_alloc", "tres_req")
_GPU_KINDS = ("1001", "1002")  # trackable resources gpu:tesla and gpu:volta
_SLURM_STATES: dict[float, str] = {3: "COMPLETED", 4: "CANCELLED", 5: "FAILED", 6: "FAILED", 7: "FAILED", 11: "FAILED"}
_AAIC = (
    *("job", "user", "group", "queue", "nodes", "gpus_per_node", "req_walltime", "termcode"),
    *("submit", "start", "finish", "wait", "walltime"),
)
_AAIC_STATES: dict[float, str] = {0: "COMPLETED", 1: "FAILED", 2: "FAILED", 3: "CANCELLED", 4: "CANCELLED"}
_SWF_COLUMNS = 18
_SWF_USED = {1: "submit time", 3: "run time", 4: "processors", 7: "requested processors", 10: "status", 11: "user"}
_SWF_STATES: dict[float, str] = {0: "FAILED", 1: "COMPLETED", 5: "CANCELLED"}
_SWF_PARTS = (2, 3, 4)  # pieces of a job that has a line of its own


def _acme_job(row: TableRow, kind: str) -> Entry:
    gpus, state = row.number("gpu_num"), row.text("state").upper()
    if gpus == 0:
        return "no GPUs"
    if state in _UNFINISHED:
        return _UNFINISHED[state]
    submit, start = row.time("submit_time"), row.time("start_time")
    run_time = row.time("end_time") - start
    return TraceJob(submit, gpus, run_time, kind, row.text("user"), _FAILURES.get(state, state))


def _read_acme(path: Path) -> Iterator[Entry]:
    for row in read_table(path, _ACME):
        yield _acme_job(row, _KINDS.get(row.text("type").lower(), UNKNOWN))


def _read_helios(path: Path) -> Iterator[Entry]:
    for row in read_table(path, _HELIOS):
        entry = _acme_job(row, UNKNOWN)
        early = isinstance(entry, TraceJob) and entry.submit_s < _HELIOS_START
        yield "warm-up before 1 April 2020" if early else entry


def _tres_gpus(row: TableRow) -> float:
    """GPUs in a list of trackable resources such as `1=20,2=170000,4=1,5=20,1002=2`."""
    column = "tres_alloc" if row.text("tres_alloc").strip('"') else "tres_req"
    pairs = [item.partition("=") for item in row.text(column).strip('"').split(",") if item]
    try:
        return sum(float(count) for key, _, count in pairs if key in _GPU_KINDS)
    except ValueError:
        raise row.error(column, "resources like 1=20,1002=2") from None


def _read_supercloud(path: Path) -> Iterator[Entry]:
    for row in read_table(path, _SUPERCLOUD):
        gpus, start, end = _tres_gpus(row), row.number("time_start"), row.number("time_end")
        if gpus > 0 and start == 0:
            yield "never started"
        elif gpus > 0 and end == 0:
            yield "still running"
        else:
            status = _SLURM_STATES.get(row.number("state"), UNKNOWN)
            yield TraceJob(row.number("time_submit"), gpus, end - start, user=row.text("id_user"), status=status)


def _read_aaic(path: Path) -> Iterator[Entry]:
    for row in read_table(path, _AAIC, _AAIC):
        submit, gpus = row.number("submit"), row.number("nodes") * row.number("gpus_per_node")
        run_time = row.number("finish") - row.number("start")
        status = _AAIC_STATES.get(row.number("termcode"), UNKNOWN)
        yield TraceJob(submit, gpus, run_time, user=row.text("user"), status=status)


def _is_aaic(line: str) -> bool:
    cells = line.strip().split(",")
    return len(cells) == len(_AAIC) and all(cell.strip().isdigit() for cell in cells[4:6] + cells[7:10])


def _swf_values(path: Path, line: int, cells: list[str]) -> Iterator[float]:
    if len(cells) < _SWF_COLUMNS:
        raise InputError(path, f"line {line}", f"{len(cells)} columns", f"the {_SWF_COLUMNS} columns of SWF")
    for index, name in _SWF_USED.items():
        try:
            yield float(cells[index])
        except ValueError:
            raise InputError(path, f"line {line}, column {name!r}", brief(cells[index]), "a number") from None


def _read_swf(path: Path) -> Iterator[Entry]:
    for line, text in enumerate(read_lines(path), 1):
        cells = text.split(maxsplit=_SWF_COLUMNS)
        if not cells or cells[0].startswith(";"):
            continue
        submit, run_time, used, requested, status, user = _swf_values(path, line, cells)
        if status in _SWF_PARTS:
            yield "part of a job"
        elif submit < 0:
            yield "no submit time"
        else:
            gpus, who = used if used > 0 else requested, NO_USER if user < 0 else cells[11]
            yield TraceJob(submit, gpus, run_time, user=who, status=_SWF_STATES.get(status, UNKNOWN))


def _is_swf(line: str) -> bool:
    try:
        return line.startswith(";") or len([float(c) for c in line.split()[:_SWF_COLUMNS]]) == _SWF_COLUMNS
    except ValueError:
        return False


FORMATS = (
    Format("acme-kalos", "Acme trace_kalos.csv", _read_acme, (*_ACME, "mem_per_pod_GB"), source_gpus=2416),
    Format("acme-seren", "Acme trace_seren.csv", _read_acme, _ACME, source_gpus=2288),
    Format(
        "helios",
        "Helios cluster_log.csv",
        _read_helios,
        _HELIOS,
        note="virtual clusters are hard partitions in Helios; they are ignored here",
    ),
    Format("supercloud", "MIT SuperCloud slurm-log.csv", _read_supercloud, _SUPERCLOUD, source_gpus=448),
    Format("aaic", "AIST AAIC workload, headerless csv.gz", _read_aaic, matches=_is_aaic, source_gpus=320),
    Format("swf", "Standard Workload Format, processors as GPUs", _read_swf, matches=_is_swf),
)
