"""`open`: make room for one more slice in a rack by ending or moving other jobs.

A node is *clearable* for a job if every pod on it may be preempted: preemptible, of strictly lower priority, and not
evicted too often already. It is *movable* if every pod on it may be preempted or moved.

Whom: nodes that share a job are cleared together, they form a *group*. The *preemption set* is the cheapest set of
groups with enough nodes, found exactly by 0/1 knapsack over at most as many groups as the rack has nodes.
Cost: fewest GPUs, then least lost work; on equal cost the earlier groups.

Where to: moved jobs go at once, by best fit, to places that cost the opening job nothing: holes on nodes that could not
be cleared for it anyway, or whole nodes beyond the last full slice of a rack.
So a job that may open a rack can always go on until it starts.

Everything that decides who may go stands in `may_evict` (a job) and `node_state` (a node); what a set of them costs, in
`_make_groups`; `cheapest_victims` chooses, and `mark_opens` and `open_rack` act on its choice.
"""

from __future__ import annotations

import numpy as np

from nvlenv.common.kernel import inlined, kernel
from nvlenv.simulator.events import evict, lift, lost_work, run
from nvlenv.simulator.occupancy import occupy, release
from nvlenv.simulator.queues import enqueue
from nvlenv.simulator.state import Scratch

TAKEN, FREE, CLEARABLE, MOVABLE = 0, 1, 2, 3  # state of a node: what a whole-node pod may hope for there
STATE, OFFER, SPARE, POTENTIAL = int(Scratch.STATE), int(Scratch.OFFER), int(Scratch.SPARE), int(Scratch.POTENTIAL)
ROOM, HERE, VICTIMS = int(Scratch.ROOM), int(Scratch.HERE), int(Scratch.VICTIMS)
PARENT, WEIGHT, JOBS = int(Scratch.PARENT), int(Scratch.WEIGHT), int(Scratch.JOBS)
TAKES, CHOSEN = int(Scratch.TAKES), int(Scratch.CHOSEN)
GPUS, LOST, BEST_GPUS, BEST_LOST = 0, 1, 2, 3  # rows of scratch_float

# Who may go


@inlined
def may_evict(sim, opener, v):
    """True if job v may be preempted for the opener: of strictly lower priority, and not evicted too often already."""
    job = sim.jobs[v]
    allowed = job.preemptible == 1 and job.evictions < sim.clock[0].max_evictions
    return allowed and job.priority < sim.jobs[opener].priority


@inlined
def node_state(sim, opener, n):
    """What a pod of the opener that takes a whole node may hope for on node n: TAKEN, FREE, CLEARABLE or MOVABLE."""
    node, g = sim.nodes[n], sim.cap.shape[1] - 1
    if node.blocked > 0 or node.gpus < g:
        return TAKEN
    if node.free == g:
        return FREE
    state = CLEARABLE
    for slot in range(n * g, n * g + g):
        v = sim.gpu_job[slot]
        if v >= 0 and not may_evict(sim, opener, v):
            if sim.jobs[v].movable == 0:
                return TAKEN
            state = MOVABLE
    return state


# The preemption set of one rack


@kernel
def cheapest_victims(sim, opener, r, need, worst):
    """The jobs that free `need` more nodes of rack r for the opener at the least cost, by ending or by moving.

    Only nodes with STATE from CLEARABLE to `worst` (CLEARABLE: ending alone; MOVABLE: moving too) are cleared. Writes
    jobs to VICTIMS, largest first, and returns how many; 0: so many nodes cannot be freed.
    """
    size = sim.racks[r].node1 - sim.racks[r].node0
    if need > size:  # nor is there work space for it
        return 0
    _make_groups(sim, opener, r, worst)
    if not _choose_groups(sim, size, need):
        return 0
    return _list_victims(sim, r, need)


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
    """Group the nodes of rack r whose STATE lies between CLEARABLE and `worst`; PARENT is -1 for the others.

    The first node of each group carries its WEIGHT (nodes), JOBS, GPUS and LOST.
    """
    g, node0 = sim.cap.shape[1] - 1, sim.racks[r].node0
    size = sim.racks[r].node1 - node0
    parent, weight, jobs = sim.scratch[PARENT], sim.scratch[WEIGHT], sim.scratch[JOBS]
    gpus, lost = sim.scratch_float[GPUS], sim.scratch_float[LOST]
    sim.clock[0].stamp += 1
    for k in range(size):
        inside = CLEARABLE <= sim.scratch[STATE, node0 + k] <= worst
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
    """Take those jobs off VICTIMS without whose end `need` nodes are cleared all the same, the largest first."""
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


