"""Clusters, services and clients that the tests of the service share."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nvlenv.engine.formats.load import parse_snapshot
from nvlenv.engine.model.snapshot import ClusterSnapshot
from nvlenv.engine.service.journal import Journal
from nvlenv.engine.service.shared import SharedEngine

POLICY = "best-fit"


def racks(count: int = 4, nodes: int = 4, gpus: int = 4) -> ClusterSnapshot:
    """An idle cluster: rack-000-node-00 and so on."""
    return parse_snapshot(json.dumps({"racks": [[gpus] * nodes] * count, "gpus_per_node": gpus}))


class Clock:
    """Seconds since 1970 that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 1.7e9

    def __call__(self) -> float:
        return self.now


def serve(path: Path, cluster: ClusterSnapshot | None = None, policy: str = POLICY, **options: Any) -> SharedEngine:
    """An engine with its journal at `path`."""
    return SharedEngine(Journal(path), policy, cluster, **options)


def crashed(path: Path, to: Path) -> Path:
    """The journal as a power cut at this moment would leave it: its files, while it is open."""
    for suffix in ("", "-wal"):
        if (source := path.with_name(path.name + suffix)).exists():
            shutil.copy(source, to.with_name(to.name + suffix))
    return to


def booked(cluster: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """GPUs that each job of a snapshot's JSON holds on each node."""
    held: dict[str, dict[str, int]] = {}
    for job in cluster.get("jobs", ()):
        for pod in job["pods"]:
            nodes = held.setdefault(job["id"], {})
            nodes[pod["node"]] = nodes.get(pod["node"], 0) + pod["gpus"]
    return held


def overbooked(cluster: Mapping[str, Any]) -> list[str]:
    """Nodes on which jobs hold more GPUs than there are."""
    used: dict[str, int] = {}
    for nodes in booked(cluster).values():
        for node, gpus in nodes.items():
            used[node] = used.get(node, 0) + gpus
    return [node["name"] for node in cluster["nodes"] if used.get(node["name"], 0) > node["gpus"]]


def pod(name: str, gang: str = "", size: int = 0, gpus: int = 4, **annotations: str) -> dict[str, Any]:
    """A pod as kube-scheduler sends it."""
    sized = {"nvlenv/gang-size": str(size)} if size else {}
    return {
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": f"uid-{name}",
            "labels": {"batch.kubernetes.io/job-name": gang} if gang else {},
            "annotations": {**sized, **annotations},
        },
        "spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}]},
    }


Serve = Callable[..., SharedEngine]
