"""The snapshot itself: order, free and unreachable GPUs, its JSON, its checks."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvlenv.cluster.types import QueueSpec
from nvlenv.common.errors import InputError
from nvlenv.engine.formats.load import load_snapshot, parse_snapshot
from nvlenv.engine.model.jobs import UNLIMITED, Job, Pod
from nvlenv.engine.model.snapshot import ClusterSnapshot, Node, NodeState, Unreachable, make_snapshot
from nvlenv.policies.kueue.types import Taint
from tests.engine.clusters import unreachable_gpus

LEVELS = ("block", "rack", "hostname")
GIB = 2**30
WORDS = st.text("abc-01", min_size=1, max_size=4)


def nvl72(racks: int, blocks: int = 2, nodes: int = 18) -> list[Node]:
    """Racks of 18 nodes with 4 GPUs, 144 cores and 960 GiB."""
    return [
        Node(f"r{rack:02d}n{node:02d}", (f"b{rack * blocks // racks}", f"r{rack:02d}", f"r{rack:02d}n{node:02d}"), 4)
        for rack in range(racks)
        for node in range(nodes)
    ]


def sized(nodes: list[Node]) -> list[Node]:
    return [replace(node, cpu=144_000, memory=960 * GIB, pods=110) for node in nodes]


@st.composite
def snapshots(draw: st.DrawFn) -> ClusterSnapshot:
    paths = draw(st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1, max_size=6, unique_by=lambda path: path[2]))
    amounts = st.integers(0, 2**40)
    nodes = [
        Node(
            name=f"node/{path[2]}",
            path=path,
            gpus=draw(st.integers(1, 8)),
            cpu=draw(st.one_of(amounts, st.just(UNLIMITED))),
            memory=draw(st.one_of(amounts, st.just(UNLIMITED))),
            pods=draw(st.one_of(st.integers(0, 3), st.just(UNLIMITED))),
            state=draw(st.sampled_from(NodeState)),
            taints=draw(st.sampled_from([(), (Taint("gpu", "", "NoSchedule"),), (Taint("a", "b", "NoExecute"),)])),
            labels=draw(st.dictionaries(WORDS, WORDS, max_size=2)),
        )
        for path in paths
    ]
    pods = st.builds(
        Pod,
        node=st.sampled_from([node.name for node in nodes]),
        gpus=st.integers(0, 4),
        cpu=amounts,
        memory=amounts,
        name=st.one_of(st.just(""), WORDS),
        terminating=st.booleans(),
    )
    jobs = draw(
        st.lists(
            st.builds(
                Job,
                id=WORDS,
                pods=st.lists(pods, min_size=1, max_size=3).map(tuple),
                queue=st.sampled_from(["", "q"]),
                priority=st.integers(-5, 5),
                preemptible=st.booleans(),
                movable=st.booleans(),
                verification=st.booleans(),
                start=st.one_of(st.none(), st.floats(0, 1e10)),
                estimate=st.one_of(st.none(), st.floats(0, 1e4)),
            ),
            max_size=4,
            unique_by=lambda job: job.id,
        )
    )
    queues = [QueueSpec("q", draw(st.integers(0, 99)), "all", draw(st.integers(-1, 9)), draw(st.booleans()))]
    return make_snapshot(
        "drawn", LEVELS, draw(st.sampled_from(LEVELS[:2])), nodes, jobs, queues, {"a/b": "q"}, ["note"]
    )


@given(snapshots())
def test_its_json_reads_back_to_an_equal_snapshot(snapshot: ClusterSnapshot) -> None:
    assert parse_snapshot(json.dumps(snapshot.as_json())) == snapshot


@given(snapshots())
def test_node_i_is_node_i_of_the_cluster_spec(snapshot: ClusterSnapshot) -> None:
    spec = snapshot.cluster_spec()

    assert [node.path[-1] for node in snapshot.nodes] == list(spec.node_names)
    assert [node.gpus for node in snapshot.nodes] == spec.node_gpus.tolist()
    assert [snapshot.rack_of(node) for node in snapshot.nodes] == [spec.rack_names[r] for r in spec.node_rack]
    assert [node.state != NodeState.UP for node in snapshot.nodes] == spec.cordoned.tolist()


@given(snapshots())
def test_free_gpus_are_what_pods_that_count_leave(snapshot: ClusterSnapshot) -> None:
    pods = [pod for job in snapshot.jobs if not job.verification for pod in job.pods]

    for node in snapshot.nodes:
        used = sum(pod.gpus for pod in pods if pod.node == node.name)
        assert snapshot.free_gpus()[node.name] == max(0, node.gpus - used)


@given(snapshots(), st.integers(0, 2**40), st.integers(0, 2**40), st.one_of(st.none(), st.integers(1, 4)))
def test_unreachable_is_part_of_free_and_grows_with_the_pod(
    snapshot: ClusterSnapshot, cpu: int, memory: int, gpus: int | None
) -> None:
    small = unreachable_gpus(snapshot, pod_cpu=cpu // 2, pod_memory=memory // 2, pod_gpus=gpus)
    large = unreachable_gpus(snapshot, pod_cpu=cpu, pod_memory=memory, pod_gpus=gpus)

    for node in snapshot.nodes:
        assert 0 <= small[node.name] <= large[node.name] <= snapshot.free_gpus()[node.name]


def test_a_cpu_only_job_on_64_nodes_in_9_of_12_racks_is_seen() -> None:
    nodes = sized(nvl72(12))
    taken = [nodes[18 * rack + place] for place in range(8) for rack in range(9)][:64]
    etl = Job("data/job/etl", tuple(Pod(node.name, 0, cpu=115_200) for node in taken))  # 80 % of the cores
    snapshot = make_snapshot("made up", LEVELS, "rack", nodes, [etl])

    lost = unreachable_gpus(snapshot, pod_cpu=32_000)

    assert {name for name, gpus in lost.items() if gpus} == {node.name for node in taken}
    assert sum(lost.values()) == 64 * 4
    assert sum(snapshot.free_gpus().values()) == 12 * 72  # idle all the same
    assert snapshot.unreachable_report(pod_cpu=32_000) == (
        "256 idle GPUs unreachable: job data/job/etl leaves too little cpu on 64 nodes in 9 of 12 racks",
    )
    assert not any(unreachable_gpus(snapshot, pod_cpu=28_000).values())


def one_node(node: Node, *jobs: Job) -> ClusterSnapshot:
    return make_snapshot("made up", ("rack", "hostname"), "rack", [node], jobs)


NODE = Node("n0", ("r0", "n0"), 4, cpu=100_000, memory=100 * GIB, pods=3)


@pytest.mark.parametrize(
    ("node", "pods", "expected"),
    [
        (NODE, [Pod("n0", 0, cpu=71_000)], Unreachable("n0", 4, "cpu", "other")),
        (NODE, [Pod("n0", 1, memory=90 * GIB)], Unreachable("n0", 3, "memory", "other")),
        (NODE, [Pod("n0", 0)] * 3, Unreachable("n0", 4, "pods", "other")),
        (replace(NODE, state=NodeState.CORDONED), [Pod("n0", 1)], Unreachable("n0", 3, "cordoned")),
        (replace(NODE, state=NodeState.FAILED), [Pod("n0", 1)], Unreachable("n0", 3, "failed")),
        (replace(NODE, cpu=20_000), [Pod("n0", 1)], Unreachable("n0", 3, "cpu", "")),
    ],
)
def test_why_gpus_are_unreachable(node: Node, pods: list[Pod], expected: Unreachable) -> None:
    snapshot = one_node(node, Job("other", tuple(pods)))

    assert snapshot.unreachable(pod_cpu=30_000, pod_memory=20 * GIB) == (expected,)


def test_the_largest_holder_is_named() -> None:
    small, large = Job("a", (Pod("n0", 0, cpu=30_000),)), Job("b", (Pod("n0", 0, cpu=20_000),) * 2)

    (lost,) = one_node(replace(NODE, pods=9), small, large).unreachable(pod_cpu=40_000)

    assert lost.job == "b"


def test_small_pods_reach_part_of_a_node() -> None:
    snapshot = one_node(NODE, Job("etl", (Pod("n0", 0, cpu=40_000),)))

    assert unreachable_gpus(snapshot, pod_cpu=30_000, pod_gpus=1) == {"n0": 2}  # two such pods fit, of four GPUs
    assert unreachable_gpus(snapshot, pod_cpu=30_000) == {"n0": 0}  # one pod can take all four


def test_verification_pods_are_shown_but_hold_nothing() -> None:
    test = Job("cw-hpc/pod/x", (Pod("n0", 4, cpu=99_000),), priority=-1, verification=True)
    snapshot = one_node(NODE, test)

    assert snapshot.jobs == (test,)
    assert snapshot.free_gpus() == {"n0": 4}
    assert snapshot.unreachable(pod_cpu=30_000) == ()


def test_an_overcommitted_node_has_nothing_left() -> None:
    assert one_node(NODE, Job("a", (Pod("n0", 3), Pod("n0", 3)))).free["n0"].gpus == 0


def test_levels_below_the_nvlink_domain_keep_the_order_of_the_spec() -> None:
    nodes = [Node(f"n{n}", ("r0", f"tray-{9 - n}", f"n{n}"), 4) for n in range(4)]

    snapshot = make_snapshot("made up", ("rack", "tray", "hostname"), "rack", nodes)

    assert (
        [node.name for node in snapshot.nodes] == list(snapshot.cluster_spec().node_names) == ["n0", "n1", "n2", "n3"]
    )


def test_the_short_form() -> None:
    snapshot = parse_snapshot('{"racks": {"rack-a": [4, 4, 0], "rack-b": [4, 2, 1]}}')

    assert list(snapshot.free_gpus().values()) == [4, 4, 0, 4, 2, 1]
    assert snapshot.cluster_spec().rack_names == ("rack-a", "rack-b")
    assert snapshot.cluster_spec().gpus == 24
    assert not any(job.preemptible or job.movable for job in snapshot.jobs)


def test_a_file_in_the_short_form() -> None:
    snapshot = load_snapshot(Path(__file__).parents[2] / "cases" / "engine" / "cluster.json")

    assert sum(snapshot.free_gpus().values()) == 15
    assert snapshot.source.endswith("cluster.json")


BAD = {
    "two nodes of a name": ([NODE, replace(NODE, path=("r0", "n1"))], [], "node n0"),
    "two nodes of a host name": ([NODE, replace(NODE, name="n1")], [], "node n0"),
    "a path that is too short": ([replace(NODE, path=("n0",))], [], "path"),
    "a slash in a label": ([replace(NODE, path=("a/b", "n0"))], [], "label rack"),
    "no GPUs": ([replace(NODE, gpus=0)], [], "gpus"),
    "more GPUs than any node has": ([replace(NODE, gpus=2**40)], [], "gpus"),
    "no nodes": ([], [], "nodes"),
    "a node without a name": ([replace(NODE, name="")], [], "without a name"),
    "two jobs of an id": ([NODE], [Job("a", (Pod("n0", 1),))] * 2, "job a"),
    "a job without pods": ([NODE], [Job("a", ())], "no pods"),
    "a pod on a node that is not there": ([NODE], [Job("a", (Pod("n9", 1),))], "'n9'"),
}


@pytest.mark.parametrize(("nodes", "jobs", "told"), BAD.values(), ids=BAD)
def test_an_ambiguous_snapshot_is_refused(nodes: list[Node], jobs: list[Job], told: str) -> None:
    with pytest.raises(InputError) as error:
        make_snapshot("file.json", ("rack", "hostname"), "rack", nodes, jobs)
    assert told in str(error.value)


def test_readers_start_without_compiled_code() -> None:
    modules = (
        "nvlenv.engine.model.jobs, nvlenv.engine.formats, nvlenv.engine.formats.load, nvlenv.engine.formats.manifests"
    )
    script = f"import sys, {modules}; print('numba' in sys.modules, 'torch' in sys.modules)"

    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert printed.split() == ["False", "False"]
