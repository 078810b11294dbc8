"""Why: a policy's decision in words, and a refusal in one sentence and rack by rack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from nvlenv.cluster.types import IntArray, Mode
from nvlenv.engine.core.book import SCARCE, NodeResources
from nvlenv.engine.core.kernels import count_states, score_racks
from nvlenv.engine.core.live import Live
from nvlenv.engine.core.parts import Part
from nvlenv.engine.model.answers import Candidate, Cause
from nvlenv.policies.heuristics.packing import RULES
from nvlenv.policies.heuristics.rule import NO_OPEN, OPEN_HERO, Rule
from nvlenv.policies.inference import best_action
from nvlenv.policies.resolver import Heuristic, policy_name
from nvlenv.simulator.decision import Action, Decision, Policy
from nvlenv.simulator.preemption import TAKEN

SHOWN = 5  # candidates of a step, unless all are asked for


@runtime_checkable
class Scored(Protocol):
    """A policy that takes the legal action with the largest logit on its grid, as policies in files do."""

    @property
    def name(self) -> str:
        """By which it was asked for."""
        ...

    def logits(self, decision: Decision) -> NDArray[np.float64]:
        """(2R + 2,): one for each action."""
        ...


@dataclass(frozen=True)
class Explained:
    """An action of a policy, in words."""

    action: Action
    rule: str  # what decided
    candidates: tuple[Candidate, ...]  # the best, the chosen one first
    legal: int  # racks among which it could choose
    could_place: bool  # some rack, or fill, was legal


def ask_policy(
    policy: Policy, decision: Decision, racks: tuple[str, ...], job_name: Callable[[int], str], shown: int
) -> Explained:
    """The policy's action; `job_name` gives the job of a row, at most `shown` candidates are listed, the best first."""
    sim, count, size = decision.sim, decision.layout.racks, decision.sim.cap.shape[1] - 1
    if isinstance(policy, Heuristic):
        asked = _ask_rule(policy, decision, job_name)
    elif isinstance(policy, Scored):
        asked = _ask_learned(policy, decision, racks)
    else:
        actions, action = decision.layout.size, policy(decision)
        asked = Asked(action, _say(decision, action, racks), np.zeros((actions, 0)), np.arange(actions), {})
    legal = np.flatnonzero(decision.mask[: 2 * count])
    best = legal[np.argsort(asked.rank[legal], kind="stable")]
    ordered = [int(a) for a in best[: shown + 1]]
    if asked.action < 2 * count:
        ordered = [asked.action, *(a for a in ordered if a != asked.action)]
    job = sim.jobs[sim.clock[0]["current"]]
    left = int(sim.clock[0]["pods_left"])
    candidates = []
    for a in ordered[:shown]:
        rack, opens, note = a % count, a >= count, asked.notes.get(a, "")
        if opens:
            note = f"evicts or moves {int(sim.open_gpus[rack])} GPUs, {sim.open_lost[rack]:.1f} GPU-hours lost"
        candidates.append(
            Candidate(
                rack=racks[rack],
                action="open" if opens else "place",
                score=tuple(float(value) for value in asked.scores[a]),
                free_gpus=int(sim.cap[rack, 1]),
                free_nodes=int(sim.cap[rack, size]),
                pods=int(job["slice_pods"]) if opens else min(left, int(sim.cap[rack, job["pod_gpus"]])),
                note=note,
            )
        )
    could_place = bool(decision.mask[:count].any() or decision.mask[decision.layout.fill])
    rule = f"{policy_name(policy)}: {asked.said}"
    return Explained(asked.action, rule, tuple(candidates), len(legal), could_place)


class Asked(NamedTuple):
    """An action and what the policy weighed for it."""

    action: Action
    said: str
    scores: NDArray[np.float64]  # (2R + 2, keys), or (2R, keys)
    rank: NDArray[Any]  # (2R + 2,) or (2R,): the smallest is the best
    notes: dict[int, str]  # of actions


