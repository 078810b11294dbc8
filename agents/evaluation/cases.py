"""What an evaluation plays: scenarios, the same out of distribution, and replays of job traces with a warm start."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agents.evaluation.episodes import TRACE_JOBS, TRACE_PORTIONS, TRACE_SHARE
from nvlenv.common.errors import InputError
from nvlenv.envs.scenario import Scenario, load_scenario
from nvlenv.workload.formats.registry import cached_trace
from nvlenv.workload.mapping import SMALL_JOB
from nvlenv.workload.mix import JobClass, SyntheticWorkload, TraceWorkload
from nvlenv.workload.trace import Trace

WARMUP = 0.1  # share of the episode that is discarded, unless the scenario says how much: longer than a mean hero run
FILLED = 0.9  # of what would run in the steady state should run when counting starts in a replay
LONGEST = 10_000.0  # h; the window of a replay ends with its last submit


@dataclass(frozen=True)
class Case:
    """One set of workloads: a scenario, and how many jobs of each replay fill the cluster before counting starts."""

    label: str  # "lab-16", "lab-16 load+20", "lab-16 trace philly"
    source: str  # name or file of the scenario
    overrides: tuple[str, ...]  # of it
    scenario: Scenario
    base: str  # name of the scenario whose tuned baseline is the one to beat
    warm_jobs: int = 0


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


# Out of distribution: scenario -> what to override

Shift = Callable[[Scenario], list[str]]


def _load(factor: float) -> Shift:
    def override(scenario: Scenario) -> list[str]:
        if scenario.workload.load is None:
            raise InputError(scenario.name, "workload.load", "none", "a load that can be changed")
        return [f"workload.load={factor * scenario.workload.load:.6g}"]

    return override


def _racks(racks: int) -> Shift:
    """As many racks per block, and heroes of about the same share of the cluster in whole slices."""

    def override(scenario: Scenario) -> list[str]:
        spec = scenario.cluster_spec()
        per_block = max(1, spec.racks // scenario.cluster.blocks)
        nodes = "" if isinstance(scenario.cluster.racks, int) else ", nodes_per_rack: 18"
        changes = [f"cluster={{racks: {racks}, blocks: {max(1, racks // per_block)}{nodes}}}"]
        piece = scenario.slice_nodes * spec.gpus_per_node

        def sizes(hero: JobClass) -> dict[str, Any]:
            scaled: dict[int, float] = {}
            for size, share in hero.sizes.items():
                gpus = max(1, round(size * racks / spec.racks / piece)) * piece
                scaled[gpus] = scaled.get(gpus, 0.0) + share
            return {"sizes": scaled}

        if scenario.failures is not None:
            changes.append(f"failures.maintenance={_maintenance(scenario, racks)}")
        return [*changes, *_with_heroes(scenario, sizes)]

    return override


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


SHIFTS: dict[str, Shift] = {
    "load-20": _load(0.8),
    "load+20": _load(1.2),
    "heroes-x2": lambda scenario: _with_heroes(scenario, lambda hero: {"share": 2 * hero.share}),
    "estimates-exact": lambda scenario: ["workload.estimate_sigma=0"],
    "estimates-0.3": lambda scenario: ["workload.estimate_sigma=0.3"],
    "estimates-1.0": lambda scenario: ["workload.estimate_sigma=1"],
    "racks-8": _racks(8),
    "racks-33": _racks(33),
    "racks-128": _racks(128),
    "failures": lambda scenario: [f"failures={{maintenance: {_maintenance(scenario, scenario.cluster_spec().racks)}}}"],
}


# Replays


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
