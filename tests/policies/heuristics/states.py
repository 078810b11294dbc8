"""Simulators in a state that a test describes, and what a policy makes of the job at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nvlenv.cluster.types import Mode
from nvlenv.simulator.decision import ActionLayout, Decision, Policy
from nvlenv.simulator.events import run
from nvlenv.simulator.load import Rules, load
from nvlenv.simulator.occupancy import occupy
from nvlenv.simulator.state import Dims, Sim, allocate, view
from nvlenv.simulator.step import advance, apply
from tests.simulator.cases import CLASSES, make_cluster, make_workload

HORIZON = 1000.0  # h
REQUIRED, PREFERRED, UNCONSTRAINED = Mode.REQUIRED, Mode.PREFERRED, Mode.UNCONSTRAINED


def occupied(
    free: Sequence[Sequence[int]],
    jobs: Sequence[dict[str, Any]],
    node_gpus: int = 4,
    blocks: Sequence[int] | None = None,
    fillers: dict[str, Any] | None = None,
    decide: bool = True,
    **rules: Any,
) -> Sim:
    """A cluster with so many free GPUs on the nodes of each rack, and `jobs` submitted to it at hour 0.

    What is not free is taken by fillers, one per node, that run to the end unless `fillers` says otherwise. `blocks`:
    the block of each rack; default: none. The first job is up for a decision, or, without `decide`, yet to arrive.
    """
    taken = [node_gpus - gpus for rack in free for gpus in rack]
    filler = {"duration": HORIZON, "estimate": HORIZON, **(fillers or {})}
    placed = [{**filler, "gpus": gpus, "gpus_per_pod": gpus} for gpus in taken if gpus > 0]
    workload = make_workload([*placed, *jobs])
    parents = None if blocks is None else [[block] for block in blocks]
    cluster = make_cluster([[node_gpus] * len(rack) for rack in free], parents)
    sim: Sim = view.py_func(allocate(1, Dims.of(cluster, len(workload), 1, CLASSES)), 0)
    load(sim, cluster, workload, Rules(horizon=HORIZON, **rules), (1.0,) * CLASSES)
    for filler_job, node in enumerate(np.flatnonzero(taken)):
        occupy(sim, filler_job, node, taken[node])
        run(sim, filler_job)
    sim.clock["next_job"] = len(placed)
    if decide:
        advance(sim)
    return sim


def whole(*free_nodes: int, size: int | None = None) -> list[list[int]]:
    """Racks with so many wholly free nodes, for `occupied`; all racks have `size` nodes, by default the most."""
    size = size or max(free_nodes)
    return [[4] * n + [0] * (size - n) for n in free_nodes]


def gang(nodes: int, mode: Mode = REQUIRED, slice_nodes: int = 0, **more: Any) -> dict[str, Any]:
    """A job of whole nodes of four GPUs."""
    return {"gpus": 4 * nodes, "gpus_per_pod": 4, "mode": mode, "slice_gpus": 4 * slice_nodes, **more}


def place_one(sim: Sim, policy: Policy) -> dict[int, int]:
    """Let the policy place the job at hand. Returns its GPUs by rack; empty: it was held."""
    j, layout = int(sim.clock[0]["current"]), ActionLayout(len(sim.racks))
    while apply(sim, policy(Decision(sim, sim.mask, layout))):
        pass
    return gpus_by_rack(sim, j)


def place_all(sim: Sim, policy: Policy, jobs: int) -> list[dict[int, int]]:
    """`place_one` for so many jobs, which must be up one after another."""
    placed = [place_one(sim, policy)]
    while len(placed) < jobs:
        advance(sim)
        placed.append(place_one(sim, policy))
    return placed


def gpus_by_rack(sim: Sim, j: int) -> dict[int, int]:
    g = sim.cap.shape[1] - 1
    racks = sim.nodes["rack"][np.flatnonzero(sim.gpu_job == j) // g]
    return {int(rack): int(np.sum(racks == rack)) for rack in np.unique(racks)}


def nodes_by_rack(sim: Sim, policy: Policy) -> dict[int, int]:
    """As `place_one`, in whole nodes of four GPUs."""
    return {rack: gpus // 4 for rack, gpus in place_one(sim, policy).items()}
