"""`open`: make room for more of a job in a rack by ending or moving others.

*Who* may go stands in `may_evict` (a job) and `node_state` (a node). In mode SHAPE that is every preemptible job of
strictly lower priority. In mode PRIORITY, as Kueue has it: in the opener's own queue by its rule `within`; from another
queue of its cohort tree only what that queue borrows, lowest priority and latest start first, by `reclaim`, or by
`borrow_within` if the opener would borrow itself. A policy may bar victims by urgency or priority.

*When*: SHAPE, for slices of whole nodes in one rack, where enough GPUs are free in all. PRIORITY, for every shape, and
also where GPUs or quota are short. Never if the rest of the job still could not start.

*Whom*: the *preemption set* with the fewest GPUs, then the least lost work. Of whole nodes: nodes that share a job are
cleared together, as a group; the cheapest groups with enough nodes are found exactly, by 0/1 knapsack. Of pods that
share nodes: for each node the cheapest of its jobs to gain one pod, two, ...; then the same knapsack over nodes. That
is exact where jobs do not share nodes, and else an upper bound, from which jobs that are not needed are spared. Victims
that only give back quota come last: the smallest job that covers the lack, or the largest, again and again; this too
is an upper bound.

*Where to*: jobs are moved instead of evicted for slices of whole nodes in one rack only, at once, by best fit, to
places that cost the opener nothing: holes on nodes that could not be cleared for it anyway, or whole nodes beyond the
last full slice of a rack. So a job that may open a rack can always go on until it starts.
"""

from __future__ import annotations

import numpy as np

from nvlenv.cluster.types import Mode
from nvlenv.common.kernel import inlined, kernel
from nvlenv.simulator.events import evict, lift, lost_work, rank_of, run
from nvlenv.simulator.forecast import predicted_end
from nvlenv.simulator.occupancy import occupy, release
from nvlenv.simulator.queues import enqueue, lacking_quota
from nvlenv.simulator.state import ANY, NEVER, NO_PRIORITY, PRIORITY, Scratch

TAKEN, FREE, CLEARABLE, MOVABLE = 0, 1, 2, 3  # state of a node: what a whole-node pod may hope for there
STATE, OFFER, SPARE, POTENTIAL = int(Scratch.STATE), int(Scratch.OFFER), int(Scratch.SPARE), int(Scratch.POTENTIAL)
ROOM, HERE, VICTIMS = int(Scratch.ROOM), int(Scratch.HERE), int(Scratch.VICTIMS)
PARENT, WEIGHT, JOBS = int(Scratch.PARENT), int(Scratch.WEIGHT), int(Scratch.JOBS)
TAKES, CHOSEN = int(Scratch.TAKES), int(Scratch.CHOSEN)
EXTRA, HOLDS, GAINS = int(Scratch.EXTRA), int(Scratch.HOLDS), int(Scratch.GAINS)
GONE, MOVING, SUMS = int(Scratch.GONE), int(Scratch.MOVING), int(Scratch.SUMS)
GPUS, LOST, BEST_GPUS, BEST_LOST = 0, 1, 2, 3  # rows of scratch_float
UNCONSTRAINED, REQUIRED = int(Mode.UNCONSTRAINED), int(Mode.REQUIRED)
PATIENCE = 20.0  # h that are added to run times where urgencies are compared

# Who may go


@inlined
def may_evict(sim, opener, v):
    """True if job v may be preempted for the opener (see the top of this file) and was not evicted too often."""
    c, job, by = sim.clock[0], sim.jobs[v], sim.jobs[opener]
    if job.preemptible == 0 or job.evictions >= c.max_evictions or job.priority > c.victim_priority or v == opener:
        return False
    if c.preemption == PRIORITY:
        if job.queue != by.queue:
            if job.reclaimed != c.reclaim_stamp:
                return False
        else:
            within = sim.queues[job.queue].within
            newer = within == ANY and job.priority == by.priority and v > opener
            if within == NEVER or (job.priority >= by.priority and not newer):
                return False
    elif job.priority >= by.priority:
        return False
    return c.victim_urgency == np.inf or _is_less_urgent(sim, opener, v)


