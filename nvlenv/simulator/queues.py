"""The waiting list and the quota of ClusterQueues.

Order (Kueue's): higher priority first, then earlier submit. Workloads are sorted by submit, so the job's number settles
it, also for a job that was evicted and comes back: it keeps its place.
Quota is charged from start to end. A queue may use more than its nominal share while its cohort has it unused. The way
from a queue up through its cohort is walked in three places only: `charge`, `lacking_quota` and `may_have_quota`.
"""

from __future__ import annotations

from nvlenv.common.kernel import inlined
from nvlenv.simulator.state import WAITING


@inlined
def goes_before(sim, a, b):
    """True if job a stands before job b in the waiting list."""
    pa, pb = sim.jobs[a].priority, sim.jobs[b].priority
    return pa > pb or (pa == pb and a < b)


@inlined
def position(sim, j):
    """Where job j is, or would be, in the waiting list."""
    low, high = 0, sim.clock[0].n_waiting
    while low < high:
        middle = (low + high) // 2
        if goes_before(sim, sim.waiting[middle], j):
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def enqueue(sim, j):
    """Job j joins the waiting list. Returns its position."""
    c, job = sim.clock[0], sim.jobs[j]
    at = position(sim, j)
    for k in range(c.n_waiting, at, -1):
        sim.waiting[k] = sim.waiting[k - 1]
    sim.waiting[at] = j
    c.n_waiting += 1
    c.unseen += 1
    job.status, job.queued, job.seen = WAITING, c.now, -1
    sim.classes[job.klass].waiting_gpus += job.gpus
    if job.gpus >= c.hero_gpus:
        c.hero_waiting += job.gpus
    return at


@inlined
def dequeue(sim, j):
    """Job j leaves the waiting list."""
    c, job = sim.clock[0], sim.jobs[j]
    for k in range(position(sim, j), c.n_waiting - 1):
        sim.waiting[k] = sim.waiting[k + 1]
    c.n_waiting -= 1
    job.waited += c.now - job.queued
    sim.classes[job.klass].waiting_gpus -= job.gpus
    if job.gpus >= c.hero_gpus:
        c.hero_waiting -= job.gpus


@inlined
def charge(sim, q, gpus):
    """Add (or, negative, give back) usage of queue q and of all cohorts above it."""
    sim.queues[q].used += gpus
    above = sim.queues[q].cohort
    while above >= 0:
        sim.cohorts[above].used += gpus
        above = sim.cohorts[above].parent


@inlined
def lacking_quota(sim, j, used):
    """GPUs that the job's queue or a cohort above it would have too few for the job; `used` 0: if nobody used any."""
    job = sim.jobs[j]
    queue = sim.queues[job.queue]
    lack, above = used * queue.used + job.gpus - queue.limit, queue.cohort
    while above >= 0:
        lack = max(lack, used * sim.cohorts[above].used + job.gpus - sim.cohorts[above].limit)
        above = sim.cohorts[above].parent
    return lack


@inlined
def has_quota(sim, j):
    """True if the job's queue may use so many GPUs more, borrowing from its cohorts if need be."""
    return lacking_quota(sim, j, 1) <= 0


@inlined
def waits_for_quota(sim, j):
    """True if waiting for GPUs is not what keeps job j: it lacks more quota than GPUs, or can never have enough."""
    lacks = lacking_quota(sim, j, 1)
    return lacking_quota(sim, j, 0) > 0 or lacks > max(0, sim.jobs[j].gpus - sim.cap[len(sim.cap) - 1, 1])


@inlined
def is_blocked(sim, j):
    """True if an earlier job of the same StrictFIFO queue stays waiting."""
    queue = sim.queues[sim.jobs[j].queue]
    blocked = queue.strict == 1 and queue.blocker_epoch == sim.clock[0].epoch
    return blocked and goes_before(sim, queue.blocker, j)


@inlined
def stays_waiting(sim, j):
    """Note that the scan leaves job j waiting: in a StrictFIFO queue it blocks those behind it."""
    queue = sim.queues[sim.jobs[j].queue]
    if not is_blocked(sim, j):
        queue.blocker, queue.blocker_epoch = j, sim.clock[0].epoch
