"""Time passes, and things happen to jobs and nodes.

First the clock: the heap of completions, the next event, and the integrals between two events. Events at one instant
come in a fixed order: completions by job number, then node events in file order, then arrivals.
Then what happens: a job starts, finishes, is evicted or moved; a node fails, is repaired, cordoned, verified.
"""

from __future__ import annotations

import numpy as np

from nvlenv.cluster.collectives import ratio_kernel, speed_kernel
from nvlenv.cluster.types import NodeEventKind
from nvlenv.common.kernel import inlined, kernel
from nvlenv.simulator.occupancy import release, set_node
from nvlenv.simulator.queues import charge, dequeue, enqueue
from nvlenv.simulator.state import DONE, RUNNING, Scratch

FAIL, REPAIR, CORDON = int(NodeEventKind.FAIL), int(NodeEventKind.REPAIR), int(NodeEventKind.CORDON)
VERIFY, VERIFY_END = int(NodeEventKind.VERIFY), int(NodeEventKind.VERIFY_END)
COUNTS, WHERE = int(Scratch.COUNTS), int(Scratch.WHERE)
VERIFY_QUEUE = 0  # verification pods that count are charged to the first queue


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


@inlined
def placement_speed(sim, j):
    """Speed of job j on the GPUs that it holds, relative to the best shape for its size and slice."""
    job, c = sim.jobs[j], sim.clock[0]
    if job.comm == 0.0:
        return 1.0
    g = sim.cap.shape[1] - 1
    counts, where = sim.scratch[COUNTS], sim.scratch[WHERE]
    k = 0
    slot = job.first_gpu
    while slot >= 0:
        r = sim.nodes[slot // g].rack
        at = 0
        while at < k and where[at] != r:
            at += 1
        if at == k:
            counts[k], where[k] = 0, r
            k += 1
        counts[at] += 1
        slot = sim.gpu_next[slot]
    for i in range(1, k):
        share, at = counts[i], i
        while at > 0 and counts[at - 1] < share:
            counts[at] = counts[at - 1]
            at -= 1
        counts[at] = share
    return speed_kernel(ratio_kernel(c.model, counts, k, c.cliff), job.ideal, job.comm)


@inlined
def rank_of(sim, priority):
    """Place of a priority in `sim.evictable`; the first and the last place hold all that are below or above."""
    return min(max(priority, 0), len(sim.evictable) - 1)


@inlined
def run(sim, j):
    """Job j, whose GPUs are all placed, runs from now on until its work is done."""
    job, c = sim.jobs[j], sim.clock[0]
    job.speed = placement_speed(sim, j)
    job.start = c.now
    job.end = c.now + job.work / job.speed
    job.predicted = c.now + job.estimate_error * job.work / job.speed
    job.first_start = min(job.first_start, c.now)
    c.slow_rate += job.gpus * (1.0 - job.speed)
    charge(sim, job.queue, job.gpus)
    if job.preemptible == 1 and job.evictions < c.max_evictions:
        sim.evictable[rank_of(sim, job.priority)] += job.gpus
    push_completion(sim, j)


@inlined
def start(sim, j):
    """A waiting job, whose GPUs are all placed, leaves the waiting list and runs."""
    dequeue(sim, j)
    run(sim, j)


@inlined
def stop(sim, j):
    """Job j stops running and gives its GPUs and quota back."""
    job, c = sim.jobs[j], sim.clock[0]
    remove_completion(sim, j)
    c.slow_rate = c.slow_rate - job.gpus * (1.0 - job.speed) if c.n_running > 0 else 0.0
    charge(sim, job.queue, -job.gpus)
    if job.preemptible == 1 and job.evictions < c.max_evictions:
        sim.evictable[rank_of(sim, job.priority)] -= job.gpus
    release(sim, j)


@inlined
def finish(sim, j):
    """Job j has done all its work."""
    stop(sim, j)
    job = sim.jobs[j]
    job.status, job.finish, job.work = DONE, sim.clock[0].now, 0.0


@inlined
def lost_work(sim, j, keeps_progress):
    """Hours of work that stopping job j now would cost: since its last checkpoint, and the restart."""
    job = sim.jobs[j]
    done = (sim.clock[0].now - job.start) * job.speed
    since = 0.0
    if not keeps_progress and job.checkpoint > 0.0:
        since = done - job.checkpoint * np.floor(done / job.checkpoint) if job.checkpoint < np.inf else done
    return since + job.restart


@kernel
def _lose(sim, j, keeps_progress):
    """Charge job j for being stopped now."""
    job, c = sim.jobs[j], sim.clock[0]
    loss = lost_work(sim, j, keeps_progress)
    job.work += loss - (c.now - job.start) * job.speed
    job.lost += loss
    if c.now >= c.measure_from:
        c.lost += job.gpus * loss


@kernel
def evict(sim, j):
    """Job j is preempted: back to the waiting list with its work since the last checkpoint lost."""
    _lose(sim, j, False)
    stop(sim, j)
    enqueue(sim, j)
    sim.jobs[j].evictions += 1
    sim.clock[0].evictions += 1


@kernel
def lift(sim, j):
    """First half of a move: job j gives up its GPUs and pays the restart. `run` is the second half."""
    _lose(sim, j, True)
    stop(sim, j)
    sim.clock[0].moves += 1


@kernel
def apply_node_event(sim, event):
    """Returns True if capacity grew somewhere."""
    n, kind = event.node, event.kind
    node = sim.nodes[n]
    if kind == FAIL:
        return _fail(sim, n)
    if kind == VERIFY:
        return _verify(sim, n)
    if kind == VERIFY_END:
        return _end_verification(sim, n)
    if kind == CORDON:
        node.cordoned += 1
        set_node(sim, n, node.free, node.blocked + 1)
        return False
    return _unblock(sim, n, kind)


@kernel
def _unblock(sim, n, kind):
    """A repair or an uncordon. One that no failure or cordon went before changes nothing."""
    node = sim.nodes[n]
    if (node.failed if kind == REPAIR else node.cordoned) == 0:
        return False
    if kind == REPAIR:
        node.failed -= 1
    else:
        node.cordoned -= 1
    set_node(sim, n, node.free, node.blocked - 1)
    return node.blocked == 0


@kernel
def _verify(sim, n):
    """A verification pod takes node n if it is idle. If such pods count, node and quota look full to everybody."""
    node, c = sim.nodes[n], sim.clock[0]
    if node.free == node.gpus and node.blocked == 0 and node.verify == 0:
        node.verify = 1
        if c.verify_counted == 1:
            set_node(sim, n, node.free, node.blocked + 1)
            charge(sim, VERIFY_QUEUE, node.gpus)
    return False


@kernel
def _end_verification(sim, n):
    node = sim.nodes[n]
    if node.verify == 0:
        return False
    node.verify = 0
    if sim.clock[0].verify_counted == 0:
        return False
    set_node(sim, n, node.free, node.blocked - 1)
    charge(sim, VERIFY_QUEUE, -node.gpus)
    return True


@kernel
def _fail(sim, n):
    """Every job with a pod on node n ends and requeues; the node takes no pods until its repair."""
    g = sim.cap.shape[1] - 1
    grew = _end_verification(sim, n)
    for slot in range(n * g, n * g + sim.nodes[n].gpus):
        j = sim.gpu_job[slot]
        if j >= 0:
            _lose(sim, j, False)
            stop(sim, j)
            enqueue(sim, j)
            sim.clock[0].failures += 1
            grew = True
    sim.nodes[n].failed += 1
    set_node(sim, n, sim.nodes[n].free, sim.nodes[n].blocked + 1)
    return grew
