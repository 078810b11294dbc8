"""Job requests from Kubernetes, Kueue, Slurm and the project's own JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nvlenv.cluster.types import Mode
from nvlenv.common.errors import InputError
from nvlenv.engine.formats.load import load_job, parse_job, parse_jobs
from nvlenv.engine.model.jobs import Job, PodSet
from nvlenv.policies.kueue.types import Layer, Toleration

CASES = Path(__file__).parents[2] / "cases" / "engine"
BLOCK, RACK, HOST = "cloud.provider.com/topology-block", "cloud.provider.com/topology-rack", "kubernetes.io/hostname"
KUEUE = "kueue.x-k8s.io/"


def template(annotations: dict[str, Any] | None = None, gpus: int = 4, **spec: Any) -> dict[str, Any]:
    named = {f"{KUEUE}podset-{key}": value for key, value in (annotations or {}).items()}
    container = {"resources": {"limits": {"nvidia.com/gpu": gpus}}}
    return {"metadata": {"annotations": named}, "spec": {"containers": [container], **spec}}


def batch(annotations: dict[str, Any] | None = None, pods: int = 16, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j", **more.pop("metadata", {})},
        "spec": {"parallelism": pods, "template": template(annotations), **more},
    }


def read(*objects: dict[str, Any]) -> Job:
    return parse_job("\n".join(json.dumps(entry) for entry in objects), "job.json")


def test_a_job_that_needs_one_rack() -> None:
    job = load_job(CASES / "kubernetes/job.yaml")

    assert (job.name, job.namespace, job.queue, job.priority, job.estimate) == (
        "pretrain",
        "research",
        "research",
        300,
        10,
    )
    assert (job.workers.pods, job.workers.gpus_per_pod, job.gpus) == (16, 4, 64)
    assert (job.workers.cpu, job.workers.memory) == (32_250, 200 * 2**30 + 128 * 2**20)
    assert (job.workers.mode, job.workers.level, job.workers.slices) == (Mode.REQUIRED, RACK, ())
    assert job.workers.node_selector == {"nvidia.com/gpu.product": "NVIDIA-GB200"}
    assert job.workers.tolerations == (Toleration("nvidia.com/gpu", "Exists", "", "NoSchedule"),)


def test_a_job_set_of_eight_racks_in_one_block() -> None:
    job = load_job(CASES / "kubernetes/jobset.yaml")

    assert (job.workers.pods, job.gpus) == (128, 512)
    assert (job.workers.mode, job.workers.level, job.workers.slices) == (Mode.REQUIRED, BLOCK, (Layer(RACK, 16),))
    assert job.notes == ("priority class hero is not in the file: priority 0",)


def test_a_workload_of_leader_and_workers() -> None:
    job = load_job(CASES / "kubernetes/workload.yaml")

    (leader,) = (pods for pods in job.pod_sets if pods is not job.workers)
    assert (leader.name, leader.gpus, job.workers.name, job.gpus) == ("leader", 1, "workers", 33)
    assert (job.queue, job.priority, job.estimate, job.uid) == ("serving", 3, 0.5, "uid-wl")


def test_one_pod_of_a_group_stands_for_all() -> None:
    job = load_job(CASES / "kubernetes/pod_group.yaml")

    assert (job.name, job.gang, job.workers.pods) == ("sim", "sim", 8)
    assert job.workers.slices == (Layer(BLOCK, 4), Layer(RACK, 2))
    assert job.workers.mode == Mode.UNCONSTRAINED


def test_a_batch_script() -> None:
    job = load_job(CASES / "slurm/train.sbatch")

    assert (job.name, job.queue, job.qos, job.estimate, job.exclusive) == ("pretrain", "batch", "high", 36, True)
    assert (job.workers.pods, job.gpus, job.workers.cpu, job.workers.memory) == (32, 128, 64_000, 500 * 2**30)
    assert (job.workers.mode, job.workers.slices) == (Mode.UNCONSTRAINED, (Layer("", 16),))
    assert job.notes == ("options without effect here: --constraint",)


def test_own_json() -> None:
    job = load_job(CASES / "job.json")

    assert (job.name, job.workers.pods, job.gpus, job.priority, job.estimate) == ("hero", 128, 512, 4, 24)
    assert (job.workers.mode, job.workers.level, job.workers.slices) == (Mode.REQUIRED, "block", (Layer("", 16),))


@pytest.mark.parametrize(
    ("size", "pods", "per_pod"),
    [
        ({"gpus": 16}, 4, 4),
        ({"gpus": 2}, 1, 2),
        ({"gpus": 16, "gpus_per_pod": 2}, 8, 2),
        ({"gpus": 16, "pods": 16}, 16, 1),
        ({"pods": 3}, 3, 4),
        ({"pods": 3, "gpus_per_pod": 1}, 3, 1),
    ],
)
def test_the_size_in_own_json(size: dict[str, int], pods: int, per_pod: int) -> None:
    job = read(size)

    assert (job.workers.pods, job.workers.gpus_per_pod) == (pods, per_pod)


def test_a_leader_in_own_json() -> None:
    job = read({"pods": 8, "mode": "preferred", "leader": {"gpus": 1, "cpu": "500m"}})

    assert job.pod_sets[0] == PodSet("leader", 1, 1, cpu=500, mode=Mode.PREFERRED, group="main")


@pytest.mark.parametrize(
    ("annotations", "mode", "level", "slices"),
    [
        ({}, Mode.UNCONSTRAINED, "", ()),
        ({"unconstrained-topology": "true"}, Mode.UNCONSTRAINED, "", ()),
        ({"required-topology": RACK}, Mode.REQUIRED, RACK, ()),
        ({"preferred-topology": HOST}, Mode.PREFERRED, HOST, ()),
        ({"slice-required-topology": RACK, "slice-size": "4"}, Mode.UNCONSTRAINED, "", (Layer(RACK, 4),)),
        (
            {"preferred-topology": BLOCK, "slice-required-topology": RACK, "slice-size": "+8"},
            Mode.PREFERRED,
            BLOCK,
            (Layer(RACK, 8),),
        ),
    ],
)
def test_topology_annotations(annotations: dict[str, str], mode: Mode, level: str, slices: tuple[Layer, ...]) -> None:
    pods = read(batch(annotations)).workers

    assert (pods.mode, pods.level, pods.slices) == (mode, level, slices)


def layers(*entries: Any) -> dict[str, str]:
    return {"slice-required-topology-constraints": json.dumps(entries)}


SLICE = {"slice-required-topology": RACK, "slice-size": "4"}
BAD_ANNOTATIONS = {
    "two modes": ({"required-topology": RACK, "preferred-topology": RACK}, "a second topology request"),
    "unconstrained beside required": ({"required-topology": RACK, "unconstrained-topology": "true"}, "second"),
    "unconstrained: false": ({"unconstrained-topology": "false"}, "no such annotation"),
    "unconstrained: maybe": ({"unconstrained-topology": "maybe"}, 'expected "true"'),
    "unconstrained: true without quotes": ({"unconstrained-topology": True}, 'expected "true"'),
    "an empty level": ({"required-topology": ""}, "a text"),
    "a level that is no label": ({"required-topology": "rack level"}, "a node label"),
    "a slice level alone": ({"slice-required-topology": RACK}, "one without the other"),
    "a slice size alone": ({"slice-size": "4"}, "one without the other"),
    "slice size 0": ({**SLICE, "slice-size": "0"}, "a whole number"),
    "a slice size in words": ({**SLICE, "slice-size": "four"}, "a whole number"),
    "a slice size that does not divide": ({**SLICE, "slice-size": "5"}, "a slice size that divides"),
    "slices larger than the job": ({**SLICE, "slice-size": "32"}, "a slice size that divides"),
    "both spellings of slices": ({**SLICE, **layers({"topology": RACK, "size": 4})}, "both"),
    "layers that are no JSON": ({"slice-required-topology-constraints": "rack: 4"}, "a JSON list"),
    "layers that are no list": ({"slice-required-topology-constraints": "{}"}, "a JSON list"),
    "no layers": (layers(), "1 to 3 layers"),
    "four layers": (layers(*({"topology": f"x{n}", "size": 1} for n in range(4))), "1 to 3 layers"),
    "a layer without a size": (layers({"topology": RACK}), "[0].size"),
    "a layer size as text": (layers({"topology": RACK, "size": "4"}), "[0].size"),
    "a level twice": (layers({"topology": RACK, "size": 4}, {"topology": RACK, "size": 2}), "every level once"),
    "layers that do not divide": (layers({"topology": BLOCK, "size": 4}, {"topology": RACK, "size": 3}), "a divisor"),
    "a group alone": ({"required-topology": RACK, "group-name": "g"}, "two pod sets"),
    "a group without a shape": ({"group-name": "g"}, "required or preferred"),
    "a group with slices": ({"required-topology": RACK, "group-name": "g", **SLICE}, "without slices"),
    "a group called by a number": ({"required-topology": RACK, "group-name": "12"}, "not a number"),
}


@pytest.mark.parametrize(("annotations", "told"), BAD_ANNOTATIONS.values(), ids=BAD_ANNOTATIONS)
def test_kueues_rules_for_annotations(annotations: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as error:
        read(batch(annotations))
    assert told in str(error.value)
    assert str(error.value).startswith("job.json: ")


def test_an_annotation_on_the_job_itself_is_pointed_out() -> None:
    misplaced = batch(metadata={"annotations": {f"{KUEUE}podset-required-topology": RACK}})

    with pytest.raises(InputError, match="found it on the job, expected it on the pod template"):
        read(misplaced)


def job_set(*replicated: tuple[str, int, dict[str, Any]]) -> dict[str, Any]:
    entries = [
        {"name": name, "template": {"spec": {"parallelism": pods, "template": template(notes)}}}
        for name, pods, notes in replicated
    ]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "s"},
        "spec": {"replicatedJobs": entries},
    }


GROUP = {"required-topology": RACK, "group-name": "g"}


@pytest.mark.parametrize(
    ("pod_sets", "told"),
    [
        ([("a", 2, GROUP), ("b", 2, GROUP)], "one of them of one pod"),
        ([("a", 1, GROUP), ("b", 2, GROUP), ("c", 1, GROUP)], "two pod sets"),
        ([("a", 1, GROUP), ("b", 2, {**GROUP, "required-topology": BLOCK})], "one request for both"),
        ([("a", 1, {"group-name": "g", "preferred-topology": RACK}), ("b", 2, GROUP)], "one request for both"),
        ([("a", 1, {}), ("a", 2, {})], "two of this name"),
    ],
)
def test_rules_between_pod_sets(pod_sets: list[tuple[str, int, dict[str, Any]]], told: str) -> None:
    with pytest.raises(InputError, match=told):
        read(job_set(*pod_sets))


def test_the_larger_member_of_a_group_is_the_workers() -> None:
    job = read(job_set(("first", 1, GROUP), ("second", 3, GROUP)))

    assert job.pod_sets[0].group == job.pod_sets[1].group
    assert (job.pod_sets[0].name, job.workers.name) == ("first", "second")


def test_pods_of_a_job_that_run_together() -> None:
    assert read(batch(pods=16, completions=4)).workers.pods == 4
    assert read(batch(pods=4, completions=16)).workers.pods == 4


def test_a_service_can_be_moved_but_not_preempted() -> None:
    service = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "chat"},
        "spec": {"replicas": 3, "template": template(gpus=2)},
    }

    job = read(service)

    assert (job.workers.pods, job.gpus, job.movable, job.preemptible) == (3, 6, True, False)


def pod(name: str, gpus: int = 4, total: str | None = None, group: str = "g") -> dict[str, Any]:
    entry = template(gpus=gpus)
    meta = {"name": name, "labels": {f"{KUEUE}pod-group-name": group} if group else {}}
    if total:
        meta["annotations"] = {f"{KUEUE}pod-group-total-count": total}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {**entry["spec"], "priority": 7}}


def test_equal_pods_of_a_group_make_a_pod_set() -> None:
    job = read(*(pod(f"p{n}", gpus=4 if n else 1, total="3") for n in range(3)))

    assert [(pods.name, pods.pods, pods.gpus_per_pod) for pods in job.pod_sets] == [("main-0", 1, 1), ("main-1", 2, 4)]
    assert job.priority == 7


@pytest.mark.parametrize("total", ["1", "4", "x", "-2"])
def test_a_group_of_another_size_than_it_says(total: str) -> None:
    with pytest.raises(InputError, match="pod-group-total-count"):
        read(*(pod(f"p{n}", gpus=4 if n else 1, total=total) for n in range(3)))


def test_a_pod_by_itself() -> None:
    job = read(pod("p0", group=""))

    assert (job.name, job.gang, job.workers.pods) == ("p0", "", 1)


def test_several_jobs_of_a_file() -> None:
    text = "\n".join(json.dumps(batch(metadata={"name": name})) for name in "ab")

    assert [job.name for job in parse_jobs(text)] == ["a", "b"]
    with pytest.raises(InputError, match=r"found 2 jobs: \['a', 'b'\], expected one job"):
        parse_job(text)


@pytest.mark.parametrize(
    ("priority", "expected"),
    [({"priority": 9, "priorityClassName": "x"}, 9), ({"priorityClassName": "system-cluster-critical"}, 2_000_000_000)],
)
def test_priorities_of_pods(priority: dict[str, Any], expected: int) -> None:
    job = batch()
    job["spec"]["template"]["spec"].update(priority)

    assert read(job).priority == expected


# On a topology


@pytest.mark.parametrize(
    ("annotations", "level", "slices"),
    [
        ({"required-topology": RACK}, RACK, ()),
        ({**SLICE, "required-topology": RACK}, RACK, (Layer(RACK, 4),)),
        (layers({"topology": RACK, "size": 4}, {"topology": HOST, "size": 2}), "", (Layer(RACK, 4), Layer(HOST, 2))),
    ],
)
def test_levels_that_the_topology_has(annotations: dict[str, str], level: str, slices: tuple[Layer, ...]) -> None:
    pods = read(batch(annotations)).on((BLOCK, RACK, HOST), RACK).workers

    assert (pods.level, pods.slices) == (level, slices)


def test_levels_left_open_are_the_nvlink_domain() -> None:
    pods = read({"pods": 8, "mode": "required", "slice_pods": 4}).on((BLOCK, RACK, HOST), RACK).workers

    assert (pods.level, pods.slices) == (RACK, (Layer(RACK, 4),))


@pytest.mark.parametrize(
    ("annotations", "told"),
    [
        ({"required-topology": "x/zone"}, "'x/zone', expected one of"),
        ({"slice-required-topology": "x/zone", "slice-size": "4"}, "'x/zone', expected one of"),
        ({"required-topology": RACK, "slice-required-topology": BLOCK, "slice-size": "4"}, "not above"),
        (layers({"topology": RACK, "size": 4}, {"topology": "x/tray", "size": 2}), "'x/tray', expected one of"),
        (layers({"topology": RACK, "size": 4}, {"topology": BLOCK, "size": 2}), f"below {RACK}"),
    ],
)
def test_levels_that_the_topology_cannot_have(annotations: dict[str, str], told: str) -> None:
    job = read(batch(annotations))

    with pytest.raises(InputError) as error:
        job.on((BLOCK, RACK, HOST), RACK)
    assert told in str(error.value)
