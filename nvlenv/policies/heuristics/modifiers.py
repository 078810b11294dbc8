"""What the modifiers of a packing rule decide: who waits, which racks are kept for others, and which are opened.

easy: EASY backfilling for racks (Lifka 1995, see `nvlenv.simulator.forecast`): a job may use racks reserved for the
target, by default the oldest waiting hero, only if it ends, by its estimate, before the target could start; with
`spare`, as in EASY's second rule, also if enough nodes of the rack are left for the target.

hold: a small job may not break a hero-ready rack (one with a free standard slice) when few of those are left, unless
it has waited long enough.

delay: a preferred job waits some hours for one domain of its level, if there is one that could ever hold it. Delay
scheduling: Zaharia et al., "Delay Scheduling: A Simple Technique for Achieving Locality and Fairness in Cluster
Scheduling", EuroSys 2010.

fill: pods that may go anywhere go to the tightest holes, if these are not kept for others.

tight: a slice that must span racks takes as few of them as any spread could, and each time the smallest that allows
for that: 20 nodes go to racks of 10 and 10 free nodes, not to 19 and 1 of another.

open, open-hero, preempt-priority: a job that finds no place evicts who is in the way. `urgency` bars victims that have
more weight per remaining hour, compared with the opener; `preempt-priority` those above the lowest priority that helps.
"""

from __future__ import annotations

import numpy as np

from nvlenv.common.kernel import inlined, kernel
from nvlenv.policies.heuristics.packing import nodes_taken, part_here
from nvlenv.policies.heuristics.rule import NO_OPEN, OPEN_HERO, OPEN_LOWEST
from nvlenv.simulator.feasibility import fill_domain, may_wait_for_domain
from nvlenv.simulator.forecast import is_sizeable, predicted_end, refresh_for, target_size
from nvlenv.simulator.occupancy import tightest_node
from nvlenv.simulator.preemption import mark_opens_again, may_evict, price_opens
from nvlenv.simulator.state import NO_PRIORITY

COST = 0  # row of scratch_float: what opening each rack costs by the hero controller's rule


# Who waits, and which racks are kept for others


@inlined
def waited(sim):
    """Hours that the job at hand has waited in all."""
    job = sim.jobs[sim.clock[0].current]
    return job.waited + sim.clock[0].now - job.queued


@kernel
def refresh_forecast(sim, rule):
    """Bring forecasts and the reservation that the rule asks for up to date."""
    refresh_for(sim, target_size(sim, rule.easy_slices, rule.easy_share), rule.easy_patience)


@inlined
def keeps_pool(sim, rule):
    """True if the drain rule lets the job at hand wait."""
    c = sim.clock[0]
    if rule.drain == 0 or c.target < 0 or c.target == c.current or not is_sizeable(sim, c.current):
        return False
    job = sim.jobs[c.current]  # once begun, it goes on
    return job.first_gpu < 0 and c.now + job.estimate_error * job.work > max(c.now, c.pool_start) + rule.drain_hours


@inlined
def outlasts_target(sim):
    """True if the job at hand would still run when the target could start."""
    c = sim.clock[0]
    job = sim.jobs[c.current]
    return c.target >= 0 and c.target != c.current and c.now + job.estimate_error * job.work > c.shadow


@inlined
def holds_back(sim, rule):
    """True if the hold rule applies to the job at hand: hero-ready racks are scarce, and it is small and young."""
    if rule.hold_racks == 0 or sim.jobs[sim.clock[0].current].gpus > rule.hold_nodes * (sim.cap.shape[1] - 1):
        return False
    return waited(sim) < rule.hold_hours and _ready_racks(sim) <= rule.hold_racks


@inlined
def what_is_kept(sim, rule):
    """Two flags for the job at hand: keep out of reserved racks; break no hero-ready rack."""
    return rule.easy == 1 and outlasts_target(sim), holds_back(sim, rule)


