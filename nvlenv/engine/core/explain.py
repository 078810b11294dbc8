"""Why not: a refusal in one sentence, and rack by rack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from nvlenv.cluster.types import IntArray, Mode
from nvlenv.engine.core.book import SCARCE, Reserves
from nvlenv.engine.core.live import Live, count_states
from nvlenv.engine.core.parts import Part
from nvlenv.engine.model.answers import Candidate, Cause
from nvlenv.policies.heuristics.rule import NO_OPEN, OPEN_HERO, PACKINGS, Rule
from nvlenv.policies.resolver import Heuristic, policy_name
from nvlenv.simulator.decision import Action, Decision, Policy

# --------------------------------------------------------------------------------------------------------------------
# A policy decides, and its decision is put into words: the candidates, their scores, the rule that decided.
# --------------------------------------------------------------------------------------------------------------------


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


def judge(
    policy: Policy, decision: Decision, racks: tuple[str, ...], job_name: Callable[[int], str], shown: int
) -> Verdict:
    """Ask the policy; `job_name` gives the name of a row."""
    if isinstance(policy, Heuristic):
        return _judge_rule(policy, decision, racks, job_name, shown)
    if isinstance(policy, Scored):
        return _judge_learned(policy, decision, racks, shown)
    action = policy(decision)
    said = f"{policy_name(policy)}: {_say(decision, action, racks)}"
    none = np.zeros((decision.layout.size, 0))
    return _verdict(decision, action, said, none, np.arange(decision.layout.size), {}, racks, shown)


def _judge_learned(policy: Scored, decision: Decision, racks: tuple[str, ...], shown: int) -> Verdict:
    from nvlenv.policies.inference import best_action

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
    from nvlenv.engine.core.live import score_racks

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


# --------------------------------------------------------------------------------------------------------------------
# Why not: a refusal in one sentence, and rack by rack.
# --------------------------------------------------------------------------------------------------------------------


TAKEN = 0  # state of a node in `count_states`


def room(live: Live, part: Part, limits: IntArray | None) -> NDArray[np.int64]:
    """(M,) units of a part that fit each node now."""
    nodes = live.sim.nodes
    units = np.where(nodes["blocked"] == 0, nodes["free"] // part.row.pod_gpus, 0).astype(np.int64)
    return units if limits is None else np.minimum(units, limits)


def by_size(live: Live, reserves: Reserves, part: Part) -> str:
    """Why a part could not have its nodes if the whole cluster were empty and up; empty if it could.

    Nobody may wait for what never comes: racks would be kept for it for ever.
    """
    spec, row, most = live.spec, part.row, reserves.most(part)
    together = (row.slice_gpus or row.gpus) // row.pod_gpus if row.mode == Mode.REQUIRED else 1
    domains = live.sim.ancestors[: spec.racks, row.height][spec.node_rack]
    slices = int((np.bincount(domains - domains.min(), most) // together).sum())
    if slices * together >= part.units:
        return ""
    what = _units(part, live.node_size)
    found = f"{int(most.sum())} {what} that it could ever use"
    return found if together == 1 else f"{found}, {slices} times {together} {what} in one {_level(live, part)}"


def by_shape(
    live: Live, reserves: Reserves, part: Part, row: int, limits: IntArray | None, declined: bool
) -> tuple[Cause, str, dict[str, str]]:
    """Cause, sentence and reasons by rack for a part that does not fit. `declined`: it could by evictions."""
    spec, fits = live.spec, room(live, part, limits)
    in_rack = np.bincount(spec.node_rack, fits, minlength=spec.racks).astype(np.int64)
    against = _against(live, reserves, part, row, limits)
    asked, free = part.units, int(fits.sum())
    what = _units(part, live.node_size)
    if free < asked:
        said = f"it asks for {asked} {what}, {free} are free for it"
        cause = Cause.CAPACITY
    else:
        said = f"{free} {what} are free for it, but {_promise(live, part)}; the best {_best(live, part, in_rack)}"
        cause = Cause.SHAPE
    racks = _by_rack(spec.rack_names, f"of {_in_one_rack(part)} {what} free", in_rack, against)
    return cause, said + (", and the policy evicts nobody for it" if declined else ""), racks


def _against(
    live: Live, reserves: Reserves, part: Part, row: int, limits: IntArray | None
) -> dict[str, NDArray[np.int64]]:
    """Nodes of each rack (R,) that are of no use, by what speaks against them."""
    nodes = live.sim.nodes
    found = {"failed or cordoned": _per_rack(live, nodes["blocked"] > 0)}
    if part.row.pod_gpus == live.node_size:
        counts = np.zeros((live.spec.racks, 4), np.int64)
        count_states(live.sim, row, counts)
        taken = counts[:, TAKEN] - found["failed or cordoned"]
        found = {"held by work that may not be evicted": taken, **found}
    if limits is not None:
        idle = (nodes["blocked"] == 0) & (nodes["free"] // part.row.pod_gpus > limits)
        scarce = reserves.scarcest(part)
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


def _units(part: Part, size: int) -> str:
    return "nodes" if part.row.pod_gpus == size else f"pods of {part.row.pod_gpus} GPUs"


def _in_one_rack(part: Part) -> int:
    """Units that want to be in one rack together."""
    row = part.row
    return (row.slice_gpus or row.gpus) // row.pod_gpus if row.mode == Mode.REQUIRED and row.height == 0 else 1


def _promise(live: Live, part: Part) -> str:
    row, level = part.row, _level(live, part)
    together = (row.slice_gpus or row.gpus) // row.pod_gpus
    slices = part.units // together
    within = f", all in one {part.within}" if part.within and part.strict else ""
    if slices > 1:
        return f"it wants {slices} slices of {together} in one {level} each{within}"
    return f"it wants all {together} in one {level}{within}"


def _best(live: Live, part: Part, in_rack: NDArray[np.int64]) -> str:
    """What the best domains of its level have."""
    height = part.row.height
    domains = live.sim.ancestors[: live.spec.racks, height]
    sums = np.bincount(domains - domains.min(), in_rack)
    together = (part.row.slice_gpus or part.row.gpus) // part.row.pod_gpus
    if part.units > together:
        return f"racks together hold {int((sums // together).sum())} slices"
    return f"{_level(live, part)} has {int(sums.max())}"


def _level(live: Live, part: Part) -> str:
    place = len(live.spec.levels) - 2 - part.row.height
    return live.spec.levels[place] if place >= 0 else "cluster"


def by_quota(live: Live, queue: int, gpus: int) -> str:
    """Why quota refuses so many GPUs to a queue."""
    spec, state = live.queues[queue], live.sim.queues[queue]
    cohort = live.sim.cohorts[state["cohort"]]
    said = f"queue {spec.name} uses {int(state['used'])} of {spec.nominal} GPUs"
    if int(state["used"]) + gpus > int(state["limit"]):
        return f"{said} and may borrow {spec.borrowing_limit}; the job asks for {gpus} more"
    if spec.cohort:
        said += f", its cohort {spec.cohort} {int(cohort['used'])} of {int(cohort['nominal'])}"
    return f"{said}; the job asks for {gpus} more"
