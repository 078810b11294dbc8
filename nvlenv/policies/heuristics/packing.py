"""Which rack: the packing rules, which look at one rack at a time.

A packing rule is one function decorated with `packing`: it gives rack r two keys, and of the legal racks that with the
smallest pair wins, the lower index on ties. Parser, error texts, the engine's explanations and the tests find it in
`RULES`. To add one, write it here, behind the others: the number of a rule is its place in this file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from nvlenv.common.kernel import inlined, kernel
from nvlenv.simulator.feasibility import block_of_job
from nvlenv.simulator.state import Scratch

Kernel = Callable[..., Any]
SMALL = 1.0e-9
BEFORE = int(Scratch.POLICY)  # BEFORE[f]: nodes of one rack with f free GPUs
AFTER = int(Scratch.COUNTS)  # the same with the job placed; shared with placement_speed, which never runs meanwhile
GRID = 1.0e9  # rises are rounded to this grid, so that the last bit of a sum never decides


class Packing(NamedTuple):
    """A packing rule, as `packing` was told of it."""

    name: str
    words: str  # "takes ...", for people
    keys: Kernel  # (sim, rule, r, seen) -> two floats, smaller is better
    look: Kernel | None  # sim -> two integers, the `seen` of all racks: once for each decision
    forecast: bool  # True: it reads when racks drain


RULES: list[Packing] = []  # in the order of this file


def packing(
    name: str, words: str, look: Kernel | None = None, forecast: bool = False, inline: bool = True
) -> Callable[[Kernel], Kernel]:
    """Make the decorated function (sim, rule, r, seen) -> (float, float) a packing rule of that name.

    `words` complete "takes ...". `look`: kernel that is asked once for each decision; without it `seen` is (0, 0).
    `forecast`: it needs `nvlenv.simulator.forecast` up to date. Small functions are compiled into their caller, those
    with `inline` False are called.
    """

    def register(function: Kernel) -> Kernel:
        keys: Kernel = (inlined if inline else kernel)(function)
        RULES.append(Packing(name, words, keys, look, forecast))
        return keys

    return register


@inlined
def part_here(sim, r):
    """Pods of the present slice that rack r would take."""
    c = sim.clock[0]
    return min(c.pods_left, sim.cap[r, sim.jobs[c.current].pod_gpus])


@inlined
def nodes_taken(sim, r, pods):
    """Whole nodes that rack r would lose to so many pods of this job; sub-node pods go to part-used nodes first."""
    g, p = sim.cap.shape[1] - 1, sim.jobs[sim.clock[0].current].pod_gpus
    per_node = g // p
    in_part = sim.cap[r, p] - sim.cap[r, g] * per_node
    return -(-max(0, pods - in_part) // per_node)


@packing("random", "a rack at random", inline=False)
def random_key(sim, rule, r, seen):
    """A different order of racks at every decision, the same for the same seed."""
    x = rule.random_seed * 1_000_003 + sim.clock[0].decisions * 8_191 + r * 131 + sim.clock[0].slices_left
    for _ in range(3):  # xorshift, kept to 31 bits
        x = (x ^ (x << 13)) & 0x7FFFFFFF
        x = x ^ (x >> 17)
        x = (x ^ (x << 5)) & 0x7FFFFFFF
    return float(x), 0.0


@packing("first-fit", "the first rack that fits")
def first_fit(sim, rule, r, seen):
    """First fit: all racks are equal."""
    return 0.0, 0.0


@packing("least-allocated", "the rack with the most free GPUs")
def least_allocated(sim, rule, r, seen):
    """LeastAllocated, kube-scheduler's default NodeResourcesFit: the emptiest rack."""
    return -float(sim.cap[r, 1]), 0.0


@packing("most-allocated", "the rack with the largest share of its GPUs in use")
def most_allocated(sim, rule, r, seen):
    """MostAllocated, kube-scheduler's bin packing strategy: the largest share of GPUs in use."""
    rack, g = sim.racks[r], sim.cap.shape[1] - 1
    return sim.cap[r, 1] / max(SMALL, (rack.node1 - rack.node0) * g), 0.0


