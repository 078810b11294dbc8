"""From event to decision and back: the loop that everything else drives.

`advance` runs until some waiting job has something to decide; `apply` carries an action out. No simulated time passes
inside a decision.

The scan of the waiting list always ends. Per *instant* (event at which capacity grew) a job is held at most once, a job
that starts leaves the list, and a job is only evicted for one of strictly higher priority; an arrival brings up the
arriving job alone, because it makes no room for the others.
"""

from __future__ import annotations

from nvlenv.common.kernel import inlined, kernel
from nvlenv.simulator.events import apply_node_event, finish, next_time, pass_time, start
from nvlenv.simulator.feasibility import consider, fill_domain
from nvlenv.simulator.occupancy import fill, release, take
from nvlenv.simulator.preemption import open_rack
from nvlenv.simulator.queues import enqueue, is_blocked, stays_waiting
from nvlenv.simulator.state import NO_DEMAND, PRIORITY


@kernel
def advance(sim):
    """Run to the next decision. Returns False if the window ended first."""
    while not _scan(sim):
        if not next_event(sim):
            return False
    return True


@inlined
def next_event(sim):
    """Let the next instant happen, all of it. Returns False if the window ends before."""
    c = sim.clock[0]
    t = next_time(sim)
    if t >= c.horizon:
        pass_time(sim, c.horizon)
        c.done = 1
        return False
    pass_time(sim, t)
    grew = False
    while c.n_running > 0 and sim.jobs[sim.heap[0]].end <= t:
        finish(sim, sim.heap[0])
        grew = True
    while c.next_event < c.n_events and sim.events[c.next_event].time <= t:
        if apply_node_event(sim, sim.events[c.next_event]):
            grew = True
        c.next_event += 1
    first = c.n_waiting
    while c.next_job < c.n_jobs and sim.jobs[c.next_job].submit <= t:
        first = min(first, enqueue(sim, c.next_job))
        c.next_job += 1
    c.cursor = first
    if grew:
        c.instant += 1
        look_again(sim)
    return True


@inlined
def look_again(sim):
    """Capacity grew: everybody who waits may have something to decide."""
    c = sim.clock[0]
    c.epoch += 1
    c.cursor, c.unseen, c.rescan = 0, c.n_waiting, 0
    c.stall_gpus = NO_DEMAND


@inlined
def _scan(sim):
    """Look for the first waiting job with something to decide, and make it current."""
    c = sim.clock[0]
    while c.unseen > 0 and c.cursor < c.n_waiting:
        j = sim.waiting[c.cursor]
        job = sim.jobs[j]
        if job.seen != c.epoch:
            job.seen = c.epoch
            c.unseen -= 1
            if job.held != c.instant and not is_blocked(sim, j) and consider(sim, j):
                c.current = j
                c.decisions += 1
                return True
            stays_waiting(sim, j)
        c.cursor += 1
    return False


@inlined
def apply(sim, action):
    """Carry out an action of the current job. Returns True if the same job is up again, with a new mask."""
    c, racks = sim.clock[0], len(sim.racks)
    j = c.current
    if action < 0 or action >= len(sim.mask) or not sim.mask[action]:
        c.illegal += 1
        action = 2 * racks + 1
    if action == 2 * racks + 1:
        _hold(sim, j)
    elif action == 2 * racks:
        domain = fill_domain(sim, j)
        fill(sim, j, c.pods_left, domain, _height_of(sim, domain))
        _placed(sim, c.pods_left)
    else:
        r = action % racks
        if action >= racks:
            open_rack(sim, j, r)
            if c.preemption == PRIORITY and c.reach < 0:
                c.reach = c.open_reach
        pods = min(c.pods_left, sim.cap[r, sim.jobs[j].pod_gpus])
        take(sim, j, r, pods)
        if c.reach > 0 and c.scope < 0:
            c.scope = sim.ancestors[r, c.reach]
        _placed(sim, pods)
    if c.current < 0:
        if c.rescan == 1:
            look_again(sim)
        return False
    if not consider(sim, j):  # cannot happen while the rules above hold; never leave a job without an answer
        _hold(sim, j)
        return False
    return True


@inlined
def _height_of(sim, domain):
    height = 0
    while domain >= sim.level_start[height + 1]:
        height += 1
    return height


@inlined
def _placed(sim, pods):
    """Count pods that were just placed; the job starts with its last one."""
    c = sim.clock[0]
    j = c.current
    c.pods_left -= pods
    if c.pods_left == 0:
        c.slices_left -= 1
        c.pods_left, c.scope = sim.jobs[j].slice_pods, -1
    if c.slices_left == 0:
        start(sim, j)
        c.current = -1


@inlined
def _hold(sim, j):
    """The job waits for the next instant; slices that were placed are returned."""
    c = sim.clock[0]
    release(sim, j)
    sim.jobs[j].held = c.instant
    stays_waiting(sim, j)
    c.current = -1
    c.cursor += 1


@kernel
def step(sim, action):
    """Apply an action and run to the next decision. Returns False if the window ended."""
    return apply(sim, action) or advance(sim)
