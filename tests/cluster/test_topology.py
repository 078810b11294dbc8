"""Clusters from numbers and from labelled nodes: numbering, names, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvlenv.cluster.topology import NodeRow, cluster_from_nodes, domain_names, levels_to_rack, uniform_cluster
from nvlenv.cluster.types import ClusterSpec
from nvlenv.common.errors import InputError

LEVELS = ("block", "rack", "hostname")


def rows_of(*places: tuple[str, ...], levels: tuple[str, ...] = LEVELS, gpus: int = 4) -> list[NodeRow]:
    return [(dict(zip(levels, place, strict=True)), gpus, False) for place in places]


@st.composite
def labelled_nodes(draw: st.DrawFn) -> tuple[tuple[str, ...], list[NodeRow]]:
    """Any number of levels, unequal domains whose names repeat under different parents."""
    levels = tuple(f"level-{i}" for i in range(draw(st.integers(2, 5))))
    paths = draw(
        st.lists(
            st.tuples(*[st.sampled_from(["a", "b", "c10", "c2"])] * (len(levels) - 1)),
            min_size=1,
            max_size=25,
        )
    )
    gpus = draw(st.lists(st.integers(1, 8), min_size=len(paths), max_size=len(paths)))
    cordoned = draw(st.lists(st.booleans(), min_size=len(paths), max_size=len(paths)))
    names = draw(st.permutations([f"node-{i:02d}" for i in range(len(paths))]))
    rows = [
        (dict(zip(levels, (*path, name), strict=True)), g, c)
        for path, name, g, c in zip(paths, names, gpus, cordoned, strict=True)
    ]
    return levels, rows


def assert_sound(spec: ClusterSpec) -> None:
    """What every reader of a `ClusterSpec` relies on."""
    assert len(set(spec.rack_names)) == spec.racks
    assert len(set(spec.node_names)) == spec.nodes
    assert spec.node_rack.shape == spec.node_gpus.shape == spec.cordoned.shape == (spec.nodes,)
    assert spec.rack_parents.shape == (spec.racks, len(spec.levels) - 2)
    assert (spec.node_rack.dtype, spec.node_gpus.dtype, spec.rack_parents.dtype) == (np.int32,) * 3
    assert spec.cordoned.dtype == np.bool_
    assert np.all(np.diff(spec.node_rack) >= 0)
    assert np.array_equal(np.unique(spec.node_rack), np.arange(spec.racks))
    for column in spec.rack_parents.T:
        assert np.array_equal(np.unique(column), np.arange(column.max() + 1))
        assert np.all(np.diff(column) >= 0)


@given(labelled_nodes())
def test_nodes_of_any_labels_form_a_sound_cluster(case: tuple[tuple[str, ...], list[NodeRow]]) -> None:
    levels, rows = case
    spec = cluster_from_nodes(levels, rows)
    assert_sound(spec)
    assert spec.gpus == sum(gpus for _, gpus, _ in rows)


@given(labelled_nodes())
def test_every_node_keeps_its_labels_gpus_and_cordon(case: tuple[tuple[str, ...], list[NodeRow]]) -> None:
    levels, rows = case
    spec = cluster_from_nodes(levels, rows)
    number = {name: i for i, name in enumerate(spec.node_names)}
    for labels, gpus, cordoned in rows:
        node = number[labels[levels[-1]]]
        rack = spec.node_rack[node]
        assert spec.rack_names[rack] == "/".join(labels[level] for level in levels[:-1])
        assert (spec.node_gpus[node], spec.cordoned[node]) == (gpus, cordoned)
        for depth, level in enumerate(levels[:-2], start=1):
            name = domain_names(spec, level)[spec.rack_parents[rack, depth - 1]]
            assert name == "/".join(labels[above] for above in levels[:depth])


@given(labelled_nodes(), st.randoms(use_true_random=False))
def test_order_of_the_rows_does_not_matter(case: tuple[tuple[str, ...], list[NodeRow]], random: object) -> None:
    levels, rows = case
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    first, second = cluster_from_nodes(levels, rows), cluster_from_nodes(levels, shuffled)
    assert (first.rack_names, first.node_names) == (second.rack_names, second.node_names)
    assert np.array_equal(first.node_gpus, second.node_gpus)


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 20), st.integers(1, 8))
def test_uniform_clusters_are_sound_and_their_blocks_are_level(
    racks: int, blocks: int, nodes: int, gpus_per_node: int
) -> None:
    blocks = min(blocks, racks)
    spec = uniform_cluster(racks, blocks, nodes, gpus_per_node)
    assert_sound(spec)
    assert (spec.racks, spec.nodes, spec.gpus) == (racks, racks * nodes, racks * nodes * gpus_per_node)
    sizes = np.bincount(spec.rack_parents[:, 0])
    assert len(sizes) == blocks
    assert sizes.max() - sizes.min() <= 1


def test_names_are_zero_padded_so_that_string_order_is_numeric() -> None:
    spec = uniform_cluster(16, blocks=2)
    assert spec.rack_names[7] == "block-00/rack-007"
    assert spec.node_names[7 * 18 + 3] == "rack-007-node-03"
    assert domain_names(spec, "block") == ("block-00", "block-01")
    assert spec.cliff == 18.0


def test_padding_grows_with_the_numbers() -> None:
    spec = uniform_cluster(1200, nodes_per_rack=1, levels=("rack", "hostname"))
    assert spec.rack_names[0] == "rack-0000"
    assert list(spec.rack_names) == sorted(spec.rack_names)


def test_unpadded_rack_10_sorts_before_rack_2_as_in_kueue() -> None:
    spec = cluster_from_nodes(LEVELS, rows_of(("b", "rack-2", "n1"), ("b", "rack-10", "n2")))
    assert spec.rack_names == ("b/rack-10", "b/rack-2")


def test_one_rack_name_under_two_blocks_is_two_racks() -> None:
    spec = cluster_from_nodes(LEVELS, rows_of(("b1", "r", "n1"), ("b0", "r", "n2"), ("b1", "r", "n3")))
    assert spec.rack_names == ("b0/r", "b1/r")
    assert spec.node_names == ("n2", "n1", "n3")
    assert spec.rack_parents.tolist() == [[0], [1]]


def test_two_levels_have_no_coarser_domain() -> None:
    spec = uniform_cluster(3, levels=("rack", "hostname"))
    assert_sound(spec)
    assert spec.rack_parents.shape == (3, 0)
    assert domain_names(spec, "rack") == ("rack-000", "rack-001", "rack-002")


def test_labels_with_a_domain_give_short_names() -> None:
    levels = ("cloud.provider.com/topology-block", "cloud.provider.com/topology-rack", "kubernetes.io/hostname")
    spec = uniform_cluster(2, nodes_per_rack=1, levels=levels)
    assert spec.rack_names[1] == "topology-block-00/topology-rack-001"


def test_unequal_racks_keep_their_sizes() -> None:
    spec = uniform_cluster(3, nodes_per_rack=(18, 16, 17))
    assert np.bincount(spec.node_rack).tolist() == [18, 16, 17]


def test_levels_below_the_nvlink_domain_are_left_out() -> None:
    levels = ("zone", "block", "rack", "tray", "hostname")
    rows = rows_of(("z", "b", "r", "t0", "n0"), ("z", "b", "r", "t1", "n1"), levels=levels)
    spec = cluster_from_nodes(levels, rows, nvlink_level="rack")
    assert spec.levels == ("zone", "block", "rack", "hostname")
    assert spec.racks == 1
    assert spec.height_of("block") == 1
    assert cluster_from_nodes(levels, rows).racks == 2


def test_domain_names_of_nodes_are_their_names() -> None:
    spec = uniform_cluster(2, nodes_per_rack=2)
    assert domain_names(spec, "hostname") == spec.node_names


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([({"block": "b", "hostname": "n7"}, 4, False)], "node n7, label rack: found no such label"),
        ([({"block": "b", "rack": "r"}, 4, False)], "node number 0, label hostname: found no such label"),
        ([({"block": "b", "rack": "", "hostname": "n7"}, 4, False)], "node n7, label rack: found ''"),
        ([({"block": "b", "rack": "a/b", "hostname": "n7"}, 4, False)], "node n7, label rack: found 'a/b'"),
        (rows_of(("b", "r", "n7"), ("b", "s", "n7")), "node n7: found two nodes of this name"),
        (rows_of(("b", "r", "n7"), gpus=-1), "node n7, gpus: found -1"),
        (rows_of(("b", "r", "n7"), gpus=0), "gpus: found no GPU in any node"),
        ([], "nodes: found none"),
    ],
)
def test_a_bad_node_is_named_in_one_line(rows: list[NodeRow], message: str) -> None:
    with pytest.raises(InputError) as caught:
        cluster_from_nodes(LEVELS, rows, where="nodes.json")
    assert str(caught.value).startswith(f"nodes.json: {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"racks": 0}, "racks"),
        ({"racks": 2, "blocks": 3}, "blocks"),
        ({"racks": 2, "blocks": 0}, "blocks"),
        ({"racks": 2, "blocks": 2, "levels": ("rack", "hostname")}, "blocks"),
        ({"racks": 2, "nodes_per_rack": (18, 18, 18)}, "nodes_per_rack"),
        ({"racks": 2, "nodes_per_rack": 0}, "nodes_per_rack"),
        ({"racks": 2, "levels": ("hostname",)}, "levels"),
        ({"racks": 2, "levels": ("rack", "rack", "hostname")}, "levels"),
        ({"racks": 2, "nvlink": 10.0}, "nvlink, network"),
        ({"racks": 2, "network": 0.0}, "nvlink, network"),
        ({"racks": 2, "nvlink": float("nan")}, "nvlink, network"),
        ({"racks": 2, "gpus_per_node": 0}, "gpus"),
    ],
)
def test_impossible_numbers_name_the_argument(arguments: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as caught:
        uniform_cluster(**arguments)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_unknown_nvlink_level_lists_the_levels() -> None:
    with pytest.raises(InputError, match=r"nvlink_level: found 'clique', expected one of \['block', 'rack'\]"):
        levels_to_rack(LEVELS, "clique")


def test_unknown_level_has_no_domains() -> None:
    with pytest.raises(InputError, match="zone"):
        domain_names(uniform_cluster(2), "zone")
