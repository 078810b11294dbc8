"""From objects to decisions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvlenv.engine.formats.options import Options
from nvlenv.engine.gate.decide import GATE, PLAN, GangDecision, decide_gangs, patch_of, read_plan
from tests.engine.gate.api_server import merged
from tests.engine.gate.objects import CLIQUE, REQUIRED, gang, node, nodes, pod, rack_of

Object = dict[str, Any]
AT = 1.7671e9
RACK = {REQUIRED: CLIQUE}


def look(pods: list[Object], cluster: list[Object] | None = None, policy: str = "best-fit") -> dict[str, GangDecision]:
    decisions = decide_gangs(cluster or nodes(), pods, policy, Options(), AT)
    assert len({decision.gang for decision in decisions}) == len(decisions)
    return {decision.gang: decision for decision in decisions}


def let_go(pods: list[Object], decisions: dict[str, GangDecision], only: int = 99) -> list[Object]:
    """The pods after (some of) the releases were carried out."""
    releases = [release for decision in decisions.values() for release in decision.releases][:only]
    patched = {r.pod["metadata"]["name"]: merged(r.pod, patch_of(r.pod, r.host, r.plan)) for r in releases}
    return [patched.get(item["metadata"]["name"], item) for item in pods]


def given_hosts(decision: GangDecision) -> dict[str, str]:
    return {release.pod["metadata"]["name"]: release.host for release in decision.releases}


def test_a_whole_gang_goes_to_one_rack_by_rank() -> None:
    decision = look(gang("hero", 4, **RACK))["ml/job/hero"]

    assert len({rack_of(release.host) for release in decision.releases}) == 1
    placed = given_hosts(decision)
    assert [placed[f"hero-{rank}"] for rank in range(4)] == sorted(placed.values())
    assert all(host.endswith(".local") for host in placed.values())  # the label, not the name
    assert decision.reason.startswith("placed on 4 nodes: ")


def test_gpus_may_have_another_name() -> None:
    objects = json.loads(json.dumps([nodes(), gang("hero", 2)]).replace('"nvidia.com/gpu"', '"amd.com/gpu"'))

    (decision,) = decide_gangs(*objects, "best-fit", Options(gpu_resource="amd.com/gpu"), AT)

    assert len(decision.releases) == 2
    assert list(read_plan(decision.releases[0].plan, "")) == ["4/0m/0"]


def test_ranks_sort_as_numbers() -> None:
    cluster = nodes(1, 12)

    placed = given_hosts(look(gang("hero", 12), cluster)["ml/job/hero"])

    assert [placed[f"hero-{rank}"] for rank in range(12)] == sorted(placed.values())


@pytest.mark.parametrize(
    ("pods", "told"),
    [
        (gang("hero", 4)[:3], "3 are there, and it says that it has 4"),
        ([*gang("hero", 2), pod("hero-9", "hero", 2)], "3 are there, and it says that it has 2"),
        ([pod("hero-0", "hero", 1, gates=(GATE, "kueue.x-k8s.io/admission"))], "other scheduling gates"),
        ([pod("hero-0", "hero", 2), pod("hero-1", "hero", 2, on="r0n0")], "run without a plan"),
        (gang("hero", 1, gpus=5), ""),
        (gang("hero", 5, **RACK), ""),
        (gang("hero", 2, **{REQUIRED: "no-such-level"}), "no-such-level"),
    ],
)
def test_a_gang_that_is_not_placed_waits_for_a_reason(pods: list[Object], told: str) -> None:
    decision = look(pods)["ml/job/hero"]

    assert not decision.releases and not decision.victims
    assert told in decision.reason and decision.reason


@pytest.mark.parametrize("annotations", [{}, {"nvlenv/gang-size": "all"}])
def test_a_gang_without_a_size_is_told(annotations: dict[str, str]) -> None:
    decision = look([pod("hero-0", "hero", **annotations)])["ml/pod/hero-0"]

    assert "nvlenv/gang-size" in decision.reason and not decision.releases


def test_a_pod_alone_needs_no_size() -> None:
    assert len(look([pod("tune")])["ml/pod/tune"].releases) == 1


def test_what_is_not_gated_is_left_alone() -> None:
    others = [pod("free", gates=()), pod("foreign", gates=("example.com/other",)), pod("done", phase="Failed")]

    assert look(others) == {}


def test_one_bad_gang_does_not_keep_the_others() -> None:
    bad = pod("bad", **{"nvlenv/gang-plan": "{"})

    decisions = look([bad, *gang("hero", 2)])

    assert "nvlenv/gang-plan" in decisions["ml/pod/bad"].reason
    assert len(decisions["ml/job/hero"].releases) == 2


def test_higher_priority_and_then_older_goes_first() -> None:
    pods = [
        *gang("new", 4, created=5, **RACK),
        *gang("old", 4, created=1, **RACK),
        *gang("high", 4, created=9, priority=10, **RACK),
    ]

    decisions = look(pods)

    assert [gang for gang, decision in decisions.items() if decision.releases] == ["ml/job/high", "ml/job/old"]
    assert decisions["ml/job/new"].reason


def test_pods_that_were_let_go_hold_their_nodes_before_they_are_bound() -> None:
    first = gang("first", 4, **RACK)
    first = let_go(first, look(first))

    second = look([*first, *gang("second", 4, **RACK)])["ml/job/second"]

    assert {rack_of(release.host) for release in second.releases}.isdisjoint(
        {rack_of(item["spec"]["nodeSelector"]["kubernetes.io/hostname"]) for item in first}
    )


@settings(max_examples=20)
@given(st.integers(1, 6), st.randoms(use_true_random=False))
def test_a_gang_that_was_left_half_done_gets_the_same_places(done: int, random: Any) -> None:
    pods = gang("hero", 6)
    whole = look(pods)["ml/job/hero"]
    shuffled = list(whole.releases)
    random.shuffle(shuffled)
    half = let_go(pods, {"": GangDecision("", "", tuple(shuffled[:done]))})

    rest = look([*half, *gang("greedy", 8)]).get("ml/job/hero")

    placed = {release.pod["metadata"]["name"]: release.host for release in shuffled[:done]}
    placed.update(given_hosts(rest) if rest else {})
    assert placed == given_hosts(whole)


def test_a_pod_that_comes_again_gets_its_place_again() -> None:
    pods = let_go(gang("hero", 4), look(gang("hero", 4)))
    lost = pods.pop(2)
    again = pod("hero-2-again", "hero", 4, rank=2, created=30)

    decision = look([*pods, again])["ml/job/hero"]

    assert given_hosts(decision) == {"hero-2-again": lost["spec"]["nodeSelector"]["kubernetes.io/hostname"]}
    assert read_plan(decision.releases[0].plan, "") == read_plan(pods[0]["metadata"]["annotations"][PLAN], "")


@pytest.mark.parametrize("kept", [True, False])
def test_a_place_on_a_failed_node_is_replaced_in_its_rack(kept: bool) -> None:
    pods = let_go(gang("hero", 3, **RACK), look(gang("hero", 3, **RACK)))
    lost = pods.pop(0)
    host = lost["spec"]["nodeSelector"]["kubernetes.io/hostname"]
    failed = node(host.removesuffix(".local"), f"rack-{host[1]}", ready=False)
    cluster = [failed if item["metadata"]["name"] == failed["metadata"]["name"] else item for item in nodes()]
    others = [] if kept else [pod("other", on=f"{rack_of(host)}n3")]
    again = pod("hero-0-again", "hero", 3, rank=0, created=30, **RACK)

    decision = look([*pods, again, *others], cluster)["ml/job/hero"]

    if not kept:
        assert not decision.releases and "no spare" in decision.reason
        return
    (spare,) = given_hosts(decision).values()
    assert spare != host and rack_of(spare) == rack_of(host)
    after = let_go([*pods, decision.releases[0].pod], {"": decision})
    assert look(after, cluster) == {}
    assert spare in read_plan(after[-1]["metadata"]["annotations"][PLAN], "")["4/0m/0"]


def test_leader_and_workers_get_the_places_made_for_them() -> None:
    leader = pod("lead", "hero", 3, gpus=1, rank=0)
    workers = [pod(f"work-{rank}", "hero", 3, gpus=4, rank=rank) for rank in (1, 2)]

    decision = look([*workers, leader])["ml/job/hero"]

    placed = given_hosts(decision)
    assert len(placed) == 3
    assert placed["work-1"] != placed["work-2"] and placed["lead"] not in (placed["work-1"], placed["work-2"])
    assert look(let_go([*workers, leader], {"": decision}, only=1))["ml/job/hero"].releases  # and it can go on


def test_those_who_have_to_leave_are_named() -> None:
    low = [
        pod(f"low-{rack}-{number}", f"low-{rack}", 4, on=f"r{rack}n{number}", queue="batch")
        for rack in range(2)
        for number in range(4)
    ]

    decision = look([*low, *gang("hero", 4, priority=100, **RACK)], policy="best-fit+open")["ml/job/hero"]

    rack = rack_of(decision.releases[0].host)
    assert {rack_of(release.host) for release in decision.releases} == {rack}
    assert set(decision.victims) == {("ml", f"low-{rack[1]}-{number}") for number in range(4)}


def test_verification_pods_give_way_and_hold_nothing() -> None:
    tests = [pod(f"test-{n}", on=f"r0n{n}", priority=-1) for n in range(4)]

    decision = look([*tests, *gang("hero", 4, **RACK)], nodes(1))["ml/job/hero"]

    assert len(decision.releases) == 4
    assert set(decision.victims) == {("ml", f"test-{n}") for n in range(4)}
