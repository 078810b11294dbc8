"""What a learned policy sees: the feature schema and the kernel that fills it.

Three float32 arrays: `racks` (R, F), `job` (J,) and `cluster` (C,). Racks are kept, as by EASY's rule, for one waiting
job, the *target*: the most urgent one of at least a standard slice (`nvlenv.simulator.forecast.urgency`).

Scaling is fixed by the schema, so there are no statistics to lose, and every value is rounded to a grid of 1/4096, so
that the last bit of a logarithm never decides. A policy file records `SCHEMA_VERSION` and the feature names; a file of
another version is refused.
"""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvlenv.common.kernel import inlined, kernel
from nvlenv.simulator.feasibility import block_of_job, may_wait_for_domain
from nvlenv.simulator.forecast import is_sizeable, refresh_for, urgency
from nvlenv.simulator.preemption import price_opens

SCHEMA_VERSION = 2
GRID = 4096.0
PATIENCE = 20.0  # h, of the urgency by which the target is found
HEAVIEST = 4.0  # cost weight at which scales end
LONGEST = 400.0  # h; log times are scaled so that this is 1
LOG_LONGEST = float(np.log1p(LONGEST))
UNIT = (0.0, 1.0)
SIGNED = (-1.0, 1.0)


@dataclass(frozen=True)
class Feature:
    """One number of the observation."""

    name: str
    range: tuple[float, float]
    meaning: str


RACK_FEATURES: tuple[Feature, ...] = (
    Feature("exists", UNIT, "1 for a rack, 0 for padding"),
    Feature("free", UNIT, "free GPUs / GPUs of the rack"),
    Feature("whole", UNIT, "wholly free nodes / nodes"),
    Feature("part", UNIT, "part-used nodes / nodes"),
    Feature("usable", UNIT, "nodes that are neither failed nor cordoned / nodes"),
    Feature("can_place", UNIT, "1 if place[r] is legal"),
    Feature("can_open", UNIT, "1 if open[r] is legal"),
    Feature("fits", UNIT, "share of the present slice that fits here"),
    Feature("left", UNIT, "free GPUs after placing / GPUs of the rack"),
    Feature("room_left", UNIT, "GPUs that pods of this job could still take after placing / GPUs of the rack"),
    Feature("in_block", UNIT, "1 if it is in the tightest domain that holds the rest of the job"),
    Feature("exact", UNIT, "1 if placing leaves no whole node"),
    Feature("breaks_slot", UNIT, "standard slices lost by placing"),
    Feature("breaks_half", UNIT, "half slices lost by placing / 2"),
    Feature("breaks_quarter", UNIT, "quarter slices lost by placing / 4"),
    Feature("empty", UNIT, "1 if all usable nodes are free"),
    Feature("missing", UNIT, "nodes missing to a standard slice / its nodes"),
    Feature("drain", UNIT, "log time until the last job ends, by estimates"),
    Feature("extends", UNIT, "log time by which this job would extend that"),
    Feature("gap", UNIT, "log time between this job's end and that"),
    Feature("ready", UNIT, "log time until a slice (the target's, else the standard one) is free, by estimates"),
    Feature("open_gpus", UNIT, "GPUs that open[r] evicts or moves / GPUs of the rack, at most 1"),
    Feature("open_lost", UNIT, "log GPU-hours that open[r] loses"),
    Feature("here", UNIT, "GPUs of this job already in the rack / GPUs of the rack"),
    Feature("reserved", UNIT, "1 if kept for the target, by EASY's rule"),
    Feature("delays_target", SIGNED, "signed log time by which this job would outlast the target's start, if reserved"),
    Feature("conflicts", UNIT, "1 if reserved and this job would, by estimates, delay the target"),
)

