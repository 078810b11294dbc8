"""The future by estimates: when each rack drains, when a slice of it is free, for whom it is kept, and when the job
that racks are kept for (the *target*) could start if shape did not matter.

Durations are never seen here, only estimates; a job that outlives its estimate is predicted to take half as long again.
Forecasts are made on demand and kept until the occupancy of the rack changes or one of its jobs outlives its estimate.
"""

from __future__ import annotations

import numpy as np

from nvlenv.cluster.types import Mode
from nvlenv.common.kernel import inlined, kernel
from nvlenv.simulator.queues import waits_for_quota
from nvlenv.simulator.state import RELEASE_BINS as BINS
from nvlenv.simulator.state import Scratch

REQUIRED = int(Mode.REQUIRED)
OVERDUE_FACTOR = 1.5
SHORTEST_ESTIMATE = 1.0 / 60.0  # h
RELEASED = int(Scratch.RELEASED)
ROOT_LONGEST = 32.0  # roots of hours: what ends in more than 1,024 h is never waited for


@inlined
def predicted_end(sim, j):
    """When the current run of job j ends, by its estimate, re-predicted from its uptime."""
    job, now = sim.jobs[j], sim.clock[0].now
    run = job.predicted - job.start
    while job.start + run <= now:
        run = max(SHORTEST_ESTIMATE, OVERDUE_FACTOR * run)
    return job.start + run


@inlined
def refresh_rack(sim, r):
    """Make the forecast of rack r anew."""
    rack, c, g = sim.racks[r], sim.clock[0], sim.cap.shape[1] - 1
    rack.stale, rack.drain, rack.recheck = 0, c.now, np.inf
    release, count = sim.scratch_float[0], 0
    job, end = -1, 0.0  # met last: the GPUs of a job are side by side
    for n in range(rack.node0, rack.node1):
        node = sim.nodes[n]
        t, first = c.now if node.blocked == 0 else np.inf, np.inf  # when it is wholly free, when a job on it ends
        for slot in range(n * g, n * g + (node.gpus if node.blocked == 0 else 0)):
            j = sim.gpu_job[slot]
            if j >= 0 and j == c.current:  # its slices are not running yet: when they end is not known
                t = np.inf
            elif j >= 0:
                if j != job:
                    job, end = j, predicted_end(sim, j)
                t, first = max(t, end), min(first, end)
        at = count
        while at > 0 and release[at - 1] > t:  # keep the nodes sorted by release
            release[at] = release[at - 1]
            at -= 1
        release[at] = t
        count += 1
        if c.now < t < np.inf:
            rack.drain = max(rack.drain, t)
            rack.recheck = min(rack.recheck, first)
    rack.ready = release[c.target_nodes - 1] if c.target_nodes <= count else np.inf
    if rack.ready <= c.now:
        rack.ready = 0.0  # ready now, and as long as nothing changes


@inlined
def is_sizeable(sim, j):
    """True if job j asks for at least a quarter of a standard slice: one that takes whole nodes from others."""
    return 4 * sim.jobs[j].gpus >= sim.clock[0].slice_nodes * (sim.cap.shape[1] - 1)


@inlined
def urgency(sim, j, patience):
    """Cost weight of job j per hour that it is still going to run, by its estimate, and `patience` hours more.

    Smith's rule ("Various optimizers for single-stage production", 1956): of two jobs that cannot both run, the one
    with more weight per hour goes first. The more patience, the less the run time counts.
    """
    job = sim.jobs[j]
    return sim.classes[job.klass].weight / (job.estimate_error * job.work + patience)


@inlined
def target_size(sim, slices, share):
    """GPUs from which on a waiting job may be the target: those of so many standard slices, else this share of the
    cluster's; both 0: those of a hero."""
    c = sim.clock[0]
    if slices > 0:
        return slices * c.slice_nodes * (sim.cap.shape[1] - 1)
    return int(np.ceil(share * c.capacity)) if share > 0.0 else c.hero_gpus


@inlined
def _find_target(sim, least, patience):
    """The waiting job of at least so many GPUs for which racks are kept: the first in line, or with patience > 0 the
    most urgent one; -1: none."""
    c = sim.clock[0]
    target, most = -1, 0.0
    for k in range(c.n_waiting if c.hero_waiting > 0 or least < c.hero_gpus else 0):
        j = sim.waiting[k]
        if sim.jobs[j].gpus >= least and not waits_for_quota(sim, j):
            if patience <= 0.0:
                return j
            value = urgency(sim, j, patience)
            if value > most:
                target, most = j, value
    return target