@kernel
def _is_less_urgent(sim, opener, v):
    """True if v's weight per hour that it still runs is at most `victim_urgency` times the opener's; see `PATIENCE`."""
    c, job, by = sim.clock[0], sim.jobs[v], sim.jobs[opener]
    hours, run = predicted_end(sim, v) - c.now + PATIENCE, by.estimate_error * by.work + PATIENCE
    return sim.classes[job.klass].weight / hours <= c.victim_urgency * sim.classes[by.klass].weight / run


@kernel
def _mark_reclaimed(sim, opener):
    """Mark the jobs of other queues in the opener's cohort tree that may be evicted because their queues borrow."""
    c, mine = sim.clock[0], sim.queues[sim.jobs[opener].queue]
    c.stamp += 1
    c.reclaim_stamp = c.stamp
    rule, most = (mine.borrow_within, mine.borrow_priority) if c.borrows == 1 else (mine.reclaim, NO_PRIORITY)
    if rule == NEVER:
        return
    for q in range(len(sim.queues)):
        over = sim.queues[q].used - sim.queues[q].nominal
        if q == sim.jobs[opener].queue or over <= 0 or _root_of(sim, q) != _root_of(sim, sim.jobs[opener].queue):
            continue
        while over > 0:
            best = -1
            for k in range(c.n_running):
                v = sim.heap[k]
                job = sim.jobs[v]
                if job.queue != q or job.preemptible == 0 or job.evictions >= c.max_evictions or job.priority > most:
                    continue
                lower = rule == ANY or job.priority < sim.jobs[opener].priority
                if lower and job.reclaimed != c.reclaim_stamp and (best < 0 or _goes_first(sim, v, best)):
                    best = v
            if best < 0:
                break
            sim.jobs[best].reclaimed = c.reclaim_stamp
            over -= sim.jobs[best].gpus


@inlined
def _root_of(sim, q):
    at = sim.queues[q].cohort
    while sim.cohorts[at].parent >= 0:
        at = sim.cohorts[at].parent
    return at


@inlined
def _goes_first(sim, a, b):
    """True if job a is evicted before job b: lower priority, then later start, then larger number."""
    x, y = sim.jobs[a], sim.jobs[b]
    if x.priority != y.priority:
        return x.priority < y.priority
    return x.start > y.start or (x.start == y.start and a > b)


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
    parent, chosen = sim.scratch[PARENT], sim.scratch[CHOSEN]
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
            count = _insert(sim, v, count)
    return _spare(sim, r, need, count, g) if prune else count


@kernel
def _spare(sim, r, need, count, p):
    """Take those jobs off VICTIMS without whose end `need` pods are gained all the same, the largest first."""
    victims, kept = sim.scratch[VICTIMS], 0
    for at in range(count):
        sim.jobs[victims[at]].mark = 0
        if _gained(sim, r, p) < need:
            sim.jobs[victims[at]].mark = sim.clock[0].stamp
            victims[kept] = victims[at]
            kept += 1
    return kept


@kernel
def _gained(sim, r, p):
    """Pods of p GPUs that rack r takes more of once the marked jobs are gone."""
    g, gained = sim.cap.shape[1] - 1, 0
    for n in range(sim.racks[r].node0, sim.racks[r].node1):
        if sim.nodes[n].blocked > 0:
            continue
        free = sim.nodes[n].free
        for slot in range(n * g, n * g + g):
            v = sim.gpu_job[slot]
            free += int(v >= 0 and sim.jobs[v].mark == sim.clock[0].stamp)
        gained += free // p - sim.nodes[n].free // p
    return gained


# The preemption set of one rack, of pods that share nodes