JOB_FEATURES: tuple[Feature, ...] = (
    Feature("present", UNIT, "1 if a job is at hand"),
    Feature("gpus", UNIT, "log2 of all its GPUs / 12"),
    Feature("pods_left", UNIT, "log2 (1 + pods of the present slice still to place) / 12"),
    Feature("units_left", UNIT, "log2 (1 + slices still to place) / 6"),
    Feature("begun", UNIT, "1 if part of it is already placed"),
    Feature("unconstrained", UNIT, "1 if its mode is unconstrained"),
    Feature("preferred", UNIT, "1 if preferred"),
    Feature("required", UNIT, "1 if required"),
    Feature("sub_node", UNIT, "1 if its pods are smaller than a node"),
    Feature("spread", UNIT, "1 if its present slice must span racks"),
    Feature("no_shape", UNIT, "1 if it does not fit by shape, so that only open or hold are left"),
    Feature("priority", UNIT, "priority / 4"),
    Feature("weight", UNIT, "cost weight of its waiting GPU-hours / 4"),
    Feature("estimate", UNIT, "log of its estimated work left"),
    Feature("waited", UNIT, "log of its wait so far"),
    Feature("comm", UNIT, "share of a step spent in communication"),
    Feature("hero", UNIT, "1 if it is a hero"),
    Feature("fixed", UNIT, "1 if it can be neither preempted nor moved once placed"),
    Feature("target", UNIT, "1 if it is the target"),
    Feature("urgency", UNIT, "its urgency / that of a job of weight 4 about to end"),
    Feature(
        "outlasts",
        SIGNED,
        "signed log time by which it would outlast the target's start in its racks, if it is another job",
    ),
    Feature("outlasts_pool", SIGNED, "the same for the target's start on any GPUs"),
    Feature("drains", UNIT, "outlasts_pool, if positive and the job asks for a quarter slice or more"),
    Feature("patience", UNIT, "1 - log of its wait, if it must spread now and might fit one domain of its level later"),
)

CLUSTER_FEATURES: tuple[Feature, ...] = (
    Feature("free", UNIT, "free GPUs / GPUs"),
    Feature("whole", UNIT, "wholly free nodes / nodes"),
    Feature("slots", UNIT, "standard slices free / racks"),
    Feature("half_slots", UNIT, "half slices free / racks / 2"),
    Feature("ready_racks", UNIT, "racks with a free slice (the target's, else the standard one) / racks"),
    Feature("waiting", UNIT, "log2 (1 + waiting GPUs / GPUs)"),
    Feature("weighted", UNIT, "log2 (1 + weighted waiting GPUs / GPUs) / 3"),
    Feature("queue", UNIT, "log2 (1 + waiting jobs) / 12"),
    Feature("stalled", UNIT, "1 during fragmentation stall"),
    Feature("slow", UNIT, "GPUs lost to slowdown / GPUs"),
    Feature("target_waits", UNIT, "1 if there is a target"),
    Feature("target_gpus", UNIT, "its GPUs / GPUs"),
    Feature("target_waited", UNIT, "log of its wait so far"),
    Feature("target_shortfall", UNIT, "racks it lacks / racks it still needs"),
    Feature("target_shadow", UNIT, "log time until it can start in its racks, by estimates; 1 if never"),
    Feature("target_pool", UNIT, "log time until it could start on any GPUs"),
    Feature("target_lacks", UNIT, "free GPUs it lacks / its GPUs"),
    Feature("target_urgency", UNIT, "its urgency, as that of the job at hand"),
    Feature("heroes", UNIT, "GPUs of all waiting heroes / GPUs, at most 1"),
)

N_RACK, N_JOB, N_CLUSTER = len(RACK_FEATURES), len(JOB_FEATURES), len(CLUSTER_FEATURES)


def schema() -> dict[str, Any]:
    """The observation and action layout that a policy file must have been made for."""
    return {
        "version": SCHEMA_VERSION,
        "racks": [f.name for f in RACK_FEATURES],
        "job": [f.name for f in JOB_FEATURES],
        "cluster": [f.name for f in CLUSTER_FEATURES],
        "actions": ["place[R]", "open[R]", "fill", "hold"],
    }


def _positions(kind: str, features: tuple[Feature, ...]) -> Any:
    """The place of every feature in its array, by name; to numba a tuple of constants."""
    names = [feature.name for feature in features]
    return namedtuple(kind, names)(*range(len(names)))  # type: ignore[misc]


RACK = _positions("RackPositions", RACK_FEATURES)
JOB = _positions("JobPositions", JOB_FEATURES)
CLUSTER = _positions("ClusterPositions", CLUSTER_FEATURES)


@inlined
def _grid(x):
    return np.floor(min(1.0, max(-1.0, x)) * GRID + 0.5) / GRID


@inlined
def _log_time(hours):
    if hours <= 0.0:  # most of them: without a logarithm
        return 0.0
    return np.log1p(hours) / LOG_LONGEST if hours < LONGEST else 1.0


@inlined
def _signed_log_time(hours):
    return _log_time(hours) if hours >= 0.0 else -_log_time(-hours)


@inlined
def _urgency(sim, j):
    return urgency(sim, j, PATIENCE) * PATIENCE / HEAVIEST


