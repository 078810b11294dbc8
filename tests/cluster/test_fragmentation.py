"""Fragmentation metrics: each against a brute force that places pods one by one, known answers, and properties."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvlenv.cluster.fragmentation import (
    fragmentation_index,
    free_slot_table,
    free_slots,
    largest_slice,
)
from nvlenv.common.errors import InputError
from nvlenv.simulator.state import SLOT_SIZES

RACKS = [18, 17, 15, 8]  # free nodes

free_nodes = st.lists(st.integers(0, 18), max_size=12)
sizes = st.integers(1, 18)
randoms = st.randoms(use_true_random=False)


def place_slices_one_by_one(free: list[int], slice_nodes: int) -> int:
    left, placed = list(free), 0
    while any(nodes >= slice_nodes for nodes in left):
        rack = next(rack for rack, nodes in enumerate(left) if nodes >= slice_nodes)
        left[rack] -= slice_nodes
        placed += 1
    return placed


@pytest.mark.parametrize(("slice_nodes", "slots"), [(16, 2), (8, 6), (4, 13), (18, 1), (1, 58)])
def test_slots_of_a_known_cluster(slice_nodes: int, slots: int) -> None:
    assert free_slots(RACKS, slice_nodes) == slots


@given(free_nodes, sizes)
def test_slots_are_the_slices_that_can_be_placed_one_by_one(free: list[int], size: int) -> None:
    assert free_slots(free, size) == place_slices_one_by_one(free, size)


def test_slot_table_of_a_known_cluster() -> None:
    assert free_slot_table(RACKS, SLOT_SIZES) == {1: 58, 2: 28, 4: 13, 8: 6, 16: 2, 18: 1}


@given(free_nodes, st.lists(sizes, max_size=4))
def test_slot_table_agrees_with_slots(free: list[int], table_sizes: list[int]) -> None:
    assert free_slot_table(free, table_sizes) == {size: free_slots(free, size) for size in table_sizes}


@given(free_nodes.filter(len), sizes, st.data())
def test_freeing_a_node_never_lowers_slots(free: list[int], size: int, data: st.DataObject) -> None:
    rack = data.draw(st.integers(0, len(free) - 1))
    freer = [nodes + (i == rack) for i, nodes in enumerate(free)]
    assert free_slots(free, size) <= free_slots(freer, size) <= free_slots(free, size) + 1
    assert largest_slice(freer) >= largest_slice(free)


@given(free_nodes, sizes, randoms)
def test_order_of_racks_changes_nothing(free: list[int], size: int, random: object) -> None:
    shuffled = list(free)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    metrics: list[Callable[[list[int]], object]] = [
        lambda f: free_slot_table(f, SLOT_SIZES),
        largest_slice,
        lambda f: fragmentation_index(f, size),
    ]
    assert [metric(shuffled) for metric in metrics] == [metric(free) for metric in metrics]


@given(free_nodes)
def test_largest_slice_is_the_largest_size_with_a_slot(free: list[int]) -> None:
    assert largest_slice(free) == max((size for size in range(1, 20) if free_slots(free, size)), default=0)


def test_a_known_cluster_takes_a_job_of_two_slices_of_sixteen() -> None:
    assert largest_slice(RACKS) == 18
    assert free_slots(RACKS, 16) == 2


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


def test_arrays_given_are_left_as_they_were() -> None:
    racks = np.array(RACKS, dtype=np.int8)
    free_slots(racks, 4), largest_slice(racks), fragmentation_index(racks, 4)
    assert racks.tolist() == RACKS


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: free_slots([4, -1], 2), r"free_nodes_per_rack\[1\]: found -1, expected at least 0"),
        (lambda: free_slots([[4]], 2), "free_nodes_per_rack: found 2 dimensions"),
        (lambda: free_slots([4.5], 2), "values of float64, expected integers"),
        (lambda: free_slots([4], 0), "slice_nodes: found 0, expected an integer of at least 1"),
        (lambda: free_slots([4], 1.5), "slice_nodes: found 1.5, expected an integer"),  # type: ignore[arg-type]
        (lambda: free_slot_table([4], (2, -2)), "slice_nodes: found -2"),
        (lambda: largest_slice([-3]), "found -3"),
        (lambda: fragmentation_index([3], 0), "slice_nodes: found 0"),
    ],
)
def test_bad_input_is_told_in_one_line(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)
