"""Small cases that practitioners of topology aware scheduling argue about, each with the answer they expect."""

from __future__ import annotations

import warnings
from itertools import permutations

import pytest

from nvlenv.envs.scenario import load_scenario, scenario_names
from nvlenv.policies.heuristics.packing import PACKINGS
from nvlenv.policies.kueue.policy import KueueView
from nvlenv.policies.resolver import resolve_policy
from tests.policies.heuristics.states import (
    PREFERRED,
    REQUIRED,
    gang,
    nodes_by_rack,
    occupied,
    place_all,
    place_one,
    whole,
)

SENSIBLE = [name for name in PACKINGS if name not in ("random", "first-fit", "least-allocated")]


def racks_of_72(*free: int) -> list[list[int]]:
    """Racks of 18 nodes with so many free GPUs, on as few nodes as possible."""
    return [[max(0, min(4, gpus - 4 * node)) for node in range(18)] for gpus in free]


def test_holes_are_filled_before_whole_racks_are_touched() -> None:
    six_pods = {"gpus": 6, "gpus_per_pod": 1}
    racks = racks_of_72(72, 72, 70, 71, 3)

    assert place_one(occupied(racks, [six_pods]), resolve_policy("best-fit+fill")) == {4: 3, 2: 3}
    # Without fill the job stays together in the fullest rack that holds it, and the small hole remains.
    assert place_one(occupied(racks, [six_pods]), resolve_policy("best-fit")) == {2: 6}


def test_single_pods_fill_the_holes_one_by_one() -> None:
    sim = occupied(racks_of_72(72, 72, 70, 71, 3), [{"gpus": 1}] * 6)

    assert place_all(sim, resolve_policy("best-fit"), 6) == [{4: 1}] * 3 + [{2: 1}] * 3


def test_small_pods_take_single_gpus_before_a_whole_node() -> None:
    four_pods = {"gpus": 4, "gpus_per_pod": 1, "mode": REQUIRED}
    sim = occupied([[4, 1, 1, 1, 1]], [four_pods])

    kueue = KueueView(sim).place(sim)
    place_one(sim, resolve_policy("best-fit"))

    assert sim.nodes["free"].tolist() == [4, 0, 0, 0, 0]
    assert kueue == {0: 4}  # Kueue's BestFit eats the whole node


def test_a_tie_between_racks_goes_to_the_fuller_block() -> None:
    sim = occupied(whole(3, 18, 18, 3, 4, 18), [gang(3)], blocks=[0, 0, 0, 1, 1, 1])

    assert nodes_by_rack(sim, resolve_policy("hierarchical-best-fit")) == {3: 3}


@pytest.mark.parametrize("name", [*SENSIBLE, "kueue-tas"])
def test_slices_take_the_racks_that_they_fill(name: str) -> None:
    sim = occupied(whole(14, 18, 16, 16, size=18), [gang(32, slice_nodes=16)])

    assert nodes_by_rack(sim, resolve_policy(name)) == {2: 16, 3: 16}


def test_a_job_of_more_nodes_than_a_rack_promises_is_warned_about() -> None:
    racks = "cluster={racks: [18, 16, 17, 18], blocks: 1}"
    whole_racks = "workload.classes.pre-training.sizes={72: 0.9, 16: 0.1}"
    no_heroes = "workload.classes.hero.sizes={64: 1.0}"
    said = r"'pre-training' ask for 18 nodes .* promise 16: 2 of 4 racks .* \(block-00/rack-000, block-00/rack-003\)"

    with pytest.warns(UserWarning, match=said):
        load_scenario("lab-16", [racks, whole_racks, no_heroes, "workload.classes.pre-training.slice_gpus=0"])


def test_a_job_that_fits_the_promise_is_not() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in scenario_names():
            load_scenario(name)


@pytest.mark.parametrize("name", [*PACKINGS, "kueue-tas"])
def test_segments_spread_over_blocks_that_hold_one_each(name: str) -> None:
    sim = occupied(whole(17, 17, 17), [gang(36, slice_nodes=12)])

    assert nodes_by_rack(sim, resolve_policy(name)) == {0: 12, 1: 12, 2: 12}


@pytest.mark.parametrize("name", [*PACKINGS, "kueue-tas"])
@pytest.mark.parametrize("free", sorted(set(permutations([2, 1, 1]))))
def test_a_preferred_job_finds_the_rack_that_holds_it_in_any_order(name: str, free: tuple[int, ...]) -> None:
    sim = occupied(whole(*free), [gang(2, PREFERRED)])

    assert nodes_by_rack(sim, resolve_policy(name)) == {free.index(2): 2}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kueue-tas", {0: 19, 1: 1}),
        ("best-fit", {0: 19, 1: 1}),
        ("slurm-block", {0: 19, 1: 1}),
        ("best-fit+tight", {1: 10, 2: 10}),
    ],
)
def test_a_spread_is_greedy_or_wastes_nothing(name: str, expected: dict[int, int]) -> None:
    sim = occupied(whole(19, 10, 10), [gang(20, PREFERRED)])

    assert nodes_by_rack(sim, resolve_policy(name)) == expected


@pytest.mark.parametrize("name", ["kueue-tas", "best-fit", "best-fit+tight"])
def test_a_job_of_128_nodes_without_slices_leaves_a_stump(name: str) -> None:
    sim = occupied(whole(*[18] * 9), [gang(128, PREFERRED)])

    assert sorted(nodes_by_rack(sim, resolve_policy(name)).values()) == [2, *[18] * 7]


@pytest.mark.parametrize("name", ["kueue-tas", *PACKINGS])
def test_a_job_of_128_nodes_in_slices_takes_eight_racks_evenly(name: str) -> None:
    sim = occupied(whole(*[18] * 9), [gang(128, slice_nodes=16)])

    assert sorted(nodes_by_rack(sim, resolve_policy(name)).values()) == [16] * 8
