"""How far heuristics are from the best schedule, on instances small enough to know it.

tests/cases/toy_*.yaml hold the optimum and what every heuristic pays; here both are computed anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.policies.optimum import Toy, optimum_by_program, optimum_by_search, read_toy

FILES = sorted((Path(__file__).parents[1] / "cases").glob("toy_*.yaml"))
SEARCHABLE = ("toy_best_fit", "toy_fill", "toy_reserve")  # the others have too many sequences of actions


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def toy(request: pytest.FixtureRequest) -> Toy:
    return read_toy(request.param)


def test_there_are_toys() -> None:
    assert {*SEARCHABLE, "toy_tetris", "toy_day"} <= {path.stem for path in FILES}


def test_heuristics_pay_what_is_stated_and_never_less_than_the_optimum(toy: Toy) -> None:
    costs = {name: toy.cost(name) for name in toy.costs}

    assert costs == pytest.approx(toy.costs)
    assert min(costs.values()) >= toy.optimum - 1e-9


def test_the_stated_optimum_is_that_of_the_integer_program(toy: Toy) -> None:
    assert optimum_by_program(toy, min(toy.costs.values())) == pytest.approx(toy.optimum)


def test_the_heuristics_for_which_an_instance_was_built_reach_its_optimum(toy: Toy) -> None:
    assert [toy.costs[name] for name in toy.solved] == [toy.optimum] * len(toy.solved)


@pytest.mark.parametrize("name", SEARCHABLE)
def test_no_sequence_of_actions_does_better_and_one_does_as_well(name: str) -> None:
    (path,) = [path for path in FILES if path.stem == name]

    assert optimum_by_search(read_toy(path)) == pytest.approx(read_toy(path).optimum)


def test_spreading_is_worst_where_whole_racks_are_needed() -> None:
    (path,) = [path for path in FILES if path.stem == "toy_best_fit"]
    costs = read_toy(path).costs

    assert costs["best-fit"] < costs["random"] < costs["least-allocated"]
