"""A trace in one table: sizes, run times, arrivals, load and what was left out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvlenv.cluster.types import FloatArray
from nvlenv.workload.trace import Trace

SIZE_EDGES = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # GPUs; upper ends of the buckets, the last one is open
SIZE_LABELS = ("1", "2", "3-4", "5-8", "9-16", "17-32", "33-64", "65-128", "129-256", "257+")
PERCENTILES = (10, 50, 90, 99)


@dataclass(frozen=True)
class Summary:
    """The statistics of a trace; times in s unless named otherwise."""

    jobs: int
    days: float
    duration: tuple[float, ...]  # PERCENTILES
    duration_mean: float
    gpus_mean: float
    gpus_p90: float
    gpus_max: float
    gap_mean: float
    gap_cv: float  # coefficient of variation
    same_second: float  # share of jobs submitted in the second of the one before
    hourly_mean: float  # jobs
    hourly_peak: int  # jobs
    dispersion: float  # variance / mean of hourly jobs
    job_share: FloatArray  # (10,) per size bucket
    work_share: FloatArray  # (10,) of the GPU-time


def summarise_trace(trace: Trace) -> Summary:
    """Measure a trace; shares of GPUs count in the bucket of one GPU."""
    gaps = np.diff(trace.submit_s) if len(trace) > 1 else np.zeros(1)
    hours = trace.span_s // 3600 + 1
    _, hourly = np.unique(trace.submit_s // 3600, return_counts=True)  # the empty hours may be very many
    hourly_mean = len(trace) / hours
    bucket = np.searchsorted(SIZE_EDGES, trace.gpus)
    work = np.bincount(bucket, trace.gpus * trace.duration_s, minlength=len(SIZE_LABELS))
    jobs = np.bincount(bucket, minlength=len(SIZE_LABELS))
    return Summary(
        jobs=len(trace),
        days=trace.span_s / 86400,
        duration=tuple(float(value) for value in np.percentile(trace.duration_s, PERCENTILES)),
        duration_mean=float(trace.duration_s.mean()),
        gpus_mean=float(trace.gpus.mean()),
        gpus_p90=float(np.percentile(trace.gpus, 90)),
        gpus_max=float(trace.gpus.max()),
        gap_mean=float(gaps.mean()),
        gap_cv=float(gaps.std() / gaps.mean()) if gaps.mean() > 0 else 0.0,
        same_second=float(np.mean(np.diff(np.floor(trace.submit_s)) == 0)) if len(trace) > 1 else 0.0,
        hourly_mean=hourly_mean,
        hourly_peak=int(hourly.max()),
        dispersion=float((hourly**2).sum() / hours / hourly_mean - hourly_mean),
        job_share=jobs / jobs.sum(),
        work_share=work / work.sum(),
    )


def trace_table(trace: Trace, cluster_gpus: int) -> str:
    """The summary as text, with the offered load on a cluster of `cluster_gpus` GPUs."""
    facts, report = summarise_trace(trace), trace.report
    run_times = "  ".join(f"p{p} {value:,.0f}" for p, value in zip(PERCENTILES, facts.duration, strict=True))
    lines = [
        ("file", f"{trace.source} (format {report.format})"),
        ("rows", f"{report.rows:,} read, {report.kept:,} kept"),
        *((f"  {reason}", f"{count:,} dropped") for reason, count in report.dropped.items()),
        ("jobs", f"{facts.jobs:,} in {facts.days:.1f} days"),
        ("run time (s)", f"{run_times}  mean {facts.duration_mean:,.0f}"),
        ("size (GPUs)", f"mean {facts.gpus_mean:.2f}  p90 {facts.gpus_p90:g}  max {facts.gpus_max:g}"),
        ("gaps (s)", f"mean {facts.gap_mean:,.1f}  cv {facts.gap_cv:.1f}  same second {facts.same_second:.0%}"),
        ("jobs per hour", f"mean {facts.hourly_mean:.1f}  peak {facts.hourly_peak:,}  var/mean {facts.dispersion:.0f}"),
        ("offered load", f"{trace.offered_load(cluster_gpus):.2f} on {cluster_gpus:,} GPUs, as submitted"),
    ]
    if trace.source_gpus:
        lines.append(("", f"{trace.offered_load(trace.source_gpus):.2f} on its own {trace.source_gpus:,} GPUs"))
    if report.note:
        lines.append(("note", report.note))
    text = [f"{name:<28}{value}".rstrip() for name, value in lines]
    text.append(f"\n{'size (GPUs)':<14}{'jobs %':>9}{'GPU-time %':>13}")
    for label, job_share, work_share in zip(SIZE_LABELS, facts.job_share, facts.work_share, strict=True):
        text.append(f"{label:<14}{100 * job_share:>9.1f}{100 * work_share:>13.1f}")
    return "\n".join(text)
