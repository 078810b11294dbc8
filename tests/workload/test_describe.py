"""Statistics of traces, against numbers that were measured by other means."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nvlenv.workload.describe import summarise_trace, trace_table
from nvlenv.workload.formats.registry import read_trace
from nvlenv.workload.trace import Format, Trace, TraceJob, collect


def trace_of(*jobs: TraceJob) -> Trace:
    return collect(Path("trace"), Format("test", "a list", lambda _: iter(jobs)))


def test_a_small_trace_by_hand() -> None:
    facts = summarise_trace(
        trace_of(TraceJob(0, 1, 100), TraceJob(0.4, 0.5, 100), TraceJob(1800, 8, 100), TraceJob(5400, 300, 10))
    )
    assert (facts.jobs, facts.days, facts.gpus_max) == (4, 0.0625, 300)
    assert facts.duration_mean == 77.5 and facts.gpus_mean == pytest.approx(77.375)
    assert facts.gap_mean == 1800 and facts.gap_cv == pytest.approx(np.std([0.4, 1799.6, 3600]) / 1800)
    assert facts.same_second == pytest.approx(1 / 3)
    assert (facts.hourly_mean, facts.hourly_peak, facts.dispersion) == (2, 3, 0.5)
    np.testing.assert_allclose(facts.job_share, [0.5, 0, 0, 0.25, 0, 0, 0, 0, 0, 0.25])
    np.testing.assert_allclose(facts.work_share, np.array([150, 0, 0, 800, 0, 0, 0, 0, 0, 3000]) / 3950)


def test_a_single_job_has_no_gaps() -> None:
    facts = summarise_trace(trace_of(TraceJob(5, 1, 100)))
    assert (facts.gap_mean, facts.gap_cv, facts.same_second, facts.hourly_peak) == (0, 0, 0, 1)
    assert "inf on 72 GPUs" in trace_table(trace_of(TraceJob(5, 1, 100)), 72)


@pytest.mark.parametrize(
    ("name", "gpus", "days", "mean_gpus", "max_gpus", "mean_s", "one_gpu", "one_work", "gap", "same", "load"),
    [
        ("philly/philly_2017oct_3000.csv.gz", 2490, 1.954, 1.812, 128, 28682.6, 0.8817, 0.3254, 56.29, 0.088, 0.4749),
        ("kalos_reconstructed_3000.csv.gz", 2416, 37.738, 26.048, 1024, 831.5, 0.882, 0.00265, 1087.2, 0.318, 0.0603),
    ],
)
def test_the_excerpts_have_the_statistics_that_awk_finds(
    cases: Path,
    name: str,
    gpus: int,
    days: float,
    mean_gpus: float,
    max_gpus: float,
    mean_s: float,
    one_gpu: float,
    one_work: float,
    gap: float,
    same: float,
    load: float,
) -> None:
    trace = read_trace(cases / name)
    facts = summarise_trace(trace)
    found = [facts.days, facts.gpus_mean, facts.gpus_max, facts.duration_mean, facts.job_share[0], facts.work_share[0]]
    found += [facts.gap_mean, facts.same_second, trace.offered_load(gpus)]
    expected = [days, mean_gpus, max_gpus, mean_s, one_gpu, one_work, gap, same, load]
    np.testing.assert_allclose(found, expected, rtol=2e-3)


# Whole traces, as published with them: jobs, days, run time p10/p50/p90/p99/mean, GPUs mean/p90/max,
# gaps mean/cv/same second, jobs per hour mean/peak, dispersion, load on so many GPUs.
WHOLE = {
    "philly_2017oct.csv.gz": (
        *(60_000, 31.8, 64, 1677, 26081, 599685, 29300, 1.5, 1, 128),
        *(46, 2.6, 0.10, 78, 1043, 165, 0.79, 2490),
    ),
    "philly_sia_2017.csv.gz": (
        *(60_000, 45.5, 63, 1374, 10935, 218470, 11243, 1.2, 1, 32),
        *(65, 2.4, 0.10, 55, 1032, 178, 0.21, 2490),
    ),
    "acme_kalos_recon_SYNTH.csv.gz": (
        *(19_907, 88.7, 23, 125, 1543, 13451, 1341, 26.8, 8, 1024),
        *(385, 11.6, 0.32, 9.3, 472, 121, 0.29, 2416),
    ),
    "acme_seren_recon_SYNTH.csv.gz": (
        *(60_000, 24.5, 7, 134, 1352, 27426, 1644, 6.5, 8, 1024),
        *(35, 13.6, 0.35, 99, 1858, 559, 0.59, 2288),
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_traces_have_their_published_statistics(trace_archive: Path, name: str) -> None:
    path = trace_archive / name
    if not path.is_file():
        pytest.skip(f"{name} is not in the trace archive")
    trace = read_trace(path)
    facts = summarise_trace(trace)
    jobs, *exact = WHOLE[name][:10]
    gap, variation, same, hourly, peak, dispersion, load, gpus = WHOLE[name][10:]
    assert facts.jobs == jobs
    found = [facts.days, *facts.duration, facts.duration_mean, facts.gpus_mean, facts.gpus_p90, facts.gpus_max]
    np.testing.assert_allclose(found, exact, rtol=0.005, atol=0.06)
    arrivals = [facts.gap_mean, facts.gap_cv, facts.same_second, trace.offered_load(int(gpus))]
    np.testing.assert_allclose(arrivals, [gap, variation, same, load], rtol=0.02, atol=0.006)
    # where the hours begin was not published, and bursts fall to either side of it
    by_hour = [facts.hourly_mean, facts.hourly_peak, facts.dispersion]
    np.testing.assert_allclose(by_hour, [hourly, peak, dispersion], rtol=0.12)


@pytest.mark.parametrize(
    ("name", "jobs", "work"),
    [
        ("philly_2017oct.csv.gz", (90.1, 2.0, 3.8, 3.5, 0.4, 0.1), (20.0, 3.6, 17.1, 47.7, 7.7, 3.9)),
        ("alibaba_openb2023.csv.gz", (98.8, 0.2, 0.2, 0.7, 0, 0), (74.2, 3.0, 0.5, 22.3, 0, 0)),
    ],
)
def test_whole_traces_have_their_published_sizes(
    trace_archive: Path, name: str, jobs: tuple[float, ...], work: tuple[float, ...]
) -> None:
    path = trace_archive / name
    if not path.is_file():
        pytest.skip(f"{name} is not in the trace archive")
    facts = summarise_trace(read_trace(path))
    np.testing.assert_allclose(facts.job_share[:6] * 100, jobs, atol=0.1)
    np.testing.assert_allclose(facts.work_share[:6] * 100, work, atol=0.1)


NOT_TRACES = (
    "HEADER_ONLY",
    "header",
    "topo",
    "node",
    "throughput",
    "Azure",
    "machine_spec",
    "gpu_number",
    "multigpu50",
)


def test_every_excerpt_of_the_archive_has_jobs_or_is_no_trace(trace_archive: Path) -> None:
    folder = trace_archive / "raw_excerpts"
    if not folder.is_dir():
        pytest.skip("the trace archive has no raw excerpts")
    for path in sorted(folder.iterdir()):
        if not any(word in path.name for word in NOT_TRACES):
            assert len(read_trace(path)) >= 1, path.name
