"""From metrics per workload to what is reported: means, intervals, verdicts, shares of the gap, decay curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agents.evaluation.episodes import BOUND, REFERENCES, TRUE_DURATIONS, Played, series_column
from agents.evaluation.statistics import (
    Interval,
    bootstrap,
    gap_closed,
    iqm_over_seeds,
    mean_known,
    paired,
    probability_of_improvement,
)

COMPARED = ("cost", "hero_wait", "other_wait", "stall", "lost", "evictions", "slots_16")  # metrics with intervals
RUNNING_MEAN = 12  # samples over which a decay curve is smoothed
Json = dict[str, Any]
Columns = dict[str, dict[str, np.ndarray]]


def short_name(name: str) -> str:
    """How a policy is called in tables: a heuristic by its name, a file by its folder."""
    suffix = ", true run times" if name.endswith(TRUE_DURATIONS) else ""
    name = name.removesuffix(TRUE_DURATIONS)
    path = Path(name)
    if path.suffix == ".npz":
        name = path.parent.name if path.stem == "policy" and path.parent.name else path.stem
    elif path.is_dir():
        name = path.name
    return name + suffix


def known(value: float) -> float | None:
    """A number that JSON can say: None for nan and infinities."""
    return float(value) if np.isfinite(value) else None


def interval_as_json(interval: Interval) -> Json:
    """Its mean, low and high, those that are no number as None."""
    return {key: known(value) for key, value in vars(interval).items()}


def columns_of(played: Sequence[Played]) -> Columns:
    """policy -> metric -> (n,) values by workload; nan where there is none."""
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


def summarise_columns(
    columns: Columns, names: Sequence[str], reference: str, seeds: Mapping[str, Sequence[str]] | None = None
) -> Json:
    """Everything about a set of workloads that is read off a table.

    `columns`: see `columns_of`. Differences are paired per workload against `reference`. `seeds`: label ->
    policies that are the same recipe trained with other seeds, which are reported together as well.
    """
    cost = {name: columns[name]["cost"] for name in (*names, *REFERENCES)}
    rows: Json = {}
    for name in names:
        mine, theirs = columns[name], columns[reference]
        differences = {metric: paired(mine[metric], theirs[metric]) for metric in COMPARED}
        verdict = differences["cost"].verdict if name != reference else "reference"
        closed = gap_closed(cost[name], cost[reference], cost[BOUND])
        rows[name] = {
            "mean": {metric: known(mean_known(values)) for metric, values in mine.items()},
            "intervals": {metric: interval_as_json(bootstrap(mine[metric])) for metric in COMPARED},
            "difference": {**interval_as_json(differences["cost"]), "verdict": verdict},
            "differences": {metric: interval_as_json(difference) for metric, difference in differences.items()},
            "gap_closed": known(closed.mean),
            "gap_closed_interval": interval_as_json(closed),
        }
    return {
        "reference": reference,
        "bound": {"cost": float(cost[BOUND].mean())},
        "references": {name: {"cost": float(cost[name].mean())} for name in REFERENCES},
        "policies": rows,
        "seeds": {label: _over_seeds(cost, group, reference) for label, group in (seeds or {}).items()},
    }


def _over_seeds(cost: Mapping[str, np.ndarray], group: Sequence[str], reference: str) -> Json:
    table, other = np.array([cost[name] for name in group]), cost[reference]
    difference = iqm_over_seeds(table - other)
    return {
        "policies": list(group),
        "mean": float(table.mean()),
        "iqm": interval_as_json(iqm_over_seeds(table)),
        "iqm_difference": {**interval_as_json(difference), "verdict": difference.verdict},
        "probability_of_improvement": interval_as_json(probability_of_improvement(table, other)),
    }


def decay(series: Sequence[Mapping[str, np.ndarray]], names: Sequence[str]) -> Json:
    """Free 16-node slots since the empty cluster: running mean, and the 95 % band of the mean over workloads."""
    curves: Json = {}
    for name in names:
        length = min(len(s[name]) for s in series)
        runs = np.array([s[name][:length, series_column("slots_16")] for s in series], np.float64)
        window = np.ones(min(RUNNING_MEAN, length)) / min(RUNNING_MEAN, length)
        runs = np.array([np.convolve(np.pad(run, (len(window) - 1, 0), "edge"), window, "valid") for run in runs])
        error = 1.96 * runs.std(axis=0) / np.sqrt(len(runs))
        curves[name] = {
            "hours": [round(float(hour), 4) for hour in series[0][name][:length, 0]],
            "mean": [round(float(value), 4) for value in runs.mean(axis=0)],
            "band": [round(float(value), 4) for value in error],
        }
    return curves


def describe_played(
    played: Sequence[Played], names: Sequence[str], reference: str, seeds: Mapping[str, Sequence[str]] | None = None
) -> Json:
    """All numbers about a set of workloads, as results.json has them."""
    columns = columns_of(played)
    return {
        "summary": summarise_columns(columns, names, reference, seeds),
        "decay": decay([p.series for p in played], names),
        "workloads": columns_as_json(columns),
    }
