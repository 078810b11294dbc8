"""Fragmentation metrics: each against a brute force that places pods one by one, known answers, and properties."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvlenv.cluster.fragmentation import (
    expected_start,
    fragmentation,
    fragmentation_index,
    fragmentation_stall,
    free_slot_table,
    free_slots,
    largest_slice,
    largest_sliced_job,
    rack_fgd,
    stranded_gpus,
    unreachable_gpus,
    whole_racks_free,
)
from nvlenv.common.errors import InputError

RACKS = [18, 17, 15, 8]  # free nodes

free_nodes = st.lists(st.integers(0, 18), max_size=12)
sizes = st.integers(1, 18)
nodes = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=20)  # (free GPUs, rack)
shapes = st.tuples(st.integers(1, 6), st.integers(1, 4))  # (pods, GPUs per pod)
hours = st.one_of(st.just(0.0), st.just(math.inf), st.integers(1, 48).map(float))
releases = st.lists(st.lists(hours, max_size=8), max_size=5)
randoms = st.randoms(use_true_random=False)


# --- Brute force ------------------------------------------------------------------------------------------------------


def place_slices_one_by_one(free: list[int], slice_nodes: int) -> int:
    left, placed = list(free), 0
    while any(nodes >= slice_nodes for nodes in left):
        rack = next(rack for rack, nodes in enumerate(left) if nodes >= slice_nodes)
        left[rack] -= slice_nodes
        placed += 1
    return placed


def some_shape_fits(free: list[int], slices: int, slice_nodes: int) -> bool:
    """Try every way to share the slices out over the racks."""
    shares = product(range(slices + 1), repeat=len(free))
    return any(
        sum(share) == slices and all(n * slice_nodes <= nodes for n, nodes in zip(share, free, strict=True))
        for share in shares
    )


def unusable_gpus(nodes: list[tuple[int, int]], pods: int, pod_gpus: int) -> int:
    """Rack by rack, start as many pods as will fit; then count what the job could not have touched."""
    racks: dict[int, list[int]] = defaultdict(list)
    for free, rack in nodes:
        racks[rack].append(free)
    lost = 0
    for frees in racks.values():
        left, started = list(frees), 0
        while any(free >= pod_gpus for free in left):
            left[next(i for i, free in enumerate(left) if free >= pod_gpus)] -= pod_gpus
            started += 1
        lost += sum(frees) if started < pods else sum(free for free in frees if free < pod_gpus)
    return lost


def wait_hour_by_hour(racks: list[list[float]], slice_nodes: int, slices: int) -> float:
    for now in sorted({0.0, *(hour for rack in racks for hour in rack if hour < math.inf)}):
        released = [sum(hour <= now for hour in rack) for rack in racks]
        if place_slices_one_by_one(released, slice_nodes) >= slices:
            return now
    return math.inf


def columns(nodes: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [free for free, _ in nodes], [rack for _, rack in nodes]


# --- Slots ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slice_nodes", "slots"), [(16, 2), (8, 6), (4, 13), (18, 1), (1, 58)])
def test_slots_of_a_known_cluster(slice_nodes: int, slots: int) -> None:
    assert free_slots(RACKS, slice_nodes) == slots


@given(free_nodes, sizes)
def test_slots_are_the_slices_that_can_be_placed_one_by_one(free: list[int], size: int) -> None:
    assert free_slots(free, size) == place_slices_one_by_one(free, size)


def test_slot_table_has_the_usual_sizes() -> None:
    assert free_slot_table(RACKS) == {1: 58, 2: 28, 4: 13, 8: 6, 16: 2, 18: 1}


@given(free_nodes, st.lists(sizes, max_size=4))
def test_slot_table_agrees_with_slots(free: list[int], table_sizes: list[int]) -> None:
    assert free_slot_table(free, table_sizes) == {size: free_slots(free, size) for size in table_sizes}


@given(free_nodes.filter(len), sizes, st.data())
def test_freeing_a_node_never_lowers_slots(free: list[int], size: int, data: st.DataObject) -> None:
    rack = data.draw(st.integers(0, len(free) - 1))
    freer = [nodes + (i == rack) for i, nodes in enumerate(free)]
    assert free_slots(free, size) <= free_slots(freer, size) <= free_slots(free, size) + 1
    assert largest_slice(freer) >= largest_slice(free)
    assert largest_sliced_job(freer, size) >= largest_sliced_job(free, size)


@given(free_nodes, sizes, randoms)
def test_order_of_racks_changes_nothing(free: list[int], size: int, random: object) -> None:
    shuffled = list(free)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    metrics: list[Callable[[list[int]], object]] = [
        free_slot_table,
        largest_slice,
        lambda f: whole_racks_free(f, 18),
        lambda f: largest_sliced_job(f, size),
        lambda f: fragmentation_index(f, size),
        lambda f: fragmentation_stall(4 * sum(f), f, 3, size, 4),
    ]
    assert [metric(shuffled) for metric in metrics] == [metric(free) for metric in metrics]


def test_whole_racks_of_a_known_cluster() -> None:
    assert whole_racks_free(RACKS, 18) == 1
    assert whole_racks_free(RACKS, [18, 17, 18, 8]) == 3  # racks with fewer usable nodes are whole when those are free
    assert whole_racks_free([0, 4], [0, 4]) == 1  # a dead rack is no free rack


@given(st.lists(st.tuples(st.integers(0, 18), st.integers(0, 18)), max_size=10))
def test_whole_racks_hold_no_used_node(racks: list[tuple[int, int]]) -> None:
    free, usable = [min(pair) for pair in racks], [max(pair) for pair in racks]
    expected = sum(1 for a, b in zip(free, usable, strict=True) if b and b - a == 0)
    assert whole_racks_free(free, usable) == expected


@given(free_nodes)
def test_largest_slice_is_the_largest_size_with_a_slot(free: list[int]) -> None:
    assert largest_slice(free) == max((size for size in range(1, 20) if free_slots(free, size)), default=0)


@given(free_nodes, sizes)
def test_largest_sliced_job_fits_and_one_slice_more_does_not(free: list[int], size: int) -> None:
    job = largest_sliced_job(free, size)
    assert job % size == 0
    assert place_slices_one_by_one(free, size) == job // size


def test_a_known_cluster_takes_a_job_of_two_slices_of_sixteen() -> None:
    assert largest_slice(RACKS) == 18
    assert largest_sliced_job(RACKS, 16) == 32


# --- Index, stall and start -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "slice_nodes", "index"),
    [
        (RACKS, 16, 1 - 2 / 3),
        ([15] * 16, 16, 1.0),
        ([16] * 16, 16, 0.0),
        ([5, 5, 5], 16, 0.0),  # 15 nodes: too few wherever they stand
        ([], 16, 0.0),
    ],
)
def test_index_of_a_known_cluster(free: list[int], slice_nodes: int, index: float) -> None:
    assert fragmentation_index(free, slice_nodes) == pytest.approx(index)


@given(free_nodes, sizes)
def test_index_compares_the_racks_with_one_big_rack(free: list[int], size: int) -> None:
    one_rack = place_slices_one_by_one([sum(free)], size)
    lost = one_rack - place_slices_one_by_one(free, size)
    assert fragmentation_index(free, size) == pytest.approx(lost / max(one_rack, 1))
    assert 0.0 <= fragmentation_index(free, size) <= 1.0
    assert fragmentation_index(free, 1) == fragmentation_index([sum(free)], size) == 0.0


@given(
    st.lists(st.integers(0, 6), max_size=4), st.integers(0, 12), st.integers(1, 4), st.integers(1, 6), st.integers(1, 4)
)
def test_stall_is_enough_gpus_but_no_shape(
    free: list[int], part_used: int, slices: int, slice_nodes: int, node_gpus: int
) -> None:
    total = sum(free) * node_gpus + part_used
    enough = total >= slices * slice_nodes * node_gpus
    expected = enough and not some_shape_fits(free, slices, slice_nodes)
    assert fragmentation_stall(total, free, slices, slice_nodes, node_gpus) is expected


def test_stall_of_a_known_cluster() -> None:
    assert fragmentation_stall(58 * 4, RACKS, 3, 16, 4)  # 192 of 232 free GPUs, but two slots
    assert not fragmentation_stall(58 * 4, RACKS, 2, 16, 4)
    assert not fragmentation_stall(58 * 4, RACKS, 4, 16, 4)  # 256 GPUs are not there: a matter of capacity


@given(releases, st.integers(1, 4), st.integers(1, 4))
def test_expected_start_is_the_first_hour_at_which_the_slices_fit(
    racks: list[list[float]], slice_nodes: int, slices: int
) -> None:
    assert expected_start(racks, slice_nodes, slices) == wait_hour_by_hour(racks, slice_nodes, slices)


@given(free_nodes, sizes, st.integers(1, 6))
def test_expected_start_is_now_iff_the_slots_are_free(free: list[int], size: int, slices: int) -> None:
    racks = [[0.0] * nodes + [7.0] * (18 - nodes) for nodes in free]
    assert (expected_start(racks, size, slices) == 0.0) is (free_slots(free, size) >= slices)


@given(releases, st.integers(1, 4), st.integers(1, 4), randoms)
def test_expected_start_ignores_order_and_padding(
    racks: list[list[float]], slice_nodes: int, slices: int, random: object
) -> None:
    matrix = np.full((len(racks), 9), np.inf)
    shuffled = random.sample(racks, len(racks))  # type: ignore[attr-defined]
    for row, rack in zip(matrix, shuffled, strict=True):
        row[: len(rack)] = sorted(rack)
    assert expected_start(matrix, slice_nodes, slices) == expected_start(racks, slice_nodes, slices)


def test_expected_start_of_a_known_cluster() -> None:
    racks = [[0.0, 0.0, 3.0, 9.0], [0.0, 5.0, 5.0, math.inf]]
    assert [expected_start(racks, 2, slices) for slices in (1, 2, 3, 4)] == [0.0, 5.0, 9.0, math.inf]
    assert expected_start(racks, 4, 1) == 9.0
    assert expected_start([], 1, 1) == math.inf


# --- Free GPUs that a job cannot use ----------------------------------------------------------------------------------


@given(nodes, shapes)
def test_stranded_gpus_are_those_no_pod_of_a_fitting_job_can_touch(
    nodes: list[tuple[int, int]], shape: tuple[int, int]
) -> None:
    pods, pod_gpus = shape
    assert stranded_gpus(*columns(nodes), pod_gpus, pods) == unusable_gpus(nodes, pods, pod_gpus)


def test_stranded_gpus_of_two_known_racks() -> None:
    free, rack = [4, 4, 3, 4, 1, 2], [0, 0, 0, 1, 1, 1]
    assert stranded_gpus(free, rack, pod_gpus=4, pods=2) == 3 + 7  # rack 0 fits, its node of 3 is no use; rack 1 no
    assert stranded_gpus(free, rack, pod_gpus=1, pods=1) == 0
    assert stranded_gpus(free, rack, pod_gpus=4, pods=3) == sum(free)


@given(nodes, st.lists(shapes, min_size=1, max_size=4), st.data())
def test_rack_fgd_is_the_expectation_over_the_mix(
    nodes: list[tuple[int, int]], kinds: list[tuple[int, int]], data: st.DataObject
) -> None:
    weights = data.draw(st.lists(st.integers(1, 9), min_size=len(kinds), max_size=len(kinds)))
    mix = [(*kind, weight / sum(weights)) for kind, weight in zip(kinds, weights, strict=True)]
    draws = [unusable_gpus(nodes, *kind) for kind, weight in zip(kinds, weights, strict=True) for _ in range(weight)]
    assert rack_fgd(*columns(nodes), mix) == pytest.approx(sum(draws) / len(draws))


def test_rack_fgd_of_two_known_racks() -> None:
    free, rack = [4, 4, 3, 4, 1, 2], [0, 0, 0, 1, 1, 1]
    assert rack_fgd(free, rack, [(2, 4, 0.25), (1, 1, 0.5), (3, 4, 0.25)]) == pytest.approx(0.25 * 10 + 0.25 * 18)
    assert rack_fgd(free, rack, [(3, 4, 0.25)]) == pytest.approx(0.25 * 18)  # the rest of the mix strands nothing
    assert rack_fgd(free, rack, []) == 0.0


@given(nodes, shapes, randoms)
def test_names_of_racks_and_order_of_nodes_change_no_stranded_gpu(
    nodes: list[tuple[int, int]], shape: tuple[int, int], random: object
) -> None:
    pods, pod_gpus = shape
    names = random.sample(range(10), 4)  # type: ignore[attr-defined]
    renamed = [(free, names[rack]) for free, rack in random.sample(nodes, len(nodes))]  # type: ignore[attr-defined]
    assert stranded_gpus(*columns(renamed), pod_gpus, pods) == stranded_gpus(*columns(nodes), pod_gpus, pods)


@given(nodes, shapes)
def test_stranded_gpus_are_free_gpus_and_grow_with_the_job(
    nodes: list[tuple[int, int]], shape: tuple[int, int]
) -> None:
    pods, pod_gpus = shape
    stranded = stranded_gpus(*columns(nodes), pod_gpus, pods)
    assert 0 <= stranded <= stranded_gpus(*columns(nodes), pod_gpus, pods + 1) <= sum(columns(nodes)[0])


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=20))
def test_unreachable_gpus_and_reachable_ones_are_all_that_is_free(nodes: list[tuple[int, bool]]) -> None:
    free, blocked = [gpus for gpus, _ in nodes], [state for _, state in nodes]
    assert unreachable_gpus(free, blocked) == sum(gpus for gpus, state in nodes if state)
    assert unreachable_gpus(free, blocked) + unreachable_gpus(free, [not b for b in blocked]) == sum(free)


# --- Purity and bad input ---------------------------------------------------------------------------------------------


def test_arrays_given_are_left_as_they_were() -> None:
    racks, free = np.array(RACKS, dtype=np.int8), np.array([4, 2, 0], dtype=np.uint8)
    release = np.array([[5.0, 0.0, 2.0]])
    free_slots(racks, 4), whole_racks_free(racks, 18), fragmentation_index(racks, 4), expected_start(release, 2, 1)
    stranded_gpus(free, [0, 0, 1], 2, 2), unreachable_gpus(free, [True, False, True])
    assert racks.tolist() == RACKS
    assert free.tolist() == [4, 2, 0]
    assert release.tolist() == [[5.0, 0.0, 2.0]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: free_slots([4, -1], 2), r"free_nodes_per_rack\[1\]: found -1, expected at least 0"),
        (lambda: free_slots([[4]], 2), "free_nodes_per_rack: found 2 dimensions"),
        (lambda: free_slots([4.5], 2), "values of float64, expected integers"),
        (lambda: free_slots([4], 0), "slice_nodes: found 0, expected an integer of at least 1"),
        (lambda: free_slots([4], 1.5), "slice_nodes: found 1.5, expected an integer"),  # type: ignore[arg-type]
        (lambda: free_slot_table([4], (2, -2)), "slice_nodes: found -2"),
        (lambda: whole_racks_free([4, 5], [18, 18, 18]), "nodes_per_rack: found 3 racks"),
        (lambda: whole_racks_free([4, 19], 18), r"free_nodes_per_rack\[1\]: found 19"),
        (lambda: largest_slice([-3]), "found -3"),
        (lambda: largest_sliced_job([3], -1), "slice_nodes: found -1"),
        (lambda: fragmentation_index([3], 0), "slice_nodes: found 0"),
        (lambda: fragmentation_stall(-1, [3], 1, 1, 4), "total_free_gpus: found -1"),
        (lambda: fragmentation_stall(12, [3], 0, 1, 4), "demand_slices: found 0"),
        (lambda: fragmentation_stall(12, [3], 1, 1, 0), "node_gpus: found 0"),
        (lambda: expected_start([[0.0], [-1.0]], 1, 1), r"rack_release_hours\[1\]: found -1.0"),
        (lambda: expected_start([[math.nan]], 1, 1), "found nan"),
        (lambda: expected_start([0.0, 1.0], 1, 1), "one list of hours per rack"),
        (lambda: expected_start([[0.0]], 1, 0), "slices: found 0"),
        (lambda: stranded_gpus([4, 4], [0], 4, 1), r"node_rack: found shape \(1,\)"),
        (lambda: stranded_gpus([4], [-1], 4, 1), r"node_rack\[0\]: found -1"),
        (lambda: stranded_gpus([4], [0], 0, 1), "pod_gpus: found 0"),
        (lambda: rack_fgd([4], [0], [(1, 4, 1.5)]), r"mix\[0\] probability: found 1.5"),
        (lambda: rack_fgd([4], [0], [(1, 4, 0.5), (0, 4, 0.5)]), r"mix\[1\] pods: found 0"),
        (lambda: rack_fgd([4], [0], [(1, 4, 0.7), (2, 4, 0.7)]), "mix: found probabilities that total 1.4"),
        (lambda: unreachable_gpus([4, 4], [True]), "blocked: found shape"),
        (lambda: unreachable_gpus([4], [1]), "blocked: found values of int64, expected booleans"),
    ],
)
def test_bad_input_is_told_in_one_line(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)


# --- All of them at once ----------------------------------------------------------------------------------------------


def test_the_record_agrees_with_every_metric_on_its_own() -> None:
    rng = np.random.default_rng(2)
    rack, gpus = np.repeat(np.arange(4), 18), np.full(72, 4)
    free, blocked = rng.choice([0, 2, 4, 4, 4], 72), rng.random(72) < 0.1
    release = np.where(free == 4, 0.0, rng.integers(1, 40, 72))
    whole = np.array([np.sum((rack == r) & (free == 4) & ~blocked) for r in range(4)])

    found = fragmentation(free, gpus, rack, blocked, release, slice_nodes=4, hero_slices=9)

    assert found.free_gpus + found.unreachable_gpus == free.sum()
    assert found.free_slots == free_slot_table(whole)
    assert found.largest_slice == whole.max() and found.largest_job == 4 * free_slots(whole, 4)
    assert found.index == fragmentation_index(whole, 4)
    assert found.hero_stalled == (free[~blocked].sum() >= 9 * 16 and free_slots(whole, 4) < 9)
    never = np.where(blocked, math.inf, release)
    assert found.hero_start == expected_start(never.reshape(4, 18), 4, 9)


def test_a_small_node_holds_no_whole_node_pod() -> None:
    found = fragmentation([4, 4, 2], [4, 4, 2], [0, 0, 0], [False] * 3, slice_nodes=3, hero_slices=1)

    assert (found.free_gpus, found.largest_slice, found.hero_start) == (10, 2, math.inf)


def test_an_empty_cluster_starts_a_hero_at_once() -> None:
    found = fragmentation([4] * 36, [4] * 36, [0] * 18 + [1] * 18, [False] * 36, hero_slices=2)

    assert (found.whole_racks, found.hero_start, found.hero_stalled, found.index) == (2, 0.0, False, 0.0)
