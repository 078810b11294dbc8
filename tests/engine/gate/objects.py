"""Nodes and pods as an API server has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nvlenv.engine.formats.kueue import QUEUE_LABEL
from nvlenv.engine.gate.decide import GATE

Object = dict[str, Any]
CLIQUE = "nvidia.com/gpu.clique"
REQUIRED = "kueue.x-k8s.io/podset-required-topology"
JOB_LABEL = "batch.kubernetes.io/job-name"
RANK = "batch.kubernetes.io/job-completion-index"
HOSTNAME = "kubernetes.io/hostname"


def node(name: str, rack: str, gpus: int = 4, ready: bool = True, **spec: Any) -> Object:
    amounts = {"nvidia.com/gpu": str(gpus), "cpu": "144", "memory": "960Gi", "pods": "110"}
    return {
        "metadata": {"name": name, "labels": {CLIQUE: rack, HOSTNAME: f"{name}.local"}},
        "spec": spec,
        "status": {
            "allocatable": amounts,
            "capacity": amounts,
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }


def nodes(racks: int = 2, size: int = 4) -> list[Object]:
    """r0n0, r0n1, ... with host names that are not their names."""
    return [node(f"r{rack}n{number}", f"rack-{rack}") for rack in range(racks) for number in range(size)]


def pod(
    name: str,
    gang: str = "",
    size: int = 0,
    *,
    gpus: int = 4,
    rank: int | None = None,
    gates: tuple[str, ...] = (GATE,),
    priority: int = 0,
    created: int = 0,
    on: str = "",
    phase: str = "Pending",
    queue: str = "",
    **annotations: str,
) -> Object:
    """A gated pod of a gang, or, with `on`, one that runs on a node; what has a queue may be preempted."""
    notes = {**({"nvlenv/gang-size": str(size)} if size else {}), **annotations}
    if rank is not None:
        notes[RANK] = str(rank)
    spec: Object = {
        "containers": [{"name": "main", "image": "train", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}],
        "priority": priority,
    }
    if on:
        spec["nodeName"] = on
    elif gates:
        spec["schedulingGates"] = [{"name": gate} for gate in gates]
    return {
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": f"uid-{name}-{created}",
            "resourceVersion": "1",
            "creationTimestamp": f"2026-01-01T00:{created:02d}:00Z",
            "labels": {key: value for key, value in ((JOB_LABEL, gang), (QUEUE_LABEL, queue)) if value},
            "annotations": notes,
        },
        "spec": spec,
        "status": {"phase": "Running" if on else phase},
    }


def gang(name: str, size: int, **more: Any) -> list[Object]:
    """All pods of a gang, by rank."""
    return [pod(f"{name}-{rank}", name, size, rank=rank, **more) for rank in range(size)]


def rack_of(host: str) -> str:
    return host[:2]


def hosts(objects: dict[str, Object]) -> Iterator[tuple[str, str]]:
    """Names and hosts of the pods that were let go."""
    for name, item in objects.items():
        if "schedulingGates" not in item["spec"] and HOSTNAME in item["spec"].get("nodeSelector", {}):
            yield name, item["spec"]["nodeSelector"][HOSTNAME]
