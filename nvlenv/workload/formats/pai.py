"""Alibaba PAI 2020 (pai_job_table, pai_task_table): tables without a header; GPUs in percent per instance of a task.

The tasks of a job are summed. The job table beside the task table gives the submit time and the user; without it the
first start of a task stands for the submit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nvlenv.common.errors import InputError
from nvlenv.workload.table import TableRow, read_table, table_beside
from nvlenv.workload.trace import NO_USER, Entry, Format, TraceJob

_JOB = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
_TASK = (
    *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
    *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
)
_STATES = frozenset({"Terminated", "Failed", "Running", "Waiting", "Interrupted"})


@dataclass
class _Tasks:
    """The GPU tasks of one job so far."""

    gpus: float = 0.0
    start: float = math.inf
    end: float = -math.inf
    failed: bool = False
    unfinished: str = ""

    def add(self, row: TableRow) -> None:
        gpus = row.number("inst_num") * row.number("plan_gpu") / 100
        if not gpus > 0:
            return
        start, end = row.number("start_time"), row.number("end_time")
        self.gpus += gpus
        self.start, self.end = min(self.start, start), max(self.end, end)
        self.failed |= row.text("status") == "Failed"
        if math.isnan(start):
            self.unfinished = "never started"
        elif math.isnan(end):
            self.unfinished = "no end time"


def _tables(path: Path) -> tuple[Path | None, Path]:
    """The job table, if there is one, and the task table."""
    if "pai_job_table" not in path.name:
        named = "pai_task_table" in path.name
        return table_beside(path, path.name.replace("pai_task_table", "pai_job_table")) if named else None, path
    tasks = table_beside(path, path.name.replace("pai_job_table", "pai_task_table"))
    if tasks is None:
        raise InputError(path, "", "no pai_task_table beside it", "the task table, which has the GPUs of the jobs")
    return path, tasks


def _read(path: Path) -> Iterator[Entry]:
    job_table, task_table = _tables(path)
    submits: dict[str, tuple[float, str]] = {}
    for row in read_table(job_table, _JOB, _JOB) if job_table else ():
        submits[row.text("job_name")] = row.number("start_time"), row.text("user")
    jobs: dict[str, _Tasks] = {}
    for row in read_table(task_table, _TASK, _TASK):
        jobs.setdefault(row.text("job_name"), _Tasks()).add(row)
    for name, tasks in jobs.items():
        submit, user = submits.get(name, (tasks.start, NO_USER))
        if tasks.gpus > 0 and tasks.unfinished:
            yield tasks.unfinished
        else:
            status = "FAILED" if tasks.failed else "COMPLETED"
            yield TraceJob(submit, tasks.gpus, tasks.end - tasks.start, user=user, status=status)


def _matches(line: str) -> bool:
    cells = tuple(line.strip().split(","))
    return cells in (_JOB, _TASK) or (len(cells) in (len(_JOB), len(_TASK)) and cells[3] in _STATES)


FORMATS = (Format("pai", "Alibaba PAI 2020, pai_task_table.csv", _read, matches=_matches, source_gpus=6742),)
