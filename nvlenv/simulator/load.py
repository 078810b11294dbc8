"""A simulator is filled: cluster, rules, queues and workload go into its arrays, the clock at 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nvlenv.cluster.collectives import MODELS, ideal_ratio_kernel
from nvlenv.cluster.types import ClusterSpec, CohortSpec, NodeEvents, QueueSpec, Workload
from nvlenv.common.errors import InputError
from nvlenv.common.kernel import compiled
from nvlenv.simulator.state import (
    ANY,
    CLASS,
    CLOCK,
    COHORT,
    JOB,
    LOWER,
    NEVER,
    NO_DEMAND,
    NO_PRIORITY,
    NODE,
    PRIORITY,
    QUEUE,
    RACK,
    SHAPE,
    SLOT_SIZES,
    Sim,
)

PREEMPTION = {"never": NEVER, "shape": SHAPE, "priority": PRIORITY}
WHOM = {"Never": NEVER, "LowerPriority": LOWER, "Any": ANY, "LowerOrNewerEqualPriority": ANY}


@dataclass(frozen=True)
class Rules:
    """The settings of one simulator that are neither cluster nor workload."""

    horizon: float  # h
    measure_from: float = 0.0  # h
    sample_every: float = 1.0  # h
    collective: str = "recursive-doubling"
    slice_nodes: int = 16
    hero_share: float = 0.25
    max_evictions: int = 3
    allow_open: bool = True
    preemption: str = "shape"  # a key of PREEMPTION
    allow_fill: bool = True
    allow_hold: bool = True
    verify_counted: bool = False
    evict_whole_rack: bool = False


def load(
    sim: Sim,
    cluster: ClusterSpec,
    workload: Workload,
    rules: Rules,
    weights: Sequence[float],
    queues: Sequence[QueueSpec] = (),
    events: NodeEvents | None = None,
    cohorts: Sequence[CohortSpec] = (),
) -> None:
    """Fill one simulator (a view) with an empty cluster and a workload, the clock at 0.

    `weights` (K,) price a waiting GPU-hour of each job class. No queues: one queue with the whole cluster.
    Raises `InputError` if the workload has queues or classes that are not described or pods larger than any node, and
    if the simulator was allocated for nodes of another size.
    """
    g = cluster.gpus_per_node
    if g != sim.cap.shape[1] - 1:
        raise InputError("cluster", "gpus_per_node", g, f"{sim.cap.shape[1] - 1}, as in all simulators of the batch")
    if workload.gpus_per_pod.max(initial=0) > g:
        job = int(np.argmax(workload.gpus_per_pod))
        found = int(workload.gpus_per_pod[job])
        raise InputError(
            workload.source, f"job {job}, gpus_per_pod", found, f"at most {g}, the GPUs of the largest node"
        )
    if len(weights) < len(workload.class_names):
        raise InputError(workload.source, "weights", f"{len(weights)} weights", f"{len(workload.class_names)} classes")
    _load_cluster(sim, cluster)
    _load_rules(sim, cluster, rules, len(workload), 0 if events is None else len(events.time))
    _load_queues(sim, cluster, workload, queues, cohorts)
    sim.evictable[:] = 0
    sim.classes[:] = np.zeros(1, CLASS)
    sim.classes["weight"][: len(weights)] = weights
    if events is not None:
        for name, column in (("time", events.time), ("node", events.node), ("kind", events.kind)):
            sim.events[name][: len(column)] = column
    load_jobs(sim, cluster, workload)
    _load_mix(sim, len(workload))


def _load_cluster(sim: Sim, cluster: ClusterSpec) -> None:
    g = sim.cap.shape[1] - 1
    m, r = cluster.nodes, cluster.racks
    sim.nodes[:] = np.zeros(1, NODE)
    nodes, racks = sim.nodes[:m], sim.racks[:r]
    nodes["rack"], nodes["gpus"], nodes["free"] = cluster.node_rack, cluster.node_gpus, cluster.node_gpus
    nodes["blocked"] = nodes["cordoned"] = cluster.cordoned
    slots = np.full((len(sim.nodes), g), -2, np.int32)
    slots[:m][np.arange(g) < cluster.node_gpus[:, None]] = -1
    sim.gpu_job[:] = slots.reshape(-1)
    sim.gpu_next[:] = -1

    sim.racks[:] = np.zeros(1, RACK)
    sim.racks["drain"], sim.racks["ready"], sim.racks["recheck"] = 0.0, np.inf, np.inf
    racks["node0"] = np.searchsorted(cluster.node_rack, np.arange(r), side="left")
    racks["node1"] = np.searchsorted(cluster.node_rack, np.arange(r), side="right")
    racks["usable"] = np.bincount(cluster.node_rack[~cluster.cordoned], minlength=r)
    sim.racks["opened"], sim.racks["stale"] = -1, 1

    # Domains are numbered racks first (padded ones included), then level by level upwards, the whole cluster last.
    heights = sim.ancestors.shape[1]
    sim.ancestors[:, 0] = np.arange(len(sim.racks))
    first = len(sim.racks)
    sim.level_start[0], sim.level_start[1] = 0, first
    for height in range(1, heights):
        parents = cluster.rack_parents[:, -height] if height <= cluster.rack_parents.shape[1] else np.zeros(r, np.int32)
        if height == heights - 1:  # the last domain, also where padding leaves others unused
            first = sim.level_start[height] = len(sim.cap) - 1
        sim.ancestors[:, height] = first
        sim.ancestors[:r, height] = first + parents
        first += int(parents.max(initial=0)) + 1
        sim.level_start[height + 1] = first
    sim.cap[:] = 0
    free = np.where(nodes["blocked"] == 0, nodes["free"], 0)
    for p in range(1, g + 1):
        for height in range(heights):
            np.add.at(sim.cap[:, p], sim.ancestors[cluster.node_rack, height], free // p)
    sim.slots[:] = 0.0
    for k, size in enumerate(SLOT_SIZES):
        sim.slots[0, k] = np.sum(sim.cap[:r, g] // size)


def _load_rules(sim: Sim, cluster: ClusterSpec, rules: Rules, jobs: int, events: int) -> None:
    sim.clock[:] = np.zeros(1, CLOCK)
    c = sim.clock[0]
    c["horizon"], c["measure_from"], c["sample_every"] = rules.horizon, rules.measure_from, rules.sample_every
    c["cliff"], c["model"] = cluster.cliff, MODELS[rules.collective]
    c["rack_gpus"] = np.bincount(cluster.node_rack, cluster.node_gpus, minlength=1).max()
    c["capacity"], c["slice_nodes"] = cluster.gpus, rules.slice_nodes
    c["hero_gpus"] = max(1, int(np.ceil(rules.hero_share * cluster.gpus)))
    c["max_evictions"], c["allow_open"], c["allow_fill"] = rules.max_evictions, rules.allow_open, rules.allow_fill
    c["allow_hold"], c["preemption"] = rules.allow_hold, PREEMPTION[rules.preemption]
    c["victim_urgency"], c["victim_priority"] = np.inf, NO_PRIORITY
    c["verify_counted"], c["evict_whole_rack"] = rules.verify_counted, rules.evict_whole_rack
    c["n_jobs"], c["n_events"] = jobs, events
    c["current"], c["scope"], c["reach"], c["target"] = -1, -1, -1, -1
    c["target_nodes"], c["shadow"], c["pool_start"] = rules.slice_nodes, np.inf, np.inf
    c["free_all"], c["stall_gpus"] = cluster.gpus, NO_DEMAND
    sim.mask[:] = False


def cohorts_of(queues: Sequence[QueueSpec], cohorts: Sequence[CohortSpec]) -> list[str]:
    """The nodes of the cohort trees: cohorts by name, and one for each queue that has none."""
    parents = {spec.parent for spec in cohorts if spec.parent}
    return sorted({q.cohort or f"queue:{q.name}" for q in queues} | {spec.name for spec in cohorts} | parents)


def _load_queues(
    sim: Sim, cluster: ClusterSpec, workload: Workload, queues: Sequence[QueueSpec], cohorts: Sequence[CohortSpec]
) -> None:
    queues = queues or [QueueSpec(name, cluster.gpus) for name in workload.queue_names]
    if tuple(q.name for q in queues) != workload.queue_names:
        names = [q.name for q in queues]
        raise InputError(workload.source, "queue", list(workload.queue_names), f"the scenario's queues {names}")
    names, described = cohorts_of(queues, cohorts), {spec.name: spec for spec in cohorts}
    sim.queues[:], sim.cohorts[:] = np.zeros(1, QUEUE), np.zeros(1, COHORT)
    sim.cohorts["parent"], sim.cohorts["limit"] = -1, NO_DEMAND
    for name, cohort in described.items():
        for upper in _above(name, described):
            sim.cohorts[names.index(upper)]["nominal"] += cohort.nominal
        if cohort.parent:
            sim.cohorts[names.index(name)]["parent"] = names.index(cohort.parent)
    for q, spec in zip(sim.queues, queues, strict=False):
        above = _above(spec.cohort or f"queue:{spec.name}", described)
        limit = spec.nominal + spec.borrowing_limit if spec.borrowing_limit >= 0 else NO_DEMAND
        q["nominal"], q["limit"], q["cohort"], q["strict"] = spec.nominal, limit, names.index(above[0]), spec.strict
        q["within"], q["reclaim"] = WHOM[spec.within], WHOM[spec.reclaim]
        q["borrow_within"], q["borrow_priority"] = WHOM[spec.borrow_within], spec.borrow_priority
        q["blocker_epoch"] = -1
        for upper in above:
            sim.cohorts[names.index(upper)]["nominal"] += spec.nominal
    lent = len(names) < len(queues) or bool(cohorts)
    sim.clock["any_victims"] = any(
        q.within == "LowerOrNewerEqualPriority" or (lent and q.reclaim == "Any") for q in queues
    )
    for row, name in zip(sim.cohorts, names, strict=False):
        borrowed = described[name].borrowing_limit if name in described and row["parent"] >= 0 else 0
        if borrowed >= 0:
            row["limit"] = row["nominal"] + borrowed


def _above(cohort: str, specs: Mapping[str, CohortSpec]) -> list[str]:
    """The cohort and all above it. Raises `InputError` for one that is above itself."""
    found = [cohort]
    while found[-1] in specs and specs[found[-1]].parent:
        found.append(specs[found[-1]].parent)
        if found[-1] in found[:-1]:
            raise InputError("cohorts", cohort, " -> ".join(found), "a tree")
    return found


def load_jobs(sim: Sim, cluster: ClusterSpec, w: Workload) -> None:
    """Write the jobs of a workload, none of them submitted yet, over those of the simulator."""
    n = len(w)
    jobs = sim.jobs[:n]
    jobs[:] = np.zeros(1, JOB)
    jobs["submit"], jobs["duration"], jobs["work"] = w.submit, w.duration, w.duration
    jobs["estimate_error"] = np.where(w.duration > 0, w.estimate / np.where(w.duration > 0, w.duration, 1.0), 1.0)
    jobs["comm"], jobs["checkpoint"], jobs["restart"] = w.comm_fraction, w.checkpoint_interval, w.restart_time
    jobs["gpus"], jobs["pod_gpus"] = w.gpus, w.gpus_per_pod
    slices = np.where((w.mode == 2) & (w.slice_gpus > 0), w.slice_gpus, w.gpus)
    jobs["slice_pods"], jobs["slices"] = slices // w.gpus_per_pod, w.gpus // slices
    jobs["priority"], jobs["queue"], jobs["klass"] = w.priority, w.queue, w.job_class
    jobs["mode"], jobs["height"] = w.mode, np.minimum(w.height, sim.ancestors.shape[1] - 1)
    jobs["preemptible"], jobs["preempts"], jobs["movable"] = w.preemptible, w.preempts, w.movable
    jobs["held"], jobs["seen"], jobs["first_gpu"], jobs["heap_pos"] = -1, -1, -1, -1
    jobs["first_start"], jobs["finish"] = np.inf, np.inf
    _fill_ideal(
        jobs, w.slice_gpus.astype(np.int64), int(sim.clock[0]["model"]), int(sim.clock[0]["rack_gpus"]), cluster.cliff
    )


def _load_mix(sim: Sim, n: int) -> None:
    """The usual mix, for rules that ask what the next job could use: how often the workload has jobs of each shape.

    Counted are the pods that want to share a rack: those of a slice, or one by one if the job asks for no rack.
    """
    jobs, most = sim.jobs[:n], sim.mix.shape[1]
    together = np.where((jobs["mode"] == 0) | (jobs["height"] > 0), 1, jobs["slice_pods"])
    share = np.zeros((len(sim.mix), most + 1))
    np.add.at(share, (jobs["pod_gpus"], np.minimum(together, most)), 1.0 / max(1, n))
    sim.mix[:] = np.cumsum(share[:, :0:-1], axis=1)[:, ::-1]


@compiled
def _fill_ideal(jobs, slice_gpus, model, rack_gpus, cliff):
    """The communication ratio of every job's best shape; the same few sizes come again and again."""
    largest = 0
    for j in range(len(jobs)):
        largest = max(largest, jobs[j].gpus)
    scratch = np.zeros(2 * largest // rack_gpus + 1, np.int64)
    known = {}
    for j in range(len(jobs)):
        key = (jobs[j].gpus, slice_gpus[j])
        if jobs[j].comm == 0.0:
            jobs[j].ideal = 1.0
        elif key in known:
            jobs[j].ideal = known[key]
        else:
            jobs[j].ideal = ideal_ratio_kernel(model, jobs[j].gpus, slice_gpus[j], rack_gpus, cliff, scratch)
            known[key] = jobs[j].ideal
