"""The controller against an API server over HTTP, with the official client."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from nvlenv.engine.formats.options import Options
from nvlenv.engine.gate import controller as controller_module
from nvlenv.engine.gate.controller import Controller
from nvlenv.engine.gate.decide import decide_gangs
from tests.engine.gate.api_server import ApiServer, running
from tests.engine.gate.objects import CLIQUE, HOSTNAME, REQUIRED, gang, hosts, nodes, pod, rack_of

PATIENCE = 20.0  # s, of a test that would otherwise wait for ever
RACK = {REQUIRED: CLIQUE}


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with running() as server:
        for item in nodes():
            server.put("Node", item)
        yield server


@contextmanager
def controlled(api: ApiServer, dry_run: bool = False, policy: str = "best-fit") -> Iterator[Controller]:
    """A controller that runs in a thread of its own."""
    core = client.CoreV1Api(client.ApiClient(client.Configuration(host=api.url)))
    controller, stop = Controller(core, policy, Options(), dry_run), threading.Event()
    thread = threading.Thread(target=controller.run, args=(stop,))
    thread.start()
    try:
        yield controller
    finally:
        stop.set()
        controller.wake()
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    """The first decision may wait for the compiler, longer than any of these tests has patience."""
    for policy in ("best-fit", "best-fit+open"):
        decide_gangs(nodes(), [pod("tune")], policy, Options(), 0.0)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "SETTLE_SECONDS", 0.05)


def until(api: ApiServer, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The pods, once they are as they should be; the server tells when they have changed."""
    with api.changed:
        assert api.changed.wait_for(lambda: reached(api.pods()), PATIENCE), api.pods()
    return api.pods()


def all_let_go(*names: str) -> Callable[[dict[str, Any]], bool]:
    return lambda pods: set(names) <= dict(hosts(pods)).keys()


def test_a_gang_is_let_go_with_one_patch_a_pod(api: ApiServer) -> None:
    with controlled(api):
        for item in gang("hero", 4, **RACK):
            api.put("Pod", item)
        pods = until(api, all_let_go("hero-0", "hero-1", "hero-2", "hero-3"))

    placed = dict(hosts(pods))
    assert len(set(placed.values())) == 4
    assert len({rack_of(host) for host in placed.values()}) == 1
    assert len(api.patches) == 4
    assert all(set(patch["spec"]) == {"nodeSelector", "schedulingGates"} for patch in api.patches)


def test_a_selector_that_was_there_stays(api: ApiServer) -> None:
    item = pod("tune")
    item["spec"]["nodeSelector"] = {CLIQUE: "rack-1"}

    with controlled(api):
        api.put("Pod", item)
        pods = until(api, all_let_go("tune"))

    assert pods["tune"]["spec"]["nodeSelector"][CLIQUE] == "rack-1"
    assert pods["tune"]["spec"]["nodeSelector"][HOSTNAME].startswith("r1")


