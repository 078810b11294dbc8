"""The running jobs of an engine by id, and what of each node's cpu, memory and number of pods they leave.

The arrays (`nvlenv.engine.core.live`) know GPUs, the book knows everything else. Verification pods hold nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from nvlenv.cluster.types import BoolArray, IntArray
from nvlenv.engine.core.live import Part
from nvlenv.engine.model.answers import Binding
from nvlenv.engine.model.jobs import UNLIMITED, Job, Pod
from nvlenv.engine.model.snapshot import ClusterSnapshot, Node
from nvlenv.policies.kueue import topology as kueue
from nvlenv.policies.kueue.types import KueueNode, NodeAffinity, Toleration

GPU_TAINT = Toleration(key="nvidia.com/gpu", operator="Exists")  # Kubernetes gives it to pods that ask for GPUs
SCARCE = ("cpu", "memory", "places for pods", "matching labels or tolerated taints")
MANY = 2**30  # pods: no limit
KEPT = 256  # answers to "which nodes match" that are kept

Amounts = NDArray[np.int64]  # (3, M): milli-cores, bytes, pods
Need = NDArray[np.object_]  # (3,): the same of some pods; sums over pods may be more than 64 bits hold


def need_of(pods: Iterable[Pod], node: str = "") -> Need:
    """What these pods need together; with `node`, those of them that are on it."""
    held = [(pod.cpu, pod.memory, 1) for pod in pods if not node or pod.node == node]
    return np.array([sum(column) for column in zip((0, 0, 0), *held, strict=True)], np.object_)


class NodeResources:
    """What each node has of cpu, memory and places for pods, and which nodes a pod may use at all."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = [
            KueueNode(node.name, {**node.labels, "kubernetes.io/hostname": node.name}, {}, taints=node.taints)
            for node in nodes
        ]
        self.number = {node.name: number for number, node in enumerate(nodes)}
        self._all = np.array([[n.gpus, n.cpu, n.memory, n.pods] for n in nodes], np.int64).T
        self.free: Amounts = self._all[1:].copy()
        self._unlimited = bool((self.free == UNLIMITED).all())
        self._untainted = all(not node.taints for node in nodes)
        self._let_in = lru_cache(KEPT)(self._which_let_in)
        self._preemptible: dict[int, tuple[int, Amounts]] = {}  # priority -> such pods, and what they hold

    def take(self, job: Job, sign: int = 1) -> None:
        """The job's pods hold what they need from now on; with a `sign` of -1, no longer."""
        if job.preemptible:
            count, held = self._preemptible.get(job.priority, (0, np.zeros_like(self.free)))
            self._preemptible[job.priority] = count + sign * len(job.pods), held
        if self._unlimited:  # so it stays
            return
        for pod in job.pods:
            amount, node = (sign * pod.cpu, sign * pod.memory, sign), self.number[pod.node]
            self.free[:, node] -= amount
            if job.preemptible:
                held[:, node] += amount

    def returnable(self, priority: int) -> Amounts | None:
        """(3, M): what preemptible pods below a priority hold on each node; None: there are no such pods."""
        below = [held for other, (count, held) in self._preemptible.items() if count and other < priority]
        return np.sum(below, axis=0, dtype=np.int64) if below else None

    def limits(self, part: Part, returned: Amounts | None = None) -> IntArray | None:
        """(M,): pods of a part that each node could take, whatever its GPUs; None: no node is short of anything.

        `returned` (3, M) is what evictions would give back.
        """
        matches = self._matching(part)
        if self._unlimited and matches is None:
            return None
        free = self.free if returned is None else self.free + returned
        pods = self._by_resource(part, free).min(axis=0).astype(np.int32)
        return pods if matches is None else np.where(matches, pods, np.int32(0))

    def most(self, part: Part) -> NDArray[np.int64]:
        """(M,): pods of a part that each node could take if it were empty and up."""
        pods = np.minimum(self._all[0] // part.gpus_per_pod, self._by_resource(part, self._all[1:]).min(axis=0))
        matches = self._matching(part)
        return pods if matches is None else np.where(matches, pods, 0)

    def scarcest(self, part: Part) -> NDArray[np.int64]:
        """(M,): what each node has least of for a part's pods, an index into SCARCE."""
        scarce: NDArray[np.int64] = self._by_resource(part, self.free).argmin(axis=0)
        matches = self._matching(part)
        return scarce if matches is None else np.where(matches, scarce, len(SCARCE) - 1)

    def _by_resource(self, part: Part, amounts: Amounts) -> Amounts:
        """(3, M): pods of a part for which each of these amounts (3, M) is enough."""
        sizes = np.array([part.cpu, part.memory, part.fused], np.int64)[:, None]
        return np.where(sizes > 0, np.maximum(amounts, 0) // np.maximum(sizes, 1), MANY)

    def shortage(self, node: int, need: Need) -> list[int]:
        """What (cpu, memory, pods) a node lacks, 0 where it has enough."""
        return [max(0, int(each) - int(have)) for each, have in zip(need, self.free[:, node], strict=True)]

    def has_room(self, node: int, need: Need) -> bool:
        """True if a node lacks nothing of it."""
        return not any(self.shortage(node, need))

    def takes_over(self, node: int, need: Need, pods_of: Iterable[str]) -> bool:
        """True if pods that run on other nodes can go to this one: it has room, and no taint that is new to them.

        Whether they tolerate other taints than those of their nodes is not known.
        """
        if self._untainted or not self.has_room(node, need):
            return self.has_room(node, need)
        tolerated = {taint for name in pods_of for taint in self._nodes[self.number[name]].taints}
        tolerations = (GPU_TAINT, *(Toleration(taint.key, "Equal", taint.value, taint.effect) for taint in tolerated))
        return kueue.obstacle(self._nodes[node], {}, tolerations, NodeAffinity()) is None

    def _matching(self, part: Part) -> BoolArray | None:
        """(M,) nodes whose labels and taints let the pods in; None: all."""
        selector = {key: value for member in part.members for key, value in member.node_selector.items()}
        tolerations = (*part.members[-1].tolerations, GPU_TAINT)
        if self._untainted and not selector:
            return None
        return self._let_in(tuple(sorted(selector.items())), tolerations)

    def _which_let_in(self, selector: tuple[tuple[str, str], ...], tolerations: tuple[Toleration, ...]) -> BoolArray:
        obstacles = (kueue.obstacle(node, dict(selector), tolerations, NodeAffinity()) for node in self._nodes)
        return np.array([obstacle is None for obstacle in obstacles], np.bool_)


class Book:
    """The running jobs, the state of every node, and what the jobs leave of the nodes' resources."""

    def __init__(self, cluster: ClusterSnapshot) -> None:
        self._cluster = cluster
        self.states = {node.name: node.state for node in cluster.nodes}
        self.resources = NodeResources(cluster.nodes)
        self.names = [node.name for node in cluster.nodes]  # by number in the arrays
        self.number = self.resources.number  # the other way round
        self.racks = [cluster.rack_of(node) for node in cluster.nodes]  # by number too
        self.jobs: dict[str, Job] = {}
        self._on: dict[str, dict[str, None]] = {}  # node -> jobs with pods there, in the order in which they came
        for job in cluster.jobs:
            self.add(job)

    def add(self, job: Job) -> None:
        """A job that runs. One of its id takes the place of the other."""
        self.remove(job.id)
        self.jobs[job.id] = job
        if not job.verification:
            self.resources.take(job)
        for pod in job.pods:
            self._on.setdefault(pod.node, {})[job.id] = None

    def remove(self, name: str) -> Job | None:
        """The job of this id runs no longer. Returns it; None if it did not run."""
        job = self.jobs.pop(name, None)
        if job is None:
            return None
        if not job.verification:
            self.resources.take(job, -1)
        for node in job.nodes:
            self._on[node].pop(name, None)
        return job

    def on(self, node: str, verification: bool = False) -> list[Job]:
        """The jobs with pods on a node; with `verification`, only those that test it, else only the others."""
        found = (self.jobs[name] for name in self._on.get(node, ()))
        return [job for job in found if job.verification == verification]

    def end_pods(self, job: Job, node: str) -> None:
        """End the pods of a job on one node, not those on others."""
        rest = tuple(pod for pod in job.pods if pod.node != node)
        self.remove(job.id)
        if rest:
            self.add(replace(job, pods=rest))

    def binding(self, node: int, pods: int, gpus: int, pod_set: str = "") -> Binding:
        """Pods on a node, of no pod set that is known unless it is named."""
        return Binding(pod_set, self.names[node], self.racks[node], pods, gpus)

    def bindings(self, pods: Sequence[Pod], places: Sequence[int]) -> tuple[Binding, ...]:
        """Pods and their nodes as bindings node by node."""
        gpus: Counter[int] = Counter()
        for pod, place in zip(pods, places, strict=True):
            gpus[place] += pod.gpus
        return tuple(self.binding(place, count, gpus[place]) for place, count in Counter(places).items())

    def move(self, job: Job, to: Sequence[Binding]) -> None:
        """The pods of a job, in their order, are on other nodes now; it keeps the name of its one pod set, if any."""
        nodes = [binding.node for binding in to for _ in range(binding.pods)]
        pods = tuple(replace(pod, node=node) for pod, node in zip(job.pods, nodes, strict=True))
        bindings = tuple(replace(binding, pod_set=first.pod_set) for first in job.bindings[:1] for binding in to)
        self.add(replace(job, pods=pods, bindings=bindings))

    def snapshot(self) -> ClusterSnapshot:
        """The cluster with the jobs and node states of now."""
        states = self.states
        nodes = (n if n.state == states[n.name] else replace(n, state=states[n.name]) for n in self._cluster.nodes)
        return replace(self._cluster, nodes=tuple(nodes), jobs=tuple(self.jobs[name] for name in sorted(self.jobs)))
