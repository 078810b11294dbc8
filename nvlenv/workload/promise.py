"""What racks are counted on to hold, and who asks for more.

Vendors of NVL72 racks promise 16 of the 18 nodes, so that one or two may fail or be serviced. A job that needs all 18
in one rack can start on a good day only: it waits for repairs that nobody owes it.
"""

from __future__ import annotations

import numpy as np

from nvlenv.types import ClusterSpec, Mode
from nvlenv.workload.mix import JobClass
from nvlenv.workload.shape import Room
from nvlenv.workload.synthetic import build_mix

PROMISED = {18: 16}  # nodes of a full rack -> nodes that are promised of it
NAMED = 4  # racks that a warning names


def promise_warnings(classes: tuple[JobClass, ...], cluster: ClusterSpec) -> list[str]:
    """One line for every class with required jobs, or slices, of more nodes than a rack promises."""
    promised = PROMISED.get(int(np.bincount(cluster.node_rack).max()))
    if promised is None:
        return []
    room = Room(cluster)
    mix = build_mix(classes, room)
    piece = np.where(mix.slice_gpus > 0, mix.slice_gpus, mix.gpus)
    lines = []
    for k, job_class in enumerate(classes):
        if job_class.placement is not Mode.REQUIRED or room.height(job_class) > 0:
            continue
        cells = np.flatnonzero(mix.job_class == k)
        widest = cells[np.argmax(piece[cells])]
        nodes = -(-int(piece[widest]) // room.node)
        if nodes > promised:
            pod = int(mix.gpus_per_pod[widest])
            lines.append(_line(job_class.name, nodes, promised, cluster, room.pods(0, pod) * pod >= piece[widest]))
    return lines


def _line(name: str, nodes: int, promised: int, cluster: ClusterSpec, wide: np.ndarray) -> str:
    racks = [cluster.rack_names[r] for r in np.flatnonzero(wide)]
    shown = ", ".join(racks[:NAMED]) + (f" and {len(racks) - NAMED} more" if len(racks) > NAMED else "")
    return (
        f"jobs of class {name!r} ask for {nodes} nodes in one rack, but racks promise {promised}: "
        f"{len(racks)} of {cluster.racks} racks have so many when all their nodes are well ({shown})"
    )
