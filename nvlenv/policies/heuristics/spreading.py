"""Modifiers for jobs that need not, or cannot, stay in one rack.

fill: their pods go to the tightest holes, if these are not kept for others.

tight: a slice that must span racks takes as few of them as any spread could, and each time the smallest that allows
for that: 20 nodes go to racks of 10 and 10 free nodes, not to 19 and 1 of another.

delay: a preferred job waits some hours for one domain of its level, if there is one that could ever hold it. Delay
scheduling: Zaharia et al., "Delay Scheduling: A Simple Technique for Achieving Locality and Fairness in Cluster
Scheduling", EuroSys 2010.
"""

from __future__ import annotations

from nvlenv.common.kernel import inlined, kernel
from nvlenv.policies.heuristics.packing import part_here
from nvlenv.policies.heuristics.reservation import is_kept, waited
from nvlenv.simulator.feasibility import fill_domain, may_wait_for_domain


@kernel
def may_fill(sim, rule, kept):
    """True if `fill` is legal and none of the holes that it would fill is kept: fullest racks first, as `fill` goes."""
    c = sim.clock[0]
    if not sim.mask[2 * len(sim.racks)]:
        return False
    p, domain = sim.jobs[c.current].pod_gpus, fill_domain(sim, c.current)
    left, last = c.pods_left, -1
    while left > 0 and (kept[0] or kept[1]):
        last = _next_fullest(sim, p, domain, last)
        part = min(left, sim.cap[last, p])
        if is_kept(sim, rule, kept, last, part):
            return False
        left -= part
    return True


@kernel
def _next_fullest(sim, p, domain, last):
    """The rack of a domain that `fill` turns to after rack `last` (-1: first): the next by free GPUs, then by index."""
    best = -1
    for r in range(len(sim.racks)):
        free = sim.cap[r, 1]
        later = last < 0 or free > sim.cap[last, 1] or (free == sim.cap[last, 1] and r > last)
        if later and sim.cap[r, p] > 0 and (best < 0 or free < sim.cap[best, 1]) and _is_inside(sim, r, domain):
            best = r
    return best


@kernel
def _is_inside(sim, r, domain):
    for height in range(sim.ancestors.shape[1]):
        if sim.ancestors[r, height] == domain:
            return True
    return False


@kernel
def tight_part(sim, rule, kept):
    """The least pods of a spread that one rack must take now so that the rest still fits the fewest racks.

    More than any rack takes if the allowed racks do not hold all of it.
    """
    left, last = sim.clock[0].pods_left, _next_roomiest(sim, rule, kept, -1)
    while last >= 0 and part_here(sim, last) < left:
        left -= part_here(sim, last)
        last = _next_roomiest(sim, rule, kept, last)
    return left if last >= 0 else sim.clock[0].pods_left + 1


@kernel
def _next_roomiest(sim, rule, kept, last):
    """The allowed rack with the most room after rack `last` (-1: first), lower index first; -1: no more."""
    best = -1
    for r in range(len(sim.racks)):
        room = part_here(sim, r)
        later = last < 0 or room < part_here(sim, last) or (room == part_here(sim, last) and r > last)
        better = best < 0 or room > part_here(sim, best)
        if sim.mask[r] and later and better and not is_kept(sim, rule, kept, r, room):
            best = r
    return best


@inlined
def waits_for_domain(sim, rule):
    """True if the delay rule lets the job at hand wait instead of spreading beyond its level."""
    return waited(sim) < rule.delay_hours and may_wait_for_domain(sim)
