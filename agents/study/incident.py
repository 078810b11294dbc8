"""verification-incident: test pods that are counted as usage block customers in front of an idle cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from agents.evaluation.episodes import measure, series_column
from agents.evaluation.figures import OKABE_ITO
from agents.study.study import Study, StudySettings, filled, means, panels, unframed
from nvlenv.envs.scenario import Scenario, prepare
from nvlenv.policies.resolver import play, resolve_policy
from nvlenv.simulator.state import WAITING

NAME = "verification-incident"
POLICY = "best-fit"
VARIANTS = {"counted": "verification.counted=true", "not counted": "verification.counted=false"}
CELLS = {
    "mean wait": "{wait:.1f} h",
    "pre-training waits": "{wait_pre-training:.1f} h",
    "hero waits": "{wait_hero:.1f} h",
    "a queue stands": "{queue:.0%}",
    "GPUs without job": "{idle:.0%}",
    "stall": "{stall:.0%}",
    "evicted tests": "{verify_evictions:.0f}",
}


def study(settings: StudySettings) -> Study:
    """Play the same workloads and the same test pods, counted and not."""
    scenarios = {name: settings.scenario(NAME, change) for name, change in VARIANTS.items()}
    played = {name: [_play(scenario, seed) for seed in settings.seeds()] for name, scenario in scenarios.items()}
    mean = {name: means([metrics for metrics, _ in runs]) for name, runs in played.items()}
    counted, fixed = (mean[name] for name in VARIANTS)
    point = (
        f"Same jobs, same test pods. Counted as usage, the tests make customers wait {counted['wait']:.1f} h on "
        f"average, heroes {counted['wait_hero']:.0f} h, while {100 * counted['idle']:.0f} % of the GPUs run no job. "
        f"Without queue label and with priority -1 they are evicted {fixed['verify_evictions']:.0f} times, and "
        f"customers wait {fixed['wait']:.1f} h, heroes {fixed['wait_hero']:.1f} h."
    )
    capacity = scenarios["counted"].cluster_spec().gpus
    figure, axes = panels("Verification pods: counted as usage, and not", (11, 4), sharey=True)
    for axis, name in zip(axes, VARIANTS, strict=True):
        _draw(axis, f"tests {name}", played[name][0][1], capacity)
    axes[0].set_ylabel("GPUs")
    axes[1].legend(*axes[0].get_legend_handles_labels(), frameon=False, fontsize=9, loc="upper right")
    setting = (
        f"{settings.workloads}, policy {POLICY}. Stall: quota and free GPUs suffice "
        "for a waiting job, but no shape does. The picture shows the first workload."
    )
    return Study(NAME, point, ("tests are", *CELLS), filled(CELLS, mean), figure, setting)


def _play(scenario: Scenario, seed: np.random.SeedSequence) -> tuple[dict[str, float], np.ndarray]:
    """Metrics and time series of one workload."""
    episode = scenario.draw(seed)
    sim = prepare(scenario, episode)
    play(resolve_policy(POLICY), sim)
    series = sim.samples[: int(sim.clock["n_samples"][0])]
    waiting, running = series[:, series_column("waiting_gpus")], series[:, series_column("running_gpus")]
    capacity, jobs = int(sim.clock["capacity"][0]), sim.jobs
    metrics: dict[str, Any] = measure(sim, episode.workload.class_names)
    waits = jobs["waited"] + np.where(jobs["status"] == WAITING, sim.clock["horizon"][0] - jobs["queued"], 0.0)
    metrics |= {
        "wait": float(waits.mean()),
        "queue": float(np.mean(waiting > 0)),
        "idle": 1 - float(running.mean()) / capacity,
        "verify_evictions": float(sim.clock["verify_evictions"][0]),
    }
    return metrics, series


def _draw(axis: Axes, title: str, series: np.ndarray, capacity: int) -> None:
    hours = series[:, 0]
    running, usable, waiting = (series[:, series_column(c)] for c in ("running_gpus", "free_gpus", "waiting_gpus"))
    blocked = capacity - running - usable
    axis.stackplot(
        hours, running, blocked, colors=(OKABE_ITO[5], "#dddddd"), labels=("running jobs", "blocked by tests")
    )
    axis.plot(hours, waiting, color=OKABE_ITO[1], linewidth=1.8, label="waiting")
    axis.axhline(capacity, color="black", linewidth=1)
    axis.annotate("cluster", (hours[-1], capacity), xytext=(0, 3), textcoords="offset points", ha="right", fontsize=9)
    axis.set_xlabel("hours")
    axis.set_xlim(0, hours[-1])
    unframed(axis, title)
