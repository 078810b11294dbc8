"""What the studies share: their settings, episodes that are played in parts, and means of what was played."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from agents.evaluation.statistics import mean_known
from nvlenv.cluster.types import Workload
from nvlenv.common.commandline import option
from nvlenv.common.errors import InputError
from nvlenv.envs.scenario import Episode, Scenario, load_scenario, prepare
from nvlenv.simulator.decision import ActionLayout, Decision, Policy
from nvlenv.simulator.state import Sim, copy_into
from nvlenv.simulator.step import advance, step


@dataclass(frozen=True)
class StudySettings:
    """What the command line says to a study."""

    episodes: int = option("workloads", default=16, least=1)
    seed: int = option("of the workloads", default=0, least=0)
    policy: str = option("a learned policy to play as well, in hero-blocked", default="", metavar="FILE")
    overrides: tuple[str, ...] = option(
        "settings of the scenario, such as workload.load=0.5",
        default=(),
        flags=("--set",),
        nargs="*",
        metavar="KEY=VALUE",
    )

    @property
    def workloads(self) -> str:
        """What is played, in words."""
        return f"{self.episodes} workloads (seed {self.seed})"

    def scenario(self, name: str, *changes: str) -> Scenario:
        """The study's scenario with the user's overrides, and then the study's own."""
        return load_scenario(name, [*self.overrides, *changes])

    def seeds(self) -> list[np.random.SeedSequence]:
        """One for each workload."""
        return np.random.SeedSequence(self.seed).spawn(self.episodes)


def play_until(sim: Sim, policy: Policy, stop: Callable[[Sim], bool]) -> bool:
    """Play on from where the simulator stands until `stop` holds at a decision. False: the window ended before."""
    layout = ActionLayout(len(sim.racks))
    alive = int(sim.clock[0]["current"]) >= 0 or bool(advance(sim))
    while alive and not stop(sim):
        alive = bool(step(sim, policy(Decision(sim, sim.mask, layout))))
    return alive


def branch(sim: Sim, scenario: Scenario, episode: Episode) -> Sim:
    """Another simulator in the same state."""
    twin = prepare(scenario, episode)
    copy_into(twin, sim)
    return twin


def with_one_hero(episode: Episode, hero_gpus: float, hour: float) -> tuple[Episode, int]:
    """The episode with its first hero submitted at `hour` and no other. Returns it and the hero's number."""
    jobs = episode.workload
    heroes = np.flatnonzero(jobs.gpus >= hero_gpus)
    if len(heroes) == 0:
        raise InputError(jobs.source, "jobs", "no hero", "a workload with one; give it more hours or another seed")
    submit = jobs.submit.copy()
    submit[heroes[0]] = hour
    kept = np.setdiff1d(np.arange(len(jobs)), heroes[1:])
    order = kept[np.argsort(submit[kept], kind="stable")]
    moved: Workload = replace(jobs, submit=submit).select(order)
    return replace(episode, workload=moved), int(np.flatnonzero(order == heroes[0])[0])


def at(hour: float) -> Callable[[Sim], bool]:
    """Stop at the first decision from this hour on."""
    return lambda sim: bool(sim.clock[0]["now"] >= hour)


def means(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each metric's mean over the workloads that have it."""
    return {key: mean_known([metrics[key] for metrics in runs]) for key in runs[0]}
