"""What Kueue's placement does and why it may surprise, one behaviour a test; expectations worked out by hand."""

from __future__ import annotations

import pytest

from nvlenv.policies.kueue.types import (
    HOSTNAME,
    Assignment,
    Failure,
    Gates,
    KueueNode,
    Layer,
    PodSetRequest,
    TopologyMode,
    TopologyRequest,
)
from tests.policies.kueue.kueue_clusters import (
    ANY,
    BALANCED,
    LEVELS,
    assign,
    flat,
    hosts,
    job,
    place,
    preferred,
    rack,
    required,
    shown,
    slices_only,
)

# --- BestFit, LeastFreeCapacity ---------------------------------------------------------------------------------------


def test_preferred_climbs_before_it_spreads() -> None:
    nodes = hosts({"b1 r1 h1": 4, "b1 r2 h2": 4, "b2 r3 h3": 5, "b2 r4 h4": 1})
    assert place(nodes, job(8, preferred("rack"))) == {"h1": 4, "h2": 4}


def test_the_largest_domain_is_taken_first_and_the_last_one_tightly() -> None:
    nodes = hosts({"b1 r1 h1": 19, "b1 r2 h2": 10, "b1 r3 h3": 10})
    assert place(nodes, job(20, preferred("rack"))) == {"h1": 19, "h2": 1}
    nodes = hosts({"b1 r1 h1": 9, "b1 r2 h2": 6, "b1 r3 h3": 7, "b1 r4 h4": 8})
    assert place(nodes, job(15, required("block"))) == {"h1": 9, "h2": 6}


def test_whole_nodes_fill_whole_racks_and_a_rest() -> None:
    nodes = hosts({f"b1 r{rack:02} r{rack:02}-h{host:02}": 4 for rack in range(10) for host in range(18)})
    placed = place(nodes, job(128, preferred("rack"), gpus=4))
    assert isinstance(placed, dict)
    by_rack = [sum(name.startswith(f"r{rack:02}") for name in placed) for rack in range(10)]
    assert by_rack == [18] * 7 + [2, 0, 0]


def test_names_compare_as_strings() -> None:
    nodes = hosts({"h2": 1, "h10": 1}, (HOSTNAME,))
    assert place(nodes, job(1, required(HOSTNAME))) == {"h10": 1}


def test_unconstrained_takes_one_host_that_holds_everything_before_filling_small_ones() -> None:
    assert place(flat(2, 1, 1), job(2, ANY)) == {"h1": 2}


def test_unconstrained_fills_the_fullest_hosts_first() -> None:
    assert place(flat(4, 4, 1, 1, 2), job(5, ANY)) == {"h1": 1, "h3": 1, "h4": 1, "h5": 2}
    assert place(flat(4, 4, 1, 1, 2), job(5, TopologyRequest())) == {"h1": 1, "h3": 1, "h4": 1, "h5": 2}


def test_unconstrained_is_blind_to_racks() -> None:
    nodes = hosts({f"r{r} r{r}-h{h}": free for r in (1, 2, 3) for h, free in enumerate((1, 4, 4), 1)}, LEVELS[1:])
    assert place(nodes, job(5, ANY)) == {"r1-h1": 1, "r1-h2": 2, "r2-h1": 1, "r3-h1": 1}


def test_without_the_mixed_profile_unconstrained_is_best_fit() -> None:
    assert place(flat(4, 4, 1, 1, 2), job(5, ANY), Gates(mixed_profile=False)) == {"h1": 4, "h3": 1}


def test_the_pooled_descent_mixes_parents() -> None:
    nodes = hosts({"b1 r1 h1": 3, "b1 r1 h2": 3, "b1 r2 h3": 4, "b1 r2 h4": 1})
    assert place(nodes, job(7, required("block"))) == {"h1": 3, "h3": 4}


def test_capacity_inside_a_leaf_that_is_no_host_is_summed() -> None:
    nodes = [KueueNode(name, {"rack": "r1"}, {"gpu": 2, "pods": 10}) for name in ("n1", "n2")]
    assert place(nodes, job(1, required("rack"), gpus=4), levels=["rack"]) == {"r1": 1}


def test_equal_rack_names_in_two_blocks_are_two_domains() -> None:
    nodes = hosts({"b1 r1 h1": 2, "b2 r1 h2": 2})
    assert place(nodes, job(3, required("rack"))) == 'topology "default" allows to fit only 2 out of 3 pod(s)'


# --- Slices -----------------------------------------------------------------------------------------------------------


def test_slices_alone_start_at_the_top_with_the_least_free_domain() -> None:
    nodes = hosts({"A a1": 2, "A a2": 2, "B b1": 6}, LEVELS[1:])
    assert place(nodes, job(4, slices_only((HOSTNAME, 2)))) == {"a1": 2, "a2": 2}
    assert place(nodes, job(8, slices_only((HOSTNAME, 2)))) == {"a1": 2, "a2": 2, "b1": 4}
    unconstrained = TopologyRequest(TopologyMode.UNCONSTRAINED, None, (Layer(HOSTNAME, 2),))
    assert place(nodes, job(4, unconstrained)) == {"a1": 2, "a2": 2}


def test_below_the_slice_level_the_least_free_hosts_are_filled_first() -> None:
    nodes = rack(3, 3, 2, 4, 4)
    assert place(nodes, job(8, required("rack", ("rack", 8)))) == {"h1": 3, "h2": 3, "h3": 2}
    assert place(nodes, job(8, required("rack"))) == {"h4": 4, "h5": 4}


