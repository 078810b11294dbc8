"""How fragmented a live cluster is: the metrics of `nvlenv.cluster.fragmentation` of a snapshot, and in words."""

from __future__ import annotations

import math

import numpy as np

from nvlenv.cluster.fragmentation import Fragmentation, fragmentation
from nvlenv.engine.model.snapshot import ClusterSnapshot, NodeState


def snapshot_fragmentation(
    snapshot: ClusterSnapshot,
    now: float | None = None,
    slice_nodes: int = 16,
    hero_slices: int = 8,
    pod_cpu: int = 0,
    pod_memory: int = 0,
) -> Fragmentation:
    """Every metric of a snapshot. `now`: s since 1970, for `hero_start`; None: only what is free now counts for it.

    pod_cpu, pod_memory: milli-cores and bytes of the pods that ask, as in `ClusterSnapshot.unreachable`.

    Failed and cordoned nodes and nodes out of cpu, memory or pods are blocked. A job without start or estimate is taken
    to run for ever, one that outlives its estimate to end at any moment.
    """
    spec = snapshot.cluster_spec()
    free = np.array(list(snapshot.free_gpus().values()), np.int64)
    lost = np.array(list(snapshot.unreachable_gpus(pod_cpu, pod_memory).values()), np.int64)
    down = np.array([node.state != NodeState.UP for node in snapshot.nodes])
    blocked = down | (lost > 0)
    release = None if now is None else _release_hours(snapshot, now)
    return fragmentation(free, spec.node_gpus, spec.node_rack, blocked, release, slice_nodes, hero_slices)


def _release_hours(snapshot: ClusterSnapshot, now: float) -> np.ndarray:
    """(N,) h until each node is wholly free; 0: it is."""
    hours = dict.fromkeys((node.name for node in snapshot.nodes), 0.0)
    for job in snapshot.jobs:
        if job.verification:
            continue
        known = job.start is not None and job.estimate is not None
        left = max(0.0, job.estimate - (now - job.start) / 3600) if known else math.inf  # type: ignore[operator]
        for name in job.nodes:
            hours[name] = max(hours[name], left)
    return np.array(list(hours.values()))


def in_words(found: Fragmentation, slice_nodes: int = 16) -> tuple[str, ...]:
    """The metrics as a platform engineer would say them, one sentence each."""
    slots = ", ".join(f"{count} of {size} nodes" for size, count in found.free_slots.items() if size > 1)
    start = "now" if found.hero_start == 0 else f"in {found.hero_start:.1f} h"
    return (
        f"{found.free_gpus} GPUs are free; {found.unreachable_gpus} more are idle, but no pod can reach them.",
        f"Slices that could start now, each size on its own: {slots}.",
        f"{found.whole_racks} racks are empty, ready for a hero's slice or for maintenance.",
        f"The largest job with all its traffic on NVLink that could start now has {found.largest_slice} nodes.",
        f"In slices of {slice_nodes} nodes, the largest job that could start now has {found.largest_job} nodes.",
        f"{100 * found.index:.0f} % of the slices that the free nodes would hold side by side do not fit their racks.",
        "A hero would wait for shape alone: enough GPUs are free, but too few of its slices fit."
        if found.hero_stalled
        else "Shape alone keeps no hero waiting.",
        "By the estimates of what runs, no end in sight lets a hero start."
        if math.isinf(found.hero_start)
        else f"By the estimates of what runs, a hero could start {start}.",
    )