@kernel
def _cheapest_on_nodes(sim, opener, r, need):
    """As `cheapest_victims`, of pods that do not take whole nodes: `need` more of them in rack r, by ending alone."""
    p, g, node0 = sim.jobs[opener].pod_gpus, sim.cap.shape[1] - 1, sim.racks[r].node0
    size = sim.racks[r].node1 - node0
    best_gpus, best_lost = sim.scratch_float[BEST_GPUS], sim.scratch_float[BEST_LOST]
    for w in range(need + 1):
        best_gpus[w] = best_lost[w] = np.inf if w > 0 else 0.0
    for k in range(size):
        most = _price_gains(sim, opener, node0 + k, k, p)
        for w in range(need, 0, -1):
            sim.gain_taken[k, w] = 0
            for gain in range(1, most + 1):
                rest = max(0, w - gain)
                gpus, lost = best_gpus[rest] + sim.gain_cost[0, k, gain], best_lost[rest] + sim.gain_cost[1, k, gain]
                if gpus < best_gpus[w] or (gpus == best_gpus[w] and lost < best_lost[w]):
                    best_gpus[w], best_lost[w], sim.gain_taken[k, w] = gpus, lost, gain
    if best_gpus[need] == np.inf:
        return 0
    w = need
    for k in range(size - 1, -1, -1):
        sim.scratch[CHOSEN, k] = sim.gain_taken[k, w] if w > 0 else 0
        w = max(0, w - sim.scratch[CHOSEN, k])
    sim.clock[0].stamp += 1
    count = 0
    for k in range(size):
        if sim.scratch[CHOSEN, k] == 0:
            continue
        jobs, bit = sim.gain_jobs[k, sim.scratch[CHOSEN, k]], 0
        for slot in range((node0 + k) * g, (node0 + k) * g + g):
            v = sim.gpu_job[slot]
            if _is_first(sim, slot, (node0 + k) * g) and may_evict(sim, opener, v):
                if jobs >> bit & 1 and sim.jobs[v].mark != sim.clock[0].stamp:
                    sim.jobs[v].mark = sim.clock[0].stamp
                    count = _insert(sim, v, count)
                bit += 1
    return _spare(sim, r, need, count, p)


@inlined
def _is_first(sim, slot, first):
    """True if the GPU is the first of its node on which its job has a pod."""
    v = sim.gpu_job[slot]
    if v < 0:
        return False
    for other in range(first, slot):
        if sim.gpu_job[other] == v:
            return False
    return True


@inlined
def _insert(sim, v, count):
    """Put job v on VICTIMS, which has `count`, behind those that are as large. Returns how many there are now."""
    victims, at = sim.scratch[VICTIMS], count
    while at > 0 and sim.jobs[victims[at - 1]].gpus < sim.jobs[v].gpus:
        victims[at] = victims[at - 1]
        at -= 1
    victims[at] = v
    return count + 1


@kernel
def _price_gains(sim, opener, n, k, p):
    """What it costs to gain 1, 2, ... pods of p GPUs on node n, number k of its rack. Returns how many can be gained.

    All sets of the node's jobs that may be evicted are tried: there are at most as many jobs as GPUs.
    """
    g, node, count = sim.cap.shape[1] - 1, sim.nodes[n], 0
    for gain in range(g + 1):
        sim.gain_cost[0, k, gain] = sim.gain_cost[1, k, gain] = np.inf
    if node.blocked > 0:
        return 0
    jobs = sim.scratch[GAINS]
    for slot in range(n * g, n * g + g):
        if _is_first(sim, slot, n * g) and may_evict(sim, opener, sim.gpu_job[slot]):
            jobs[count] = sim.gpu_job[slot]
            count += 1
    most = 0
    for chosen in range(1, 1 << count):
        freed, gpus, lost = 0, 0.0, 0.0
        for bit in range(count):
            if chosen >> bit & 1:
                v = jobs[bit]
                for slot in range(n * g, n * g + g):
                    freed += int(sim.gpu_job[slot] == v)
                gpus += sim.jobs[v].gpus
                lost += sim.jobs[v].gpus * lost_work(sim, v, False)
        gain = (node.free + freed) // p - node.free // p
        most = max(most, gain)
        for fewer in range(1, gain + 1):
            if gpus < sim.gain_cost[0, k, fewer] or (
                gpus == sim.gain_cost[0, k, fewer] and lost < sim.gain_cost[1, k, fewer]
            ):
                sim.gain_cost[0, k, fewer], sim.gain_cost[1, k, fewer] = gpus, lost
                sim.gain_jobs[k, fewer] = chosen
    return most


