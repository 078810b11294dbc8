"""Cases that operators of real clusters brought up, with the answers that they expect."""

from __future__ import annotations

import json

import pytest

from nvlenv.cluster.types import Mode, QueueSpec
from nvlenv.common.errors import InputError
from nvlenv.engine.core.engine import PlacementEngine
from nvlenv.engine.formats.load import parse_snapshot
from nvlenv.engine.model.answers import Cause, Loss, Placed, Refused
from nvlenv.engine.model.jobs import Job, Pod
from nvlenv.engine.model.snapshot import ClusterSnapshot
from tests.engine.clusters import NOW, cluster, free_racks, gang, node, nodes_of, tenant, unreachable_gpus

OPENS = "best-fit+open"


def place(snapshot: ClusterSnapshot, job: Job, policy: str = OPENS) -> Placed | Refused:
    return PlacementEngine(snapshot, policy, at=NOW).place(job, at=NOW)


@pytest.mark.parametrize("one_job", [True, False])
def test_verification_pods_give_way_and_count_nowhere(one_job: bool) -> None:
    rack = [node(0, n) for n in range(18)]
    tests = {"queue": "", "priority": -1, "verification": True, "preemptible": False}
    jobs = [tenant("verify", rack, **tests)] if one_job else [tenant(f"verify-{n}", [n], **tests) for n in rack]
    queue = QueueSpec("research", nominal=64)
    engine = PlacementEngine(cluster(nodes_of([18]), jobs, [queue]), OPENS, at=NOW)

    before = engine.slots([18, 16])
    answer = engine.place(gang("train", 16, queue="research"), at=NOW)

    assert (before.free_gpus, before.free[18]) == (72, 1)  # usage 0, quota of exactly the job's GPUs suffices
    assert isinstance(answer, Placed)
    assert len(answer.evictions) == 16
    assert {eviction.reason for eviction in answer.evictions} == {Loss.VERIFICATION}
    assert {eviction.nodes[0] for eviction in answer.evictions} == set(answer.nodes)
    assert answer.cost == 0
    kept = [pod for job in engine.snapshot().jobs if job.verification for pod in job.pods]
    assert len(kept) == 2


def test_a_hero_evicts_as_few_as_it_needs() -> None:
    used = {0: [4, 4, 4, 4], 1: [4, 4, 4, 2], 2: [4, 4, 4]}  # tenants by nodes; 2, 4 and 6 of 18 nodes are free
    jobs = []
    for rack, tenants in used.items():
        first = 0
        for number, size in enumerate(tenants):
            jobs.append(tenant(f"r{rack}-t{number}", [node(rack, n) for n in range(first, first + size)], priority=1))
            first += size
    answer = place(cluster(nodes_of([18] * 3), jobs), gang("hero", 16, priority=4))

    assert isinstance(answer, Placed)
    assert list(answer.racks.values()) == [64]
    needed = set(answer.nodes)
    evicted = [n for eviction in answer.evictions for n in eviction.nodes]
    assert len(evicted) == 12  # no rack can do with fewer
    assert len([n for n in evicted if n not in needed]) == 0
    assert [eviction.reason for eviction in answer.evictions] == [Loss.PREEMPTED] * 3
    assert answer.cost == pytest.approx(3 * 16 * (0.25 + 0.25))  # since the last full hour, and the restart


def test_nobody_is_evicted_for_a_node_that_would_not_become_free() -> None:
    nodes = nodes_of([4], gpus=8)
    jobs = []
    for n in nodes:
        jobs += [tenant(f"{n.name}-high-{i}", [n.name], gpus=1, priority=3) for i in range(6)]
        jobs += [tenant(f"{n.name}-low-{i}", [n.name], gpus=1, priority=0) for i in range(2)]
    engine = PlacementEngine(cluster(nodes, jobs), OPENS, at=NOW)

    answer = engine.place(gang("big", 1, gpus=8, priority=2), at=NOW)

    assert isinstance(answer, Refused)
    assert answer.cause == Cause.CAPACITY
    assert "0 are free" in answer.reason
    assert answer.racks["b0/r0"] == "0 of 1 nodes free; 4 held by work that may not be evicted"
    assert len(engine.snapshot().jobs) == len(jobs)


def test_free_slots_are_counted_rack_by_rack() -> None:
    slots = PlacementEngine(free_racks(18, 17, 15, 8), at=NOW).slots([16, 8, 4])

    assert dict(slots.free) == {16: 2, 8: 6, 4: 13}


def test_a_node_without_its_block_is_named() -> None:
    labels = {"topology/block": "b0", "topology/rack": "r0", "kubernetes.io/hostname": "n0"}
    good = {
        "kind": "Node",
        "metadata": {"name": "n0", "labels": labels},
        "status": {"allocatable": {"nvidia.com/gpu": 4}},
    }
    bad = json.loads(json.dumps(good).replace("n0", "n1"))
    del bad["metadata"]["labels"]["topology/block"]
    levels = ("topology/block", "topology/rack", "kubernetes.io/hostname")

    with pytest.raises(InputError, match=r"n1.*topology/block"):
        parse_snapshot(json.dumps({"kind": "List", "items": [good, bad]}), levels=levels, nvlink_level=levels[1])