def _ask_learned(policy: Scored, decision: Decision, racks: tuple[str, ...]) -> Asked:
    logits = policy.logits(decision)
    action = int(best_action(logits, decision.mask))
    ranks = np.argsort(np.where(decision.mask, -logits, np.inf), kind="stable")
    runner_up = next((int(a) for a in ranks[:2] if a != action and decision.mask[a]), None)
    said = f"largest logit, {_say(decision, action, racks)} {logits[action]:.3f}"
    if runner_up is not None:
        said += f", next {_say(decision, runner_up, racks)} {logits[runner_up]:.3f}"
    return Asked(action, said, logits[:, None], -logits, {})


def _ask_rule(policy: Heuristic, decision: Decision, job_name: Callable[[int], str]) -> Asked:
    sim, rule, count = decision.sim, policy.rule, decision.layout.racks
    keys, parts, kept = np.zeros((count, 2)), np.zeros(count, np.int64), np.zeros(count, np.int64)
    waits, drains, reserved, ready = score_racks(sim, rule, keys, parts, kept)
    action = policy(decision)
    hero = job_name(int(sim.clock[0]["target"]))
    why = f"kept for {hero}, which waits for racks" if reserved else "its last free slice is kept (hold)"
    scores = np.concatenate([keys, np.stack([sim.open_gpus, sim.open_lost], axis=1)])
    order = np.lexsort((keys[:, 1], keys[:, 0], -parts if rule.tight == 0 else parts, kept))
    rank = np.concatenate([np.argsort(order), np.argsort(np.lexsort((sim.open_lost, sim.open_gpus))) + count])
    said = _say_rule(rule, decision, action, waits, drains, reserved, ready, hero)
    return Asked(action, said, scores, rank, {int(rack): why for rack in np.flatnonzero(kept)})


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
    return RULES[rule.packing].words


def _say(decision: Decision, action: Action, racks: tuple[str, ...]) -> str:
    layout = decision.layout
    if action < layout.fill:
        return f"{'place' if action < layout.racks else 'open'} {racks[action % layout.racks]}"
    return "fill" if action == layout.fill else "hold"


# Why not: too few GPUs, or enough of them in places that are of no use for the shape, or no quota


