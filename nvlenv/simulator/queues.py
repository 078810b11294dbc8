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
    """Add (or, negative, give back) usage of queue q and its cohort."""
    sim.queues[q].used += gpus
    sim.cohorts[sim.queues[q].cohort].used += gpus


@inlined
def lacking_quota(sim, j):
    """GPUs of quota that job j lacks now, at the level that lacks the most: its queue or its cohort; <= 0: none."""
    job = sim.jobs[j]
    queue = sim.queues[job.queue]
    cohort = sim.cohorts[queue.cohort]
    return max(queue.used + job.gpus - queue.limit, cohort.used + job.gpus - cohort.nominal)


@inlined
def has_quota(sim, j):
    """True if the job's queue may use so many GPUs more, borrowing from its cohort if need be."""
    return lacking_quota(sim, j) <= 0


@inlined
def may_have_quota(sim, j):
    """True if the job's queue could use so many GPUs if nobody else did."""
    job = sim.jobs[j]
    queue = sim.queues[job.queue]
    return job.gpus <= queue.limit and job.gpus <= sim.cohorts[queue.cohort].nominal


@inlined
def waits_for_quota(sim, j):
    """True if waiting for GPUs is not what keeps job j: it lacks more quota than GPUs, or can never have enough."""
    missing_gpus = max(0, sim.jobs[j].gpus - sim.cap[len(sim.cap) - 1, 1])
    return not may_have_quota(sim, j) or lacking_quota(sim, j) > missing_gpus


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
