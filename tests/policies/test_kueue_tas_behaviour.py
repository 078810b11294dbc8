"""What Kueue's placement does and why it may surprise, one behaviour a test; expectations worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from nvlenv.errors import InputError
from nvlenv.policies.kueue_tas import (
    HOSTNAME,
    Assignment,
    Expression,
    Failure,
    Gates,
    Layer,
    Mode,
    Node,
    NodeAffinity,
    PodSet,
    Repair,
    RunningPod,
    Snapshot,
    Taint,
    Term,
    Toleration,
    TopologyRequest,
    Usage,
    assign,
)

LEVELS = ("block", "rack", HOSTNAME)
BALANCED = Gates(balanced_placement=True)
AFFINITY = Gates(respect_preferred_affinity=True)
ANY = TopologyRequest(Mode.UNCONSTRAINED)


def required(level: str, *layers: tuple[str, int]) -> TopologyRequest:
    return TopologyRequest(Mode.REQUIRED, level, tuple(Layer(*layer) for layer in layers))


def preferred(level: str, *layers: tuple[str, int]) -> TopologyRequest:
    return TopologyRequest(Mode.PREFERRED, level, tuple(Layer(*layer) for layer in layers))


def slices_only(*layers: tuple[str, int]) -> TopologyRequest:
    return TopologyRequest(Mode.SLICE_ONLY, None, tuple(Layer(*layer) for layer in layers))


def hosts(free: Mapping[str, int], levels: Sequence[str] = LEVELS) -> list[Node]:
    """Nodes from "b1 r1 h1": free GPUs."""
    return [
        Node(path.split()[-1], dict(zip(levels, path.split(), strict=True)), {"gpu": gpus, "pods": 110})
        for path, gpus in free.items()
    ]


def flat(*free: int) -> list[Node]:
    """Hosts h1, h2, ... with so many free GPUs, in a topology of hosts alone."""
    return hosts({f"h{number}": gpus for number, gpus in enumerate(free, start=1)}, (HOSTNAME,))


def rack(*free: int) -> list[Node]:
    """One rack r1 of hosts h1, h2, ..."""
    return hosts({f"r1 h{number}": gpus for number, gpus in enumerate(free, start=1)}, ("rack", HOSTNAME))


def job(count: int, topology: TopologyRequest, gpus: int = 1, **rest: Any) -> PodSet:
    return PodSet("job", count, {"gpu": gpus}, topology, **rest)


def place(nodes: Sequence[Node], podset: PodSet, gates: Gates | None = None, **rest: Any) -> dict[str, int] | str:
    """Pods by last label value, or the reason why there are none."""
    width = len(nodes[0].labels) if nodes else 1
    levels = rest.pop("levels", LEVELS[-width:])
    return shown(assign(levels, nodes, [podset], gates, **rest)[podset.name])


def shown(outcome: Assignment | Failure) -> dict[str, int] | str:
    return outcome.reason if isinstance(outcome, Failure) else {v[-1]: count for v, count in outcome.domains}


# --- BestFit, LeastFreeCapacity --------------------------------------------------------------------------------------


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
    nodes = [Node(name, {"rack": "r1"}, {"gpu": 2, "pods": 10}) for name in ("n1", "n2")]
    assert place(nodes, job(1, required("rack"), gpus=4), levels=["rack"]) == {"r1": 1}


def test_equal_rack_names_in_two_blocks_are_two_domains() -> None:
    nodes = hosts({"b1 r1 h1": 2, "b2 r1 h2": 2})
    assert place(nodes, job(3, required("rack"))) == 'topology "default" allows to fit only 2 out of 3 pod(s)'


# --- Slices ----------------------------------------------------------------------------------------------------------


def test_slices_alone_start_at_the_top_with_the_least_free_domain() -> None:
    nodes = hosts({"A a1": 2, "A a2": 2, "B b1": 6}, LEVELS[1:])
    assert place(nodes, job(4, slices_only((HOSTNAME, 2)))) == {"a1": 2, "a2": 2}
    assert place(nodes, job(8, slices_only((HOSTNAME, 2)))) == {"a1": 2, "a2": 2, "b1": 4}
    unconstrained = TopologyRequest(Mode.UNCONSTRAINED, None, (Layer(HOSTNAME, 2),))
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


# --- Leader and workers ----------------------------------------------------------------------------------------------


def test_the_leader_goes_where_the_workers_lose_nothing() -> None:
    nodes = rack(4, 5)
    leader = PodSet("leader", 1, {"gpu": 1}, required("rack"), group="g")
    workers = PodSet("workers", 4, {"gpu": 2}, required("rack"), group="g")
    result = assign(LEVELS[1:], nodes, [leader, workers])
    assert {name: shown(outcome) for name, outcome in result.items()} == {
        "leader": {"h2": 1},
        "workers": {"h1": 2, "h2": 2},
    }


def test_a_group_fails_with_one_reason() -> None:
    leader = PodSet("leader", 1, {"gpu": 2}, required("rack"), group="g")
    workers = PodSet("workers", 2, {"gpu": 1}, required("rack"), group="g")
    result = assign(LEVELS[1:], rack(1, 1), [workers, leader])
    reason = 'topology "default" allows to fit only 2 out of 2 pod(s)'
    assert result == {"leader": Failure(reason), "workers": Failure(reason)}


def test_only_the_workers_template_decides_which_hosts_are_open() -> None:
    nodes = rack(4)
    leader = PodSet("leader", 1, {"gpu": 1}, required("rack"), node_selector={"no": "host"}, group="g")
    workers = PodSet("workers", 2, {"gpu": 1}, required("rack"), group="g")
    assert shown(assign(LEVELS[1:], nodes, [leader, workers])["leader"]) == {"h1": 1}


# --- Balanced placement ----------------------------------------------------------------------------------------------


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


# --- Which nodes ------------------------------------------------------------------------------------------------------


def one_host(**rest: Any) -> list[Node]:
    labels = {HOSTNAME: "h1", **rest.pop("labels", {})}
    return [Node("n1", labels, {"gpu": 4, "pods": 10}, **rest)]


def put(nodes: Sequence[Node], podset: PodSet | None = None, **rest: Any) -> dict[str, int] | str:
    return place(nodes, podset or job(1, ANY), levels=[HOSTNAME], **rest)


NO_DOMAINS = f"no topology domains at level: {HOSTNAME}"
NONE_FITS = 'topology "default" doesn\'t allow to fit any of 1 pod(s). Total nodes: 1; excluded: '


def test_nodes_that_are_not_part_of_the_topology_do_not_exist() -> None:
    assert put(one_host(ready=False)) == NO_DOMAINS
    assert put(one_host(unschedulable=True)) == NO_DOMAINS
    assert put(one_host(), flavor_labels={"pool": "a"}) == NO_DOMAINS
    assert put(one_host(labels={"pool": "b"}), flavor_labels={"pool": "a"}) == NO_DOMAINS
    assert put(one_host(labels={"pool": "a"}), flavor_labels={"pool": "a"}) == {"h1": 1}


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_a_taint_keeps_pods_off_unless_they_or_the_flavor_tolerate_it(effect: str) -> None:
    nodes = one_host(taints=(Taint("k", "v", effect),))
    excluded = f'{NONE_FITS}taint "k=v:{effect}": 1'
    assert put(nodes) == excluded
    for toleration, tolerated in {
        Toleration("k", "Equal", "v"): True,
        Toleration("k", "Equal", "w"): False,
        Toleration("k", "Exists"): True,
        Toleration("l", "Exists"): False,
        Toleration("", "Exists"): True,
        Toleration("k", "Exists", "", effect): True,
        Toleration("k", "Exists", "", "PreferNoSchedule"): False,
    }.items():
        expected = {"h1": 1} if tolerated else excluded
        assert put(nodes, job(1, ANY, tolerations=(toleration,))) == expected
        assert put(nodes, flavor_tolerations=[toleration]) == expected


def test_a_taint_that_only_advises_is_ignored() -> None:
    assert put(one_host(taints=(Taint("k", "v", "PreferNoSchedule"),))) == {"h1": 1}


def test_the_first_reason_counts_taint_then_selector_then_affinity() -> None:
    affinity = NodeAffinity(required=(Term((Expression("zone", "In", ("z1",)),)),))
    podset = job(1, ANY, node_selector={"pool": "a"}, affinity=affinity)
    taint = Taint("k", effect="NoSchedule")
    assert put(one_host(taints=(taint,)), podset) == NONE_FITS + 'taint "k:NoSchedule": 1'
    assert put(one_host(), podset) == NONE_FITS + "nodeSelector: 1"
    assert put(one_host(labels={"pool": "a"}), podset) == NONE_FITS + "affinity: 1"
    assert put(one_host(labels={"pool": "a", "zone": "z1"}), podset) == {"h1": 1}


@pytest.mark.parametrize(
    ("operator", "values", "labels", "matches"),
    [
        ("In", ("a", "b"), {"x": "b"}, True),
        ("In", ("a", "b"), {}, False),
        ("NotIn", ("a", "b"), {"x": "b"}, False),
        ("NotIn", ("a", "b"), {}, True),
        ("Exists", (), {"x": ""}, True),
        ("Exists", (), {}, False),
        ("DoesNotExist", (), {"x": ""}, False),
        ("DoesNotExist", (), {}, True),
        ("Gt", ("3",), {"x": "4"}, True),
        ("Gt", ("3",), {"x": "3"}, False),
        ("Lt", ("3",), {"x": "2"}, True),
        ("Lt", ("3",), {"x": "3"}, False),
        ("Lt", ("3",), {"x": "many"}, False),
        ("Gt", (), {"x": "3"}, False),
        ("Gt", ("3",), {}, False),
        ("Unknown", ("3",), {"x": "3"}, False),
    ],
)
def test_affinity_operators(operator: str, values: tuple[str, ...], labels: dict[str, str], matches: bool) -> None:
    affinity = NodeAffinity(required=(Term((Expression("x", operator, values),)),))
    expected = {"h1": 1} if matches else NONE_FITS + "affinity: 1"
    assert put(one_host(labels=labels), job(1, ANY, affinity=affinity)) == expected


def test_affinity_terms_are_alternatives_and_an_empty_one_matches_nothing() -> None:
    good, bad = Term((Expression("x", "Exists"),)), Term((Expression("y", "Exists"),))
    nodes = one_host(labels={"x": "1"})
    for terms, matches in {(bad, good): True, (bad,): False, (Term(),): False, (): False}.items():
        expected = {"h1": 1} if matches else NONE_FITS + "affinity: 1"
        assert put(nodes, job(1, ANY, affinity=NodeAffinity(required=terms))) == expected


def test_affinity_may_name_the_node() -> None:
    def named(name: str) -> PodSet:
        term = Term(fields=(Expression("metadata.name", "In", (name,)),))
        return job(1, ANY, affinity=NodeAffinity(required=(term,)))

    assert put(one_host(), named("n1")) == {"h1": 1}
    assert put(one_host(), named("h1")) == NONE_FITS + "affinity: 1"


def test_leaves_that_are_no_hosts_are_not_asked_for_taints_selectors_or_affinity() -> None:
    nodes = [Node("n1", {"rack": "r1"}, {"gpu": 4, "pods": 9}, taints=(Taint("k", "v"),))]
    affinity = NodeAffinity(required=(), preferred=((5, Term((Expression("rack", "Exists"),))),))
    podset = job(1, required("rack"), node_selector={"pool": "a"}, affinity=affinity)
    assert place(nodes, podset, AFFINITY, levels=["rack"]) == {"r1": 1}


# --- Preferred affinity ----------------------------------------------------------------------------------------------


def liked(*names: str) -> NodeAffinity:
    return NodeAffinity(preferred=((10, Term((Expression(HOSTNAME, "In", names),))),))


def test_the_tight_pick_stays_among_the_most_preferred_hosts() -> None:
    podset = job(1, required(HOSTNAME), affinity=liked("h1"))
    assert place(flat(4, 1), podset, AFFINITY) == {"h1": 1}
    assert place(flat(4, 1), podset) == {"h2": 1}


def test_a_preferred_host_that_is_too_small_does_not_fail_a_required_placement() -> None:
    podset = job(3, required(HOSTNAME), affinity=liked("h1"))
    assert place(flat(2, 9, 4, 5), podset, AFFINITY) == {"h3": 3}
    podset = job(10, required(HOSTNAME), affinity=liked("h1"))
    assert place(flat(2, 9, 4, 5), podset, AFFINITY) == 'topology "default" allows to fit only 2 out of 10 pod(s)'


def test_weights_of_all_matching_terms_add_up() -> None:
    terms = ((3, ("h1", "h2")), (3, ("h2", "h3")), (5, ("h1",)), (1, ("h3",)))
    affinity = NodeAffinity(preferred=tuple((w, Term((Expression(HOSTNAME, "In", names),))) for w, names in terms))
    assert place(flat(1, 1, 1), job(2, preferred(HOSTNAME), affinity=affinity), AFFINITY) == {"h1": 1, "h2": 1}


# --- Capacity --------------------------------------------------------------------------------------------------------


def test_running_pods_take_their_requests_and_one_pod_until_they_end() -> None:
    nodes = [Node("n1", {HOSTNAME: "h1"}, {"gpu": 3, "pods": 3})]
    running = [RunningPod("n1", {"gpu": 1}), RunningPod("n1", {"gpu": 1}, "Failed"), RunningPod("n1", {}, "Succeeded")]
    apart = [RunningPod(None, {"gpu": 3}), RunningPod("other", {"gpu": 3})]
    assert put(nodes, job(3, ANY)) == {"h1": 3}
    assert put(nodes, job(2, ANY), running_pods=[*running, *apart]) == {"h1": 2}
    assert put(nodes, job(3, ANY), running_pods=running) == 'topology "default" allows to fit only 2 out of 3 pod(s)'
    daemons = [RunningPod("n1", {})] * 3
    assert put(nodes, running_pods=daemons) == NONE_FITS + 'resource "pods": 1'


def test_usage_of_admitted_workloads_counts_wherever_the_leaf_still_exists() -> None:
    nodes = rack(4)
    usage = [Usage(("h1",), {"gpu": 1}, 2), Usage(("r1", "h1"), {"gpu": 1}, 1), Usage(("gone",), {"gpu": 1}, 9)]
    assert place(nodes, job(1, ANY), usage=usage) == {"h1": 1}
    assert place(nodes, job(2, ANY), usage=usage) == 'topology "default" allows to fit only 1 out of 2 pod(s)'


def test_overdrawn_and_missing_resources_fit_nothing() -> None:
    over = [Usage(("h1",), {"gpu": 9}, 1)]
    assert put(one_host(), usage=over) == NONE_FITS + 'resource "gpu": 1'
    assert put(one_host(), PodSet("job", 1, {"tpu": 1}, ANY)) == NONE_FITS + 'resource "tpu": 1'
    assert put(one_host(), PodSet("job", 1, {"gpu": 5, "cpu": 1}, ANY)) == NONE_FITS + 'resource "cpu": 1'
    assert put(one_host(), PodSet("job", 1, {"tpu": 0, "gpu": 1}, ANY)) == {"h1": 1}


def test_pod_sets_are_placed_in_order_each_seeing_the_ones_before() -> None:
    first, second, third = (PodSet(name, 1, {"gpu": 3}, required("rack")) for name in "abc")
    result = assign(LEVELS[1:], rack(3, 4), [second, first, third])
    assert list(result) == ["b", "a", "c"]
    assert [shown(result[name]) for name in "ba"] == [{"h1": 1}, {"h2": 1}]
    assert isinstance(result["c"], Failure)


def test_the_first_failure_ends_the_run() -> None:
    big, small = job(9, ANY), PodSet("small", 1, {"gpu": 1}, ANY)
    assert list(assign([HOSTNAME], flat(1), [big, small])) == ["job"]


def test_a_snapshot_is_not_used_up_by_a_placement() -> None:
    snapshot = Snapshot([HOSTNAME], flat(1))
    assert snapshot.assign([job(1, ANY)]) == snapshot.assign([job(1, ANY)])


# --- Rejections and failure strings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topology", "reason"),
    [
        (required("rack", (HOSTNAME, 0)), "slice topology requested, but slice size not provided"),
        (required("rack", (HOSTNAME, 2), (HOSTNAME, 0)), "slice topology requested, but slice size not provided"),
        (TopologyRequest(Mode.EMPTY), "topology level not specified"),
        (TopologyRequest(Mode.SLICE_ONLY), "topology level not specified"),
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
    nodes = [*rack(0, 1, 0), Node("h4", {"rack": "r1", HOSTNAME: "h4"}, {"pods": 0, "gpu": 4})]
    nodes.append(Node("h5", {"rack": "r1", HOSTNAME: "h5"}, {"pods": 9, "gpu": 4}, taints=(Taint("a", "b"),)))
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
    node = Node("n", dict.fromkeys(levels, "x"), {"gpu": 1, "pods": 1})
    assert place([node], job(1, required("l15")), levels=levels) == {"x": 1}


def test_two_nodes_with_one_host_name_are_an_input_error() -> None:
    twins = [Node(f"n{rack}", {"rack": rack, HOSTNAME: "h"}, {"pods": 1}) for rack in ("r1", "r2")]
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
        assign([HOSTNAME], flat(1), [PodSet(name, 1, {}, ANY, group="g") for name in "abc"])


# --- Lost nodes ------------------------------------------------------------------------------------------------------


def on(*domains: tuple[str, int]) -> Assignment:
    return Assignment((HOSTNAME,), tuple(((host,), count) for host, count in domains))


def repaired(nodes: Sequence[Node], podset: PodSet, old: Assignment, lost: str, **rest: Any) -> dict[str, int] | str:
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
    podsets = [PodSet(name, 1, {"gpu": 3}, ANY) for name in "abc"]
    repair = Repair(("lost",), {"a": on(("lost", 1)), "c": on(("lost", 1))})
    result = assign(LEVELS, hosts(TWO_RACKS), podsets, repair=repair)
    assert {name: shown(outcome) for name, outcome in result.items()} == {"a": {"a1": 1}, "c": {"a2": 1}}


def test_a_repair_without_unhealthy_nodes_is_an_ordinary_placement() -> None:
    assert place(flat(1), job(1, ANY), repair=Repair((), {"job": on(("lost", 1))})) == {"h1": 1}


# --- Elastic workloads -----------------------------------------------------------------------------------------------

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
    leader = PodSet("leader", 1, {"gpu": 1}, ANY, group="g", previous=on(("h2", 1)))
    workers = PodSet("workers", 3, {"gpu": 1}, ANY, group="g", previous=on(("h1", 2)))
    result = assign([HOSTNAME], flat(2, 2), [leader, workers], ELASTIC)
    assert {name: shown(outcome) for name, outcome in result.items()} == {
        "leader": {"h2": 1},
        "workers": {"h1": 2, "h2": 1},
    }


# --- Size ------------------------------------------------------------------------------------------------------------


def test_a_thousand_racks_are_no_trouble() -> None:
    nodes = hosts({f"b{r // 16:02} r{r:03} r{r:03}-h{h:02}": 4 for r in range(1000) for h in range(18)})
    placed = assign(LEVELS, nodes, [job(128, preferred("rack"), gpus=4)])["job"]
    assert isinstance(placed, Assignment)
    assert placed.pods == 128
    assert placed.domains[-1] == (("r999-h01",), 1), "the last block, of 8 racks, is the tightest"
