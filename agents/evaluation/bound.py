"""The bound of an evaluation: the same workload on the same GPUs without topology, queued as the baseline queues.

What it is: one pool of GPUs under EASY backfilling (Lifka, "The ANL/IBM SP scheduling system", 1995), with the queue
order, the quotas, the estimates and the reservation of the baseline (whom `easy` keeps racks for: its share, slices and
patience). Any free GPU serves any job, every job runs at its ideal speed, nothing is evicted, moved or failing, so all
of its cost is waiting. The distance to it is what topology costs a policy that queues like the baseline.

What it is not: a lower bound on the cost of every policy. Starting jobs in another order may cost less than any
placement could save, and a policy that sees farther than EASY may pass it; a share of the gap above 100 % says so.
The twin of the reward (`nvlenv.simulator.pooled`) is first come, first served with backfilling, which keeps nothing
free for heroes; good policies beat it, so it bounds nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nvlenv.common.kernel import compiled, kernel
from nvlenv.policies.heuristics.reservation import reservation_size
from nvlenv.policies.heuristics.rule import parse_rule
from nvlenv.policies.resolver import KUEUE
from nvlenv.simulator.events import next_time, pass_time, push_completion, remove_completion
from nvlenv.simulator.forecast import predicted_end, urgency
from nvlenv.simulator.pooled import run_pooled
from nvlenv.simulator.queues import charge, dequeue, enqueue, has_quota, is_blocked, may_have_quota, stays_waiting
from nvlenv.simulator.state import DONE, Sim


def pooled_easy(sim: Sim, baseline: str) -> float:
    """Weighted waiting GPU-hours of a freshly loaded simulator, run to its horizon as one pool under EASY.

    A baseline that reserves nothing lends the pool its queue order alone; every hero is reserved for.
    """
    rule = parse_rule("best-fit" if baseline.startswith(KUEUE) else baseline)
    _run(sim, int(reservation_size(sim, rule)), rule.easy_patience)
    return float(sim.clock[0]["waiting"])


def pooled_fcfs(sim: Sim) -> float:
    """The same, first come, first served with backfilling: the twin of the reward."""
    times = np.zeros(2 * int(sim.clock[0]["n_jobs"]) + 3)
    costs = np.zeros_like(times)
    return float(costs[run_pooled(sim, times, costs) - 1])


@compiled
def _run(sim: Any, least: int, patience: float) -> None:
    c = sim.clock[0]
    free = c.free_all
    c.next_event = c.n_events  # nothing ever fails here
    while True:
        t = next_time(sim)
        if t >= c.horizon:
            pass_time(sim, c.horizon)
            return
        pass_time(sim, t)
        grew = False
        while c.n_running > 0 and sim.jobs[sim.heap[0]].end <= t:
            free += _finish(sim, sim.heap[0])
            grew = True
        while c.next_job < c.n_jobs and sim.jobs[c.next_job].submit <= t:
            enqueue(sim, c.next_job)
            c.next_job += 1
        if grew:
            c.epoch += 1
        free = _start_what_may(sim, free, least, patience)


@kernel
def _finish(sim: Any, j: int) -> Any:
    remove_completion(sim, j)
    charge(sim, sim.jobs[j].queue, -sim.jobs[j].gpus)
    sim.jobs[j].status, sim.jobs[j].finish = DONE, sim.clock[0].now
    return sim.jobs[j].gpus


@kernel
def _start_what_may(sim: Any, free: int, least: int, patience: float) -> int:
    """Start waiting jobs in order, as far as that delays the target by no estimate. Returns the free GPUs."""
    c, at = sim.clock[0], 0
    head = _target(sim, least, patience)
    shadow, extra = _reserve(sim, head, free)
    while at < c.n_waiting and free > 0:
        j = sim.waiting[at]
        job = sim.jobs[j]
        end = c.now + job.noise * job.duration
        harmless = j == head or end <= shadow or job.gpus <= extra
        if job.gpus > free or not harmless or is_blocked(sim, j) or not has_quota(sim, j):
            stays_waiting(sim, j)
            at += 1
            continue
        dequeue(sim, j)
        free -= job.gpus
        charge(sim, job.queue, job.gpus)
        job.start, job.end, job.predicted = c.now, c.now + job.duration, end
        job.first_start = c.now
        push_completion(sim, j)
        if j == head:
            head, at = _target(sim, least, patience), 0
            shadow, extra = _reserve(sim, head, free)
        elif end > shadow:
            extra -= job.gpus
    return free


@kernel
def _target(sim: Any, least: int, patience: float) -> int:
    """The waiting job of at least so many GPUs for which GPUs are kept: the first in line, or with patience the most
    urgent one; -1: none."""
    best, most = -1, -1.0
    for k in range(sim.clock[0].n_waiting):
        j = sim.waiting[k]
        if sim.jobs[j].gpus < least or not may_have_quota(sim, j):
            continue
        if patience == 0.0:
            return int(j)
        if urgency(sim, j, patience) > most:
            best, most = j, urgency(sim, j, patience)
    return int(best)


@kernel
def _reserve(sim: Any, head: int, free: int) -> tuple[float, int]:
    """When job `head` can start, by estimates, and the GPUs that are free then beyond what it takes.

    Jobs end in the order of their predicted ends; (inf, many) if there is nobody to reserve for.
    """
    c = sim.clock[0]
    if head < 0:
        return np.inf, 2**40
    room, shadow = free, c.now
    while room < sim.jobs[head].gpus:
        following, gpus = np.inf, 0
        for k in range(c.n_running):
            end = predicted_end(sim, sim.heap[k])
            if shadow < end < following:
                following, gpus = end, 0
            if end == following:
                gpus += sim.jobs[sim.heap[k]].gpus
        if gpus == 0:
            return np.inf, 2**40  # it asks for more than there is
        shadow = following
        room += gpus
    return shadow, room - sim.jobs[head].gpus