@inlined
def _log2(x, top):
    return np.log2(1.0 + x) / top


@kernel
def observe(sim, racks, job, cluster):
    """Fill the three arrays for the decision at hand (or for none, at the end of a window)."""
    refresh_for(sim, sim.clock[0].slice_nodes * (sim.cap.shape[1] - 1), PATIENCE)
    c, j = sim.clock[0], sim.clock[0].current
    for k in range(N_JOB):
        job[k] = 0.0
    estimate = 0.0
    if j >= 0:
        estimate = sim.jobs[j].estimate_error * sim.jobs[j].work
        _observe_job(sim, j, estimate, job)
        price_opens(sim)
    _observe_racks(sim, j, estimate, block_of_job(sim) if j >= 0 else (0, 0), racks)
    ready = 0
    for r in range(len(sim.racks)):
        ready += int(sim.racks[r].ready <= c.now)
    _observe_cluster(sim, ready, cluster)


@inlined
def _observe_racks(sim, j, estimate, block, racks):
    """`block`: (height, domain) that holds the rest of the job.

    One loop over the racks, not a kernel for each: passing the simulator takes as long as filling a row.
    """
    c, n, g = sim.clock[0], len(sim.racks), sim.cap.shape[1] - 1
    p = sim.jobs[j].pod_gpus if j >= 0 else 1
    per_node = g // p
    for r in range(n):
        for k in range(N_RACK):
            racks[r, k] = 0.0
    _count_gpus_here(sim, j, racks)
    for r in range(n):
        rack, out = sim.racks[r], racks[r]
        nodes = rack.node1 - rack.node0
        if nodes == 0:
            continue
        gpus, whole, free, fit = float(nodes * g), sim.cap[r, g], sim.cap[r, 1], sim.cap[r, p]
        pods = min(c.pods_left, fit) if j >= 0 else 0
        # Sub-node pods go to part-used nodes first: only what these cannot hold takes whole nodes.
        takes = -(-max(0, pods - (fit - whole * per_node)) // per_node)
        out[RACK.exists], out[RACK.free], out[RACK.whole] = 1.0, free / gpus, whole / nodes
        out[RACK.part], out[RACK.usable] = rack.part / nodes, rack.usable / nodes
        out[RACK.can_place], out[RACK.can_open] = int(sim.mask[r]), int(sim.mask[n + r])
        out[RACK.fits] = pods / c.pods_left if j >= 0 else 0.0
        out[RACK.left], out[RACK.room_left] = (free - pods * p) / gpus, (fit - pods) * p / gpus
        out[RACK.in_block] = int(j >= 0 and sim.ancestors[r, block[0]] == block[1])
        out[RACK.exact] = int(whole == takes)
        for k in range(3 if takes > 0 else 0):  # slot, half, quarter
            size = max(1, c.slice_nodes >> k)
            out[RACK.breaks_slot + k] = (whole // size - (whole - takes) // size) / (1 << k)
        out[RACK.empty] = int(whole == rack.usable and whole > 0)
        out[RACK.missing] = max(0, c.slice_nodes - whole) / c.slice_nodes
        drain, end = rack.drain - c.now, estimate
        out[RACK.drain], out[RACK.extends] = _log_time(drain), _log_time(end - max(drain, 0.0))
        out[RACK.gap], out[RACK.ready] = _log_time(drain - end), _log_time(rack.ready - c.now)
        if sim.mask[n + r]:
            out[RACK.open_gpus], out[RACK.open_lost] = sim.open_gpus[r] / gpus, _log_time(sim.open_lost[r])
        out[RACK.here] /= gpus
        out[RACK.reserved] = rack.reserved
        if rack.reserved == 1 and c.shadow < np.inf:
            over = end - max(0.0, c.shadow - c.now)
            out[RACK.delays_target] = _signed_log_time(over)
            out[RACK.conflicts] = int(over > 0.0 and j != c.target)
    for r in range(n):
        for k in range(N_RACK):
            racks[r, k] = _grid(racks[r, k])


@inlined
def _count_gpus_here(sim, j, racks):
    """GPUs that the job at hand already has in each rack, along the chain of its GPUs."""
    g, slot = sim.cap.shape[1] - 1, sim.jobs[j].first_gpu if j >= 0 else -1
    while slot >= 0:
        racks[sim.nodes[slot // g].rack, RACK.here] += 1.0
        slot = sim.gpu_next[slot]


@inlined
def _observe_job(sim, j, estimate, out):
    c, job, g = sim.clock[0], sim.jobs[j], sim.cap.shape[1] - 1
    out[JOB.present], out[JOB.gpus] = 1.0, np.log2(float(job.gpus)) / 12.0
    out[JOB.pods_left], out[JOB.units_left] = _log2(c.pods_left, 12.0), _log2(c.slices_left, 6.0)
    out[JOB.begun] = int(job.first_gpu >= 0)
    out[JOB.unconstrained + job.mode] = 1.0  # the next two are the other modes
    out[JOB.sub_node], out[JOB.spread], out[JOB.no_shape] = int(job.pod_gpus < g), int(c.reach > 0), int(c.reach < 0)
    out[JOB.priority], out[JOB.weight] = max(0, job.priority) / 4.0, sim.classes[job.klass].weight / HEAVIEST
    out[JOB.estimate], out[JOB.waited] = _log_time(estimate), _log_time(job.waited + c.now - job.queued)
    out[JOB.comm], out[JOB.hero] = job.comm, int(job.gpus >= c.hero_gpus)
    out[JOB.fixed] = int(job.preemptible == 0 and job.movable == 0)
    out[JOB.target], out[JOB.urgency] = int(j == c.target), _urgency(sim, j)
    if c.target >= 0 and c.target != j:
        out[JOB.outlasts] = _signed_log_time(estimate - max(0.0, c.shadow - c.now))
        out[JOB.outlasts_pool] = _signed_log_time(estimate - max(0.0, c.pool_start - c.now))
        out[JOB.drains] = max(0.0, out[JOB.outlasts_pool]) if is_sizeable(sim, j) else 0.0
    if may_wait_for_domain(sim):
        out[JOB.patience] = 1.0 - out[JOB.waited]
    for k in range(N_JOB):
        out[k] = _grid(out[k])


@inlined
def _observe_cluster(sim, ready, out):
    c, g, root = sim.clock[0], sim.cap.shape[1] - 1, len(sim.cap) - 1
    racks = 0
    for r in range(len(sim.racks)):
        racks += int(sim.racks[r].node1 > sim.racks[r].node0)
    waiting, weighted = 0, 0.0
    for k in range(len(sim.classes)):
        waiting += sim.classes[k].waiting_gpus
        weighted += sim.classes[k].weight * sim.classes[k].waiting_gpus
    slots, halves = 0, 0
    for r in range(len(sim.racks)):
        slots += sim.cap[r, g] // c.slice_nodes
        halves += sim.cap[r, g] // max(1, c.slice_nodes // 2)
    capacity = float(c.capacity)
    for k in range(N_CLUSTER):
        out[k] = 0.0
    out[CLUSTER.free], out[CLUSTER.whole] = sim.cap[root, 1] / capacity, sim.cap[root, g] * g / capacity
    out[CLUSTER.slots], out[CLUSTER.half_slots] = slots / racks, halves / racks / 2.0
    out[CLUSTER.ready_racks] = ready / racks
    out[CLUSTER.waiting], out[CLUSTER.weighted] = _log2(waiting / capacity, 1.0), _log2(weighted / capacity, 3.0)
    out[CLUSTER.queue] = _log2(c.n_waiting, 12.0)
    out[CLUSTER.stalled] = int(sim.cap[root, 1] >= c.stall_gpus)
    out[CLUSTER.slow] = c.slow_rate / capacity
    if c.target >= 0:
        target = sim.jobs[c.target]
        share = c.slices_left / target.slices if c.target == c.current else 1.0
        needed = max(1.0, share * target.gpus / (c.target_nodes * g))
        out[CLUSTER.target_waits], out[CLUSTER.target_gpus] = 1.0, target.gpus / capacity
        out[CLUSTER.target_waited] = _log_time(target.waited + c.now - target.queued)
        out[CLUSTER.target_shortfall] = max(0.0, needed - ready) / needed
        out[CLUSTER.target_shadow] = _log_time(c.shadow - c.now)
        out[CLUSTER.target_pool] = _log_time(c.pool_start - c.now)
        out[CLUSTER.target_lacks] = max(0.0, 1.0 - sim.cap[root, 1] / target.gpus)
        out[CLUSTER.target_urgency] = _urgency(sim, c.target)
    out[CLUSTER.heroes] = c.hero_waiting / capacity
    for k in range(N_CLUSTER):
        out[k] = _grid(out[k])
