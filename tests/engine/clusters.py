"""Small live clusters that the tests of the engine share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nvlenv.cluster.types import Mode, QueueSpec
from nvlenv.engine.model.jobs import Job, Pod, PodSet
from nvlenv.engine.model.snapshot import ClusterSnapshot, Node, make_snapshot
from nvlenv.policies.kueue.types import Layer

LEVELS = ("block", "rack", "hostname")
NOW = 1_800_000_000.0  # s since 1970, when every test begins
HOUR = 3600.0


def nodes_of(racks: Sequence[int], gpus: int = 4, blocks: Sequence[int] | None = None, **amounts: Any) -> list[Node]:
    """Racks of so many nodes; rack r is in block blocks[r] (default: one block)."""
    found = []
    for rack, count in enumerate(racks):
        block = blocks[rack] if blocks else 0
        for number in range(count):
            name = node(rack, number)
            found.append(Node(name, (f"b{block}", f"r{rack}", name), gpus, **amounts))
    return found


def node(rack: int, number: int) -> str:
    return f"r{rack}-n{number:02d}"


def cluster(nodes: Iterable[Node], jobs: Iterable[Job] = (), queues: Iterable[QueueSpec] = ()) -> ClusterSnapshot:
    return make_snapshot("test", LEVELS, "rack", nodes, jobs, queues)


def tenant(name: str, nodes: Iterable[str], gpus: int = 4, **fields: Any) -> Job:
    """A running job with one pod on each of these nodes; preemptible, unless said otherwise."""
    pods = tuple(Pod(n, gpus, name=f"{name}-{i}") for i, n in enumerate(nodes))
    defaults = {"preemptible": True, "start": NOW - 2.25 * HOUR, "estimate": 10.0, "queue": "tenants"}
    return Job(f"test/{name}", pods, name=name, namespace="test", **{**defaults, **fields})


def free_racks(*free: int, size: int = 18, **fields: Any) -> ClusterSnapshot:
    """Racks with so many free nodes, the others held by work that stays where it is, a job per node."""
    held = [(rack, n) for rack, count in enumerate(free) for n in range(count, size)]
    jobs = [tenant(f"held-{node(*at)}", [node(*at)], **{"preemptible": False, **fields}) for at in held]
    return cluster(nodes_of([size] * len(free)), jobs)


def gang(
    name: str, pods: int, mode: Mode = Mode.REQUIRED, slice_pods: int = 0, gpus: int = 4, level: str = "", **fields: Any
) -> Job:
    """A job of equal pods, by default in one rack; with `slice_pods`, each slice in one rack."""
    slices = (Layer("", slice_pods),) if slice_pods else ()
    mode = Mode.UNCONSTRAINED if slices and not level else mode
    amounts = {key: fields.pop(key) for key in ("cpu", "memory", "node_selector") if key in fields}
    pod_set = PodSet("main", pods, gpus, mode=mode, level=level, slices=slices, **amounts)
    return Job(name=name, pod_sets=(pod_set,), **{"namespace": "default", "preemptible": True, **fields})


def unreachable_gpus(snapshot: ClusterSnapshot, **pod: Any) -> dict[str, int]:
    """GPUs that `ClusterSnapshot.unreachable` finds on each node, 0 where it finds none."""
    found = {lost.node: lost.gpus for lost in snapshot.unreachable(**pod)}
    return {place.name: found.get(place.name, 0) for place in snapshot.nodes}
