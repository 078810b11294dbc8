"""The kernel does what the reference simulator does: event by event, decision by decision, to the last total."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvlenv.simulator.decision import ActionLayout
from nvlenv.simulator.preemption import price_opens
from nvlenv.simulator.state import PENDING, RUNNING, SLOT_SIZES, WAITING, Sim
from nvlenv.simulator.step import advance, step
from tests.simulator.cases import SAMPLES, Case, cases, crowded_case
from tests.simulator.reference.jobs import Job
from tests.simulator.reference.simulator import Action, Reference

STATUS = {"pending": PENDING, "waiting": WAITING, "running": RUNNING, "done": 3}
JOB_FIELDS = ("finish", "first_start", "waited", "lost", "work")
RUN_FIELDS = ("start", "end", "speed")  # of the current or last run
many = settings(suppress_health_check=list(HealthCheck))  # whole simulations are large and slow to draw
few = settings(many, derandomize=True)
seeds = st.integers(0, 2**32 - 1)


def number_of(action: Action, layout: ActionLayout) -> int:
    kind, rack = action
    return {"place": layout.place(rack), "open": layout.open(rack), "fill": layout.fill, "hold": layout.hold}[kind]


def kernel_placements(sim: Sim) -> dict[int, dict[int, int]]:
    """Job -> GPUs on each of its nodes."""
    found: dict[int, dict[int, int]] = {}
    per_node = sim.cap.shape[1] - 1
    for slot in np.flatnonzero(sim.gpu_job >= 0):
        on = found.setdefault(int(sim.gpu_job[slot]), {})
        on[int(slot) // per_node] = on.get(int(slot) // per_node, 0) + 1
    return found


def compare_decision(sim: Sim, reference: Reference, layout: ActionLayout) -> None:
    """The same job is up, with the same actions, the same costs, on the same cluster."""
    clock = sim.clock[0]
    assert clock["now"] == pytest.approx(reference.now, rel=1e-12)
    assert reference.current is not None
    assert clock["current"] == reference.current.number
    price_opens(sim)
    legal = {number_of(action, layout): cost for action, cost in reference.legal.items()}
    assert set(np.flatnonzero(sim.mask)) == set(legal)
    for action in legal:
        if layout.racks <= action < layout.fill:
            cost = (sim.open_gpus[action - layout.racks], sim.open_lost[action - layout.racks])
            assert cost == pytest.approx(legal[action], rel=1e-9, abs=1e-12)
    compare_jobs(sim, reference)


def compare_jobs(sim: Sim, reference: Reference) -> None:
    """Every job is in the same state and at the same place."""
    placed = {job.number: reference.placement(job) for job in reference.jobs}
    assert kernel_placements(sim) == {number: where for number, where in placed.items() if where}
    jobs = sim.jobs[: len(reference.jobs)]
    assert list(jobs["status"]) == [STATUS[job.status] for job in reference.jobs]
    assert list(jobs["evictions"]) == [job.evictions for job in reference.jobs]
    for job in reference.jobs:
        compare_hours(jobs[job.number], job, JOB_FIELDS + RUN_FIELDS * (job.status == "running"))


def compare_hours(row: np.void, job: Job, names: tuple[str, ...]) -> None:
    for name in names:
        assert row[name] == pytest.approx(getattr(job, name), rel=1e-9, abs=1e-12), f"job {job.number}, {name}"


def compare_totals(sim: Sim, reference: Reference) -> None:
    clock = sim.clock[0]
    assert bool(clock["done"]) == reference.ended
    for name, value in {**reference.totals, **reference.counts}.items():
        assert clock[name] == pytest.approx(value, rel=1e-9, abs=1e-9), name
    hours = sim.classes["waiting_hours"][: len(reference.class_hours)]
    assert hours == pytest.approx(reference.class_hours, rel=1e-9, abs=1e-9)
    assert sim.slots[1, : len(SLOT_SIZES)] == pytest.approx(reference.slot_hours, rel=1e-9, abs=1e-9)
    rows = min(SAMPLES, len(reference.samples))
    assert clock["n_samples"] == rows
    assert sim.samples[:rows] == pytest.approx(np.array(reference.samples[:rows]))


def run_both(case: Case) -> None:
    """Drive both through the same actions: legal ones, and now and then any."""
    sim = case.load()
    reference = Reference(case.cluster, case.workload, case.rules, case.weights, case.queues, case.events, case.cohorts)
    layout, picks = ActionLayout(len(sim.racks)), cycle(case.picks)
    alive = reference.advance()
    assert advance(sim) == alive
    while alive:
        compare_decision(sim, reference, layout)
        pick = next(picks)
        actions = sorted(reference.legal)
        action = ("place", pick % case.cluster.racks) if pick % 20 == 7 else actions[pick % len(actions)]
        alive = reference.step(action)
        assert step(sim, number_of(action, layout)) == alive
    compare_jobs(sim, reference)
    compare_totals(sim, reference)


@settings(few, max_examples=40)
@given(cases())
def test_kernel_equals_the_reference(case: Case) -> None:
    run_both(case)


@pytest.mark.parametrize("preemption", ["shape", "priority"])
@settings(few, max_examples=25)
@given(seed=seeds)
def test_kernel_equals_the_reference_where_racks_are_opened(seed: int, preemption: str) -> None:
    run_both(crowded_case(seed, preemption))


@pytest.mark.slow
@settings(many, max_examples=1000)
@given(cases())
def test_kernel_equals_the_reference_in_many_more_cases(case: Case) -> None:
    run_both(case)


@pytest.mark.slow
@pytest.mark.parametrize("preemption", ["shape", "priority"])
@settings(many, max_examples=1000)
@given(seed=seeds)
def test_kernel_equals_the_reference_where_many_more_racks_are_opened(seed: int, preemption: str) -> None:
    run_both(crowded_case(seed, preemption))