# Opening racks


@inlined
def _is_opened(sim, opener, r):
    """True if rack r was already opened in this decision (which begins when the opener becomes current)."""
    return sim.clock[0].current == opener and sim.racks[r].opened == sim.clock[0].decisions


@kernel
def _survey(sim, opener):
    """Note the state of every node, what each rack could hold at most, and where moved pods may go.

    Returns the slices that the whole cluster could hold at most.
    """
    g, pods, total = sim.cap.shape[1] - 1, sim.jobs[opener].slice_pods, 0
    for f in range(g + 1):
        sim.scratch[ROOM, f] = 0
    for r in range(len(sim.racks)):
        rack, clear = sim.racks[r], 0
        for n in range(rack.node0, rack.node1):
            node, state = sim.nodes[n], node_state(sim, opener, n)
            part = node.blocked == 0 and 0 < node.free < node.gpus
            sim.scratch[STATE, n] = state
            sim.scratch[OFFER, n] = int(part and state != CLEARABLE)
            clear += int(state == CLEARABLE)
        sim.scratch[POTENTIAL, r] = (sim.cap[r, g] + clear) // pods
        sim.scratch[SPARE, r] = min(sim.cap[r, g] % pods, (sim.cap[r, g] + clear) % pods)
        total += sim.scratch[POTENTIAL, r]
        if not _is_opened(sim, opener, r):
            _add_room(sim, r, ROOM, 1)
    return total


@inlined
def _add_room(sim, r, row, sign):
    """Add (or, with sign -1, take out) what rack r offers to moved pods: row[f] nodes with f GPUs."""
    sim.scratch[row, sim.cap.shape[1] - 1] += sign * sim.scratch[SPARE, r]
    for n in range(sim.racks[r].node0, sim.racks[r].node1):
        sim.scratch[row, sim.nodes[n].free] += sign * sim.scratch[OFFER, n]


