"""Alibaba's traces (alibaba/clusterdata): PAI 2020 and its simulator's sample, Lingjun and openb 2023, DLRM 2025, spot
and ASI 2026.

PAI 2020 (pai_job_table, pai_task_table) has tables without a header; GPUs in percent per instance of a task, and the
tasks of a job are summed. The job table beside the task table gives the submit time and the user; without it the first
start of a task stands for the submit. In Lingjun job.csv has the times, worker.csv beside it has the GPUs; times have
minutes only, so a tenth of the runs last "0 s" and are dropped.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nvlenv.common.errors import InputError
from nvlenv.workload.table import TableRow, read_table, table_beside
from nvlenv.workload.trace import NO_USER, UNKNOWN, Entry, Format, TraceJob

_SAMPLE = ("num_inst", "submit_time", "num_gpu", "duration", "user", "gpu_type")
_OPENB = ("num_gpu", "gpu_milli", "qos", "pod_phase", "creation_time", "deletion_time", "scheduled_time")
_DLRM = ("role", "app_name", "gpu_request", "creation_time", "scheduled_time", "deletion_time")
_SPOT = ("organization", "gpu_request", "worker_num", "submit_time", "duration", "job_type")
_ASI = ("pod_id", "priority_class", "job_type_public", "gpu_request", "duration_hours", "ready_status")
_DLRM_END_S = 2_676_149.0  # pods without a deletion time were alive at the end of the trace
_ASI_KINDS = {"training": "training", "online_inference": "inference", "offline_inference": "eval", "dev": "debug"}
_PAI_JOB = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
_PAI_TASK = (
    *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
    *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
)
_PAI_STATES = frozenset({"Terminated", "Failed", "Running", "Waiting", "Interrupted"})
_LINGJUN = ("job_name", "status", "gmt_job_submitted", "gmt_job_running", "gmt_job_stopped", "gmt_job_finished")
_LINGJUN_WORKER = ("job_name", "worker_name", "RES")
_LINGJUN_GPU = "nvidia.com/gpu"


def _read_sample(path: Path) -> Iterator[Entry]:
    for row in read_table(path, _SAMPLE):
        gpus = row.number("num_inst") * row.number("num_gpu")  # num_gpu is per instance, in GPUs
        yield TraceJob(row.number("submit_time"), gpus, max(row.number("duration"), 1.0), user=row.text("user"))


def _read_openb(path: Path) -> Iterator[Entry]:
    for row in read_table(path, _OPENB):
        gpus = row.number("num_gpu") * row.number("gpu_milli") / 1000  # below 1000: a share of one GPU
        start = row.number("scheduled_time")
        if gpus > 0 and math.isnan(start):
            yield "never started"
            continue
        kind = "inference" if row.text("qos") == "LS" else UNKNOWN
        run_time = row.number("deletion_time") - start
        yield TraceJob(row.number("creation_time"), gpus, run_time, kind, status=row.text("pod_phase"))


def _read_dlrm(path: Path) -> Iterator[Entry]:
    for row in read_table(path, _DLRM):
        if row.text("role") != "HN":
            yield "no GPUs"
            continue
        created, scheduled, deleted = (row.number(f"{what}_time") for what in ("creation", "scheduled", "deletion"))
        submit = 0.0 if math.isnan(created) else created
        start = submit if math.isnan(scheduled) else scheduled
        end = _DLRM_END_S if math.isnan(deleted) else deleted
        status = "Running" if math.isnan(deleted) else "Succeeded"
        yield TraceJob(submit, row.number("gpu_request"), end - start, "inference", row.text("app_name"), status)


def _read_spot(path: Path) -> Iterator[Entry]:
    for row in read_table(path, _SPOT):
        gpus = row.number("gpu_request") * row.number("worker_num")
        kind = row.text("job_type", UNKNOWN)
        yield TraceJob(row.number("submit_time"), gpus, row.number("duration"), kind, row.text("organization"))


def _read_asi(path: Path) -> Iterator[Entry]:
    for number, row in enumerate(read_table(path, _ASI)):
        hours = row.number("day") * 24 + row.number("hour") if row.has("day") and row.has("hour") else number / 60
        kind = _ASI_KINDS.get(row.text("job_type_public"), UNKNOWN)
        user = row.text("workload_id")
        yield TraceJob(hours * 3600, row.number("gpu_request"), row.number("duration_hours") * 3600, kind, user)


@dataclass
class _Tasks:
    """The GPU tasks of one job so far."""

    gpus: float = 0.0
    start: float = math.inf
    end: float = -math.inf
    status: str = "COMPLETED"
    unfinished: str = ""

    def add(self, row: TableRow) -> None:
        gpus = row.number("inst_num") * row.number("plan_gpu") / 100
        if not gpus > 0:
            return
        start, end = row.number("start_time"), row.number("end_time")
        self.gpus += gpus
        self.start, self.end = min(self.start, start), max(self.end, end)
        if row.text("status") == "Failed":
            self.status = "FAILED"
        if math.isnan(start):
            self.unfinished = "never started"
        elif math.isnan(end):
            self.unfinished = "no end time"


def _read_pai(path: Path) -> Iterator[Entry]:
    jobs: Path | None
    if "pai_job_table" in path.name:
        jobs, expected = path, "the task table, which has the GPUs of the jobs"
        tasks = _beside(path, path.name.replace("pai_job_table", "pai_task_table"), "pai_task_table", expected)
    else:
        tasks, name = path, path.name.replace("pai_task_table", "pai_job_table")
        jobs = table_beside(path, name) if name != path.name else None
    submits = {}
    for row in read_table(jobs, _PAI_JOB, _PAI_JOB) if jobs else ():
        submits[row.text("job_name")] = row.number("start_time"), row.text("user")
    found: defaultdict[str, _Tasks] = defaultdict(_Tasks)
    for row in read_table(tasks, _PAI_TASK, _PAI_TASK):
        found[row.text("job_name")].add(row)
    for name, job in found.items():
        submit, user = submits.get(name, (job.start, NO_USER))
        if job.gpus > 0 and job.unfinished:
            yield job.unfinished
        else:
            yield TraceJob(submit, job.gpus, job.end - job.start, user=user, status=job.status)


def _beside(path: Path, name: str, called: str, expected: str) -> Path:
    found = table_beside(path, name)
    if found is None:
        raise InputError(path, "", f"no {called} beside it", expected)
    return found


def _is_pai(line: str) -> bool:
    cells = tuple(line.strip().split(","))
    return cells in (_PAI_JOB, _PAI_TASK) or (len(cells) in (len(_PAI_JOB), len(_PAI_TASK)) and cells[3] in _PAI_STATES)


def _read_lingjun(path: Path) -> Iterator[Entry]:
    both = "job.csv and worker.csv in one folder"
    jobs = path if path.name.startswith("job") else _beside(path, "job.csv", "job.csv", both)
    workers = path if path.name.startswith("worker") else _beside(path, "worker.csv", "worker.csv", both)
    gpus: defaultdict[str, float] = defaultdict(float)
    for row in read_table(workers, _LINGJUN_WORKER):
        gpus[row.text("job_name")] += _worker_gpus(row)
    for row in read_table(jobs, _LINGJUN):
        yield _lingjun_job(row, gpus.get(row.text("job_name"), 0.0))


def _worker_gpus(row: TableRow) -> float:
    try:
        return float(json.loads(row.text("RES", "{}")).get(_LINGJUN_GPU, 0))
    except (ValueError, TypeError, AttributeError):
        raise row.error("RES", f'a JSON object like {{"{_LINGJUN_GPU}":"8"}}') from None


def _lingjun_job(row: TableRow, gpus: float) -> Entry:
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


def _is_lingjun_worker(line: str) -> bool:
    return set(line.strip().split(",")).issuperset(_LINGJUN_WORKER)


FORMATS = (
    Format("pai-sim", "Alibaba PAI 2020, pai_job_*_100K.csv of its simulator", _read_sample, _SAMPLE, source_gpus=6742),
    Format(
        "openb",
        "Alibaba openb 2023, openb_pod_list_*.csv",
        _read_openb,
        _OPENB,
        note="pods sampled from a 6,212-GPU cluster, run times cut at the end of the trace: the load means little",
    ),
    Format(
        "dlrm",
        "Alibaba DLRM 2025, disaggregated_DLRM_trace.csv",
        _read_dlrm,
        _DLRM,
        source_gpus=3196,
        note="instances of services; those alive at the start are submitted at 0, those alive at the end are cut there",
    ),
    Format("spot", "Alibaba spot GPU 2026, job_info_df.csv", _read_spot, _SPOT, source_gpus=10_412),
    Format(
        "asi",
        "Alibaba ASI 2026, asi_opensource_job_execution_summary",
        _read_asi,
        _ASI,
        source_gpus=155_000,
        note="the file has no submit times: unless it has day and hour columns, pods come one a minute in its order",
    ),
    Format(
        "lingjun",
        "Alibaba Lingjun 2023, job.csv with worker.csv",
        _read_lingjun,
        _LINGJUN,
        _is_lingjun_worker,
        source_gpus=2000,
    ),
    Format("pai", "Alibaba PAI 2020, pai_task_table.csv", _read_pai, matches=_is_pai, source_gpus=6742),
)
