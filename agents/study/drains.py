"""maintenance: failures, planned drains and spare nodes; what each costs, and what checkpoints and spares save."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from agents.evaluation.episodes import measure
from agents.evaluation.figures import OKABE_ITO
from agents.evaluation.statistics import bootstrap
from agents.study.study import Study, StudySettings, bars_with_intervals, filled, means, panels
from nvlenv.cluster.types import FloatArray, NodeEventKind
from nvlenv.envs.scenario import Episode, Scenario, prepare
from nvlenv.policies.resolver import play, resolve_policy

NAME = "maintenance"
POLICY = "best-fit+easy+open"
CALM, WORN, BARE, NARROW = "nothing fails", "failures and drains", "no checkpoints", "racks of 16, no spares"
VARIANTS: dict[str, tuple[str, ...]] = {
    CALM: ("failures=null",),
    "failures only": ("failures.maintenance=[]",),
    WORN: (),
    BARE: (),
    NARROW: ("cluster.nodes_per_rack=16",),
}
CELLS = {
    "goodput": "{goodput:.1%}",
    "95 %": "{low:.1f} ... {high:.1f}",
    "runs ended": "{failures:.0f}",
    "GPU-h lost": "{gpu_hours_lost:.0f}",
    "hero waits": "{hero_wait:.1f} h",
    "others wait": "{other_wait:.2f} h",
    "stall": "{stall:.0%}",
}
STATES = {"all nodes": "#e6e6e6", "lives on its spares": OKABE_ITO[5], "no slice fits": OKABE_ITO[1]}
Metrics = dict[str, float]


def study(settings: StudySettings) -> Study:
    """Play the same workloads under every variant."""
    scenarios = {label: settings.scenario(NAME, *changes) for label, changes in VARIANTS.items()}
    played = {
        label: [_play(scenario, seed, label == BARE) for seed in settings.seeds()]
        for label, scenario in scenarios.items()
    }
    mean = {label: means(runs) for label, runs in played.items()}
    for label, runs in played.items():
        goodput = bootstrap([metrics["goodput"] for metrics in runs])
        mean[label] |= {"low": 100 * goodput.low, "high": 100 * goodput.high}
    lost = {label: mean[label]["gpu_hours_lost"] for label in mean}
    point = (
        f"Failures and drains end {mean[WORN]['failures']:.0f} runs in {scenarios[WORN].episode.hours:.0f} h and cost "
        f"{lost[WORN] - lost[CALM]:.0f} GPU-hours of work more than the {lost[CALM]:.0f} that are lost when "
        f"{CALM}; if jobs kept no checkpoints, {lost[BARE] - lost[CALM]:.0f}. "
        f"With two spare nodes in every rack heroes wait {mean[WORN]['hero_wait']:.0f} h; in racks of exactly 16 one "
        f"broken node leaves no room for a slice, and they wait {mean[NARROW]['hero_wait']:.0f} h."
    )
    title = "Failures, drains, spare nodes and checkpoints"
    figure, axes = panels(title, (13, 4.4), columns=3, width_ratios=(1.7, 1, 1))
    first = scenarios[WORN].draw(settings.seeds()[0])
    _draw_map(axes[0], first, scenarios[WORN])
    bars_with_intervals(axes[1], played, "gpu_hours_lost", "GPU-hours of work lost", digits=0)
    bars_with_intervals(axes[2], played, "hero_wait", "mean hours a hero waits", digits=0)
    axes[2].tick_params(labelleft=False)
    setting = (
        f"{settings.workloads}, policy {POLICY}. Runs ended: by failing nodes or drains. "
        f"{BARE}: as '{WORN}', but every stopped job starts over. {NARROW}: the same load on 16 nodes a rack. The map "
        "shows the first workload."
    )
    return Study(NAME, point, ("what happens", *CELLS), filled(CELLS, mean), figure, setting)


def _play(scenario: Scenario, seed: np.random.SeedSequence, without_checkpoints: bool) -> Metrics:
    episode = scenario.draw(seed)
    if without_checkpoints:
        jobs = episode.workload
        episode = replace(episode, workload=replace(jobs, checkpoint_interval=np.full(len(jobs), np.inf)))
    sim = prepare(scenario, episode, sample=False)
    play(resolve_policy(POLICY), sim)
    return {**measure(sim, episode.workload.class_names), "gpu_hours_lost": float(sim.clock["lost"][0])}


def down_nodes(episode: Episode, hours: FloatArray) -> np.ndarray:
    """(R, H) nodes of each rack that are failed or cordoned at each of the hours."""
    cluster, events = episode.cluster, episode.node_events
    change = {NodeEventKind.FAIL: 1, NodeEventKind.CORDON: 1, NodeEventKind.REPAIR: -1, NodeEventKind.UNCORDON: -1}
    delta = np.array([change.get(NodeEventKind(kind), 0) for kind in events.kind])
    at = np.searchsorted(hours, events.time)
    blocks = np.zeros((cluster.nodes, len(hours) + 1), np.int64)
    np.add.at(blocks, (events.node, at), delta)
    down = (np.cumsum(blocks, axis=1)[:, :-1] + cluster.cordoned[:, None]) > 0
    return np.array([down[cluster.node_rack == rack].sum(axis=0) for rack in range(cluster.racks)])


def _draw_map(axis: Axes, episode: Episode, scenario: Scenario) -> None:
    """What each rack has over time: all nodes, fewer but room for a slice, or none."""
    hours = np.arange(0.0, scenario.episode.hours, 0.5)
    size = np.bincount(episode.cluster.node_rack)[:, None]
    usable = size - down_nodes(episode, hours)
    state = np.where(usable == size, 0, np.where(usable >= scenario.slice_nodes, 1, 2))
    axis.imshow(
        state, aspect="auto", cmap=ListedColormap(list(STATES.values())), vmin=0, vmax=2, origin="lower",
        interpolation="nearest", extent=(0.0, scenario.episode.hours, -0.5, len(size) - 0.5),
    )  # fmt: skip
    patches = [Patch(facecolor=color, edgecolor="#999999", label=label) for label, color in STATES.items()]
    axis.legend(handles=patches, frameon=False, fontsize=9, ncols=3, loc="upper left", bbox_to_anchor=(0, -0.13))
    axis.set_title("what each rack has over time", loc="left", fontsize=11)
    axis.set_xlabel("hours", labelpad=1)
    axis.set_ylabel("rack")