def room(live: Live, part: Part, limits: IntArray | None) -> NDArray[np.int64]:
    """(M,) pods of a part that fit each node now."""
    nodes = live.sim.nodes
    pods = np.where(nodes["blocked"] == 0, nodes["free"] // part.gpus_per_pod, 0).astype(np.int64)
    return pods if limits is None else np.minimum(pods, limits)


def never_fits(live: Live, resources: NodeResources, part: Part) -> str:
    """Why a part could not have its nodes if the whole cluster were empty and up; empty if it could.

    Nobody may wait for what never comes: racks would be kept for it for ever.
    """
    spec, most = live.spec, resources.most(part)
    together = part.slice_pods if part.mode == Mode.REQUIRED else 1
    domains = live.sim.ancestors[: spec.racks, part.height][spec.node_rack]
    slices = int((np.bincount(domains - domains.min(), most) // together).sum())
    if slices * together >= part.pods:
        return ""
    what = _pods_asked(part, live.node_size)
    found = f"{int(most.sum())} {what} that it could ever use"
    return found if together == 1 else f"{found}, {slices} times {together} {what} in one {_level(live, part)}"


def why_no_room(
    live: Live, resources: NodeResources, part: Part, row: int, limits: IntArray | None, declined: bool
) -> tuple[Cause, str, dict[str, str]]:
    """Cause, sentence and reasons by rack for a part that does not fit `limits` (M,), see `NodeResources.limits`.

    `row` is its row. `declined`: evictions would have made room, but the policy or the nodes' resources did not.
    """
    spec, fits = live.spec, room(live, part, limits)
    in_rack = np.bincount(spec.node_rack, fits, minlength=spec.racks).astype(np.int64)
    against = _against(live, resources, part, row, limits)
    free, what = int(fits.sum()), _pods_asked(part, live.node_size)
    if free < part.pods:
        cause, said = Cause.CAPACITY, f"it asks for {part.pods} {what}, {free} are free for it"
    else:
        said = f"{free} {what} are free for it, but {_promise(live, part)}; the best {_best(live, part, in_rack)}"
        cause = Cause.SHAPE
    racks = _by_rack(spec.rack_names, f"of {_in_one_rack(part)} {what} free", in_rack, against)
    return cause, said + (", and the policy evicts nobody for it" if declined else ""), racks


def _against(
    live: Live, resources: NodeResources, part: Part, row: int, limits: IntArray | None
) -> dict[str, NDArray[np.int64]]:
    """Nodes of each rack (R,) that are of no use, by what speaks against them."""
    nodes = live.sim.nodes
    found = {"failed or cordoned": _per_rack(live, nodes["blocked"] > 0)}
    if part.gpus_per_pod == live.node_size:
        counts = np.zeros((live.spec.racks, 4), np.int64)
        count_states(live.sim, row, counts)
        taken = counts[:, TAKEN] - found["failed or cordoned"]
        found = {"held by work that may not be evicted": taken, **found}
    if limits is not None:
        idle = (nodes["blocked"] == 0) & (nodes["free"] // part.gpus_per_pod > limits)
        scarce = resources.scarcest(part)
        for number, name in enumerate(SCARCE):
            found[f"idle, but without {name} for it"] = _per_rack(live, idle & (scarce == number))
    return found


def _per_rack(live: Live, nodes: NDArray[np.bool_]) -> NDArray[np.int64]:
    return np.bincount(live.spec.node_rack, nodes, minlength=live.spec.racks).astype(np.int64)


def _by_rack(
    names: tuple[str, ...], asked: str, in_rack: NDArray[np.int64], against: dict[str, NDArray[np.int64]]
) -> dict[str, str]:
    said: dict[tuple[int, ...], str] = {}  # there are many racks, and few ways to be full
    columns = np.stack([in_rack, *against.values()], axis=1).tolist()
    for counts in map(tuple, columns):
        if counts not in said:
            also = [f"{count} {text}" for count, text in zip(counts[1:], against, strict=True) if count]
            said[counts] = "; ".join([f"{counts[0]} {asked}", *also])
    return {name: said[tuple(counts)] for name, counts in zip(names, columns, strict=True)}


def _pods_asked(part: Part, size: int) -> str:
    return "nodes" if part.gpus_per_pod == size else f"pods of {part.gpus_per_pod} GPUs"


def _in_one_rack(part: Part) -> int:
    """Pods that want to be in one rack together."""
    return part.slice_pods if part.mode == Mode.REQUIRED and part.height == 0 else 1


def _promise(live: Live, part: Part) -> str:
    level, together = _level(live, part), part.slice_pods
    within = f", all in one {part.within}" if part.within and part.strict else ""
    if part.pods > together:
        return f"it wants {part.pods // together} slices of {together} in one {level} each{within}"
    return f"it wants all {together} in one {level}{within}"


def _best(live: Live, part: Part, in_rack: NDArray[np.int64]) -> str:
    """What the best domains of its level have."""
    domains = live.sim.ancestors[: live.spec.racks, part.height]
    sums = np.bincount(domains - domains.min(), in_rack)
    if part.pods > part.slice_pods:
        return f"racks together hold {int((sums // part.slice_pods).sum())} slices"
    return f"{_level(live, part)} has {int(sums.max())}"


def _level(live: Live, part: Part) -> str:
    place = len(live.spec.levels) - 2 - part.height
    return live.spec.levels[place] if place >= 0 else "cluster"


def why_no_quota(live: Live, queue: int, gpus: int) -> str:
    """Why quota refuses so many GPUs to a queue."""
    spec, state = live.queues[queue], live.sim.queues[queue]
    cohort = live.sim.cohorts[state["cohort"]]
    said = f"queue {spec.name} uses {int(state['used'])} of {spec.nominal} GPUs"
    if int(state["used"]) + gpus > int(state["limit"]):
        return f"{said} and may borrow {spec.borrowing_limit}; the job asks for {gpus} more"
    if spec.cohort:
        said += f", its cohort {spec.cohort} {int(cohort['used'])} of {int(cohort['nominal'])}"
    return f"{said}; the job asks for {gpus} more"
