"""How sure we are: paired differences on the same workloads and over training seeds, with bootstrap intervals.

Resampled here and not by `scipy.stats.bootstrap`: that draws other resamples from the same generator, so that no
recorded interval would come again, and it does not resample workloads and training seeds at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import trim_mean

RESAMPLES = 10_000
STRATIFIED = 2_000  # resamples over training seeds, whose trimmed means are dearer
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A mean (or another estimate) with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """`lower`, `higher` or `tie`: where the interval lies relative to zero."""
        if self.high < 0:
            return "lower"
        return "higher" if self.low > 0 else "tie"

    def __str__(self) -> str:
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


def bootstrap(values: ArrayLike, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """The mean of values (n,) with its 95 % percentile bootstrap interval; the same seed gives the same interval.

    Values that do not exist (nan: a workload may have no hero) are left out.
    """
    sample = np.asarray(values, np.float64)
    sample = sample[~np.isnan(sample)]
    if len(sample) < 2:
        return Interval(mean_known(sample), float("-inf"), float("inf"))
    return _between(float(sample.mean()), _resampled_means(sample, seed, resamples))


def mean_known(values: ArrayLike) -> float:
    """The mean of those values that exist (a workload may have no hero); nan if none does."""
    sample = np.asarray(values, np.float64)
    known = sample[~np.isnan(sample)]
    return float(known.mean()) if len(known) else float("nan")


def paired(policy: ArrayLike, reference: ArrayLike, seed: int = 0) -> Interval:
    """policy - reference per workload (n,), with its interval. Below zero: the policy costs less."""
    return bootstrap(np.asarray(policy, np.float64) - np.asarray(reference, np.float64), seed)


def gap_closed(policy: ArrayLike, reference: ArrayLike, bound: ArrayLike, seed: int = 0) -> Interval:
    """Share of the gap between the mean costs of a reference and of the bound that a policy closes, values (n,) each.

    The mean is nan if there is no gap, and the interval unbounded where some resample has none.
    """
    costs = [np.asarray(values, np.float64) for values in (policy, reference, bound)]
    mine, theirs, best = (float(values.mean()) for values in costs)
    share = (theirs - mine) / (theirs - best) if theirs > best else float("nan")
    drawn, drawn_theirs, drawn_best = (_resampled_means(values, seed, RESAMPLES) for values in costs)
    if len(costs[0]) < 2 or np.isnan(share) or np.any(drawn_theirs <= drawn_best):
        return Interval(share, float("-inf"), float("inf"))
    return _between(share, (drawn_theirs - drawn) / (drawn_theirs - drawn_best))


def iqm_over_seeds(scores: ArrayLike, seed: int = 0) -> Interval:
    """The interquartile mean of scores (training seeds, workloads) with a stratified bootstrap interval.

    The mean of the middle half of all scores, so that no outlier decides.
    Workloads are resampled, and for each of them the training seeds (Agarwal et al., "Deep Reinforcement Learning at
    the Edge of the Statistical Precipice", NeurIPS 2021, whose tasks are our workloads; theirs are fixed, ours are a
    sample, so they are drawn as well).
    """
    table = np.asarray(scores, np.float64)
    drawn = trim_mean(_stratified(table, seed).reshape(STRATIFIED, -1), 0.25, axis=1)
    return _between(float(trim_mean(table, 0.25, axis=None)), np.asarray(drawn))


def probability_of_improvement(scores: ArrayLike, reference: ArrayLike, seed: int = 0) -> Interval:
    """How likely a training seed costs less than the reference on a workload, ties counting half, with interval.

    scores (training seeds, workloads), reference (workloads,). Resampled as in `iqm_over_seeds`.
    """
    table, other = np.asarray(scores, np.float64), np.asarray(reference, np.float64)
    wins = (table < other) + 0.5 * (table == other)
    return _between(float(wins.mean()), _stratified(wins, seed).mean(axis=(1, 2)))


def _stratified(table: Floats, seed: int) -> Floats:
    """(STRATIFIED, seeds, workloads) resamples of a table (seeds, workloads)."""
    rng = np.random.default_rng(seed)
    shape = (STRATIFIED, *table.shape)
    workloads = rng.integers(table.shape[1], size=(STRATIFIED, 1, table.shape[1]))
    return np.asarray(table[rng.integers(table.shape[0], size=shape), workloads])


@lru_cache(maxsize=4)
def _counts(n: int, seed: int, resamples: int) -> Floats:
    """(resamples, n): how often each of n values is drawn in each resample."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(n, np.full(n, 1.0 / n), size=resamples).astype(np.float64)


def _resampled_means(sample: Floats, seed: int, resamples: int) -> Floats:
    return _counts(len(sample), seed, resamples) @ sample / len(sample)


def _between(estimate: float, resampled: Floats) -> Interval:
    low, high = np.quantile(resampled, (0.025, 0.975))
    return Interval(estimate, float(low), float(high))
