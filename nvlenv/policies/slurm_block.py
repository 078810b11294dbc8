"""Slurm's topology/block with segments.

Source: Slurm's guide to topology/block and its --segment option. A rack is Slurm's base block, coarser domains are its
aggregated blocks, and the slices of a job are its segments, kept together as with --consolidate-segments: the lowest
level with a domain that holds all that is left of the job; of those domains the one with the fewest nodes that could
take its pods; inside it, segment by segment, the rack with the fewest such nodes. A segment that fits no rack takes the
racks with the most nodes first.
"""

from __future__ import annotations

from nvlenv.kernel import kernel


@kernel
def slurm_block(sim, r, height, block):
    """Racks of the job's block (feasibility.block_of_job) first; of those that with the fewest nodes for its pods."""
    outside = 0.0 if sim.ancestors[r, height] == block else 1.0
    return outside, float(sim.cap[r, sim.jobs[sim.clock[0].current].pod_gpus])
