"""Arrival processes: their rate, their rhythm, their bursts."""

from __future__ import annotations

import numpy as np
import pytest

from nvlenv.workload.generate import arrival_times, batch_sizes, hourly_factors, rest_of_batch, spread_batches
from nvlenv.workload.mix import DAY, Bursty, Daily, Poisson

PROCESSES = [Poisson(), Daily(), Bursty(wander=0.5)]


@pytest.mark.parametrize("process", PROCESSES, ids=lambda process: process.process)
def test_the_first_jobs_take_as_long_as_the_rate_says(process: Poisson | Daily | Bursty) -> None:
    rng = np.random.default_rng(1)
    ends = [arrival_times(process, 5.0, 1000, None, rng)[-1] for _ in range(400)]
    assert np.mean(ends) == pytest.approx(200, abs=4 * np.std(ends) / 20)


def test_an_episode_of_few_jobs_falls_into_the_busy_hour_as_often_as_jobs_do() -> None:
    process = Daily(day=(10.0, *(0.2,) * 23), week=(1,) * 7)
    rng = np.random.default_rng(8)
    ends = [arrival_times(process, 1.0, 3, None, rng)[-1] for _ in range(4000)]
    assert np.mean(ends) == pytest.approx(3, abs=0.3)


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
    process, rng = Bursty(same_second=0.3, gap_s=5.0), np.random.default_rng(6)
    starts, sizes = np.arange(4000) * 10.0, batch_sizes(process, 4000, rng)
    times, origin = spread_batches(process, starts, sizes, rng)
    np.testing.assert_array_equal(np.bincount(origin), sizes)
    first = np.concatenate(([True], origin[1:] != origin[:-1]))
    np.testing.assert_allclose(times[first], starts)
    gaps = np.diff(times)[~first[1:]] * 3600
    assert np.mean(gaps < 1e-6) == pytest.approx(0.3, abs=0.02)
    assert gaps[gaps > 1e-6].mean() == pytest.approx(5.0, rel=0.05)


def test_batches_have_the_sizes_they_should() -> None:
    process, rng = Bursty(batch_max=100), np.random.default_rng(9)
    sizes = batch_sizes(process, 200_000, rng)
    at_least = np.array([np.mean(sizes >= k) for k in range(1, 101)])
    np.testing.assert_allclose(process.batch_at_least, at_least, atol=0.005)


def test_what_is_left_of_a_batch_is_counted_from_a_random_job() -> None:
    process, rng = Bursty(batch_max=50), np.random.default_rng(10)
    sizes = batch_sizes(process, 100_000, rng)
    left = np.concatenate([np.arange(size, 0, -1) for size in sizes])
    drawn = np.array([rest_of_batch(process, rng) for _ in range(20_000)])
    np.testing.assert_allclose(np.bincount(drawn, minlength=51) / 20_000, np.bincount(left) / len(left), atol=0.01)