def test_a_dry_run_changes_nothing(api: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    decided = threading.Event()
    with controlled(api, dry_run=True) as controller:
        once = controller.once

        def noted() -> Any:
            decisions = once()
            if decisions and decisions[0].releases:
                decided.set()
            return decisions

        controller.once = noted  # type: ignore[method-assign]
        for item in gang("hero", 2):
            api.put("Pod", item)
        assert decided.wait(PATIENCE)

    assert api.patches == [] and dict(hosts(api.pods())) == {}
    assert any("dry run, ml/job/hero: placed on 2 nodes" in message for message in caplog.messages)


def test_nodes_come_free_when_jobs_end(api: ApiServer) -> None:
    names = [f"{name}-{rank}" for name in ("a", "b") for rank in range(4)]
    with controlled(api):
        for turn, name in enumerate("abc"):
            for item in gang(name, 4, created=turn, **RACK):
                api.put("Pod", item)
        first = dict(hosts(until(api, all_let_go(*names))))
        assert not any(name.startswith("c") for name in first)

        for rank in range(4):  # one ends, in part by deletion
            if rank % 2:
                api.delete("Pod", "ml", f"a-{rank}")
            else:
                api.put("Pod", {**api.pods()[f"a-{rank}"], "status": {"phase": "Succeeded"}})
        second = dict(hosts(until(api, all_let_go("c-0", "c-1", "c-2", "c-3"))))

    assert {second[f"c-{rank}"] for rank in range(4)} == {first[f"a-{rank}"] for rank in range(4)}


def test_a_new_controller_goes_on_where_another_stopped(api: ApiServer) -> None:
    members = gang("hero", 4, **RACK)
    with controlled(api):
        for item in members:
            api.put("Pod", item)
        done = until(api, all_let_go(*(f"hero-{rank}" for rank in range(4))))
    before = dict(hosts(done))
    api.delete("Pod", "ml", "hero-1")  # its Job makes it anew, gated
    api.put("Pod", {**members[1], "metadata": {**members[1]["metadata"], "uid": "another"}})

    with controlled(api):
        after = dict(hosts(until(api, all_let_go("hero-1"))))

    assert after == before


def test_an_expired_watch_is_begun_anew(api: ApiServer) -> None:
    with controlled(api):
        api.put("Pod", pod("first"))
        until(api, all_let_go("first"))
        api.forget_events()
        api.put("Pod", pod("second"))
        until(api, all_let_go("first", "second"))


def test_a_conflict_is_tried_again_with_what_has_changed(api: ApiServer) -> None:
    patch, raced = api.patch, threading.Event()

    def racing(namespace: str, name: str, body: Any) -> Any:
        if not raced.is_set():
            raced.set()
            api.put("Pod", api.find(namespace, name))  # somebody else writes in between
        return patch(namespace, name, body)

    api.patch = racing  # type: ignore[method-assign]
    with controlled(api):
        api.put("Pod", pod("tune"))
        until(api, all_let_go("tune"))

    assert len(api.patches) == 1


def test_victims_are_evicted_after_the_pods_are_let_go(api: ApiServer) -> None:
    for rack in range(2):
        for number in range(4):
            api.put("Pod", pod(f"low-{rack}-{number}", f"low-{rack}", 4, on=f"r{rack}n{number}", queue="batch"))
    with controlled(api, policy="best-fit+open"):
        for item in gang("hero", 4, priority=100, **RACK):
            api.put("Pod", item)
        pods = until(api, lambda pods: sum("deletionTimestamp" in p["metadata"] for p in pods.values()) == 4)

    rack = {rack_of(host) for name, host in hosts(pods) if name.startswith("hero")}
    gone = {name for name, item in pods.items() if "deletionTimestamp" in item["metadata"]}
    assert {f"r{name[4]}" for name in gone} == rack
    changed = [(version, item["metadata"]) for version, _, event, item in api.events if event == "MODIFIED"]
    let_go = [version for version, meta in changed if meta["name"].startswith("hero")]
    assert max(let_go) < min(version for version, meta in changed if "deletionTimestamp" in meta)


def test_a_disruption_budget_is_respected(api: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    api.protected = {"low"}
    for item in nodes()[1:]:
        api.delete("Node", "", item["metadata"]["name"])
    api.put("Pod", pod("low", on="r0n0", queue="batch"))
    with controlled(api, policy="best-fit+open"):
        api.put("Pod", pod("high", priority=100))
        until(api, all_let_go("high"))

    assert "deletionTimestamp" not in api.pods()["low"]["metadata"]


def test_the_command_runs_until_it_is_told_to_stop(api: ApiServer, tmp_path: Path) -> None:
    entry = {"name": "here"}
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [entry | {"cluster": {"server": api.url}}],
        "contexts": [entry | {"context": {"cluster": "here", "user": "here"}}],
        "users": [entry | {"user": {}}],
    }
    (tmp_path / "config").write_text(json.dumps(kubeconfig))
    command = [sys.executable, "-m", "nvlenv.engine", "gate", "--kubeconfig", str(tmp_path / "config")]

    with subprocess.Popen([*command, "--policy", "best-fit"]) as process:
        try:
            api.put("Pod", pod("tune"))
            until(api, all_let_go("tune"))
        finally:
            process.terminate()

    assert process.returncode == 0
