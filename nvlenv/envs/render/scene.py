"""What the pictures show: the state of every node, the class on every GPU, the queue, and the numbers above them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from nvlenv.cluster.types import IntArray, Mode
from nvlenv.simulator.decision import ActionLayout
from nvlenv.simulator.state import Sim

RACKS_PER_ROW = 36  # more racks are drawn in several rows of about equal length
FREE_GPU, NO_GPU = -1, -2  # as in `Sim.gpu_job`
NodeStates = NDArray[np.int8]  # (M,) PaintedState
Colour = tuple[int, int, int]

# Okabe and Ito's colours, which people with any kind of colour vision tell apart (jfly.uni-koeln.de/color, 2008).
PALETTE: tuple[Colour, ...] = (
    (86, 180, 233),  # sky blue
    (240, 228, 66),  # yellow
    (0, 158, 115),  # bluish green
    (0, 114, 178),  # blue
    (213, 94, 0),  # vermillion
    (204, 121, 167),  # reddish purple
    (230, 159, 0),  # orange
)


class PaintedState(IntEnum):
    """What a picture says of a node besides its jobs."""

    UP = 0
    CORDONED = 1  # takes no new pods; jobs may still run on it
    FAILED = 2
    VERIFYING = 3  # a verification pod runs on it


def node_states(sim: Sim) -> NodeStates:
    """(M,) `PaintedState` of every node."""
    states = np.where(sim.nodes["blocked"] > 0, PaintedState.CORDONED, PaintedState.UP).astype(np.int8)
    states[sim.nodes["failed"] > 0] = PaintedState.FAILED
    states[sim.nodes["verify"] == 1] = PaintedState.VERIFYING
    return states


def gpu_classes(sim: Sim) -> IntArray:
    """(M, G) class of the job on every GPU; -1: free, -2: there is no such GPU."""
    on = sim.gpu_job.reshape(len(sim.nodes), -1)
    return np.where(on >= 0, sim.jobs["klass"][np.maximum(on, 0)], on).astype(np.int32)


def rack_rows(sim: Sim) -> list[range]:
    """The racks of each row of the picture; padding is left out."""
    racks = int(np.count_nonzero(sim.racks["node1"] > sim.racks["node0"]))
    rows = -(-racks // RACKS_PER_ROW)
    return [range(racks * k // rows, racks * (k + 1) // rows) for k in range(rows)]


def waiting_jobs(sim: Sim) -> IntArray:
    """Waiting jobs in queue order."""
    return np.asarray(sim.waiting[: sim.clock[0]["n_waiting"]], np.int32)


def class_labels(sim: Sim, names: Sequence[str]) -> list[str]:
    """A name for each of the K classes; numbers where `names` has none."""
    return [names[k] if k < len(names) else f"class {k}" for k in range(len(sim.classes))]


def key_figures(sim: Sim) -> list[tuple[str, str]]:
    """Name and value of the four numbers that matter most."""
    c, g = sim.clock[0], sim.cap.shape[1] - 1
    slots = int((sim.cap[: len(sim.racks), g] // c["slice_nodes"]).sum())
    waiting = waiting_jobs(sim)
    return [
        ("hour", f"{c['now']:.1f}"),
        ("free GPUs", f"{sim.cap[-1, 1]} / {c['capacity']}"),
        (f"slots of {c['slice_nodes']}", f"{slots}"),
        ("waiting jobs", f"{len(waiting)}"),
    ]


def job_line(sim: Sim, names: list[str]) -> str:
    """The job at hand in words."""
    c = sim.clock[0]
    if c["current"] < 0:
        return "no job at hand"
    job, layout = sim.jobs[c["current"]], ActionLayout(len(sim.racks))
    slices = f" in {job['slices']} slices ({c['slices_left']} left)" if job["slices"] > 1 else ""
    waited = job["waited"] + c["now"] - job["queued"]
    legal = {
        f"place on {sim.mask[: layout.racks].sum()} racks": sim.mask[: layout.racks].any(),
        f"open {sim.mask[layout.racks : layout.fill].sum()}": sim.mask[layout.racks : layout.fill].any(),
        "fill": sim.mask[layout.fill],
        "hold": sim.mask[layout.hold],
    }
    return (
        f"job {c['current']}, {names[job['klass']]}: {job['gpus']} GPUs{slices}, {Mode(job['mode']).name.lower()}, "
        f"waited {waited:.1f} h; legal: {', '.join(what for what, can in legal.items() if can)}"
    )


def demand(sim: Sim) -> list[tuple[int, int]]:
    """Running and waiting GPUs of each class."""
    classes = gpu_classes(sim)
    return [(int(np.count_nonzero(classes == k)), int(klass["waiting_gpus"])) for k, klass in enumerate(sim.classes)]
