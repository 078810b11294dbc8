"""The twin: the same workload on one pooled cluster without topology.

Same GPUs, same quota, same queue order; a job starts as soon as enough GPUs are free anywhere, and always runs at its
ideal speed. No placement policy can get anything wrong here, so its cost is a reference from (nearly) below.
"""

from __future__ import annotations

from nvlenv.common.kernel import kernel
from nvlenv.simulator.events import next_time, pass_time, push_completion, remove_completion
from nvlenv.simulator.queues import charge, dequeue, enqueue, has_quota, is_blocked, stays_waiting
from nvlenv.simulator.state import DONE


@kernel
def run_pooled(sim, times, costs):
    """Run a freshly loaded simulator to its horizon as if it had no topology.

    Writes the piecewise linear curve of weighted waiting GPU-hours: `times` (h) and `costs`, both at least
    (2 J + 3,) float64. Returns the number of points.
    """
    c = sim.clock[0]
    free, points = c.free_all, 0
    times[0], costs[0] = 0.0, 0.0
    c.next_event = c.n_events  # nothing ever fails here
    while True:
        t = min(next_time(sim), c.horizon)
        if c.now < c.measure_from < t:  # the cost bends here
            t = c.measure_from
        pass_time(sim, t)
        if t > times[points]:
            points += 1
        times[points], costs[points] = t, c.waiting
        if t >= c.horizon:
            return points + 1
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
        free = _start_what_fits(sim, 0 if grew else first, free)


@kernel
def _finish(sim, j):
    remove_completion(sim, j)
    charge(sim, sim.jobs[j].queue, -sim.jobs[j].gpus)
    sim.jobs[j].status, sim.jobs[j].finish = DONE, sim.clock[0].now
    return sim.jobs[j].gpus


@kernel
def _start_what_fits(sim, first, free):
    """Start waiting jobs in order, from position `first` on. Returns the GPUs that are still free."""
    c, at = sim.clock[0], first
    while at < c.n_waiting and free > 0:
        j = sim.waiting[at]
        job = sim.jobs[j]
        if job.gpus <= free and not is_blocked(sim, j) and has_quota(sim, j):
            dequeue(sim, j)
            free -= job.gpus
            charge(sim, job.queue, job.gpus)
            job.start = job.first_start = c.now
            job.end = c.now + job.duration
            push_completion(sim, j)
        else:
            stays_waiting(sim, j)
            at += 1
    return free
