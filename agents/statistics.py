"""How sure we are: paired differences on the same workloads, with bootstrap intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 10_000


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % bootstrap interval."""

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
    """The mean of values (n,) with its 95 % percentile bootstrap interval; the same seed gives the same interval."""
    sample: NDArray[np.float64] = np.asarray(values, np.float64)
    if len(sample) < 2:
        mean = float(sample.mean()) if len(sample) else float("nan")
        return Interval(mean, float("-inf"), float("inf"))
    rng = np.random.default_rng(seed)
    means = np.array([sample[rng.integers(len(sample), size=len(sample))].mean() for _ in range(resamples)])
    low, high = np.quantile(means, (0.025, 0.975))
    return Interval(float(sample.mean()), float(low), float(high))


def mean_known(values: ArrayLike) -> float:
    """The mean of those values that exist (a workload may have no hero); nan if none does."""
    sample = np.asarray(values, np.float64)
    known = sample[~np.isnan(sample)]
    return float(known.mean()) if len(known) else float("nan")


def paired(policy: ArrayLike, reference: ArrayLike, seed: int = 0) -> Interval:
    """policy - reference per workload (n,), with its interval. Below zero: the policy costs less."""
    return bootstrap(np.asarray(policy, np.float64) - np.asarray(reference, np.float64), seed)


def gap_closed(policy: ArrayLike, reference: ArrayLike, bound: ArrayLike) -> float:
    """Share of the gap between a reference and the bound from below that a policy closes; nan if there is no gap."""
    means = [float(np.mean(np.asarray(values, np.float64))) for values in (policy, reference, bound)]
    gap = means[1] - means[2]
    return (means[1] - means[0]) / gap if gap > 0 else float("nan")
