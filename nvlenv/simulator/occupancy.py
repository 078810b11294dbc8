"""Which pod is on which GPU, and the aggregates that follow from it.

`gpu_job` is the truth. Everything else (free GPUs of a node, what fits each domain, free slots, part-used nodes) is
kept up to date here on every change and never recomputed.
"""

from __future__ import annotations

from nvlenv.common.kernel import inlined, kernel
from nvlenv.simulator.state import SLOT_SIZES


@inlined
def usable_free(node):
    """Free GPUs that a new pod may take on this node."""
    return node.free if node.blocked == 0 else 0


@inlined
def set_node(sim, n, free, blocked):
    """Change a node's free GPUs and blocks, and all aggregates with it."""
    node = sim.nodes[n]
    rack = sim.racks[node.rack]
    before, was_usable = usable_free(node), node.blocked == 0
    was_part = was_usable and 0 < node.free < node.gpus
    sim.clock[0].free_all += free - node.free
    node.free, node.blocked = free, blocked
    after, is_usable = usable_free(node), blocked == 0
    rack.usable += int(is_usable) - int(was_usable)
    rack.part += int(is_usable and 0 < free < node.gpus) - int(was_part)
    rack.stale = 1
    if after != before:
        _update_caps(sim, node.rack, before, after)


@inlined
def _update_caps(sim, r, before, after):
    g = sim.cap.shape[1] - 1
    old_whole = sim.cap[r, g]
    for p in range(1, g + 1):
        change = after // p - before // p
        if change != 0:
            for height in range(sim.ancestors.shape[1]):
                sim.cap[sim.ancestors[r, height], p] += change
    new_whole = sim.cap[r, g]
    if new_whole != old_whole:
        for k in range(len(SLOT_SIZES)):
            sim.slots[0, k] += new_whole // SLOT_SIZES[k] - old_whole // SLOT_SIZES[k]


@inlined
def tightest_node(sim, r, p):
    """The usable node of rack r with the fewest free GPUs that still hold a pod of p; lowest on ties; -1: none."""
    best, best_free = -1, 1 << 30
    for n in range(sim.racks[r].node0, sim.racks[r].node1):
        free = usable_free(sim.nodes[n])
        if p <= free < best_free:
            best, best_free = n, free
            if free == p:
                break
    return best


@inlined
def occupy(sim, j, n, gpus):
    """Give `gpus` free GPUs of node n to job j. A verification pod on it is evicted."""
    g = sim.cap.shape[1] - 1
    job, node = sim.jobs[j], sim.nodes[n]
    left = gpus
    for slot in range(n * g, n * g + node.gpus):
        if left > 0 and sim.gpu_job[slot] == -1:
            sim.gpu_job[slot] = j
            sim.gpu_next[slot] = job.first_gpu
            job.first_gpu = slot
            left -= 1
    if node.verify == 1:
        node.verify = 0
        sim.clock[0].verify_evictions += 1
    set_node(sim, n, node.free - gpus, node.blocked)


@inlined
def take(sim, j, r, pods):
    """Put so many pods of job j on rack r, each on the tightest node that fits: whole free nodes come in order."""
    p = sim.jobs[j].pod_gpus
    if p == sim.cap.shape[1] - 1:  # a pod as large as the largest node: every fitting node is equally tight
        for n in range(sim.racks[r].node0, sim.racks[r].node1):
            if pods > 0 and usable_free(sim.nodes[n]) == p:
                occupy(sim, j, n, p)
                pods -= 1
    else:
        for _ in range(pods):
            occupy(sim, j, tightest_node(sim, r, p), p)


@kernel
def tightest_rack(sim, p, domain, height):
    """The rack of a domain with the fewest free GPUs in which a pod of p fits; lowest index on ties; -1: none."""
    best, best_free = -1, 1 << 30
    for r in range(len(sim.racks)):
        if sim.ancestors[r, height] == domain and sim.cap[r, p] > 0 and sim.cap[r, 1] < best_free:
            best, best_free = r, sim.cap[r, 1]
    return best


@kernel
def fill(sim, j, pods, domain, height):
    """Put pods of job j into the tightest holes of a domain: fullest rack first, tightest node first."""
    p = sim.jobs[j].pod_gpus
    while pods > 0:
        r = tightest_rack(sim, p, domain, height)
        part = min(pods, sim.cap[r, p])
        take(sim, j, r, part)
        pods -= part


@inlined
def release(sim, j):
    """Take all GPUs away from job j."""
    g = sim.cap.shape[1] - 1
    slot = sim.jobs[j].first_gpu
    while slot >= 0:
        n, count = slot // g, 0
        while slot >= 0 and slot // g == n:
            after = sim.gpu_next[slot]
            sim.gpu_job[slot], sim.gpu_next[slot] = -1, -1
            slot = after
            count += 1
        set_node(sim, n, sim.nodes[n].free + count, sim.nodes[n].blocked)
    sim.jobs[j].first_gpu = -1