@pytest.mark.parametrize(("count", "placed"), [(5, {"h1": 4}), (1, {}), (0, {})])
def test_a_remainder_of_the_count_is_dropped(count: int, placed: dict[str, int]) -> None:
    assert place(rack(6), job(count, required("rack", (HOSTNAME, 2)))) == placed
    assert place(rack(6), job(count, preferred("rack", (HOSTNAME, 2))), BALANCED) == placed


def test_inner_layers_keep_pods_together_on_every_level() -> None:
    nodes = hosts({"b1 r1 h1": 3, "b1 r1 h2": 3, "b1 r1 h3": 2, "b1 r2 h4": 9})
    layers = (("block", 6), (HOSTNAME, 2))
    assert place(nodes, job(6, required("block", *layers))) == {"h1": 2, "h2": 2, "h3": 2}
    assert place(nodes, job(6, required("block", *layers)), Gates(multi_layer=False)) == {
        "h1": 3,
        "h2": 1,
        "h3": 2,
    }


def test_an_inner_layer_also_rules_the_levels_above_it() -> None:
    nodes = hosts({"b1 r1 h1": 3, "b1 r2 h2": 5, "b1 r2 h3": 2})
    assert place(nodes, job(8, required("block", ("block", 8), (HOSTNAME, 2)))) == {"h1": 2, "h2": 4, "h3": 2}


# --- Leader and workers -----------------------------------------------------------------------------------------------


def test_the_leader_goes_where_the_workers_lose_nothing() -> None:
    nodes = rack(4, 5)
    leader = PodSetRequest("leader", 1, {"gpu": 1}, required("rack"), group="g")
    workers = PodSetRequest("workers", 4, {"gpu": 2}, required("rack"), group="g")
    result = assign(LEVELS[1:], nodes, [leader, workers])
    assert {name: shown(outcome) for name, outcome in result.items()} == {
        "leader": {"h2": 1},
        "workers": {"h1": 2, "h2": 2},
    }


def test_a_group_fails_with_one_reason() -> None:
    leader = PodSetRequest("leader", 1, {"gpu": 2}, required("rack"), group="g")
    workers = PodSetRequest("workers", 2, {"gpu": 1}, required("rack"), group="g")
    result = assign(LEVELS[1:], rack(1, 1), [workers, leader])
    reason = 'topology "default" allows to fit only 2 out of 2 pod(s)'
    assert result == {"leader": Failure(reason), "workers": Failure(reason)}


def test_only_the_workers_template_decides_which_hosts_are_open() -> None:
    nodes = rack(4)
    leader = PodSetRequest("leader", 1, {"gpu": 1}, required("rack"), node_selector={"no": "host"}, group="g")
    workers = PodSetRequest("workers", 2, {"gpu": 1}, required("rack"), group="g")
    assert shown(assign(LEVELS[1:], nodes, [leader, workers])["leader"]) == {"h1": 1}


# --- Balanced placement -----------------------------------------------------------------------------------------------


def test_balanced_placement_is_for_preferred_only() -> None:
    nodes = rack(10, 10)
    assert place(nodes, job(12, required("rack")), BALANCED) == {"h1": 10, "h2": 2}
    assert place(nodes, job(12, preferred("rack")), BALANCED) == {"h1": 6, "h2": 6}
    assert place(nodes, job(12, preferred("rack"))) == {"h1": 10, "h2": 2}


def test_balance_is_reached_one_level_below_the_preferred_one() -> None:
    nodes = hosts({f"b1 r{r} r{r}-h{h}": 6 for r in (1, 2) for h in (1, 2)})
    by_rack = place(nodes, job(16, preferred("block", ("rack", 4))), BALANCED)
    assert by_rack == {"r1-h1": 6, "r1-h2": 2, "r2-h1": 6, "r2-h2": 2}


def test_balanced_placement_never_applies_on_a_slice_level_above_the_hosts() -> None:
    nodes = hosts({f"b1 r{r} r{r}-h{h}": 6 for r in (1, 2) for h in (1, 2)})
    uneven = place(nodes, job(16, preferred("rack", ("rack", 4))), BALANCED)
    assert uneven == {"r1-h1": 6, "r1-h2": 6, "r2-h1": 4}


def test_balanced_placement_is_given_up_where_pods_fit_into_fewer_racks_than_slices_do() -> None:
    nodes = hosts({"x x1": 7, "x x2": 7, "y y1": 7}, LEVELS[1:])  # 14 pods fit in x, but only 6 of their 7 slices
    assert place(nodes, job(14, preferred("rack", (HOSTNAME, 2))), BALANCED) == {"x1": 6, "x2": 6, "y1": 2}
    assert place(nodes, job(12, preferred("rack", (HOSTNAME, 2))), BALANCED) == {"x1": 6, "x2": 6}


# --- Size -------------------------------------------------------------------------------------------------------------


def test_a_thousand_racks_are_no_trouble() -> None:
    nodes = hosts({f"b{r // 16:02} r{r:03} r{r:03}-h{h:02}": 4 for r in range(1000) for h in range(18)})
    placed = assign(LEVELS, nodes, [job(128, preferred("rack"), gpus=4)])["job"]
    assert isinstance(placed, Assignment)
    assert placed.pods == 128
    assert placed.domains[-1] == (("r999-h01",), 1), "the last block, of 8 racks, is the tightest"