@inlined
def refresh_for(sim, least, patience=0.0):
    """Bring every rack's forecast up to date, and the reservation for a waiting job of at least so many GPUs.

    The reservation is EASY backfilling's, for racks: the racks that are ready first, as many as the target needs, are
    reserved until the *shadow time* at which the last of them is ready, all by estimates (Lifka, "The ANL/IBM SP
    scheduling system", 1995). A target of small slices is given whole racks' worth of them. `patience`: see `urgency`;
    0: the target is the first in line, as in EASY.
    """
    c = sim.clock[0]
    target = _find_target(sim, least, patience)
    nodes, needed = _needs(sim, target) if target >= 0 else (c.slice_nodes, 0)
    changed = target != c.target
    if nodes != c.target_nodes:
        c.target_nodes = nodes
        for r in range(len(sim.racks)):
            sim.racks[r].stale = 1
    c.target = target
    for r in range(len(sim.racks)):
        if sim.racks[r].stale == 1 or c.now >= sim.racks[r].recheck:
            refresh_rack(sim, r)
            changed = True
    if changed:
        domain = _reserve_in_time(sim, target, needed)
        c.pool_start = c.shadow  # GPUs anywhere help nobody who wants one block, or who can never start
        if target >= 0 and domain < 0 and c.shadow < np.inf:
            c.pool_start = pool_start(sim, sim.jobs[target].gpus)
    _doubt_current(sim)


@inlined
def pool_start(sim, gpus):
    """When so many GPUs are free anywhere, by estimates, if nothing else starts; inf: never.

    Found to within a hundredth of the time from now, by counting the GPUs that running jobs give back in bins of time,
    then in finer bins of the right one.
    """
    c = sim.clock[0]
    missing = gpus - sim.cap[len(sim.cap) - 1, 1]
    if missing <= 0:
        return c.now
    low, high = 0.0, ROOT_LONGEST
    for _ in range(2):
        missing, b = _find_bin(sim, missing, low, high)
        if b < 0:
            return np.inf
        width = (high - low) / BINS
        low, high = low + b * width, low + (b + 1) * width
    return c.now + high * high


@inlined
def _find_bin(sim, missing, low, high):
    """Bin (of roots of hours from now, between low and high) in which the missing GPUs are given back, and how many are
    missing before it; -1: in none."""
    c, count = sim.clock[0], sim.scratch[RELEASED]
    for b in range(BINS):
        count[b] = 0
    for k in range(c.n_running):
        j = sim.heap[k]
        root = np.sqrt(predicted_end(sim, j) - c.now)
        if low <= root < high:
            count[int((root - low) / (high - low) * BINS)] += sim.jobs[j].gpus
    for b in range(BINS):
        if count[b] >= missing:
            return missing, b
        missing -= count[b]
    return missing, -1


@inlined
def _needs(sim, target):
    """What the target still needs: nodes that make a rack ready for it, and how many such racks."""
    c, job, widest = sim.clock[0], sim.jobs[target], 0
    for r in range(len(sim.racks)):
        widest = max(widest, sim.racks[r].node1 - sim.racks[r].node0)
    slices = c.slices_left if target == c.current else job.slices
    size = -(-job.slice_pods * job.pod_gpus // (sim.cap.shape[1] - 1))  # nodes of one slice
    if size > widest:  # its slices span racks
        return widest, -(-slices * size // widest)
    per_rack = widest // size
    return size * per_rack, -(-slices // per_rack)


@inlined
def _doubt_current(sim):
    """Keep no forecast of racks with slices of the job at hand: when it starts, no occupancy tells them."""
    g, j = sim.cap.shape[1] - 1, sim.clock[0].current
    slot = sim.jobs[j].first_gpu if j >= 0 else -1
    while slot >= 0:
        sim.racks[sim.nodes[slot // g].rack].stale = 1
        slot = sim.gpu_next[slot]


@kernel
def _reserve_in_time(sim, target, needed):
    """Reserve racks for the target. Returns the domain in which it wants them all; -1: they may be anywhere.

    Of several domains (blocks, ...) the one whose racks are ready first, lower index first on ties.
    """
    c, height = sim.clock[0], 0
    if target >= 0 and sim.jobs[target].mode == REQUIRED:
        height = sim.jobs[target].height
    if height == 0:
        _reserve(sim, needed, 0, len(sim.racks))
        return -1
    best, best_shadow = -1, np.inf
    for d in range(sim.level_start[height], sim.level_start[height + 1]):
        _reserve_inside(sim, needed, height, d)
        if best < 0 or c.shadow < best_shadow:
            best, best_shadow = d, c.shadow
    _reserve_inside(sim, needed, height, best)
    return best


@inlined
def _reserve_inside(sim, needed, height, domain):
    """Reserve racks of one domain; they are one contiguous run."""
    first, last = 0, 0
    for r in range(len(sim.racks)):
        if sim.ancestors[r, height] == domain:
            first, last = (r if last == 0 else first), r + 1
    _reserve(sim, needed, first, last)


@inlined
def _reserve(sim, needed, first, last):
    """Reserve the `needed` of racks first <= r < last that are ready first, lower index first on ties."""
    for r in range(len(sim.racks)):
        sim.racks[r].reserved = 0
    sim.clock[0].shadow = np.inf
    for _ in range(needed):
        best = -1
        for r in range(first, last):
            rack = sim.racks[r]
            if rack.reserved == 0 and rack.ready < np.inf and (best < 0 or rack.ready < sim.racks[best].ready):
                best = r
        if best < 0:
            sim.clock[0].shadow = np.inf
            return
        sim.racks[best].reserved = 1
        sim.clock[0].shadow = sim.racks[best].ready
