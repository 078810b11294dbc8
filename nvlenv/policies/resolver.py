"""One way from a name or a file to a policy: `resolve_policy`.

    best-fit+fill+easy+open    a heuristic, composed as `nvlenv.policies.heuristics.rule` says
    kueue-tas                  Kueue's own placement (`nvlenv.policies.kueue`)
    kueue-tas+preemption       and its preemption
    runs/mine/policy.npz       a policy file (`nvlenv.policies.learned`)

A function from `Decision` to `Action` is a policy as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nvlenv.common.config import CONFIG_ROOTS, read_yaml
from nvlenv.common.errors import InputError
from nvlenv.policies import UNTUNED
from nvlenv.policies.heuristics.choose import choose
from nvlenv.policies.heuristics.rule import Rule, parse_rule
from nvlenv.policies.kueue.policy import KUEUE, KueuePolicy
from nvlenv.policies.kueue.preemption_policy import KUEUE_PREEMPTION, KueuePreemptionPolicy
from nvlenv.policies.learned import load_policy
from nvlenv.policies.play import play_rule
from nvlenv.simulator.decision import Action, Decision, Policy
from nvlenv.simulator.state import Sim

__all__ = [
    "BASELINES",
    "KUEUE",
    "KUEUE_PREEMPTION",
    "UNTUNED",
    "Heuristic",
    "baseline_name",
    "fresh_policy",
    "policy_name",
    "resolve_policy",
]

BASELINES = "baselines.yaml"  # in configs/; written by agents.tune


_KUEUE = {KUEUE: KueuePolicy, KUEUE_PREEMPTION: KueuePreemptionPolicy}


@dataclass(frozen=True)
class Heuristic:
    """A composed heuristic with the one policy signature."""

    name: str
    rule: Rule

    def __call__(self, decision: Decision) -> Action:
        """The action that the rule takes."""
        return int(choose(decision.sim, self.rule))

    def play(self, sim: Sim) -> None:
        """Play an episode to its end inside compiled code."""
        play_rule(sim, self.rule)


def resolve_policy(policy: str | Path | Policy) -> Policy:
    """The policy of a name, of a policy file (a path, or a name that ends in .npz), or the policy itself.

    Raises `InputError` for a name that means nothing and for a file that is none or does not fit this version.
    """
    if isinstance(policy, Path) or (isinstance(policy, str) and policy.endswith(".npz")):
        return load_policy(policy)
    if not isinstance(policy, str):
        return policy
    if policy in _KUEUE:
        return _KUEUE[policy]()
    if policy.startswith(KUEUE):
        expected = f"{KUEUE} alone or {KUEUE_PREEMPTION}: it places whole jobs in its own way"
        raise InputError("policy", policy, repr(policy), expected)
    return Heuristic(policy, parse_rule(policy))


def policy_name(policy: Policy) -> str:
    """What answers call the policy: its own `name`, else that of its type."""
    return str(getattr(policy, "name", type(policy).__name__))


def fresh_policy(policy: Policy) -> Policy:
    """The policy without a plan that it may have made for a decision that was taken back."""
    return policy.fresh() if isinstance(policy, KueuePolicy) else policy


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
