"""Policies: Decision -> Action. Heuristics are composed by name, learned ones are read from files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nvlenv.common.config import CONFIG_ROOTS, read_yaml
from nvlenv.common.errors import InputError
from nvlenv.policies.heuristics.packing import PACKINGS
from nvlenv.policies.heuristics.rule import MODIFIERS, Rule, parse_rule
from nvlenv.simulator.decision import Action, Decision

if TYPE_CHECKING:
    from nvlenv.policies.kueue.policy import KueuePolicy
    from nvlenv.simulator.state import Sim

__all__ = ["KUEUE", "MODIFIERS", "PACKINGS", "Heuristic", "Rule", "baseline_name", "heuristic", "parse_rule"]

KUEUE = "kueue-tas"
BASELINES = "baselines.yaml"  # in configs/; written by agents.tune
UNTUNED = "best-fit+easy+open"  # the baseline of a scenario for which none was tuned


@dataclass(frozen=True)
class Heuristic:
    """A composed heuristic with the one policy signature."""

    name: str
    rule: Rule

    def __call__(self, decision: Decision) -> Action:
        from nvlenv.policies.heuristics.choose import choose

        return int(choose(decision.sim, self.rule))

    def play(self, sim: Sim) -> None:
        """Play an episode to its end inside compiled code."""
        from nvlenv.policies.play import play_rule

        play_rule(sim, self.rule)


def heuristic(name: str) -> Heuristic | KueuePolicy:
    """The heuristic of that name, such as "best-fit+fill+easy+open". Raises `InputError` for an unknown one."""
    if name == KUEUE:
        from nvlenv.policies.kueue.policy import KueuePolicy

        return KueuePolicy()
    if name.startswith(KUEUE):
        raise InputError("policy", name, repr(name), f"{KUEUE} alone: it places whole jobs in its own way")
    return Heuristic(name, parse_rule(name))


def baseline_name(scenario: str) -> str:
    """The best heuristic known for a scenario, by name: the bar for every learned policy.

    Found by `python -m agents.tune baselines` on validation workloads. Raises `InputError` if configs/baselines.yaml
    says something else than a policy under that name.
    """
    for root in CONFIG_ROOTS:
        if (file := root / BASELINES).is_file():
            entry = read_yaml(file).get(scenario)
            if entry is None:
                continue
            if not isinstance(entry, dict) or not isinstance(entry.get("policy"), str):
                raise InputError(file, scenario, repr(entry), "a mapping with the name of a policy")
            return str(entry["policy"])
    return UNTUNED
