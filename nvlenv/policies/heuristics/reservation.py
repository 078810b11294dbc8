"""Modifiers that keep racks for large jobs: which racks a job may not use now.

easy: EASY backfilling for racks (Lifka 1995, see `nvlenv.simulator.forecast`): a job may use racks reserved for the
target, by default the oldest waiting hero, only if it ends, by its estimate, before the target could start; with
`spare`, as in EASY's second rule, also if enough nodes of the rack are left for the target.

hold: a small job may not break a hero-ready rack (one with a free standard slice) when few of those are left, unless
it has waited long enough.
"""

from __future__ import annotations

from nvlenv.common.kernel import inlined, kernel
from nvlenv.policies.heuristics.packing import nodes_taken
from nvlenv.simulator.forecast import is_sizeable, predicted_end, refresh_for, target_size
from nvlenv.simulator.occupancy import tightest_node


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
