"""Kueue as a policy: it keeps every promise, never waits where it could place, and follows its plan rack by rack."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from nvlenv.cluster.types import Mode
from nvlenv.policies.kueue.policy import KueueView, rack_counts
from nvlenv.policies.resolver import resolve_policy
from nvlenv.simulator.decision import ActionLayout, Decision
from nvlenv.simulator.state import Sim
from nvlenv.simulator.step import advance, apply, step
from tests.policies.heuristics.states import PREFERRED, REQUIRED, gang, gpus_by_rack, occupied, place_one, whole
from tests.simulator.cases import Case, cases

untimed = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


def check_promise(sim: Sim, counts: dict[int, int]) -> None:
    """The pods are all there, fit their nodes, and are together as the job's mode demands."""
    job = sim.jobs[sim.clock[0]["current"]]
    p, unit = int(job["pod_gpus"]), int(job["slice_pods"])
    assert sum(counts.values()) == job["gpus"] // p
    for node, pods in counts.items():
        assert sim.nodes[node]["blocked"] == 0 and pods * p <= sim.nodes[node]["free"]
    racks = rack_counts(sim, counts)
    domains = [int(sim.ancestors[r, job["height"]]) for r in racks]
    pods_of = {d: sum(n for r, n in racks.items() if sim.ancestors[r, job["height"]] == d) for d in domains}
    if job["mode"] == Mode.REQUIRED:
        assert all(pods % unit == 0 for pods in pods_of.values())
        assert job["slices"] > 1 or len(pods_of) == 1
    fits = any(sim.cap[d, p] >= unit for d in set(sim.ancestors[:, job["height"]].tolist()))
    if job["mode"] == PREFERRED and fits:
        assert len(pods_of) == 1


@given(case=cases())
@untimed
def test_it_places_whatever_fits_and_keeps_the_promise(case: Case) -> None:
    sim, picks, racks = case.load(), cycle(case.picks), len(case.load().racks)
    policy, layout = resolve_policy("kueue-tas"), ActionLayout(len(case.load().racks))
    view, alive = KueueView(sim), advance(sim)
    while alive:
        is_fresh = sim.jobs[sim.clock[0]["current"]]["first_gpu"] < 0
        can_place = bool(sim.mask[:racks].any())
        if is_fresh and can_place:
            check_promise(sim, view.place(sim))
        action = policy(Decision(sim, sim.mask, layout))
        assert (action == layout.hold) == (not can_place)
        assert sim.mask[action] or not can_place
        alive = step(sim, action if next(picks) % 4 else np.flatnonzero(sim.mask)[0])


@given(case=cases())
@untimed
def test_it_plays_an_episode_without_ever_opening_or_breaking_a_rule(case: Case) -> None:
    sim = case.load()

    resolve_policy("kueue-tas").play(sim)  # type: ignore[union-attr]

    assert sim.clock[0]["done"] == 1
    assert sim.clock[0]["evictions"] == 0
    taken = (sim.gpu_job >= 0).reshape(len(sim.nodes), -1).sum(axis=1)
    assert (taken == sim.nodes["gpus"] - sim.nodes["free"]).all()


def test_pods_are_bound_to_the_very_nodes_that_kueue_chooses() -> None:
    # Kueue's BestFit takes the whole node; the simulator's own choice would be the four single GPUs.
    sim = occupied([[1, 1, 4, 1, 1]], [{"gpus": 4, "gpus_per_pod": 1, "mode": REQUIRED, "duration": 2000.0}])
    job = int(sim.clock[0]["current"])
    # Take the decision back, so that `play` comes across the job by itself.
    sim.clock[0]["current"], sim.clock[0]["cursor"], sim.clock[0]["unseen"] = -1, 0, 1
    sim.jobs[job]["seen"] = -1

    resolve_policy("kueue-tas").play(sim)  # type: ignore[union-attr]

    assert set(np.flatnonzero(sim.gpu_job == job) // 4) == {2}


def test_least_free_capacity_scatters_unconstrained_pods() -> None:
    # The fullest nodes first, whatever their racks: seven pods touch all three.
    sim = occupied([[4, 1, 4], [4, 1, 4], [4, 1, 4]], [{"gpus": 7, "gpus_per_pod": 1}])

    assert rack_counts(sim, KueueView(sim).place(sim)) == {0: 5, 1: 1, 2: 1}


def test_slices_are_planned_as_a_whole_and_then_followed() -> None:
    sim = occupied(whole(4, 7, 9, size=9), [gang(12, slice_nodes=4)])
    plan = rack_counts(sim, KueueView(sim).place(sim))

    placed = place_one(sim, resolve_policy("kueue-tas"))

    assert {rack: gpus // 4 for rack, gpus in placed.items()} == plan == {0: 4, 1: 4, 2: 4}


def test_one_object_serves_several_simulators_at_once() -> None:
    policy, layout = resolve_policy("kueue-tas"), ActionLayout(3)
    sims = [occupied(whole(*free, size=9), [gang(12, slice_nodes=4)]) for free in ((4, 7, 9), (9, 4, 4))]
    jobs = [int(sim.clock[0]["current"]) for sim in sims]
    placed: list[dict[int, int]] = []
    for _ in range(3):  # slice by slice, in turn
        placed = []
        for sim, job in zip(sims, jobs, strict=True):
            apply(sim, policy(Decision(sim, sim.mask, layout)))
            placed.append(gpus_by_rack(sim, job))

    assert placed == [{0: 16, 1: 16, 2: 16}, {0: 16, 1: 16, 2: 16}]


@pytest.mark.parametrize("mode", [Mode.REQUIRED, Mode.PREFERRED, Mode.UNCONSTRAINED])
def test_blocked_nodes_take_nothing(mode: Mode) -> None:
    sim = occupied(whole(2, 2), [gang(2, mode)])
    sim.nodes["blocked"][:2] = 1

    assert rack_counts(sim, KueueView(sim).place(sim)) == {1: 2}
