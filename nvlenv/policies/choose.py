"""A composed heuristic decides: fill, else the best allowed rack, else open, else hold."""

from __future__ import annotations

from nvlenv.kernel import kernel
from nvlenv.policies import packing as rules
from nvlenv.policies.opening import cheapest_open, hero_open
from nvlenv.policies.packing import part_here
from nvlenv.policies.reservation import breaks_ready_rack, holds_back, outlasts_hero
from nvlenv.policies.rule import NO_OPEN, OPEN_HERO, PACKINGS
from nvlenv.simulator.outlook import refresh

RANDOM, FIRST_FIT = PACKINGS.index("random"), PACKINGS.index("first-fit")
LEAST, MOST = PACKINGS.index("least-allocated"), PACKINGS.index("most-allocated")
HIERARCHICAL, ANCHOR = PACKINGS.index("hierarchical-best-fit"), PACKINGS.index("anchor-loss")
LIFETIME = PACKINGS.index("lifetime")


@kernel
def _keys(sim, rule, r):
    """The two keys of rack r under the packing rule; smaller is better."""
    if rule.packing == RANDOM:
        return rules.random_key(sim, r, rule.seed)
    if rule.packing == FIRST_FIT:
        return 0.0, 0.0
    if rule.packing == LEAST:
        return rules.least_allocated(sim, r)
    if rule.packing == MOST:
        return rules.most_allocated(sim, r)
    if rule.packing == HIERARCHICAL:
        return rules.hierarchical_best_fit(sim, r)
    if rule.packing == ANCHOR:
        return rules.anchor_loss(sim, r)
    if rule.packing == LIFETIME:
        return rules.lifetime(sim, r)
    return rules.best_fit(sim, r)


@kernel
def _best_rack(sim, rule, no_reserved, no_breaking):
    """The allowed rack with the smallest keys; -1: none. A spread takes as much as it can in each rack."""
    best, best_part, best_a, best_b = -1, 0, 0.0, 0.0
    for r in range(len(sim.racks)):
        if not sim.mask[r] or (no_reserved and sim.racks[r].reserved == 1):
            continue
        if no_breaking and breaks_ready_rack(sim, r):
            continue
        part = part_here(sim, r)
        a, b = _keys(sim, rule, r)
        better = part > best_part or (part == best_part and (a < best_a or (a == best_a and b < best_b)))
        if best < 0 or better:
            best, best_part, best_a, best_b = r, part, a, b
    return best


@kernel
def choose(sim, rule):
    """The action of a composed heuristic for the decision at hand."""
    racks = len(sim.racks)
    if rule.easy == 1 or rule.packing == LIFETIME:
        refresh(sim)
    no_reserved = rule.easy == 1 and outlasts_hero(sim)
    no_breaking = holds_back(sim, rule)
    if rule.fill == 1 and sim.mask[2 * racks] and not no_reserved:
        return 2 * racks
    best = _best_rack(sim, rule, no_reserved, no_breaking)
    if best >= 0:
        return best
    opened = -1
    if rule.open != NO_OPEN:
        opened = hero_open(sim) if rule.open == OPEN_HERO else cheapest_open(sim)
    return opened if opened >= 0 else 2 * racks + 1
