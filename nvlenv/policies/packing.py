"""Which rack: the packing rules that look at one rack at a time.

Each gives a rack two keys; the legal rack with the smallest pair wins, the lower index on ties.
"""

from __future__ import annotations

from nvlenv.kernel import inlined, kernel

SMALL = 1.0e-9


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


@inlined
def best_fit(sim, r):
    """Best fit, also MostAllocated: the fullest rack that still fits; of equal ones that with fewer whole nodes."""
    return float(sim.cap[r, 1]), float(sim.cap[r, sim.cap.shape[1] - 1])


@inlined
def least_allocated(sim, r):
    """LeastAllocated, kube-scheduler's default NodeResourcesFit: the emptiest rack."""
    return -float(sim.cap[r, 1]), 0.0


@inlined
def most_allocated(sim, r):
    """MostAllocated, kube-scheduler's bin packing strategy: the largest share of GPUs in use."""
    rack, g = sim.racks[r], sim.cap.shape[1] - 1
    return sim.cap[r, 1] / max(SMALL, (rack.node1 - rack.node0) * g), 0.0


@kernel
def hierarchical_best_fit(sim, r):
    """The rack that fits the fewest more pods of the job; of equal ones that whose block fits the fewest, and so on up.

    Source: the network topology solver of Koordinator's coscheduling plugin, which calls such pods offer slots.
    """
    p, above = sim.jobs[sim.clock[0].current].pod_gpus, 0.0
    for height in range(1, sim.ancestors.shape[1] - 1):
        above = above * (sim.cap[len(sim.cap) - 1, p] + 1) + sim.cap[sim.ancestors[r, height], p]
    return float(sim.cap[r, p]), above


@inlined
def anchor_loss(sim, r):
    """Lexicographic loss of 16-, 8- and 4-node slots, then best fit."""
    whole = sim.cap[r, sim.cap.shape[1] - 1]
    after = whole - nodes_taken(sim, r, part_here(sim, r))
    loss = 0.0
    for size in (16, 8, 4):
        loss = loss * 64.0 + (whole // size - after // size)
    return loss, float(sim.cap[r, 1])


@kernel
def random_key(sim, r, seed):
    """A different order of racks at every decision, the same for the same seed."""
    x = seed * 1_000_003 + sim.clock[0].decisions * 8_191 + r * 131 + sim.clock[0].units_left
    for _ in range(3):  # xorshift, kept to 31 bits
        x = (x ^ (x << 13)) & 0x7FFFFFFF
        x = x ^ (x >> 17)
        x = (x ^ (x << 5)) & 0x7FFFFFFF
    return float(x), 0.0


@inlined
def lifetime(sim, r):
    """Lifetime-aware: the smallest extension of the rack's drain time, then best fit.

    Remaining times are re-predicted from uptime (`nvlenv.simulator.outlook`). Source of the idea: Ling et al., "LAVA:
    Lifetime-Aware VM Allocation with Learned Distributions and Adaptation to Mispredictions", MLSys 2025.
    """
    c = sim.clock[0]
    job = sim.jobs[c.current]
    extension = job.noise * job.work - max(0.0, sim.racks[r].drain - c.now)
    return max(0.0, extension), float(sim.cap[r, 1])
