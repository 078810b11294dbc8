"""What of each node's cpu, memory and number of pods is left, and which nodes a pod may use at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from nvlenv.engine.shapes import Part
from nvlenv.engine.snapshot import UNLIMITED, Job, Node
from nvlenv.policies.kueue import nodes as kueue
from nvlenv.policies.kueue.types import Node as KueueNode
from nvlenv.policies.kueue.types import NodeAffinity, Toleration
from nvlenv.types import BoolArray, IntArray

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