@packing("best-fit", "the rack with the fewest free GPUs that fits, of equal ones that with fewer whole nodes")
def best_fit(sim, rule, r, seen):
    """Best fit, also MostAllocated: the fullest rack that still fits; of equal ones that with fewer whole nodes."""
    return float(sim.cap[r, 1]), float(sim.cap[r, sim.cap.shape[1] - 1])


@packing(
    "hierarchical-best-fit",
    "the rack that fits the fewest more pods, of equal ones that whose block does",
    inline=False,
)
def hierarchical_best_fit(sim, rule, r, seen):
    """The rack that fits the fewest more pods of the job; of equal ones that whose block fits the fewest, and so on up.

    Source: the network topology solver of Koordinator's coscheduling plugin, which calls such pods offer slots.
    """
    p, above = sim.jobs[sim.clock[0].current].pod_gpus, 0.0
    for height in range(1, sim.ancestors.shape[1] - 1):
        above = above * (sim.cap[len(sim.cap) - 1, p] + 1) + sim.cap[sim.ancestors[r, height], p]
    return float(sim.cap[r, p]), above


@packing("anchor-loss", "the rack that loses the fewest 16-, 8- and 4-node slots, then best fit")
def anchor_loss(sim, rule, r, seen):
    """Lexicographic loss of 16-, 8- and 4-node slots, then best fit."""
    whole = sim.cap[r, sim.cap.shape[1] - 1]
    after = whole - nodes_taken(sim, r, part_here(sim, r))
    loss = 0.0
    for size in (16, 8, 4):
        loss = loss * 64.0 + (whole // size - after // size)
    return loss, float(sim.cap[r, 1])


@packing("lifetime", "the rack whose jobs end closest to this one's end, by estimates", forecast=True)
def lifetime(sim, rule, r, seen):
    """Lifetime-aware: the smallest extension of the rack's drain time, then best fit.

    Remaining times are re-predicted from uptime (`nvlenv.simulator.forecast`). Source of the idea: Ling et al., "LAVA:
    Lifetime-Aware VM Allocation with Learned Distributions and Adaptation to Mispredictions", MLSys 2025.
    """
    c = sim.clock[0]
    job = sim.jobs[c.current]
    extension = job.estimate_error * job.work - max(0.0, sim.racks[r].drain - c.now)
    return max(0.0, extension), float(sim.cap[r, 1])


@packing("rack-fgd", "the rack where the fewest GPUs become useless to the usual mix of jobs", inline=False)
def fragmentation_gradient(sim, rule, r, seen):
    """The smallest rise of the expected unusable GPUs of the rack, then best fit.

    Fragmentation gradient descent, taken from the node to the rack: what a placement costs is how far it raises the
    free GPUs that the next job, drawn from the usual mix (`Sim.mix`) and confined to a rack, is expected not to be able
    to use (`nvlenv.cluster.fragmentation.rack_fgd` of that rack). Source: Weng et al., "Beware of Fragmentation:
    Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX ATC '23.
    """
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


@packing("slurm-block", "Slurm's topology/block rule", look=block_of_job, inline=False)
def slurm_block(sim, rule, r, seen):
    """Slurm's topology/block with segments: racks of the job's block first, of those the one with the fewest nodes.

    Source: Slurm's guide to topology/block and its --segment option. A rack is Slurm's base block, coarser domains are
    its aggregated blocks, and the slices of a job are its segments, kept together as with --consolidate-segments: the
    lowest level with a domain that holds all that is left of the job; of those domains the one with the fewest nodes
    that could take its pods (`feasibility.block_of_job`); inside it, segment by segment, the rack with the fewest such
    nodes. A segment that fits no rack takes the racks with the most nodes first.
    """
    outside = 0.0 if sim.ancestors[r, seen[0]] == seen[1] else 1.0
    return outside, float(sim.cap[r, sim.jobs[sim.clock[0].current].pod_gpus])


PACKINGS = tuple(rule.name for rule in RULES)