# Quota that victims give back


@kernel
def _add_for_quota(sim, opener, count):
    """Add jobs to VICTIMS, of which there are `count`, until the opener has quota. Returns how many there are now.

    -1: it cannot have it. Moved jobs keep their quota.
    """
    c = sim.clock[0]
    if sim.jobs[opener].first_gpu >= 0:  # it has begun, and its quota was seen to
        return count
    c.stamp += 1
    chosen, kept, own = c.stamp, count, sim.jobs[opener].queue
    for k in range(count):
        sim.jobs[sim.scratch[VICTIMS, k]].mark = chosen
    while True:
        cohort, lack = -1, _queue_lack(sim, opener, count)
        if lack <= 0:
            cohort = sim.queues[own].cohort
            while cohort >= 0:
                lack = _cohort_lack(sim, opener, cohort, count)
                if lack > 0:
                    break
                cohort = sim.cohorts[cohort].parent
        if lack <= 0:
            break
        best = -1
        for k in range(c.n_running):
            v = sim.heap[k]
            inside = sim.jobs[v].queue == own if cohort < 0 else _is_below(sim, sim.jobs[v].queue, cohort)
            able = inside and sim.jobs[v].mark != chosen and may_evict(sim, opener, v)
            if able and (best < 0 or _covers_better(sim, v, best, lack)):
                best = v
        if best < 0:
            return -1
        sim.jobs[best].mark = chosen
        sim.scratch[VICTIMS, count] = best
        count += 1
    return _spare_for_quota(sim, opener, kept, count)


@inlined
def _covers_better(sim, a, b, lack):
    """True if job a gives quota back better than b: alone, with few GPUs; else with many; then with less lost."""
    x, y = sim.jobs[a].gpus, sim.jobs[b].gpus
    if (x >= lack) != (y >= lack):
        return x >= lack
    if x != y:
        return (x < y) == (x >= lack)
    lost_a, lost_b = x * lost_work(sim, a, False), y * lost_work(sim, b, False)
    return lost_a < lost_b or (lost_a == lost_b and a < b)


@kernel
def _spare_for_quota(sim, opener, kept, count):
    """Take those jobs off the end of VICTIMS, from `kept` on, whose quota is not needed, the largest first."""
    victims, seen = sim.scratch[VICTIMS], sim.scratch[EXTRA]
    for k in range(kept, count):
        seen[k] = 0
    while True:
        at = -1
        for k in range(kept, count):
            if seen[k] == 0 and (at < 0 or sim.jobs[victims[k]].gpus > sim.jobs[victims[at]].gpus):
                at = k
        if at < 0:
            return count
        seen[at] = 1
        v = victims[at]
        for k in range(at, count - 1):
            victims[k], seen[k] = victims[k + 1], seen[k + 1]
        if _lacks_quota(sim, opener, count - 1):
            for k in range(count - 1, at, -1):
                victims[k], seen[k] = victims[k - 1], seen[k - 1]
            victims[at], seen[at] = v, 1
        else:
            count -= 1


@inlined
def _lacks_quota(sim, opener, count):
    if _queue_lack(sim, opener, count) > 0:
        return True
    cohort = sim.queues[sim.jobs[opener].queue].cohort
    while cohort >= 0:
        if _cohort_lack(sim, opener, cohort, count) > 0:
            return True
        cohort = sim.cohorts[cohort].parent
    return False


