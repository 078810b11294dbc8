"""Arrival processes: their rate, their rhythm, their bursts."""

from __future__ import annotations

import numpy as np
import pytest

from nvlenv.workload import Bursty, Daily, Poisson
from nvlenv.workload.arrivals import arrival_times, hourly_factors, spread_batches
from nvlenv.workload.mix import DAY

PROCESSES = [Poisson(), Daily(), Bursty(wander=0.5)]


@pytest.mark.parametrize("process", PROCESSES, ids=lambda process: process.process)
def test_the_first_jobs_take_as_long_as_the_rate_says(process: Poisson | Daily | Bursty) -> None:
    rng = np.random.default_rng(1)
    ends = [arrival_times(process, 5.0, 1000, None, rng)[-1] for _ in range(400)]
    assert np.mean(ends) == pytest.approx(200, abs=4 * np.std(ends) / 20)


@pytest.mark.parametrize("process", PROCESSES, ids=lambda process: process.process)
def test_a_span_brings_as_many_jobs_as_the_rate_says(process: Poisson | Daily | Bursty) -> None:
    rng = np.random.default_rng(2)
    counts = [len(arrival_times(process, 5.0, None, 100.5, rng)) for _ in range(400)]
    assert np.mean(counts) == pytest.approx(502.5, abs=4 * np.std(counts) / 20)


@pytest.mark.parametrize("process", PROCESSES, ids=lambda process: process.process)
@pytest.mark.parametrize(("count", "hours"), [(500, None), (None, 30.0)])
def test_times_are_sorted_and_within_the_episode(
    process: Poisson | Daily | Bursty, count: int | None, hours: float | None
) -> None:
    times = arrival_times(process, 8.0, count, hours, np.random.default_rng(3))
    assert (np.diff(times) >= 0).all() and times[0] >= 0
    assert len(times) == count if count else times[-1] < hours


def test_the_rhythm_is_that_of_the_day() -> None:
    week = next(hourly_factors(Daily(week=(1, 1, 1, 1, 1, 1, 1)), False, np.random.default_rng(4)))
    assert week.mean() == pytest.approx(1)
    day = week[:24] / week[:24].sum() * sum(DAY)
    shifts = [np.roll(DAY, -hour) for hour in range(24)]
    assert any(np.allclose(day, shift) for shift in shifts)


def test_the_wandering_rate_has_the_spread_and_memory_it_is_given() -> None:
    process = Bursty(wander=0.8, memory=0.9, day=(1.0,) * 24, week=(1.0,) * 7)
    weeks = hourly_factors(process, False, np.random.default_rng(5))
    mood = np.log(np.concatenate([next(weeks) for _ in range(300)]))
    assert mood.std() == pytest.approx(0.8, rel=0.05)
    assert np.corrcoef(mood[1:], mood[:-1])[0, 1] == pytest.approx(0.9, abs=0.01)
    assert np.exp(mood).mean() == pytest.approx(1, abs=0.1)


def test_batches_follow_their_arrival_within_seconds() -> None:
    process = Bursty(same_second=0.3, gap_s=5.0, batch_log_mean=3.0)
    starts = np.arange(4000) * 10.0
    batched = np.arange(4000) % 2 == 0
    times, origin = spread_batches(process, starts, batched, np.random.default_rng(6))
    sizes = np.bincount(origin, minlength=4000)
    assert (sizes[~batched] == 1).all() and (sizes >= 1).all()
    assert sizes[batched].mean() == pytest.approx(process.batch_mean, rel=0.1)
    first = np.concatenate(([True], origin[1:] != origin[:-1]))
    np.testing.assert_allclose(times[first], starts)
    gaps = np.diff(times)[~first[1:]] * 3600
    assert np.mean(gaps < 1e-6) == pytest.approx(0.3, abs=0.02)
    assert gaps[gaps > 1e-6].mean() == pytest.approx(5.0, rel=0.05)
