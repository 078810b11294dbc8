"""The rack map as text for terminals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nvlenv.cluster.types import IntArray
from nvlenv.envs.render.scene import (
    FREE_GPU,
    PALETTE,
    Colour,
    NodeStates,
    PaintedState,
    class_labels,
    demand,
    gpu_classes,
    job_line,
    key_figures,
    node_states,
    rack_rows,
    waiting_jobs,
)
from nvlenv.simulator.decision import ActionLayout
from nvlenv.simulator.state import Sim

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def draw_ansi(sim: Sim, names: Sequence[str] = ()) -> str:
    """The rack map as text for a terminal with 24-bit colour; readable without colour as well.

    One column per rack, one cell of two letters per node: `A ` full, by the class with most GPUs on it; `a2` two GPUs
    still free; `. ` free; `//` cordoned (`/a` with jobs on it), `xx` failed, `vv` in verification.
    `names` (K,) are those of the job classes.
    """
    names = class_labels(sim, names)
    lines = ["   ".join(f"{name} {value}" for name, value in key_figures(sim)), job_line(sim, names)]
    states, classes = node_states(sim), gpu_classes(sim)
    for racks in rack_rows(sim):
        lines += ["", *_map_lines(sim, racks, states, classes)]
    return "\n".join([*lines, "", *_legend_lines(sim, names), ""])


def _map_lines(sim: Sim, racks: range, states: NodeStates, classes: IntArray) -> list[str]:
    g, layout = sim.cap.shape[1] - 1, ActionLayout(len(sim.racks))
    some = sim.racks[racks.start : racks.stop]
    lines = ["rack    " + " ".join(f"{r % 100:02d}" for r in racks)]
    for k in range(int((some["node1"] - some["node0"]).max())):
        nodes = [n0 + k if n0 + k < n1 else -1 for n0, n1 in zip(some["node0"], some["node1"], strict=True)]
        lines.append(f"node {k:02d} " + " ".join(_cell(states[n], classes[n]) if n >= 0 else "  " for n in nodes))
    lines.append("whole   " + " ".join(f"{sim.cap[r, g]:2d}" for r in racks))
    if sim.racks["reserved"].any():
        lines.append("hero    " + " ".join("**" if sim.racks[r]["reserved"] else "  " for r in racks))
    marks = [("p" if sim.mask[r] else " ") + ("o" if sim.mask[layout.open(r)] else " ") for r in racks]
    return [*lines, "legal   " + " ".join(marks)]


def _cell(state: int, gpus: IntArray) -> str:
    """Two letters for one node, coloured by the class with most GPUs on it."""
    used, free = gpus[gpus >= 0], int(np.count_nonzero(gpus == FREE_GPU))
    k = int(np.bincount(used).argmax()) if used.size else -1
    letter = _letter(k) if used.size else ""
    if state == PaintedState.FAILED:
        text = "xx"
    elif state == PaintedState.VERIFYING:
        text = "vv"
    elif state == PaintedState.CORDONED:
        text = f"/{letter.lower() or '/'}"
    elif used.size:
        text = f"{letter.lower()}{free}" if free else f"{letter} "
    else:
        text = ". "
    return _paint(text, PALETTE[k % len(PALETTE)]) if used.size else text


def _letter(k: int) -> str:
    return LETTERS[k % len(LETTERS)]


def _paint(text: str, colour: Colour) -> str:
    """Text on a background, in black or white, whichever reads better on it."""
    bright = float(np.dot(colour, (0.299, 0.587, 0.114))) > 110
    ink = "0;0;0" if bright else "255;255;255"
    return f"\x1b[38;2;{ink};48;2;{';'.join(map(str, colour))}m{text}\x1b[0m"


def _legend_lines(sim: Sim, names: list[str]) -> list[str]:
    lines = []
    for k, (name, (running, waiting)) in enumerate(zip(names, demand(sim), strict=True)):
        block = _paint(f"{_letter(k)} ", PALETTE[k % len(PALETTE)])
        jobs = int(np.count_nonzero(sim.jobs["klass"][waiting_jobs(sim)] == k))
        lines.append(f"{block} {name:<16} running {running:5d} GPUs   waiting {waiting:5d} GPUs in {jobs} jobs")
    lines.append(". free   a2 two GPUs free   // cordoned   /a cordoned, in use   xx failed   vv verification")
    lines.append("p place, o open   ** reserved for the oldest waiting hero   whole: wholly free nodes")
    return lines
