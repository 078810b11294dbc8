"""Clusters from Slurm's topology/block and the states of its nodes; host lists."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvlenv.common.errors import InputError
from nvlenv.engine.formats.load import load_snapshot, read_snapshot
from nvlenv.engine.formats.options import Options
from nvlenv.engine.formats.slurm import compress_hosts, expand_hosts
from nvlenv.engine.model.snapshot import ClusterSnapshot, NodeState
from tests.engine.clusters import unreachable_gpus

CASES = Path(__file__).parents[2] / "cases" / "engine"
CONF = "BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\n"


def read(topology: str, states: str, /, **options: object) -> ClusterSnapshot:
    return read_snapshot([("topology.conf", topology), ("states.txt", states)], Options(**options))  # type: ignore[arg-type]


def table(*lines: str, header: str = "NODELIST STATE GRES GRES_USED") -> str:
    return "\n".join([header, *lines])


@pytest.fixture(scope="module")
def snapshot() -> ClusterSnapshot:
    return load_snapshot(CASES / "slurm/topology.conf", CASES / "slurm/sinfo.txt")


def test_all_four_formats_tell_the_same(snapshot: ClusterSnapshot) -> None:
    other = load_snapshot(CASES / "slurm/topology.yaml", CASES / "slurm/scontrol.txt")

    assert other.nodes == snapshot.nodes
    assert other.jobs == snapshot.jobs
    assert other.levels == snapshot.levels


def test_blocks_are_nvlink_domains_and_larger_sizes_join_them(snapshot: ClusterSnapshot) -> None:
    assert snapshot.levels == ("block-6", "block", "hostname")
    assert snapshot.nvlink_level == "block"
    assert snapshot.cluster_spec().rack_names == ("0/a1", "0/a2", "1/b1", "1/b2")


def test_free_gpus_and_states(snapshot: ClusterSnapshot) -> None:
    assert list(snapshot.free_gpus().values()) == [0, 0, 0, 2, 2, 2, 4, 4, 4, 4, 4, 4]
    states = {node.name: node.state for node in snapshot.nodes if node.state != NodeState.UP}
    assert states == {
        "rack-a2-n2": NodeState.CORDONED,
        "rack-b2-n1": NodeState.FAILED,
        "rack-b2-n2": NodeState.CORDONED,
    }


def test_a_cpu_only_job_makes_its_block_unreachable(snapshot: ClusterSnapshot) -> None:
    report = snapshot.unreachable_report(pod_cpu=32_000)

    assert sum(unreachable_gpus(snapshot, pod_cpu=32_000).values()) == 12 + 2 + 4 + 4
    assert any("slurm/rack-b1-n0 leaves too little cpu" in line for line in report)


def test_what_is_taken_belongs_to_work_that_stays(snapshot: ClusterSnapshot) -> None:
    assert not any(job.preemptible or job.movable or job.verification for job in snapshot.jobs)
    assert {job.id for job in snapshot.jobs} >= {"slurm/rack-a1-n0", "slurm/rack-b1-n0"}


def test_nodes_without_gpus_are_noted(snapshot: ClusterSnapshot) -> None:
    assert snapshot.notes == ("left out 1 nodes without GPUs",)


@pytest.mark.parametrize(
    ("written", "state"),
    [
        ("idle", NodeState.UP),
        ("MIXED", NodeState.UP),
        ("alloc", NodeState.UP),
        ("comp", NodeState.UP),
        ("idle~", NodeState.UP),
        ("mix-", NodeState.UP),
        ("IDLE+CLOUD", NodeState.UP),
        ("drain", NodeState.CORDONED),
        ("drng", NodeState.CORDONED),
        ("maint", NodeState.CORDONED),
        ("resv", NodeState.CORDONED),
        ("idle$", NodeState.CORDONED),
        ("idle@", NodeState.CORDONED),
        ("IDLE+DRAIN", NodeState.CORDONED),
        ("down", NodeState.FAILED),
        ("idle*", NodeState.FAILED),
        ("drained*", NodeState.FAILED),
        ("idle^", NodeState.FAILED),
        ("DOWN*+CLOUD+NOT_RESPONDING", NodeState.FAILED),
        ("inval", NodeState.FAILED),
    ],
)
def test_states_of_slurm(written: str, state: NodeState) -> None:
    found = read(CONF, table(f"n1 {written} gpu:4 gpu:0", "n2 idle gpu:4 gpu:0"))

    assert found.nodes[0].state == state


@pytest.mark.parametrize(
    ("gres", "used", "free"),
    [
        ("gpu:4", "gpu:1", 3),
        ("gpu:gb200:4(S:0-1)", "gpu:gb200:3(IDX:0-1,3)", 1),
        ("gpu:a:2,gpu:b:2", "gpu:a:1(IDX:0),gpu:b:0(IDX:N/A)", 3),
        ("shard:8,gpu:gb200:4(S:0-1),nic:2", "gpu:gb200:0(IDX:N/A)", 4),
        ("gpu", "(null)", 1),
    ],
)
def test_generic_resources(gres: str, used: str, free: int) -> None:
    assert read(CONF, table(f"n1 mixed {gres} {used}")).free_gpus() == {"n1": free}


def test_the_state_alone_tells_where_it_can() -> None:
    states = table("n1 idle gpu:4", "n2 alloc gpu:4", "n3 down gpu:4", header="NODELIST STATE GRES")

    assert list(read(CONF, states).free_gpus().values()) == [4, 0, 4]


def test_a_node_of_two_partitions_comes_twice() -> None:
    states = table("n1 a idle gpu:4 gpu:0", "n1 b idle gpu:4 gpu:0", header="NODELIST PARTITION STATE GRES GRES_USED")

    assert read(CONF, states).free_gpus() == {"n1": 4}


def test_a_date_before_the_table_and_a_reason_behind_it() -> None:
    header = "Mon May 04 08:00:00 2026\nNODELIST STATE GRES GRES_USED REASON"

    assert read(CONF, table("n1 drained gpu:4 gpu:0 not so good", header=header)).nodes[0].state == NodeState.CORDONED


def test_nodes_that_only_the_topology_knows_are_noted() -> None:
    assert read(CONF, table("n1 idle gpu:4 gpu:0")).notes == ("left out 3 nodes whose state is not reported",)


def test_a_node_in_no_block_is_refused_or_left_out() -> None:
    states = table("n1 idle gpu:4 gpu:0", "n9 idle gpu:4 gpu:0")

    with pytest.raises(InputError, match="node n9, block"):
        read(CONF, states)
    assert "left out 1 nodes in no block" in read(CONF, states, skip_unlabelled=True).notes


SCONTROL = "NodeName=n1 State=IDLE Gres=gpu:4 CPUAlloc={} CPUTot=8 {}"


@pytest.mark.parametrize(
    ("line", "free"),
    [
        (SCONTROL.format(0, "AllocTRES="), 4),
        (SCONTROL.format(4, "CfgTRES=cpu=8,gres/gpu=4 AllocTRES=cpu=4"), 4),
        (SCONTROL.format(4, "CfgTRES=cpu=8,gres/gpu=4 AllocTRES=cpu=4,gres/gpu=1,gres/gpu:gb200=1"), 3),
        (SCONTROL.format(4, "CfgTRES=cpu=8 AllocTRES=cpu=4 GresUsed=gpu:gb200:2(IDX:0-1)"), 2),
        ("NodeName=n1 State=IDLE CPUTot=8 CfgTRES=cpu=8,gres/gpu:gb200=4 AllocTRES=gres/gpu:gb200=1", 3),
    ],
)
def test_gpus_in_scontrol(line: str, free: int) -> None:
    assert read(CONF, line).free_gpus() == {"n1": free}


def test_a_named_topology_of_several() -> None:
    text = "".join(f"- topology: t{n}\n  block: {{blocks: [{{block: b{n}, nodes: n1}}]}}\n" for n in (1, 2))

    assert read(text, table("n1 idle gpu:4 gpu:0"), topology="t2").nodes[0].path == ("b2", "n1")
    with pytest.raises(InputError, match="the name of one such"):
        read(text, table("n1 idle gpu:4 gpu:0"))


def test_host_lists_of_several_brackets() -> None:
    assert expand_hosts("r[1-2]-n[08-10],login") == (
        "r1-n08",
        "r1-n09",
        "r1-n10",
        "r2-n08",
        "r2-n09",
        "r2-n10",
        "login",
    )
    assert expand_hosts("n[1,03-04]x") == ("n1x", "n03x", "n04x")


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "n[", "n]", "n[]", "n[1", "n1]", "n[2-1]", "n[a]", "n[1-2", "n[[1]]", "a b", "a\x85b", "n[1,]"),
        *("n[0-99999999]", "n[0-999][0-999]", f"n[{','.join(['0-60000'] * 999)}]"),
    ],
)
def test_broken_host_lists(text: str) -> None:
    with pytest.raises(InputError):
        expand_hosts(text, "topology.conf", "line 1, Nodes")


def test_host_names_that_cannot_be_listed() -> None:
    for name in ("", "a[1]", "a,b", "a b"):
        with pytest.raises(InputError):
            compress_hosts([name])


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 3)), min_size=1, max_size=40))
def test_compress_and_expand_are_inverse(numbers: list[tuple[int, int]]) -> None:
    names = {f"r{number % 2}-n{number:0{digits}d}" for number, digits in numbers}

    assert set(expand_hosts(compress_hosts(names))) == names
    assert compress_hosts(expand_hosts(compress_hosts(names))) == compress_hosts(names)