@kernel
def _has_room(sim, opener, victims):
    """True if all victims that must move find a place in HERE (which is used up on the way)."""
    room, g = sim.scratch[HERE], sim.cap.shape[1] - 1
    for k in range(victims):
        v = sim.scratch[VICTIMS, k]
        p = sim.jobs[v].pod_gpus
        for _ in range(0 if may_evict(sim, opener, v) else sim.jobs[v].gpus // p):
            f = p
            while f <= g and room[f] == 0:
                f += 1
            if f > g:
                return False
            room[f] -= 1
            room[f - p] += 1
    return True


@kernel
def _plan(sim, opener, r):
    """Find VICTIMS that free one more slice in rack r. Returns how many; 0: it cannot be done."""
    g, pods = sim.cap.shape[1] - 1, sim.jobs[opener].slice_pods
    need = pods - sim.cap[r, g] % pods
    clear, moves = 0, 0
    for n in range(sim.racks[r].node0, sim.racks[r].node1):
        clear += int(sim.scratch[STATE, n] == CLEARABLE)
        moves += int(sim.scratch[STATE, n] == MOVABLE)
    if moves > 0 and clear + moves >= need:
        victims = cheapest_victims(sim, opener, r, need, MOVABLE)
        for f in range(g + 1):
            sim.scratch[HERE, f] = sim.scratch[ROOM, f]
        if not _is_opened(sim, opener, r):
            _add_room(sim, r, HERE, -1)
        if _has_room(sim, opener, victims):
            return victims
    return cheapest_victims(sim, opener, r, need, CLEARABLE) if clear >= need else 0


@kernel
def mark_opens(sim, j):
    """Mark open[r] for every rack in which the job at hand may open one more slice. True if there is one."""
    c, racks, g = sim.clock[0], len(sim.racks), sim.cap.shape[1] - 1
    if sim.jobs[j].pod_gpus != g:  # sub-node pods find room without opening racks
        return False
    total, found = _survey(sim, j), False
    for r in range(racks):
        potential, slots = sim.scratch[POTENTIAL, r], sim.cap[r, g] // sim.jobs[j].slice_pods
        if total - potential + max(potential, slots + 1) < c.slices_left:
            continue
        victims = _plan(sim, j, r)
        if victims > 0:
            sim.mask[racks + r] = found = True
            sim.open_gpus[r] = sim.open_lost[r] = 0.0
        for k in range(victims):
            v = sim.scratch[VICTIMS, k]
            sim.open_gpus[r] += sim.jobs[v].gpus
            sim.open_lost[r] += sim.jobs[v].gpus * lost_work(sim, v, not may_evict(sim, j, v))
    return found


@kernel
def open_rack(sim, j, r):
    """Clear one more slice in rack r for the job at hand: move first, then evict."""
    _survey(sim, j)
    victims = _plan(sim, j, r)
    sim.racks[r].opened = sim.clock[0].decisions
    for k in range(victims):
        if not may_evict(sim, j, sim.scratch[VICTIMS, k]):
            _move(sim, sim.scratch[VICTIMS, k])
            sim.scratch[VICTIMS, k] = -1
    for k in range(victims):
        if sim.scratch[VICTIMS, k] >= 0:
            evict(sim, sim.scratch[VICTIMS, k])
    if sim.clock[0].evict_whole_rack == 1:
        _evict_rest(sim, j, r)
    sim.clock[0].rescan = 1


@kernel
def _evict_rest(sim, j, r):
    """Everything in the rack that may be evicted goes, needed or not (the hero controller's way)."""
    g = sim.cap.shape[1] - 1
    for slot in range(sim.racks[r].node0 * g, sim.racks[r].node1 * g):
        v = sim.gpu_job[slot]
        if v >= 0 and v != j and may_evict(sim, j, v):
            evict(sim, v)


@kernel
def _move(sim, v):
    """Restart job v elsewhere: each pod on the tightest node that is offered, outside the racks being opened."""
    p = sim.jobs[v].pod_gpus
    lift(sim, v)
    for _ in range(sim.jobs[v].gpus // p):
        n = _tightest_offer(sim, p)
        if n < 0:  # the job's own pods left holes that changed the order of tightness, and the last pod finds none
            release(sim, v)
            enqueue(sim, v)
            return
        if sim.scratch[OFFER, n] == 0:
            sim.scratch[SPARE, sim.nodes[n].rack] -= 1
            sim.scratch[OFFER, n] = 1
        occupy(sim, v, n, p)
    run(sim, v)


@kernel
def _tightest_offer(sim, p):
    """The node with the fewest free GPUs of those that take moved pods of p GPUs, the first of equals; -1: none."""
    best = -1
    for r in range(len(sim.racks)):
        if sim.racks[r].opened == sim.clock[0].decisions:
            continue
        for n in range(sim.racks[r].node0, sim.racks[r].node1):
            free = sim.nodes[n].free
            offered = sim.scratch[OFFER, n] == 1 or (sim.scratch[STATE, n] == FREE and sim.scratch[SPARE, r] > 0)
            if offered and free >= p and (best < 0 or free < sim.nodes[best].free):
                best = n
    return best
