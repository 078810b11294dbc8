"""Why: a policy's decision in words, and a refusal in one sentence and rack by rack."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nvlenv.cluster.types import IntArray, Mode
from nvlenv.engine.core.book import SCARCE, NodeResources
from nvlenv.engine.core.kernels import score_racks, see_nodes
from nvlenv.engine.core.live import Live, Part
from nvlenv.engine.model.answers import Candidate, Cause, Step
from nvlenv.policies.heuristics.choose import Heuristic
from nvlenv.policies.heuristics.packing import RULES
from nvlenv.policies.heuristics.rule import NO_OPEN, OPEN_HERO
from nvlenv.policies.inference import best_action
from nvlenv.policies.learned import LearnedPolicy
from nvlenv.policies.resolver import policy_name
from nvlenv.simulator.decision import Action, ActionLayout, Decision, Policy
from nvlenv.simulator.preemption import TAKEN, price_opens

SHOWN = 5  # candidates of a step, unless all are asked for


class Asked(NamedTuple):
    """An action and what the policy weighed for it."""

    action: Action
    said: str
    scores: NDArray[np.float64]  # (2R + 2, keys), or (2R, keys)
    rank: NDArray[Any]  # (2R + 2,) or (2R,): the smallest is the best
    notes: dict[int, str]  # of actions


def ask_policy(policy: Policy, live: Live, shown: int) -> tuple[Action, Step]:
    """The policy's action for the decision at hand, and the step in words; how many pods it places is not known yet.

    At most `shown` candidates are listed, the chosen one first, then the best.
    """
    sim, count, racks = live.sim, live.spec.racks, live.spec.rack_names
    decision = Decision(sim, sim.mask, ActionLayout(count))
    if isinstance(policy, Heuristic):
        asked = _ask_rule(policy, decision, live)
    elif isinstance(policy, LearnedPolicy):
        asked = _ask_learned(policy, decision, live)
    else:
        actions, action = decision.layout.size, policy(decision)
        asked = Asked(action, _say(live, action), np.zeros((actions, 0)), np.arange(actions), {})
    price_opens(decision.sim)
    legal = np.flatnonzero(decision.mask[: 2 * count])
    ordered = legal[np.argsort(asked.rank[legal], kind="stable")][: shown + 1].tolist()
    if asked.action < 2 * count:
        ordered = [asked.action, *(a for a in ordered if a != asked.action)]
    job, left = sim.jobs[sim.clock[0]["current"]], int(sim.clock[0]["pods_left"])
    candidates = []
    for a in ordered[:shown]:
        rack, opens, note = a % count, a >= count, asked.notes.get(a, "")
        if opens:
            note = f"evicts or moves {int(sim.open_gpus[rack])} GPUs, {sim.open_lost[rack]:.1f} GPU-hours lost"
        candidates.append(
            Candidate(
                rack=racks[rack],
                action="open" if opens else "place",
                score=tuple(asked.scores[a].tolist()),
                free_gpus=int(sim.cap[rack, 1]),
                free_nodes=int(sim.cap[rack, live.node_size]),
                pods=int(job["slice_pods"]) if opens else min(left, int(sim.cap[rack, job["pod_gpus"]])),
                note=note,
            )
        )
    kind, _, rack_name = _say(live, asked.action).partition(" ")
    rule = f"{policy_name(policy)}: {asked.said}"
    return asked.action, Step(kind, rack_name, 0, rule, len(legal), tuple(candidates))


def _ask_learned(policy: LearnedPolicy, decision: Decision, live: Live) -> Asked:
    logits = policy.logits(decision)
    action = int(best_action(logits, decision.mask))
    ranks = np.argsort(np.where(decision.mask, -logits, np.inf), kind="stable")
    said = f"largest logit, {_say(live, action)} {logits[action]:.3f}"
    runner_up = next((a for a in ranks[:2].tolist() if a != action and decision.mask[a]), None)
    if runner_up is not None:
        said += f", next {_say(live, runner_up)} {logits[runner_up]:.3f}"
    return Asked(action, said, logits[:, None], -logits, {})


def _ask_rule(policy: Heuristic, decision: Decision, live: Live) -> Asked:
    sim, rule, count = decision.sim, policy.rule, decision.layout.racks
    keys, parts, kept = np.zeros((count, 2)), np.zeros(count, np.int64), np.zeros(count, np.int64)
    flags = score_racks(sim, rule, keys, parts, kept)
    action, hero, reserved = policy(decision), live.name_of(int(sim.clock[0]["target"])), flags[2]
    price_opens(sim)
    why = f"kept for {hero}, which waits for racks" if reserved else "its last free slice is kept (hold)"
    scores = np.concatenate([keys, np.stack([sim.open_gpus, sim.open_lost], axis=1)])
    order = np.lexsort((keys[:, 1], keys[:, 0], -parts if rule.tight == 0 else parts, kept))
    rank = np.concatenate([np.argsort(order), np.argsort(np.lexsort((sim.open_lost, sim.open_gpus))) + count])
    notes = dict.fromkeys(np.flatnonzero(kept).tolist(), why)
    return Asked(action, _say_rule(policy, decision, action, flags, hero), scores, rank, notes)


def _say_rule(policy: Heuristic, decision: Decision, action: Action, flags: tuple[bool, ...], hero: str) -> str:
    """What decided; `flags` are those of `score_racks`."""
    rule, layout, (waits, drains, reserved, ready) = policy.rule, decision.layout, flags
    if action == layout.hold:
        if waits:
            return "waits for one domain of its level (delay)"
        if drains:
            return f"would keep its GPUs long after {hero} could start (drain)"
        if not decision.mask[: layout.racks].any():
            return "fits only where racks are opened, which this rule never does" if rule.open == NO_OPEN else "held"
        kept = [f"those reserved for {hero} (easy)"] * reserved + ["the last free slices (hold)"] * ready
        return f"every rack that fits is kept: {' and '.join(kept)}" if kept else "held"
    if action == layout.fill:
        return "its pods fill the tightest holes (fill)"
    if action >= layout.racks:
        cheapest = "the block and rack of the hero controller's cost rule" if rule.open == OPEN_HERO else ""
        return f"opens {cheapest or 'the rack with the fewest GPUs evicted, then the least work lost'} (open)"
    return RULES[rule.packing].words


def _say(live: Live, action: Action) -> str:
    """What an action does, and to which rack."""
    kind = ActionLayout(live.spec.racks).describe(action).partition("[")[0]
    return f"{kind} {live.spec.rack_names[action % live.spec.racks]}" if kind in ("place", "open") else kind


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
    most, together = resources.most(part), part.slice_pods if part.mode == Mode.REQUIRED else 1
    slices = int((_by_domain(live, part, most) // together).sum())
    if slices * together >= part.pods:
        return ""
    what = _pods_asked(live, part)
    found = f"{int(most.sum())} {what} that it could ever use"
    return found if together == 1 else f"{found}, {slices} times {together} {what} in one {_level(live, part)}"


def why_no_room(
    live: Live, resources: NodeResources, part: Part, row: int, limits: IntArray | None, declined: bool
) -> tuple[Cause, str, dict[str, str]]:
    """Cause, sentence and reasons by rack for a part that does not fit `limits` (M,), see `NodeResources.limits`.

    `row` is its row. `declined`: evictions would have made room, but the policy or the nodes' resources did not.
    """
    fits, what = room(live, part, limits), _pods_asked(live, part)
    cause, free = Cause.CAPACITY, int(fits.sum())
    said = f"it asks for {part.pods} {what}, {free} are free for it"
    if free >= part.pods:
        cause, said = Cause.SHAPE, f"{free} {what} are free for it, but {_unmet(live, part, fits)}"
    against = _against(live, resources, part, row, limits)
    together = part.slice_pods if part.mode == Mode.REQUIRED and part.height == 0 else 1

    @cache  # there are many racks, and few ways to be full
    def tell(here: int, *counts: int) -> str:
        also = [f"{count} {text}" for count, text in zip(counts, against, strict=True) if count]
        return "; ".join([f"{here} of {together} {what} free", *also])

    columns = np.stack([_by_rack(live, fits), *against.values()], axis=1).tolist()
    racks = {name: tell(*counts) for name, counts in zip(live.spec.rack_names, columns, strict=True)}
    return cause, said + (", and the policy evicts nobody for it" if declined else ""), racks


def _unmet(live: Live, part: Part, fits: NDArray[np.int64]) -> str:
    """The shape that it asks for, and what the best domains of its level have of it."""
    level, together, found = _level(live, part), part.slice_pods, _by_domain(live, part, fits)
    within = f", all in one {part.within}" if part.within and part.strict else ""
    if part.pods > together:
        best = f"the best racks together hold {int((found // together).sum())} slices"
        return f"it wants {part.pods // together} slices of {together} in one {level} each{within}; {best}"
    return f"it wants all {together} in one {level}{within}; the best {level} has {int(found.max())}"


def _against(
    live: Live, resources: NodeResources, part: Part, row: int, limits: IntArray | None
) -> dict[str, NDArray[np.int64]]:
    """Nodes of each rack (R,) that are of no use, by what speaks against them."""
    nodes = live.sim.nodes
    found = {"failed or cordoned": _by_rack(live, nodes["blocked"] > 0)}
    if part.gpus_per_pod == live.node_size:
        states = np.zeros(live.spec.nodes, np.int64)
        see_nodes(live.sim, row, states)
        taken = _by_rack(live, states == TAKEN) - found["failed or cordoned"]
        found = {"held by work that may not be evicted": taken, **found}
    if limits is not None:
        idle = (nodes["blocked"] == 0) & (nodes["free"] // part.gpus_per_pod > limits)
        scarce = resources.scarcest(part)
        for number, name in enumerate(SCARCE):
            found[f"idle, but without {name} for it"] = _by_rack(live, idle & (scarce == number))
    return found


def _by_rack(live: Live, on_nodes: NDArray[Any]) -> NDArray[np.int64]:
    return np.bincount(live.spec.node_rack, on_nodes, minlength=live.spec.racks).astype(np.int64)


def _by_domain(live: Live, part: Part, on_nodes: NDArray[np.int64]) -> NDArray[Any]:
    """What the nodes (M,) of each domain of a part's level have together."""
    domains = live.domains(part.height)
    return np.bincount(domains - domains.min(), on_nodes)


def _pods_asked(live: Live, part: Part) -> str:
    return "nodes" if part.gpus_per_pod == live.node_size else f"pods of {part.gpus_per_pod} GPUs"


def _level(live: Live, part: Part) -> str:
    place = len(live.spec.levels) - 2 - part.height
    return live.spec.levels[place] if place >= 0 else "cluster"


def why_no_quota(live: Live, part: Part) -> str:
    """Why quota refuses a part to its queue."""
    spec, state = live.queues[part.queue], live.sim.queues[part.queue]
    cohort = live.sim.cohorts[state["cohort"]]
    said = f"queue {spec.name} uses {int(state['used'])} of {spec.nominal} GPUs"
    if int(state["used"]) + part.gpus > int(state["limit"]):
        return f"{said} and may borrow {spec.borrowing_limit}; the job asks for {part.gpus} more"
    if spec.cohort:
        said += f", its cohort {spec.cohort} {int(cohort['used'])} of {int(cohort['nominal'])}"
    return f"{said}; the job asks for {part.gpus} more"