@kernel
def _queue_lack(sim, opener, count):
    """GPUs that the opener's queue has too few for it, once the VICTIMS have given theirs back."""
    queue = sim.queues[sim.jobs[opener].queue]
    lack = queue.used + sim.jobs[opener].gpus - queue.limit
    for k in range(count if lack > 0 else 0):
        v = sim.scratch[VICTIMS, k]
        if sim.jobs[v].queue == sim.jobs[opener].queue and may_evict(sim, opener, v):
            lack -= sim.jobs[v].gpus
    return lack


@kernel
def _cohort_lack(sim, opener, cohort, count):
    lack = sim.cohorts[cohort].used + sim.jobs[opener].gpus - sim.cohorts[cohort].limit
    for k in range(count if lack > 0 else 0):
        v = sim.scratch[VICTIMS, k]
        if _is_below(sim, sim.jobs[v].queue, cohort) and may_evict(sim, opener, v):
            lack -= sim.jobs[v].gpus
    return lack


@inlined
def _is_below(sim, q, cohort):
    at = sim.queues[q].cohort
    while at >= 0 and at != cohort:
        at = sim.cohorts[at].parent
    return at == cohort


# Opening racks


@inlined
def _is_opened(sim, opener, r):
    """True if rack r was already opened in this decision (which begins when the opener becomes current)."""
    return sim.clock[0].current == opener and sim.racks[r].opened == sim.clock[0].decisions


