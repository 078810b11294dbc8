"""What an evaluation plays, and what came of it: one flat record of metrics per policy and workload.

Played are scenarios as they are, out of distribution (`SHIFTS`), and as replays of job traces that start warm.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nvlenv.common.errors import InputError
from nvlenv.envs.scenario import Episode, Scenario, load_scenario, prepare
from nvlenv.policies.heuristics.rule import parse_rule
from nvlenv.policies.kueue.policy import KUEUE
from nvlenv.policies.resolver import baseline_name, play, resolve_policy
from nvlenv.simulator.decision import Policy
from nvlenv.simulator.forecast import target_size
from nvlenv.simulator.pooled import waiting_in_pool
from nvlenv.simulator.state import RUNNING, SAMPLE_FIELDS, SLOT_SIZES, WAITING, Sim
from nvlenv.workload.draw import SMALL_JOB
from nvlenv.workload.formats.registry import cached_trace
from nvlenv.workload.mix import JobClass, SyntheticWorkload, TraceWorkload
from nvlenv.workload.trace import Trace

SPLITS = {"train": 0, "validation": 1, "test": 2}
TRACE_PORTIONS = {"train": (0.0, 0.7), "validation": (0.7, 0.85), "test": (0.85, 1.0)}  # of the time of a trace
TRACE_JOBS = 2_000  # of a window replayed from a trace,
TRACE_SHARE = 1 / 3  # but at most this share of the portion, so that windows differ
BOUND, TWIN = "pooled+easy", "pooled"  # names of the references without topology, see `play_reference`
REFERENCES = (BOUND, TWIN)
TRUE_DURATIONS = "@true"  # after a policy's name: it is told how long jobs run
WARMUP = 0.1  # share of the episode that is discarded, unless the scenario says how much: longer than a mean hero run
FILLED = 0.9  # of what would run in the steady state should run when counting starts in a replay
LONGEST = 10_000.0  # h; the window of a replay ends with its last submit
Metrics = dict[str, float]


@dataclass(frozen=True)
class Case:
    """One set of workloads: a scenario, and how many jobs of each replay fill the cluster before counting starts."""

    label: str  # "lab-16", "lab-16 load+20", "lab-16 trace philly"
    source: str  # name or file of the scenario
    overrides: tuple[str, ...]  # of it
    scenario: Scenario
    base: str  # name of the scenario whose tuned baseline is the one to beat
    warm_jobs: int = 0


@dataclass(frozen=True)
class Played:
    """What every policy made of one workload."""

    metrics: dict[str, Metrics]  # policy name -> metrics; the references have a cost alone
    series: dict[str, np.ndarray]  # policy name -> (T, len(SAMPLE_FIELDS)) time series


def split_seeds(seed: int, split: str, n: int) -> list[np.random.SeedSequence]:
    """n workload seeds of a split; the splits of one seed never share a workload."""
    return np.random.SeedSequence(seed, spawn_key=(SPLITS[split],)).spawn(n)


def evaluation_scenario(name: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """A scenario with the start of its episodes discarded, so that what is measured is the steady state."""
    scenario = load_scenario(name, overrides)
    if scenario.episode.warmup_hours > 0:
        return scenario
    return load_scenario(name, [*overrides, f"episode.warmup_hours={WARMUP * scenario.episode.hours:g}"])


def make_case(
    source: str, overrides: Sequence[str] = (), split: str = "validation", shift: str | None = None,
    trace: Path | str | None = None,
) -> Case:  # fmt: skip
    """A set of workloads: a scenario as it is, with one of `SHIFTS`, or with the jobs of a trace.

    Raises `InputError` for a shift that says nothing about this scenario, and for a trace that cannot be read.
    """
    plain = load_scenario(source, overrides)
    label, settings = plain.name, list(overrides)
    if shift is not None:
        if shift not in SHIFTS:
            raise InputError("--shifts", "", repr(shift), f"some of {', '.join(SHIFTS)}, or all")
        settings += SHIFTS[shift](plain)
        label += f" {shift}"
    if trace is not None:
        if not Path(trace).is_file():
            raise InputError("--traces", "", repr(str(trace)), "a readable file")
        settings.insert(0, f"workload={{kind: trace, path: {trace}}}")  # what else is set may be about it
        label += f" trace {Path(trace).name.split('.')[0]}"
    scenario, warm_jobs = warm_started(evaluation_scenario(source, settings), split)
    return Case(label, str(source), tuple(settings), scenario, plain.name, warm_jobs)


# Out of distribution: what to override in a scenario


def _load(factor: float, scenario: Scenario) -> list[str]:
    if scenario.workload.load is None:
        raise InputError(scenario.name, "workload.load", "none", "a load that can be changed")
    return [f"workload.load={factor * scenario.workload.load:.6g}"]


def _racks(racks: int, scenario: Scenario) -> list[str]:
    """As many racks per block, and heroes of about the same share of the cluster in whole slices."""
    spec = scenario.cluster_spec()
    per_block = max(1, spec.racks // scenario.cluster.blocks)
    nodes = "" if isinstance(scenario.cluster.racks, int) else ", nodes_per_rack: 18"
    changes = [f"cluster={{racks: {racks}, blocks: {max(1, racks // per_block)}{nodes}}}"]
    if scenario.failures is not None:
        changes.append(f"failures.maintenance={_maintenance(scenario, racks)}")
    piece = scenario.slice_nodes * spec.gpus_per_node

    def sizes(hero: JobClass) -> dict[str, Any]:
        scaled: dict[int, float] = {}
        for size, share in hero.sizes.items():
            gpus = max(1, round(size * racks / spec.racks / piece)) * piece
            scaled[gpus] = scaled.get(gpus, 0.0) + share
        return {"sizes": scaled}

    return [*changes, *_with_heroes(scenario, sizes)]


def _with_heroes(scenario: Scenario, change: Callable[[JobClass], dict[str, Any]]) -> list[str]:
    """The job classes of the scenario, those changed whose jobs are all heroes."""
    if not isinstance(scenario.workload, SyntheticWorkload):
        raise InputError(scenario.name, "workload.kind", scenario.workload.kind, "synthetic, to change its classes")
    least = scenario.hero_share * scenario.cluster_spec().gpus
    classes = [
        each.model_copy(update=change(each)) if min(each.sizes) >= least else each for each in scenario.workload.classes
    ]
    dumped = [each.model_dump(mode="json", exclude_defaults=True) for each in classes]
    return [f"workload.classes={json.dumps(dumped)}"]


def _maintenance(scenario: Scenario, racks: int) -> str:
    """The planned windows of a scenario, as far as there are such racks."""
    windows = [] if scenario.failures is None else scenario.failures.maintenance
    kept = [(window, [rack for rack in window.racks if rack < racks]) for window in windows]
    return json.dumps([{**window.model_dump(mode="json"), "racks": left} for window, left in kept if left])


SHIFTS: dict[str, Callable[[Scenario], list[str]]] = {
    "load-20": partial(_load, 0.8),
    "load+20": partial(_load, 1.2),
    "heroes-x2": lambda scenario: _with_heroes(scenario, lambda hero: {"share": 2 * hero.share}),
    "estimates-exact": lambda scenario: ["workload.estimate_sigma=0"],
    "estimates-0.3": lambda scenario: ["workload.estimate_sigma=0.3"],
    "estimates-1.0": lambda scenario: ["workload.estimate_sigma=1"],
    **{f"racks-{racks}": partial(_racks, racks) for racks in (8, 33, 128)},
    "failures": lambda scenario: [f"failures={{maintenance: {_maintenance(scenario, scenario.cluster_spec().racks)}}}"],
}


# Replays


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


def warm_started(scenario: Scenario, split: str) -> tuple[Scenario, int]:
    """A replay whose windows begin in a filled cluster, and how many jobs fill it; any other scenario as it is.

    A window of a trace is a few days, and the jobs that fill a cluster run as long: started empty, nobody ever waits.
    So each window is preceded by the jobs that came before it in the trace (also from before the split's portion: they
    are played, not counted), until `FILLED` of what would run in the steady state runs, or the trace has no more.
    """
    workload = scenario.workload
    if not isinstance(workload, TraceWorkload) or workload.portion != (0.0, 1.0) or workload.jobs or workload.hours:
        return scenario, 0
    trace, gpus = cached_trace(workload.path, workload.format), scenario.cluster_spec().gpus
    source = workload.source_gpus or trace.source_gpus
    scale = min(1.0, gpus / source) if workload.thin and source else 1.0  # as the trace is thinned and shrunk
    kept = float(np.where(trace.gpus > SMALL_JOB, 1.0, scale).mean())  # share of its jobs that are left
    start, end = TRACE_PORTIONS[split]
    first, last = (int(np.searchsorted(trace.submit_s, share * trace.span_s)) for share in (start, end))
    counted = max(1, min(TRACE_JOBS, int(TRACE_SHARE * kept * (last - first))))
    warm = min(int(_hours_to_fill(trace) * _jobs_per_hour(trace, workload, gpus) * kept / scale), int(kept * first))
    begin = max(0, first - int(warm / kept))
    portion = (float(trace.submit_s[begin]) / trace.span_s, end)
    changes = {"portion": portion, "jobs": warm + counted}
    episode = scenario.episode.model_copy(update={"hours": LONGEST, "warmup_hours": 0.0})
    return scenario.model_copy(update={"workload": workload.model_copy(update=changes), "episode": episode}), warm


def _hours_to_fill(trace: Trace) -> float:
    """When a cluster that was empty runs `FILLED` of the steady state, if nobody waits.

    After t hours it runs the part of the work that jobs do in their first t hours.
    """
    hours, size = trace.duration_s / 3600, np.ceil(trace.gpus)
    work = float(np.dot(size, hours))
    low, high = 0.0, float(hours.max())
    for _ in range(50):
        t = (low + high) / 2
        low, high = (t, high) if float(np.dot(size, np.minimum(hours, t))) < FILLED * work else (low, t)
    return high


def _jobs_per_hour(trace: Trace, workload: TraceWorkload, gpus: int) -> float:
    """Jobs of the whole trace that this cluster would get in an hour at the target load."""
    load = workload.load or trace.offered_load(gpus)
    return load * gpus * len(trace) / float(np.dot(np.ceil(trace.gpus), trace.duration_s / 3600))


# Played


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
        of_it = waits[members]
        mean, p50, p95 = (of_it.mean(), *np.quantile(of_it, (0.5, 0.95))) if len(of_it) else (np.nan,) * 3
        metrics |= {name: float(mean), f"{name}_p50": float(p50), f"{name}_p95": float(p95)}
    metrics["running_at_end"] = float(np.sum(counted["status"] == RUNNING))
    return metrics


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
    seed: np.random.SeedSequence, scenario: Scenario, names: Sequence[str], references: Sequence[str] = REFERENCES,
    warm_jobs: int = 0, baseline: str | None = None,
) -> Played:  # fmt: skip
    """All policies, and the references named, on the same workload. `baseline`: whose queue discipline BOUND has."""
    episode = scenario.draw(seed)
    metrics: dict[str, Metrics] = {}
    series: dict[str, np.ndarray] = {}
    for name in names:
        sim = play_policy(name, scenario, episode, warm_jobs)
        metrics[name] = measure(sim, episode.workload.class_names)
        series[name] = sim.samples[: int(sim.clock["n_samples"][0])]
    for name in references:
        metrics[name] = play_reference(name, scenario, episode, warm_jobs, baseline or baseline_name(scenario.name))
    return Played(metrics, series)


def series_column(name: str) -> int:
    """The column of a time series by its name in `SAMPLE_FIELDS`."""
    return SAMPLE_FIELDS.index(name)
