"""Chaos: whatever fails, is drained or tested, GPUs are conserved, no job is lost, and none is on a dead node."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import cycle
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvlenv.cluster.types import NodeEventKind, NodeEvents, Workload
from nvlenv.simulator.load import Rules, load
from nvlenv.simulator.state import DONE, PENDING, RUNNING, WAITING, Dims, Sim
from nvlenv.simulator.step import advance, step
from tests.simulator.cases import CLASSES, empty_sim, make_cluster, make_workload
from tests.simulator.cases import jobs as draw_job
from tests.simulator.test_invariants import check_jobs, check_nodes, check_queues

CLUSTER = make_cluster([[4] * 4] * 3, [[0], [0], [1]])  # every job that is drawn fits it while it is empty
END_OF_CHAOS = 60.0  # h
BACK = {NodeEventKind.FAIL: NodeEventKind.REPAIR, NodeEventKind.CORDON: NodeEventKind.UNCORDON}
slow_draws = settings(suppress_health_check=list(HealthCheck), derandomize=True)

Event = tuple[float, int, NodeEventKind]


@dataclass(frozen=True)
class Chaos:
    workload: Workload
    events: NodeEvents
    picks: tuple[int, ...]

    def start(self) -> Sim:
        dims = Dims.of(CLUSTER, len(self.workload), 1, CLASSES, len(self.events.time))
        sim = empty_sim(dims)
        # `hold` is only legal where nothing else is, so that whoever waits, waits for room.
        load(sim, CLUSTER, self.workload, Rules(horizon=5000.0, allow_hold=False), (1.0, 2.0, 4.0), (), self.events)
        return sim


def stream(events: list[Event]) -> NodeEvents:
    """The events in order, and after the chaos a repair for every failure and an uncordon for every cordon."""
    mended = [(END_OF_CHAOS, node, BACK[kind]) for _, node, kind in events if kind in BACK]
    times, nodes, kinds = (
        zip(*sorted(events + mended, key=lambda event: event[0]), strict=True) if events else ([],) * 3
    )
    return NodeEvents(np.array(times, np.float64), np.array(nodes, np.int32), np.array(kinds, np.int8))


@st.composite
def chaos(draw: st.DrawFn) -> Chaos:
    kinds = st.sampled_from(["service", "gang", "other"])
    drawn = draw(st.lists(kinds.flatmap(lambda kind: draw_job(4, 1, kind)), min_size=8, max_size=30))
    time = st.sampled_from([0.0, 0.5, 1.0, 2.0]) | st.floats(0, END_OF_CHAOS)
    event = st.tuples(time, st.integers(0, CLUSTER.nodes - 1), st.sampled_from(NodeEventKind))
    events: list[Event] = draw(st.lists(event, min_size=10, max_size=60))
    picks = draw(st.lists(st.integers(0, 999), min_size=1, max_size=20))
    return Chaos(make_workload(drawn), stream(events), tuple(picks))


def check_nobody_is_lost(sim: Sim) -> None:
    """Every job is pending, waiting, running or done, and in the list that belongs to it."""
    clock, status = sim.clock[0], sim.jobs["status"]
    count = Counter(status.tolist())
    assert count[WAITING] == clock["n_waiting"] and count[RUNNING] == clock["n_running"]
    assert count[PENDING] == clock["n_jobs"] - clock["next_job"]
    assert (status[clock["next_job"] :] == PENDING).all()
    assert count.total() == clock["n_jobs"]


def check_dead_nodes_are_empty(sim: Sim) -> None:
    owner = sim.gpu_job.reshape(len(sim.nodes), -1)
    assert (owner[sim.nodes["failed"] > 0] < 0).all()
    assert (sim.nodes["blocked"] >= sim.nodes["failed"] + sim.nodes["cordoned"]).all()


def run(case: Chaos) -> Sim:
    sim, picks = case.start(), cycle(case.picks)
    alive = advance(sim)
    while alive:
        check_nodes(sim)
        check_jobs(sim)
        check_queues(sim)
        check_nobody_is_lost(sim)
        check_dead_nodes_are_empty(sim)
        legal = np.flatnonzero(sim.mask)
        alive = step(sim, int(legal[next(picks) % len(legal)]))
    return sim


def check_all_is_well_in_the_end(sim: Sim) -> None:
    jobs, clock = sim.jobs, sim.clock[0]
    assert (jobs["status"] == DONE).all()
    assert (sim.gpu_job == -1).all() and clock["free_all"] == CLUSTER.gpus
    useful = np.dot(jobs["gpus"], jobs["duration"])
    assert clock["busy"] == pytest.approx(useful + clock["slowdown"] + clock["lost"], rel=1e-9)


@settings(slow_draws, max_examples=60)
@given(chaos())
def test_whatever_fails_all_jobs_end_and_all_gpus_come_back(case: Chaos) -> None:
    check_all_is_well_in_the_end(run(case))


@pytest.mark.slow
@settings(slow_draws, max_examples=1500)
@given(chaos())
def test_whatever_else_fails_all_jobs_end_and_all_gpus_come_back(case: Chaos) -> None:
    check_all_is_well_in_the_end(run(case))


def test_a_storm_of_failures_ends_many_runs_and_still_loses_nobody() -> None:
    """Every node fails again and again while everything runs: the checks above see real damage."""
    rng, events = Random(1), []
    for node in list(range(CLUSTER.nodes)) * 4:
        begin = rng.uniform(0, 50)
        events += [(begin, node, NodeEventKind.FAIL), (begin + rng.uniform(0.1, 5), node, NodeEventKind.REPAIR)]
    long = {"gpus": 8, "gpus_per_pod": 4, "duration": 8.0, "checkpoint_interval": 0.5, "restart_time": 0.1}
    case = Chaos(make_workload([long] * 30), stream(events), (0, 3, 1))

    sim = run(case)

    assert sim.clock[0]["failures"] > 20 and sim.clock[0]["lost"] > 0
    check_all_is_well_in_the_end(sim)


def test_a_job_goes_on_from_its_last_checkpoint() -> None:
    """2.75 h done and saved every hour: 0.75 h are lost, and the restart."""
    job = {"gpus": 4, "gpus_per_pod": 4, "duration": 4.0, "checkpoint_interval": 1.0, "restart_time": 0.2}
    case = Chaos(make_workload([job]), stream([(2.75, 0, NodeEventKind.FAIL)]), (0,))

    sim = run(case)

    assert sim.jobs[0]["lost"] == pytest.approx(0.75 + 0.2)
    assert sim.jobs[0]["finish"] == pytest.approx(4.0 + 0.75 + 0.2)
