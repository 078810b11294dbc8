"""quota-vs-shape: the same job, the same quota, with and without a promise of shape; the cliff, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from agents.evaluation.figures import OKABE_ITO
from agents.evaluation.statistics import mean_known
from agents.study.study import Study, StudySettings, at, filled, panels, play_until, running, unframed, with_one_hero
from nvlenv.cluster.types import FloatArray, IntArray, Mode
from nvlenv.envs.scenario import Scenario, prepare
from nvlenv.policies.resolver import resolve_policy
from nvlenv.simulator.queues import has_quota
from nvlenv.simulator.state import RUNNING

NAME = "quota-vs-shape"
POLICY = "best-fit+fill"
ARRIVAL = 48.0  # h: the others have settled
MODES = (Mode.UNCONSTRAINED, Mode.REQUIRED)
CELLS = {
    "within quota": "{admitted} of {landings}",
    "started": "{started}",
    "wait": "{waited:.1f} h",
    "racks": "{racks:.1f}",
    "rounds on NVLink": "{inside:.1f} of {rounds:.0f}",
    "communication": "{ratio:.1f}x",
    "speed": "{speed:.2f}",
    "run time": "{hours:.1f} h",
    "done after": "{done:.1f} h",
}


@dataclass(frozen=True)
class Landing:
    """What became of the big job."""

    admitted: bool  # quota at the moment of its arrival
    waited: float  # h; to the end of the window if it never started
    speed: float  # relative to aligned slices; nan: never started
    hours: float  # of its run
    shares: IntArray  # (R,) its GPUs in each rack
    others: IntArray  # (R,) everybody else's at that moment

    @property
    def started(self) -> bool:
        """Whether it runs."""
        return bool(self.shares.any())


def study(settings: StudySettings) -> Study:
    """Submit the big job of every workload under both modes, everything else alike."""
    scenario = settings.scenario(NAME)
    cluster = scenario.cluster_spec()
    landed = {mode: [_land(scenario, seed, mode) for seed in settings.seeds()] for mode in MODES}
    told = {mode.name.lower(): _told(landed[mode], cluster.cliff) for mode in MODES}
    loose, sliced = told.values()
    gpus = max(int(landing.shares.sum()) for mode in MODES for landing in landed[mode])
    point = (
        f"{gpus} GPUs, within quota both times. Unconstrained it waits {loose['waited']:.1f} h and starts on "
        f"{loose['racks']:.1f} racks, where {loose['inside']:.1f} of {loose['rounds']:.0f} communication rounds stay "
        f"on NVLink: speed {loose['speed']:.2f}, done after {loose['done']:.1f} h. Required in slices it waits "
        f"{sliced['waited']:.1f} h, then {sliced['inside']:.1f} rounds stay inside racks: speed "
        f"{sliced['speed']:.2f}, done after {sliced['done']:.1f} h."
    )
    title = f"{gpus} GPUs within quota: the same admission, another machine"
    figure, axes = panels(title, (11, 6), rows=2, width_ratios=(1.5, 1), sharex="col", sharey="col")
    for row, mode in zip(axes, MODES, strict=True):
        _draw_racks(row[0], mode, landed[mode][0], cluster.gpus // cluster.racks)
        _draw_rounds(row[1], landed[mode][0], cluster.cliff)
    axes[0, 0].legend(frameon=False, fontsize=9, ncols=2, loc="lower right", bbox_to_anchor=(1, 1.0))
    axes[1, 0].set_xlabel("rack")
    axes[1, 1].set_xlabel("round (partner = rank xor 2^round)")
    setting = (
        f"Means of {settings.workloads}, policy {POLICY}; the picture shows the first "
        "workload. Communication: time relative to all ranks in one rack. Speed: relative to 8 slices of 64."
    )
    return Study(NAME, point, ("mode", *CELLS), filled(CELLS, told), figure, setting)


def round_times(shares: Sequence[int] | IntArray, cliff: float) -> FloatArray:
    """Time of every round of recursive doubling, (ceil(log2 n),): 1 on NVLink, `cliff` if any pair crosses racks.

    shares: the job's GPUs in each rack; ranks are numbered rack by rack, the larger share first. The mean over the
    rounds is `nvlenv.cluster.collectives.ratio_kernel`.
    """
    counts = np.sort(np.asarray(shares))[::-1]
    rack = np.repeat(np.arange(len(counts)), counts)
    ranks = np.arange(len(rack))
    rounds = int(np.ceil(np.log2(len(rack)))) if len(rack) > 1 else 0
    # A partner beyond the last rank is played by the last rank's rack.
    crossing = [np.any(rack != rack[np.minimum(ranks ^ (1 << r), len(rack) - 1)]) for r in range(rounds)]
    return np.where(crossing, cliff, 1.0)


def _land(scenario: Scenario, seed: np.random.SeedSequence, mode: Mode) -> Landing:
    episode, hero = with_one_hero(scenario, seed, ARRIVAL)
    modes: NDArray[np.int8] = episode.workload.mode.copy()
    modes[hero] = mode
    # With its share of communication, which a scenario refuses for unconstrained jobs: that is the mistake shown here.
    sim = prepare(scenario, replace(episode, workload=replace(episode.workload, mode=modes)))
    policy = resolve_policy(POLICY)
    play_until(sim, policy, at(ARRIVAL))
    admitted = bool(has_quota(sim, hero))
    play_until(sim, policy, running(hero))
    job, racks = sim.jobs[hero], sim.nodes["rack"][np.arange(len(sim.gpu_job)) // (sim.cap.shape[1] - 1)]
    shares, others = (
        np.bincount(racks[held], minlength=len(sim.racks)).astype(np.int32)
        for held in (sim.gpu_job == hero, (sim.gpu_job >= 0) & (sim.gpu_job != hero))
    )
    if job["status"] != RUNNING:
        return Landing(admitted, scenario.episode.hours - ARRIVAL, np.nan, np.nan, shares, others)
    hours = float(job["end"] - job["start"])
    return Landing(admitted, float(job["waited"]), float(job["speed"]), hours, shares, others)


def _told(landings: Sequence[Landing], cliff: float) -> dict[str, float]:
    """What sentence and table say: counts, and means; all but the wait over those that started."""
    begun = [landing for landing in landings if landing.started]
    times = [round_times(landing.shares, cliff) for landing in begun]
    return {
        "landings": len(landings),
        "admitted": sum(landing.admitted for landing in landings),
        "started": len(begun),
        "waited": mean_known([landing.waited for landing in landings]),
        "racks": mean_known([np.count_nonzero(landing.shares) for landing in begun]),
        "inside": mean_known([np.count_nonzero(each == 1) for each in times]),
        "rounds": mean_known([len(each) for each in times]),
        "ratio": mean_known([float(each.mean()) for each in times]),
        "speed": mean_known([landing.speed for landing in begun]),
        "hours": mean_known([landing.hours for landing in begun]),
        "done": mean_known([landing.waited + landing.hours for landing in begun]),
    }


def _draw_racks(axis: Axes, mode: Mode, landing: Landing, rack_gpus: int) -> None:
    racks = np.arange(len(landing.shares))
    axis.bar(racks, landing.others, color="#cccccc", label="other jobs")
    axis.bar(racks, landing.shares, bottom=landing.others, color=OKABE_ITO[0], label="the big job")
    axis.axhline(rack_gpus, color="black", linewidth=0.8)
    for rack, share in enumerate(landing.shares):
        if share:
            axis.text(rack, landing.others[rack] + share / 2, str(share), ha="center", va="center", color="white")
    verb = "started after" if landing.started else "not started within"
    axis.set_ylabel("GPUs of the rack")
    axis.set_yticks(np.linspace(0, rack_gpus, 5, dtype=int))
    axis.set_xticks(racks)
    unframed(axis, f"{mode.name.lower()}: {verb} {landing.waited:.1f} h")


def _draw_rounds(axis: Axes, landing: Landing, cliff: float) -> None:
    times = round_times(landing.shares, cliff)
    colors = [OKABE_ITO[1] if time > 1 else OKABE_ITO[2] for time in times]
    bars = axis.bar(np.arange(len(times)), times, color=colors)
    axis.bar_label(bars, [f"{time:.0f}x" for time in times], fontsize=8)
    rounds = f"{np.count_nonzero(times == 1)} of {len(times)} rounds on NVLink"
    unframed(axis, f"{rounds}: speed {landing.speed:.2f}, {landing.hours:.0f} h" if landing.started else "")
    axis.set_ylabel("time of the round")
    axis.set_yticks((1, cliff))
    axis.set_xticks(np.arange(len(times)))
