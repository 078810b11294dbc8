"""The same workload on one pooled cluster without topology: same GPUs, same quota, same queue order.

Any free GPU serves any job, every job runs at its ideal speed, nothing is evicted, moved or failing, so all of its cost
is waiting. No placement policy can get anything wrong here. It serves twice, and only who may be overtaken differs:

twin    first come, first served with backfilling, which keeps nothing free for heroes. Paired with the reward. Good
        policies beat it, so it bounds nothing.
bound   EASY backfilling (Lifka, "The ANL/IBM SP scheduling system", 1995) with the reservation of a baseline: whom its
        `easy` keeps racks for. The distance to it is what topology costs a policy that queues like the baseline.
        It is no lower bound on the cost of every policy: starting jobs in another order may cost less than any
        placement could save, and a policy that sees farther than EASY may pass it; a share of the gap above 100 % says
        so.
"""

from __future__ import annotations

import numpy as np

from nvlenv.common.kernel import inlined, kernel
from nvlenv.simulator.events import next_time, pass_time, push_completion, remove_completion
from nvlenv.simulator.forecast import predicted_end, urgency
from nvlenv.simulator.queues import charge, dequeue, enqueue, has_quota, is_blocked, lacking_quota, stays_waiting
from nvlenv.simulator.state import DONE, Sim

NOBODY = 2**40  # GPUs that no job asks for: nothing is kept for anybody
ENOUGH = 2**40  # GPUs beyond the target's, where there is no target


def waiting_in_pool(sim: Sim, least: int = NOBODY, patience: float = 0.0) -> float:
    """Weighted waiting GPU-hours of a freshly loaded simulator, run to its horizon as one pool. See `run_pooled`."""
    times = np.zeros(2 * int(sim.clock[0]["n_jobs"]) + 3)
    costs = np.zeros_like(times)
    return float(costs[run_pooled(sim, times, costs, least, patience) - 1])


@kernel
def run_pooled(sim, times, costs, least, patience):
    """Run a freshly loaded simulator to its horizon as if it had no topology.

    GPUs are kept for the first waiting job of at least `least` GPUs (NOBODY: the twin), with patience > 0 for the most
    urgent one (`forecast.urgency`). Writes the piecewise linear curve of weighted waiting GPU-hours: `times` (h) and
    `costs`, both at least (2 J + 3,) float64. Returns the number of points.
    """
    c = sim.clock[0]
    free, points = c.free_all, 0
    times[0], costs[0] = 0.0, 0.0
    c.next_event = c.n_events  # nothing ever fails here
    while True:
        t = min(next_time(sim), c.horizon)
        bends = c.now < c.measure_from < t  # the cost bends here, and nothing happens
        if bends:
            t = c.measure_from
        pass_time(sim, t)
        if t > times[points]:
            points += 1
        times[points], costs[points] = t, c.waiting
        if t >= c.horizon:
            return points + 1
        if bends:
            continue
        grew = False
        while c.n_running > 0 and sim.jobs[sim.heap[0]].end <= t:
            free += _finish(sim, sim.heap[0])
            grew = True
        first = c.n_waiting
        while c.next_job < c.n_jobs and sim.jobs[c.next_job].submit <= t:
            first = min(first, enqueue(sim, c.next_job))
            c.next_job += 1
        if grew:
            c.epoch += 1
        if grew or least < NOBODY:  # as time goes by, a reservation may move and let others pass
            first = 0
        free = _start_what_may(sim, first, free, least, patience)


@kernel
def _finish(sim, j):
    remove_completion(sim, j)
    charge(sim, sim.jobs[j].queue, -sim.jobs[j].gpus)
    sim.jobs[j].status, sim.jobs[j].finish = DONE, sim.clock[0].now
    return sim.jobs[j].gpus


@kernel
def _start_what_may(sim, first, free, least, patience):
    """Start waiting jobs in order, from position `first` on, as far as that delays the target by no estimate.

    Returns the GPUs that are still free.
    """
    c, at = sim.clock[0], first
    target = _target(sim, least, patience)
    shadow, extra = _reserve(sim, target, free)
    while at < c.n_waiting and free > 0:
        j = sim.waiting[at]
        job = sim.jobs[j]
        end = c.now + job.estimate_error * job.duration
        harmless = j == target or end <= shadow or job.gpus <= extra
        if job.gpus > free or not harmless or is_blocked(sim, j) or not has_quota(sim, j):
            stays_waiting(sim, j)
            at += 1
            continue
        dequeue(sim, j)
        free -= job.gpus
        charge(sim, job.queue, job.gpus)
        job.start = job.first_start = c.now
        job.end, job.predicted = c.now + job.duration, end
        push_completion(sim, j)
        if j == target:
            target, at = _target(sim, least, patience), 0
            shadow, extra = _reserve(sim, target, free)
        elif end > shadow:
            extra -= job.gpus
    return free


@inlined
def _target(sim, least, patience):
    """The waiting job of at least so many GPUs for which GPUs are kept: the first in line, or with patience the most
    urgent one; -1: none."""
    best, most = -1, -1.0
    for k in range(sim.clock[0].n_waiting if least < NOBODY else 0):
        j = sim.waiting[k]
        if sim.jobs[j].gpus < least or lacking_quota(sim, j, 0) > 0:
            continue
        if patience == 0.0:
            return j
        if urgency(sim, j, patience) > most:
            best, most = j, urgency(sim, j, patience)
    return best


@kernel
def _reserve(sim, target, free):
    """When the target can start, by estimates, and the GPUs that are free then beyond what it takes.

    Jobs end in the order of their predicted ends; (inf, ENOUGH) if there is nobody to reserve for.
    """
    c = sim.clock[0]
    if target < 0:
        return np.inf, ENOUGH
    room, shadow = free, c.now
    while room < sim.jobs[target].gpus:
        following, gpus = np.inf, 0
        for k in range(c.n_running):
            end = predicted_end(sim, sim.heap[k])
            if shadow < end < following:
                following, gpus = end, 0
            if end == following:
                gpus += sim.jobs[sim.heap[k]].gpus
        if gpus == 0:
            return np.inf, ENOUGH  # it asks for more than there is
        shadow = following
        room += gpus
    return shadow, room - sim.jobs[target].gpus
