"""The native API: what is asked, answered and changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from nvlenv.engine.formats.load import parse_snapshot
from tests.engine.service.clusters import booked

CASES = Path(__file__).parents[2] / "cases" / "engine"


def place(client: TestClient, name: str, gpus: int, **query: Any) -> Any:
    return client.post("/v1/place", json={"name": name, "gpus": gpus, "mode": "required"}, params=query)


def jobs(client: TestClient) -> dict[str, dict[str, int]]:
    return booked(client.get("/v1/cluster").json())


def test_a_placed_job_is_in_the_cluster_until_it_finishes(client: TestClient) -> None:
    answer = place(client, "tune", 8)

    assert answer.status_code == 200
    nodes = {binding["node"]: binding["gpus"] for binding in answer.json()["bindings"]}
    assert sum(nodes.values()) == 8
    assert answer.json()["why"]["rule"]
    assert jobs(client) == {"default/tune": nodes}

    assert client.post("/v1/finish", json={"job": "default/tune"}).json() == {"done": True}
    assert jobs(client) == {}


def test_a_dry_run_answers_the_same_and_changes_nothing(client: TestClient) -> None:
    before = client.get("/v1/cluster").json()

    dry = place(client, "tune", 8, dry_run=True)

    assert client.get("/v1/cluster").json() == before
    assert dry.json()["bindings"] == place(client, "tune", 8).json()["bindings"]


def test_a_job_that_runs_gets_its_placement_again(client: TestClient) -> None:
    first = place(client, "tune", 8).json()

    assert place(client, "tune", 8).json()["bindings"] == first["bindings"]
    assert len(jobs(client)) == 1


def test_a_refusal_is_a_conflict_with_a_reason_for_every_rack(client: TestClient) -> None:
    answer = place(client, "hero", 32)  # a rack has 16

    assert answer.status_code == 409
    assert answer.json()["cause"] == "shape"
    assert answer.json()["reason"]
    assert set(answer.json()["racks"]) == {f"rack-{rack:03d}" for rack in range(4)}
    assert jobs(client) == {}


def test_explain_lists_every_rack(client: TestClient) -> None:
    answer = client.post("/v1/explain", json={"name": "tune", "gpus": 8, "mode": "required"})

    assert len(answer.json()["why"]["steps"][0]["candidates"]) == 4
    assert jobs(client) == {}


@pytest.mark.parametrize("name", ["job.json", "kubernetes/job.yaml", "slurm/train.sbatch"])
def test_jobs_come_in_every_format_that_files_have(client: TestClient, name: str) -> None:
    answer = client.post("/v1/place", content=(CASES / name).read_bytes())

    assert answer.status_code in (200, 409, 422)
    if answer.status_code == 422:  # a level that these racks do not have, say
        assert answer.json()["found"] and answer.json()["expected"]


def test_a_kubernetes_job_is_placed(client: TestClient) -> None:
    template = {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 4}}}]}}
    job = {"kind": "Job", "apiVersion": "batch/v1", "metadata": {"name": "k"}, "spec": {"parallelism": 3}}
    job["spec"]["template"] = template  # type: ignore[index]

    assert sum(binding["pods"] for binding in client.post("/v1/place", json=job).json()["bindings"]) == 3


def test_a_cordoned_node_gets_no_jobs(client: TestClient) -> None:
    node = "rack-000-node-00"

    assert client.post("/v1/cordon", json={"node": node}).status_code == 200
    assert client.get("/v1/slots", params={"sizes": 1}).json()["free"] == {"1": 15}
    assert client.post("/v1/uncordon", json={"node": node}).status_code == 200
    assert client.get("/v1/slots", params={"sizes": 1}).json()["free"] == {"1": 16}


def test_a_failed_node_is_replaced_in_its_rack(client: TestClient) -> None:
    place(client, "tune", 8)
    lost = next(iter(jobs(client)["default/tune"]))

    answer = client.post("/v1/fail", json={"node": lost}).json()

    assert [kept["job"] for kept in answer["replaced"]] == ["default/tune"]
    assert lost not in jobs(client)["default/tune"]
    assert sum(jobs(client)["default/tune"].values()) == 8
    assert client.post("/v1/repair", json={"node": lost}).status_code == 200


def test_a_job_that_waits_can_be_withdrawn(client: TestClient) -> None:
    job = {"name": "hero", "gpus": 8, "mode": "required"}

    assert client.post("/v1/enqueue", json=job).json() == {"job": "default/hero"}
    assert client.post("/v1/finish", json={"job": "default/hero"}).status_code == 200
    assert client.post("/v1/finish", json={"job": "default/hero"}).status_code == 404


def test_slots_are_those_of_the_free_racks(client: TestClient) -> None:
    place(client, "tune", 8)

    answer = client.get("/v1/slots", params=[("sizes", 4), ("sizes", 2)]).json()

    assert answer["free"] == {"4": 3, "2": 7}
    assert answer["free_gpus"] == 56


def test_the_cluster_is_json_that_the_importer_reads(client: TestClient) -> None:
    place(client, "tune", 8)

    cluster = parse_snapshot(client.get("/v1/cluster").text)

    assert sum(cluster.free_gpus().values()) == 56


def test_metrics_speak_of_decisions_and_fragmentation(client: TestClient) -> None:
    place(client, "tune", 8)
    place(client, "tune-2", 12)
    place(client, "dry", 4, dry_run=True)
    place(client, "hero", 32)

    page = client.get("/metrics").text.splitlines()

    assert 'nvlenv_decisions_total{outcome="placed"} 2.0' in page
    assert 'nvlenv_refusals_total{cause="shape"} 1.0' in page
    assert "nvlenv_free_gpus 44.0" in page
    free = json.loads(client.get("/v1/slots", params={"sizes": 4}).text)
    assert f'nvlenv_free_slots{{slice_nodes="4"}} {float(free["free"]["4"])}' in page
    assert any(line.startswith('nvlenv_fragmentation_index{slice_nodes="4"}') for line in page)
    assert 'nvlenv_request_seconds_count{path="/v1/place"} 4.0' in page
    assert 'nvlenv_http_responses_total{path="/v1/place",status="409"} 1.0' in page


def test_it_is_well(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"ok": True}


def test_the_api_describes_itself(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]

    for path in ("place", "finish", "cordon", "fail", "cluster", "slots"):
        assert f"/v1/{path}" in paths
    assert "bindings" in json.dumps(client.get("/openapi.json").json()["components"]["schemas"]["Placed"])
    assert client.get("/docs").status_code == 200
