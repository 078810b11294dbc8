"""Clusters and jobs that no textbook has: amounts out of range, overcommitted nodes, taints on spares."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from nvlenv.cluster.types import Mode, QueueSpec
from nvlenv.common.errors import InputError
from nvlenv.engine.core.engine import PlacementEngine
from nvlenv.engine.formats.load import parse_job, parse_snapshot
from nvlenv.engine.model.answers import Loss, Placed, Refused
from nvlenv.engine.model.jobs import Job, Pod, check_job
from nvlenv.engine.model.snapshot import Node, NodeState
from nvlenv.policies.kueue.types import Taint
from tests.engine.clusters import NOW, cluster, free_racks, gang, node, nodes_of, tenant

BAD_JOBS: dict[str, tuple[dict[str, Any], str]] = {
    "a priority beyond 32 bits": (
        {"gpus": 4, "priority": 2**31},
        "job hero, priority: found 2147483648, expected -2147",
    ),
    "a priority far below zero": (
        {"gpus": 4, "priority": -(2**31) - 1},
        "job hero, priority: found -2147483649, expected",
    ),
    "cpu that no 64 bits hold": ({"pods": 4, "cpu": "4000000000000000"}, "job hero, cpu: found more than 64 bits"),
    "memory that no 64 bits hold": ({"pods": 4, "memory": "4Ei"}, "job hero, memory: found more than 64 bits"),
}


@pytest.mark.parametrize(("job", "told"), BAD_JOBS.values(), ids=BAD_JOBS)
def test_a_job_of_impossible_amounts_is_refused_where_it_is_read(job: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=f"^job.json: {told}"):
        parse_job(json.dumps({"name": "hero", **job}), "job.json")


def test_the_amounts_at_the_bounds_are_no_error() -> None:
    check_job("job", gang("low", 1, priority=-(2**31)))
    check_job("job", gang("high", 1, priority=2**31 - 1))


def test_a_job_of_more_whole_nodes_than_32_bits_of_gpus_is_refused() -> None:
    huge = parse_job(json.dumps({"name": "huge", "pods": 2**30, "gpus_per_pod": 1, "exclusive": True}))

    with pytest.raises(InputError, match=r"job huge.*1073741824 pods of 4 GPUs"):
        PlacementEngine(free_racks(2), at=NOW).place(huge, at=NOW)


NODE = Node("n0", ("b0", "r0", "n0"), 4)
BAD_CLUSTERS: dict[str, tuple[list[Node], list[Job], list[QueueSpec], str]] = {
    "a priority beyond 32 bits": ([NODE], [Job("a", (Pod("n0", 1),), priority=2**40)], [], "job a, priority"),
    "a pod of more GPUs than any node": ([NODE], [Job("a", (Pod("n0", 2**40),))], [], "job a, pods, gpus"),
    "cpu beyond 64 bits": ([NODE], [Job("a", (Pod("n0", 1, cpu=2**62),) * 2)], [], "node n0, pods, cpu"),
    "memory beyond 64 bits": ([NODE], [Job("a", (Pod("n0", 1, memory=2**62),) * 2)], [], "node n0, pods, memory"),
    "a quota beyond all limits": ([NODE], [], [QueueSpec("q", 2**62)], "queue q"),
    "a borrowing limit beyond all limits": ([NODE], [], [QueueSpec("q", 1, "c", 2**62)], "queue q"),
    "a node name with a blank": ([replace(NODE, name="n 0", path=("b0", "r0", "n 0"))], [], [], "without blanks"),
    "a node name with a bracket": ([replace(NODE, name="n[0]", path=("b0", "r0", "n[0]"))], [], [], "without blanks"),
}


@pytest.mark.parametrize(("nodes", "jobs", "queues", "told"), BAD_CLUSTERS.values(), ids=BAD_CLUSTERS)
def test_a_cluster_of_impossible_amounts_or_names_is_refused(
    nodes: list[Node], jobs: list[Job], queues: list[QueueSpec], told: str
) -> None:
    with pytest.raises(InputError, match=f"^test: .*{told}"):
        cluster(nodes, jobs, queues)


def test_a_rack_name_of_two_lines_is_refused_on_one() -> None:
    with pytest.raises(InputError, match="printable") as error:
        parse_snapshot(json.dumps({"racks": {"a\nb": [4, 4]}}), "cluster.json")
    assert "\n" not in str(error.value)


def test_a_pod_may_hold_more_gpus_than_its_node_has_left() -> None:
    """A GPU falls off every node of the cluster: the pod that had four of them still runs."""
    engine = PlacementEngine(cluster(nodes_of([3], gpus=3), [tenant("whole", [node(0, 0)], gpus=4)]), at=NOW)

    answer = engine.place(gang("small", 2, gpus=3), at=NOW)

    assert isinstance(answer, Placed)
    assert answer.nodes == (node(0, 1), node(0, 2))
    engine.finish("test/whole", at=NOW)
    assert isinstance(engine.place(gang("next", 1, gpus=3), at=NOW), Placed)


def overcommitted() -> PlacementEngine:
    """A movable job of two pods of 4 GPUs, one of them on a node that has 3 left; its rack has a third, free node."""
    nodes = [replace(n, gpus=3) if n.name == node(0, 0) else n for n in nodes_of([3, 1, 1])]
    serving = tenant("serving", [node(0, 0), node(0, 1)], movable=True, preemptible=False)
    return PlacementEngine(cluster(nodes, [serving]), at=NOW)


def test_movable_work_on_an_overcommitted_node_is_not_moved_in_parts() -> None:
    engine = overcommitted()
    before = engine.state()

    assert engine.defrag(2, at=NOW) == ()
    assert isinstance(engine.place(gang("train", 2, priority=9), at=NOW), Refused)
    assert engine.state() == before


def test_its_failure_gives_it_a_whole_node() -> None:
    engine = overcommitted()

    (replacement,) = engine.fail_node(node(0, 0), at=NOW).replaced

    assert [(b.node, b.gpus) for b in replacement.spares] == [(node(0, 2), 4)]
    assert engine.slots().free_gpus == 8, "of the other racks"
    engine.finish("test/serving", at=NOW)
    assert engine.slots().free_gpus == 16


def test_a_node_that_repels_other_pods_is_no_spare() -> None:
    plain = nodes_of([3])
    reserved = [replace(n, taints=(Taint("team", "a"),)) if n.name == node(0, 2) else n for n in plain]
    job, wall = tenant("train", [node(0, 0)]), tenant("wall", [node(0, 1)])

    assert [r.job for r in PlacementEngine(cluster(plain, [job, wall]), at=NOW).fail_node(node(0, 0)).replaced] == [
        "test/train"
    ]
    loss = PlacementEngine(cluster(reserved, [job, wall]), at=NOW).fail_node(node(0, 0))
    assert [(e.job, e.reason) for e in loss.evictions] == [("test/train", Loss.FAILED)]
    assert loss.replaced == ()


def test_nothing_is_moved_to_a_node_that_repels_it() -> None:
    nodes = nodes_of([2, 1])
    nodes[2] = replace(nodes[2], taints=(Taint("team", "a"),))
    serving = tenant("serving", [node(0, 0)], gpus=2, preemptible=False, movable=True)
    engine = PlacementEngine(cluster(nodes, [serving]), at=NOW)

    assert engine.defrag(2, at=NOW) == ()
    assert isinstance(engine.place(gang("train", 2, priority=1), at=NOW), Refused)
    own = replace(nodes[0], taints=(Taint("team", "a"),))
    assert PlacementEngine(cluster([own, *nodes[1:]], [serving]), at=NOW).defrag(2, at=NOW) != ()


def test_who_leaves_an_overcommitted_node_gives_back_no_more_than_it_had_alone() -> None:
    jobs = [tenant(name, [node(0, 0)], gpus=3) for name in ("ends", "stays")]
    engine = PlacementEngine(cluster(nodes_of([1]), jobs), at=NOW)
    engine = PlacementEngine.from_state(engine.state())

    engine.finish("test/ends", at=NOW)

    assert engine.slots().free_gpus == 1
    assert isinstance(engine.place(gang("pair", 1, gpus=2, preemptible=False), at=NOW), Refused)
    engine.finish("test/stays", at=NOW)
    assert engine.slots().free_gpus == 4


NEVER = {
    "a selector of no node": (gang("hero", 4, node_selector={"zone": "mars"}), "0 nodes that it could ever use"),
    "more cpu than a node has": (gang("hero", 4, cpu=9_000), "0 nodes that it could ever use"),
    "more than the cluster": (gang("hero", 17, Mode.UNCONSTRAINED), "16 nodes that it could ever use"),
    "more than a rack": (gang("hero", 5), "16 nodes that it could ever use, 0 times 5 nodes in one rack"),
    "more slices than racks": (gang("hero", 15, slice_pods=3), "4 times 3 nodes in one rack, expected room for all 15"),
}


@pytest.mark.parametrize(("hero", "told"), NEVER.values(), ids=NEVER)
def test_nobody_waits_for_what_never_comes(hero: Job, told: str) -> None:
    """Racks are kept for who waits: for such a job they would be kept for ever."""
    nodes = nodes_of([4, 4, 4, 4], cpu=8_000, memory=2**40, pods=100)
    engine = PlacementEngine(cluster(nodes), "best-fit+easy+drain+open", at=NOW)

    with pytest.raises(InputError, match=f"^job hero, pod set main: found .*{told}"):
        engine.enqueue(hero, at=NOW)
    assert engine.waiting == ()
    assert isinstance(engine.place(hero, at=NOW), Refused)


def test_who_waits_for_failed_or_taken_nodes_may_do_so() -> None:
    down = [replace(n, state=NodeState.FAILED) for n in nodes_of([4])]
    engine = PlacementEngine(cluster([*down, *nodes_of([4, 4])[4:]], [tenant("all", [node(1, 0)])]), at=NOW)

    assert engine.enqueue(gang("hero", 8, slice_pods=4), at=NOW) == "default/hero"


def test_what_overcommitted_nodes_give_back_is_taken_in_the_order_of_their_names() -> None:
    """A journal that is replayed in another process must lead to the same state, GPU by GPU."""
    places = [node(0, n) for n in range(6)]
    jobs = [tenant("first", places, gpus=2), tenant("second", places, gpus=2)]
    engine = PlacementEngine(cluster(nodes_of([6], gpus=3), jobs), at=NOW)

    engine.finish("test/first", at=NOW)

    (row,) = engine.state()["rows"]
    before, given_back = row["gpus"][:6], row["gpus"][6:]
    assert [slot // 3 for slot in before] == [0, 1, 2, 3, 4, 5]
    assert [slot // 3 for slot in given_back] == [0, 1, 2, 3, 4, 5]
