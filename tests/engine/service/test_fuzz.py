"""Whatever a body holds, it is answered with a result or with one reason, and no GPU is booked twice."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from nvlenv.engine.service.app import create_app
from tests.engine.service.clusters import overbooked, pod, racks, serve

NODES = [f"rack-00{rack}-node-0{node}" for rack in range(2) for node in range(2)]
VICTIMS = {node: {"Pods": [{"UID": f"uid-{node}"}], "NumPDBViolations": 0} for node in NODES}
JOB = {"name": "a", "namespace": "ml", "gpus": 8, "slice_pods": 2, "mode": "required", "level": "rack", "priority": 2,
       "estimate_hours": 3, "cpu": "8", "memory": "1Gi", "queue": "q", "preemptible": True}  # fmt: skip
MANIFEST = {
    "kind": "Job", "apiVersion": "batch/v1", "metadata": {"name": "k", "labels": {"a": "b"}},
    "spec": {"parallelism": 2, "template": {
        "metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": "rack"}},
        "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 4, "cpu": "2"}}}]}}},
}  # fmt: skip
ARGS = {"Pod": pod("p", "hero", 2), "NodeNames": NODES, "Nodes": None, "NodeNameToMetaVictims": VICTIMS}
SEEDS: list[tuple[str, Any]] = [
    ("/v1/place", JOB),
    ("/v1/place", MANIFEST),
    ("/v1/place?dry_run=true", JOB),
    ("/v1/explain", JOB),
    ("/v1/enqueue", JOB),
    ("/v1/finish", {"job": "ml/a"}),
    ("/v1/cordon", {"node": NODES[0]}),
    ("/v1/uncordon", {"node": NODES[0]}),
    ("/v1/fail", {"node": NODES[1]}),
    ("/v1/repair", {"node": NODES[1]}),
    ("/scheduler/filter", ARGS),
    ("/scheduler/prioritize", ARGS),
    ("/scheduler/preempt", ARGS),
    ("/scheduler/filter", {**ARGS, "Nodes": {"items": [{"metadata": {"name": node}} for node in NODES]}}),
]
WORDS = ["-1", "0", "1e999", "9" * 50, "a/b", "ml/a", "p", "{}", "1", "\ud800", "\x00", "true", "ml/job/hero", *NODES]
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 9),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(WORDS),
    st.lists(st.sampled_from(WORDS), max_size=3),
    st.dictionaries(st.sampled_from(WORDS), st.integers(), max_size=2),
)


def sites(value: Any) -> list[tuple[Any, Any]]:
    """Every place of a document: its container and the key there."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *sites(value[key]))]


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    """A path, and a good body of which a few values were changed, or bytes of no meaning."""
    path, seed = draw(st.sampled_from(SEEDS))
    kind = draw(st.sampled_from(["mutated", "mutated", "mutated", "garbled", "bytes"]))
    if kind == "bytes":
        return path, draw(st.binary(max_size=40))
    changed = copy.deepcopy(seed)
    for _ in range(draw(st.integers(0, 3))):
        places = sites(changed)
        if not places:
            break
        container, key = places[draw(st.integers(0, len(places) - 1))]
        if draw(st.booleans()):
            container[key] = draw(JUNK)
        else:
            del container[key]
    body = json.dumps(changed).encode()
    if kind == "garbled":
        start = draw(st.integers(0, len(body)))
        body = body[:start] + draw(st.binary(max_size=4)) + body[start + draw(st.integers(0, 8)) :]
    return path, body


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bytes], Any]:
    """Posts to one service, which lives through all examples; a server that raises fails the test."""
    path = Path(tmp_path_factory.mktemp("fuzz"), "journal")
    client = TestClient(create_app(serve(path, racks(2, 2))))
    return lambda path, body: client.post(path, content=body, headers={"Content-Type": "application/json"})


def check(ask: Callable[[str, bytes], Any], example: tuple[str, bytes]) -> None:
    answer = ask(*example)

    assert answer.status_code in (200, 400, 404, 409, 422)
    told = answer.json()
    if answer.status_code in (400, 404, 422):
        assert set(told) == {"where", "field", "found", "expected"}
        assert "\n" not in told["found"]


FUZZ = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=500, **FUZZ)  # type: ignore[arg-type]
@given(bodies())
def test_every_body_is_answered(ask: Callable[[str, bytes], Any], example: tuple[str, bytes]) -> None:
    check(ask, example)


@pytest.mark.slow
@settings(max_examples=100_000, database=None, **FUZZ)  # type: ignore[arg-type]
@given(bodies())
def test_every_one_of_many_bodies_is_answered(ask: Callable[[str, bytes], Any], example: tuple[str, bytes]) -> None:
    check(ask, example)


def test_what_the_fuzzer_starts_from_is_well_formed(tmp_path: Path) -> None:
    client = TestClient(create_app(serve(tmp_path / "journal", racks(2, 2))))

    for path, seed in SEEDS:
        assert client.post(path, json=seed).status_code in (200, 404, 409, 422)  # 422: its queue is not there
    assert overbooked(client.get("/v1/cluster").json()) == []
