"""The project's own JSON: racks as lists of free GPUs, or everything that a snapshot holds.

The short form, for a cluster typed by hand:

    {"racks": [[4, 4, 0], [4, 2, 2]], "gpus_per_node": 4}          or with names: {"racks": {"rack-a": [4, 4, 0]}}

What is not free there belongs to work of which nothing is known, so it is neither preemptible nor movable. The long
form is what `ClusterSnapshot.as_json` writes.
"""

from __future__ import annotations

from collections.abc import Iterator

from nvlenv.engine.importers.document import Field
from nvlenv.engine.snapshot import FORMAT, UNLIMITED, ClusterSnapshot, Job, Node, NodeState, Pod, make_snapshot
from nvlenv.policies.kueue.types import Taint
from nvlenv.types import QueueSpec

GPUS_PER_NODE = 4  # NVL72
SHORT_KEYS = frozenset({"racks", "gpus_per_node"})
LONG_KEYS = frozenset({"format", "levels", "nvlink_level", "nodes", "jobs", "queues", "local_queues", "notes"})
NODE_KEYS = frozenset({"name", "path", "gpus", "cpu", "memory", "pods", "state", "taints", "labels"})
POD_KEYS = frozenset({"node", "gpus", "cpu", "memory", "name", "uid", "terminating"})
JOB_KEYS = frozenset(
    {"id", "pods", "name", "namespace", "uid", "queue", "priority", "preemptible", "movable", "verification"}
    | {"start", "estimate"}
)
QUEUE_KEYS = frozenset({"name", "nominal", "cohort", "borrowing_limit", "strict"})
TAINT_KEYS = frozenset({"key", "value", "effect"})


def is_native(document: Field) -> bool:
    return isinstance(document.value, dict) and ("racks" in document.value or "format" in document.value)


def read_native(document: Field) -> ClusterSnapshot:
    """The cluster of one document of either form."""
    if document["racks"].present:
        return _read_short(document)
    if document["format"].value != FORMAT:
        raise document["format"].error(repr(FORMAT))
    return _read_long(document)


def _read_short(document: Field) -> ClusterSnapshot:
    document.known_keys(SHORT_KEYS)
    size = document["gpus_per_node"].integer(GPUS_PER_NODE, at_least=1)
    nodes, jobs = [], []
    for rack, frees in _racks(document["racks"]):
        for number, entry in enumerate(frees):
            free = entry.integer(at_least=0)
            if free > size:
                raise entry.error(f"at most {size} GPUs (gpus_per_node)")
            name = f"{rack}-node-{number:02d}"
            nodes.append(Node(name, (rack, name), size))
            if free < size:
                jobs.append(Job(f"{name}/used", (Pod(name, size - free),), name="used"))
    return make_snapshot(document.where, ("rack", "hostname"), "rack", nodes, jobs)


def _racks(racks: Field) -> Iterator[tuple[str, Field]]:
    """Each rack's name and its list."""
    if isinstance(racks.value, dict):
        yield from racks.entries()
    else:
        yield from ((f"rack-{number:03d}", rack) for number, rack in enumerate(racks))


def _read_long(document: Field) -> ClusterSnapshot:
    document.known_keys(LONG_KEYS)
    return make_snapshot(
        document.where,
        _texts(document["levels"]),
        document["nvlink_level"].text(),
        [_node(node) for node in document["nodes"]],
        [_job(job) for job in document["jobs"]],
        [_queue(queue) for queue in document["queues"]],
        document["local_queues"].texts(),
        _texts(document["notes"]),
    )


def _node(node: Field) -> Node:
    node.known_keys(NODE_KEYS)
    state = node["state"].text(str(NodeState.UP))
    if state not in list(NodeState):
        raise node["state"].error(f"one of {[str(known) for known in NodeState]}")
    return Node(
        name=node["name"].text(),
        path=_texts(node["path"]),
        gpus=node["gpus"].integer(at_least=1),
        cpu=node["cpu"].integer(UNLIMITED, at_least=0),
        memory=node["memory"].integer(UNLIMITED, at_least=0),
        pods=node["pods"].integer(UNLIMITED, at_least=0),
        state=NodeState(state),
        taints=tuple(_taint(taint) for taint in node["taints"]),
        labels=node["labels"].texts(),
    )


def _taint(taint: Field) -> Taint:
    taint.known_keys(TAINT_KEYS)
    return Taint(taint["key"].text(), taint["value"].text(""), taint["effect"].text("NoSchedule"))


def _job(job: Field) -> Job:
    job.known_keys(JOB_KEYS)
    return Job(
        id=job["id"].text(),
        pods=tuple(_pod(pod) for pod in job["pods"]),
        name=job["name"].text(""),
        namespace=job["namespace"].text(""),
        uid=job["uid"].text(""),
        queue=job["queue"].text(""),
        priority=job["priority"].integer(0),
        preemptible=job["preemptible"].flag(False),
        movable=job["movable"].flag(False),
        verification=job["verification"].flag(False),
        start=job["start"].number() if job["start"].present else None,
        estimate=job["estimate"].number() if job["estimate"].present else None,
    )


def _pod(pod: Field) -> Pod:
    pod.known_keys(POD_KEYS)
    return Pod(
        node=pod["node"].text(),
        gpus=pod["gpus"].integer(at_least=0),
        cpu=pod["cpu"].integer(0, at_least=0),
        memory=pod["memory"].integer(0, at_least=0),
        name=pod["name"].text(""),
        uid=pod["uid"].text(""),
        terminating=pod["terminating"].flag(False),
    )


def _queue(queue: Field) -> QueueSpec:
    queue.known_keys(QUEUE_KEYS)
    return QueueSpec(
        name=queue["name"].text(),
        nominal=queue["nominal"].integer(at_least=0),
        cohort=queue["cohort"].text(""),
        borrowing_limit=queue["borrowing_limit"].integer(-1, at_least=-1),
        strict=queue["strict"].flag(False),
    )


def _texts(field: Field) -> tuple[str, ...]:
    return tuple(entry.text() for entry in field)