def test_cpu_only_pods_put_gpus_out_of_reach() -> None:
    nodes = nodes_of([18] * 12, cpu=100_000, memory=2**40, pods=110)
    held = [node(rack, n) for rack in range(9) for n in range(7)] + [node(0, 7)]  # 64 nodes over 9 of 12 racks
    etl = Job("test/etl", tuple(Pod(n, 0, cpu=80_000) for n in held), name="etl", queue="tenants", preemptible=True)
    snapshot = cluster(nodes, [etl])
    engine = PlacementEngine(snapshot, OPENS, at=NOW)

    fits = engine.place(gang("fits", 11, cpu=50_000), dry_run=True, at=NOW)
    too_many = engine.place(gang("too-many", 153, Mode.UNCONSTRAINED, cpu=50_000), at=NOW)

    assert isinstance(fits, Placed)
    assert not set(fits.nodes) & set(held)
    assert isinstance(too_many, Refused)
    assert too_many.reason == "it asks for 153 nodes, 152 are free for it"
    assert too_many.racks["b0/r0"].startswith("10 of 1 nodes free; 8 idle, but without cpu for it")
    assert sum(unreachable_gpus(snapshot, pod_cpu=50_000).values()) == 256
    assert snapshot.unreachable_report(pod_cpu=50_000) == (
        "256 idle GPUs unreachable: job test/etl leaves too little cpu on 64 nodes in 9 of 12 racks",
    )


@pytest.mark.parametrize(
    ("high", "victims"),
    [
        ({"cpu": 60_000}, {"test/gpu": Loss.PREEMPTED, "test/cpu": Loss.RESOURCES}),  # the cores of both
        ({"cpu": 1_000}, {"test/gpu": Loss.PREEMPTED}),  # the GPUs alone: the other pod may stay
    ],
)
def test_a_high_pod_takes_a_node_from_a_gpu_pod_and_a_cpu_pod(high: dict[str, int], victims: dict[str, Loss]) -> None:
    nodes = nodes_of([1], cpu=64_000, memory=2**40, pods=2)
    low = tenant("gpu", [node(0, 0)], priority=0)
    beside = Job("test/cpu", (Pod(node(0, 0), 0, cpu=8_000),), name="cpu", preemptible=True)

    answer = place(cluster(nodes, [low, beside]), gang("high", 1, Mode.UNCONSTRAINED, priority=4, **high))

    assert isinstance(answer, Placed)
    assert {eviction.job: eviction.reason for eviction in answer.evictions} == victims


def test_a_full_node_gives_way_to_a_gang_that_needs_both_places() -> None:
    nodes = nodes_of([1], cpu=64_000, memory=2**40, pods=2)
    low = tenant("gpu", [node(0, 0)], gpus=4, priority=0)
    beside = Job("test/cpu", (Pod(node(0, 0), 0, cpu=1_000),), name="cpu", preemptible=True)
    host = gang("pair", 2, Mode.REQUIRED, gpus=2, level="hostname", priority=4)  # both pods on one host

    answer = place(cluster(nodes, [low, beside]), host)

    assert isinstance(answer, Placed)
    assert {eviction.job for eviction in answer.evictions} == {"test/gpu", "test/cpu"}
    assert answer.bindings[0].pods == 2


def test_lost_nodes_are_replaced_inside_their_racks() -> None:
    engine = PlacementEngine(cluster(nodes_of([18] * 8)), "best-fit", at=NOW)
    hero = engine.place(gang("hero", 128, slice_pods=16), at=NOW)
    assert isinstance(hero, Placed)
    lost = [next(n for n in hero.nodes if n.startswith(rack)) for rack in ("r2-", "r5-")]

    answers = [engine.fail_node(n, at=NOW + 3600 * 1.5) for n in lost]

    for failed, answer in zip(lost, answers, strict=True):
        assert not answer.evictions
        (swap,) = answer.replaced
        (spare,) = swap.spares
        assert (swap.job, swap.failed, spare.node[:3]) == (hero.job, failed, failed[:3])
        assert swap.cost == pytest.approx(512 * (0.5 + 0.25))
    (job,) = engine.snapshot().jobs
    assert len(job.pods) == 128
    by_rack = [sum(pod.node.startswith(f"r{rack}-") for pod in job.pods) for rack in range(8)]
    assert by_rack == [16] * 8
    assert not set(lost) & set(job.nodes)
    again = engine.place(gang("hero", 128, slice_pods=16), at=NOW + 7200)
    assert isinstance(again, Placed)
    assert sorted(again.nodes) == sorted(job.nodes)


def test_a_lost_node_takes_only_its_own_pods_of_jobs_without_gpus() -> None:
    pods = tuple(Pod(node(0, n), 0, cpu=1000, name=f"agent-{n}") for n in range(3))
    agent = Job("kube-system/daemonset/agent", pods, name="agent")
    engine = PlacementEngine(cluster(nodes_of([3]), [agent]), OPENS, at=NOW)

    answer = engine.fail_node(node(0, 1), at=NOW)

    assert [(e.job, e.nodes, e.pods, e.gpus) for e in answer.evictions] == [(agent.id, (node(0, 1),), ("agent-1",), 0)]
    assert [pod.node for job in engine.snapshot().jobs for pod in job.pods] == [node(0, 0), node(0, 2)]


def test_a_rack_without_a_spare_loses_the_job() -> None:
    engine = PlacementEngine(cluster(nodes_of([16, 18])), "best-fit", at=NOW)
    first = engine.place(gang("train", 16), at=NOW)
    assert isinstance(first, Placed)
    assert first.nodes[0].startswith("r0")

    answer = engine.fail_node(first.nodes[3], at=NOW)

    assert [(eviction.job, eviction.reason) for eviction in answer.evictions] == [(first.job, Loss.FAILED)]
    assert engine.waiting == (first.job,)
    second = engine.place(gang("train", 16), at=NOW)
    assert isinstance(second, Placed)
    assert {n[:2] for n in second.nodes} == {"r1"}
