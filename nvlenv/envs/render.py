"""Pictures of a simulator as it is now, as text and as pixels; in both, a class of jobs has the same colour."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

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


UP, CORDONED, FAILED, VERIFYING = PaintedState


def node_states(sim: Sim) -> NodeStates:
    """(M,) `PaintedState` of every node."""
    states = np.where(sim.nodes["blocked"] > 0, CORDONED, UP).astype(np.int8)
    states[sim.nodes["failed"] > 0], states[sim.nodes["verify"] == 1] = FAILED, VERIFYING
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
    c = sim.clock[0]
    return [
        ("hour", f"{c['now']:.1f}"),
        ("free GPUs", f"{sim.cap[-1, 1]} / {c['capacity']}"),
        (f"slots of {c['slice_nodes']}", f"{(sim.cap[: len(sim.racks), -1] // c['slice_nodes']).sum()}"),
        ("waiting jobs", f"{c['n_waiting']}"),
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
    up = (f"{letter.lower()}{free}" if free else f"{letter} ") if used.size else ". "
    marks: dict[int, str] = {FAILED: "xx", VERIFYING: "vv", CORDONED: f"/{letter.lower() or '/'}"}
    text = marks.get(state, up)
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


WHITE, PAPER, PANEL, GREY, INK = (255, 255, 255), (246, 246, 244), (218, 218, 214), (138, 138, 136), (40, 40, 44)


class _Sizes:
    """Measures of the picture in pixels, all from the size of a GPU."""

    def __init__(self, gpu: int, gpus: int, nodes: int, rows: list[range], names: list[str]) -> None:
        self.gpu, self.names = gpu, names
        self.margin = 2 * gpu
        self.text = max(8, 2 * gpu)  # height of the letters
        self.line = self.text + gpu  # from one line of text to the next
        self.label = max(_width(name, self.text) for name in names)  # width of the longest class name
        self.rack = nodes * gpu + 3, gpus * gpu + 3  # height and width of the largest rack with its frame
        self.pitch = self.rack[0] + self.line + 3 * gpu, self.rack[1] + gpu  # from rack to rack: down, and to the right
        self.top = self.margin + 3 * self.line  # where the racks begin, below the head line
        self.queue = self.top + len(rows) * self.pitch[0] + gpu  # where the queue begins, below the racks
        width = max(len(rows[-1]) * self.pitch[1] - gpu, self.label + 26 * self.text, 38 * self.text)
        self.shape = self.queue + (len(names) + 3) * self.line + self.margin, width + 2 * self.margin


class _Canvas:
    """Paper on which rectangles and words are drawn; what lies beyond its edges is cut off.

    Rectangles are slices of an array, since there are thousands; Pillow sets the words when all else is drawn.
    """

    def __init__(self, sizes: _Sizes) -> None:
        height, self.width = sizes.shape
        self.sizes, self._words = sizes, list[tuple[float, float, str, Colour, int, str]]()
        self._pixels = np.full((height, self.width, 3), PAPER, np.uint8)

    def rectangle(self, y: int, x: int, height: int, width: int, colour: Colour) -> None:
        """Fill a rectangle."""
        self._pixels[y : y + height, x : x + width] = colour

    def hatch(self, y: int, x: int, size: int, colour: Colour) -> None:
        """Diagonal lines over a square."""
        self._pixels[y : y + size, x : x + size][_diagonals(size, max(3, self.sizes.gpu // 2))] = colour

    def write(self, y: int, x: float, words: str, colour: Colour = INK, size: int = 0, align: str = "l") -> None:
        """Words whose capitals begin at y and whose left ("l"), middle ("m") or right end ("r") is at x."""
        self._words.append((y, x, words, colour, size or self.sizes.text, align))

    def picture(self) -> NDArray[np.uint8]:
        """(H, W, 3) of all that was drawn."""
        image = Image.fromarray(self._pixels)
        pen = ImageDraw.Draw(image)
        for y, x, words, colour, size, align in self._words:
            pen.text((x, y + 0.75 * size), words, fill=colour, font=_font(size), anchor=f"{align}s")  # on the baseline
        return np.array(image)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _width(words: str, size: int) -> int:
    return int(np.ceil(_font(size).getlength(words)))


@cache
def _diagonals(size: int, gap: int) -> NDArray[np.bool_]:
    """(size, size) True on lines that are `gap` pixels apart."""
    rows, columns = np.indices((size, size))
    return np.asarray((rows + columns) % gap < max(1, gap // 4))


def draw_rgb(sim: Sim, scale: int = 6, names: Sequence[str] = ()) -> NDArray[np.uint8]:
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
    rows, labels = rack_rows(sim), class_labels(sim, names)
    nodes = int((sim.racks["node1"] - sim.racks["node0"]).max())
    sizes = _Sizes(max(3, scale), sim.cap.shape[1] - 1, nodes, rows, labels)
    canvas = _Canvas(sizes)
    _draw_head(canvas, sim)
    states, classes = node_states(sim), gpu_classes(sim)
    for k, racks in enumerate(rows):
        for at, r in enumerate(racks):
            corner = (sizes.top + k * sizes.pitch[0], sizes.margin + at * sizes.pitch[1])
            _draw_rack(canvas, corner, sim, r, states, classes)
    _draw_queue(canvas, sim)
    _draw_legend(canvas)
    return canvas.picture()


def _draw_head(canvas: _Canvas, sim: Sim) -> None:
    """Four numbers in a row, each under its name."""
    sizes = canvas.sizes
    x, large = sizes.margin, sizes.text * 3 // 2
    for name, value in key_figures(sim):
        canvas.write(sizes.margin, x, name, GREY)
        canvas.write(sizes.margin + sizes.line, x, value, size=large)
        x += max(_width(name, sizes.text), _width(value, large)) + 2 * sizes.line


def _draw_rack(
    canvas: _Canvas, corner: tuple[int, int], sim: Sim, r: int, states: NodeStates, classes: IntArray
) -> None:
    sizes, (y, x), rack = canvas.sizes, corner, sim.racks[r]
    height, width = sizes.rack
    canvas.write(y, x + width / 2, str(r), GREY, align="m")
    y += sizes.line - sizes.gpu // 2
    nodes = rack["node1"] - rack["node0"]
    inside = nodes * sizes.gpu + 3
    if rack["reserved"]:
        canvas.rectangle(y - 2, x - 2, inside + 4, width + 4, INK)
    canvas.rectangle(y, x, inside, width, PANEL)
    for k, n in enumerate(range(rack["node0"], rack["node1"])):
        _draw_node(canvas, y + 2 + k * sizes.gpu, x + 2, int(states[n]), classes[n])
    whole, bar = sim.cap[r, -1], max(2, sizes.gpu // 2)
    canvas.rectangle(y + height + sizes.gpu, x, bar, width, PANEL)
    full = INK if whole >= sim.clock[0]["slice_nodes"] else GREY
    canvas.rectangle(y + height + sizes.gpu, x, bar, width * whole // nodes, full)


def _draw_node(canvas: _Canvas, y: int, x: int, state: int, gpus: IntArray) -> None:
    gpu = canvas.sizes.gpu
    size, dot = gpu - 1, max(1, gpu // 3)
    failed, cordoned, verifying = (state == one for one in (FAILED, CORDONED, VERIFYING))
    for k, klass in enumerate(gpus[gpus != NO_GPU].tolist()):
        left = x + k * gpu
        colour = PALETTE[klass % len(PALETTE)] if klass >= 0 else WHITE
        canvas.rectangle(y, left, size, size, INK if failed else colour)
        if verifying:
            middle = (size - dot) // 2
            canvas.rectangle(y + middle, left + middle, dot, dot, INK)
        elif cordoned:
            canvas.hatch(y, left, size, GREY if klass < 0 else INK)


def _draw_queue(canvas: _Canvas, sim: Sim) -> None:
    """One line per class: colour and name, running and waiting GPUs, and a block for each waiting job."""
    sizes, half = canvas.sizes, canvas.sizes.line // 2
    runs = sizes.margin + sizes.line + sizes.label + 5 * sizes.text
    waits = runs + 5 * sizes.text
    blocks = waits + 2 * sizes.text
    for x, heading, align in ((runs, "running", "r"), (waits, "waiting", "r"), (blocks, "queue", "l")):
        canvas.write(sizes.queue, x, heading, GREY, align=align)
    waiting_of = sim.jobs["klass"][waiting_jobs(sim)]
    for k, (name, (running, waiting)) in enumerate(zip(sizes.names, demand(sim), strict=True)):
        y = sizes.queue + (k + 1) * sizes.line
        canvas.rectangle(y, sizes.margin, half, half, PALETTE[k % len(PALETTE)])
        canvas.write(y, sizes.margin + sizes.line, name)
        canvas.write(y, runs, str(running), align="r")
        canvas.write(y, waits, str(waiting), align="r")
        _draw_blocks(canvas, y, blocks, sim, waiting_jobs(sim)[waiting_of == k])


def _draw_blocks(canvas: _Canvas, y: int, left: int, sim: Sim, jobs: IntArray) -> None:
    """Waiting jobs of one class side by side; a plus stands for those that find no room."""
    sizes, c = canvas.sizes, sim.clock[0]
    half, end = sizes.line // 2, canvas.width - sizes.margin
    x, last = left, end - sizes.text
    for j in jobs:
        width = max(3, int((end - left) * sim.jobs[j]["gpus"] / c["capacity"]))
        if x + width > last:
            canvas.write(y, last + sizes.gpu, "+")
            return
        canvas.rectangle(y, x, half, width - 1, PALETTE[sim.jobs[j]["klass"] % len(PALETTE)])
        if j == c["current"]:
            canvas.rectangle(y + half + 1, x, max(1, sizes.gpu // 3), width - 1, INK)
        x += width


def _draw_legend(canvas: _Canvas) -> None:
    """One GPU in every state, and the marks of a rack."""
    sizes, size = canvas.sizes, canvas.sizes.gpu
    y, x = sizes.queue + (len(sizes.names) + 2) * sizes.line, sizes.margin
    for state, name in {UP: "free", CORDONED: "cordoned", FAILED: "failed", VERIFYING: "verifying"}.items():
        canvas.rectangle(y - 1, x - 1, size + 1, size + 1, PANEL)
        _draw_node(canvas, y, x, state, np.full(1, FREE_GPU, np.int32))
        x = _name_mark(canvas, y, x, name)
    canvas.rectangle(y + size // 4, x, max(2, size // 2), size, INK)
    x = _name_mark(canvas, y, x, "slot free")
    canvas.rectangle(y - 1, x - 1, size + 2, size + 2, INK)
    canvas.rectangle(y + 1, x + 1, size - 2, size - 2, WHITE)
    _name_mark(canvas, y, x, "kept for the hero")


def _name_mark(canvas: _Canvas, y: int, x: int, name: str) -> int:
    """Write what the mark at x means. Returns where the next one goes."""
    x += 2 * canvas.sizes.gpu
    canvas.write(y - 1, x, name, GREY)
    return x + _width(name, canvas.sizes.text) + 3 * canvas.sizes.gpu
