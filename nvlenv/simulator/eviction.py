"""`open`: make room for one more slice in a rack by ending or moving other jobs.

A node is *clearable* for a job if every pod on it may be preempted: preemptible, of strictly lower priority, and not
evicted too often already. It is *movable* if every pod on it may be preempted or moved.

Moved jobs go at once, by best fit, to places that cost the opening job nothing: holes on nodes that could not be
cleared for it anyway, or whole nodes beyond the last full slice of a rack.
So a job that may open a rack can always go on until it starts.
"""

from __future__ import annotations

from nvlenv.kernel import inlined, kernel
from nvlenv.simulator.cover import cheapest_victims, may_evict
from nvlenv.simulator.dynamics import evict, lift, lost_work, run
from nvlenv.simulator.occupancy import occupy, release
from nvlenv.simulator.queues import enqueue
from nvlenv.simulator.state import Row

TAKEN, FREE, CLEARABLE, MOVABLE = 0, 1, 2, 3  # what a whole-node pod may hope for on a node
STATE, OFFER, SPARE, POTENTIAL = int(Row.STATE), int(Row.OFFER), int(Row.SPARE), int(Row.POTENTIAL)
ROOM, HERE, VICTIMS = int(Row.ROOM), int(Row.HERE), int(Row.VICTIMS)


@inlined
def _is_opened(sim, opener, r):
    """True if rack r was already opened in this decision (which begins when the opener becomes current)."""
    return sim.clock[0].current == opener and sim.racks[r].opened == sim.clock[0].decisions


@inlined
def node_state(sim, opener, n):
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


@kernel
def _survey(sim, opener):
    """Note the state of every node, what each rack could hold at most, and where moved pods may go.

    Returns the slices that the whole cluster could hold at most.
    """
    g, unit, total = sim.cap.shape[1] - 1, sim.jobs[opener].unit_pods, 0
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
        sim.scratch[POTENTIAL, r] = (sim.cap[r, g] + clear) // unit
        sim.scratch[SPARE, r] = min(sim.cap[r, g] % unit, (sim.cap[r, g] + clear) % unit)
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
    g, unit = sim.cap.shape[1] - 1, sim.jobs[opener].unit_pods
    need = unit - sim.cap[r, g] % unit
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
        potential, slots = sim.scratch[POTENTIAL, r], sim.cap[r, g] // sim.jobs[j].unit_pods
        if total - potential + max(potential, slots + 1) < c.units_left:
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
