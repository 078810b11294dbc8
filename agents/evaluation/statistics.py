"""From metrics per workload to what is reported, and how sure we are: means, paired differences, intervals, shares.

Resampled here and not by `scipy.stats.bootstrap`: that draws other resamples from the same generator, so that no
recorded interval would come again, and it does not resample workloads and training seeds at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import trim_mean

from agents.evaluation.episodes import BOUND, REFERENCES, Played, series_column

RESAMPLES = 10_000
STRATIFIED = 2_000  # resamples over training seeds, whose trimmed means are dearer
COMPARED = ("cost", "hero_wait", "other_wait", "stall", "lost", "evictions", "slots_16")  # metrics with intervals
RUNNING_MEAN = 12  # samples over which a decay curve is smoothed
Floats = NDArray[np.float64]
Json = dict[str, Any]
Columns = dict[str, dict[str, Floats]]  # policy -> metric -> (n,) values by workload; nan where there is none


@dataclass(frozen=True)
class Interval:
    """A mean (or another estimate) with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float

    @property
    def json(self) -> Json:
        """Its mean, low and high, those that are no number as None."""
        return {key: known(value) for key, value in vars(self).items()}

    @property
    def verdict(self) -> str:
        """`lower`, `higher` or `tie`: where the interval lies relative to zero."""
        if self.high < 0:
            return "lower"
        return "higher" if self.low > 0 else "tie"

    def __str__(self) -> str:
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


def known(value: float) -> float | None:
    """A number that JSON can say: None for nan and infinities."""
    return float(value) if np.isfinite(value) else None


