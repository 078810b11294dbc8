"""Which nodes take part in a placement by Kueue's rules, which are preferred, and how much they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from nvlenv.policies.kueue.snapshot import Snapshot
from nvlenv.policies.kueue.types import (
    HOSTNAME,
    Expression,
    Failure,
    KueueNode,
    NodeAffinity,
    PodSetRequest,
    RunningPod,
    Taint,
    Term,
    Toleration,
    Usage,
)
from tests.policies.kueue.kueue_clusters import (
    AFFINITY,
    ANY,
    LEVELS,
    assign,
    flat,
    job,
    place,
    preferred,
    rack,
    required,
    shown,
)

# --- Which nodes ------------------------------------------------------------------------------------------------------


def one_host(**rest: Any) -> list[KueueNode]:
    labels = {HOSTNAME: "h1", **rest.pop("labels", {})}
    return [KueueNode("n1", labels, {"gpu": 4, "pods": 10}, **rest)]


def put(nodes: Sequence[KueueNode], podset: PodSetRequest | None = None, **rest: Any) -> dict[str, int] | str:
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
        ("Gt", ("3", "9"), {"x": "4"}, True),
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
    def named(*names: str) -> PodSetRequest:
        term = Term(fields=tuple(Expression("metadata.name", "In", (name,)) for name in names))
        return job(1, ANY, affinity=NodeAffinity(required=(term,)))

    assert put(one_host(), named("n1")) == {"h1": 1}
    assert put(one_host(), named("h1")) == NONE_FITS + "affinity: 1"
    assert put(one_host(), named("n1", "n2")) == NONE_FITS + "affinity: 1"


def test_leaves_that_are_no_hosts_are_not_asked_for_taints_selectors_or_affinity() -> None:
    nodes = [KueueNode("n1", {"rack": "r1"}, {"gpu": 4, "pods": 9}, taints=(Taint("k", "v"),))]
    affinity = NodeAffinity(required=(), preferred=((5, Term((Expression("rack", "Exists"),))),))
    podset = job(1, required("rack"), node_selector={"pool": "a"}, affinity=affinity)
    assert place(nodes, podset, AFFINITY, levels=["rack"]) == {"r1": 1}


# --- Preferred affinity -----------------------------------------------------------------------------------------------


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


# --- Capacity ---------------------------------------------------------------------------------------------------------


def test_running_pods_take_their_requests_and_one_pod_until_they_end() -> None:
    nodes = [KueueNode("n1", {HOSTNAME: "h1"}, {"gpu": 3, "pods": 3})]
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
    assert put(one_host(), PodSetRequest("job", 1, {"tpu": 1}, ANY)) == NONE_FITS + 'resource "tpu": 1'
    assert put(one_host(), PodSetRequest("job", 1, {"gpu": 5, "cpu": 1}, ANY)) == NONE_FITS + 'resource "cpu": 1'
    assert put(one_host(), PodSetRequest("job", 1, {"tpu": 0, "gpu": 1}, ANY)) == {"h1": 1}


def test_a_domain_never_counts_more_pods_than_32_bits_hold() -> None:
    nodes = [KueueNode("n1", {HOSTNAME: "h1"}, {"gpu": 2**40, "pods": 2**40})]
    assert put(nodes, job(2**31, ANY)) == 'topology "default" allows to fit only 2147483647 out of 2147483648 pod(s)'
    assert put(nodes, job(2**31 - 1, ANY)) == {"h1": 2**31 - 1}


def test_a_resource_the_node_lacks_stays_at_nothing_whatever_runs_there() -> None:
    running = [RunningPod("n1", {"tpu": 0})]
    assert (
        put(one_host(), PodSetRequest("job", 1, {"tpu": 1}, ANY), running_pods=running)
        == NONE_FITS + 'resource "tpu": 1'
    )


def test_a_group_is_placed_at_the_turn_of_its_first_member() -> None:
    grouped = [PodSetRequest(name, count, {"gpu": 1}, ANY, group="g") for name, count in (("a", 1), ("c", 2))]
    result = assign(LEVELS[1:], rack(4), [grouped[0], PodSetRequest("b", 1, {"gpu": 1}, ANY), grouped[1]])
    assert list(result) == ["a", "c", "b"]


def test_pod_sets_are_placed_in_order_each_seeing_the_ones_before() -> None:
    first, second, third = (PodSetRequest(name, 1, {"gpu": 3}, required("rack")) for name in "abc")
    result = assign(LEVELS[1:], rack(3, 4), [second, first, third])
    assert list(result) == ["b", "a", "c"]
    assert [shown(result[name]) for name in "ba"] == [{"h1": 1}, {"h2": 1}]
    assert isinstance(result["c"], Failure)


def test_the_first_failure_ends_the_run() -> None:
    big, small = job(9, ANY), PodSetRequest("small", 1, {"gpu": 1}, ANY)
    assert list(assign([HOSTNAME], flat(1), [big, small])) == ["job"]


def test_a_snapshot_is_not_used_up_by_a_placement() -> None:
    snapshot = Snapshot([HOSTNAME], flat(1))
    assert snapshot.assign([job(1, ANY)]) == snapshot.assign([job(1, ANY)])
