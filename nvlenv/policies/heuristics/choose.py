"""A composed heuristic decides: wait for one domain, else fill, else the best allowed rack, else open, else hold."""

from __future__ import annotations

from nvlenv.common.kernel import inlined, kernel
from nvlenv.policies.heuristics import packing as rules
from nvlenv.policies.heuristics.opening import cheapest_open, open_by_rule
from nvlenv.policies.heuristics.packing import part_here, rack_fgd, slurm_block
from nvlenv.policies.heuristics.reservation import is_kept, keeps_pool, refresh_reservation, what_is_kept
from nvlenv.policies.heuristics.rule import PACKINGS
from nvlenv.policies.heuristics.spreading import may_fill, tight_part, waits_for_domain
from nvlenv.simulator.feasibility import block_of_job

RANDOM, FIRST_FIT = PACKINGS.index("random"), PACKINGS.index("first-fit")
LEAST, MOST = PACKINGS.index("least-allocated"), PACKINGS.index("most-allocated")
HIERARCHICAL, ANCHOR = PACKINGS.index("hierarchical-best-fit"), PACKINGS.index("anchor-loss")
LIFETIME, FGD = PACKINGS.index("lifetime"), PACKINGS.index("rack-fgd")
SLURM = PACKINGS.index("slurm-block")


@kernel
def choose(sim, rule):
    """The action of a composed heuristic for the decision at hand. Where `hold` is illegal, nothing is kept."""
    hold = 2 * len(sim.racks) + 1
    may_hold = sim.mask[hold]
    if rule.easy == 1 or rule.drain == 1 or rule.packing == LIFETIME:
        refresh_reservation(sim, rule)
    if may_hold and (waits_for_domain(sim, rule) or keeps_pool(sim, rule)):
        return hold
    kept = what_is_kept(sim, rule) if may_hold else (False, False)
    if rule.fill == 1 and may_fill(sim, rule, kept):
        return 2 * len(sim.racks)
    best = _best_rack(sim, rule, kept)
    if best >= 0:
        return best
    opened = open_by_rule(sim, rule)
    if opened < 0 and not may_hold:
        opened = len(sim.racks) + cheapest_open(sim)
    return opened if opened >= 0 else hold


@inlined
def _best_rack(sim, rule, kept):
    """The allowed rack with the smallest keys, the lower index on ties; -1: none.

    Of a spread, each rack takes as much as it can, and the largest part goes first; with `tight`, the smallest one that
    does not cost another rack.
    """
    tight = rule.tight == 1 and sim.clock[0].reach > 0
    enough = tight_part(sim, rule, kept) if tight else 0
    block = block_of_job(sim) if rule.packing == SLURM else (0, 0)
    best, best_part, best_a, best_b = -1, 0, 0.0, 0.0
    for r in range(len(sim.racks)):
        part = part_here(sim, r)
        if not sim.mask[r] or is_kept(sim, rule, kept, r, part):
            continue
        if tight:
            if part < enough:
                continue
            part = -part
        a, b = rack_keys(sim, rule, block, r)
        better = part > best_part or (part == best_part and (a < best_a or (a == best_a and b < best_b)))
        if best < 0 or better:
            best, best_part, best_a, best_b = r, part, a, b
    return best


@inlined
def rack_keys(sim, rule, block, r):
    """The two keys of rack r under the packing rule; smaller is better. `block`: feasibility.block_of_job."""
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
    if rule.packing == FGD:
        return rack_fgd(sim, r)
    if rule.packing == SLURM:
        return slurm_block(sim, r, block[0], block[1])
    return rules.best_fit(sim, r)
