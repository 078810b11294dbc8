"""Clusters from kubectl's output, with and without Kueue's objects."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from nvlenv.cluster.types import QueueSpec
from nvlenv.common.errors import InputError
from nvlenv.engine.formats.document import read_documents
from nvlenv.engine.formats.load import load_snapshot, parse_snapshot
from nvlenv.engine.model.jobs import Job
from nvlenv.engine.model.snapshot import ClusterSnapshot, NodeState
from nvlenv.policies.kueue.types import Taint
from tests.engine.clusters import unreachable_gpus

CASES = Path(__file__).parents[2] / "cases" / "engine"
BLOCK, RACK, HOST = "cloud.provider.com/topology-block", "cloud.provider.com/topology-rack", "kubernetes.io/hostname"


@pytest.fixture(scope="module")
def plain() -> ClusterSnapshot:
    return load_snapshot(CASES / "kubernetes/kubectl.json")


@pytest.fixture(scope="module")
def queued() -> ClusterSnapshot:
    return load_snapshot(CASES / "kubernetes/kubectl.json", CASES / "kubernetes/kueue.yaml")


def job(snapshot: ClusterSnapshot, name: str) -> Job:
    return next(job for job in snapshot.jobs if job.name == name)


def node(name: str, labels: dict[str, str], gpus: str | int = 4, ready: str = "True", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
        "status": {
            "allocatable": {"nvidia.com/gpu": gpus, "cpu": "144", "memory": "960Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def pod(name: str, on: str, gpus: int = 0, labels: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ns", "labels": labels or {}, **more.pop("metadata", {})},
        "spec": {
            "nodeName": on,
            "containers": [{"resources": {"limits": {"nvidia.com/gpu": gpus}}}],
            **more.pop("spec", {}),
        },
        "status": {"phase": "Running", **more.pop("status", {})},
    }


def read(*items: dict[str, Any], **options: Any) -> ClusterSnapshot:
    return parse_snapshot(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}), "list.json", **options)


RACK_A = node("n0", {RACK: "a", HOST: "n0"})
RACK_B = node("n1", {RACK: "b", HOST: "n1"})


def test_levels_are_detected_and_named(plain: ClusterSnapshot) -> None:
    assert plain.levels == (BLOCK, RACK, HOST)
    assert plain.nvlink_level == RACK
    assert plain.notes[0] == f"levels {[BLOCK, RACK, HOST]} auto-detected; NVLink domain {RACK}"
    assert plain.cluster_spec().rack_names == (
        "block-a/rack-a1",
        "block-a/rack-a2",
        "block-b/rack-b1",
        "block-b/rack-b2",
    )


def test_nodes_have_what_kubectl_says(plain: ClusterSnapshot) -> None:
    first = plain.nodes[0]

    assert (first.gpus, first.cpu, first.memory, first.pods) == (4, 144_000, 960 * 2**30, 110)
    assert first.taints == (Taint("nvidia.com/gpu", "present", "NoSchedule"),)
    assert first.labels["nvidia.com/gpu.product"] == "NVIDIA-GB200"
    states = {node.name: node.state for node in plain.nodes if node.state != NodeState.UP}
    assert states == {"rack-b2-n1": NodeState.FAILED, "rack-b2-n2": NodeState.CORDONED}


def test_nodes_without_gpus_are_left_out_and_noted(plain: ClusterSnapshot) -> None:
    assert plain.notes[1:] == ("left out 1 nodes without nvidia.com/gpu: control-0",)


def test_free_gpus_are_exact(plain: ClusterSnapshot) -> None:
    assert list(plain.free_gpus().values()) == [0, 0, 0, 2, 2, 2, 4, 4, 4, 4, 4, 4]


def test_pods_make_jobs(plain: ClusterSnapshot) -> None:
    assert [job.id for job in plain.jobs] == [
        "cw-hpc/pod/hpc-verification-x1",
        "cw-hpc/pod/hpc-verification-x2",
        "data/job/etl",
        "kube-system/daemonset/agent",
        "kube-system/pod/proxy-rack-a1-n0",
        "research/job/eval",
        "research/jobset/pretrain",
        "serving/replicaset/chat-7d9f",
    ]
    pretrain = job(plain, "pretrain")
    assert pretrain.nodes == ("rack-a1-n0", "rack-a1-n1", "rack-a1-n2")
    assert (pretrain.gpus, pretrain.priority, pretrain.queue) == (12, 100, "research")
    assert pretrain.start == 1777881600.0  # 2026-05-04T08:00:00Z


def test_who_may_be_evicted_or_moved(plain: ClusterSnapshot) -> None:
    assert {job.name for job in plain.jobs if job.preemptible} == {"eval", "pretrain"}
    assert {job.name for job in plain.jobs if job.movable} == {"chat-7d9f"}


def test_the_queue_and_the_limit_of_a_job_object_count_for_its_pods(plain: ClusterSnapshot) -> None:
    evaluation = job(plain, "eval")

    assert (evaluation.queue, evaluation.estimate, evaluation.uid) == ("research", 2.0, "uid-job-eval")
    assert [pod.terminating for pod in evaluation.pods] == [False, True]  # and both hold their GPU


def test_pods_without_queue_and_below_priority_zero_are_verification(plain: ClusterSnapshot) -> None:
    shown = {job.name: job.gpus for job in plain.jobs if job.verification}

    assert shown == {"hpc-verification-x1": 2, "hpc-verification-x2": 4}
    assert plain.free_gpus()["rack-b2-n0"] == 4


@pytest.mark.parametrize("label", ["kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/local-queue-name"])
def test_a_queue_label_makes_a_low_priority_pod_count(label: str) -> None:
    snapshot = read(RACK_A, pod("p", "n0", 4, {label: "q"}, spec={"priority": -1}))

    assert snapshot.free_gpus() == {"n0": 0}
    assert not snapshot.jobs[0].verification


def test_ended_and_unbound_pods_hold_nothing() -> None:
    ended = [pod(phase.lower(), "n0", 4, status={"phase": phase}) for phase in ("Succeeded", "Failed")]

    snapshot = read(RACK_A, *ended, pod("later", "", 4), pod("starting", "n0", 1, status={"phase": "Pending"}))

    assert snapshot.free_gpus() == {"n0": 3}


def test_a_cpu_only_job_makes_its_rack_unreachable(plain: ClusterSnapshot) -> None:
    lost = {name for name, gpus in unreachable_gpus(plain, pod_cpu=32_000).items() if gpus}

    assert lost == {"rack-b1-n0", "rack-b1-n1", "rack-b1-n2", "rack-b2-n1", "rack-b2-n2"}


def test_a_node_whose_gpus_are_all_gone_has_failed() -> None:
    broken = node("n0", {RACK: "a", HOST: "n0"}, gpus=0)
    broken["status"]["capacity"] = {"nvidia.com/gpu": "4"}

    snapshot = read(broken, RACK_B)

    assert (snapshot.nodes[0].gpus, snapshot.nodes[0].state) == (4, NodeState.FAILED)


def test_init_containers_sidecars_and_overhead() -> None:
    spec = {
        "containers": [
            {"resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": 2}}},
            {"resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "2", "memory": "1Gi"}}},
        ],
        "initContainers": [
            {"resources": {"requests": {"cpu": "250m"}}, "restartPolicy": "Always"},
            {"resources": {"requests": {"cpu": "3", "memory": "512Mi"}}},
        ],
        "overhead": {"cpu": "100m", "memory": "64Mi"},
    }

    (found,) = read(RACK_A, pod("p", "n0", spec=spec)).jobs[0].pods

    assert found.gpus == 2
    assert found.cpu == 3250 + 100  # the last init container beside the sidecar, more than 1750 of those that stay
    assert found.memory == 2 * 2**30 + 64 * 2**20


def test_requests_of_the_pod_as_a_whole_come_first() -> None:
    spec = {
        "resources": {"requests": {"cpu": "5"}},
        "containers": [{"resources": {"requests": {"cpu": "1", "memory": "1G"}}}],
    }

    (found,) = read(RACK_A, pod("p", "n0", spec=spec)).jobs[0].pods

    assert (found.cpu, found.memory) == (5000, 10**9)


GANGS = {
    "kueue.x-k8s.io/pod-group-name": "podgroup",
    "jobset.sigs.k8s.io/jobset-name": "jobset",
    "batch.kubernetes.io/job-name": "job",
    "job-name": "job",
    "leaderworkerset.sigs.k8s.io/group-key": "leaderworkerset",
}


@pytest.mark.parametrize(("label", "kind"), GANGS.items())
def test_gang_labels_join_pods(label: str, kind: str) -> None:
    (found,) = read(RACK_A, RACK_B, pod("p0", "n0", 4, {label: "g"}), pod("p1", "n1", 4, {label: "g"})).jobs

    assert (found.id, found.gpus) == (f"ns/{kind}/g", 8)


def test_equal_names_in_other_namespaces_are_other_jobs() -> None:
    other = pod("p1", "n0", 1, {"job-name": "g"}, metadata={"namespace": "there"})

    snapshot = read(RACK_A, pod("p0", "n0", 1, {"job-name": "g"}), other)

    assert [job.id for job in snapshot.jobs] == ["ns/job/g", "there/job/g"]


def test_a_pod_that_must_not_be_evicted_is_not() -> None:
    keep = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "notes": "of\nmany\nlines"}
    owner = [{"kind": "ReplicaSet", "name": "rs", "uid": "u", "controller": True}]

    snapshot = read(RACK_A, pod("p", "n0", 1, metadata={"annotations": keep, "ownerReferences": owner}))

    assert not snapshot.jobs[0].movable


def test_a_node_list_of_the_api_does_not_repeat_its_kind() -> None:
    bare = {key: value for key, value in RACK_A.items() if key not in ("kind", "apiVersion")}

    assert parse_snapshot(json.dumps({"kind": "NodeList", "apiVersion": "v1", "items": [bare]})).free_gpus() == {
        "n0": 4
    }


def test_two_calls_of_kubectl_in_one_file() -> None:
    text = json.dumps(RACK_A) + "\n" + json.dumps({"kind": "List", "items": [pod("p", "n0", 3)]})

    assert parse_snapshot(text).free_gpus() == {"n0": 1}


# Kueue


def test_levels_come_from_the_topology_object(queued: ClusterSnapshot) -> None:
    assert queued.levels == (BLOCK, RACK, HOST)
    assert "of Topology nvl72" in queued.notes[0]


def test_quotas_of_the_topologys_flavors(queued: ClusterSnapshot) -> None:
    assert queued.queues == (
        QueueSpec("research-cq", 32, cohort="all", borrowing_limit=8, strict=True),
        QueueSpec("serving-cq", 16, cohort="all"),
    )
    assert queued.local_queues == {"research/research": "research-cq"}
    assert job(queued, "eval").queue == "research-cq"


def test_without_a_topology_all_flavors_count() -> None:
    queues = [
        d.value
        for d in read_documents("k", (CASES / "kubernetes/kueue.yaml").read_text())
        if d.value["kind"] == "ClusterQueue"
    ]

    assert [queue.nominal for queue in read(RACK_A, *queues).queues] == [48, 16]


def test_an_admitted_workload_tells_about_its_job(queued: ClusterSnapshot) -> None:
    pretrain = job(queued, "pretrain")

    assert (pretrain.priority, pretrain.queue, pretrain.estimate) == (4, "research-cq", 24.0)
    assert len(pretrain.pods) == 3  # its assignment promises no more than what runs


def test_a_promised_place_is_taken_before_its_pods_exist(queued: ClusterSnapshot) -> None:
    debug = job(queued, "debug")

    assert debug.id == "research/job/debug"
    assert [(pod.node, pod.gpus, pod.cpu, pod.name) for pod in debug.pods] == [("rack-a2-n0", 1, 2500, "")] * 2
    assert queued.free_gpus()["rack-a2-n0"] == 0


def test_a_replaced_pod_is_not_counted_twice() -> None:
    documents = [copy.deepcopy(d.value) for d in read_documents("k", (CASES / "kubernetes/kueue.yaml").read_text())]
    moved = json.loads((CASES / "kubernetes/kubectl.json").read_text())
    for item in moved["items"]:
        if item["metadata"].get("name") == "pretrain-w-0-2":
            item["spec"]["nodeName"] = "rack-b2-n0"

    snapshot = parse_snapshot("\n".join(map(json.dumps, [moved, *documents])))

    assert job(snapshot, "pretrain").gpus == 12


def test_nodes_outside_the_flavors_do_not_exist() -> None:
    flavor = {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "ResourceFlavor",
        "metadata": {"name": "f"},
        "spec": {"nodeLabels": {"pool": "gpu"}, "topologyName": "t"},
    }
    topology = {
        "apiVersion": "kueue.x-k8s.io/v1alpha1",
        "kind": "Topology",
        "metadata": {"name": "t"},
        "spec": {"levels": [{"nodeLabel": RACK}, {"nodeLabel": HOST}]},
    }

    snapshot = read(RACK_A, node("n9", {RACK: "a", HOST: "n9", "pool": "gpu"}), flavor, topology)

    assert [node.name for node in snapshot.nodes] == ["n9"]
    assert snapshot.notes[-1] == "left out 1 nodes outside the ResourceFlavors ['f']: n0"


def test_several_topologies_need_a_name() -> None:
    topologies = [
        {
            "apiVersion": "kueue.x-k8s.io/v1beta1",
            "kind": "Topology",
            "metadata": {"name": name},
            "spec": {"levels": [{"nodeLabel": label}]},
        }
        for name, label in (("old", "x/rack"), ("new", RACK))
    ]

    with pytest.raises(InputError, match="several Topologies"):
        read(RACK_A, *topologies)
    assert read(RACK_A, *topologies, topology="new").levels == (RACK, HOST)


def test_kinds_of_other_groups_are_not_kueues() -> None:
    foreign = {"apiVersion": "scheduling.k8s.io/v1alpha1", "kind": "Workload", "metadata": {"name": "w"}, "status": 7}

    assert read(RACK_A, foreign).jobs == ()
