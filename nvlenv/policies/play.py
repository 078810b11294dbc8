"""A policy plays a whole episode.

Heuristics and exported policies run inside one compiled loop; any other policy is asked decision by decision.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numba import njit

from nvlenv.batch import dims_of, rules_of
from nvlenv.policies.choose import choose
from nvlenv.policies.rule import OPEN_HERO
from nvlenv.scenario import Episode, Scenario
from nvlenv.simulator.pooled import run_pooled
from nvlenv.simulator.scan import advance, step
from nvlenv.simulator.state import Sim, allocate, load
from nvlenv.types import ActionLayout, Decision, Policy


@runtime_checkable
class Player(Protocol):
    """A policy that can play to the end by itself."""

    def play(self, sim: Sim) -> None: ...


@njit(cache=True, nogil=True)
def play_rule(sim, rule):
    """Play an episode to its end with a composed heuristic. Returns the number of decisions."""
    sim.clock[0].evict_whole_rack = int(rule.open == OPEN_HERO)
    decisions = 0
    alive = advance(sim)
    while alive:
        decisions += 1
        alive = step(sim, choose(sim, rule))
    return decisions


def prepare(scenario: Scenario, episode: Episode, sample: bool = True) -> Sim:
    """A simulator filled with an episode, the clock at 0; with `sample` the time series of the whole window are kept."""
    rows = int(scenario.episode.hours / scenario.episode.sample_every_hours) + 1 if sample else 0
    batch = allocate(1, dims_of(scenario, episode, rows))
    sim = Sim(*(array[0] for array in batch))
    load(
        sim,
        episode.cluster,
        episode.workload,
        rules_of(scenario),
        scenario.class_weights(),
        episode.queues,
        episode.node_events,
    )
    return sim


def play(policy: Policy, sim: Sim) -> None:
    """Play from the start of the episode to the end of the window."""
    if isinstance(policy, Player):
        policy.play(sim)
        return
    layout = ActionLayout(len(sim.racks))
    alive = advance(sim)
    while alive:
        alive = step(sim, policy(Decision(sim, sim.mask, layout)))


def pooled_waiting(scenario: Scenario, episode: Episode) -> float:
    """Weighted waiting GPU-hours of the same workload on one pooled cluster without topology."""
    sim = prepare(scenario, episode, sample=False)
    times = np.zeros(2 * len(episode.workload) + 3)
    costs = np.zeros_like(times)
    points = run_pooled(sim, times, costs)
    return float(costs[points - 1])
