"""A cluster at one moment, whatever it was read from: its nodes, the jobs on them, its queues.

>>> cluster = parse_snapshot('{"racks": [[4, 4, 0], [4, 2, 2]]}')
>>> cluster.free_gpus()["rack-001-node-01"], cluster.cluster_spec().racks
(2, 2)

`load_snapshot` reads files: `kubectl get nodes,pods -A -o json` with Kueue's objects beside it, Slurm's topology with
`sinfo` or `scontrol show node`, or the project's own JSON, which `as_json` writes.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from nvlenv.cluster.hardware import NETWORK, NVLINK
from nvlenv.cluster.topology import SEPARATOR, cluster_from_nodes
from nvlenv.cluster.types import ClusterSpec, QueueSpec
from nvlenv.common.errors import InputError
from nvlenv.engine.model.jobs import NOT_OF_FILES, UNLIMITED, Job, check_priority
from nvlenv.policies.kueue.types import Taint

FORMAT = "nvlenv-cluster/1"
MAX_GPUS_PER_NODE = 1024
MAX_QUOTA = 2**40  # GPUs, what the simulator takes for no limit
GPU = "nvidia.com/gpu"  # the usual name of the resource

_NO_HOST = re.compile(r"[\[\],\s]")  # characters that host lists give a meaning


class NodeState(StrEnum):
    """Whether a node takes pods."""

    UP = "up"
    CORDONED = "cordoned"  # running pods stay, no new ones come
    FAILED = "failed"  # not ready


class Resources(NamedTuple):
    """An amount of everything of which a node can have too little."""

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
    source: str = field(default="cluster", compare=False)  # the files it was read from

    def cluster_spec(self, nvlink: float = NVLINK, network: float = NETWORK) -> ClusterSpec:
        """The cluster as the simulator sees it; failed nodes count as cordoned. Bandwidths in GB/s."""
        return replace(self._spec, nvlink=nvlink, network=network)

    @cached_property
    def _spec(self) -> ClusterSpec:
        labels = (dict(zip(self.levels, node.path, strict=True)) for node in self.nodes)
        rows = [(own, node.gpus, node.state != NodeState.UP) for own, node in zip(labels, self.nodes, strict=True)]
        return cluster_from_nodes(self.levels, rows, self.nvlink_level, where=self.source)

    def rack_of(self, node: Node) -> str:
        """The path of the node's NVLink domain, as in `ClusterSpec.rack_names`."""
        return SEPARATOR.join(node.path[: self.levels.index(self.nvlink_level) + 1])

    @cached_property
    def free(self) -> dict[str, Resources]:
        """What each node has left, by name in the order of the nodes.

        Verification pods hold nothing, an overcommitted node has 0 left, and its state plays no part.
        """
        free = {}
        for node in self.nodes:
            have = Resources(node.gpus, node.cpu, node.memory, node.pods)
            held = (amount for _, amount in self._held[node.name])
            free[node.name] = Resources(*(max(0, all_ - sum(taken)) for all_, *taken in zip(have, *held, strict=True)))
        return free

    def free_gpus(self) -> dict[str, int]:
        """GPUs of each node without a pod, whatever state the node is in."""
        return {name: free.gpus for name, free in self.free.items()}

    def unreachable(
        self, pod_cpu: int = 0, pod_memory: int = 0, pod_gpus: int | None = None
    ) -> tuple[Unreachable, ...]:
        """Idle GPUs that cpu, memory, the number of pods, a cordon or a failure keeps from pods of this size.

        One pod asks for these milli-cores, bytes and GPUs; None: a single pod takes all idle GPUs of the node.
        """
        found = []
        for node in self.nodes:
            free = self.free[node.name]
            room = {
                "cpu": free.cpu // pod_cpu if pod_cpu else UNLIMITED,
                "memory": free.memory // pod_memory if pod_memory else UNLIMITED,
                "pods": free.pods,
            }
            reason = min(room, key=lambda name: room[name]) if node.state == NodeState.UP else str(node.state)
            lost = max(0, free.gpus - room.get(reason, 0) * (pod_gpus or free.gpus))
            if lost:
                found.append(Unreachable(node.name, lost, reason, self._largest_holder(node.name, reason)))
        return tuple(found)

    def unreachable_report(self, pod_cpu: int = 0, pod_memory: int = 0, pod_gpus: int | None = None) -> tuple[str, ...]:
        """`unreachable` in words, the largest loss first.

        For example "256 idle GPUs unreachable: job batch/job/etl leaves too little cpu on 64 nodes in 9 of 12 racks".
        """
        racks = {node.name: self.rack_of(node) for node in self.nodes}
        groups = defaultdict[str, list[Unreachable]](list)
        for lost in self.unreachable(pod_cpu, pod_memory, pod_gpus):
            culprit = f"job {lost.job} leaves" if lost.job else "the node has"
            why = f"{culprit} too little {lost.reason}" if lost.reason in Resources._fields else lost.reason
            groups[why].append(lost)
        lines = []
        for why, members in groups.items():
            gpus, touched = sum(lost.gpus for lost in members), {racks[lost.node] for lost in members}
            where = f"on {len(members)} nodes in {len(touched)} of {len(set(racks.values()))} racks"
            lines.append((gpus, f"{gpus} idle GPUs unreachable: {why} {where}"))
        return tuple(line for _, line in sorted(lines, key=lambda entry: -entry[0]))

    def as_json(self) -> dict[str, Any]:
        """The snapshot in the project's own format; reading its JSON text gives an equal snapshot."""
        own: dict[str, Any] = _as_data().dump_python(
            self, mode="json", exclude_defaults=True, exclude={"source": True, "jobs": {"__all__": NOT_OF_FILES}}
        )
        return {"format": FORMAT, **own}

    @cached_property
    def _held(self) -> dict[str, list[tuple[str, Resources]]]:
        """Job and amount of every pod that counts, by node."""
        held = defaultdict[str, list[tuple[str, Resources]]](list)
        for job in self.jobs:
            for pod in () if job.verification else job.pods:
                held[pod.node].append((job.id, Resources(pod.gpus, pod.cpu, pod.memory, 1)))
        return held

    def _largest_holder(self, node: str, resource: str) -> str:
        """The job that holds most of a resource of a node; empty if none does, or if it is no resource."""
        totals = Counter[str]()
        for job, amount in self._held[node] if resource in Resources._fields else ():
            totals[job] += getattr(amount, resource)
        return max(+totals, key=totals.__getitem__, default="")  # + leaves out those that hold nothing


