"""Kueue's preemption in the simulator: the victims that Kueue would choose, then its placement."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvlenv.cluster.types import Mode
from nvlenv.policies.kueue.policy import KueueView
from nvlenv.policies.kueue.preemption_policy import KueuePreemptionPolicy
from nvlenv.policies.kueue.quota import PreemptionPolicy
from nvlenv.policies.resolver import fresh_policy, play, policy_name, resolve_policy
from nvlenv.simulator.decision import ActionLayout, Decision
from nvlenv.simulator.state import RUNNING, Sim
from nvlenv.simulator.step import advance, step
from tests.policies.heuristics.states import PREFERRED, REQUIRED, UNCONSTRAINED, gang, occupied, whole
from tests.simulator.cases import Case, cases, crowded_case

NAME = "kueue-tas+preemption"
untimed = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


class Checked(KueuePreemptionPolicy):
    """Checks every set of victims on the spot."""

    sets = 0

    def victims(self, sim: Sim, view: KueueView) -> list[int]:
        """Victims are legal, enough, and none of them could stay."""
        found = super().victims(sim, view)
        if not found:
            return found
        self.sets += 1
        job, jobs = sim.jobs[sim.clock[0]["current"]], sim.jobs[found]
        assert len(set(found)) == len(found)
        assert (jobs["status"] == RUNNING).all() and (jobs["preemptible"] == 1).all()
        assert (jobs["evictions"] < sim.clock[0]["max_evictions"]).all()
        assert (jobs["priority"] < job["priority"]).all()
        assert self._starts(sim, view, found)
        assert not any(self._starts(sim, view, [v for v in found if v != spared]) for spared in found)
        return found

    def _starts(self, sim: Sim, view: KueueView, victims: list[int]) -> bool:
        job, gone = sim.jobs[sim.clock[0]["current"]], sim.jobs[victims]
        queue = sim.queues[job["queue"]]
        same_queue = gone["gpus"][gone["queue"] == job["queue"]].sum()
        same_cohort = gone["gpus"][sim.queues["cohort"][gone["queue"]] == queue["cohort"]].sum()
        cohort = sim.cohorts[queue["cohort"]]
        within = queue["used"] - same_queue + job["gpus"] <= queue["limit"]
        inside = cohort["used"] - same_cohort + job["gpus"] <= cohort["nominal"]
        return bool(within and inside and view.place(sim, without=victims))


def check_books(sim: Sim) -> None:
    """No GPU is lost or used twice, quotas say what runs, and nobody was evicted too often."""
    jobs = sim.jobs[: sim.clock[0]["n_jobs"]]
    taken = (sim.gpu_job >= 0).reshape(len(sim.nodes), -1).sum(axis=1)
    assert (taken == sim.nodes["gpus"] - sim.nodes["free"]).all()
    holders, gpus = np.unique(sim.gpu_job[sim.gpu_job >= 0], return_counts=True)
    assert (jobs["gpus"][holders] == gpus).all() and (jobs["status"][holders] == RUNNING).all()
    assert set(np.flatnonzero(jobs["status"] == RUNNING)) == set(holders)
    assert sim.clock[0]["evictions"] == jobs["evictions"].sum()
    assert (jobs["evictions"] <= sim.clock[0]["max_evictions"]).all()


@given(case=cases())
@untimed
def test_random_episodes_keep_every_rule(case: Case) -> None:
    sim = case.load()

    Checked().play(sim)

    assert sim.clock[0]["done"] == 1
    check_books(sim)


@given(seed=st.integers(0, 10**6))
@untimed
def test_crowded_episodes_keep_every_rule(seed: int) -> None:
    sim = crowded_case(seed).load()

    Checked().play(sim)

    check_books(sim)


def test_the_checks_above_see_many_victims() -> None:
    policy = Checked()
    for seed in range(10):
        policy.play(crowded_case(seed).load())

    assert policy.sets >= 10


@given(case=cases())
@untimed
def test_without_anybody_to_preempt_it_is_kueue_tas(case: Case) -> None:
    plain, preempting = case.load(), case.load()
    for sim in (plain, preempting):
        sim.jobs["preemptible"] = 0

    play(resolve_policy("kueue-tas"), plain)
    play(resolve_policy(NAME), preempting)

    for name in ("waiting", "slowdown", "lost", "busy", "evictions", "decisions"):
        assert plain.clock[0][name] == preempting.clock[0][name]
    assert (plain.jobs["finish"] == preempting.jobs["finish"]).all()
    assert (plain.gpu_job == preempting.gpu_job).all()


@given(case=cases())
@untimed
def test_asked_decision_by_decision_it_answers_with_what_is_legal(case: Case) -> None:
    sim, picks = case.load(), cycle(case.picks)
    policy, layout = resolve_policy(NAME), ActionLayout(len(sim.racks))
    alive = advance(sim)
    while alive:
        action = policy(Decision(sim, sim.mask, layout))
        assert sim.mask[action] or action == layout.hold
        alive = step(sim, action if next(picks) % 4 else np.flatnonzero(sim.mask)[0])


def full(nodes: int, job: dict[str, Any], **fillers: Any) -> Sim:
    """Racks of two nodes, every node with one job of its own, and `job` yet to come; it has the last number."""
    defaults = {"preemptible": True, "duration": 900.0}
    return occupied(whole(*[0] * (nodes // 2), size=2), [job], fillers={**defaults, **fillers}, decide=False)


@pytest.mark.parametrize("mode", [REQUIRED, PREFERRED, UNCONSTRAINED])
def test_lower_priorities_make_room_for_gpus_that_lack(mode: Mode) -> None:
    sim = full(4, gang(2, mode, priority=1, duration=2000.0))

    resolve_policy(NAME).play(sim)  # type: ignore[union-attr]

    assert sim.jobs[4]["first_start"] == 0.0
    assert sim.clock[0]["evictions"] == 2
    check_books(sim)


def test_the_lowest_priority_goes_first_and_no_more_than_needed() -> None:
    sim = full(4, {"gpus": 1, "priority": 5, "duration": 2000.0})
    sim.jobs["priority"][:4] = [3, 1, 0, 2]
    sim.clock["horizon"] = 0.5

    resolve_policy(NAME).play(sim)  # type: ignore[union-attr]

    assert sim.jobs["evictions"][:4].tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize("fillers", [{"priority": 1}, {"preemptible": False}])
def test_equal_priorities_and_protected_jobs_stay(fillers: dict[str, Any]) -> None:
    sim = full(2, gang(1, priority=1), **fillers)

    resolve_policy(NAME).play(sim)  # type: ignore[union-attr]

    assert sim.clock[0]["evictions"] == 0


def test_never_means_never() -> None:
    sim = full(2, gang(1, priority=1))

    KueuePreemptionPolicy(PreemptionPolicy.NEVER, PreemptionPolicy.NEVER).play(sim)

    assert sim.clock[0]["evictions"] == 0


def test_a_rack_is_opened_where_the_job_would_go() -> None:
    sim = occupied([[4, 0], [0, 4]], [gang(2, priority=1)], fillers={"preemptible": True})
    layout = ActionLayout(2)

    action = resolve_policy(NAME)(Decision(sim, sim.mask, layout))

    assert sim.mask[action] and layout.describe(action).startswith("open")


def test_it_has_a_name_and_can_begin_anew() -> None:
    policy = resolve_policy(NAME)

    assert policy_name(policy) == NAME
    assert isinstance(fresh_policy(policy), KueuePreemptionPolicy) and fresh_policy(policy) is not policy
