"""Modifiers that open racks by eviction: which rack."""

from __future__ import annotations

from nvlenv.kernel import kernel


@kernel
def cheapest_open(sim):
    """open[r] with the fewest GPUs evicted, then the least lost work, then the lower index; -1: none is legal."""
    racks, best = len(sim.racks), -1
    for r in range(racks):
        if sim.mask[racks + r] and (best < 0 or _cheaper(sim, r, best)):
            best = r
    return racks + best if best >= 0 else -1


@kernel
def _cheaper(sim, a, b):
    if sim.open_gpus[a] != sim.open_gpus[b]:
        return sim.open_gpus[a] < sim.open_gpus[b]
    return sim.open_lost[a] < sim.open_lost[b]


@kernel
def hero_open(sim):
    """The hero controller's rule: the rack whose victims cost least, if possible in the block already begun.

    A victim costs 0.7 of its priority share, 0.2 of its share of the rack's GPUs and 0.1 run / (run + 6 h) for what it
    has already run; five times that if it is from another queue. Everything in the chosen rack is evicted.
    """
    racks, best, best_cost = len(sim.racks), -1, 0.0
    block = _block_begun(sim)
    for pass_outside in range(2):
        for r in range(racks):
            if not sim.mask[racks + r] or (pass_outside == 0 and block >= 0 and _block(sim, r) != block):
                continue
            cost = _hero_cost(sim, r)
            if best < 0 or cost < best_cost:
                best, best_cost = r, cost
        if best >= 0:
            return racks + best
    return -1


@kernel
def _block(sim, r):
    return sim.ancestors[r, min(1, sim.ancestors.shape[1] - 1)]


@kernel
def _block_begun(sim):
    """The block that holds the first slice of the job at hand; -1: nothing is placed yet."""
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
        if v < 0 or v == c.current or sim.jobs[v].mark == c.stamp:
            continue
        victim = sim.jobs[v]
        victim.mark = c.stamp
        run = c.now - victim.start
        share = 0.7 * max(0, victim.priority) / max(1, opener.priority)
        share += 0.2 * min(1.0, victim.gpus / gpus) + 0.1 * run / (run + 6.0)
        cost += share * (5.0 if victim.queue != opener.queue else 1.0)
    return cost