@cache
def _as_data() -> TypeAdapter[ClusterSnapshot]:
    return TypeAdapter(ClusterSnapshot)


def make_snapshot(
    where: str,
    levels: Sequence[str],
    nvlink_level: str,
    nodes: Iterable[Node],
    jobs: Iterable[Job] = (),
    queues: Iterable[QueueSpec] = (),
    local_queues: Mapping[str, str] | None = None,
    notes: Iterable[str] = (),
) -> ClusterSnapshot:
    """A snapshot with its nodes in the order of `cluster_spec()` and its jobs by id.

    Raises `InputError` for what would make it ambiguous (two nodes, hosts, jobs or queues of one name, a node without
    a value for a level, a pod on a node that is not there) and for amounts that no cluster has.
    """
    rack = levels.index(nvlink_level) if nvlink_level in levels else len(levels)
    ordered = tuple(sorted(nodes, key=lambda node: (node.path[: rack + 1], node.path[-1:])))
    sorted_jobs = tuple(sorted(jobs, key=lambda job: job.id))
    sorted_queues = tuple(sorted(queues, key=lambda queue: queue.name))
    _check_names(where, "node", [node.name for node in ordered])
    _check_names(where, "job", [job.id for job in sorted_jobs])
    _check_names(where, "queue", [queue.name for queue in sorted_queues])
    for node in ordered:
        if len(node.path) != len(levels):
            raise InputError(where, f"node {node.name}, path", list(node.path), f"a value for each of {list(levels)}")
        if not 1 <= node.gpus <= MAX_GPUS_PER_NODE:
            raise InputError(where, f"node {node.name}, gpus", node.gpus, f"1 to {MAX_GPUS_PER_NODE} GPUs")
        if _NO_HOST.search(node.name) or not node.name.isprintable():
            raise InputError(where, "node", repr(node.name), "a name without blanks, commas and brackets")
    for queue in sorted_queues:
        if (most := max(queue.nominal, queue.borrowing_limit)) > MAX_QUOTA:
            raise InputError(where, f"queue {queue.name}", f"{most} GPUs", f"at most {MAX_QUOTA}")
    names = {node.name for node in ordered}
    for job in sorted_jobs:
        check_priority(where, f"job {job.id}, priority", job.priority)
        stray = next((pod.node for pod in job.pods if pod.node not in names), None)
        if stray is not None or not job.pods:
            found = "no pods" if stray is None else f"a pod on {stray!r}"
            raise InputError(where, f"job {job.id}, pods", found, "pods on nodes of the cluster")
    _check_amounts(where, sorted_jobs)
    snapshot = ClusterSnapshot(
        tuple(levels), nvlink_level, ordered, sorted_jobs, sorted_queues, dict(local_queues or {}), tuple(notes), where
    )
    snapshot.cluster_spec()  # holds every rule about labels and names
    return snapshot


def _check_amounts(where: str, jobs: Iterable[Job]) -> None:
    """Pods may hold more than their node has, not more than 64 bits hold."""
    held = defaultdict[str, Counter[str]](Counter)
    for job in jobs:
        for pod in job.pods:
            if pod.gpus > MAX_GPUS_PER_NODE:
                raise InputError(where, f"job {job.id}, pods, gpus", pod.gpus, f"at most {MAX_GPUS_PER_NODE} GPUs")
            held[pod.node] += Counter(cpu=pod.cpu, memory=pod.memory)
    for node, amounts in held.items():
        for what, amount in amounts.items():
            if amount > UNLIMITED:
                raise InputError(where, f"node {node}, pods, {what}", amount, f"at most {UNLIMITED}")


def _check_names(where: str, kind: str, names: Sequence[str]) -> None:
    if "" in names:
        raise InputError(where, kind, "one without a name", "a name")
    double = next((name for name, following in pairwise(sorted(names)) if name == following), None)
    if double is not None:
        raise InputError(where, f"{kind} {double}", "two of this name", "one")
