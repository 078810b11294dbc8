"""Verification pods that are not counted might as well not exist: no quota, no capacity, no delay; and evicted at once.

Two simulators play the same jobs and the same failures, one of them with test pods. They must tell the same story.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvlenv.cluster.types import NodeEventKind, NodeEvents, QueueSpec
from nvlenv.simulator.load import Rules
from nvlenv.simulator.state import Sim
from nvlenv.simulator.step import advance, step
from tests.simulator.cases import Case, cases, make_cluster, make_workload

TESTS = (NodeEventKind.VERIFY, NodeEventKind.VERIFY_END)
OUTCOME = ("status", "first_start", "start", "end", "speed", "finish", "waited", "lost", "work", "evictions")
slow_draws = settings(suppress_health_check=list(HealthCheck), derandomize=True)


@st.composite
def cases_with_pods(draw: st.DrawFn) -> Case:
    """Any case, with test pods on its nodes from the start and again and again."""
    case = draw(cases())
    hours = st.sampled_from([0.0, 0.0, 0.5, 1.0, 1.5]) | st.floats(0, 12)
    tests = draw(
        st.lists(
            st.tuples(hours, st.integers(0, case.cluster.nodes - 1), st.sampled_from(TESTS)), min_size=5, max_size=50
        )
    )
    old = zip(case.events.time.tolist(), case.events.node.tolist(), case.events.kind.tolist(), strict=True)
    times, nodes, kinds = zip(*sorted([*old, *tests], key=lambda event: event[0]), strict=True)
    events = NodeEvents(np.array(times), np.array(nodes, np.int32), np.array(kinds, np.int8))
    return replace(case, events=events, rules=replace(case.rules, verify_counted=False))


def without_tests(case: Case) -> Case:
    kept = ~np.isin(case.events.kind, TESTS)
    events = NodeEvents(case.events.time[kept], case.events.node[kept], case.events.kind[kept])
    return replace(case, events=events)


def check_same(tested: Sim, plain: Sim) -> None:
    """The same jobs in the same places, the same quota, the same capacity."""
    for name in OUTCOME:
        assert np.array_equal(tested.jobs[name], plain.jobs[name]), name
    assert np.array_equal(tested.gpu_job, plain.gpu_job)
    assert np.array_equal(tested.queues["used"], plain.queues["used"])
    assert np.array_equal(tested.cohorts["used"], plain.cohorts["used"])
    assert np.array_equal(tested.cap, plain.cap) and np.array_equal(tested.slots[0], plain.slots[0])
    assert tested.clock["free_all"] == plain.clock["free_all"]


def check_tests_give_way(sim: Sim) -> None:
    """A test pod is only ever on a node that is wholly free: it went when the first pod of a job came."""
    tested = sim.nodes["verify"] == 1
    assert (sim.nodes["free"][tested] == sim.nodes["gpus"][tested]).all()


def play_both(case: Case) -> Sim:
    tested, plain = case.load(), without_tests(case).load()
    picks, alive = cycle(case.picks), advance(tested)
    assert advance(plain) == alive
    while alive:
        assert tested.clock["current"] == plain.clock["current"] and tested.clock["now"] == plain.clock["now"]
        assert np.array_equal(tested.mask, plain.mask)
        check_same(tested, plain)
        check_tests_give_way(tested)
        legal = np.flatnonzero(plain.mask)
        action = int(legal[next(picks) % len(legal)])
        alive = step(tested, action)
        assert step(plain, action) == alive
    check_same(tested, plain)
    for total in ("waiting", "slowdown", "lost", "stall", "busy"):
        assert tested.clock[total] == pytest.approx(plain.clock[total], rel=1e-9, abs=1e-9), total
    assert plain.clock["verify_evictions"] == 0
    return tested


@settings(slow_draws, max_examples=60)
@given(cases_with_pods())
def test_uncounted_tests_change_nothing_for_anybody(case: Case) -> None:
    play_both(case)


@pytest.mark.slow
@settings(slow_draws, max_examples=1500)
@given(cases_with_pods())
def test_uncounted_tests_change_nothing_for_anybody_in_many_more_cases(case: Case) -> None:
    play_both(case)


def busy_tests(counted: bool) -> Case:
    """Two nodes under test from hour 0 to 5, and a job for both of them at hour 1."""
    cluster = make_cluster([[4, 4]])
    events = [(0.0, 0, 4), (0.0, 1, 4), (5.0, 0, 5), (5.0, 1, 5)]
    times, nodes, kinds = zip(*events, strict=True)
    job = {"submit": 1.0, "gpus": 8, "gpus_per_pod": 4, "mode": 2, "duration": 1.0}
    return Case(
        cluster, make_workload([job]), Rules(horizon=20.0, verify_counted=counted), (1.0, 2.0, 4.0),
        (QueueSpec("default", 8),), NodeEvents(np.array(times), np.array(nodes, np.int32), np.array(kinds, np.int8)),
        (), cluster, (0,),
    )  # fmt: skip


def test_a_real_job_evicts_the_tests_at_the_instant_it_comes() -> None:
    sim = play_both(busy_tests(counted=False))

    assert sim.jobs[0]["first_start"] == 1.0
    assert sim.clock[0]["verify_evictions"] == 2


def test_counted_tests_take_quota_and_make_the_same_job_wait() -> None:
    sim = busy_tests(counted=True).load()
    assert advance(sim)

    assert sim.clock[0]["now"] == 5.0
    step(sim, 0)
    assert sim.jobs[0]["waited"] == 4.0 and sim.clock[0]["verify_evictions"] == 0
