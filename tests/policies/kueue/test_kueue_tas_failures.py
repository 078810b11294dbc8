"""What is rejected before a placement starts, and how a failed one tells its reason."""

from __future__ import annotations

import pytest

from nvlenv.common.errors import InputError
from nvlenv.policies.kueue.snapshot import Snapshot
from nvlenv.policies.kueue.types import HOSTNAME, KueueNode, PodSetRequest, Taint, TopologyMode, TopologyRequest
from tests.policies.kueue.kueue_clusters import ANY, LEVELS, assign, flat, hosts, job, place, preferred, rack, required


@pytest.mark.parametrize(
    ("topology", "reason"),
    [
        (required("rack", (HOSTNAME, 0)), "slice topology requested, but slice size not provided"),
        (required("rack", (HOSTNAME, 2), (HOSTNAME, 0)), "slice topology requested, but slice size not provided"),
        (TopologyRequest(TopologyMode.EMPTY), "topology level not specified"),
        (TopologyRequest(TopologyMode.SLICE_ONLY), "topology level not specified"),
        (required("row"), "no requested topology level: row"),
        (preferred("row", ("hall", 2)), "no requested topology level: row"),
        (required("rack", ("hall", 2)), "no requested topology level for slices: hall"),
        (required("rack", ("block", 2)), "podset slice topology block is above the podset topology rack"),
        (
            required("block", ("rack", 4), ("hall", 2)),
            "no requested topology level for additional slice layer: hall",
        ),
        (
            required("block", ("rack", 4), ("rack", 2)),
            "additional slice layer topology rack must be at a lower level than rack",
        ),
        (
            required("block", ("block", 8), ("rack", 4), (HOSTNAME, 3)),
            "additional slice layer size 3 must evenly divide parent layer size 4",
        ),
    ],
)
def test_a_request_that_makes_no_sense_here_is_rejected_with_a_reason(topology: TopologyRequest, reason: str) -> None:
    assert place(hosts({"b1 r1 h1": 1}), job(1, topology)) == reason


def test_failures_count_in_slices_and_name_the_topology() -> None:
    nodes = rack(3, 3)
    assert (
        place(nodes, job(6, required("rack", (HOSTNAME, 2))), topology="gb200")
        == 'topology "gb200" allows to fit only 2 out of 3 slice(s)'
    )
    assert (
        place(nodes, job(8, required("rack", (HOSTNAME, 4)))) == 'topology "default" doesn\'t allow to fit any of '
        "2 slice(s)"
    )


def test_exclusions_are_sorted_and_count_only_leaves_without_any_room() -> None:
    nodes = [*rack(0, 1, 0), KueueNode("h4", {"rack": "r1", HOSTNAME: "h4"}, {"pods": 0, "gpu": 4})]
    nodes.append(KueueNode("h5", {"rack": "r1", HOSTNAME: "h5"}, {"pods": 9, "gpu": 4}, taints=(Taint("a", "b"),)))
    assert place(nodes, job(2, ANY), levels=LEVELS[1:]) == (
        'topology "default" allows to fit only 1 out of 2 pod(s). Total nodes: 5; '
        'excluded: resource "gpu": 2, resource "pods": 1, taint "a=b:NoSchedule": 1'
    )


def test_failures_with_inner_layers_count_every_layer_in_the_best_domain() -> None:
    nodes = hosts({"b1 r1 h1": 3, "b1 r1 h2": 3, "b2 r2 h3": 1, "b2 r2 h4": 4, "b2 r3 h5": 5})
    assert place(nodes, job(12, required("block", ("rack", 4), (HOSTNAME, 2)))) == (
        'topology "default" doesn\'t allow to fit; 2/3 slice(s) fit on level rack; '
        f"4/6 slice(s) fit on level {HOSTNAME}"
    )


@pytest.mark.parametrize("levels", [[], ["a", "a"], [HOSTNAME, "rack"], [f"l{number}" for number in range(17)]])
def test_levels_no_topology_can_have_are_an_input_error(levels: list[str]) -> None:
    with pytest.raises(InputError, match="levels"):
        Snapshot(levels, [])


def test_sixteen_levels_are_allowed() -> None:
    levels = [f"l{number}" for number in range(16)]
    node = KueueNode("n", dict.fromkeys(levels, "x"), {"gpu": 1, "pods": 1})
    assert place([node], job(1, required("l15")), levels=levels) == {"x": 1}


def test_two_nodes_with_one_host_name_are_an_input_error() -> None:
    twins = [KueueNode(f"n{rack}", {"rack": rack, HOSTNAME: "h"}, {"pods": 1}) for rack in ("r1", "r2")]
    with pytest.raises(InputError, match="host"):
        Snapshot(["rack", HOSTNAME], twins)
    with pytest.raises(InputError, match="host"):
        Snapshot([HOSTNAME], twins)


def test_pod_sets_no_workload_can_have_are_an_input_error() -> None:
    with pytest.raises(InputError, match="count"):
        assign([HOSTNAME], flat(1), [job(-1, ANY)])
    with pytest.raises(InputError, match="name of its own"):
        assign([HOSTNAME], flat(1), [job(1, ANY), job(1, ANY)])
    with pytest.raises(InputError, match="leader and its workers"):
        assign([HOSTNAME], flat(1), [PodSetRequest(name, 1, {}, ANY, group="g") for name in "abc"])
