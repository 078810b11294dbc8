"""Policies play episodes, and what came of it: one flat record of metrics per policy and workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nvlenv.envs.scenario import Episode, Scenario, prepare
from nvlenv.policies.heuristics.rule import parse_rule
from nvlenv.policies.kueue.policy import KUEUE
from nvlenv.policies.play import play
from nvlenv.policies.resolver import baseline_name, resolve_policy
from nvlenv.simulator.decision import Policy
from nvlenv.simulator.forecast import target_size
from nvlenv.simulator.pooled import waiting_in_pool
from nvlenv.simulator.state import RUNNING, SAMPLE_FIELDS, SLOT_SIZES, WAITING, Sim
from nvlenv.workload.formats.registry import cached_trace
from nvlenv.workload.mix import TraceWorkload

SPLITS = {"train": 0, "validation": 1, "test": 2}
TRACE_PORTIONS = {"train": (0.0, 0.7), "validation": (0.7, 0.85), "test": (0.85, 1.0)}  # of the time of a trace
TRACE_JOBS = 2_000  # of a window replayed from a trace,
TRACE_SHARE = 1 / 3  # but at most this share of the portion, so that windows differ
BOUND, TWIN = "pooled+easy", "pooled"  # names of the references without topology, see `play_reference`
REFERENCES = (BOUND, TWIN)
TRUE_DURATIONS = "@true"  # after a policy's name: it is told how long jobs run
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
    plain = name.removesuffix(TRUE_DURATIONS)
    path = Path(plain)
    if path.is_dir():
        path = path / "policy.npz"
    return resolve_policy(path if path.suffix == ".npz" or path.exists() else plain)


def measure(sim: Sim, class_names: Sequence[str]) -> Metrics:
    """The metrics of a finished episode. Costs are GPU-hours per GPU-hour that the cluster had; waits are hours."""
    c = sim.clock[0]
    hours = float(c["horizon"] - c["measure_from"])
    capacity = hours * int(c["capacity"])
    parts = {name: float(c[name]) / capacity for name in ("waiting", "slowdown", "lost")}
    metrics = {
        "cost": sum(parts.values()),
        **parts,
        "busy": float(c["busy"]) / capacity,
        "goodput": float(c["busy"] - c["slowdown"] - c["lost"]) / capacity,
        "stall": float(c["stall"]) / hours,
        "unreachable": float(c["unreachable"]) / capacity,
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

    metrics: dict[str, Metrics]  # policy name -> metrics; the references have a cost alone
    series: dict[str, np.ndarray]  # policy name -> (T, len(SAMPLE_FIELDS)) time series


def loaded(scenario: Scenario, episode: Episode, warm_jobs: int = 0, sample: bool = True) -> Sim:
    """A simulator filled with an episode. With `warm_jobs` counting starts with the submit of the job after them."""
    sim = prepare(scenario, episode, sample)
    if 0 < warm_jobs < len(episode.workload):
        sim.clock["measure_from"] = min(float(episode.workload.submit[warm_jobs]), 0.9 * float(sim.clock["horizon"][0]))
    return sim


def play_policy(name: str, scenario: Scenario, episode: Episode, warm_jobs: int = 0) -> Sim:
    """An episode played to its end by a policy, which is told the true run times if its name ends in "@true"."""
    if name.endswith(TRUE_DURATIONS):
        episode = replace(episode, workload=replace(episode.workload, estimate=episode.workload.duration))
    sim = loaded(scenario, episode, warm_jobs)
    play(find_policy(name), sim)
    return sim


def play_reference(name: str, scenario: Scenario, episode: Episode, warm_jobs: int, baseline: str) -> Metrics:
    """The cost of the workload without topology (`nvlenv.simulator.pooled`): under the baseline's queue discipline
    (BOUND), or first come, first served with backfilling as in the reward's twin (TWIN)."""
    sim = loaded(scenario, episode, warm_jobs, sample=False)
    hours = float(sim.clock["horizon"][0] - sim.clock["measure_from"][0])
    waiting = pooled_easy(sim, baseline) if name == BOUND else waiting_in_pool(sim)
    return {"cost": waiting / hours / episode.cluster.gpus}


def pooled_easy(sim: Sim, baseline: str) -> float:
    """Weighted waiting GPU-hours of a freshly loaded simulator as one pool that keeps GPUs for whom the baseline does.

    A baseline that reserves nothing lends the pool its queue order alone; every hero is reserved for.
    """
    rule = parse_rule("best-fit" if baseline.startswith(KUEUE) else baseline)
    least = int(target_size(sim, rule.easy_slices, rule.easy_share))
    return waiting_in_pool(sim, least, rule.easy_patience)


def play_workload(
    seed: np.random.SeedSequence,
    scenario: Scenario,
    names: Sequence[str],
    references: Sequence[str] = REFERENCES,
    warm_jobs: int = 0,
    baseline: str | None = None,
) -> Played:
    """All policies, and the references named, on the same workload. `baseline`: whose queue discipline BOUND has."""
    episode = scenario.draw(seed)
    metrics: dict[str, Metrics] = {}
    series: dict[str, np.ndarray] = {}
    for name in names:
        sim = play_policy(name, scenario, episode, warm_jobs)
        metrics[name] = measure(sim, episode.workload.class_names)
        series[name] = sim.samples[: int(sim.clock["n_samples"][0])]
    for name in references:
        discipline = baseline or baseline_name(scenario.name)
        metrics[name] = play_reference(name, scenario, episode, warm_jobs, discipline)
    return Played(metrics, series)


def series_column(name: str) -> int:
    """The column of a time series by its name in `SAMPLE_FIELDS`."""
    return SAMPLE_FIELDS.index(name)
