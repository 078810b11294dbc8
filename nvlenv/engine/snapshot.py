"""A cluster at one moment, whatever it was read from: its nodes, the jobs on them, its queues.

>>> cluster = parse_snapshot('{"racks": [[4, 4, 0], [4, 2, 2]]}')
>>> cluster.free_gpus()["rack-001-node-01"], cluster.cluster_spec().racks
(2, 2)

`load_snapshot` reads files: `kubectl get nodes,pods -A -o json` with Kueue's objects beside it, Slurm's topology with
`sinfo` or `scontrol show node`, or the project's own JSON. `as_json` writes that last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from nvlenv.errors import InputError
from nvlenv.policies.kueue.types import Taint
from nvlenv.topology import SEPARATOR, cluster_from_nodes, levels_to_rack
from nvlenv.types import ClusterSpec, QueueSpec

UNLIMITED = 2**63 - 1  # of a resource that the source says nothing about: it never keeps a pod away
FORMAT = "nvlenv-cluster/1"


class NodeState(StrEnum):
    UP = "up"
    CORDONED = "cordoned"  # running pods stay, no new ones come
    FAILED = "failed"  # not ready


class Resources(NamedTuple):
    """An amount of everything that keeps a pod off a node."""

    gpus: int
    cpu: int  # milli-cores
    memory: int  # bytes
    pods: int


@dataclass(frozen=True)
class Node:
    """A node with GPUs, and what of it pods may take (Kubernetes' allocatable)."""

    name: str
    path: tuple[str, ...]  # value of each level's label, coarse to fine; the last one names the node
    gpus: int
    cpu: int = UNLIMITED  # milli-cores
    memory: int = UNLIMITED  # bytes
    pods: int = UNLIMITED
    state: NodeState = NodeState.UP
    taints: tuple[Taint, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)  # all of them, for node selectors

    @property
    def capacity(self) -> Resources:
        return Resources(self.gpus, self.cpu, self.memory, self.pods)


@dataclass(frozen=True)
class Pod:
    """A pod of a job, on its node."""

    node: str
    gpus: int
    cpu: int = 0  # milli-cores
    memory: int = 0  # bytes
    name: str = ""  # empty: promised by Kueue's assignment, not created yet
    uid: str = ""
    terminating: bool = False  # holds its resources until it is gone


@dataclass(frozen=True)
class Job:
    """Pods that belong together: a gang, the replicas of a service, or a single pod."""

    id: str  # unique in the snapshot
    pods: tuple[Pod, ...]
    name: str = ""
    namespace: str = ""
    uid: str = ""
    queue: str = ""  # ClusterQueue, or what the queue label says if that is not known; empty: outside all queues
    priority: int = 0
    preemptible: bool = False  # may be evicted for a job of higher priority
    movable: bool = False  # may be restarted elsewhere
    verification: bool = False  # a test of idle nodes, evicted at once by any real job: shown, never counted
    start: float | None = None  # s since 1970 (UTC)
    estimate: float | None = None  # h that it may run from its start

    @property
    def gpus(self) -> int:
        return sum(pod.gpus for pod in self.pods)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of its nodes, in order, each once."""
        return tuple(sorted({pod.node for pod in self.pods}))


@dataclass(frozen=True)
class Unreachable:
    """Idle GPUs of one node that no pod of a given size can get, and why."""

    node: str
    gpus: int
    reason: str  # "failed", "cordoned", "cpu", "memory" or "pods"
    job: str = ""  # id of the job that holds most of what is short


@dataclass(frozen=True)
class ClusterSnapshot:
    """Build it with `make_snapshot`, which sorts and checks: node i here is node i of `cluster_spec()`."""

    levels: tuple[str, ...]  # node labels, coarse to fine, the node's own name last
    nvlink_level: str  # the one that is the NVLink domain
    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...] = ()
    queues: tuple[QueueSpec, ...] = ()
    local_queues: Mapping[str, str] = field(default_factory=dict)  # "namespace/name" -> ClusterQueue
    notes: tuple[str, ...] = ()  # what the reader had to decide or leave out, for people
    source: str = "cluster"  # the files it was read from

    def cluster_spec(self, nvlink: float = 900.0, network: float = 50.0) -> ClusterSpec:
        """The cluster as the simulator sees it; failed nodes count as cordoned. Bandwidths in GB/s."""
        rows = [
            (dict(zip(self.levels, node.path, strict=True)), node.gpus, node.state != NodeState.UP)
            for node in self.nodes
        ]
        return cluster_from_nodes(self.levels, rows, self.nvlink_level, nvlink, network, self.source)

    def rack_of(self, node: Node) -> str:
        """The path of the node's NVLink domain, as in `ClusterSpec.rack_names`."""
        return SEPARATOR.join(node.path[: self.levels.index(self.nvlink_level) + 1])

    def free(self) -> dict[str, Resources]:
        """What each node has left, in the order of the nodes; verification pods hold nothing, no amount is negative."""
        taken = self._taken
        return {
            node.name: Resources(*(max(0, have - used) for have, used in zip(node.capacity, taken[node.name], strict=True)))
            for node in self.nodes
        }

    def free_gpus(self) -> dict[str, int]:
        """GPUs of each node without a pod, whatever state the node is in."""
        return {name: free.gpus for name, free in self.free().items()}

    def unreachable_gpus(self, pod_cpu: int = 0, pod_memory: int = 0, pod_gpus: int | None = None) -> dict[str, int]:
        """Idle GPUs of each node that no GPU pod can get; see `unreachable`."""
        result = dict.fromkeys((node.name for node in self.nodes), 0)
        result.update({found.node: found.gpus for found in self.unreachable(pod_cpu, pod_memory, pod_gpus)})
        return result

    def unreachable(
        self, pod_cpu: int = 0, pod_memory: int = 0, pod_gpus: int | None = None
    ) -> tuple[Unreachable, ...]:
        """Idle GPUs that cpu, memory, the number of pods, a cordon or a failure keeps from pods of this size.

        Parameters
        ----------
        pod_cpu, pod_memory : milli-cores and bytes that one GPU pod asks for.
        pod_gpus : GPUs of one pod; None: a single pod takes all idle GPUs of the node.
        """
        found = []
        for node in self.nodes:
            free = self.free()[node.name] if False else self._free[node.name]
            if node.state != NodeState.UP:
                lost, reason = free.gpus, str(node.state)
            else:
                room = {"cpu": _fits(free.cpu, pod_cpu), "memory": _fits(free.memory, pod_memory), "pods": free.pods}
                reason = min(room, key=lambda name: room[name])
                lost = max(0, free.gpus - room[reason] * (pod_gpus or max(1, free.gpus)))
            if lost:
                found.append(Unreachable(node.name, lost, reason, self._largest_holder(node.name, reason)))
        return tuple(found)

    def unreachable_report(
        self, pod_cpu: int = 0, pod_memory: int = 0, pod_gpus: int | None = None
    ) -> tuple[str, ...]:
        """`unreachable` in words, the largest loss first.

        For example "job etl: 256 idle GPUs unreachable for want of cpu, on 64 nodes in 9 of 12 racks".
        """
        racks = {node.name: self.rack_of(node) for node in self.nodes}
        groups: dict[tuple[str, str], list[Unreachable]] = {}
        for found in self.unreachable(pod_cpu, pod_memory, pod_gpus):
            groups.setdefault((found.job, found.reason), []).append(found)
        lines = []
        for (job, reason), members in sorted(groups.items(), key=lambda item: -sum(m.gpus for m in item[1])):
            gpus, touched = sum(m.gpus for m in members), len({racks[m.node] for m in members})
            why = f"for want of {reason}" if reason in Resources._fields else f"on {reason} nodes"
            lines.append(
                f"{f'job {job}: ' if job else ''}{gpus} idle GPUs unreachable {why}, "
                f"on {len(members)} nodes in {touched} of {len(set(racks.values()))} racks"
            )
        return tuple(lines)

    def as_json(self) -> dict[str, Any]:
        """The snapshot in the project's own format; `parse_snapshot` of its JSON text gives an equal snapshot."""
        return {"format": FORMAT, **_plain(self)}
