"""Workloads that keep most of their pods: lost nodes are replaced, elastic workloads grow and shrink."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from nvlenv.policies.kueue.types import HOSTNAME, Assignment, Gates, KueueNode, PodSetRequest, Repair, Usage
from tests.policies.kueue.kueue_clusters import (
    ANY,
    LEVELS,
    assign,
    flat,
    hosts,
    job,
    place,
    preferred,
    required,
    shown,
    slices_only,
)

# --- Lost nodes -------------------------------------------------------------------------------------------------------


def on(*domains: tuple[str, int]) -> Assignment:
    return Assignment((HOSTNAME,), tuple(((host,), count) for host, count in domains))


def repaired(
    nodes: Sequence[KueueNode], podset: PodSetRequest, old: Assignment, lost: str, **rest: Any
) -> dict[str, int] | str:
    gates = rest.pop("gates", None)
    return place(nodes, podset, gates, repair=Repair((lost,), {"job": old}, **rest))


TWO_RACKS = {"b1 rack-a a1": 4, "b1 rack-a a2": 4, "b1 rack-ab b1": 4, "b1 rack-ab b2": 4}


def test_pods_of_a_lost_node_stay_in_the_required_domain() -> None:
    nodes = hosts({**TWO_RACKS, "b1 rack-a a1": 1})
    assert repaired(nodes, job(4, required("rack")), on(("a1", 1), ("lost", 3)), "lost") == {"a1": 1, "a2": 3}
    assert repaired(nodes, job(7, required("rack")), on(("a1", 1), ("lost", 6)), "lost") == (
        'topology "default" allows to fit only 5 out of 6 pod(s). Total nodes: 4; excluded: topologyDomain: 2'
    )


def test_only_a_required_placement_confines_the_replacement() -> None:
    nodes = hosts({**TWO_RACKS, "b1 rack-a a1": 1, "b1 rack-a a2": 1})
    old = on(("a1", 1), ("lost", 3))
    assert repaired(nodes, job(4, preferred("rack")), old, "lost") == {"a1": 1, "b1": 3}
    assert repaired(nodes, job(4, ANY), old, "lost") == {"a1": 1, "b1": 3}
    nothing_left = repaired(nodes, job(3, required("rack")), on(("lost", 3)), "lost")
    assert nothing_left == {"b1": 3}


def test_a_broken_slice_is_completed_in_its_own_domain() -> None:
    nodes = hosts({**TWO_RACKS, "b1 rack-a a2": 2})
    old = on(("a1", 2), ("b1", 4), ("lost", 2))
    topology = preferred("block", ("rack", 4))
    assert repaired(nodes, job(8, topology), old, "lost") == {"a1": 2, "a2": 2, "b1": 4}


def test_a_whole_slice_may_move_elsewhere() -> None:
    nodes = hosts(TWO_RACKS)
    old = on(("a1", 4), ("lost", 4))
    assert repaired(nodes, job(8, preferred("block", ("rack", 4))), old, "lost") == {"a1": 8}


def test_a_broken_slice_keeps_the_inner_layer_that_the_lost_pods_fill() -> None:
    nodes = hosts({"b1 r1 h1": 3, "b1 r1 h2": 3, "b1 r1 h3": 9, "b1 r2 h4": 9})
    old = on(("h3", 4), ("lost", 4))
    topology = preferred("block", ("rack", 8), (HOSTNAME, 2))
    busy = [Usage(("h3",), {"gpu": 1}, 9)]
    result = assign(LEVELS, nodes, [job(8, topology)], repair=Repair(("lost",), {"job": old}), usage=busy)
    assert shown(result["job"]) == {"h1": 2, "h2": 2, "h3": 4}


def test_the_finest_layer_that_divides_the_lost_pods_holds() -> None:
    nodes = hosts({"b1 r1 h1": 3, "b1 r1 h2": 1, "b1 r2 h3": 3, "b1 r3 h4": 0})
    topology = preferred("block", ("block", 8), ("rack", 4), (HOSTNAME, 2))
    assert repaired(nodes, job(8, topology), on(("h4", 4), ("lost", 4)), "lost") == {"h1": 2, "h3": 2, "h4": 4}


def test_without_the_multi_layer_gate_a_broken_slice_is_completed_pod_by_pod() -> None:
    nodes = hosts({"b1 r1 h1": 1, "b1 r1 h2": 1, "b1 r1 h3": 0})
    podset, old = job(8, preferred("block", ("block", 8), (HOSTNAME, 2))), on(("h3", 6), ("lost", 2))
    assert repaired(nodes, podset, old, "lost", gates=Gates(multi_layer=False)) == {"h1": 1, "h2": 1, "h3": 6}
    reason = 'topology "default" doesn\'t allow to fit any of 1 slice(s). Total nodes: 3; excluded: resource "gpu": 1'
    assert repaired(nodes, podset, old, "lost") == reason


def test_slices_alone_lose_their_level_with_a_slice_that_no_layer_divides() -> None:
    old = on(("a1", 3), ("lost", 1))
    assert repaired(hosts(TWO_RACKS), job(4, slices_only(("rack", 4))), old, "lost") == "topology level not specified"


def test_new_pods_join_the_old_ones_in_order_of_the_full_path() -> None:
    nodes = hosts({"r1 z": 2, "r2 a": 2, "r3 m": 0}, LEVELS[1:])
    result = assign(
        LEVELS[1:], nodes, [job(3, ANY)], repair=Repair(("lost",), {"job": on(("a", 1), ("z", 1), ("lost", 1))})
    )
    assert result["job"] == Assignment((HOSTNAME,), ((("z",), 2), (("a",), 1)))


def test_a_second_lost_node_is_a_stale_domain() -> None:
    old = on(("gone", 1), ("lost", 1))
    assert repaired(hosts(TWO_RACKS), job(2, ANY), old, "lost") == (
        "Cannot replace the node, because the existing topologyAssignment is invalid, "
        "as it contains the stale domain gone"
    )


def test_a_replacement_of_nothing_is_a_failure() -> None:
    old = on(("a1", 1))
    assert repaired(hosts(TWO_RACKS), job(1, ANY), old, "lost") == (
        "cannot find replacement assignment for unhealthy node: lost"
    )


def test_a_plain_pod_keeps_its_place() -> None:
    nodes, old = hosts(TWO_RACKS), on(("lost", 1))
    assert repaired(nodes, job(1, ANY), old, "lost", owned_by_single_pod=True) == {"lost": 1}
    gates = Gates(skip_pod_owned=False)
    assert repaired(nodes, job(1, ANY), old, "lost", owned_by_single_pod=True, gates=gates) == {"a1": 1}


def test_replacements_see_each_other_and_pod_sets_without_an_assignment_are_left_out() -> None:
    podsets = [PodSetRequest(name, 1, {"gpu": 3}, ANY) for name in "abc"]
    repair = Repair(("lost",), {"a": on(("lost", 1)), "c": on(("lost", 1))})
    result = assign(LEVELS, hosts(TWO_RACKS), podsets, repair=repair)
    assert {name: shown(outcome) for name, outcome in result.items()} == {"a": {"a1": 1}, "c": {"a2": 1}}


def test_a_repair_without_unhealthy_nodes_is_an_ordinary_placement() -> None:
    assert place(flat(1), job(1, ANY), repair=Repair((), {"job": on(("lost", 1))})) == {"h1": 1}


# --- Elastic workloads ------------------------------------------------------------------------------------------------


ELASTIC = Gates(elastic=True)


@pytest.mark.parametrize(
    ("count", "placed"),
    [
        (4, {"h1": 1, "h2": 3}),
        (3, {"h1": 1, "h2": 2}),
        (1, {"h1": 1}),
        (6, {"h1": 3, "h2": 3}),
        (7, 'topology "default" allows to fit only 2 out of 3 pod(s). Total nodes: 2; excluded: resource "gpu": 1'),
    ],
)
def test_an_elastic_workload_keeps_its_pods(count: int, placed: dict[str, int] | str) -> None:
    podset = job(count, ANY, previous=on(("h1", 1), ("h2", 3)))
    assert place(flat(3, 3), podset, ELASTIC) == placed


def test_an_elastic_workload_with_a_vanished_leaf_is_placed_anew() -> None:
    podset = job(3, ANY, previous=on(("h1", 1), ("gone", 1)))
    assert place(flat(1, 3), podset, ELASTIC) == {"h2": 3}
    assert place(flat(1, 3), job(2, ANY, previous=on(("h1", 1)))) == {"h2": 2}


def test_a_growing_group_keeps_its_leader() -> None:
    leader = PodSetRequest("leader", 1, {"gpu": 1}, ANY, group="g", previous=on(("h2", 1)))
    workers = PodSetRequest("workers", 3, {"gpu": 1}, ANY, group="g", previous=on(("h1", 2)))
    result = assign([HOSTNAME], flat(2, 2), [leader, workers], ELASTIC)
    assert {name: shown(outcome) for name, outcome in result.items()} == {
        "leader": {"h2": 1},
        "workers": {"h1": 2, "h2": 1},
    }
