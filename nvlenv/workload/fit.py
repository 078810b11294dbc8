"""Sizes that fit a cluster: whole nodes, equal slices, and what the empty cluster can hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from nvlenv.cluster.types import ClusterSpec, FloatArray, IntArray, Mode, Workload
from nvlenv.common.errors import InputError
from nvlenv.workload.mix import JobTraits


def round_to_nodes(gpus: FloatArray, node: int) -> IntArray:
    """Sizes as they are asked for on nodes of `node` GPUs: a power of two inside a node, whole nodes above.

    3 of 4 would leave a GPU that nobody can use, and pods of a multi-node job take whole nodes. A share of a GPU
    becomes one GPU.
    """
    whole = np.maximum(np.ceil(gpus), 1)
    inside = np.minimum(np.exp2(np.ceil(np.log2(whole))), node)
    return np.where(whole <= node, inside, np.ceil(whole / node) * node).astype(np.int32)


def cut_slices(gpus: IntArray, slice_gpus: IntArray, pod: IntArray) -> tuple[IntArray, IntArray]:
    """Cut jobs larger than a slice into the fewest equal slices of whole pods; slice 0 never cuts.

    96 GPUs with slices of at most 64 become 2 slices of 48.

    Returns
    -------
    gpus : (n,) with the pods that were added to make the slices equal.
    slice_gpus : (n,) GPUs of one slice, 0 where the job is not cut.
    """
    count = np.where(slice_gpus > 0, -(-gpus // np.maximum(slice_gpus, 1)), 1)
    size = -(-gpus // (count * pod)) * pod
    return (count * size).astype(np.int32), np.where(count > 1, size, 0).astype(np.int32)


class Capacity:
    """What the nodes that take pods could hold if nothing else ran; cordoned nodes count for nothing."""

    def __init__(self, cluster: ClusterSpec) -> None:
        self.cluster = cluster
        self.node_gpus = np.where(cluster.cordoned, 0, cluster.node_gpus)
        self.gpus = int(self.node_gpus.sum())
        self.node = int(self.node_gpus.max(initial=0))  # GPUs of the largest node
        self._pods: dict[tuple[int, int], IntArray] = {}
        if self.gpus == 0:
            raise InputError("cluster", "cordoned", "no node that takes pods", "at least one")

    def cut(self, classes: Sequence[JobTraits], k: IntArray, gpus: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """(n,) GPUs, GPUs per pod (as the class says, else a whole node) and per slice of jobs of the classes `k`."""
        pods = np.minimum(gpus, np.array([each.gpus_per_pod or self.node for each in classes], np.int32)[k])
        gpus, slices = cut_slices(gpus, np.array([each.slice_gpus for each in classes], np.int32)[k], pods)
        return gpus, pods, slices

    def height(self, traits: JobTraits) -> int:
        """Levels above the rack of a class's promise; raises `InputError` for an unknown level or a single node."""
        if traits.level is None:
            return 0
        height = self.cluster.height_of(traits.level)
        if height < 0:
            self._refuse(traits, "level", repr(traits.level), "the level of the racks or a coarser one")
        return height

    def pods(self, height: int, pod: int) -> IntArray:
        """(D,) pods of `pod` GPUs that each domain of that height could hold."""
        if (height, pod) not in self._pods:
            racks = self.cluster.node_rack
            column = len(self.cluster.levels) - 2 - height
            domains = racks if height == 0 else self.cluster.rack_parents[racks, column]
            self._pods[height, pod] = np.bincount(domains, self.node_gpus // pod).astype(np.int32)
        return self._pods[height, pod]

    def check(self, traits: JobTraits) -> None:
        """Raise `InputError` for a class whose pods or slices this cluster could never hold."""
        pod = traits.gpus_per_pod or self.node
        if pod > self.node:
            self._refuse(traits, "gpus_per_pod", pod, f"at most {self.node}, the GPUs of the largest node")
        height = self.height(traits)
        if traits.slice_gpus % pod:
            self._refuse(traits, "slice_gpus", traits.slice_gpus, f"a multiple of the pods of {pod} GPUs")
        domain = int(self.pods(height, pod).max()) * pod
        if traits.slice_gpus > domain:
            self._refuse(traits, "slice_gpus", traits.slice_gpus, f"at most {domain}, what the largest domain can hold")

    def check_size(self, traits: JobTraits, asked: int, gpus: int, pod: int, slice_gpus: int) -> None:
        """Raise `InputError` for a size, `asked` for and cut to `gpus`, that is not whole pods or could never run."""
        if asked % pod:
            self._refuse(traits, "sizes", f"{asked} GPUs", f"a multiple of the pods of {pod} GPUs")
        required = traits.placement is Mode.REQUIRED
        if self._holds(required, self.height(traits), pod, slice_gpus or gpus) < gpus:
            where = "one domain" if required and not traits.slice_gpus else "the cluster"
            self._refuse(
                traits, "sizes", f"{gpus} GPUs", f"at most {self.largest(traits)}, what {where} could ever hold"
            )

    def check_workload(self, jobs: Workload, where: str) -> None:
        """Raise `InputError` for the first job that could never run here."""
        shapes = np.stack([jobs.mode, jobs.height, jobs.gpus_per_pod, jobs.slice_gpus, jobs.gpus])
        distinct, first = np.unique(shapes, axis=1, return_index=True)
        for (mode, height, pod, slice_gpus, gpus), job in zip(distinct.T.tolist(), first.tolist(), strict=True):
            if height > len(self.cluster.levels) - 2:
                raise InputError(where, f"job {job}, height", height, f"at most {len(self.cluster.levels) - 2}")
            if pod > self.node:
                expected = f"at most {self.node}, the GPUs of the largest node"
                raise InputError(where, f"job {job}, gpus_per_pod", pod, expected)
            if self._holds(mode == Mode.REQUIRED, height, pod, slice_gpus or gpus) < gpus:
                raise InputError(where, f"job {job}, gpus", gpus, "what the empty cluster could hold in this shape")

    def _holds(self, required: bool, height: int, pod: int, piece: int) -> int:
        """GPUs up to which jobs fit of which every piece is in one domain of that height, if that is required."""
        pods = self.pods(height, pod)
        return int((pods // (piece // pod)).sum()) * piece if required else int(pods.sum()) * pod

    def largest(self, traits: JobTraits) -> int:
        """GPUs up to which every job of this class, cut or not, could run."""
        pod = traits.gpus_per_pod or self.node
        required, height = traits.placement is Mode.REQUIRED, self.height(traits)
        if required and not traits.slice_gpus:
            return int(self.pods(height, pod).max()) * pod
        return self._holds(required, height, pod, traits.slice_gpus)

    def _refuse(self, traits: JobTraits, field: str, found: object, expected: str) -> NoReturn:
        raise InputError("workload", f"{traits.name}.{field}", found, expected)