def bootstrap(values: ArrayLike, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """The mean of values (n,) with its 95 % percentile bootstrap interval; the same seed gives the same interval.

    Values that do not exist (nan: a workload may have no hero) are left out.
    """
    sample = np.asarray(values, np.float64)
    sample = sample[~np.isnan(sample)]
    if len(sample) < 2:
        return Interval(mean_known(sample), -np.inf, np.inf)
    return _between(float(sample.mean()), _resampled_means(sample, seed, resamples))


def mean_known(values: ArrayLike) -> float:
    """The mean of those values that exist (a workload may have no hero); nan if none does."""
    sample = np.asarray(values, np.float64)
    sample = sample[~np.isnan(sample)]
    return float(sample.mean()) if len(sample) else np.nan


def paired(policy: ArrayLike, reference: ArrayLike, seed: int = 0) -> Interval:
    """policy - reference per workload (n,), with its interval. Below zero: the policy costs less."""
    return bootstrap(np.asarray(policy, np.float64) - np.asarray(reference, np.float64), seed)


def gap_closed(policy: ArrayLike, reference: ArrayLike, bound: ArrayLike) -> Interval:
    """Share of the gap between the mean costs of a reference and of the bound that a policy closes, values (n,) each.

    The mean is nan if there is no gap, and the interval unbounded where some resample has none.
    """
    costs = [np.asarray(values, np.float64) for values in (policy, reference, bound)]
    mine, theirs, best = (float(values.mean()) for values in costs)
    share = (theirs - mine) / (theirs - best) if theirs > best else np.nan
    drawn, drawn_theirs, drawn_best = (_resampled_means(values) for values in costs)
    if len(costs[0]) < 2 or np.isnan(share) or np.any(drawn_theirs <= drawn_best):
        return Interval(share, -np.inf, np.inf)
    return _between(share, (drawn_theirs - drawn) / (drawn_theirs - drawn_best))


def iqm_over_seeds(scores: ArrayLike) -> Interval:
    """The mean of the middle half of scores (training seeds, workloads), so that no outlier decides, with its interval.

    Workloads are resampled, and for each of them the training seeds (Agarwal et al., "Deep Reinforcement Learning at
    the Edge of the Statistical Precipice", NeurIPS 2021; their tasks are fixed, our workloads a sample).
    """
    table = np.asarray(scores, np.float64)
    drawn = trim_mean(_stratified(table).reshape(STRATIFIED, -1), 0.25, axis=1)
    return _between(float(trim_mean(table, 0.25, axis=None)), np.asarray(drawn))


def probability_of_improvement(scores: ArrayLike, reference: ArrayLike) -> Interval:
    """How likely a training seed costs less than the reference on a workload, ties counting half, with interval.

    scores (training seeds, workloads), reference (workloads,). Resampled as in `iqm_over_seeds`.
    """
    table, other = np.asarray(scores, np.float64), np.asarray(reference, np.float64)
    wins = (table < other) + 0.5 * (table == other)
    return _between(float(wins.mean()), _stratified(wins).mean(axis=(1, 2)))


def _stratified(table: Floats) -> Floats:
    """(STRATIFIED, seeds, workloads) resamples of a table (seeds, workloads)."""
    rng = np.random.default_rng(0)
    seeds, n = table.shape
    workloads = rng.integers(n, size=(STRATIFIED, 1, n))
    return np.asarray(table[rng.integers(seeds, size=(STRATIFIED, seeds, n)), workloads])


@lru_cache(maxsize=4)
def _counts(n: int, seed: int, resamples: int) -> Floats:
    """(resamples, n): how often each of n values is drawn in each resample."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(n, np.full(n, 1.0 / n), size=resamples).astype(np.float64)


def _resampled_means(sample: Floats, seed: int = 0, resamples: int = RESAMPLES) -> Floats:
    return _counts(len(sample), seed, resamples) @ sample / len(sample)


def _between(estimate: float, resampled: Floats) -> Interval:
    low, high = np.quantile(resampled, (0.025, 0.975))
    return Interval(estimate, float(low), float(high))


def describe_played(
    played: Sequence[Played], names: Sequence[str], reference: str, seeds: Mapping[str, Sequence[str]] | None = None
) -> Json:
    """All numbers about a set of workloads, as results.json has them; differences are paired against `reference`.

    `seeds`: label -> policies that are the same recipe trained with other seeds, which are reported together as well.
    """
    columns = columns_of(played)
    cost = {name: columns[name]["cost"] for name in (*names, *REFERENCES)}
    summary = {
        "reference": reference,
        "bound": {"cost": float(cost[BOUND].mean())},
        "references": {name: {"cost": float(cost[name].mean())} for name in REFERENCES},
        "policies": {name: _row(columns[name], columns[reference], cost[BOUND], name == reference) for name in names},
        "seeds": {label: _over_seeds(cost, group, reference) for label, group in (seeds or {}).items()},
    }
    curves = decay([p.series for p in played], names)
    return {"summary": summary, "decay": curves, "workloads": columns_as_json(columns)}


def columns_of(played: Sequence[Played]) -> Columns:
    """What was played, by policy and metric."""
    return {
        name: {metric: np.array([p.metrics[name][metric] for p in played], np.float64) for metric in metrics}
        for name, metrics in played[0].metrics.items()
    }


def columns_as_json(columns: Columns) -> Json:
    """The same with seven digits, and None for nan."""
    return {
        name: {metric: [known(float(f"{value:.7g}")) for value in values] for metric, values in metrics.items()}
        for name, metrics in columns.items()
    }


def _row(mine: dict[str, Floats], theirs: dict[str, Floats], bound: Floats, is_reference: bool) -> Json:
    """All that is read off a table about one policy beside the reference."""
    differences = {metric: paired(mine[metric], theirs[metric]) for metric in COMPARED}
    closed = gap_closed(mine["cost"], theirs["cost"], bound)
    verdict = "reference" if is_reference else differences["cost"].verdict
    return {
        "mean": {metric: known(mean_known(values)) for metric, values in mine.items()},
        "intervals": {metric: bootstrap(mine[metric]).json for metric in COMPARED},
        "difference": {**differences["cost"].json, "verdict": verdict},
        "differences": {metric: difference.json for metric, difference in differences.items()},
        "gap_closed": known(closed.mean),
        "gap_closed_interval": closed.json,
    }


def _over_seeds(cost: Mapping[str, Floats], group: Sequence[str], reference: str) -> Json:
    table, other = np.array([cost[name] for name in group]), cost[reference]
    difference = iqm_over_seeds(table - other)
    return {
        "policies": list(group),
        "mean": float(table.mean()),
        "iqm": iqm_over_seeds(table).json,
        "iqm_difference": {**difference.json, "verdict": difference.verdict},
        "probability_of_improvement": probability_of_improvement(table, other).json,
    }


def decay(series: Sequence[Mapping[str, np.ndarray]], names: Sequence[str]) -> Json:
    """Free 16-node slots since the empty cluster: running mean, and the 95 % band of the mean over workloads."""
    curves: Json = {}
    for name in names:
        length = min(len(s[name]) for s in series)
        runs = np.array([s[name][:length, series_column("slots_16")] for s in series], np.float64)
        window = np.ones(min(RUNNING_MEAN, length)) / min(RUNNING_MEAN, length)
        runs = np.array([np.convolve(np.pad(run, (len(window) - 1, 0), "edge"), window, "valid") for run in runs])
        curve = {
            "hours": series[0][name][:length, 0],
            "mean": runs.mean(axis=0),
            "band": 1.96 * runs.std(axis=0) / np.sqrt(len(runs)),
        }
        curves[name] = {key: [round(float(value), 4) for value in values] for key, values in curve.items()}
    return curves
