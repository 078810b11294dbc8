"""Which jobs to clear from a rack so that enough nodes become free, at the least cost.

Nodes that share a job are cleared together: they form a *group*. The cheapest set of groups with enough nodes is found
exactly, as a minimum-cost cover (0/1 knapsack) over at most as many groups as the rack has nodes.
Cost: fewest GPUs, then least lost work; on equal cost the earlier groups.
"""

from __future__ import annotations

import numpy as np

from nvlenv.kernel import inlined, kernel
from nvlenv.simulator.dynamics import lost_work
from nvlenv.simulator.state import Row

STATE, PARENT, WEIGHT, JOBS = int(Row.STATE), int(Row.PARENT), int(Row.WEIGHT), int(Row.JOBS)
TAKES, CHOSEN, VICTIMS = int(Row.TAKES), int(Row.CHOSEN), int(Row.VICTIMS)
GPUS, LOST, BEST_GPUS, BEST_LOST = 0, 1, 2, 3  # rows of scratch_float


@inlined
def may_evict(sim, opener, v):
    """True if job v may be preempted for the opener: of strictly lower priority, and not evicted too often already."""
    job = sim.jobs[v]
    allowed = job.preemptible == 1 and job.evictions < sim.clock[0].max_evictions
    return allowed and job.priority < sim.jobs[opener].priority


@kernel
def _root(parent, a):
    while parent[a] != a:
        a = parent[a]
    return a


@kernel
def _join(parent, a, b):
    a, b = _root(parent, a), _root(parent, b)
    parent[max(a, b)] = min(a, b)


@kernel
def _make_groups(sim, opener, r, worst):
    """Group the nodes of rack r whose STATE lies between 2 and `worst`; PARENT is -1 for the others.

    The first node of each group carries its WEIGHT (nodes), JOBS, GPUS and LOST.
    """
    g, node0 = sim.cap.shape[1] - 1, sim.racks[r].node0
    size = sim.racks[r].node1 - node0
    parent, weight, jobs = sim.scratch[PARENT], sim.scratch[WEIGHT], sim.scratch[JOBS]
    gpus, lost = sim.scratch_float[GPUS], sim.scratch_float[LOST]
    sim.clock[0].stamp += 1
    for k in range(size):
        inside = 2 <= sim.scratch[STATE, node0 + k] <= worst
        parent[k], weight[k], jobs[k], gpus[k], lost[k] = k if inside else -1, int(inside), 0, 0.0, 0.0
        for slot in range((node0 + k) * g, (node0 + k) * g + g if inside else 0):
            v = sim.gpu_job[slot]
            if v < 0:
                continue
            job = sim.jobs[v]
            if job.mark != sim.clock[0].stamp:
                job.mark, job.mark_node = sim.clock[0].stamp, k
                jobs[k] += 1
                gpus[k] += job.gpus
                lost[k] += job.gpus * lost_work(sim, v, not may_evict(sim, opener, v))
            _join(parent, k, job.mark_node)
    for k in range(size):
        if parent[k] >= 0 and parent[k] != k:
            top = _root(parent, k)
            parent[k] = top
            weight[top] += weight[k]
            gpus[top] += gpus[k]
            lost[top] += lost[k]
            jobs[top] += jobs[k]
            weight[k] = 0


@kernel
def _choose_groups(sim, size, need):
    """Mark in CHOSEN the cheapest groups with at least `need` nodes together. False: there are none."""
    parent, weight, takes, chosen = sim.scratch[PARENT], sim.scratch[WEIGHT], sim.scratch[TAKES], sim.scratch[CHOSEN]
    gpus, lost = sim.scratch_float[GPUS], sim.scratch_float[LOST]
    best_gpus, best_lost = sim.scratch_float[BEST_GPUS], sim.scratch_float[BEST_LOST]
    for w in range(need + 1):
        best_gpus[w] = best_lost[w] = np.inf if w > 0 else 0.0
    for k in range(size):
        chosen[k] = 0
        for w in range(need, 0, -1):
            takes[k * (need + 1) + w] = 0
            if parent[k] != k:
                continue
            rest = max(0, w - weight[k])
            new_gpus, new_lost = best_gpus[rest] + gpus[k], best_lost[rest] + lost[k]
            if new_gpus < best_gpus[w] or (new_gpus == best_gpus[w] and new_lost < best_lost[w]):
                best_gpus[w], best_lost[w], takes[k * (need + 1) + w] = new_gpus, new_lost, 1
    if best_gpus[need] == np.inf:
        return False
    w = need
    for k in range(size - 1, -1, -1):
        if w > 0 and takes[k * (need + 1) + w] == 1:
            chosen[k] = 1
            w = max(0, w - weight[k])
    return True


@kernel
def _list_victims(sim, r, need):
    """Write the jobs of the chosen groups to VICTIMS, largest first; returns how many.

    A group of several nodes and several jobs may clear more than is needed: its jobs that are not needed are spared.
    """
    g, node0 = sim.cap.shape[1] - 1, sim.racks[r].node0
    parent, chosen, victims = sim.scratch[PARENT], sim.scratch[CHOSEN], sim.scratch[VICTIMS]
    sim.clock[0].stamp += 1
    count, prune = 0, False
    for k in range(sim.racks[r].node1 - node0):
        if parent[k] < 0 or chosen[parent[k]] == 0:
            continue
        prune = prune or (sim.scratch[JOBS, parent[k]] > 1 and sim.scratch[WEIGHT, parent[k]] > 1)
        for slot in range((node0 + k) * g, (node0 + k) * g + g):
            v = sim.gpu_job[slot]
            if v < 0 or sim.jobs[v].mark == sim.clock[0].stamp:
                continue
            sim.jobs[v].mark = sim.clock[0].stamp
            at = count
            while at > 0 and sim.jobs[victims[at - 1]].gpus < sim.jobs[v].gpus:
                victims[at] = victims[at - 1]
                at -= 1
            victims[at] = v
            count += 1
    return _spare(sim, r, need, count) if prune else count


@kernel
def _spare(sim, r, need, count):
    victims, kept = sim.scratch[VICTIMS], 0
    for at in range(count):
        sim.jobs[victims[at]].mark = 0
        if _cleared(sim, r) < need:
            sim.jobs[victims[at]].mark = sim.clock[0].stamp
            victims[kept] = victims[at]
            kept += 1
    return kept


@kernel
def _cleared(sim, r):
    """Nodes of rack r that are free once the marked jobs are gone."""
    g, node0, cleared = sim.cap.shape[1] - 1, sim.racks[r].node0, 0
    for k in range(sim.racks[r].node1 - node0):
        clear = sim.scratch[PARENT, k] >= 0
        for slot in range((node0 + k) * g, (node0 + k) * g + g):
            v = sim.gpu_job[slot]
            clear = clear and (v < 0 or sim.jobs[v].mark == sim.clock[0].stamp)
        cleared += int(clear)
    return cleared


@kernel
def cheapest_victims(sim, opener, r, need, worst):
    """The jobs that free `need` more nodes of rack r for the opener at the least cost, by ending or by moving.

    Only nodes with STATE from 2 to `worst` are cleared. Writes jobs to VICTIMS, largest first, and returns how many;
    0: so many nodes cannot be freed.
    """
    size = sim.racks[r].node1 - sim.racks[r].node0
    if need > size:  # nor is there work space for it
        return 0
    _make_groups(sim, opener, r, worst)
    if not _choose_groups(sim, size, need):
        return 0
    return _list_victims(sim, r, need)