@inlined
def is_kept(sim, rule, kept, r, pods):
    """True if so many pods of the job at hand may not go to rack r; `kept` from `what_is_kept`."""
    reserved, ready = kept
    if reserved and sim.racks[r].reserved == 1 and (rule.easy_spare == 0 or _delays_target(sim, r, pods)):
        return True
    return ready and _breaks_ready_rack(sim, r, pods)


@kernel
def _ready_racks(sim):
    """Racks with a free standard slice."""
    count, g = 0, sim.cap.shape[1] - 1
    for r in range(len(sim.racks)):
        count += int(sim.cap[r, g] >= sim.clock[0].slice_nodes)
    return count


@inlined
def _breaks_ready_rack(sim, r, pods):
    """True if the pods take the rack's last free standard slice."""
    whole, size = sim.cap[r, sim.cap.shape[1] - 1], sim.clock[0].slice_nodes
    return whole >= size and whole - nodes_taken(sim, r, pods) < size


@kernel
def _delays_target(sim, r, pods):
    """True if, with the pods there, too few nodes of rack r are free at the target's start.

    A single small pod costs what its node would give; several of them count as a node each, which is on the safe side.
    """
    p, g = sim.jobs[sim.clock[0].current].pod_gpus, sim.cap.shape[1] - 1
    free = 0
    for n in range(sim.racks[r].node0, sim.racks[r].node1):
        free += int(_is_free_at_shadow(sim, n))
    lost = int(_is_free_at_shadow(sim, tightest_node(sim, r, p))) if pods == 1 and p < g else pods
    return free - lost < sim.clock[0].target_nodes


@kernel
def _is_free_at_shadow(sim, n):
    """True if node n is wholly free, by estimates, when the target could start."""
    c, g, node = sim.clock[0], sim.cap.shape[1] - 1, sim.nodes[n]
    if node.blocked > 0 or node.gpus < g:
        return False
    for slot in range(n * g, n * g + g):
        j = sim.gpu_job[slot]
        if j >= 0 and (j == c.current or predicted_end(sim, j) > c.shadow):
            return False
    return True


# Jobs that need not, or cannot, stay in one rack


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


# Which rack is opened


@kernel
def open_by_rule(sim, rule):
    """The action that opens a rack by the rule's way; -1: none is legal or it never does."""
    c = sim.clock[0]
    if rule.open == NO_OPEN:
        return -1
    c.evict_whole_rack = int(rule.open == OPEN_HERO)
    if rule.open == OPEN_LOWEST:
        _bar_priorities(sim)
    elif rule.open_urgency > 0.0 and c.victim_urgency != rule.open_urgency:  # else it stands from an earlier slice
        c.victim_urgency = rule.open_urgency
        mark_opens_again(sim, c.current)
    r = hero_open(sim) if rule.open == OPEN_HERO else cheapest_open(sim)
    return len(sim.racks) + r if r >= 0 else -1


@kernel
def open_whatever(sim):
    """The action that opens a rack where nothing else is legal, whatever bars a rule has set."""
    c = sim.clock[0]
    if c.victim_urgency < np.inf or c.victim_priority < NO_PRIORITY:
        c.victim_urgency, c.victim_priority = np.inf, NO_PRIORITY
        mark_opens_again(sim, c.current)
    return len(sim.racks) + cheapest_open(sim)


@kernel
def _bar_priorities(sim):
    """Bar victims above the lowest priority that makes an `open` legal."""
    c = sim.clock[0]
    if c.victim_priority < NO_PRIORITY:  # it stands from an earlier slice
        return
    found, barred = False, -NO_PRIORITY - 1
    while not found:
        lowest = NO_PRIORITY
        c.victim_priority = NO_PRIORITY
        for k in range(c.n_running):
            v = sim.heap[k]
            if barred < sim.jobs[v].priority < lowest and may_evict(sim, c.current, v):
                lowest = sim.jobs[v].priority
        if lowest == NO_PRIORITY:
            return
        c.victim_priority = barred = lowest
        found = mark_opens_again(sim, c.current)


@kernel
def cheapest_open(sim):
    """The rack with the fewest GPUs evicted, then the least lost work, then the lower index; -1: none is legal."""
    racks, best = len(sim.racks), -1
    price_opens(sim)
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
