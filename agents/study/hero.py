"""hero-blocked: a third of the cluster is empty and no rack is open; who gets the hero started, when, at what price."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from agents.evaluation.episodes import find_policy
from agents.evaluation.figures import OKABE_ITO
from agents.evaluation.statistics import bootstrap
from agents.evaluation.tables import short_name
from agents.study.study import (
    Study,
    StudySettings,
    at,
    bars_with_intervals,
    branch,
    filled,
    means,
    panels,
    play_until,
    running,
    unframed,
    with_one_hero,
)
from nvlenv.cluster.types import FloatArray, IntArray
from nvlenv.envs.scenario import Scenario, prepare
from nvlenv.policies.resolver import resolve_policy
from nvlenv.simulator.decision import Policy
from nvlenv.simulator.state import Sim

NAME = "hero-blocked"
HISTORY = "least-allocated"  # how the cluster came into this state: kube-scheduler's default
ARRIVAL = 72.0  # h
NOTHING, EVERY, FEW = "do nothing", "evict all (hero controller)", "evict as few as needed"
POLICIES = {
    NOTHING: HISTORY,
    "pack tightly from now on": "best-fit",
    "reserve (EASY)": "best-fit+easy",
    EVERY: "best-fit+open-hero",
    FEW: "best-fit+open",
    "reserve and evict few": "best-fit+easy+open",
}
CELLS = {
    "hero waits": "{wait:.1f} h",
    "95 %": "{interval.low:.1f} ... {interval.high:.1f}",
    "started": "{starts}",
    "evictions": "{evictions:.1f}",
    "GPU-h lost": "{lost:.0f}",
    "GPU-h others waited": "{others:.0f}",
}


def study(settings: StudySettings) -> Study:
    """Let every policy go on from the moment at which the hero arrives."""
    scenario = settings.scenario(NAME)
    policies: dict[str, Policy] = {label: resolve_policy(name) for label, name in POLICIES.items()}
    if settings.policy:
        policies[f"learned ({short_name(settings.policy)})"] = find_policy(settings.policy)
    played = [_play(scenario, seed, policies) for seed in settings.seeds()]
    starts = {label: [results[label] for _, _, results in played] for label in policies}
    idle_gpus = np.array([gpus for gpus, _, _ in played])
    whole = np.array([nodes for _, nodes, _ in played])
    cluster, idle = scenario.cluster_spec(), idle_gpus.sum(axis=1)
    share = float(idle.mean()) / cluster.gpus
    slots = np.sum(whole // scenario.slice_nodes, axis=1)
    distance = np.abs(idle - idle.mean())
    typical = int(np.lexsort((distance, slots))[0])  # no open rack, and about so many idle GPUs
    mean: dict[str, dict[str, Any]] = {
        label: {
            **means(found),
            "interval": bootstrap([start["wait"] for start in found]),
            "starts": f"{sum(start['started'] for start in found):.0f} of {len(found)}",
        }
        for label, found in starts.items()
    }
    nothing, few, every = (mean[label] for label in (NOTHING, FEW, EVERY))
    point = (
        f"The hero arrives: {100 * share:.0f} % of the GPUs are idle, but its slices of {scenario.slice_nodes} nodes "
        f"find {slots.mean():.1f} racks on average. Doing nothing, it waits {nothing['wait']:.0f} h. Evicting as few "
        f"as needed, it starts after {few['wait']:.1f} h for {few['lost']:.0f} lost GPU-hours; evicting whole racks "
        f"loses {every['lost']:.0f}."
    )
    title = f"{100 * share:.0f} % of the GPUs are idle, and the hero cannot start"
    figure, axes = panels(title, (13, 4.2), columns=3, width_ratios=(1.2, 1, 1))
    _draw_racks(axes[0], whole[typical], idle_gpus[typical] / cluster.gpus_per_node, scenario.slice_nodes)
    bars_with_intervals(axes[1], starts, "wait", "hours until the hero starts")
    bars_with_intervals(axes[2], starts, "lost", "GPU-hours lost until then", digits=0)
    axes[2].tick_params(labelleft=False)
    setting = (
        f"Means of {settings.workloads}. Until the hero comes everything is placed by "
        f"{HISTORY}; from that moment every policy goes on from the same state, for "
        f"{scenario.episode.hours - ARRIVAL:.0f} h at most. The rack map shows a typical workload."
    )
    return Study(NAME, point, ("policy", *CELLS), filled(CELLS, mean), figure, setting)


def _play(
    scenario: Scenario, seed: np.random.SeedSequence, policies: dict[str, Policy]
) -> tuple[IntArray, IntArray, dict[str, dict[str, float]]]:
    """Idle GPUs and wholly free nodes of each rack (R,) when the hero arrives, and what every policy makes of it."""
    episode, hero = with_one_hero(scenario, seed, ARRIVAL)
    sim = prepare(scenario, episode)
    play_until(sim, resolve_policy(HISTORY), at(ARRIVAL))
    results = {label: _go_on(branch(sim, scenario, episode), policy, hero) for label, policy in policies.items()}
    racks = len(sim.racks)
    return sim.cap[:racks, 1].copy(), sim.cap[:racks, -1].copy(), results


def _go_on(sim: Sim, policy: Policy, hero: int) -> dict[str, float]:
    """What a policy makes of a blocked hero: play from its arrival to its start, then to the end of the window.

    Evictions and lost GPU-hours (of evictions and moves) are those until the start; a hero that does not start has
    waited to the end. The GPU-hours that others waited are those of the whole window.
    """
    before = _totals(sim, hero)
    started = play_until(sim, policy, running(hero))
    at_start = _totals(sim, hero)
    play_until(sim, policy, lambda _: False)
    job, clock = sim.jobs[hero], sim.clock[0]
    wait = float(job["waited"]) if job["first_start"] < np.inf else float(clock["horizon"] - job["queued"])
    evictions, lost, _ = at_start - before
    others = (_totals(sim, hero) - before)[2]
    return {"wait": wait, "started": started, "evictions": evictions, "lost": lost, "others": others}


def _totals(sim: Sim, hero: int) -> np.ndarray:
    """Evictions, GPU-hours lost, and GPU-hours that the classes other than the hero's have waited."""
    hours = sim.classes["waiting_hours"].sum() - sim.classes[sim.jobs[hero]["klass"]]["waiting_hours"]
    return np.array([sim.clock[0]["evictions"], sim.clock[0]["lost"], hours])


def _draw_racks(axis: Axes, whole: IntArray, idle: FloatArray, slice_nodes: int) -> None:
    racks = np.arange(len(whole))
    axis.bar(racks, whole, color=OKABE_ITO[5], label="whole nodes")
    axis.bar(racks, idle - whole, bottom=whole, color="#cccccc", label="parts of nodes")
    axis.axhline(slice_nodes, color=OKABE_ITO[1], linestyle="--", linewidth=1.5)
    axis.text(len(whole) - 0.5, slice_nodes, f"a slice: {slice_nodes} nodes", ha="right", va="bottom", fontsize=9)
    axis.set_ylim(0, slice_nodes + 4)
    axis.set_xticks(racks)
    axis.set_yticks(range(0, slice_nodes + 1, 4))
    axis.set_xlabel("rack")
    axis.legend(frameon=False, fontsize=9, ncols=2, loc="upper left")
    unframed(axis, "idle when it arrives, in nodes")
