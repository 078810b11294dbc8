"""Acme (InternLM/AcmeTrace, NSDI'24) and Helios (S-Lab HeliosData, SC'21): Slurm-like logs with start and end times.

The `duration` column is not used: in Kalos it includes the time in the queue. Acme's times carry an offset (Seren
+08:00, Kalos +00:00), which is honoured; Helios' are local time of a zone without daylight saving.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nvlenv.workload.table import TableRow, read_table, timestamp
from nvlenv.workload.trace import UNKNOWN, Entry, Format, TraceJob

_ACME = ("user", "gpu_num", "type", "state", "submit_time", "start_time", "end_time", "gpu_time")
_HELIOS = ("user", "vc", "gpu_num", "state", "submit_time", "start_time", "end_time")
_KINDS = {"eval": "eval", "pretrain": "pretrain", "mllm": "pretrain", "sft": "finetune", "debug": "debug"}
_FAILURES = {"TIMEOUT": "FAILED", "NODE_FAIL": "FAILED"}
_UNFINISHED = {"RUNNING": "still running", "SUSPENDED": "still running", "PENDING": "never started"}
_HELIOS_START = timestamp("2020-04-01 00:00:00")  # its authors leave out the few submits before


def _job(row: TableRow, kind: str) -> Entry:
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
        yield _job(row, _KINDS.get(row.text("type").lower(), UNKNOWN))


def _read_helios(path: Path) -> Iterator[Entry]:
    for row in read_table(path, _HELIOS):
        entry = _job(row, UNKNOWN)
        early = isinstance(entry, TraceJob) and entry.submit_s < _HELIOS_START
        yield "warm-up before 1 April 2020" if early else entry


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
)
