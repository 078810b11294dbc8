"""Random simulations: a cluster, jobs, queues, node events and rules, drawn small so that they collide."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st

from nvlenv.cluster.types import ClusterSpec, CohortSpec, Mode, NodeEvents, QueueSpec, Workload
from nvlenv.simulator.load import Rules, load
from nvlenv.simulator.state import Dims, Sim, allocate

INF = float("inf")
SAMPLES = 48  # rows; longer windows fill them up
CLASSES = 3


@dataclass(frozen=True)
class Case:
    """All that a simulator is filled with, and `picks` that choose its actions."""

    cluster: ClusterSpec
    workload: Workload
    rules: Rules
    weights: tuple[float, ...]
    queues: tuple[QueueSpec, ...]
    events: NodeEvents
    cohorts: tuple[CohortSpec, ...]
    neighbour: ClusterSpec  # shares the batch, so that the arrays are large enough for both
    picks: tuple[int, ...]

    def dims(self) -> Dims:
        jobs, events = len(self.workload), len(self.events.time)
        return Dims.of(self.cluster, jobs, len(self.queues), CLASSES, events, SAMPLES, 2 * len(self.cohorts)).union(
            Dims.of(self.neighbour, 5, 2, CLASSES, 3, SAMPLES)
        )

    def load(self, sim: Sim | None = None) -> Sim:
        """The kernel's simulator at the start of this case."""
        sim = empty_sim(self.dims()) if sim is None else sim
        load(sim, self.cluster, self.workload, self.rules, self.weights, self.queues, self.events, self.cohorts)
        return sim


def empty_sim(dims: Dims) -> Sim:
    """One simulator's arrays, to be loaded."""
    return Sim(*(array[0] for array in allocate(1, dims)))


def make_cluster(racks: list[list[int]], parents: list[list[int]] | None = None, cordoned: Any = ()) -> ClusterSpec:
    """A cluster of racks that list the GPUs of their nodes; `parents` one list per rack, coarse to fine."""
    sizes = [len(rack) for rack in racks]
    parents = parents or [[] for _ in racks]
    return ClusterSpec(
        levels=(*(f"level-{k}" for k in range(len(parents[0]))), "rack", "hostname"),
        rack_names=tuple(f"rack-{r}" for r in range(len(racks))),
        rack_parents=np.array(parents, np.int32).reshape(len(racks), len(parents[0])),
        node_names=tuple(f"node-{n:02d}" for n in range(sum(sizes))),
        node_rack=np.repeat(np.arange(len(racks)), sizes).astype(np.int32),
        node_gpus=np.array([gpus for rack in racks for gpus in rack], np.int32),
        cordoned=np.isin(np.arange(sum(sizes)), cordoned),
    )


def make_workload(jobs: list[dict[str, Any]], queues: tuple[str, ...] = ("default",)) -> Workload:
    """Jobs from what is special about each of them, sorted by submit."""
    plain = {
        "submit": 0.0, "gpus": 1, "gpus_per_pod": 1, "mode": Mode.UNCONSTRAINED, "height": 0, "slice_gpus": 0,
        "duration": 10.0, "estimate": 10.0, "comm_fraction": 0.0, "priority": 0, "queue": 0, "job_class": 0,
        "preemptible": False, "preempts": True, "movable": False, "checkpoint_interval": INF, "restart_time": 0.0,
    }  # fmt: skip
    dtypes = {"mode": np.int8, "height": np.int8, "preemptible": np.bool_, "preempts": np.bool_, "movable": np.bool_}
    hours = ("submit", "duration", "estimate", "comm_fraction", "checkpoint_interval", "restart_time")
    dtypes |= dict.fromkeys(hours, np.float64)
    rows = [{**plain, **job} for job in sorted(jobs, key=lambda job: job.get("submit", 0.0))]
    columns = {name: np.array([row[name] for row in rows], dtypes.get(name, np.int32)) for name in plain}
    names = tuple(f"class-{k}" for k in range(CLASSES))
    return Workload(**columns, class_names=names, queue_names=queues).check()


