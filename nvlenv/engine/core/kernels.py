"""What a live cluster needs beside the simulator's own kernels.

Jobs that already run are put where they are, one waiting job is put at hand, nodes are hidden that cannot take a
certain pod, work moves from node to node, and what a policy weighs is written down for people.
"""

from __future__ import annotations

from nvlenv.common.kernel import kernel
from nvlenv.policies.heuristics.choose import FORECASTS, look, rack_keys
from nvlenv.policies.heuristics.packing import part_here
from nvlenv.policies.heuristics.reservation import is_kept, keeps_pool, refresh_forecast, what_is_kept
from nvlenv.policies.heuristics.spreading import waits_for_domain
from nvlenv.simulator.events import run
from nvlenv.simulator.feasibility import consider
from nvlenv.simulator.occupancy import occupy, set_node
from nvlenv.simulator.preemption import mark_opens, node_state
from nvlenv.simulator.queues import has_quota

NOTHING_FITS, NO_QUOTA, AT_HAND = 0, 1, 2  # what `take_up` finds


@kernel
def assign_nodes(sim, rows, first, nodes, gpus, start, predicted):
    """Job rows[i] runs: it holds gpus[k] of nodes[k] for first[i] <= k < first[i + 1], since start[i]."""
    for i in range(len(rows)):
        j = rows[i]
        for k in range(first[i], first[i + 1]):
            taken = min(gpus[k], sim.nodes[nodes[k]].free)
            if taken > 0:
                occupy(sim, j, nodes[k], taken)
        run(sim, j)
        job = sim.jobs[j]
        job.start, job.predicted = start[i], predicted[i]
        job.first_start = start[i]


@kernel
def assign_gpus(sim, rows, first, slots):
    """Job rows[i] runs on the GPUs that it had before: slots[k] for first[i] <= k < first[i + 1], in this order."""
    g = sim.cap.shape[1] - 1
    for i in range(len(rows)):
        j = rows[i]
        for k in range(first[i], first[i + 1]):
            slot, n = slots[k], slots[k] // g
            sim.gpu_job[slot] = j
            sim.gpu_next[slot] = sim.jobs[j].first_gpu
            sim.jobs[j].first_gpu = slot
            set_node(sim, n, sim.nodes[n].free - 1, sim.nodes[n].blocked)
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
        if node.blocked > 0 or node.free // p <= limits[n]:
            if limits[n] == 0 and node.blocked == 0:  # a full node: opening it would not help these pods
                hidden[n] = -1
                set_node(sim, n, node.free, 1)
            continue
        if limits[n] == 0:
            hidden[n] = -1
            set_node(sim, n, node.free, 1)
        else:
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
def swap(sim, j, n, spares, gpus):
    """Move what job j holds on node n: gpus[k] of it to node spares[k]. Chain order of its other GPUs is kept."""
    g = sim.cap.shape[1] - 1
    job, count = sim.jobs[j], 0
    before, slot = -1, job.first_gpu
    while slot >= 0:
        after = sim.gpu_next[slot]
        if slot // g == n:
            if before < 0:
                job.first_gpu = after
            else:
                sim.gpu_next[before] = after
            sim.gpu_job[slot], sim.gpu_next[slot] = -1, -1
            count += 1
        else:
            before = slot
        slot = after
    set_node(sim, n, sim.nodes[n].free + count, sim.nodes[n].blocked)
    for k in range(len(spares)):
        occupy(sim, j, spares[k], gpus[k])


@kernel
def count_states(sim, j, counts):
    """counts[r, s]: nodes of rack r that are TAKEN, FREE, CLEARABLE or MOVABLE for whole-node pods of job j."""
    for r in range(len(sim.racks)):
        for s in range(4):
            counts[r, s] = 0
        for n in range(sim.racks[r].node0, sim.racks[r].node1):
            counts[r, node_state(sim, j, n)] += 1


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
