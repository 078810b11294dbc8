"""When jobs are submitted: independently, by the hour of the day, or in bursts.

All processes are one: a Poisson process whose rate is the mean rate times an hourly factor of mean 1. It is drawn at
constant rate 1 and its clock is then bent, so that a factor of 2 makes the hour pass twice as fast.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate

import numpy as np

from nvlenv.types import FloatArray, IntArray
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
    expected = _extend(np.zeros(1), rate * next(factors))  # arrivals expected by each full hour
    begin = rng.random()  # within the first hour
    before = begin * expected[1]
    if hours is None:
        clock = before + np.cumsum(rng.standard_exponential(count))
        while expected[-1] < clock[-1]:
            expected = _extend(expected, rate * next(factors))
    else:
        while len(expected) <= begin + hours:
            expected = _extend(expected, rate * next(factors))
        total = float(np.interp(begin + hours, np.arange(len(expected)), expected)) - before
        clock = before + np.sort(rng.uniform(0, total, rng.poisson(total)))
    times: FloatArray = np.maximum(np.interp(clock, expected, np.arange(len(expected))) - begin, 0.0)
    return times


def _extend(expected: FloatArray, more: FloatArray) -> FloatArray:
    return np.concatenate((expected, expected[-1] + np.cumsum(more)))


def batch_sizes(arrivals: Bursty, count: int, rng: np.random.Generator) -> IntArray:
    """(count,) jobs of so many batches."""
    drawn = np.rint(np.exp(arrivals.batch_log_mean + arrivals.batch_sigma * rng.standard_normal(count)))
    return np.clip(drawn, 1, arrivals.batch_max).astype(np.int32)


def rest_of_batch(arrivals: Bursty, rng: np.random.Generator) -> int:
    """Jobs of a batch from a random one of its jobs on: k with a probability in proportion to P(at least k jobs)."""
    edges = np.cumsum(arrivals.batch_at_least)
    return 1 + int(np.searchsorted(edges, rng.random() * edges[-1], side="right"))


def spread_batches(
    arrivals: Bursty, times: FloatArray, sizes: IntArray, rng: np.random.Generator
) -> tuple[FloatArray, IntArray]:
    """The jobs of batches that come at `times`.

    Returns
    -------
    times : (n,) h, unsorted; the first job of a batch comes at the time of the batch.
    origin : (n,) index of each job's batch.
    """
    origin = np.repeat(np.arange(len(times), dtype=np.int32), sizes)
    gaps = rng.standard_exponential(len(origin)) * arrivals.gap_s / 3600
    gaps[rng.random(len(origin)) < arrivals.same_second] = 0.0
    since = np.cumsum(gaps)
    first = np.cumsum(sizes) - sizes
    return times[origin] + since - since[first][origin], origin
