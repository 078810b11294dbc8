"""Transactions of the engine: all of a job or nothing, quota, turns, nodes, and the state that outlives a crash."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvlenv.cluster.types import Mode, QueueSpec
from nvlenv.common.errors import InputError
from nvlenv.engine.core.engine import PlacementEngine
from nvlenv.engine.core.live import SPARE_ROWS
from nvlenv.engine.formats.load import parse_job, parse_snapshot
from nvlenv.engine.model.answers import Cause, Loss, Placed, Refused
from nvlenv.engine.model.jobs import Job, Pod, PodSet
from nvlenv.engine.model.settings import Settings
from nvlenv.engine.model.snapshot import ClusterSnapshot, NodeState
from nvlenv.policies.kueue.types import Layer, Taint, Toleration
from nvlenv.policies.learned import save_policy
from tests.engine.clusters import HOUR, NOW, cluster, free_racks, gang, node, nodes_of, tenant
from tests.policies.files import random_arrays


def engine_of(snapshot: ClusterSnapshot, policy: str = "best-fit+open", **fields: Any) -> PlacementEngine:
    return PlacementEngine(snapshot, policy, Settings(**fields), at=NOW)


def placed(engine: PlacementEngine, job: Job, **options: Any) -> Placed:
    answer = engine.place(job, at=NOW, **options)
    assert isinstance(answer, Placed), answer
    return answer


def refused(engine: PlacementEngine, job: Job, **options: Any) -> Refused:
    answer = engine.place(job, at=NOW, **options)
    assert isinstance(answer, Refused), answer
    return answer


def test_a_placed_job_holds_its_nodes_until_it_finishes() -> None:
    engine = engine_of(free_racks(4, 6))
    answer = placed(engine, gang("train", 4))

    assert answer.racks == {"b0/r0": 16}
    assert engine.slots().free_gpus == 24
    assert refused(engine, gang("other", 7)).cause == Cause.CAPACITY

    engine.finish(answer.job, at=NOW)

    assert engine.slots().free_gpus == 40
    assert engine.snapshot() == free_racks(4, 6)


def test_a_refusal_changes_nothing_and_says_why_rack_by_rack() -> None:
    engine = engine_of(free_racks(4, 6))
    before = engine.state()

    answer = refused(engine, gang("train", 8))

    assert answer.cause == Cause.SHAPE
    assert answer.reason == "10 nodes are free for it, but it wants all 8 in one rack; the best rack has 6"
    assert answer.racks["b0/r1"] == "6 of 8 nodes free; 12 held by work that may not be evicted"
    assert engine.state() == before
    assert json.loads(json.dumps(answer.to_dict()))["cause"] == "shape"


@pytest.mark.parametrize("job", [gang("fits", 4), gang("never", 8), gang("evicts", 16, priority=4)])
def test_a_dry_run_answers_like_the_real_thing_and_changes_nothing(job: Job) -> None:
    snapshot = free_racks(4, 6, preemptible=True, priority=0) if job.priority else free_racks(4, 6)
    engine = engine_of(snapshot)
    before = engine.state()

    tried, explained = engine.place(job, dry_run=True, at=NOW), engine.explain(job, at=NOW)

    assert engine.state() == before
    assert engine.snapshot() == snapshot
    assert tried == engine.place(job, at=NOW)
    assert type(explained) is type(tried)


def test_the_same_job_is_placed_once() -> None:
    engine = engine_of(free_racks(4, 6))
    first = placed(engine, gang("train", 4))

    second = placed(engine, gang("train", 4))

    assert second.bindings == first.bindings
    assert second.why.rule == "it was placed before"
    with pytest.raises(InputError, match="running job of 16 GPUs"):
        engine.place(gang("train", 5), at=NOW)


def test_a_queue_has_its_quota_and_what_its_cohort_lends() -> None:
    queues = [
        QueueSpec("a", 16, "cohort", borrowing_limit=8),
        QueueSpec("b", 32, "cohort"),
    ]
    engine = engine_of(cluster(nodes_of([18, 18]), queues=queues))

    placed(engine, gang("first", 6, queue="a"))
    no = refused(engine, gang("second", 1, queue="a"))
    placed(engine, gang("third", 6, queue="b"))
    full = refused(engine, gang("fourth", 1, queue="b"))

    assert no.cause == full.cause == Cause.QUOTA
    assert no.reason == "queue a uses 24 of 16 GPUs and may borrow 8; the job asks for 4 more"
    assert full.reason == "queue b uses 24 of 32 GPUs, its cohort cohort 48 of 48; the job asks for 4 more"
    placed(engine, gang("outside", 1))  # of all queues
    with pytest.raises(InputError, match=r"'c', expected one of \['a', 'b'\]"):
        engine.place(gang("fifth", 1, queue="c"), at=NOW)


def test_a_job_of_a_strict_queue_waits_behind_an_older_one() -> None:
    busy = [tenant("busy", [node(0, 0)])]
    engine = engine_of(cluster(nodes_of([4]), busy, [QueueSpec("strict", 16, strict=True)]))
    engine.enqueue(gang("large", 4, queue="strict"), at=NOW)

    answer = refused(engine, gang("small", 1, queue="strict"))
    engine.finish("default/large", at=NOW)

    assert answer.cause == Cause.BEHIND
    assert "default/large waits before it" in answer.reason
    placed(engine, gang("small", 1, queue="strict"))


def test_racks_are_kept_for_a_hero_that_waits() -> None:
    jobs = [tenant("ends-soon", [node(0, n) for n in range(9)], estimate=4.0, preemptible=False)]
    engine = engine_of(cluster(nodes_of([18, 18]), jobs), "best-fit+easy")
    engine.enqueue(gang("hero", 32, slice_pods=16, priority=4), at=NOW)

    answer = refused(engine, gang("long", 4, estimate=24.0))
    short = placed(engine, gang("short", 4, estimate=1.0))

    assert answer.cause == Cause.HELD
    assert answer.reason.endswith("every rack that fits is kept: those reserved for default/hero (easy)")
    assert answer.why.steps[0].candidates[0].note == "kept for default/hero, which waits for racks"
    assert short.why.steps[0].legal == 2
    assert engine.waiting == ("default/hero",)


def test_what_the_policy_opens_and_then_holds_is_taken_back() -> None:
    """The second slice of the opener could only start where racks are kept for the hero: nobody is evicted for that."""

    class OpensOnce:
        name = "opens-once"

        def __call__(self, decision: Any) -> int:
            opens = decision.mask[decision.layout.racks : 2 * decision.layout.racks]
            first = int(decision.sim.jobs["first_gpu"][decision.job]) < 0
            return int(decision.layout.open(int(opens.argmax()))) if first else int(decision.layout.hold)

    engine = PlacementEngine(free_racks(4, 4, preemptible=True), OpensOnce(), at=NOW)
    before = engine.state()

    answer = refused(engine, gang("train", 32, slice_pods=16, priority=3))

    assert [step.action for step in answer.why.steps] == ["open", "hold"]
    assert engine.state() == before


def test_an_evicted_job_waits_again_if_the_engine_placed_it() -> None:
    engine = engine_of(free_racks(16, preemptible=False))
    low = placed(engine, gang("low", 16, priority=1))

    answer = placed(engine, gang("high", 16, priority=3))

    assert [(e.job, e.reason) for e in answer.evictions] == [(low.job, Loss.PREEMPTED)]
    assert engine.waiting == (low.job,)
    assert refused(engine, gang("low", 16, priority=1)).cause == Cause.CAPACITY
    engine.finish(answer.job, at=NOW)
    placed(engine, gang("low", 16, priority=1))
    assert engine.waiting == ()


def test_a_movable_job_makes_room_and_its_pods_are_where_the_answer_says() -> None:
    jobs = [tenant("held", [node(1, n) for n in range(14)], preemptible=False)]
    jobs += [tenant("serving", [node(0, 16), node(0, 17)], gpus=2, preemptible=False, movable=True)]
    jobs += [tenant(f"half-{n}", [node(1, n)], gpus=2, preemptible=False) for n in (14, 15)]
    engine = engine_of(cluster(nodes_of([18, 16]), jobs))

    answer = placed(engine, gang("train", 18, priority=1))

    (move,) = answer.evictions
    assert (move.job, move.reason, move.cost) == ("test/serving", Loss.MOVED, 4 * 0.25)
    assert {binding.node for binding in move.moved_to} == {node(1, 14), node(1, 15)}
    serving = next(job for job in engine.snapshot().jobs if job.id == "test/serving")
    assert serving.nodes == (node(1, 14), node(1, 15))


def test_cordoned_and_failed_nodes_take_no_pods() -> None:
    engine = engine_of(free_racks(2, 0))
    engine.cordon(node(0, 0), at=NOW)
    engine.fail_node(node(0, 1), at=NOW)

    answer = refused(engine, gang("one", 1))

    assert answer.racks["b0/r0"].endswith("2 failed or cordoned")
    assert engine.slots().unreachable_gpus == 8
    assert [n.state for n in engine.snapshot().nodes[:2]] == [NodeState.CORDONED, NodeState.FAILED]
    engine.uncordon(node(0, 0), at=NOW)
    engine.repair_node(node(0, 1), at=NOW)
    assert engine.snapshot() == free_racks(2, 0)
    placed(engine, gang("two", 2))
    with pytest.raises(InputError, match="'nowhere'"):
        engine.cordon("nowhere")


def test_a_snapshot_with_failed_nodes_is_taken_as_it_is() -> None:
    nodes = nodes_of([4])
    nodes[0] = replace(nodes[0], state=NodeState.FAILED)
    nodes[1] = replace(nodes[1], state=NodeState.CORDONED)
    engine = engine_of(cluster(nodes))

    assert engine.slots([1]).free == {1: 2}
    engine.repair_node(nodes[0].name, at=NOW)
    engine.uncordon(nodes[1].name, at=NOW)
    assert engine.slots([1]).free == {1: 4}


def test_taints_and_selectors_keep_pods_away() -> None:
    nodes = nodes_of([2, 2, 2])
    nodes[:2] = [replace(n, taints=(Taint("team", "a"),)) for n in nodes[:2]]
    nodes[2:4] = [replace(n, labels={"zone": "x"}, taints=(Taint("nvidia.com/gpu"),)) for n in nodes[2:4]]
    engine = engine_of(cluster(nodes))
    tolerates = gang("tolerates", 2, node_selector={})
    tolerates = replace(
        tolerates, pod_sets=(replace(tolerates.pod_sets[0], tolerations=(Toleration("team", "Equal", "a"),)),)
    )

    selects = placed(engine, gang("selects", 2, node_selector={"zone": "x"}))
    plain = placed(engine, gang("plain", 2))
    refused(engine, gang("late", 1))

    assert (list(selects.racks), list(plain.racks)) == (["b0/r1"], ["b0/r2"])
    assert list(placed(engine, tolerates).racks) == ["b0/r0"]


def test_slices_inside_a_required_block_stay_in_one_block() -> None:
    nodes = nodes_of([18, 10, 18, 18], blocks=[0, 0, 1, 1])
    engine = engine_of(cluster(nodes))
    job = gang("train", 32, Mode.REQUIRED, slice_pods=16, level="block")

    assert list(placed(engine, job).racks) == ["b1/r2", "b1/r3"]
    no = refused(engine, gang("second", 32, Mode.REQUIRED, slice_pods=16, level="block"))
    assert no.cause == Cause.SHAPE
    assert no.reason.endswith("in one rack each, all in one block; the best racks together hold 1 slices")
    assert list(placed(engine, gang("third", 20, Mode.PREFERRED, slice_pods=10, level="block")).racks) == [
        "b0/r0",
        "b0/r1",
    ]


def test_a_leader_goes_with_its_workers() -> None:
    nodes = nodes_of([3, 5], cpu=10_000, memory=2**40, pods=10)
    engine = engine_of(cluster(nodes))
    group: dict[str, Any] = {"mode": Mode.REQUIRED, "level": "rack", "group": "g"}
    workers = PodSet("workers", 4, 4, cpu=8_000, **group)
    with_gpus = Job(name="a", pod_sets=(PodSet("leader", 1, 4, cpu=8_000, **group), workers))
    coordinator = Job(name="b", pod_sets=(PodSet("leader", 1, 0, cpu=3_000, **group), workers))

    small = PodSet("leader", 1, 2, cpu=3_000, **group)
    another = Job(name="c", pod_sets=(small, workers))

    five = placed(engine, with_gpus, dry_run=True)
    beside = placed(engine, coordinator, dry_run=True)
    unlike = placed(engine, another, dry_run=True)

    assert [(b.pod_set, b.node) for b in five.bindings] == [
        ("leader", node(1, 0)),
        *(("workers", node(1, n)) for n in range(1, 5)),
    ]
    assert [(b.node, b.gpus) for b in beside.bindings if b.pod_set == "leader"] == [(node(1, 4), 0)]
    assert [(b.node, b.gpus) for b in unlike.bindings if b.pod_set == "leader"] == [(node(1, 4), 2)]


def test_a_job_of_two_pod_sets_is_placed_whole_or_not_at_all() -> None:
    engine = engine_of(free_racks(4, 2))
    sets = (PodSet("a", 4, 4, mode=Mode.REQUIRED), PodSet("b", 3, 4, mode=Mode.REQUIRED))
    before = engine.state()

    assert refused(engine, Job(name="two", pod_sets=sets)).cause == Cause.CAPACITY
    assert engine.state() == before
    both = placed(engine, Job(name="two", pod_sets=(sets[0], replace(sets[1], pods=2))))
    assert [b.pod_set for b in both.bindings] == ["a"] * 4 + ["b"] * 2
    engine.finish(both.job, at=NOW)
    assert engine.snapshot() == free_racks(4, 2)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (gang("a", 1, gpus=8), "at most 4, the GPUs of the largest node"),
        (gang("a", 1, level="pod"), r"'pod', expected one of \['block', 'rack', 'hostname'\]"),
        (gang("a", 3, gpus=2, level="hostname"), "3 pods of 2 GPUs on one host"),
        (
            Job(name="a", pod_sets=(PodSet("main", 16, 4, slices=(Layer("", 8), Layer("hostname", 4))),)),
            "one layer: the engine does not divide slices further",
        ),
    ],
)
def test_what_no_such_cluster_could_hold_is_an_error(job: Job, said: str) -> None:
    engine = engine_of(free_racks(4))
    with pytest.raises(InputError, match=said):
        engine.place(job, at=NOW)
    with pytest.raises(InputError, match="a job that runs or waits"):
        engine.finish("default/a")


def test_a_policy_file_and_an_exported_state_go_on_alike(tmp_path: Path) -> None:
    save_policy(tmp_path / "policy.npz", random_arrays(hidden=8))
    engine = PlacementEngine(free_racks(18, 12, 5), tmp_path / "policy.npz", at=NOW)
    engine.place(gang("one", 3), at=NOW)
    engine.enqueue(gang("two", 18, priority=4), at=NOW)

    restored = PlacementEngine.from_state(json.loads(json.dumps(engine.state())), tmp_path / "policy.npz")

    assert restored.state() == engine.state()
    for job in (gang("three", 2), gang("two", 18, priority=4), gang("four", 1, gpus=1)):
        assert restored.place(job, at=NOW + 60) == engine.place(job, at=NOW + 60)
    assert "logit" in engine.explain(gang("five", 1), at=NOW + 90).why.rule


def test_states_keep_the_keys_by_which_earlier_versions_wrote_them() -> None:
    engine = engine_of(free_racks(2))
    placed(engine, gang("a", 2))

    (row,) = (entry["row"] for entry in engine.state()["rows"] if entry["job"] == "default/a")

    assert set(row) == {
        *("submit", "duration", "noise", "comm", "ideal", "checkpoint", "restart", "gpus", "pod_gpus", "unit_pods"),
        *("units", "priority", "queue", "klass", "mode", "height", "preemptible", "movable", "evictions", "work"),
        *("queued", "start", "predicted", "speed", "first_start", "waited", "lost"),
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "other"}, "found 'other', expected 'nvlenv-engine/1'"),
        ({"rows": [{}]}, "KeyError: 'job'"),
        ({"times": {"began": 0}}, "TypeError"),
        ({"order": []}, "KeyError"),
        ({"mix": [[1.0, 2.0]]}, "ValueError"),
        ({"cluster": {"format": "none"}}, "'none'"),
    ],
)
def test_a_state_that_is_not_as_it_was_written_is_an_error(change: dict[str, Any], said: str) -> None:
    state = {**engine_of(free_racks(4)).state(), **change}
    with pytest.raises(InputError, match=said):
        PlacementEngine.from_state(state)


def test_a_move_to_a_node_without_cpu_is_not_made() -> None:
    nodes = nodes_of([2, 1], cpu=10_000, memory=2**30, pods=4)
    serving = tenant("serving", [node(0, 0)], gpus=2, preemptible=False, movable=True)
    serving = replace(serving, pods=tuple(replace(pod, cpu=4_000) for pod in serving.pods))
    half = tenant("half", [node(1, 0)], gpus=2, preemptible=False)
    busy = replace(half, pods=tuple(replace(pod, cpu=8_000) for pod in half.pods))
    job = gang("train", 2, priority=1)

    no = refused(engine_of(cluster(nodes, [serving, busy])), job)
    assert (no.cause, no.why.steps) == (Cause.CAPACITY, ())
    assert [e.reason for e in placed(engine_of(cluster(nodes, [serving, half])), job).evictions] == [Loss.MOVED]


def test_more_jobs_than_rows_come_and_go() -> None:
    engine = engine_of(free_racks(3))
    engine.enqueue(gang("waits", 18, priority=4), at=NOW)

    for number in range(2 * SPARE_ROWS + 10):
        engine.finish(placed(engine, gang(f"job-{number}", 2)).job, at=NOW)
        refused(engine, gang("large", 4))

    assert engine.snapshot() == free_racks(3)
    assert engine.waiting == ("default/waits",)
    assert len(engine._live.sim.jobs) < 2 * SPARE_ROWS


def test_the_docstring_example_holds() -> None:
    engine = PlacementEngine(parse_snapshot('{"racks": [[4, 4, 0], [4, 2, 2]]}'), "best-fit+easy+open")
    answer = engine.place(parse_job('{"name": "tune", "gpus": 8, "mode": "required"}'))
    assert isinstance(answer, Placed)
    assert answer.nodes == ("rack-000-node-00", "rack-000-node-01")
    assert answer.job == parse_job('{"name": "tune", "gpus": 8}').id == "default/tune"


# Anything, in any order

REQUESTS = st.builds(
    gang,
    name=st.sampled_from([f"job-{number}" for number in range(8)]),
    pods=st.integers(1, 5),
    mode=st.sampled_from(Mode),
    slice_pods=st.just(0),
    gpus=st.sampled_from([1, 2, 4]),
    priority=st.integers(0, 4),
    cpu=st.sampled_from([0, 20_000, 60_000]),
    estimate=st.one_of(st.none(), st.floats(0.1, 50)),
    queue=st.sampled_from(["", "a", "b"]),
    preemptible=st.booleans(),
    movable=st.booleans(),
)
NODES = nodes_of([4, 3, 4, 2], blocks=[0, 0, 1, 1], cpu=64_000, memory=2**36, pods=6)
CALLS = st.one_of(
    st.tuples(st.sampled_from(["place", "dry_run", "enqueue"]), REQUESTS),
    st.tuples(st.just("finish"), st.integers(0, 20)),
    st.tuples(st.sampled_from(["cordon", "uncordon", "fail_node", "repair_node"]), st.integers(0, len(NODES) - 1)),
)
START = cluster(
    NODES,
    [
        tenant("old", [node(0, 0), node(0, 1)], priority=1),
        tenant("serving", [node(1, 0)], gpus=2, movable=True, preemptible=False),
        Job("test/cpu", (Pod(node(2, 0), 0, cpu=50_000),), name="cpu", preemptible=True),
        tenant("verify", [node(2, 1), node(2, 2)], verification=True, priority=-1, queue=""),
    ],
    [QueueSpec("a", 20, "both", strict=True), QueueSpec("b", 24, "both")],
)


def call(engine: PlacementEngine, name: str, argument: Any, at: float) -> Any:
    """One call, whatever comes of it."""
    try:
        if name in ("place", "dry_run"):
            return engine.place(argument, dry_run=name == "dry_run", at=at)
        if name == "enqueue":
            return engine.enqueue(argument, at=at)
        if name == "finish":
            known = sorted({job.id for job in engine.snapshot().jobs} | set(engine.waiting))
            return engine.finish(known[argument % len(known)], at=at) if known else None
        return getattr(engine, name)(NODES[argument].name, at=at)
    except InputError as error:
        return str(error)


ANY_CALLS = {
    "calls": st.lists(CALLS, max_size=25),
    "policy": st.sampled_from(["best-fit+fill+easy+open", "least-allocated+open", "kueue-tas", "kueue-tas+preemption"]),
}


@settings(max_examples=40)
@given(**ANY_CALLS)
def test_whatever_happens_nothing_is_booked_twice_and_the_state_says_it_all(
    calls: list[tuple[str, Any]], policy: str
) -> None:
    assert_holds(calls, policy)


@pytest.mark.slow
@settings(max_examples=3000)
@given(**ANY_CALLS)
def test_nor_in_three_thousand_histories(calls: list[tuple[str, Any]], policy: str) -> None:
    assert_holds(calls, policy)


def assert_holds(calls: list[tuple[str, Any]], policy: str) -> None:
    engine, twin = PlacementEngine(START, policy, at=NOW), PlacementEngine(START, policy, at=NOW)
    for number, (name, argument) in enumerate(calls):
        at = NOW + 600 * number
        before = engine.snapshot()
        answer = call(engine, name, argument, at)
        if name == "dry_run":
            assert engine.snapshot() == before
        else:
            assert call(twin, name, argument, at) == answer  # dry runs leave no trace
        assert_consistent(engine)
        if isinstance(answer, Refused):
            assert engine.snapshot() == before
    state = engine.state()
    restored = PlacementEngine.from_state(json.loads(json.dumps(state)), policy)
    assert restored.state() == state == twin.state()
    job = gang("last", 3, priority=4)
    assert restored.place(job, at=NOW + HOUR * 90) == engine.place(job, at=NOW + HOUR * 90)


def assert_consistent(engine: PlacementEngine) -> None:
    """The book, the arrays and the snapshot agree, and no node gives more than it has."""
    snapshot, sim = engine.snapshot(), engine._live.sim
    free = snapshot.free
    for number, place in enumerate(snapshot.nodes):
        held = sum(
            pod.gpus for job in snapshot.jobs if not job.verification for pod in job.pods if pod.node == place.name
        )
        assert held <= place.gpus
        assert free[place.name].gpus == int(sim.nodes["free"][number])
        used = [pod for job in snapshot.jobs if not job.verification for pod in job.pods if pod.node == place.name]
        assert sum(pod.cpu for pod in used) <= place.cpu
        assert len(used) <= place.pods
        assert int(sim.nodes["blocked"][number]) == int(place.state != NodeState.UP)
    by_queue = [sum(job.gpus for job in snapshot.jobs if job.queue == queue.name) for queue in engine._live.queues[:-1]]
    assert by_queue == sim.queues["used"][:-1].tolist()
    assert not int(sim.clock["illegal"][0])
