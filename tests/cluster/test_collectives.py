"""The cliff: each model against a rank-by-rank simulation of its rounds, and the answers known from the field."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvlenv.cluster.collectives import MODELS, ideal_ratio_kernel, ratio_kernel, speed_kernel
from tests.cluster.ratio import communication_ratio

NVLINK, NETWORK, CLIFF = 900.0, 50.0, 18

placements = st.lists(st.integers(1, 72), min_size=1, max_size=10)
small_placements = st.lists(st.integers(1, 7), min_size=1, max_size=4)
aligned_placements = st.lists(st.sampled_from([1, 2, 4, 8, 12, 16, 24, 32, 64]), min_size=1, max_size=10)
models = st.sampled_from(sorted(MODELS))

untimed = settings(deadline=None)  # the first example of a test may wait for the compiler


# --- Brute force: play the rounds -------------------------------------------------------------------------------------


def rack_of_each_rank(racks: list[int]) -> list[int]:
    return [rack for rack, gpus in enumerate(sorted(racks, reverse=True)) for _ in range(gpus)]


def play_recursive_doubling(racks: list[int]) -> Fraction:
    """Ranks padded to 2^R with virtual ones in the last rack; a round costs 1, or CLIFF if any pair crosses."""
    rack = rack_of_each_rank(racks)
    while not math.log2(len(rack)).is_integer():
        rack.append(rack[-1])
    distances = [2**r for r in range(int(math.log2(len(rack))))]
    cost = [1 if all(rack[i] == rack[i ^ d] for i in range(len(rack))) else CLIFF for d in distances]
    return Fraction(sum(cost), len(cost)) if cost else Fraction(1)


def play_ring(racks: list[int]) -> Fraction:
    """2 (n - 1) steps of an all-reduce; in each, every rank sends one chunk to the next."""
    rack = rack_of_each_rank(racks)
    ranks, steps = len(rack), 2 * (len(rack) - 1)
    cost = [1 if all(rack[i] == rack[(i + 1) % ranks] for i in range(ranks)) else CLIFF for _ in range(steps)]
    return Fraction(sum(cost), len(cost)) if cost else Fraction(1)


def play_hierarchical(racks: list[int]) -> Fraction:
    """Against one rack of as many GPUs; a flat ring at network speed takes over where the hierarchy is slower."""
    if sum(racks) == 1:
        return Fraction(1)
    return min(hierarchical_all_reduce(racks) / hierarchical_all_reduce([sum(racks)]), Fraction(CLIFF))


def hierarchical_all_reduce(racks: list[int]) -> Fraction:
    """Carry out the all-reduce on real data, check the sums, and return its time in vectors over NVLink."""
    length = len(racks) * math.lcm(*racks)
    data = [np.random.default_rng(gpus).integers(100, size=(gpus, length)) for gpus in racks]
    total = sum(vectors.sum(axis=0) for vectors in data)
    elements = max(reduce_scatter(vectors) for vectors in data)
    elements += CLIFF * exchange_across(data)
    elements += max(all_gather(vectors) for vectors in data)
    assert all((vectors == total).all() for vectors in data)
    return Fraction(elements, length)


def chunk(vectors: np.ndarray, index: int) -> slice:
    """The part of the vector that belongs to one GPU of the rack: an equal division."""
    gpus, length = vectors.shape
    size = length // gpus
    return slice(index % gpus * size, (index % gpus + 1) * size)


def reduce_scatter(vectors: np.ndarray) -> int:
    """A ring inside one rack, after which GPU j holds the sum of chunk j + 1; returns the elements a link carried."""
    gpus, carried = len(vectors), 0
    for step in range(gpus - 1):
        for gpu in range(gpus):
            part = chunk(vectors, gpu - step)
            vectors[(gpu + 1) % gpus, part] += vectors[gpu, part]
        carried += part.stop - part.start
    return carried


def all_gather(vectors: np.ndarray) -> int:
    """The ring again, now handing on finished chunks."""
    gpus, carried = len(vectors), 0
    for step in range(gpus - 1):
        for gpu in range(gpus):
            part = chunk(vectors, gpu + 1 - step)
            vectors[(gpu + 1) % gpus, part] = vectors[gpu, part]
        carried += part.stop - part.start
    return carried


def exchange_across(data: list[np.ndarray]) -> int:
    """A ring of racks: reduce, then hand on, one of k shares per rack and step; the busiest GPU sets its time."""
    racks, length = len(data), data[0].shape[1]
    owner = [np.empty(length, dtype=np.int64) for _ in data]
    for rack, vectors in enumerate(data):
        for gpu in range(len(vectors)):
            owner[rack][chunk(vectors, gpu + 1)] = gpu
    carried = 0
    for step in range(2 * (racks - 1)):
        reducing = step < racks - 1
        busiest = 0
        for rack in range(racks):
            following = (rack + 1) % racks
            share = np.arange((rack - step) % racks, length, racks)
            sender, receiver = owner[rack][share], owner[following][share]
            kept = data[following][receiver, share] if reducing else 0
            data[following][receiver, share] = kept + data[rack][sender, share]
            busiest = max(busiest, np.bincount(sender).max(), np.bincount(receiver).max())
        carried += int(busiest)
    return carried


PLAY: dict[str, Callable[[list[int]], Fraction]] = {
    "recursive-doubling": play_recursive_doubling,
    "ring": play_ring,
    "hierarchical": play_hierarchical,
}


# --- Agreement with the brute force, and known answers ----------------------------------------------------------------


def test_every_model_has_a_brute_force_and_a_distinct_id() -> None:
    assert MODELS == {"recursive-doubling": 0, "ring": 1, "hierarchical": 2}
    assert PLAY.keys() == MODELS.keys()


@untimed
@given(st.one_of(placements, aligned_placements))
def test_recursive_doubling_agrees_with_its_rounds(racks: list[int]) -> None:
    assert communication_ratio(racks, "recursive-doubling") == pytest.approx(float(play_recursive_doubling(racks)))


@untimed
@given(placements)
def test_ring_agrees_with_its_steps(racks: list[int]) -> None:
    assert communication_ratio(racks, "ring") == pytest.approx(float(play_ring(racks)))


@untimed
@given(small_placements)
def test_hierarchical_agrees_with_an_all_reduce_carried_out(racks: list[int]) -> None:
    assert communication_ratio(racks, "hierarchical") == pytest.approx(float(play_hierarchical(racks)))


@pytest.mark.parametrize(("racks", "ratio"), [([16], 1.0), ([8, 8], 5.25), ([15, 1], 18.0)])
def test_check_from_the_field(racks: list[int], ratio: float) -> None:
    assert communication_ratio(racks) == ratio


def test_fifteen_plus_one_communicates_3_43_times_as_long_as_eight_plus_eight() -> None:
    assert communication_ratio([15, 1]) / communication_ratio([8, 8]) == pytest.approx(3.43, abs=0.005)


def test_even_racks_under_the_hierarchy_pay_the_cliff_on_k_minus_1_of_n_minus_1_chunks() -> None:
    assert communication_ratio([8, 8], "hierarchical") == pytest.approx((14 + 18 * 1) / 15)
    assert communication_ratio([64] * 8, "hierarchical") == pytest.approx((504 + 18 * 7) / 511)


# --- Properties -------------------------------------------------------------------------------------------------------


@untimed
@given(placements, models, st.randoms(use_true_random=False))
def test_order_of_racks_changes_nothing(racks: list[int], model: str, random: object) -> None:
    shuffled = list(racks)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert communication_ratio(shuffled, model) == communication_ratio(racks, model)


@untimed
@given(placements, models, st.floats(1.0, 1000.0))
def test_ratio_lies_between_one_and_the_cliff(racks: list[int], model: str, cliff: float) -> None:
    assert 1.0 <= communication_ratio(racks, model, nvlink=cliff, network=1.0) <= cliff


def test_all_rounds_across_cost_no_bit_more_than_the_cliff() -> None:
    cliffs = np.random.default_rng(0).uniform(1.0, 100.0, size=500)
    assert np.any(cliffs * 3 / 3 > cliffs)  # plain arithmetic over the three rounds of 5 + 1 would
    assert all(communication_ratio([5, 1], nvlink=cliff, network=1.0) <= cliff for cliff in cliffs)


@untimed
@given(st.integers(1, 10_000), models)
def test_one_rack_is_all_nvlink(gpus: int, model: str) -> None:
    assert communication_ratio([gpus], model) == 1.0


@untimed
@given(placements, models)
def test_without_a_cliff_even_racks_are_as_good_as_one(racks: list[int], model: str) -> None:
    even = [racks[0]] * len(racks)
    assert communication_ratio(even, model, nvlink=50.0, network=50.0) == 1.0


# --- Ideal shape and speed --------------------------------------------------------------------------------------------


def ideal_shape(gpus: int, slice_gpus: int, rack_gpus: int) -> tuple[float, list[int]]:
    scratch = np.zeros(2 * gpus // rack_gpus + 1, dtype=np.int64)
    ratio = ideal_ratio_kernel(0, gpus, slice_gpus, rack_gpus, NVLINK / NETWORK, scratch)
    return ratio, [int(share) for share in scratch if share]


@pytest.mark.parametrize(
    ("gpus", "slice_gpus", "shape"),
    [
        (512, 64, [64] * 8),
        (384, 64, [64] * 6),
        (16, 0, [16]),
        (72, 0, [72]),
        (100, 0, [64, 36]),
        (160, 16, [64, 64, 32]),
        (144, 24, [72, 72]),
        (36, 4, [36]),
        (512, 256, [64] * 8),  # slices of a level above the rack do not shape racks
    ],
)
def test_ideal_shape_fills_racks_with_whole_chunks(gpus: int, slice_gpus: int, shape: list[int]) -> None:
    assert ideal_shape(gpus, slice_gpus, 72) == (communication_ratio(shape), shape)


@untimed
@given(st.integers(1, 2000), st.integers(0, 80), st.integers(1, 80))
def test_ideal_shape_deals_out_chunk_by_chunk(gpus: int, slice_gpus: int, rack_gpus: int) -> None:
    ratio, shape = ideal_shape(gpus, slice_gpus, rack_gpus)

    chunk_gpus = slice_gpus if 0 < slice_gpus <= rack_gpus else min(gpus, rack_gpus)
    if gpus > rack_gpus and chunk_gpus != slice_gpus:
        chunk_gpus = max(2**i for i in range(8) if 2**i <= rack_gpus)
    dealt = [0]
    for start in range(0, gpus, chunk_gpus):
        if dealt[-1] + chunk_gpus > rack_gpus:
            dealt.append(0)
        dealt[-1] += min(chunk_gpus, gpus - start)
    assert shape == dealt
    assert ratio == communication_ratio(dealt)


def test_a_hero_on_eight_aligned_racks_runs_at_speed_one() -> None:
    ideal, shape = ideal_shape(512, 64, 72)
    assert speed_kernel(communication_ratio(shape), ideal, 0.3) == 1.0


def test_speed_of_a_job_split_eight_and_eight() -> None:
    assert speed_kernel(5.25, 1.0, 0.2) == pytest.approx(1 / (0.8 + 0.2 * 5.25))


@untimed
@given(placements, placements, models, st.floats(0.0, 1.0))
def test_speed_is_at_most_one_and_falls_as_communication_grows(
    a: list[int], b: list[int], model: str, c: float
) -> None:
    faster, slower = sorted([communication_ratio(a, model), communication_ratio(b, model)])
    assert 0.0 < speed_kernel(slower, faster, c) <= speed_kernel(faster, faster, c) <= 1.0
    assert speed_kernel(faster, slower, c) == pytest.approx(1.0)
    assert speed_kernel(slower, faster, 0.0) == 1.0


def test_speed_takes_arrays() -> None:
    ratios, fractions = np.array([1.0, 5.25, 18.0]), np.array([0.2, 0.2, 0.2])
    expected = [float(speed_kernel(ratio, 1.0, 0.2)) for ratio in ratios]
    assert np.array_equal(speed_kernel(ratios, np.ones(3), fractions), expected)
    assert all(faster > slower for faster, slower in pairwise(expected))


@untimed
@given(st.lists(st.integers(1, 72), min_size=2, max_size=6), models)
def test_kernel_reads_only_the_first_k_racks(racks: list[int], model: str) -> None:
    counts = np.array([*sorted(racks, reverse=True), 999, -7], dtype=np.int64)
    assert ratio_kernel(MODELS[model], counts, len(racks), 18.0) == communication_ratio(racks, model)
