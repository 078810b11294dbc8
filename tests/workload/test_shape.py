"""Sizes: rounding to nodes, equal slices, and what an empty cluster can hold."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvlenv.cluster.types import ClusterSpec
from nvlenv.common.errors import InputError
from nvlenv.workload.fit import Capacity, cut_slices, round_to_nodes
from nvlenv.workload.mix import JobTraits

Clusters = Callable[..., ClusterSpec]


def test_sizes_round_as_they_are_asked_for_on_nodes_of_four() -> None:
    asked = np.array([0.25, 1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 100])
    np.testing.assert_array_equal(round_to_nodes(asked, 4), [1, 1, 2, 4, 4, 8, 8, 8, 12, 12, 16, 100])


@given(st.lists(st.floats(0.01, 5000), min_size=1), st.integers(1, 16))
def test_rounded_sizes_hold_the_job_and_fill_nodes(asked: list[float], node: int) -> None:
    rounded = round_to_nodes(np.array(asked), node)
    assert (rounded >= np.array(asked)).all()
    assert ((rounded % node == 0) | (rounded < node)).all()
    np.testing.assert_array_equal(round_to_nodes(rounded.astype(float), node), rounded)


@pytest.mark.parametrize(
    ("gpus", "limit", "expected"),
    [
        (96, 64, (96, 48)),
        (64, 64, (64, 0)),
        (512, 64, (512, 64)),
        (132, 64, (132, 44)),
        (100, 64, (104, 52)),
        (8, 0, (8, 0)),
    ],
)
def test_slices_are_equal_and_few(gpus: int, limit: int, expected: tuple[int, int]) -> None:
    size, piece = cut_slices(np.array([gpus], np.int32), np.array([limit], np.int32), np.array([4], np.int32))
    assert (size[0], piece[0]) == expected


@given(st.integers(1, 500), st.integers(1, 40), st.integers(1, 8))
def test_slices_never_exceed_their_limit_nor_split_a_pod(pods: int, slice_pods: int, pod: int) -> None:
    gpus, limit = pods * pod, slice_pods * pod
    size, piece = (int(a[0]) for a in cut_slices(np.array([gpus]), np.array([limit]), np.array([pod])))
    whole = piece or size
    assert whole <= limit and whole % pod == 0 and size % whole == 0
    assert size // whole == -(-gpus // limit)
    assert gpus <= size < gpus + pod * (size // whole)


def test_the_largest_job_of_a_class_counts_whole_slices_only(make_cluster: Clusters) -> None:
    room = Capacity(make_cluster(racks=3, cordoned=range(4)))  # racks of 56, 72 and 72 GPUs
    assert room.gpus == 200
    assert room.largest(JobTraits(name="any")) == 200
    assert room.largest(JobTraits(name="rack", mode="required")) == 72
    assert room.largest(JobTraits(name="block", mode="required", level="block")) == 128
    assert room.largest(JobTraits(name="sliced", mode="required", slice_gpus=64)) == 128
    assert room.largest(JobTraits(name="halves", mode="required", slice_gpus=28)) == 2 * 28 * 3


def test_pods_larger_than_what_is_left_of_a_node_do_not_count(make_cluster: Clusters) -> None:
    assert Capacity(make_cluster(racks=2)).largest(JobTraits(name="threes", gpus_per_pod=3)) == 2 * 18 * 3


@pytest.mark.parametrize(
    ("traits", "field"),
    [
        ({"mode": "required", "slice_gpus": 76}, "slice_gpus"),
        ({"mode": "required", "slice_gpus": 66}, "slice_gpus"),
        ({"gpus_per_pod": 8}, "gpus_per_pod"),
        ({"mode": "required", "level": "hostname"}, "level"),
        ({"mode": "required", "level": "aisle"}, "level"),
    ],
)
def test_a_class_that_no_rack_can_hold_is_refused(lab16: ClusterSpec, traits: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as caught:
        Capacity(lab16).check(JobTraits.model_validate({"name": "a", **traits}))
    assert field in str(caught.value)


def test_a_cluster_without_a_node_for_pods_is_refused(make_cluster: Clusters) -> None:
    with pytest.raises(InputError, match="no node that takes pods"):
        Capacity(make_cluster(racks=1, nodes=2, cordoned=(0, 1)))