@kernel
def _count_gone(sim, opener):
    """Note for every node the GPUs that evictions could free (GONE) and that moves could (MOVING). True: any at all."""
    c, g, found = sim.clock[0], sim.cap.shape[1] - 1, False
    gone, moving = sim.scratch[GONE], sim.scratch[MOVING]
    for n in range(len(sim.nodes)):
        gone[n] = moving[n] = 0
    for k in range(c.n_running):
        v = sim.heap[k]
        evicted = may_evict(sim, opener, v)
        if evicted or (sim.jobs[v].movable == 1 and sim.jobs[opener].pod_gpus == g):
            found = True
            slot, count = sim.jobs[v].first_gpu, gone if evicted else moving
            while slot >= 0:
                count[slot // g] += 1
                slot = sim.gpu_next[slot]
    return found


@kernel
def _survey(sim, opener):
    """From `_count_gone`: the state of every node, what each rack could hold at most, where moved pods may go.

    Returns the slices that the whole cluster could hold at most.
    """
    g, pods, total = sim.cap.shape[1] - 1, sim.jobs[opener].slice_pods, 0
    for f in range(g + 1):
        sim.scratch[ROOM, f] = 0
    for r in range(len(sim.racks)):
        rack, clear = sim.racks[r], 0
        for n in range(rack.node0, rack.node1):
            node, state = sim.nodes[n], TAKEN
            if node.blocked == 0 and node.gpus == g:
                emptied = node.free + sim.scratch[GONE, n]
                if node.free == g:
                    state = FREE
                elif emptied == g:
                    state = CLEARABLE
                elif emptied + sim.scratch[MOVING, n] == g:
                    state = MOVABLE
            part = node.blocked == 0 and 0 < node.free < node.gpus
            sim.scratch[STATE, n] = state
            sim.scratch[OFFER, n] = int(part and state != CLEARABLE)
            clear += int(state == CLEARABLE)
        sim.scratch[HOLDS, r] = sim.cap[r, g] + clear
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


@inlined
def _wanting(sim, opener, r):
    """Nodes of rack r that one more slice needs, and how many could be CLEARABLE or, by moving others, MOVABLE."""
    pods, clear, moves = sim.jobs[opener].slice_pods, 0, 0
    for n in range(sim.racks[r].node0, sim.racks[r].node1):
        clear += int(sim.scratch[STATE, n] == CLEARABLE)
        moves += int(sim.scratch[STATE, n] == MOVABLE)
    return pods - sim.cap[r, sim.cap.shape[1] - 1] % pods, clear, moves


@inlined
def _can_plan(sim, opener, r):
    """True if `_plan` finds victims."""
    need, clear, moves = _wanting(sim, opener, r)
    return clear >= need or (moves > 0 and clear + moves >= need and _plan(sim, opener, r) > 0)


@kernel
def _plan(sim, opener, r):
    """Find VICTIMS that free one more slice in rack r. Returns how many; 0: it cannot be done."""
    need, clear, moves = _wanting(sim, opener, r)
    if moves > 0 and clear + moves >= need:
        victims = cheapest_victims(sim, opener, r, need, MOVABLE)
        for f in range(sim.cap.shape[1]):
            sim.scratch[HERE, f] = sim.scratch[ROOM, f]
        if not _is_opened(sim, opener, r):
            _add_room(sim, r, HERE, -1)
        if _has_room(sim, opener, victims):
            return victims
    return cheapest_victims(sim, opener, r, need, CLEARABLE) if clear >= need else 0


@kernel
def mark_opens(sim, j):
    """Mark open[r] for every rack in which the job at hand may have more room by it. True if there is one."""
    c, racks, g = sim.clock[0], len(sim.racks), sim.cap.shape[1] - 1
    c.priced = 0
    if c.preemption == PRIORITY:
        return _mark_by_priority(sim, j)
    # sub-node pods find room without opening racks
    if sim.jobs[j].pod_gpus != g or not _count_gone(sim, j):
        return False
    total, found = _survey(sim, j), False
    for r in range(racks):
        potential, slots = sim.scratch[POTENTIAL, r], sim.cap[r, g] // sim.jobs[j].slice_pods
        if total - potential + max(potential, slots + 1) >= c.slices_left and _can_plan(sim, j, r):
            sim.mask[racks + r] = found = True
    return found


@kernel
def price_opens(sim):
    """Work out what every legal open[r] of the decision at hand evicts: open_gpus and open_lost. Does so once."""
    c, racks = sim.clock[0], len(sim.racks)
    if c.priced == 1:
        return
    c.priced, ready = 1, False
    for r in range(racks):
        if sim.mask[racks + r]:
            if not ready:
                _prepare(sim, c.current)
                ready = True
            victims = _victims(sim, c.current, r)
            sim.open_gpus[r] = sim.open_lost[r] = 0.0
            for k in range(victims):
                v = sim.scratch[VICTIMS, k]
                sim.open_gpus[r] += sim.jobs[v].gpus
                sim.open_lost[r] += sim.jobs[v].gpus * lost_work(sim, v, not may_evict(sim, c.current, v))


@kernel
def _prepare(sim, j):
    """Note who may go, and what every rack would hold without them: HOLDS, and of whole nodes what `_survey` notes."""
    c, p = sim.clock[0], sim.jobs[j].pod_gpus
    if c.preemption == PRIORITY:
        _mark_reclaimed(sim, j)
    if not _count_gone(sim, j):
        return False
    if p == sim.cap.shape[1] - 1:
        _survey(sim, j)
        return True
    for r in range(len(sim.racks)):
        holds = 0
        for n in range(sim.racks[r].node0, sim.racks[r].node1):
            if sim.nodes[n].blocked == 0:
                holds += (sim.nodes[n].free + sim.scratch[GONE, n]) // p
        sim.scratch[HOLDS, r] = holds
    return True


@kernel
def _victims(sim, j, r):
    """Find VICTIMS for open[r], after `_prepare`. Returns how many."""
    c = sim.clock[0]
    if c.preemption != PRIORITY:
        return _plan(sim, j, r)
    victims = 0
    if c.reach < 0 or c.scope >= 0:
        height = c.reach if c.scope >= 0 else c.open_reach
        victims = _plan_by_priority(sim, j, r, height, sim.ancestors[r, height])
    return _add_for_quota(sim, j, victims)


@kernel
def mark_opens_again(sim, j):
    """The same for other bars (`victim_urgency`, `victim_priority`) than those of the last time."""
    c, racks = sim.clock[0], len(sim.racks)
    for r in range(racks):
        if c.reach >= 0 and c.scope < 0:  # what it lacks is quota: it could have the racks that could be opened
            sim.mask[r] = sim.mask[racks + r]
        sim.mask[racks + r] = False
    return mark_opens(sim, j)


@inlined
def _most_evictable(sim, j):
    """GPUs that evictions for job j could free at most: a bound that tells at once where looking is no use."""
    priority = sim.jobs[j].priority
    last = len(sim.evictable) - 1 if sim.clock[0].any_victims == 1 else rank_of(sim, priority)
    whole = last == 0 or last == len(sim.evictable) - 1  # which hold more than one priority
    most = sim.evictable[last] if whole else 0
    for rank in range(last):
        most += sim.evictable[rank]
    return most


@kernel
def _mark_by_priority(sim, j):
    c, job, racks, found = sim.clock[0], sim.jobs[j], len(sim.racks), False
    demand = c.slices_left * c.pods_left * job.pod_gpus
    if job.preempts == 0 or (job.first_gpu < 0 and sim.cap[len(sim.cap) - 1, 1] + _most_evictable(sim, j) < demand):
        return False
    if not _prepare(sim, j) or not _quota_can_be_had(sim, j):
        return False
    if c.reach >= 0 and c.scope < 0:  # its shape is free: mask says where; what it lacks is quota
        for r in range(racks):
            sim.mask[racks + r] = sim.mask[r]
            sim.mask[r] = False
        return True
    height = _open_reach(sim, j)
    if height < 0:
        return False
    c.open_reach = height
    slices, first = 0, 0  # that all domains would hold; first rack of a domain
    for r in range(racks):
        if sim.ancestors[r, height] != sim.ancestors[first, height]:
            first = r
        sim.scratch[SUMS, first] = sim.scratch[HOLDS, r] + (sim.scratch[SUMS, first] if first < r else 0)
        last = r == racks - 1 or sim.ancestors[r + 1, height] != sim.ancestors[first, height]
        slices += sim.scratch[SUMS, first] // job.slice_pods if last else 0
    first = 0
    for r in range(racks):
        domain = sim.ancestors[r, height]
        if domain != sim.ancestors[first, height]:
            first = r
        inside = c.scope < 0 or domain == c.scope
        good = inside and _can_go_on(sim, j, height, domain, sim.scratch[SUMS, first], slices)
        if good and _can_plan_by_priority(sim, j, r, height, domain):
            sim.mask[racks + r] = found = True
    return found


@kernel
def _open_reach(sim, j):
    """Height of the domains one of which is to hold the present slice once others have gone; -1: none could."""
    c, job, top = sim.clock[0], sim.jobs[j], sim.ancestors.shape[1] - 1
    if c.scope >= 0:
        return c.reach
    if job.mode == REQUIRED:
        return job.height
    height = 0 if job.mode == UNCONSTRAINED else job.height
    while height <= top:
        holds, domain = 0, -1
        for r in range(len(sim.racks)):
            holds = sim.scratch[HOLDS, r] + (holds if sim.ancestors[r, height] == domain else 0)
            domain = sim.ancestors[r, height]
            if holds >= c.pods_left:
                return height
        height = top if job.mode == UNCONSTRAINED and height < top else height + 1
    return -1


@inlined
def _can_go_on(sim, j, height, domain, holds, slices):
    """True if, with the present slice in a domain that could hold so many pods, the rest of the job could start too.

    `slices` : that all domains of its height could hold.
    """
    c, job, g = sim.clock[0], sim.jobs[j], sim.cap.shape[1] - 1
    others = slices - holds // job.slice_pods
    if c.scope >= 0:
        return holds >= c.pods_left and others + (holds - c.pods_left) // job.slice_pods >= c.slices_left - 1
    here = holds // job.slice_pods
    if height == 0 and job.pod_gpus == g:  # by moving others it may hold one more than it does now
        here = max(here, sim.cap[domain, g] // job.slice_pods + 1)
    return here > 0 and others + here >= c.slices_left


@inlined
def _can_plan_by_priority(sim, j, r, height, domain):
    """True if `_plan_by_priority` finds victims."""
    c, job, p = sim.clock[0], sim.jobs[j], sim.jobs[j].pod_gpus
    if height > 0:
        lacks = c.pods_left - sim.cap[domain, p] if c.scope >= 0 else 1
        return lacks > 0 and sim.scratch[HOLDS, r] > sim.cap[r, p]
    if p == sim.cap.shape[1] - 1:
        return _can_plan(sim, j, r)
    return sim.scratch[HOLDS, r] - sim.cap[r, p] >= job.slice_pods - sim.cap[r, p] % job.slice_pods


@kernel
def _quota_can_be_had(sim, j):
    """True if the job at hand has quota, or would have it without all who may be evicted for it."""
    c, job = sim.clock[0], sim.jobs[j]
    if job.first_gpu >= 0 or lacking_quota(sim, j, 1) <= 0:
        return True
    own, cohort = job.queue, -1
    lack, above = sim.queues[own].used + job.gpus - sim.queues[own].limit, sim.queues[own].cohort
    while True:
        for k in range(c.n_running if lack > 0 else 0):
            v = sim.heap[k]
            inside = sim.jobs[v].queue == own if cohort < 0 else _is_below(sim, sim.jobs[v].queue, cohort)
            if inside and may_evict(sim, j, v):
                lack -= sim.jobs[v].gpus
        if lack > 0:
            return False
        if above < 0:
            return True
        cohort, above = above, sim.cohorts[above].parent
        lack = sim.cohorts[cohort].used + job.gpus - sim.cohorts[cohort].limit


@kernel
def _plan_by_priority(sim, j, r, height, domain):
    """Find VICTIMS that give the present slice more room in rack r. Returns how many; 0: it cannot be done."""
    c, job, g = sim.clock[0], sim.jobs[j], sim.cap.shape[1] - 1
    p = job.pod_gpus
    if height == 0:
        need = job.slice_pods - sim.cap[r, p] % job.slice_pods
        if p == g:
            return _plan(sim, j, r)
        return _cheapest_on_nodes(sim, j, r, need) if sim.scratch[HOLDS, r] - sim.cap[r, p] >= need else 0
    lacks = c.pods_left - sim.cap[domain, p] if c.scope >= 0 else job.slice_pods - sim.cap[domain, p] % job.slice_pods
    need = min(lacks, sim.scratch[HOLDS, r] - sim.cap[r, p])
    if need <= 0:
        return 0
    return cheapest_victims(sim, j, r, need, CLEARABLE) if p == g else _cheapest_on_nodes(sim, j, r, need)


@kernel
def open_rack(sim, j, r):
    """Make room in rack r for the job at hand: move first, then evict."""
    c = sim.clock[0]
    _prepare(sim, j)
    victims = _victims(sim, j, r)
    sim.racks[r].opened = c.decisions
    for k in range(victims):  # what may be evicted is noted: it changes as they go
        sim.scratch[EXTRA, k] = int(may_evict(sim, j, sim.scratch[VICTIMS, k]))
    for k in range(victims):
        if sim.scratch[EXTRA, k] == 0:
            _move(sim, sim.scratch[VICTIMS, k])
    for k in range(victims):
        if sim.scratch[EXTRA, k] == 1:
            evict(sim, sim.scratch[VICTIMS, k])
    if c.evict_whole_rack == 1:
        _evict_rest(sim, j, r)
    c.rescan = 1


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
