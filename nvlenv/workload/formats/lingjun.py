"""Alibaba Lingjun 2023: job.csv has the times, worker.csv beside it has the GPUs.

Times have minutes only, so a tenth of the runs last "0 s" and are dropped.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from nvlenv.common.errors import InputError
from nvlenv.workload.table import TableRow, read_table, table_beside
from nvlenv.workload.trace import Entry, Format, TraceJob

_JOB = ("job_name", "status", "gmt_job_submitted", "gmt_job_running", "gmt_job_stopped", "gmt_job_finished")
_WORKER = ("job_name", "worker_name", "RES")
_GPU = "nvidia.com/gpu"


def _beside(path: Path, name: str) -> Path:
    found = table_beside(path, name)
    if found is None:
        raise InputError(path, "", f"no {name} beside it", "job.csv and worker.csv in one folder")
    return found


def _worker_gpus(row: TableRow) -> float:
    try:
        return float(json.loads(row.text("RES", "{}")).get(_GPU, 0))
    except (ValueError, TypeError, AttributeError):
        raise row.error("RES", f'a JSON object like {{"{_GPU}":"8"}}') from None


def _read(path: Path) -> Iterator[Entry]:
    jobs = path if path.name.startswith("job") else _beside(path, "job.csv")
    workers = path if path.name.startswith("worker") else _beside(path, "worker.csv")
    gpus: defaultdict[str, float] = defaultdict(float)
    for row in read_table(workers, _WORKER):
        gpus[row.text("job_name")] += _worker_gpus(row)
    for row in read_table(jobs, _JOB):
        yield _job(row, gpus.get(row.text("job_name"), 0.0))


def _job(row: TableRow, gpus: float) -> Entry:
    submit, start = row.time("gmt_job_submitted"), row.time("gmt_job_running")
    finished, stopped = row.time("gmt_job_finished"), row.time("gmt_job_stopped")
    end = stopped if math.isnan(finished) else finished
    if math.isnan(start):
        return "never started"
    if math.isnan(end):
        return "still running"
    if start < submit:
        return "started before its submit"
    return TraceJob(submit, gpus, end - start, user=row.text("user_id"), status=row.text("status"))


def _is_worker_table(line: str) -> bool:
    return set(line.strip().split(",")).issuperset(_WORKER)


FORMATS = (
    Format("lingjun", "Alibaba Lingjun 2023, job.csv with worker.csv", _read, _JOB, _is_worker_table, source_gpus=2000),
)
