"""Pictures of a simulator as it is now: the rack map as text for terminals and as pixels.

Both show every rack as a column of its nodes. A class of jobs has one colour in both, and in text one letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nvlenv.pixels import (
    GLYPH_ADVANCE,
    GLYPH_HEIGHT,
    GREY,
    INK,
    PALETTE,
    PANEL,
    WHITE,
    Canvas,
    Colour,
    blank,
    hatch,
    rectangle,
    text_width,
    write,
)
from nvlenv.types import ActionLayout, IntArray, Mode, NodeEventKind

if TYPE_CHECKING:
    from nvlenv.simulator.state import Sim

RACKS_PER_ROW = 36  # more racks are drawn in several rows of equal length
FREE_GPU, NO_GPU = -1, -2  # as in `Sim.gpu_job`
StateArray = NDArray[np.int8]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class NodeState(IntEnum):
    """What a picture says of a node besides its jobs."""

    UP = 0
    CORDONED = 1  # takes no new pods; jobs may still run on it
    FAILED = 2
    VERIFYING = 3  # a verification pod runs on it


# --- What is to be seen -----------------------------------------------------------------------------------------------


def node_states(sim: Sim) -> StateArray:
    """(M,) `NodeState` of every node."""
    past = sim.events[: sim.clock[0]["next_event"]]
    failures = np.zeros(len(sim.nodes), np.int64)
    np.add.at(failures, past["node"][past["kind"] == NodeEventKind.FAIL], 1)
    np.subtract.at(failures, past["node"][past["kind"] == NodeEventKind.REPAIR], 1)
    states = np.where(sim.nodes["blocked"] > 0, NodeState.CORDONED, NodeState.UP).astype(np.int8)
    states[failures > 0] = NodeState.FAILED
    states[sim.nodes["verify"] == 1] = NodeState.VERIFYING
    return states


def gpu_classes(sim: Sim) -> IntArray:
    """(M, G) class of the job on every GPU; -1: free, -2: there is no such GPU."""
    on = sim.gpu_job.reshape(len(sim.nodes), -1)
    return np.where(on >= 0, sim.jobs["klass"][np.maximum(on, 0)], on).astype(np.int32)


def _rack_rows(sim: Sim) -> list[range]:
    """The racks of each row of the picture; padding is left out."""
    racks = int(np.count_nonzero(sim.racks["node1"] > sim.racks["node0"]))
    rows = -(-racks // RACKS_PER_ROW)
    return [range(racks * k // rows, racks * (k + 1) // rows) for k in range(rows)]


def _waiting(sim: Sim) -> IntArray:
    """Waiting jobs in queue order."""
    return np.asarray(sim.waiting[: sim.clock[0]["n_waiting"]], np.int32)


def _class_names(sim: Sim, names: Sequence[str]) -> list[str]:
    return [names[k] if k < len(names) else f"class {k}" for k in range(len(sim.classes))]


def _headline(sim: Sim) -> list[tuple[str, str]]:
    """Name and value of the four numbers that matter most."""
    c, g = sim.clock[0], sim.cap.shape[1] - 1
    slots = int((sim.cap[: len(sim.racks), g] // c["slice_nodes"]).sum())
    waiting = _waiting(sim)
    return [
        ("hour", f"{c['now']:.1f}"),
        ("free GPUs", f"{sim.cap[-1, 1]} / {c['capacity']}"),
        (f"slots of {c['slice_nodes']}", f"{slots}"),
        ("waiting jobs", f"{len(waiting)}"),
    ]


def _job_line(sim: Sim, names: list[str]) -> str:
    """The job at hand in words."""
    c = sim.clock[0]
    if c["current"] < 0:
        return "no job at hand"
    job, layout = sim.jobs[c["current"]], ActionLayout(len(sim.racks))
    slices = f" in {job['units']} slices ({c['units_left']} left)" if job["units"] > 1 else ""
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


# --- Text -------------------------------------------------------------------------------------------------------------


def draw_ansi(sim: Sim, names: Sequence[str] = ()) -> str:
    """The rack map as text for a terminal with 24-bit colour; readable without colour as well.

    One column per rack, one cell of two letters per node: `A ` full, by the class with most GPUs on it; `a2` two GPUs
    still free; `. ` free; `//` cordoned (`/a` with jobs on it), `xx` failed, `vv` in verification.
    `names` (K,) are those of the job classes.
    """
    names = _class_names(sim, names)
    lines = ["   ".join(f"{name} {value}" for name, value in _headline(sim)), _job_line(sim, names)]
    states, classes = node_states(sim), gpu_classes(sim)
    for racks in _rack_rows(sim):
        lines += ["", *_map_lines(sim, racks, states, classes)]
    return "\n".join([*lines, "", *_legend_lines(sim, names), ""])


def _map_lines(sim: Sim, racks: range, states: StateArray, classes: IntArray) -> list[str]:
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
    if state == NodeState.FAILED:
        text = "xx"
    elif state == NodeState.VERIFYING:
        text = "vv"
    elif state == NodeState.CORDONED:
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
    for k, (name, (running, waiting)) in enumerate(zip(names, _demand(sim), strict=True)):
        block = _paint(f"{_letter(k)} ", PALETTE[k % len(PALETTE)])
        jobs = int(np.count_nonzero(sim.jobs["klass"][_waiting(sim)] == k))
        lines.append(f"{block} {name:<16} running {running:5d} GPUs   waiting {waiting:5d} GPUs in {jobs} jobs")
    lines.append(". free   a2 two GPUs free   // cordoned   /a cordoned, in use   xx failed   vv verification")
    lines.append("p place, o open   ** reserved for the oldest waiting hero   whole: wholly free nodes")
    return lines


def _demand(sim: Sim) -> list[tuple[int, int]]:
    """Running and waiting GPUs of each class."""
    classes = gpu_classes(sim)
    return [(int(np.count_nonzero(classes == k)), int(klass["waiting_gpus"])) for k, klass in enumerate(sim.classes)]


# --- Pixels -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sizes:
    """Measures of the picture in pixels, all from the size of a GPU."""

    gpu: int
    gpus: int  # of the largest node
    nodes: int  # of the largest rack
    columns: int  # racks of the longest row
    rows: int  # of racks
    classes: int
    label: int  # letters of the longest class name

    @property
    def zoom(self) -> int:
        return max(1, self.gpu // 3)

    @property
    def line(self) -> int:
        """From one line of text to the next."""
        return (GLYPH_HEIGHT + 4) * self.zoom

    @property
    def margin(self) -> int:
        return 2 * self.gpu

    @property
    def rack(self) -> tuple[int, int]:
        """Height and width of a rack with its frame."""
        return self.nodes * self.gpu + 3, self.gpus * self.gpu + 3

    @property
    def pitch(self) -> tuple[int, int]:
        """From one rack to the next: down, and to the right."""
        return self.rack[0] + self.line + 3 * self.gpu, self.rack[1] + self.gpu

    @property
    def top(self) -> int:
        """Where the racks begin, below the head line."""
        return self.margin + 3 * self.line

    @property
    def queue(self) -> int:
        """Where the queue begins, below the racks."""
        return self.top + self.rows * self.pitch[0] + self.gpu

    @property
    def shape(self) -> tuple[int, int]:
        racks = self.columns * self.pitch[1] - self.gpu
        words = (self.label + 50) * GLYPH_ADVANCE * self.zoom
        return self.queue + (self.classes + 3) * self.line + self.margin, max(racks, words) + 2 * self.margin


def draw_rgb(sim: Sim, scale: int = 6, names: Sequence[str] = ()) -> Canvas:
    """The rack map and the queue as a picture.

    Racks are columns of nodes, nodes rows of GPUs: coloured by class, white if free, hatched if no pod may go there,
    dark if failed, dotted if in verification. The bar under a rack shows its wholly free nodes, and is dark if a
    standard slice fits; racks reserved for the oldest waiting hero have a dark frame. Below stands the queue by class,
    one block per job, the whole length for a demand of the whole cluster; the job at hand is dark underlined.

    Parameters
    ----------
    scale : pixels of one GPU, at least 3.
    names : (K,) of the job classes.

    Returns
    -------
    (H, W, 3) uint8. The size depends on the cluster and the class names alone.
    """
    rows, names = _rack_rows(sim), _class_names(sim, names)
    nodes = int((sim.racks["node1"] - sim.racks["node0"]).max())
    longest = max(len(name) for name in names)
    sizes = _Sizes(max(3, scale), sim.cap.shape[1] - 1, nodes, len(rows[-1]), len(rows), len(names), longest)
    canvas = blank(*sizes.shape)
    _draw_head(canvas, sizes, sim)
    states, classes = node_states(sim), gpu_classes(sim)
    for k, racks in enumerate(rows):
        for at, r in enumerate(racks):
            corner = (sizes.top + k * sizes.pitch[0], sizes.margin + at * sizes.pitch[1])
            _draw_rack(canvas, sizes, corner, sim, r, states, classes)
    _draw_queue(canvas, sizes, sim, names)
    _draw_legend(canvas, sizes)
    return canvas


def _draw_head(canvas: Canvas, sizes: _Sizes, sim: Sim) -> None:
    """Four numbers in a row, each under its name."""
    x = sizes.margin
    for name, value in _headline(sim):
        write(canvas, sizes.margin, x, name, sizes.zoom, GREY)
        write(canvas, sizes.margin + sizes.line, x, value, sizes.zoom + 1)
        x += max(text_width(name, sizes.zoom), text_width(value, sizes.zoom + 1)) + 3 * sizes.line


def _draw_rack(
    canvas: Canvas, sizes: _Sizes, corner: tuple[int, int], sim: Sim, r: int, states: StateArray, classes: IntArray
) -> None:
    (y, x), (height, width), rack = corner, sizes.rack, sim.racks[r]
    number = str(r)
    write(canvas, y, x + (width - text_width(number, sizes.zoom)) // 2, number, sizes.zoom, GREY)
    y += sizes.line - 2 * sizes.zoom
    nodes = rack["node1"] - rack["node0"]
    inside = nodes * sizes.gpu + 3
    if rack["reserved"]:
        rectangle(canvas, y - 2, x - 2, inside + 4, width + 4, INK)
    rectangle(canvas, y, x, inside, width, PANEL)
    for k, n in enumerate(range(rack["node0"], rack["node1"])):
        _draw_node(canvas, sizes, y + 2 + k * sizes.gpu, x + 2, states[n], classes[n])
    whole, bar = sim.cap[r, -1], max(2, sizes.gpu // 2)
    rectangle(canvas, y + height + sizes.gpu, x, bar, width, PANEL)
    full = INK if whole >= sim.clock[0]["slice_nodes"] else GREY
    rectangle(canvas, y + height + sizes.gpu, x, bar, width * whole // nodes, full)


def _draw_node(canvas: Canvas, sizes: _Sizes, y: int, x: int, state: int, gpus: IntArray) -> None:
    size, dot = sizes.gpu - 1, max(1, sizes.gpu // 3)
    for k, klass in enumerate(gpus[gpus > NO_GPU]):
        left = x + k * sizes.gpu
        colour = PALETTE[klass % len(PALETTE)] if klass >= 0 else WHITE
        rectangle(canvas, y, left, size, size, INK if state == NodeState.FAILED else colour)
        if state == NodeState.VERIFYING:
            middle = (size - dot) // 2
            rectangle(canvas, y + middle, left + middle, dot, dot, INK)
        elif state == NodeState.CORDONED:
            hatch(canvas, y, left, size, size, GREY if klass < 0 else INK, max(3, sizes.gpu // 2))


def _draw_queue(canvas: Canvas, sizes: _Sizes, sim: Sim, names: list[str]) -> None:
    """One line per class: colour and name, running and waiting GPUs, and a block for each waiting job."""
    letter, half = GLYPH_ADVANCE * sizes.zoom, sizes.line // 2
    runs = sizes.margin + (sizes.label + 3) * letter
    waits, blocks = runs + 8 * letter, runs + 16 * letter
    for x, heading in ((runs, "running"), (waits, "waiting"), (blocks, "queue")):
        write(canvas, sizes.queue, x, heading, sizes.zoom, GREY)
    room = canvas.shape[1] - sizes.margin - blocks
    for k, (name, (running, waiting)) in enumerate(zip(names, _demand(sim), strict=True)):
        y = sizes.queue + (k + 1) * sizes.line
        rectangle(canvas, y, sizes.margin, half, half, PALETTE[k % len(PALETTE)])
        write(canvas, y, sizes.margin + 2 * letter, name, sizes.zoom)
        write(canvas, y, runs, f"{running:7d}", sizes.zoom)
        write(canvas, y, waits, f"{waiting:7d}", sizes.zoom)
        x = blocks
        for j in _waiting(sim)[sim.jobs["klass"][_waiting(sim)] == k]:
            width = max(3, int(room * sim.jobs[j]["gpus"] / sim.clock[0]["capacity"]))
            if x + width > blocks + room - 2 * letter:
                write(canvas, y, blocks + room - letter, "+", sizes.zoom)
                break
            rectangle(canvas, y, x, half, width - 1, PALETTE[k % len(PALETTE)])
            if j == sim.clock[0]["current"]:
                rectangle(canvas, y + half + 1, x, sizes.zoom, width - 1, INK)
            x += width


def _draw_legend(canvas: Canvas, sizes: _Sizes) -> None:
    y, x = sizes.queue + (sizes.classes + 2) * sizes.line, sizes.margin
    free, states = np.full(1, FREE_GPU, np.int32), NodeState
    for name, state in (("free", states.UP), ("cordoned", states.CORDONED), ("failed", states.FAILED), ("verifying", states.VERIFYING)):
        rectangle(canvas, y - 1, x - 1, sizes.gpu + 1, sizes.gpu + 1, PANEL)
        _draw_node(canvas, sizes, y, x, state, free)
        write(canvas, y, x + 2 * sizes.gpu, name, sizes.zoom, GREY)
        x += text_width(name, sizes.zoom) + 5 * sizes.gpu
