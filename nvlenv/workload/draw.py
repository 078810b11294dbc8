"""One episode's jobs, drawn or replayed from a public trace, and which classes ask for more than racks promise."""

from __future__ import annotations

import numpy as np

from nvlenv.cluster.hardware import NODES_PER_RACK, SLICE_NODES
from nvlenv.cluster.types import ClusterSpec, Mode, Workload
from nvlenv.workload.fit import Capacity
from nvlenv.workload.formats.registry import cached_trace
from nvlenv.workload.generate import build_mix, generate
from nvlenv.workload.mapping import mapping_rules, to_workload
from nvlenv.workload.mix import JobClass, SyntheticWorkload, TraceWorkload


def draw_workload(
    config: SyntheticWorkload | TraceWorkload,
    cluster: ClusterSpec,
    seed: int | np.random.SeedSequence | np.random.Generator,
) -> Workload:
    """The jobs of one episode; the same seed gives the same jobs. A trace file is read once per process.

    Raises `InputError` for a trace that cannot be read and for jobs that the cluster could never run.
    """
    rng = np.random.default_rng(seed)
    if isinstance(config, SyntheticWorkload):
        return generate(config, cluster, rng)
    return to_workload(cached_trace(config.path, config.format), config, cluster, rng)


def check_config(config: SyntheticWorkload | TraceWorkload, cluster: ClusterSpec) -> None:
    """Raise `InputError` for what `draw_workload` would refuse, without drawing (a trace is read)."""
    if isinstance(config, SyntheticWorkload):
        build_mix(config.classes, Capacity(cluster))
    else:
        to_workload(cached_trace(config.path, config.format), config, cluster, np.random.default_rng(0))


def class_weights(config: SyntheticWorkload | TraceWorkload, cluster: ClusterSpec) -> dict[str, float]:
    """Cost of one waiting GPU-hour by class name, in the order of the workload's `class_names`."""
    classes = config.classes if isinstance(config, SyntheticWorkload) else mapping_rules(config, cluster)
    return {traits.name: traits.weight for traits in classes}


# Vendors of NVL72 racks promise 16 of the 18 nodes, so that one or two may fail or be serviced. A job that needs all 18
# in one rack can start on a good day only: it waits for repairs that nobody owes it.
PROMISED = {NODES_PER_RACK: SLICE_NODES}  # nodes of a full rack -> nodes that are promised of it
NAMED = 4  # racks that a warning names


def promise_warnings(classes: tuple[JobClass, ...], cluster: ClusterSpec) -> list[str]:
    """One line for every class with required jobs, or slices, of more nodes than a rack promises."""
    promised = PROMISED.get(int(np.bincount(cluster.node_rack).max()))
    if promised is None:
        return []
    room = Capacity(cluster)
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
