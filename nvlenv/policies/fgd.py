"""Fragmentation gradient descent, taken from the node to the rack.

Source: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
USENIX ATC '23. What a placement costs is how far it raises the free GPUs that the next job, drawn from the usual mix
(`Sim.mix`) and confined to a rack, is expected not to be able to use: `nvlenv.fragmentation.rack_fgd` of that rack.
"""

from __future__ import annotations

import numpy as np

from nvlenv.kernel import kernel
from nvlenv.policies.packing import part_here
from nvlenv.simulator.state import Row

BEFORE = int(Row.POLICY)  # BEFORE[f]: nodes of one rack with f free GPUs
AFTER = int(Row.COUNTS)  # the same with the job placed; shared with placement_speed, which never runs meanwhile
GRID = 1.0e9  # rises are rounded to this grid, so that the last bit of a sum never decides


@kernel
def rack_fgd(sim, r):
    """The smallest rise of the expected unusable GPUs of the rack, then best fit."""
    before, after, cap = sim.scratch[BEFORE], sim.scratch[AFTER], sim.cap[r]
    p, pods = sim.jobs[sim.clock[0].current].pod_gpus, part_here(sim, r)
    _count_nodes(cap, before, after)
    _take_tightest(after, len(cap) - 1, p, pods)
    rise = _rise(sim.mix, cap, before, after, cap[1] - p * pods)
    return np.floor(rise * GRID + 0.5), float(cap[1])


# The helpers take only the arrays they need: to hand on the whole of `sim` costs more than their work.


@kernel
def _count_nodes(cap, before, after):
    """Fill both: a node with f free GPUs fits f // p pods of p, so the counts follow from `cap`, largest f first."""
    g = len(cap) - 1
    for p in range(g, 0, -1):
        before[p] = 0
        before[p] = after[p] = cap[p] - _pods_that_fit(before, g, p)


@kernel
def _pods_that_fit(nodes, g, p):
    """Pods of p GPUs that fit nodes[f] nodes with f free GPUs each."""
    fit = 0
    for f in range(p, g + 1):
        if nodes[f] > 0:  # most are not: divisions are what takes time here
            fit += nodes[f] * (f // p)
    return fit


@kernel
def _take_tightest(nodes, g, p, pods):
    """Put pods of p GPUs on nodes, each on one with the fewest free GPUs that fits."""
    f = p
    while pods > 0 and f <= g:
        if nodes[f] == 0:
            f += 1
            continue
        taken = 1 if f - p >= p else min(pods, nodes[f])  # what is left of the node may be the next pod's tightest fit
        nodes[f] -= taken
        nodes[f - p] += taken
        pods -= taken
        f = p


@kernel
def _rise(mix, cap, before, after, free):
    """By how much the free GPUs that the next job is expected not to be able to use rise; `free` GPUs are left."""
    small_before, small_after, rise = 0, 0, 0.0  # GPUs of nodes with fewer than p free
    for p in range(1, len(cap)):
        if mix[p, 0] > 0.0:  # if not all of its pods fit, every free GPU is lost on a job
            cannot = mix[p, _pods_that_fit(after, len(cap) - 1, p)]
            rise += cannot * free + (mix[p, 0] - cannot) * small_after
            cannot = mix[p, cap[p]]
            rise -= cannot * cap[1] + (mix[p, 0] - cannot) * small_before
        small_before += p * before[p]
        small_after += p * after[p]
    return rise
