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

NODES = int(Row.POLICY)  # NODES[f]: nodes of one rack with f free GPUs
GRID = 1.0e9  # rises are rounded to this grid, so that the last bit of a sum never decides


@kernel
def rack_fgd(sim, r):
    """The smallest rise of the expected unusable GPUs of the rack, then best fit."""
    _count_nodes(sim, r)
    before = _expected_unusable(sim)
    _take_tightest(sim, sim.jobs[sim.clock[0].current].pod_gpus, part_here(sim, r))
    rise = _expected_unusable(sim) - before
    return np.floor(rise * GRID + 0.5), float(sim.cap[r, 1])


@kernel
def _count_nodes(sim, r):
    """Fill NODES: a node with f free GPUs fits f // p pods of p, so the counts follow from `cap`, largest f first."""
    g = sim.cap.shape[1] - 1
    for p in range(g, 0, -1):
        nodes = sim.cap[r, p]
        for f in range(p + 1, g + 1):
            nodes -= sim.scratch[NODES, f] * (f // p)
        sim.scratch[NODES, p] = nodes


@kernel
def _take_tightest(sim, p, pods):
    """Put pods of p GPUs into NODES, each on the node with the fewest free GPUs that fits."""
    nodes, g = sim.scratch[NODES], sim.cap.shape[1] - 1
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
def _expected_unusable(sim):
    """Free GPUs in NODES that the next job is expected not to be able to use."""
    g, free, too_small, expected = sim.cap.shape[1] - 1, 0, 0, 0.0
    for f in range(1, g + 1):
        free += f * sim.scratch[NODES, f]
    for p in range(1, g + 1):
        fit = 0
        for f in range(p, g + 1):
            fit += sim.scratch[NODES, f] * (f // p)
        cannot = sim.mix[p, fit]  # the pods do not all fit: every free GPU is lost on the job
        expected += cannot * free + (sim.mix[p, 0] - cannot) * too_small
        too_small += p * sim.scratch[NODES, p]
    return expected
