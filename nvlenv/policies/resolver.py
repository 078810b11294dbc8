"""One way from a name or a file to a policy, `resolve_policy`, and from a policy to a played episode, `play`.

    best-fit+fill+easy+open    a heuristic, composed as `nvlenv.policies.heuristics.rule` says
    kueue-tas                  Kueue's own placement (`nvlenv.policies.kueue`)
    kueue-tas+preemption       and its preemption
    runs/mine/policy.npz       a policy file (`nvlenv.policies.learned`)

A function from `Decision` to `Action` is a policy as it is.
"""

from __future__ import annotations

from pathlib import Path

from nvlenv.common.config import CONFIG_ROOTS, read_yaml
from nvlenv.common.errors import InputError
from nvlenv.policies import UNTUNED
from nvlenv.policies.heuristics.choose import Heuristic
from nvlenv.policies.heuristics.rule import parse_rule
from nvlenv.policies.kueue.policy import KUEUE, KueuePolicy
from nvlenv.policies.kueue.preemption_policy import KUEUE_PREEMPTION, KueuePreemptionPolicy
from nvlenv.policies.learned import load_policy
from nvlenv.simulator.decision import ActionLayout, Decision, Policy
from nvlenv.simulator.state import Sim
from nvlenv.simulator.step import advance, step

BASELINES = "baselines.yaml"  # in configs/; written by agents.tune


_KUEUE = {KUEUE: KueuePolicy, KUEUE_PREEMPTION: KueuePreemptionPolicy}


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


def play(policy: Policy, sim: Sim) -> None:
    """Play from the start of the episode to the end of the window.

    A policy with a method `play` does so by itself, heuristics and policy files inside one compiled loop; any other is
    asked decision by decision.
    """
    if hasattr(policy, "play"):
        policy.play(sim)
        return
    layout = ActionLayout(len(sim.racks))
    alive = advance(sim)
    while alive:
        alive = step(sim, policy(Decision(sim, sim.mask, layout)))
