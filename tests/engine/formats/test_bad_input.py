"""Every kind of bad input is told in one line: the file, the field, what was found, what was expected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nvlenv.common.errors import InputError
from nvlenv.engine.formats.load import load_job, load_snapshot, parse_job, parse_snapshot

RACK, HOST, GPU = "cloud.provider.com/topology-rack", "kubernetes.io/hostname", "nvidia.com/gpu"


def node(**changes: Any) -> dict[str, Any]:
    """A good node, some of its parts replaced."""
    parts = {
        "metadata": {"name": "n0", "labels": {RACK: "a", HOST: "n0"}},
        "spec": {},
        "status": {"allocatable": {GPU: "4", "cpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]},
    }
    return {"apiVersion": "v1", "kind": "Node", **parts, **changes}


def pod(spec: Any = None, **meta: Any) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": "p", **meta}, "spec": spec or {"nodeName": "n0"}, "status": {}}


def kueue(kind: str, spec: Any, version: str = "v1beta2", **more: Any) -> dict[str, Any]:
    return {"apiVersion": f"kueue.x-k8s.io/{version}", "kind": kind, "metadata": {"name": "k"}, "spec": spec, **more}


def items(*objects: Any) -> str:
    return json.dumps({"kind": "List", "items": [node(), *objects]})


def allocatable(**amounts: Any) -> str:
    return json.dumps(node(status={"allocatable": {GPU: "4", **amounts}}))


def queue(**quota: Any) -> dict[str, Any]:
    resources = [{"name": GPU, **quota}]
    return kueue("ClusterQueue", {"resourceGroups": [{"flavors": [{"name": "f", "resources": resources}]}]})


def admitted(assignment: Any, sets: Any = ({"name": "main"},)) -> dict[str, Any]:
    admission = {"clusterQueue": "q", "podSetAssignments": [{"name": "main", "topologyAssignment": assignment}]}
    return kueue("Workload", {"podSets": list(sets)}, status={"admission": admission})


TOPOLOGY = "BlockName=b1 Nodes=n[1-2]\n"
SINFO = "NODELIST STATE GRES GRES_USED\n"

CLUSTERS = {
    "nothing": ("", "found nothing"),
    "no format at all": ("hello world", "an unknown format, expected one of: kubectl"),
    "a number": ("42", "an unknown format"),
    "broken JSON": ('{"racks": [', "broken JSON"),
    "broken YAML": ("a: [\nb: }", "broken YAML"),
    "a Python object in YAML": ("!!python/object:os.system x", "broken YAML"),
    "other objects": ('{"kind": "Service"}', "objects of other kinds"),
    "objects without nodes": (json.dumps(pod()), "none with nvidia.com/gpu"),
    "two sources": ('{"racks": [[4]]}\n' + json.dumps(node()), "the project's own JSON and Kubernetes"),
    # own JSON
    "racks that are no list": ('{"racks": 3}', "racks: found 3, expected a list"),
    "an unknown key": ('{"racks": [[4]], "gpus": 4}', "gpus: found unknown field 'gpus'"),
    "more free than there are": ('{"racks": [[4, 5]]}', "racks[0][1]: found 5, expected at most 4 GPUs"),
    "a negative number of GPUs": (
        '{"racks": [[-1]]}',
        "racks[0][0]: found -1, expected a number greater",
    ),
    "half a GPU": ('{"racks": [[0.5]]}', "racks[0][0]: found 0.5, expected a whole number"),
    "a version of tomorrow": ('{"format": "nvlenv-cluster/9"}', "expected 'nvlenv-cluster/1'"),
    "a node whose name is null": (
        '{"format": "nvlenv-cluster/1", "levels": ["r", "h"], "nvlink_level": "r",'
        ' "nodes": [{"name": null, "path": ["r", "a"], "gpus": 4}]}',
        "cluster.txt: nodes[0].name: found nothing",
    ),
    "an unknown state": (
        '{"format": "nvlenv-cluster/1", "levels": ["r", "h"], "nvlink_level": "r",'
        ' "nodes": [{"name": "a", "path": ["r", "a"], "gpus": 4, "state": "tired"}]}',
        "nodes[0].state: found 'tired'",
    ),
    # Kubernetes
    "a list that is none": ('{"kind": "List", "items": {}}', "items: found an empty mapping, expected a list"),
    "a node without a name": (json.dumps(node(metadata={})), "metadata.name: found nothing"),
    "a name of two lines": (json.dumps(node(metadata={"name": "a\nb"})), "metadata.name"),
    "labels that are no texts": (json.dumps(node(metadata={"name": "n0", "labels": {RACK: 7}})), "expected a text"),
    "a label with a slash": (
        json.dumps(node(metadata={"name": "n0", "labels": {RACK: "a/b", HOST: "n0"}})),
        "without '/'",
    ),
    "a quantity in words": (allocatable(cpu="many"), "node n0, status.allocatable.cpu: found 'many'"),
    "a negative quantity": (allocatable(memory="-1Gi"), "a quantity >= 0"),
    "a part of a GPU": (allocatable(**{GPU: "500m"}), "a whole number"),
    "a flag in words": (json.dumps(node(spec={"unschedulable": "yes"})), "true or false"),
    "two nodes of a name": (items(node()), "two of this name"),
    "a taint without an effect": (json.dumps(node(spec={"taints": [{"key": "k"}]})), "taints[0].effect"),
    "a request that is no mapping": (
        items(pod({"nodeName": "n0", "containers": [{"resources": {"requests": 4}}]})),
        "pod default/p, spec.containers[0].resources.requests: found 4, expected a mapping",
    ),
    "a priority in words": (items(pod({"nodeName": "n0", "priority": "high"})), "a whole number"),
    "a start in words": (items({**pod(), "status": {"startTime": "today"}}), "a time since 1970"),
    "owners that are no list": (items(pod(ownerReferences={"kind": "Job"})), "expected a list"),
    # Kueue
    "a Kueue version of tomorrow": (items(kueue("Topology", {}, version="v2")), "kueue.x-k8s.io/ and one of"),
    "a topology without levels": (items(kueue("Topology", {})), "distinct labels"),
    "a topology with a level twice": (
        items(kueue("Topology", {"levels": [{"nodeLabel": RACK}, {"nodeLabel": RACK}]})),
        "distinct labels",
    ),
    "a quota in words": (items(queue(nominalQuota="some")), "a quantity"),
    "an unknown queueing strategy": (items(kueue("ClusterQueue", {"queueingStrategy": "Random"})), "StrictFIFO"),
    "a local queue to nowhere": (items(kueue("LocalQueue", {})), "spec.clusterQueue: found nothing"),
    "an assignment of no form": (items(admitted({"levels": [HOST]})), "either domains (v1beta1) or slices (v1beta2)"),
    "an assignment of an unknown pod set": (items(admitted(None, sets=[{"name": "other"}])), "one of the pod sets"),
    # Slurm
    "a topology without states": (TOPOLOGY, "1 topologies and the states of 0 nodes"),
    "states without a topology": (SINFO + "n1 idle gpu:4 gpu:0", "0 topologies and the states of 1 nodes"),
    "a tree only": ("SwitchName=s1 Nodes=n[1-2]\n", "no BlockName line (line 1: switchname)"),
    "a line that is no parameter": (TOPOLOGY + "hello\n", "line 2: found 'hello', expected Parameter=value"),
    "a block twice": (TOPOLOGY * 2, "block b1 again"),
    "a broken host list": ("BlockName=b1 Nodes=n[2-1]\n", "line 1, Nodes"),
    "a block without nodes": ("BlockName=b1\n", "line 1, Nodes"),
    "block sizes that shrink": (TOPOLOGY + "BlockSizes=4,2\n", "line 2, BlockSizes"),
    "a block size that is no power of two": (TOPOLOGY + "BlockSizes=2,6\n", "each a power of two times the first"),
    "an unknown state of a node": (SINFO + "n1 happy gpu:4 gpu:0", "line 2, STATE: found 'happy'"),
    "a value too few": (SINFO + "n1 idle gpu:4", "line 2: found 3 values, expected 4"),
    "GPUs in words": (SINFO + "n1 idle gpu:many gpu:0", "line 2, GRES: found 'many'"),
    "no GRES column": ("NODELIST STATE\nn1 idle", "GRES: found no such column"),
    "no GRES_USED where it matters": ("NODELIST STATE GRES\nn1 mixed gpu:4", "no column GRES_USED"),
    "a node in two states": (SINFO + "n1 idle gpu:4 gpu:0\nn1 down gpu:4 gpu:0", "another state than above"),
    "a table without nodes": (SINFO, "no nodes"),
    "a node that says nothing of its state": ("NodeName=n1 Gres=gpu:4\n", "node n1, State"),
    "no use of GPUs in scontrol": (
        "NodeName=n1 State=MIXED Gres=gpu:4 CPUAlloc=2 CfgTRES=cpu=4\n",
        "scontrol show node -d",
    ),
    "a topology.yaml of trees": ("- topology: a\n  tree: {switches: []}\n", "one with block"),
    "a topology.yaml without blocks": ("- topology: a\n  block: {blocks: []}\n", "at least one block"),
}


@pytest.mark.parametrize(("text", "told"), CLUSTERS.values(), ids=CLUSTERS)
def test_a_bad_cluster(text: str, told: str) -> None:
    with pytest.raises(InputError) as error:
        parse_snapshot(text, "cluster.txt")
    assert told in str(error.value)
    assert str(error.value).startswith("cluster.txt: ")
    assert "\n" not in str(error.value)


JOB = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}}
JOBS = {
    "nothing": ("", "found nothing"),
    "no format at all": ("hello", "an unknown format, expected one of: a Kubernetes Job"),
    "an object that is no job": (json.dumps(node()), "no job in ['Node']"),
    "a job without pods": (json.dumps({**JOB, "spec": {"parallelism": 0}}), "spec.parallelism: found 0"),
    "a job without GPUs": (json.dumps({**JOB, "spec": {"template": {}}}), "job j: found 0 GPUs"),
    "a job set without jobs": ('{"kind": "JobSet", "metadata": {"name": "s"}}', "at least one replicated job"),
    "a workload without pods": (
        json.dumps(kueue("Workload", {"podSets": [{"count": 0}]})),
        "at least one pod set with pods",
    ),
    "a limit of no time": (json.dumps({**JOB, "spec": {"activeDeadlineSeconds": 0}}), "activeDeadlineSeconds"),
    "an unknown key": ('{"pods": 1, "gpu": 4}', "gpu: found unknown field 'gpu'"),
    "an unknown mode": ('{"pods": 1, "mode": "strict"}', "mode: found 'strict'"),
    "a level without a mode": ('{"pods": 2, "level": "rack"}', "mode required or preferred"),
    "a slice level without a size": ('{"pods": 2, "slice_level": "rack"}', "slice_pods: found nothing"),
    "GPUs that do not divide": ('{"gpus": 10, "gpus_per_pod": 4}', "pods times gpus_per_pod"),
    "more GPUs than 32 bits hold": ('{"pods": 4294967296}', "GPUs, expected 1 to 2147483647"),
    "a leader of an unconstrained job": ('{"pods": 2, "leader": {}}', "required or preferred"),
}


@pytest.mark.parametrize(("text", "told"), JOBS.values(), ids=JOBS)
def test_a_bad_job(text: str, told: str) -> None:
    with pytest.raises(InputError) as error:
        parse_job(text, "job.txt")
    assert told in str(error.value)
    assert str(error.value).startswith("job.txt: ")


@pytest.mark.parametrize("load", [load_snapshot, load_job])
def test_files_that_cannot_be_read(load: Any, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")

    for name, told in (
        ("missing.json", "No such file"),
        ("latin.txt", "byte 3: found 0xe9, expected UTF-8"),
        ("", "directory"),
    ):
        with pytest.raises(InputError, match=told):
            load(tmp_path / name)


def test_a_topology_with_one_node_in_two_blocks(tmp_path: Path) -> None:
    (tmp_path / "topology.conf").write_text(TOPOLOGY + "BlockName=b2 Nodes=n2\n")
    (tmp_path / "sinfo.txt").write_text(SINFO + "n1 idle gpu:4 gpu:0\n")

    with pytest.raises(InputError, match="node n2: found blocks b1 and b2, expected one block"):
        load_snapshot(tmp_path / "topology.conf", tmp_path / "sinfo.txt")


def test_null_in_own_json_is_the_same_as_nothing() -> None:
    assert len(parse_snapshot('{"racks": {"a": [4], "b": null}, "gpus_per_node": null}').nodes) == 1
    assert parse_job('{"name": null, "pods": 2, "gpus": null}').name == "job"


def test_levels_for_a_source_that_has_its_own() -> None:
    with pytest.raises(InputError, match=r"levels: found \['rack'\], expected none"):
        parse_snapshot('{"racks": [[4]]}', levels=("rack",))


def test_no_file_at_all() -> None:
    with pytest.raises(InputError, match="no file"):
        load_snapshot()
