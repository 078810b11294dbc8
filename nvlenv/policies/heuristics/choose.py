"""A composed heuristic decides: wait for one domain, else fill, else the best allowed rack, else open, else hold."""

from __future__ import annotations

from dataclasses import dataclass

from nvlenv.common.kernel import compiled, inlined, kernel
from nvlenv.policies.heuristics.modifiers import (
    is_kept,
    keeps_pool,
    may_fill,
    open_by_rule,
    open_whatever,
    refresh_forecast,
    tight_part,
    waits_for_domain,
    what_is_kept,
)
from nvlenv.policies.heuristics.packing import RULES, part_here
from nvlenv.policies.heuristics.rule import Rule
from nvlenv.simulator.decision import Action, Decision
from nvlenv.simulator.state import Sim, written
from nvlenv.simulator.step import advance, step

FORECASTS = tuple(each.forecast for each in RULES)  # by rule.packing: it needs forecasts

# rack_keys(sim, rule, r, seen): the two keys of rack r under the rule's packing, smaller is better.
# look(sim, rule): what these keys want to have `seen`.
# Numba knows no table of kernels, so both are written from the list of rules.
_scope = {**globals(), **{f"keys_{k}": each.keys for k, each in enumerate(RULES)}}
_scope |= {f"look_{k}": each.look for k, each in enumerate(RULES)}
_keys = [f"    if rule.packing == {k}: return keys_{k}(sim, rule, r, seen)" for k in range(len(RULES))]
_looks = [f"    if rule.packing == {k}: return look_{k}(sim)" for k, each in enumerate(RULES) if each.look]
rack_keys = inlined(written("\n".join(["def rack_keys(sim, rule, r, seen):", *_keys, "    return 0.0, 0.0"]), _scope))
look = inlined(written("\n".join(["def look(sim, rule):", *_looks, "    return 0, 0"]), _scope))


@kernel
def choose(sim, rule):
    """The action of a composed heuristic for the decision at hand. Where `hold` is illegal, nothing is kept."""
    hold = 2 * len(sim.racks) + 1
    may_hold = sim.mask[hold]
    if rule.easy == 1 or rule.drain == 1 or FORECASTS[rule.packing]:
        refresh_forecast(sim, rule)
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
        opened = open_whatever(sim)
    return opened if opened >= 0 else hold


@inlined
def _best_rack(sim, rule, kept):
    """The allowed rack with the smallest keys, the lower index on ties; -1: none.

    Of a spread, each rack takes as much as it can, and the largest part goes first; with `tight`, the smallest one that
    does not cost another rack.
    """
    tight = rule.tight == 1 and sim.clock[0].reach > 0
    enough = tight_part(sim, rule, kept) if tight else 0
    seen = look(sim, rule)
    best, best_part, best_a, best_b = -1, 0, 0.0, 0.0
    for r in range(len(sim.racks)):
        part = part_here(sim, r)
        if not sim.mask[r] or is_kept(sim, rule, kept, r, part):
            continue
        if tight:
            if part < enough:
                continue
            part = -part
        a, b = rack_keys(sim, rule, r, seen)
        better = part > best_part or (part == best_part and (a < best_a or (a == best_a and b < best_b)))
        if best < 0 or better:
            best, best_part, best_a, best_b = r, part, a, b
    return best


@compiled
def play_rule(sim, rule):
    """Play an episode to its end with a composed heuristic. Returns the number of decisions."""
    decisions = 0
    alive = advance(sim)
    while alive:
        decisions += 1
        alive = step(sim, choose(sim, rule))
    return decisions


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
