"""When jobs are submitted: independently, by the hour of the day, or in bursts.

All processes are one: a Poisson process whose rate is the mean rate times an hourly factor of mean 1. It is drawn at
constant rate 1 and its clock is then bent, so that a factor of 2 makes the hour pass twice as fast.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate

import numpy as np

from nvlenv.types import BoolArray, FloatArray, IntArray
from nvlenv.workload.mix import Bursty, Daily, Poisson

WEEK_H = 7 * 24


def hourly_factors(
    arrivals: Poisson | Daily | Bursty, from_a_job: bool, rng: np.random.Generator
) -> Iterator[FloatArray]:
    """Factors of the rate, hour by hour, a week (168,) at a time and without end; their long-term mean is 1.

    `from_a_job` starts at a random job instead of a random hour. More jobs fall into busy hours, so such a start is
    tilted to them by the factor itself, which for the lognormal part is a shift of the mean. Without it an episode of n
    jobs would take longer than n mean gaps on average, and its load would come out too low.
    """
    rhythm = np.ones(WEEK_H)
    if not isinstance(arrivals, Poisson):
        rhythm = np.outer(arrivals.week, arrivals.day).ravel()
        rhythm /= rhythm.mean()
        start = rng.choice(WEEK_H, p=rhythm / WEEK_H if from_a_job else None)
        rhythm = np.roll(rhythm, -int(start))
    if not isinstance(arrivals, Bursty):
        while True:
            yield rhythm
    memory, wander = arrivals.memory, arrivals.wander
    mood = rng.standard_normal() + (wander if from_a_job else 0.0)
    while True:
        shocks = math.sqrt(1 - memory**2) * rng.standard_normal(WEEK_H)
        moods = list(accumulate(shocks.tolist(), lambda before, shock: memory * before + shock, initial=mood))[1:]
        mood = moods[-1]
        yield rhythm * np.exp(wander * np.array(moods) - wander**2 / 2)


def arrival_times(
    arrivals: Poisson | Daily | Bursty, rate: float, count: int | None, hours: float | None, rng: np.random.Generator
) -> FloatArray:
    """Sorted times (h) of the first `count` arrivals, or of all within `hours`, at a mean `rate` per hour."""
    factors = hourly_factors(arrivals, hours is None, rng)
    expected = np.zeros(1)  # arrivals expected by each full hour
    if hours is None:
        clock = np.cumsum(rng.standard_exponential(count))
        while expected[-1] < clock[-1]:
            expected = _extend(expected, rate * next(factors))
        return np.interp(clock, expected, np.arange(len(expected)))
    while len(expected) <= hours:
        expected = _extend(expected, rate * next(factors))
    total = float(np.interp(hours, np.arange(len(expected)), expected))
    clock = np.sort(rng.uniform(0, total, rng.poisson(total)))
    return np.interp(clock, expected, np.arange(len(expected)))


def _extend(expected: FloatArray, more: FloatArray) -> FloatArray:
    return np.concatenate((expected, expected[-1] + np.cumsum(more)))


def spread_batches(
    arrivals: Bursty, times: FloatArray, batched: BoolArray, rng: np.random.Generator
) -> tuple[FloatArray, IntArray]:
    """Make a batch of jobs of every arrival that is `batched`.

    Returns
    -------
    times : (n,) h, unsorted; the first job of a batch comes at the time of its arrival.
    origin : (n,) index of each job's arrival.
    """
    drawn = np.rint(np.exp(arrivals.batch_log_mean + arrivals.batch_sigma * rng.standard_normal(len(times))))
    sizes = np.where(batched, np.clip(drawn, 1, arrivals.batch_max), 1).astype(np.int32)
    origin = np.repeat(np.arange(len(times), dtype=np.int32), sizes)
    gaps = rng.standard_exponential(len(origin)) * arrivals.gap_s / 3600
    gaps[rng.random(len(origin)) < arrivals.same_second] = 0.0
    since = np.cumsum(gaps)
    first = np.cumsum(sizes) - sizes
    return times[origin] + since - since[first][origin], origin
