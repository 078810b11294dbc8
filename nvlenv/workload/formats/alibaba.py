"""Alibaba's traces (alibaba/clusterdata): the 2020 simulator sample, openb 2023, DLRM 2025, spot 2026 and ASI 2026."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from nvlenv.workload.table import read_table
from nvlenv.workload.trace import UNKNOWN, Entry, Format, TraceJob

_SAMPLE = ("num_inst", "submit_time", "num_gpu", "duration", "user", "gpu_type")
_OPENB = ("num_gpu", "gpu_milli", "qos", "pod_phase", "creation_time", "deletion_time", "scheduled_time")
_DLRM = ("role", "app_name", "gpu_request", "creation_time", "scheduled_time", "deletion_time")
_SPOT = ("organization", "gpu_request", "worker_num", "submit_time", "duration", "job_type")
_ASI = ("pod_id", "priority_class", "job_type_public", "gpu_request", "duration_hours", "ready_status")
_DLRM_END_S = 2_676_149.0  # pods without a deletion time were alive at the end of the trace
_ASI_KINDS = {
    "training": "training",
    "online_inference": "inference",
    "offline_inference": "eval",
    "dev": "debug",
}


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
)
