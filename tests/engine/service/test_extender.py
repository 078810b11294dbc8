"""kube-scheduler asks pod by pod, and the gang is decided as a whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from nvlenv.engine.model.jobs import Job, Pod
from nvlenv.engine.model.snapshot import make_snapshot
from nvlenv.engine.service.app import create_app
from tests.engine.service.clusters import Clock, booked, crashed, pod, racks, serve

NODES = [f"rack-00{rack}-node-0{node}" for rack in range(4) for node in range(4)]
RANK = "batch.kubernetes.io/job-completion-index"
SHAPE = "kueue.x-k8s.io/podset-required-topology"


def ask(client: TestClient, verb: str, pod: dict[str, Any], **more: Any) -> Any:
    answer = client.post(f"/scheduler/{verb}", json={"Pod": pod, **({"NodeNames": NODES} | more)})
    assert answer.status_code == 200
    return answer.json()


def gang(size: int, name: str = "hero", **annotations: str) -> list[dict[str, Any]]:
    return [pod(f"{name}-{number}", name, size, **annotations) for number in range(size)]


def node_of(client: TestClient, member: dict[str, Any]) -> str:
    (node,) = ask(client, "filter", member)["NodeNames"]
    return str(node)


def test_a_gang_gets_one_rack_and_every_pod_its_own_node(client: TestClient) -> None:
    nodes = [node_of(client, member) for member in gang(4, **{SHAPE: "rack"})]

    assert len(set(nodes)) == 4
    assert len({node[:8] for node in nodes}) == 1
    assert booked(client.get("/v1/cluster").json()) == {"ml/job/hero": dict.fromkeys(sorted(nodes), 4)}


def test_it_is_decided_with_its_first_pod(client: TestClient) -> None:
    first = gang(4)[0]

    node_of(client, first)

    assert sum(booked(client.get("/v1/cluster").json())["ml/job/hero"].values()) == 16
    assert node_of(client, first) == node_of(client, first)


def test_pods_get_the_place_of_their_rank(client: TestClient) -> None:
    members = [pod(f"p{rank}", "hero", 4, **{RANK: str(rank)}) for rank in range(4)]

    late = {rank: node_of(client, members[rank]) for rank in (3, 1, 0, 2)}

    assert [late[rank] for rank in range(4)] == sorted(late.values())


def test_other_nodes_fail_beyond_help(client: TestClient) -> None:
    answer = ask(client, "filter", pod("alone"))

    assert set(answer) == {"Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"}
    assert answer["Error"] == "" and answer["FailedNodes"] == {} and answer["Nodes"] is None
    assert set(answer["FailedAndUnresolvableNodes"]) == set(NODES) - set(answer["NodeNames"])
    assert answer["NodeNames"][0] in answer["FailedAndUnresolvableNodes"][NODES[-1]]


def test_keys_are_read_in_any_case_and_nodes_come_back_whole(client: TestClient) -> None:
    nodes = [{"metadata": {"name": name}, "spec": {"own": True}} for name in NODES]

    for keys in (("pod", "nodes", "items"), ("POD", "NODES", "Items")):
        args = {keys[0]: pod("alone"), keys[1]: {keys[2]: nodes}, "NodeNames": None}
        answer = client.post("/scheduler/filter", json=args).json()
        (node,) = answer["Nodes"]["items"]
        assert node in nodes
        assert answer["NodeNames"] is None


def test_a_planned_node_that_does_not_fit_the_pod_is_not_replaced_in_silence(client: TestClient) -> None:
    member = pod("alone")
    planned = node_of(client, member)

    answer = ask(client, "filter", member, NodeNames=[name for name in NODES if name != planned])

    assert answer["NodeNames"] == []
    assert all(planned in why for why in answer["FailedAndUnresolvableNodes"].values())
    assert len(answer["FailedAndUnresolvableNodes"]) == len(NODES) - 1


def test_a_gang_that_does_not_fit_is_told_why_and_holds_nothing(client: TestClient) -> None:
    answer = ask(client, "filter", gang(5, **{SHAPE: "rack"})[0])

    assert answer["NodeNames"] == [] and answer["Error"] == ""
    assert set(answer["FailedAndUnresolvableNodes"]) == set(NODES)
    assert booked(client.get("/v1/cluster").json()) == {}


@pytest.mark.parametrize(
    ("member", "told"),
    [
        (pod("p", "hero"), "nvlenv/gang-size"),
        (pod("p", "hero", **{"nvlenv/gang-size": "many"}), "whole number"),
        (pod("p", **{SHAPE: "row"}), "'row'"),
        (
            {**pod("p"), "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "few"}}}]}},
            "nvidia.com/gpu",
        ),
        ({"metadata": {"name": "p"}, "spec": {}}, "uid"),
    ],
)
def test_a_pod_that_is_wrong_goes_nowhere(client: TestClient, member: dict[str, Any], told: str) -> None:
    answer = ask(client, "filter", member)

    assert answer["NodeNames"] == [] and answer["Error"] == ""
    assert all(told in why for why in answer["FailedAndUnresolvableNodes"].values())


def test_one_pod_too_many_and_one_unlike_the_others_are_refused(client: TestClient) -> None:
    node_of(client, gang(2)[0])

    assert "equal pods" in ask(client, "filter", pod("odd", "hero", 2, gpus=2))["FailedAndUnresolvableNodes"][NODES[0]]
    node_of(client, gang(2)[1])
    assert "one more" in ask(client, "filter", pod("late", "hero", 2))["FailedAndUnresolvableNodes"][NODES[0]]


def test_the_own_node_has_the_highest_score(client: TestClient) -> None:
    member = pod("alone")
    planned = node_of(client, member)

    scores = {entry["Host"]: entry["Score"] for entry in ask(client, "prioritize", member)}

    assert scores == {name: 10 if name == planned else 0 for name in NODES}
    assert {entry["Score"] for entry in ask(client, "prioritize", pod("unknown"))} == {0}


def test_a_plan_that_is_not_taken_up_expires(make_client: Callable[..., TestClient]) -> None:
    clock = Clock()
    client = make_client(clock=clock, plan_seconds=60.0)
    node_of(client, gang(2)[0])

    clock.now += 59.0
    assert "ml/job/hero" in booked(client.get("/v1/cluster").json())
    node_of(client, gang(2)[0])  # asking again does not take it up
    clock.now += 2.0
    assert booked(client.get("/v1/cluster").json()) == {}


def test_a_plan_that_is_taken_up_stays_until_its_job_ends(make_client: Callable[..., TestClient]) -> None:
    clock = Clock()
    client = make_client(clock=clock, plan_seconds=60.0)
    for member in gang(2):
        node_of(client, member)

    clock.now += 3600.0
    assert "ml/job/hero" in booked(client.get("/v1/cluster").json())
    client.post("/v1/finish", json={"job": "ml/job/hero"})
    assert booked(client.get("/v1/cluster").json()) == {}
    assert node_of(client, gang(2)[0])  # a new plan


def test_a_failed_node_is_replaced_in_the_plan(client: TestClient) -> None:
    members = gang(2, **{SHAPE: "rack"})
    lost, kept = (node_of(client, member) for member in members)

    client.post("/v1/fail", json={"node": lost})

    assert node_of(client, members[1]) == kept
    spare = node_of(client, pod("hero-again", "hero", 2, **{SHAPE: "rack"}))
    assert spare not in (lost, kept) and spare[:8] == kept[:8]


def test_plans_survive_a_crash(tmp_path: Path) -> None:
    members = gang(3)
    engine = serve(tmp_path / "before", racks())
    first = [node_of(TestClient(create_app(engine)), member) for member in members[:2]]

    after = serve(crashed(tmp_path / "before", tmp_path / "after"))
    again = [node_of(TestClient(create_app(after)), member) for member in members]

    assert again[:2] == first
    assert len(set(again)) == 3


def busy() -> Any:
    """Two racks of two nodes: low jobs on the first, high ones on the second, a pod that tests nodes on neither."""
    idle = racks(2, 2)
    jobs = [
        Job(f"ml/job/{kind}-{node.name}", (Pod(node.name, 4, name=f"p-{node.name}", uid=f"uid-{node.name}"),),
            priority=priority, preemptible=kind == "low")
        for kind, priority, rack in (("low", 0, 0), ("high", 9, 1))
        for node in idle.nodes[2 * rack : 2 * rack + 2]
    ]  # fmt: skip
    return make_snapshot("busy", idle.levels, idle.nvlink_level, idle.nodes, jobs)


def test_only_what_the_plan_evicts_is_preempted(make_client: Callable[..., TestClient]) -> None:
    client = make_client(busy(), policy="best-fit+open")
    member = pod("urgent", **{SHAPE: "rack"}) | {"spec": {**pod("urgent")["spec"], "priority": 5}}
    victims = {name: {"Pods": [{"UID": f"uid-{name}"}], "NumPDBViolations": 1} for name in NODES[:2] + NODES[4:6]}
    answer = ask(client, "filter", member, NodeNames=[])  # kube-scheduler sees that it fits nowhere
    assert answer["NodeNames"] == []
    (planned,) = booked(client.get("/v1/cluster").json())["ml/pod/urgent"]

    meta = ask(client, "preempt", member, NodeNameToMetaVictims=victims)["NodeNameToMetaVictims"]

    assert meta == {planned: {"Pods": [{"UID": f"uid-{planned}"}], "NumPDBViolations": 1}}
    whole = {planned: {"pods": [{"metadata": {"uid": f"uid-{planned}"}}]}}
    assert (
        ask(client, "preempt", member, nodeNameToVictims=whole)["NodeNameToMetaVictims"][planned]["NumPDBViolations"]
        == 0
    )
    tests = {planned: {"Pods": [{"UID": "a-pod-that-came-to-test-the-node"}]}}
    assert planned in ask(client, "preempt", member, NodeNameToMetaVictims=tests)["NodeNameToMetaVictims"]
    kept = {planned: {"Pods": [{"UID": f"uid-{NODES[4]}"}]}}  # of a job that the plan leaves alone
    assert ask(client, "preempt", member, NodeNameToMetaVictims=kept)["NodeNameToMetaVictims"] == {}
    assert ask(client, "preempt", pod("unknown"), NodeNameToMetaVictims=victims)["NodeNameToMetaVictims"] == {}
