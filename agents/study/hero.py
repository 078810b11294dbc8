"""hero-blocked: a third of the cluster is empty and no rack is open; who gets the hero started, when, at what price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from agents.evaluation.episodes import find_policy
from agents.evaluation.figures import OKABE_ITO
from agents.evaluation.statistics import bootstrap
from agents.evaluation.summary import short_name
from agents.study.page import Study, bars_with_intervals, panels, unframed
from agents.study.play import StudySettings, at, branch, means, play_until, with_one_hero
from nvlenv.cluster.types import FloatArray, IntArray
from nvlenv.envs.scenario import Scenario, prepare
from nvlenv.policies.resolver import resolve_policy
from nvlenv.simulator.decision import Policy
from nvlenv.simulator.state import RUNNING, Sim

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


@dataclass(frozen=True)
class HeroStart:
    """What one policy made of one blocked hero."""

    wait: float  # h until the hero started; to the end of the window if it did not
    started: bool
    evictions: int  # until then, of whomever
    lost: float  # GPU-hours of work lost to evictions and moves until then
    others: float  # GPU-hours that other jobs waited, until the end of the window


def study(settings: StudySettings) -> Study:
    """Let every policy go on from the moment at which the hero arrives."""
    scenario = settings.scenario(NAME)
    named = {label: resolve_policy(name) for label, name in POLICIES.items()}
    policies: dict[str, Policy] = {**named}
    if settings.policy:
        policies[f"learned ({short_name(settings.policy)})"] = find_policy(settings.policy)
    played = [_play(scenario, seed, policies) for seed in settings.seeds()]
    outcomes = {label: [results[label] for _, _, results in played] for label in policies}
    idle_gpus = np.array([gpus for gpus, _, _ in played])
    whole = np.array([nodes for _, nodes, _ in played])
    share = float(idle_gpus.sum(axis=1).mean()) / scenario.cluster_spec().gpus
    slots = np.sum(whole // scenario.slice_nodes, axis=1)
    distance = np.abs(idle_gpus.sum(axis=1) - idle_gpus.sum(axis=1).mean())
    typical = int(np.lexsort((distance, slots))[0])  # no open rack, and about so many idle GPUs
    mean = {label: means([vars(outcome) for outcome in found]) for label, found in outcomes.items()}
    nothing, few, every = (mean[label] for label in (NOTHING, FEW, EVERY))
    point = (
        f"The hero arrives: {100 * share:.0f} % of the GPUs are idle, but its slices of {scenario.slice_nodes} nodes "
        f"find {slots.mean():.1f} racks on average. Doing nothing, it waits {nothing['wait']:.0f} h. Evicting as few "
        f"as needed, it starts after {few['wait']:.1f} h for {few['lost']:.0f} lost GPU-hours; evicting whole racks "
        f"loses {every['lost']:.0f}."
    )
    heads = ("policy", "hero waits", "95 %", "started", "evictions", "GPU-h lost", "GPU-h others waited")
    rows = tuple(_row(label, mean[label], results) for label, results in outcomes.items())
    title = f"{100 * share:.0f} % of the GPUs are idle, and the hero cannot start"
    figure, axes = panels(title, (13, 4.2), columns=3, width_ratios=(1.2, 1, 1))
    node_gpus = scenario.cluster_spec().gpus_per_node
    _draw_racks(axes[0], whole[typical], idle_gpus[typical] / node_gpus, scenario.slice_nodes)
    waits, lost = ({label: [vars(o)[f] for o in found] for label, found in outcomes.items()} for f in ("wait", "lost"))
    bars_with_intervals(axes[1], waits, "hours until the hero starts")
    bars_with_intervals(axes[2], lost, "GPU-hours lost until then", digits=0)
    axes[2].tick_params(labelleft=False)
    setting = (
        f"Means of {settings.workloads}. Until the hero comes everything is placed by "
        f"{HISTORY}; from that moment every policy goes on from the same state, for "
        f"{scenario.episode.hours - ARRIVAL:.0f} h at most. The rack map shows a typical workload."
    )
    return Study(NAME, point, heads, rows, figure, setting)


def _play(
    scenario: Scenario, seed: np.random.SeedSequence, policies: dict[str, Policy]
) -> tuple[IntArray, IntArray, dict[str, HeroStart]]:
    """Idle GPUs and wholly free nodes of each rack (R,) when the hero arrives, and what every policy makes of it."""
    hero_gpus = scenario.hero_share * scenario.cluster_spec().gpus
    episode, hero = with_one_hero(scenario.draw(seed), hero_gpus, ARRIVAL)
    sim = prepare(scenario, episode)
    play_until(sim, resolve_policy(HISTORY), at(ARRIVAL))
    results = {label: _go_on(branch(sim, scenario, episode), policy, hero) for label, policy in policies.items()}
    racks = len(sim.racks)
    return sim.cap[:racks, 1].copy(), sim.cap[:racks, -1].copy(), results


def _go_on(sim: Sim, policy: Policy, hero: int) -> HeroStart:
    """Play from the hero's arrival to its start, then to the end of the window."""
    before = _totals(sim, hero)
    started = play_until(sim, policy, lambda now: bool(now.jobs[hero]["status"] == RUNNING))
    at_start = _totals(sim, hero)
    play_until(sim, policy, lambda _: False)
    job, clock = sim.jobs[hero], sim.clock[0]
    wait = float(job["waited"]) if job["first_start"] < np.inf else float(clock["horizon"] - job["queued"])
    evictions, lost, _ = at_start - before
    return HeroStart(wait, started, int(evictions), float(lost), float((_totals(sim, hero) - before)[2]))


def _totals(sim: Sim, hero: int) -> np.ndarray:
    """Evictions, GPU-hours lost, and GPU-hours that the classes other than the hero's have waited."""
    hours = sim.classes["waiting_hours"].sum() - sim.classes[sim.jobs[hero]["klass"]]["waiting_hours"]
    return np.array([sim.clock[0]["evictions"], sim.clock[0]["lost"], hours])


def _row(label: str, mean: dict[str, float], outcomes: Sequence[HeroStart]) -> tuple[str, ...]:
    interval = bootstrap([outcome.wait for outcome in outcomes])
    return (
        label,
        f"{mean['wait']:.1f} h",
        f"{interval.low:.1f} ... {interval.high:.1f}",
        f"{sum(outcome.started for outcome in outcomes)} of {len(outcomes)}",
        f"{mean['evictions']:.1f}",
        f"{mean['lost']:.0f}",
        f"{mean['others']:.0f}",
    )


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
