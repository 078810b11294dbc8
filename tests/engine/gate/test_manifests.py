"""The manifests are what Kubernetes takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from pydantic import BaseModel, ConfigDict, PositiveInt

import nvlenv.engine
from nvlenv.cluster.types import Mode
from nvlenv.engine.__main__ import main
from nvlenv.engine.formats.load import load_job
from nvlenv.engine.gate.decide import GATE
from nvlenv.engine.service.app import EXTENDER
from nvlenv.engine.service.command import PORT
from nvlenv.engine.service.extender import VERBS

FOLDER = Path(nvlenv.engine.__file__).parent / "manifests"
OBJECTS = [
    (path.name, document)
    for path in sorted(FOLDER.glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
    if "kubescheduler" not in document["apiVersion"]
]


def documents(name: str) -> dict[str, Any]:
    return {document["kind"]: document for document in yaml.safe_load_all((FOLDER / name).read_text())}


@pytest.mark.parametrize(("name", "document"), OBJECTS, ids=[f"{name}-{item['kind']}" for name, item in OBJECTS])
@pytest.mark.parametrize("version", ["1.30", "1.33", "1.37"])
def test_objects_are_valid_by_the_published_schemas(name: str, document: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(document, version, strict=True)


class Managed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    ignoredByScheduler: bool = False  # noqa: N815


class Extender(BaseModel):
    """As in k8s.io/kube-scheduler/config/v1, which has no published schema; kube-scheduler decodes it strictly."""

    model_config = ConfigDict(extra="forbid", strict=True)
    urlPrefix: str  # noqa: N815
    filterVerb: str = ""  # noqa: N815
    preemptVerb: str = ""  # noqa: N815
    prioritizeVerb: str = ""  # noqa: N815
    weight: PositiveInt
    bindVerb: str = ""  # noqa: N815
    enableHTTPS: bool = False  # noqa: N815
    httpTimeout: str = ""  # noqa: N815
    nodeCacheCapable: bool = False  # noqa: N815
    managedResources: list[Managed] = []  # noqa: N815
    ignorable: bool = False


def test_the_scheduler_configuration_names_what_the_service_serves() -> None:
    config = documents("scheduler.yaml")["KubeSchedulerConfiguration"]
    assert set(config) == {"apiVersion", "kind", "leaderElection", "percentageOfNodesToScore", "extenders"}
    (extender,) = [Extender(**entry) for entry in config["extenders"]]

    assert config["apiVersion"] == "kubescheduler.config.k8s.io/v1"
    assert extender.urlPrefix == f"http://127.0.0.1:{PORT}{EXTENDER}"
    assert {extender.filterVerb, extender.prioritizeVerb, extender.preemptVerb} == set(VERBS)
    assert config["percentageOfNodesToScore"] == 100


def test_the_role_allows_what_the_controller_does() -> None:
    allowed = {
        (resource, verb)
        for rule in documents("rbac.yaml")["ClusterRole"]["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }

    assert allowed == {
        ("nodes", "list"), ("nodes", "watch"), ("pods", "list"), ("pods", "watch"), ("pods", "patch"),
        ("pods/eviction", "create"),
    }  # fmt: skip


def test_the_deployment_uses_the_account_and_a_command_that_exists(capsys: pytest.CaptureFixture[str]) -> None:
    deployment, account = documents("deployment.yaml")["Deployment"], documents("rbac.yaml")["ServiceAccount"]
    spec = deployment["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == account["metadata"]["name"]
    assert deployment["metadata"]["namespace"] == account["metadata"]["namespace"]
    (container,) = spec["containers"]

    assert container["command"][:3] == ["python", "-m", "nvlenv.engine"]
    arguments = [*container["command"][3:], *container["args"], "--kubeconfig", "nowhere"]
    assert main(arguments) == 2  # understood, but there is no cluster
    assert "nowhere" in capsys.readouterr().err


def test_the_example_job_asks_for_a_rack_and_carries_the_gate() -> None:
    job = load_job(FOLDER / "gated-job.yaml")
    template = documents("gated-job.yaml")["Job"]["spec"]["template"]

    assert (job.workers.pods, job.gpus, job.workers.mode) == (16, 64, Mode.REQUIRED)
    assert template["spec"]["schedulingGates"] == [{"name": GATE}]
    assert template["metadata"]["annotations"]["nvlenv/gang-size"] == str(job.workers.pods)
