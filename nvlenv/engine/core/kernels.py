"""What a live cluster needs beside the simulator's own kernels."""

from __future__ import annotations

from nvlenv.common.kernel import kernel
from nvlenv.policies.heuristics.choose import FORECASTS, look, rack_keys
from nvlenv.policies.heuristics.modifiers import is_kept, keeps_pool, refresh_forecast, waits_for_domain, what_is_kept
from nvlenv.policies.heuristics.packing import part_here
from nvlenv.simulator.events import run
from nvlenv.simulator.feasibility import consider
from nvlenv.simulator.occupancy import occupy, set_node
from nvlenv.simulator.preemption import mark_opens, node_state
from nvlenv.simulator.queues import has_quota

NOTHING_FITS, NO_QUOTA, AT_HAND = 0, 1, 2  # what `take_up` finds


@kernel
def assign_nodes(sim, jobs, rows, nodes, gpus):
    """The first rows, as many as there are jobs, run: rows[k] holds gpus[k] of nodes[k], if the node has them."""
    for k in range(len(rows)):
        taken = min(gpus[k], sim.nodes[nodes[k]].free)
        if taken > 0:
            occupy(sim, rows[k], nodes[k], taken)
    for j in range(jobs):
        run(sim, j)


@kernel
def take_up(sim, j, turn, preempt):
    """Put waiting job j at hand, as decision number `turn`. Returns NOTHING_FITS, NO_QUOTA or AT_HAND.

    With `preempt`, racks may also be opened where the free GPUs of the whole cluster would not suffice: the simulator
    leaves such a job to wait, a live cluster gives way to priority.
    """
    c = sim.clock[0]
    c.current, c.decisions = -1, turn
    if not has_quota(sim, j):
        return NO_QUOTA
    found = consider(sim, j)
    if not found and preempt and c.reach < 0:
        for a in range(len(sim.mask)):
            sim.mask[a] = False
        sim.mask[len(sim.mask) - 1] = True
        found = mark_opens(sim, j)
    if not found:
        return NOTHING_FITS
    c.current = j
    return AT_HAND


@kernel
def restrict(sim, limits, p, hidden):
    """Let node n take at most limits[n] pods of p GPUs; `hidden` remembers what was taken from view."""
    for n in range(len(limits)):
        node = sim.nodes[n]
        hidden[n] = 0
        if node.blocked > 0:
            continue
        if limits[n] == 0:  # full nodes too: opening them would not help these pods
            hidden[n] = -1
            set_node(sim, n, node.free, 1)
        elif node.free // p > limits[n]:
            hidden[n] = node.free - limits[n] * p
            set_node(sim, n, limits[n] * p, 0)


@kernel
def unrestrict(sim, hidden):
    """Undo `restrict`, whatever was placed in between."""
    for n in range(len(hidden)):
        node = sim.nodes[n]
        if hidden[n] < 0:
            set_node(sim, n, node.free, node.blocked - 1)
        elif hidden[n] > 0:
            set_node(sim, n, node.free + hidden[n], node.blocked)


@kernel
def see_nodes(sim, j, states):
    """states (M,): TAKEN, FREE, CLEARABLE or MOVABLE for whole-node pods of job j."""
    for n in range(len(states)):
        states[n] = node_state(sim, j, n)


@kernel
def score_racks(sim, rule, keys, parts, kept):
    """What `choose` weighs for the decision at hand.

    keys (R, 2): of the packing rule; parts (R,): pods that would go there; kept (R,): 1 where a legal rack is kept for
    others. Returns four flags: it waits for one domain, it leaves its GPUs to the pool of another job, reserved racks
    are kept, hero-ready racks are kept.
    """
    if rule.easy == 1 or rule.drain == 1 or FORECASTS[rule.packing]:
        refresh_forecast(sim, rule)
    may_hold = sim.mask[2 * len(sim.racks) + 1]
    waits, drains = may_hold and waits_for_domain(sim, rule), may_hold and keeps_pool(sim, rule)
    flags = what_is_kept(sim, rule) if may_hold else (False, False)
    seen = look(sim, rule)
    for r in range(len(sim.racks)):
        parts[r], kept[r] = part_here(sim, r), 0
        keys[r, 0] = keys[r, 1] = 0.0
        if sim.mask[r]:
            keys[r, 0], keys[r, 1] = rack_keys(sim, rule, r, seen)
            kept[r] = int(is_kept(sim, rule, flags, r, parts[r]))
    return waits, drains, flags[0], flags[1]
