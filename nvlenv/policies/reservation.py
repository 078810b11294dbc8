"""Modifiers that keep racks for heroes: which racks a job may not use now.

easy: EASY backfilling for racks (Lifka 1995, see `nvlenv.simulator.outlook.refresh`): a job may use racks reserved for
the oldest waiting hero only if it ends, by its estimate, before the hero could start.

hold: a small job may not break a hero-ready rack (one with a free standard slice) when few of those are left, unless
it has waited long enough.
"""

from __future__ import annotations

from nvlenv.kernel import kernel
from nvlenv.policies.packing import nodes_taken


@kernel
def outlasts_hero(sim):
    """True if the job at hand would still run when the oldest waiting hero could start."""
    c = sim.clock[0]
    job = sim.jobs[c.current]
    return c.hero >= 0 and c.hero != c.current and c.now + job.noise * job.work > c.shadow


@kernel
def ready_racks(sim):
    """Racks with a free standard slice."""
    count, g = 0, sim.cap.shape[1] - 1
    for r in range(len(sim.racks)):
        count += int(sim.cap[r, g] >= sim.clock[0].slice_nodes)
    return count


@kernel
def holds_back(sim, rule):
    """True if the hold rule applies to the job at hand: hero-ready racks are scarce, and it is small and young."""
    c, g = sim.clock[0], sim.cap.shape[1] - 1
    job = sim.jobs[c.current]
    small = job.gpus <= rule.hold_nodes * g
    young = job.waited + c.now - job.queued < rule.hold_hours
    return small and young and rule.hold_racks > 0 and ready_racks(sim) <= rule.hold_racks


@kernel
def breaks_ready_rack(sim, r):
    """True if placing here takes the rack's last free standard slice."""
    whole, unit = sim.cap[r, sim.cap.shape[1] - 1], sim.clock[0].slice_nodes
    return whole >= unit and whole - nodes_taken(sim, r) < unit
