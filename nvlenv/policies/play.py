"""A policy plays a whole episode.

Heuristics and exported policies run inside one compiled loop; any other policy is asked decision by decision.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from nvlenv.common.kernel import compiled
from nvlenv.policies.heuristics.choose import choose
from nvlenv.simulator.decision import ActionLayout, Decision, Policy
from nvlenv.simulator.state import Sim
from nvlenv.simulator.step import advance, step


@runtime_checkable
class Player(Protocol):
    """A policy that can play to the end by itself."""

    def play(self, sim: Sim) -> None:
        """Play from the start of the episode to the end of the window."""
        ...


@compiled
def play_rule(sim, rule):
    """Play an episode to its end with a composed heuristic. Returns the number of decisions."""
    decisions = 0
    alive = advance(sim)
    while alive:
        decisions += 1
        alive = step(sim, choose(sim, rule))
    return decisions


def play(policy: Policy, sim: Sim) -> None:
    """Play from the start of the episode to the end of the window."""
    if isinstance(policy, Player):
        policy.play(sim)
        return
    layout = ActionLayout(len(sim.racks))
    alive = advance(sim)
    while alive:
        alive = step(sim, policy(Decision(sim, sim.mask, layout)))
