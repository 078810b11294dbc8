"""Slurm's topology/block with segments.

Source: Slurm's guide to topology/block and its --segment option. A rack is Slurm's base block, coarser domains are its
aggregated blocks, and the slices of a job are its segments, kept together as with --consolidate-segments: the lowest
level with a domain that holds all that is left of the job; of those domains the one with the fewest nodes that could
take its pods; inside it, segment by segment, the rack with the fewest such nodes. A segment that fits no rack takes the
racks with the most nodes first.
"""

from __future__ import annotations

from nvlenv.kernel import kernel
from nvlenv.types import Mode

REQUIRED = int(Mode.REQUIRED)


@kernel
def block_of_job(sim):
    """(height, domain) of the block in which the rest of the job goes; the whole cluster if no smaller one holds it."""
    top = sim.ancestors.shape[1] - 1
    if sim.clock[0].scope >= 0:  # a segment that spans racks is bound to the domain of its first part
        return sim.clock[0].reach, sim.clock[0].scope
    for height in range(top):
        block = _tightest_block(sim, height)
        if block >= 0:
            return height, block
    return top, len(sim.cap) - 1


@kernel
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
        if segments >= c.units_left and (best < 0 or sim.cap[block, p] < sim.cap[best, p]):
            best = block
    return best


@kernel
def slurm_block(sim, r, height, block):
    """Racks of the job's block first; of those the one with the fewest nodes that could take its pods."""
    outside = 0.0 if sim.ancestors[r, height] == block else 1.0
    return outside, float(sim.cap[r, sim.jobs[sim.clock[0].current].pod_gpus])
