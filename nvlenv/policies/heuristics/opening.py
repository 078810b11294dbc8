"""Modifiers that open racks by eviction: which rack."""

from __future__ import annotations

import numpy as np

from nvlenv.common.kernel import kernel
from nvlenv.policies.heuristics.rule import NO_OPEN, OPEN_HERO
from nvlenv.simulator.preemption import may_evict

COST = 0  # row of scratch_float: what opening each rack costs by the hero controller's rule


@kernel
def open_by_rule(sim, rule):
    """The action that opens a rack by the rule's way; -1: none is legal or it never does."""
    if rule.open == NO_OPEN:
        return -1
    sim.clock[0].evict_whole_rack = int(rule.open == OPEN_HERO)
    r = hero_open(sim) if rule.open == OPEN_HERO else cheapest_open(sim)
    return len(sim.racks) + r if r >= 0 else -1


@kernel
def cheapest_open(sim):
    """The rack with the fewest GPUs evicted, then the least lost work, then the lower index; -1: none is legal."""
    racks, best = len(sim.racks), -1
    for r in range(racks):
        if sim.mask[racks + r] and (best < 0 or _is_cheaper(sim, r, best)):
            best = r
    return best


@kernel
def _is_cheaper(sim, a, b):
    if sim.open_gpus[a] != sim.open_gpus[b]:
        return sim.open_gpus[a] < sim.open_gpus[b]
    return sim.open_lost[a] < sim.open_lost[b]


@kernel
def hero_open(sim):
    """The hero controller's rule: racks are chosen greedily by the cost of their victims, in one block if possible.

    A victim costs 0.7 of its priority share, 0.2 of its share of the rack's GPUs and 0.1 run / (run + 6 h) for what it
    has already run; five times that if it is from another queue. Everything in the chosen rack is evicted.
    The block is that in which the job has begun, else the one that can be opened for all of it at the least cost.
    """
    racks = len(sim.racks)
    for r in range(racks):
        sim.scratch_float[COST, r] = _hero_cost(sim, r) if sim.mask[racks + r] else np.inf
    block = _block_begun(sim)
    best = _next_cheapest(sim, block, -1) if block >= 0 else _next_cheapest(sim, _cheapest_block(sim), -1)
    return best if best >= 0 else _next_cheapest(sim, -1, -1)


@kernel
def _next_cheapest(sim, block, last):
    """The legal rack of a block (-1: of any) that comes after rack `last` (-1: first) by COST, then index; -1: none."""
    cost, best = sim.scratch_float[COST], -1
    for r in range(len(sim.racks)):
        later = last < 0 or cost[r] > cost[last] or (cost[r] == cost[last] and r > last)
        inside = block < 0 or _block(sim, r) == block
        if inside and later and cost[r] < np.inf and (best < 0 or cost[r] < cost[best]):
            best = r
    return best


@kernel
def _cheapest_block(sim):
    """The block in which racks can be opened for the whole job at the least cost, the first of equals; -1: none."""
    best, best_cost, height = -1, np.inf, min(1, sim.ancestors.shape[1] - 1)
    for block in range(sim.level_start[height], sim.level_start[height + 1]):
        cost = _cost_of_block(sim, block)
        if cost < best_cost:
            best, best_cost = block, cost
    return best


@kernel
def _cost_of_block(sim, block):
    """What it costs to open so many racks of a block that it holds the whole job; inf: it cannot."""
    c, g, free = sim.clock[0], sim.cap.shape[1] - 1, 0
    for r in range(len(sim.racks)):
        if _block(sim, r) == block:
            free += sim.cap[r, g] // sim.jobs[c.current].slice_pods
    cost, last = 0.0, -1
    for _ in range(c.slices_left - free):
        last = _next_cheapest(sim, block, last)
        if last < 0:
            return np.inf
        cost += sim.scratch_float[COST, last]
    return cost


@kernel
def _block(sim, r):
    return sim.ancestors[r, min(1, sim.ancestors.shape[1] - 1)]


@kernel
def _block_begun(sim):
    """The block that holds the last slice placed of the job at hand; -1: nothing is placed yet."""
    first = sim.jobs[sim.clock[0].current].first_gpu
    return _block(sim, sim.nodes[first // (sim.cap.shape[1] - 1)].rack) if first >= 0 else -1


@kernel
def _hero_cost(sim, r):
    c, g = sim.clock[0], sim.cap.shape[1] - 1
    opener, cost = sim.jobs[c.current], 0.0
    gpus = (sim.racks[r].node1 - sim.racks[r].node0) * g
    c.stamp += 1
    for slot in range(sim.racks[r].node0 * g, sim.racks[r].node1 * g):
        v = sim.gpu_job[slot]
        if v < 0 or sim.jobs[v].mark == c.stamp:
            continue
        victim = sim.jobs[v]
        victim.mark = c.stamp
        if not may_evict(sim, c.current, v) and victim.movable == 0:
            continue
        run = c.now - victim.start
        share = 0.7 * max(0, victim.priority) / max(1, opener.priority)
        share += 0.2 * min(1.0, victim.gpus / gpus) + 0.1 * run / (run + 6.0)
        cost += share * (5.0 if victim.queue != opener.queue else 1.0)
    return cost
