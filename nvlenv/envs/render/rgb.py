"""The rack map as an array of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nvlenv.cluster.types import IntArray
from nvlenv.envs.render.pixels import (
    GLYPH_ADVANCE,
    GLYPH_HEIGHT,
    GREY,
    INK,
    PALETTE,
    PANEL,
    WHITE,
    Canvas,
    blank,
    hatch,
    rectangle,
    text_width,
    write,
)
from nvlenv.envs.render.scene import (
    FREE_GPU,
    NO_GPU,
    NodeState,
    StateArray,
    class_labels,
    demand,
    gpu_classes,
    headline,
    node_states,
    rack_rows,
    waiting_jobs,
)

if TYPE_CHECKING:
    from nvlenv.simulator.state import Sim

UP, CORDONED, FAILED, VERIFYING = NodeState


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
        words = max(self.label + 50, 72) * GLYPH_ADVANCE * self.zoom
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
    rows, names = rack_rows(sim), class_labels(sim, names)
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
    for name, value in headline(sim):
        write(canvas, sizes.margin, x, name, sizes.zoom, GREY)
        write(canvas, sizes.margin + sizes.line, x, value, sizes.zoom + 1)
        x += max(text_width(name, sizes.zoom), text_width(value, sizes.zoom + 1)) + 2 * sizes.line


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
    failed, cordoned, verifying = state == FAILED, state == CORDONED, state == VERIFYING
    for k, klass in enumerate(gpus[gpus != NO_GPU].tolist()):
        left = x + k * sizes.gpu
        colour = PALETTE[klass % len(PALETTE)] if klass >= 0 else WHITE
        rectangle(canvas, y, left, size, size, INK if failed else colour)
        if verifying:
            middle = (size - dot) // 2
            rectangle(canvas, y + middle, left + middle, dot, dot, INK)
        elif cordoned:
            hatch(canvas, y, left, size, size, GREY if klass < 0 else INK, max(3, sizes.gpu // 2))


def _draw_queue(canvas: Canvas, sizes: _Sizes, sim: Sim, names: list[str]) -> None:
    """One line per class: colour and name, running and waiting GPUs, and a block for each waiting job."""
    letter, half = GLYPH_ADVANCE * sizes.zoom, sizes.line // 2
    runs = sizes.margin + (sizes.label + 3) * letter
    waits, blocks = runs + 8 * letter, runs + 17 * letter
    for x, heading in ((runs, "running"), (waits, "waiting"), (blocks, "queue")):
        write(canvas, sizes.queue, x, heading, sizes.zoom, GREY)
    waiting_of = sim.jobs["klass"][waiting_jobs(sim)]
    for k, (name, (running, waiting)) in enumerate(zip(names, demand(sim), strict=True)):
        y = sizes.queue + (k + 1) * sizes.line
        rectangle(canvas, y, sizes.margin, half, half, PALETTE[k % len(PALETTE)])
        write(canvas, y, sizes.margin + 2 * letter, name, sizes.zoom)
        write(canvas, y, runs, f"{running:7d}", sizes.zoom)
        write(canvas, y, waits, f"{waiting:7d}", sizes.zoom)
        _draw_blocks(canvas, sizes, y, blocks, sim, waiting_jobs(sim)[waiting_of == k])


def _draw_blocks(canvas: Canvas, sizes: _Sizes, y: int, left: int, sim: Sim, jobs: IntArray) -> None:
    """Waiting jobs of one class side by side; a plus stands for those that find no room."""
    c, half, end = sim.clock[0], sizes.line // 2, canvas.shape[1] - sizes.margin
    x, last = left, end - 2 * GLYPH_ADVANCE * sizes.zoom
    for j in jobs:
        width = max(3, int((end - left) * sim.jobs[j]["gpus"] / c["capacity"]))
        if x + width > last:
            write(canvas, y, last + GLYPH_ADVANCE * sizes.zoom, "+", sizes.zoom)
            return
        rectangle(canvas, y, x, half, width - 1, PALETTE[sim.jobs[j]["klass"] % len(PALETTE)])
        if j == c["current"]:
            rectangle(canvas, y + half + 1, x, sizes.zoom, width - 1, INK)
        x += width


def _draw_legend(canvas: Canvas, sizes: _Sizes) -> None:
    """One GPU in every state, and the marks of a rack."""
    y, x, size = sizes.queue + (sizes.classes + 2) * sizes.line, sizes.margin, sizes.gpu
    for state, name in {UP: "free", CORDONED: "cordoned", FAILED: "failed", VERIFYING: "verifying"}.items():
        rectangle(canvas, y - 1, x - 1, size + 1, size + 1, PANEL)
        _draw_node(canvas, sizes, y, x, state, np.full(1, FREE_GPU, np.int32))
        x = _name_mark(canvas, sizes, y, x, name)
    rectangle(canvas, y + size // 4, x, max(2, size // 2), size, INK)
    x = _name_mark(canvas, sizes, y, x, "slot free")
    rectangle(canvas, y - 1, x - 1, size + 2, size + 2, INK)
    rectangle(canvas, y + 1, x + 1, size - 2, size - 2, WHITE)
    _name_mark(canvas, sizes, y, x, "kept for the hero")


def _name_mark(canvas: Canvas, sizes: _Sizes, y: int, x: int, name: str) -> int:
    """Write what the mark at x means. Returns where the next one goes."""
    x += 2 * sizes.gpu
    write(canvas, y, x, name, sizes.zoom, GREY)
    return x + text_width(name, sizes.zoom) + 2 * sizes.gpu
