"""The reward: named terms that add up, and the pairing with the twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvlenv.envs.batch import Batch
from nvlenv.envs.reward import TERMS, read_totals, score
from nvlenv.envs.scenario import Scenario
from nvlenv.simulator.state import Dims, allocate, view


def play(batch: Batch, steps: int = 2_000) -> list[tuple[Any, Any]]:
    """Reward and terms of every step of random legal play until the first simulator is done."""
    rng, seen = np.random.default_rng(0), []
    for _ in range(steps):
        batch.step(np.array([rng.choice(np.flatnonzero(mask)) for mask in batch.mask]))
        seen.append((batch.reward.copy(), batch.terms.copy()))
        if batch.done.any():
            return seen
    raise AssertionError("the episode did not end")


def test_terms_of_all_steps_add_up_to_the_totals(make_small: Callable[..., Scenario]) -> None:
    batch = Batch(make_small("failures={node_mtbf_hours: 200}"), 1, np.random.SeedSequence(1))
    terms = np.array([terms[0] for _, terms in play(batch)])
    clock = batch.view(0).clock[0]
    assert terms.sum(axis=0) == pytest.approx(batch.totals[0], abs=1e-12)
    assert batch.totals[0, :3] * clock["capacity"] == pytest.approx([clock[name] for name in TERMS[:3]])
    assert (batch.totals[0, :3] > 0).all()
    assert (terms[:, :3] >= -1e-12).all()
    assert (terms[:, 3] <= 1e-12).all()


def test_pairing_adds_exactly_what_the_twin_paid(make_small: Callable[..., Scenario]) -> None:
    weights = ("reward.waiting=0.5", "reward.slowdown=2", "reward.lost=3", "reward.scale=10")
    paired, alone = (
        Batch(make_small(*weights, f"reward.paired={paired}"), 2, np.random.SeedSequence(3)) for paired in (True, False)
    )
    for (reward, terms), (plain, plain_terms) in zip(play(paired), play(alone), strict=True):
        assert np.array_equal(terms[:, :3], plain_terms[:, :3])
        assert not plain_terms[:, 3].any()
        assert reward == pytest.approx(plain - 10 * 0.5 * terms[:, 3], abs=1e-12)
        assert plain == pytest.approx(-10 * (plain_terms[:, :3] @ [0.5, 2.0, 3.0]), abs=1e-12)
    assert paired.totals[:, 3].min() < 0


def test_the_warm_up_costs_nobody_anything(make_small: Callable[..., Scenario]) -> None:
    batch = Batch(make_small("episode.warmup_hours=30"), 1, np.random.SeedSequence(1))
    rng = np.random.default_rng(0)
    while not batch.done[0]:
        before = batch.view(0).clock["now"][0]
        batch.step(np.array([rng.choice(np.flatnonzero(batch.mask[0]))]))
        if batch.view(0).clock["now"][0] <= 30.0:
            assert not batch.terms.any()
    assert before > 30.0
    assert batch.totals[0, 0] > 0
    assert batch.totals[0, 3] < 0


@given(
    steps=st.lists(st.tuples(st.floats(0.01, 10), st.floats(0, 50)), min_size=0, max_size=12),
    hour=st.floats(0, 100),
    start=st.floats(0, 5),
)
def test_the_twins_cost_is_interpolated_between_its_events(
    steps: list[tuple[float, float]], hour: float, start: float
) -> None:
    times = np.concatenate([[0.0], np.cumsum([step[0] for step in steps])])
    costs = np.concatenate([[start], start + np.cumsum([step[1] for step in steps])])
    sim = view.py_func(allocate(1, Dims(1, 1, 1, 1, 1, 2, 2, 1, 1)), 0)
    sim.clock["now"], sim.clock["capacity"] = hour, 4
    out, beyond = np.zeros(4), np.full(3, 1e9)  # what lies behind the last point is not read

    read_totals(sim, np.concatenate([times, beyond]), np.concatenate([costs, beyond]), len(times), True, out)

    assert out[3] == pytest.approx(-np.interp(hour, times, costs) / 4, rel=1e-9, abs=1e-9)


def test_the_score_weighs_waiting_and_twin_alike() -> None:
    terms, weights = np.array([3.0, 5.0, 7.0, -2.0]), np.array([2.0, 10.0, 100.0])
    assert score(terms, weights, 0.5) == -0.5 * (2.0 * (3.0 - 2.0) + 10.0 * 5.0 + 100.0 * 7.0)
