"""The running jobs of an engine by name: their pods, what these hold of each node, and those that only test nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nvlenv.cluster.types import BoolArray, IntArray
from nvlenv.engine.core.parts import Part
from nvlenv.engine.model.answers import Binding
from nvlenv.engine.model.snapshot import UNLIMITED, ClusterSnapshot, Job, Node, NodeState, Pod
from nvlenv.policies.kueue import topology as kueue
from nvlenv.policies.kueue.types import KueueNode, NodeAffinity, Toleration

# --------------------------------------------------------------------------------------------------------------------
# What of each node's cpu, memory and number of pods is left, and which nodes a pod may use at all.
# --------------------------------------------------------------------------------------------------------------------


GPU_TAINT = Toleration(key="nvidia.com/gpu", operator="Exists")  # Kubernetes gives it to pods that ask for GPUs
SCARCE = ("cpu", "memory", "places for pods", "matching labels or tolerated taints")
MANY = 2**30  # pods: no limit
KEPT = 256  # answers to "which nodes match" that are kept

Amounts = NDArray[np.int64]  # (3, M): milli-cores, bytes, pods


class Reserves:
    """Amounts per node; verification pods hold nothing."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = [
            KueueNode(node.name, {**node.labels, "kubernetes.io/hostname": node.name}, {}, taints=node.taints)
            for node in nodes
        ]
        self.index = {node.name: number for number, node in enumerate(nodes)}
        self._all = np.array([[n.gpus, n.cpu, n.memory, n.pods] for n in nodes], np.int64).T
        self.free: Amounts = self._all[1:].copy()
        self._unlimited = bool((self.free == UNLIMITED).all())
        self._plain = all(not node.taints for node in nodes)
        self._matches: dict[object, BoolArray] = {}
        self._preemptible: dict[int, tuple[int, Amounts]] = {}  # priority -> such pods, and what they hold

    def take(self, job: Job) -> None:
        self._change(job, 1)

    def give_back(self, job: Job) -> None:
        self._change(job, -1)

    def _change(self, job: Job, sign: int) -> None:
        if job.preemptible:
            count, held = self._preemptible.get(job.priority, (0, np.zeros_like(self.free)))
            self._preemptible[job.priority] = count + sign * len(job.pods), held
        if self._unlimited:  # so it stays
            return
        for pod in job.pods:
            amount, node = (sign * pod.cpu, sign * pod.memory, sign), self.index[pod.node]
            self.free[:, node] -= amount
            if job.preemptible:
                held[:, node] += amount

    def returnable(self, priority: int) -> Amounts | None:
        """(3, M): what preemptible pods below a priority hold on each node; None: there are no such pods."""
        below = [held for other, (count, held) in self._preemptible.items() if count and other < priority]
        return np.sum(below, axis=0, dtype=np.int64) if below else None

    def limits(self, part: Part, returned: Amounts | None = None) -> IntArray | None:
        """(M,): units of a part that each node could take, whatever its GPUs; None: no node is short of anything.

        `returned` (3, M) is what evictions would give back.
        """
        matches = self._matching(part)
        if self._unlimited and matches is None:
            return None
        free = self.free if returned is None else self.free + returned
        units = np.full(free.shape[1], MANY, np.int64)
        for amount, each in zip(free, (part.cpu, part.memory, part.fused), strict=True):
            if each:
                np.minimum(units, np.maximum(amount, 0) // each, out=units)
        if matches is not None:
            units[~matches] = 0
        return units.astype(np.int32)

    def most(self, part: Part) -> NDArray[np.int64]:
        """(M,): units of a part that each node could take if it were empty and up."""
        sizes = (part.row.pod_gpus, part.cpu, part.memory, part.fused)
        units = np.min([have // each for have, each in zip(self._all, sizes, strict=True) if each], axis=0)
        matches = self._matching(part)
        found: NDArray[np.int64] = units if matches is None else np.where(matches, units, 0)
        return found

    def scarcest(self, part: Part) -> NDArray[np.int8]:
        """(M,): what each node has least of for a part's units, an index into SCARCE."""
        sizes = np.array([part.cpu, part.memory, part.fused], np.int64)[:, None]
        units = np.where(sizes > 0, np.maximum(self.free, 0) // np.maximum(sizes, 1), MANY)
        scarce: NDArray[np.int8] = units.argmin(axis=0).astype(np.int8)
        matches = self._matching(part)
        if matches is not None:
            scarce[~matches] = len(SCARCE) - 1
        return scarce

    def shortage(self, node: int, needs: Sequence[int]) -> tuple[int, int, int]:
        """What (cpu, memory, pods) a node lacks for these needs, 0 where it has enough."""
        lacks = [max(0, int(need) - int(have)) for need, have in zip(needs, self.free[:, node], strict=True)]
        return lacks[0], lacks[1], lacks[2]

    def repels(self, node: int, pods_of: Iterable[str]) -> bool:
        """True if a node has a taint that no node has on which the pods run: whether they tolerate it is not known."""
        if self._plain:
            return False
        tolerated = {taint for name in pods_of for taint in self._nodes[self.index[name]].taints}
        tolerations = (GPU_TAINT, *(Toleration(taint.key, "Equal", taint.value, taint.effect) for taint in tolerated))
        return kueue.obstacle(self._nodes[node], {}, tolerations, NodeAffinity()) is not None

    def _matching(self, part: Part) -> BoolArray | None:
        """(M,) nodes whose labels and taints let the pods in; None: all."""
        selector, tolerations = _selector(part), _tolerations(part)
        if self._plain and not selector:
            return None
        key = (tuple(sorted(selector.items())), tolerations)
        if key not in self._matches:
            if len(self._matches) >= KEPT:
                self._matches.pop(next(iter(self._matches)))
            fits = [kueue.obstacle(node, selector, tolerations, NodeAffinity()) is None for node in self._nodes]
            self._matches[key] = np.array(fits, np.bool_)
        return self._matches[key]


def _selector(part: Part) -> Mapping[str, str]:
    return {key: value for member in part.members for key, value in member.node_selector.items()}


def _tolerations(part: Part) -> tuple[Toleration, ...]:
    return (*part.members[-1].tolerations, GPU_TAINT)


# --------------------------------------------------------------------------------------------------------------------
# The running jobs of an engine by name: their pods, what these hold of each node, and those that only test nodes.
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """A job with nodes."""

    job: Job
    bindings: tuple[Binding, ...] = ()  # of a job that this engine placed
    speed: float = 1.0

    @property
    def ours(self) -> bool:
        """True if this engine placed it, so that it can be placed again."""
        return bool(self.bindings)


class Book:
    """Verification pods hold nothing; everything else holds cpu, memory and a place among the pods of its node."""

    def __init__(self, cluster: ClusterSnapshot) -> None:
        self._cluster = cluster
        self._state = {node.name: node.state for node in cluster.nodes}
        self.reserves = Reserves(cluster.nodes)
        self.jobs: dict[str, Held] = {}
        self._on: dict[str, dict[str, None]] = {}  # node -> jobs with pods there, in the order in which they came
        for job in cluster.jobs:
            self.add(Held(job))

    def name(self, number: int) -> str:
        return self._cluster.nodes[number].name

    def number(self, name: str) -> int:
        return self.reserves.index[name]

    def state(self, node: str) -> NodeState:
        return self._state[node]

    def set_state(self, node: str, state: NodeState) -> None:
        self._state[node] = state

    def add(self, held: Held) -> None:
        """A job that runs. One of its id takes the place of the other."""
        self.remove(held.job.id)
        self.jobs[held.job.id] = held
        if not held.job.verification:
            self.reserves.take(held.job)
        for pod in held.job.pods:
            self._on.setdefault(pod.node, {})[held.job.id] = None

    def remove(self, job: str) -> Held | None:
        held = self.jobs.pop(job, None)
        if held is None:
            return None
        if not held.job.verification:
            self.reserves.give_back(held.job)
        for node in held.job.nodes:
            self._on[node].pop(job, None)
        return held

    def on(self, node: str, verification: bool = False) -> list[Held]:
        """The jobs with pods on a node; with `verification`, only those that test it, else only the others."""
        found = (self.jobs[job] for job in self._on.get(node, ()))
        return [held for held in found if held.job.verification == verification]

    def stop_verification(self, node: str) -> list[tuple[str, tuple[Pod, ...]]]:
        """End the pods that test a node. Returns their jobs, and of each its pods there."""
        return [(held.job.id, self.end_pods(held, node)) for held in self.on(node, verification=True)]

    def end_pods(self, held: Held, node: str) -> tuple[Pod, ...]:
        """End the pods of a job on one node, not those on others. Returns them."""
        rest = tuple(pod for pod in held.job.pods if pod.node != node)
        self.remove(held.job.id)
        if rest:
            self.add(replace(held, job=replace(held.job, pods=rest)))
        return tuple(pod for pod in held.job.pods if pod.node == node)

    def snapshot(self) -> ClusterSnapshot:
        """The cluster with the jobs and node states of now."""
        nodes = tuple(
            node if node.state == self._state[node.name] else replace(node, state=self._state[node.name])
            for node in self._cluster.nodes
        )
        jobs = tuple(self.jobs[job].job for job in sorted(self.jobs))
        return replace(self._cluster, nodes=nodes, jobs=jobs)


def names(pods: Iterable[Pod]) -> tuple[str, ...]:
    """Names of the pods that have one."""
    return tuple(pod.name for pod in pods if pod.name)