# --- Strategies -------------------------------------------------------------------------------------------------------


def often(common: Any, *others: Any) -> st.SearchStrategy[Any]:
    """`common` half of the time."""
    return st.sampled_from([common] * len(others) + list(others))


@st.composite
def clusters(draw: st.DrawFn, gpus: int) -> ClusterSpec:
    """1-6 unequal racks of 1-6 nodes under 0-2 coarser levels; the largest node has the given GPUs."""
    node = often(gpus, *range(1, gpus + 1)) if draw(st.integers(0, 3)) == 0 else st.just(gpus)
    size = draw(st.integers(1, 6))
    count = draw(st.sampled_from([1, 2, 2, 3, 3, 4, 5, 6]))
    racks = draw(st.lists(st.lists(node, min_size=min(3, size), max_size=size), min_size=count, max_size=count))
    racks[0][0] = gpus
    levels = draw(st.integers(0, 2))
    new_block = [0, *draw(st.lists(st.integers(0, 1), min_size=len(racks) - 1, max_size=len(racks) - 1))]
    block = [int(b) for b in np.cumsum(new_block)]
    parents = [[b // 2, b][2 - levels :] for b in block]
    cordoned = draw(st.lists(st.integers(0, 35), max_size=2))
    return make_cluster(racks, parents, cordoned)


@st.composite
def jobs(draw: st.DrawFn, whole: int, queues: int, kind: str) -> dict[str, Any]:
    """A `service` that stands in the way and can be cleared away, a `gang` that wants whole racks, or any `other`."""
    modes = {"service": [Mode.UNCONSTRAINED], "gang": [Mode.REQUIRED], "other": list(Mode)}[kind]
    mode = draw(st.sampled_from(modes))
    p = whole if kind == "gang" else draw(st.integers(1, whole))
    unit = draw(st.integers(1, {"service": 2, "gang": 3, "other": 4}[kind]))
    units = draw(st.sampled_from([1, 1, 2, 3])) if mode == Mode.REQUIRED else 1
    late = [0.5, 1.0, 1.5, 2.0, 3.0, 4.5]
    return {
        "submit": draw(st.sampled_from([0.0, 0.0, 0.25, 0.5] if kind == "service" else late)),
        "gpus": p * unit * units,
        "gpus_per_pod": p,
        "mode": mode,
        "height": 0 if kind == "gang" else draw(st.integers(0, 2)),
        "slice_gpus": p * unit if units > 1 or draw(st.booleans()) else 0,
        "duration": draw(st.sampled_from([3.0, 8.0, 30.0] if kind == "service" else [0.0, 0.25, 0.5, 1.0, 3.3, 8.0])),
        "estimate": draw(st.sampled_from([0.0, 0.5, 1.0, 2.5])),
        "comm_fraction": draw(often(0.0, 0.1, 0.3, 0.5)),
        "priority": draw(st.integers(*{"service": (0, 1), "gang": (1, 4), "other": (0, 3)}[kind])),
        "queue": draw(st.integers(0, queues - 1)),
        "job_class": draw(st.integers(0, CLASSES - 1)),
        "preemptible": draw(st.booleans()),
        "preempts": draw(often(True, True, True, False)),
        "movable": mode == Mode.UNCONSTRAINED and draw(st.sampled_from([True, True, False])),
        "checkpoint_interval": draw(st.sampled_from([0.0, 0.25, 0.3, 1.0, INF])),
        "restart_time": draw(st.sampled_from([0.0, 0.0, 0.1, 0.25, 1.0])),
    }


@st.composite
def queue_specs(draw: st.DrawFn, gpus: int) -> tuple[QueueSpec, ...]:
    """One queue that holds everything back from nobody, or some that do."""
    count = draw(st.sampled_from([1, 1, 2, 3]))
    if count == 1 and draw(st.booleans()):
        return (QueueSpec("queue-0", gpus),)
    return tuple(
        QueueSpec(
            name=f"queue-{k}",
            nominal=draw(often(gpus, gpus // 2, gpus // 4, 3)),
            cohort=draw(st.sampled_from(["", "lab", "lab", "team"])),
            borrowing_limit=draw(often(-1, 0, 2, 8)),
            strict=draw(st.booleans()),
            within=draw(often("LowerPriority", "Never", "LowerOrNewerEqualPriority")),
            reclaim=draw(st.sampled_from(["Any", "LowerPriority", "Never"])),
            borrow_within=draw(st.sampled_from(["LowerPriority", "Never"])),
            borrow_priority=draw(often(2**31 - 1, 0, 1)),
        )
        for k in range(count)
    )


@st.composite
def cohort_specs(draw: st.DrawFn) -> tuple[CohortSpec, ...]:
    """None, or cohorts with quota of their own and a parent."""
    if draw(st.booleans()):
        return ()
    parent = draw(st.sampled_from(["", "site", "team"]))
    lab = CohortSpec("lab", draw(st.sampled_from([0, 4])), parent, draw(often(-1, 0, 4)))
    return (lab, *((CohortSpec("site", draw(st.sampled_from([0, 3]))),) if draw(st.booleans()) else ()))


@st.composite
def node_events(draw: st.DrawFn, nodes: int) -> NodeEvents:
    """None, or a few at round hours, whether they make sense (a repair of what never failed) or not."""
    quarter = st.integers(0, 40).map(lambda k: k / 4)
    most = draw(st.sampled_from([0, 0, 12]))
    few = st.sampled_from(range(0, nodes, -(-nodes // 3)))  # so that they meet
    events = draw(st.lists(st.tuples(quarter, few, st.integers(0, 5)), max_size=most))
    events.sort(key=lambda event: event[0])
    times, where, kinds = zip(*events, strict=True) if events else ((), (), ())
    return NodeEvents(np.array(times, np.float64), np.array(where, np.int32), np.array(kinds, np.int8))


rules = st.builds(
    Rules,
    horizon=st.sampled_from([5.0, 12.0, 40.0]),
    measure_from=st.sampled_from([0.0, 0.0, 1.1]),
    sample_every=st.sampled_from([0.5, 1.0]),
    collective=st.sampled_from(["recursive-doubling", "ring"]),
    slice_nodes=st.just(2),
    hero_share=st.sampled_from([0.01, 0.25, 0.5]),
    max_evictions=st.sampled_from([0, 1, 2, 3, 3, 3]),
    allow_open=st.sampled_from([True, True, True, False]),
    preemption=st.sampled_from(["never", "shape", "priority", "priority", "priority"]),
    allow_fill=st.booleans(),
    allow_hold=st.booleans(),
    verify_counted=st.booleans(),
    evict_whole_rack=st.booleans(),
)


@st.composite
def workloads(draw: st.DrawFn, whole: int, queues: tuple[str, ...]) -> Workload:
    """Up to 36 jobs, in lists of a given length: hypothesis keeps others short."""
    drawn: list[dict[str, Any]] = []
    for kind, counts in (("service", [0, 5, 10, 15, 20]), ("gang", [0, 2, 4, 6]), ("other", [0, 0, 5, 10])):
        count = draw(st.sampled_from(counts))
        drawn += draw(st.lists(jobs(whole, len(queues), kind), min_size=count, max_size=count))
    return make_workload(drawn or [{}], queues)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    gpus = draw(st.sampled_from([1, 2, 3, 4, 4, 8]))
    cluster = draw(clusters(gpus))
    queues = draw(queue_specs(cluster.gpus))
    return Case(
        cluster=cluster,
        workload=draw(workloads(gpus, tuple(queue.name for queue in queues))),
        rules=draw(rules),
        weights=tuple(draw(st.tuples(*[st.sampled_from([0.5, 1.0, 4.0])] * CLASSES))),
        queues=queues,
        events=draw(node_events(cluster.nodes)),
        cohorts=draw(cohort_specs()),
        neighbour=draw(clusters(gpus)),
        picks=tuple(draw(st.lists(st.integers(0, 999), min_size=1, max_size=50))),
    )


# --- Crowds: so much in the way that racks must be opened -----------------------------------------------------------


def crowded_case(seed: int, preemption: str = "shape") -> Case:
    """Services on parts of nodes all over the cluster, then gangs that only fit if racks are opened."""
    rng = Random(seed)
    gpus = rng.choice([2, 3, 4, 4, 8])
    racks = [[gpus] * rng.randint(2, 6) for _ in range(rng.randint(2, 5))]
    if rng.random() < 0.2:
        racks[-1][-1] = rng.randint(1, gpus)
    nodes = sum(map(len, racks))
    cordoned = [n for n in range(nodes) if rng.random() < 0.04]
    cluster = make_cluster(racks, [[r * 2 // len(racks)] for r in range(len(racks))], cordoned)
    services = [_service(rng, gpus) for _ in range(rng.randint(nodes // 2, 2 * nodes))]
    gangs = [_gang(rng, gpus) for _ in range(rng.randint(1, 8))]
    few = rng.sample(range(nodes), 2)
    events = sorted((rng.randint(0, 40) / 4, rng.choice(few), rng.randrange(6)) for _ in range(rng.choice([0, 16])))
    times, where, kinds = zip(*events, strict=True) if events else ((), (), ())
    return Case(
        cluster=cluster,
        workload=make_workload(services + gangs),
        rules=Rules(
            horizon=20.0,
            slice_nodes=2,
            max_evictions=rng.choice([0, 1, 3, 3, 3]),
            preemption=preemption,
            allow_hold=rng.random() < 0.5,
            verify_counted=rng.random() < 0.3,
            evict_whole_rack=rng.random() < 0.1,
        ),
        weights=(1.0, 2.0, 4.0),
        queues=(QueueSpec("default", cluster.gpus + rng.choice([0, 0, 50])),),
        cohorts=(),
        events=NodeEvents(np.array(times, np.float64), np.array(where, np.int32), np.array(kinds, np.int8)),
        neighbour=cluster,
        picks=tuple(rng.randrange(1000) for _ in range(100)),
    )


def _service(rng: Random, whole: int) -> dict[str, Any]:
    pod = rng.randint(1, max(1, whole - 1))
    return {
        "submit": rng.choice([0.0, 0.0, 0.0, 1.0]),
        "gpus_per_pod": pod,
        "gpus": pod * rng.choice([1, 1, 1, 2, 3]),
        "mode": Mode.UNCONSTRAINED,
        "duration": rng.choice([0.75, 3.3, 8.0, 30.0]),
        "priority": rng.randint(0, 3),
        "job_class": rng.randrange(CLASSES),
        "preemptible": rng.random() < 0.5,
        "movable": rng.random() < 0.6,
        "checkpoint_interval": rng.choice([0.0, 0.3, 1.0, INF]),
        "restart_time": rng.choice([0.0, 0.1, 0.25]),
    }


def _gang(rng: Random, whole: int) -> dict[str, Any]:
    unit, units = rng.randint(1, 4), rng.choice([1, 1, 2, 3])
    return {
        "submit": rng.choice([0.5, 1.0, 1.0, 2.0, 4.0]),
        "gpus_per_pod": whole,
        "gpus": whole * unit * units,
        "slice_gpus": whole * unit,
        "mode": Mode.REQUIRED,
        "duration": rng.choice([0.0, 0.5, 1.0, 3.3]),
        "comm_fraction": rng.choice([0.0, 0.2]),
        "priority": rng.randint(1, 4),
        "job_class": rng.randrange(CLASSES),
        "preemptible": rng.random() < 0.5,
        "checkpoint_interval": rng.choice([0.25, 1.0]),
        "restart_time": rng.choice([0.0, 0.25]),
    }
