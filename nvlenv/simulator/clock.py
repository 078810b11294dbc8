"""Time: the heap of completions, the next event, and the integrals between two events.

Events at one instant come in a fixed order: completions by job number, then node events in file order, then arrivals.
"""

from __future__ import annotations

import numpy as np

from nvlenv.kernel import inlined, kernel
from nvlenv.simulator.state import RUNNING


@inlined
def _ends_before(sim, a, b):
    ea, eb = sim.jobs[a].end, sim.jobs[b].end
    return ea < eb or (ea == eb and a < b)


@inlined
def _put(sim, at, j):
    sim.heap[at] = j
    sim.jobs[j].heap_pos = at


@inlined
def _sift(sim, at):
    """Restore the heap order around one entry that may be out of place."""
    n = sim.clock[0].n_running
    j = sim.heap[at]
    while at > 0 and _ends_before(sim, j, sim.heap[(at - 1) // 2]):
        _put(sim, at, sim.heap[(at - 1) // 2])
        at = (at - 1) // 2
    while True:
        child = 2 * at + 1
        if child + 1 < n and _ends_before(sim, sim.heap[child + 1], sim.heap[child]):
            child += 1
        if child >= n or not _ends_before(sim, sim.heap[child], j):
            break
        _put(sim, at, sim.heap[child])
        at = child
    _put(sim, at, j)


@inlined
def push_completion(sim, j):
    """Job j runs until jobs[j].end."""
    c = sim.clock[0]
    sim.heap[c.n_running] = j
    c.n_running += 1
    sim.jobs[j].status = RUNNING
    _sift(sim, c.n_running - 1)


@inlined
def remove_completion(sim, j):
    """Job j ends now, whatever its end was to be."""
    c = sim.clock[0]
    at = sim.jobs[j].heap_pos
    c.n_running -= 1
    sim.jobs[j].heap_pos = -1
    if at < c.n_running:
        sim.heap[at] = sim.heap[c.n_running]
        _sift(sim, at)


@inlined
def next_time(sim):
    """When something happens next; inf: never."""
    c = sim.clock[0]
    t = np.inf
    if c.n_running > 0:
        t = sim.jobs[sim.heap[0]].end
    if c.next_event < c.n_events:
        t = min(t, sim.events[c.next_event].time)
    if c.next_job < c.n_jobs:
        t = min(t, sim.jobs[c.next_job].submit)
    return t


@inlined
def is_stalled(sim):
    """True if some waiting job has quota and enough free GPUs, but no shape."""
    return sim.cap[len(sim.cap) - 1, 1] >= sim.clock[0].stall_gpus


@inlined
def pass_time(sim, t):
    """Move the clock to t; every rate is constant on the way, so the integrals are exact."""
    c = sim.clock[0]
    _take_samples(sim, t)
    dt = t - max(c.now, c.measure_from)
    if dt > 0:
        for k in range(len(sim.classes)):
            klass = sim.classes[k]
            klass.waiting_hours += klass.waiting_gpus * dt
            c.waiting += klass.weight * klass.waiting_gpus * dt
        for k in range(sim.slots.shape[1]):
            sim.slots[1, k] += sim.slots[0, k] * dt
        c.slowdown += c.slow_rate * dt
        c.busy += (c.capacity - c.free_all) * dt
        c.unreachable += (c.free_all - sim.cap[len(sim.cap) - 1, 1]) * dt
        if is_stalled(sim):
            c.stall += dt
    c.now = t


@kernel
def _take_samples(sim, t):
    """Write the rows of the sampling grid that fall between the clock and t (SAMPLE_FIELDS)."""
    c = sim.clock[0]
    while c.next_sample <= t and c.n_samples < len(sim.samples):
        row = sim.samples[c.n_samples]
        whole = 0
        for r in range(len(sim.racks)):
            nodes = sim.racks[r].node1 - sim.racks[r].node0
            whole += int(nodes > 0 and sim.cap[r, sim.cap.shape[1] - 1] == nodes)
        waiting = 0
        for k in range(len(sim.classes)):
            waiting += sim.classes[k].waiting_gpus
        row[0], row[1], row[2] = c.next_sample, sim.cap[len(sim.cap) - 1, 1], whole
        row[3], row[4], row[5], row[6] = waiting, c.hero_waiting, is_stalled(sim), c.capacity - c.free_all
        for k in range(sim.slots.shape[1]):
            row[7 + k] = sim.slots[0, k]
        c.n_samples += 1
        c.next_sample += c.sample_every
