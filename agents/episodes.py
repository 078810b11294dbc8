"""Policies play episodes, and what came of it: one flat record of metrics per policy and workload."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from nvlenv.engine import load_policy
from nvlenv.loading import horizon_of, pooled_waiting, prepare, warmup_of
from nvlenv.policies import heuristic
from nvlenv.policies.play import play
from nvlenv.scenario import Scenario
from nvlenv.simulator.state import RUNNING, SAMPLE_FIELDS, SLOT_SIZES, WAITING, Sim
from nvlenv.types import Policy
from nvlenv.workload import TraceWorkload, cached_trace

SPLITS = {"train": 0, "validation": 1, "test": 2}
TRACE_PORTIONS = {"train": (0.0, 0.7), "validation": (0.7, 0.85), "test": (0.85, 1.0)}  # of the time of a trace
TRACE_JOBS = 2_000  # of a window replayed from a trace,
TRACE_SHARE = 1 / 3  # but at most this share of the portion, so that windows differ
BOUND = "pooled"  # the name under which the bound from below is kept
Metrics = dict[str, float]


def split_seeds(seed: int, split: str, n: int) -> list[np.random.SeedSequence]:
    """n workload seeds of a split; the splits of one seed never share a workload."""
    return np.random.SeedSequence(seed, spawn_key=(SPLITS[split],)).spawn(n)


def split_scenario(scenario: Scenario, split: str) -> Scenario:
    """The scenario as a split sees it: a trace is cut into disjoint portions of time, replayed window by window."""
    workload = scenario.workload
    if not isinstance(workload, TraceWorkload) or workload.portion != (0.0, 1.0):
        return scenario
    start, end = TRACE_PORTIONS[split]
    changes: dict[str, Any] = {"portion": (start, end)}
    if workload.jobs is None and workload.hours is None:
        submit = cached_trace(workload.path, workload.format).submit_s
        inside = np.mean((submit >= start * submit[-1]) & (submit < end * submit[-1])) * len(submit)
        changes["jobs"] = max(1, min(TRACE_JOBS, int(TRACE_SHARE * inside)))
    return scenario.model_copy(update={"workload": workload.model_copy(update=changes)})


def find_policy(name: str) -> Policy:
    """A policy by the name of a heuristic, or the path of an exported file or of a folder that holds policy.npz."""
    path = Path(name)
    if path.is_dir():
        path = path / "policy.npz"
    if path.suffix == ".npz" or path.exists():
        policy: Policy = load_policy(path)
        return policy
    return heuristic(name)


def measure(sim: Sim, class_names: Sequence[str]) -> Metrics:
    """The metrics of a finished episode. Costs are GPU-hours per GPU-hour that the cluster had; waits are hours."""
    c = sim.clock[0]
    hours = float(c["horizon"] - c["measure_from"])
    capacity = hours * int(c["capacity"])
    parts = {name: float(c[name]) / capacity for name in ("waiting", "slowdown", "lost")}
    metrics = {
        "cost": sum(parts.values()),
        **parts,
        "goodput": float(c["busy"] - c["slowdown"] - c["lost"]) / capacity,
        "stall": float(c["stall"]) / hours,
        **{f"slots_{size}": float(sim.slots[1, k]) / hours for k, size in enumerate(SLOT_SIZES)},
        **{name: float(c[name]) for name in ("evictions", "moves", "failures", "decisions", "illegal")},
    }
    jobs = sim.jobs[: int(c["n_jobs"])]
    counted = jobs[(jobs["submit"] >= c["measure_from"]) & (jobs["submit"] < c["horizon"])]
    waits = counted["waited"] + np.where(counted["status"] == WAITING, c["horizon"] - counted["queued"], 0.0)
    heroes = counted["gpus"] >= c["hero_gpus"]
    groups = {"hero_wait": heroes, "other_wait": ~heroes}
    groups |= {f"wait_{name}": counted["klass"] == k for k, name in enumerate(class_names)}
    for name, members in groups.items():
        metrics |= _summary(name, waits[members])
    metrics["running_at_end"] = float(np.sum(counted["status"] == RUNNING))
    return metrics


def _summary(name: str, waits: np.ndarray) -> Metrics:
    if len(waits) == 0:
        return dict.fromkeys((name, f"{name}_p50", f"{name}_p95"), float("nan"))
    p50, p95 = np.quantile(waits, (0.5, 0.95))
    return {name: float(waits.mean()), f"{name}_p50": float(p50), f"{name}_p95": float(p95)}


@dataclass(frozen=True)
class Played:
    """What every policy made of one workload."""

    metrics: dict[str, Metrics]  # policy name -> metrics; "pooled" is the bound from below
    series: dict[str, np.ndarray]  # policy name -> (T, len(SAMPLE_FIELDS)) time series


def play_workload(seed: np.random.SeedSequence, scenario: Scenario, names: Sequence[str]) -> Played:
    """All policies on the same workload."""
    episode = scenario.draw(seed)
    metrics: dict[str, Metrics] = {}
    series: dict[str, np.ndarray] = {}
    for name in names:
        sim = prepare(scenario, episode)
        play(find_policy(name), sim)
        metrics[name] = measure(sim, episode.workload.class_names)
        series[name] = sim.samples[: int(sim.clock["n_samples"][0])]
    hours = horizon_of(scenario, episode) - warmup_of(scenario, episode)
    metrics[BOUND] = {"cost": pooled_waiting(scenario, episode) / hours / episode.cluster.gpus}
    return Played(metrics, series)


def play_all(
    scenario: Scenario,
    names: Sequence[str],
    seeds: Iterable[np.random.SeedSequence],
    workers: int = 1,
    progress: Callable[[Iterable[Played]], Iterable[Played]] = lambda results: results,
) -> list[Played]:
    """All policies on all workloads, in the order of the seeds, over so many processes."""
    task = partial(play_workload, scenario=scenario, names=names)
    if workers <= 1:
        return list(progress(map(task, seeds)))
    with ProcessPoolExecutor(workers, mp_context=get_context("forkserver")) as pool:
        return list(progress(pool.map(task, seeds)))


def series_column(name: str) -> int:
    """The column of a time series by its name in `SAMPLE_FIELDS`."""
    return SAMPLE_FIELDS.index(name)
