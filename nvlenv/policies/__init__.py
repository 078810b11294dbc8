"""Policies: Decision -> Action. Heuristics are composed by name, learned ones are read from files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nvlenv.policies.rule import MODIFIERS, PACKINGS, Rule, parse_rule
from nvlenv.types import Action, Decision

if TYPE_CHECKING:
    from nvlenv.simulator.state import Sim

__all__ = ["MODIFIERS", "PACKINGS", "Heuristic", "Rule", "heuristic", "parse_rule"]


@dataclass(frozen=True)
class Heuristic:
    """A composed heuristic with the one policy signature."""

    name: str
    rule: Rule

    def __call__(self, decision: Decision) -> Action:
        from nvlenv.policies.choose import choose  # compiled on first use; names and --help stay fast

        return int(choose(decision.sim, self.rule))

    def play(self, sim: Sim) -> None:
        """Play an episode to its end inside compiled code."""
        from nvlenv.policies.play import play_rule

        play_rule(sim, self.rule)


def heuristic(name: str) -> Heuristic:
    """The heuristic of that name, such as "best-fit+fill+easy+open". Raises `InputError` for an unknown one."""
    return Heuristic(name, parse_rule(name))
