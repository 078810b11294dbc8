"""A policy decides, and its decision is put into words: the candidates, their scores, the rule that decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from nvlenv.engine.answers import Candidate
from nvlenv.policies import KUEUE, Heuristic, heuristic
from nvlenv.policies.rule import NO_OPEN, OPEN_HERO, PACKINGS, Rule
from nvlenv.types import Action, Decision, Policy

SHOWN = 5  # candidates of a step, unless all are asked for

WORDS = {
    "random": "a rack at random",
    "first-fit": "the first rack that fits",
    "least-allocated": "the rack with the most free GPUs",
    "most-allocated": "the rack with the largest share of its GPUs in use",
    "best-fit": "the rack with the fewest free GPUs that fits, of equal ones that with fewer whole nodes",
    "hierarchical-best-fit": "the rack that fits the fewest more pods, of equal ones that whose block does",
    "anchor-loss": "the rack that loses the fewest 16-, 8- and 4-node slots, then best fit",
    "lifetime": "the rack whose jobs end closest to this one's end, by estimates",
    "rack-fgd": "the rack where the fewest GPUs become useless to the usual mix of jobs",
    "slurm-block": "Slurm's topology/block rule",
}


@runtime_checkable
class Scored(Protocol):
    """A policy that takes the legal action with the largest logit on its grid, as policies in files do."""

    @property
    def name(self) -> str: ...

    def logits(self, decision: Decision) -> NDArray[np.float64]: ...


@dataclass(frozen=True)
class Verdict:
    action: Action
    rule: str
    candidates: tuple[Candidate, ...]
    legal: int
    could_place: bool  # some rack, or fill, was legal


def load(policy: Policy | str | Path) -> Policy:
    """The policy of a name, of a file, or the policy itself. `InputError` for what is none of them."""
    if not isinstance(policy, str | Path):
        return policy
    if isinstance(policy, Path) or policy.endswith(".npz"):
        from nvlenv.engine.policy_file import load_policy

        return load_policy(policy)
    return heuristic(policy)


def fresh(policy: Policy) -> Policy:
    """The policy without a plan that it may have made for a decision that was taken back."""
    return heuristic(KUEUE) if name_of(policy) == KUEUE else policy


def name_of(policy: Policy) -> str:
    return str(getattr(policy, "name", type(policy).__name__))


def judge(
    policy: Policy, decision: Decision, racks: tuple[str, ...], job_name: Callable[[int], str], shown: int
) -> Verdict:
    """Ask the policy; `job_name` gives the name of a row."""
    if isinstance(policy, Heuristic):
        return _judge_rule(policy, decision, racks, job_name, shown)
    if isinstance(policy, Scored):
        return _judge_learned(policy, decision, racks, shown)
    action = policy(decision)
    said = f"{name_of(policy)}: {_say(decision, action, racks)}"
    none = np.zeros((decision.layout.size, 0))
    return _verdict(decision, action, said, none, np.arange(decision.layout.size), {}, racks, shown)


def _judge_learned(policy: Scored, decision: Decision, racks: tuple[str, ...], shown: int) -> Verdict:
    from nvlenv.engine.inference import best_action

    logits = policy.logits(decision)
    action = int(best_action(logits, decision.mask))
    ranks = np.argsort(np.where(decision.mask, -logits, np.inf), kind="stable")
    runner_up = next((int(a) for a in ranks[:2] if a != action and decision.mask[a]), None)
    said = f"{policy.name}: largest logit, {_say(decision, action, racks)} {logits[action]:.3f}"
    if runner_up is not None:
        said += f", next {_say(decision, runner_up, racks)} {logits[runner_up]:.3f}"
    return _verdict(decision, action, said, logits[:, None], -logits, {}, racks, shown)


def _judge_rule(
    policy: Heuristic, decision: Decision, racks: tuple[str, ...], job_name: Callable[[int], str], shown: int
) -> Verdict:
    from nvlenv.engine.live_kernels import score_racks

    sim, rule, count = decision.sim, policy.rule, decision.layout.racks
    keys, parts, kept = np.zeros((count, 2)), np.zeros(count, np.int64), np.zeros(count, np.int64)
    waits, drains, reserved, ready = score_racks(sim, rule, keys, parts, kept)
    action = policy(decision)
    hero = job_name(int(sim.clock[0]["hero"]))
    why = f"kept for {hero}, which waits for racks" if reserved else "its last free slice is kept (hold)"
    notes = {int(rack): why for rack in np.flatnonzero(kept)}
    scores = np.concatenate([keys, np.stack([sim.open_gpus, sim.open_lost], axis=1)])
    order = np.lexsort((keys[:, 1], keys[:, 0], -parts if rule.tight == 0 else parts, kept))
    place = np.empty(count)
    place[order] = np.arange(count)
    rank = np.concatenate([place, np.argsort(np.lexsort((sim.open_lost, sim.open_gpus))) + count])
    said = _say_rule(rule, decision, action, waits, drains, reserved, ready, hero)
    return _verdict(decision, action, f"{policy.name}: {said}", scores, rank, notes, racks, shown)


def _say_rule(
    rule: Rule, decision: Decision, action: Action, waits: bool, drains: bool, reserved: bool, ready: bool, hero: str
) -> str:
    layout, mask = decision.layout, decision.mask
    if action == layout.hold:
        if waits:
            return "waits for one domain of its level (delay)"
        if drains:
            return f"would keep its GPUs long after {hero} could start (drain)"
        if not mask[: layout.racks].any():
            return "fits only where racks are opened, which this rule never does" if rule.open == NO_OPEN else "held"
        kept = [f"those reserved for {hero} (easy)"] * reserved + ["the last free slices (hold)"] * ready
        return f"every rack that fits is kept: {' and '.join(kept)}" if kept else "held"
    if action == layout.fill:
        return "its pods fill the tightest holes (fill)"
    if action >= layout.racks:
        cheapest = "the block and rack of the hero controller's cost rule" if rule.open == OPEN_HERO else ""
        return f"opens {cheapest or 'the rack with the fewest GPUs evicted, then the least work lost'} (open)"
    return WORDS[PACKINGS[rule.packing]]


def _say(decision: Decision, action: Action, racks: tuple[str, ...]) -> str:
    layout = decision.layout
    if action < layout.fill:
        return f"{'place' if action < layout.racks else 'open'} {racks[action % layout.racks]}"
    return "fill" if action == layout.fill else "hold"


def _verdict(
    decision: Decision,
    action: Action,
    rule: str,
    scores: NDArray[np.float64],
    rank: NDArray[np.generic],
    notes: dict[int, str],
    racks: tuple[str, ...],
    shown: int,
) -> Verdict:
    """The best candidates by rank (smaller is better), the chosen one first."""
    sim, count, size = decision.sim, decision.layout.racks, decision.sim.cap.shape[1] - 1
    legal = np.flatnonzero(decision.mask[: 2 * count])
    best = legal[np.argsort(rank[legal], kind="stable")]
    ordered = [int(a) for a in best[: shown + 1]]
    if action < 2 * count:
        ordered = [action, *(a for a in ordered if a != action)]
    job = sim.jobs[sim.clock[0]["current"]]
    left = int(sim.clock[0]["pods_left"])
    candidates = []
    for a in ordered[:shown]:
        rack, opens = a % count, a >= count
        fits = int(job["unit_pods"]) if opens else min(left, int(sim.cap[rack, job["pod_gpus"]]))
        note = notes.get(a, "")
        if opens:
            note = f"evicts or moves {int(sim.open_gpus[rack])} GPUs, {sim.open_lost[rack]:.1f} GPU-hours lost"
        candidates.append(
            Candidate(
                rack=racks[rack],
                action="open" if opens else "place",
                score=tuple(float(value) for value in scores[a]),
                free_gpus=int(sim.cap[rack, 1]),
                free_nodes=int(sim.cap[rack, size]),
                pods=fits,
                note=note,
            )
        )
    could_place = bool(decision.mask[:count].any() or decision.mask[2 * count])
    return Verdict(action, rule, tuple(candidates), len(legal), could_place)
