"""What fits where: the legal actions of the job at hand.

A job is placed slice by slice; a slice that no single rack of its domain holds is placed rack by rack ("part by part").
The *reach* of a slice is the height of the domain that is to hold it: 0 a rack, 1 a block, ..., the whole cluster.
"""

from __future__ import annotations

import numpy as np

from nvlenv.cluster.types import Mode
from nvlenv.common.kernel import inlined, kernel
from nvlenv.simulator.preemption import mark_opens
from nvlenv.simulator.queues import has_quota
from nvlenv.simulator.state import NO_PRIORITY, PRIORITY, SHAPE

UNCONSTRAINED, PREFERRED, REQUIRED = int(Mode.UNCONSTRAINED), int(Mode.PREFERRED), int(Mode.REQUIRED)


@inlined
def _holds_one(sim, height, p, pods):
    """True if one domain of this height holds so many pods of p GPUs."""
    for d in range(sim.level_start[height], sim.level_start[height + 1]):
        if sim.cap[d, p] >= pods:
            return True
    return False


@inlined
def count_slices(sim, height, p, pods, enough):
    """Slices of so many pods that the domains of this height hold; counting stops at `enough`."""
    slices = 0
    for d in range(sim.level_start[height], sim.level_start[height + 1]):
        slices += sim.cap[d, p] // pods
        if slices >= enough:
            break
    return slices


@inlined
def _reach(sim, j):
    """The lowest height at which the rest of job j fits by shape; -1: nowhere."""
    job, c = sim.jobs[j], sim.clock[0]
    p, top = job.pod_gpus, sim.ancestors.shape[1] - 1
    if sim.cap[len(sim.cap) - 1, p] < c.slices_left * c.pods_left:
        return -1
    if job.mode == REQUIRED:
        return job.height if count_slices(sim, job.height, p, c.pods_left, c.slices_left) >= c.slices_left else -1
    if job.mode == UNCONSTRAINED:
        return 0 if _holds_one(sim, 0, p, c.pods_left) else top
    height = job.height
    while height < top and not _holds_one(sim, height, p, c.pods_left):
        height += 1
    return height


@inlined
def mark_places(sim, j):
    """Mark place[r] for every rack that takes (a part of) the present slice, where quota is no question."""
    job, c = sim.jobs[j], sim.clock[0]
    p = job.pod_gpus
    part = c.pods_left if c.reach == 0 else 1
    for r in range(len(sim.racks)):
        d = sim.ancestors[r, c.reach]
        inside = d == c.scope if c.scope >= 0 else sim.cap[d, p] >= c.pods_left
        sim.mask[r] = inside and sim.cap[r, p] >= part


@inlined
def consider(sim, j):
    """Write the legal actions of job j into the mask. Returns True if there is one besides `hold`.

    For a job that is not yet at hand this starts a new decision: quota first, then shape.
    """
    job, c = sim.jobs[j], sim.clock[0]
    fresh, quota = c.current != j, True
    if fresh:
        quota = has_quota(sim, j)
        if not quota and c.preemption != PRIORITY:
            return False
        c.slices_left, c.pods_left, c.scope = job.slices, job.slice_pods, -1
        c.borrows = int(sim.queues[job.queue].used + job.gpus > sim.queues[job.queue].nominal)
        c.victim_urgency, c.victim_priority = np.inf, NO_PRIORITY
    if c.scope < 0:
        c.reach = _reach(sim, j)
    free = sim.cap[len(sim.cap) - 1, 1]
    demand = c.slices_left * c.pods_left * job.pod_gpus
    if c.reach < 0 and fresh and quota and free >= demand:
        c.stall_gpus = min(c.stall_gpus, demand)
    fits = c.reach >= 0 and quota and (c.scope < 0 or sim.cap[c.scope, job.pod_gpus] >= c.pods_left)
    if not fits:
        by_shape = job.mode == REQUIRED and job.height == 0 and (free >= demand or not fresh)
        if c.allow_open == 0 or not (c.preemption == PRIORITY or (c.preemption == SHAPE and by_shape)):
            return False
    for a in range(len(sim.mask)):
        sim.mask[a] = False
    sim.mask[len(sim.mask) - 1] = c.allow_hold == 1
    if not fits:
        if c.reach >= 0 and c.scope < 0:  # what it lacks is quota: racks that it could have are opened for that
            mark_places(sim, j)
        return mark_opens(sim, j)
    mark_places(sim, j)
    spreads = job.mode == UNCONSTRAINED or (job.mode == PREFERRED and c.reach > 0)
    sim.mask[len(sim.mask) - 2] = c.allow_fill == 1 and spreads and c.pods_left > 1
    return True


@kernel
def fill_domain(sim, j):
    """The domain over which `fill` spreads the rest of job j: tightest of those that hold it, lowest index on ties."""
    job, c = sim.jobs[j], sim.clock[0]
    if c.scope >= 0:
        return c.scope
    if job.mode == UNCONSTRAINED:
        return len(sim.cap) - 1
    best = -1
    for d in range(sim.level_start[c.reach], sim.level_start[c.reach + 1]):
        if sim.cap[d, job.pod_gpus] >= c.pods_left and (best < 0 or sim.cap[d, 1] < sim.cap[best, 1]):
            best = d
    return best


@inlined
def may_wait_for_domain(sim):
    """True if the job at hand is preferred, must spread beyond its level now, and one domain of it could hold it once.

    The racks of a domain are one contiguous run.
    """
    c = sim.clock[0]
    job = sim.jobs[c.current]
    if job.mode != PREFERRED or c.reach <= job.height or c.scope >= 0:
        return False
    per_node, pods = (sim.cap.shape[1] - 1) // job.pod_gpus, 0
    for r in range(len(sim.racks)):
        if r == 0 or sim.ancestors[r, job.height] != sim.ancestors[r - 1, job.height]:
            pods = 0
        pods += sim.racks[r].usable * per_node
        if pods >= job.slice_pods:
            return True
    return False


@inlined
def block_of_job(sim):
    """(height, domain) of the tightest domain of the lowest level that holds the rest of the job at hand by shape.

    The whole cluster if no smaller one does. This is how Slurm's topology/block finds a job's block.
    """
    top = sim.ancestors.shape[1] - 1
    if sim.clock[0].scope >= 0:  # a segment that spans racks is bound to the domain of its first part
        return sim.clock[0].reach, sim.clock[0].scope
    for height in range(top):
        block = _tightest_block(sim, height)
        if block >= 0:
            return height, block
    return top, len(sim.cap) - 1


@inlined
def _tightest_block(sim, height):
    """The domain of this height with the fewest nodes that holds the rest of the job, the first of equals; -1: none.

    The racks of a domain are one contiguous run, and so are its subdomains: one pass over the racks sums up segments.
    """
    c = sim.clock[0]
    job = sim.jobs[c.current]
    p, inner = job.pod_gpus, min(job.height, height) if job.mode == REQUIRED else height
    best, segments = -1, 0
    for r in range(len(sim.racks)):
        block, part = sim.ancestors[r, height], sim.ancestors[r, inner]
        if r == 0 or block != sim.ancestors[r - 1, height]:
            segments = 0
        if r == 0 or part != sim.ancestors[r - 1, inner]:
            segments += sim.cap[part, p] // c.pods_left
        if segments >= c.slices_left and (best < 0 or sim.cap[block, p] < sim.cap[best, p]):
            best = block
    return best
