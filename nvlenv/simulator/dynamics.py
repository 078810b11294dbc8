"""What happens to jobs and nodes: start, finish, evict, move, fail."""

from __future__ import annotations

import numpy as np

from nvlenv.collectives import ratio_kernel, speed_kernel
from nvlenv.kernel import inlined, kernel
from nvlenv.simulator.clock import push_completion, remove_completion
from nvlenv.simulator.occupancy import release, set_node
from nvlenv.simulator.queues import charge, dequeue, enqueue
from nvlenv.simulator.state import DONE, Row
from nvlenv.types import NodeEventKind

FAIL, REPAIR, CORDON = int(NodeEventKind.FAIL), int(NodeEventKind.REPAIR), int(NodeEventKind.CORDON)
VERIFY, VERIFY_END = int(NodeEventKind.VERIFY), int(NodeEventKind.VERIFY_END)
COUNTS, WHERE = int(Row.COUNTS), int(Row.WHERE)
VERIFY_QUEUE = 0  # verification pods that count are charged to the first queue


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
def run(sim, j):
    """Job j, whose GPUs are all placed, runs from now on until its work is done."""
    job, c = sim.jobs[j], sim.clock[0]
    job.speed = placement_speed(sim, j)
    job.start = c.now
    job.end = c.now + job.work / job.speed
    job.predicted = c.now + job.noise * job.work / job.speed
    job.first_start = min(job.first_start, c.now)
    c.slow_rate += job.gpus * (1.0 - job.speed)
    charge(sim, job.queue, job.gpus)
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
    release(sim, j)


@inlined
def finish(sim, j):
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
