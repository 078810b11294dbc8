"""The figures: readable in print and by colour-blind readers, each with one message, drawn from results alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agents.evaluation.episodes import BOUND
from agents.evaluation.statistics import RUNNING_MEAN, Json
from agents.evaluation.tables import candidates, short_name
from nvlenv.common.files import written_whole

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
CLASS_COLOURS = {
    "inference": "#56B4E9", "evaluation": "#CC79A7", "post-training": "#009E73", "pre-training": "#E69F00",
    "hero": "#D55E00", "single-node": "#CC79A7", "debug": "#F0E442", "spot": "#0072B2",
}  # fmt: skip
FREE = "#EDF0F3"
DASHES = ("-", "--", "-.", ":")
MARKERS = "osD^vP*X"
HATCHES = ("", "//", "xx", "..", "\\\\", "++", "oo", "--")
STYLE: dict[Any, Any] = {
    "font.size": 9.5, "axes.titlesize": 11, "axes.titleweight": "bold", "figure.dpi": 100, "savefig.dpi": 150,
}  # fmt: skip


def style(k: int) -> dict[str, Any]:
    """Colour and dash of the k-th policy: distinct even without colour."""
    return {"color": OKABE_ITO[k % len(OKABE_ITO)], "linestyle": DASHES[k // 2 % len(DASHES)]}


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG, whole or not at all."""
    with written_whole(path) as part, part.open("wb") as file:
        save_into(figure, file)
    return path


def save_into(figure: Figure, file: IO[bytes], kind: str = "png") -> None:
    """Write a figure as PNG or SVG; equal figures give equal bytes."""
    with mpl.rc_context({"svg.hashsalt": "nvlenv", "savefig.dpi": 150}):
        figure.savefig(file, format=kind, bbox_inches="tight", metadata={"Date" if kind == "svg" else "Software": None})
    plt.close(figure)


def _axes(title: str, x: str, y: str, width: float = 8.0, height: float = 4.2) -> tuple[Figure, Axes]:
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(width, height))
        axes.set_title(title, loc="left", pad=10)
        axes.set(xlabel=x, ylabel=y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _bars(
    axes: Axes, values: np.ndarray, room: float, row: int, names: Sequence[str], order: Sequence[str], **rest: Any
) -> None:
    """The bars (n,) of policy `row` of `names`, beside those of the others; together they are `room` wide."""
    k, width = order.index(names[row]), room / len(names)
    at = np.arange(len(values)) + (row - (len(names) - 1) / 2) * width
    axes.bar(
        at, values, width, color=OKABE_ITO[k % 8], hatch=HATCHES[k % 8], edgecolor="white", linewidth=0.5,
        label=short_name(names[row]), **rest,
    )  # fmt: skip


def decay_curve(results: Json, order: Sequence[str]) -> Figure:
    """Free 16-node slots over time since an empty cluster: how fast each policy loses them, and keeps how many."""
    figure, axes = _axes("How a cluster fragments since it was empty", "hours", "free 16-node slots")
    for name in candidates(results["summary"]):
        k, curve = order.index(name), results["decay"][name]
        hours, mean, band = (np.array(curve[key]) for key in ("hours", "mean", "band"))
        axes.plot(hours, mean, label=short_name(name), linewidth=1.8, **style(k))
        axes.fill_between(hours, mean - band, mean + band, color=style(k)["color"], alpha=0.15, linewidth=0)
    axes.set(xlim=(0, None), ylim=(0, None))
    axes.legend(frameon=False)
    workloads = len(next(iter(results["workloads"].values()))["cost"])
    note = f"mean over {workloads} workloads, running mean of {RUNNING_MEAN} samples; band: 95 % of the mean"
    figure.text(0.01, -0.03, note, fontsize=8)
    return figure


def frontier(results: Json, order: Sequence[str]) -> Figure:
    """Hero wait against the wait of all other jobs: down and left is better."""
    names = candidates(results["summary"])
    labels = "mean wait of other jobs (h)", "mean wait of heroes (h)"
    figure, axes = _axes("What heroes gain and others pay", *labels, 6.8, 4.6 + 0.28 * len(names))
    figure.set_layout_engine("constrained")  # the legend is part of the picture wherever it is shown
    for name in names:
        k, row = order.index(name), results["summary"]["policies"][name]["intervals"]
        x, y = row["other_wait"], row["hero_wait"]
        if x["mean"] is None or y["mean"] is None:
            continue
        bars: dict[str, Any] = {
            side: [[i["mean"] - i["low"]], [i["high"] - i["mean"]]]
            for side, i in (("xerr", x), ("yerr", y))
            if i["low"] is not None
        }
        axes.errorbar(
            x["mean"], y["mean"], **bars, fmt=MARKERS[k % 8], color=OKABE_ITO[k % 8], markersize=8, elinewidth=0.9,
            alpha=0.9, label=short_name(name), zorder=3,
        )  # fmt: skip
    axes.set(xlim=(0, None), ylim=(0, None))
    if axes.get_legend_handles_labels()[0]:  # below, because long names would lie on points and axis
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.45, -0.13))
    axes.annotate("better", (0.02, 0.03), xycoords="axes fraction", fontsize=9, color="#555555", style="italic")
    return figure


def cost_terms(results: Json, order: Sequence[str]) -> Figure:
    """What each policy's cost is made of, with the pool without topology as a line."""
    names, policies = candidates(results["summary"]), results["summary"]["policies"]
    height = max(3.0, 1.3 + 0.55 * len(names))
    figure, axes = _axes("Cost per GPU-hour of the cluster, by term", "cost", "", height=height)
    left = np.zeros(len(names))
    for k, term in enumerate(("waiting", "slowdown", "lost")):
        values = np.array([policies[name]["mean"][term] for name in names])
        axes.barh(
            range(len(names)), values, left=left, color=OKABE_ITO[k], label=term, hatch=HATCHES[k], edgecolor="white",
            linewidth=0.6, height=0.7,
        )  # fmt: skip
        left += values
    for row, total in enumerate(left):
        axes.text(total, row, f" {total:.3f}", va="center")
    bound = results["summary"]["references"][BOUND]["cost"]
    axes.axvline(bound, color="black", linestyle=":", linewidth=1.2, label="pool without topology")
    axes.set_xlim(0, 1.1 * float(left.max()) or 1.0)  # all zero if no job ever waited
    axes.set_yticks(range(len(names)), [short_name(name) for name in names])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.legend(frameon=False, loc="upper right")
    return figure


def waits_by_class(results: Json, order: Sequence[str]) -> Figure:
    """Mean wait of each job class under each policy (logarithmic)."""
    names, policies = candidates(results["summary"]), results["summary"]["policies"]
    mean = policies[names[0]]["mean"]
    keys = [k for k in mean if k.startswith("wait_") and not k.endswith(("_p50", "_p95")) and mean[k] is not None]
    rank = {f"wait_{name}": k for k, name in enumerate(CLASS_COLOURS)}
    keys.sort(key=lambda key: rank.get(key, -1))
    figure, axes = _axes("Mean wait by class", "", "hours")
    least = 1 / 60
    for row, name in enumerate(names):
        means = np.array([max(policies[name]["mean"].get(key) or 0.0, least) for key in keys])
        _bars(axes, means, 0.84, row, names, order, bottom=0)
    axes.set_xticks(range(len(keys)), [key.removeprefix("wait_") for key in keys])
    axes.set_yscale("log")
    axes.set_ylim(bottom=least)
    axes.set_yticks([1 / 60, 1 / 6, 1, 6, 24, 72], ["1 min", "10 min", "1 h", "6 h", "1 d", "3 d"])
    axes.minorticks_off()
    axes.grid(axis="x", visible=False)
    axes.legend(frameon=False)
    return figure


def gap_by_set(sets: Mapping[str, Json], order: Sequence[str]) -> Figure:
    """The share of the gap between the reference and the pool without topology that each policy closes, by set."""
    labels = [label for label, each in sets.items() if gaps(each)]
    reference = next(iter(sets.values()))["summary"]["reference"]
    title = f"Share of the gap closed between {short_name(reference)} (0) and the pool without topology (1)"
    figure, axes = _axes(title, "", "share of the gap", max(6.0, 2.0 + 1.1 * len(labels)))
    names = [name for name in order if any(name in gaps(sets[label]) for label in labels)]
    for row, name in enumerate(names):
        shares = [gaps(sets[label]).get(name, {}) for label in labels]
        low, mean, high = (np.array([s.get(key) for s in shares], np.float64) for key in ("low", "mean", "high"))
        error = np.nan_to_num(np.maximum([mean - low, high - mean], 0.0))  # none where an interval has no end
        _bars(axes, mean, 0.8, row, names, order, yerr=error, error_kw={"elinewidth": 0.9})
    axes.axhline(0, color="black", linewidth=0.8)
    axes.axhline(1, color="black", linewidth=1.2, linestyle=":")
    axes.set_ylim(max(axes.get_ylim()[0], -1.0), min(axes.get_ylim()[1], 2.0))
    turned: dict[str, Any] = {"rotation": 30, "ha": "right"} if len(labels) > 4 else {}
    axes.set_xticks(range(len(labels)), labels, **turned)
    axes.grid(axis="x", visible=False)
    if names:
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def rack_map(episode: Json, recordings: Mapping[str, Json]) -> Figure:
    """Every GPU over time by the class of its job, one panel per policy: racks fill, fray and empty again."""
    gpus, hours = sum(episode["racks"]) * episode["width"], int(episode["hours"])
    with mpl.rc_context(STYLE):
        figure, panels = plt.subplots(1, len(recordings), figsize=(11.0, 5.2), sharey=True, squeeze=False)
    colours = [FREE, *class_colours(episode["classes"])]
    for axes, (name, recording) in zip(panels[0], recordings.items(), strict=True):
        picture, runs = np.zeros((gpus, hours + 1), np.uint8), recording["runs"]
        for job, start, end, spans in zip(runs["job"], runs["start"], runs["end"], runs["gpus"], strict=True):
            for first, count in zip(spans[::2], spans[1::2], strict=True):
                when = slice(int(np.ceil(start)), int(np.ceil(end)))
                picture[first : first + count, when] = episode["jobs"]["class"][job] + 1
        colormap = mpl.colors.ListedColormap(colours)
        axes.imshow(
            picture, cmap=colormap, vmin=-0.5, vmax=len(colours) - 0.5, aspect="auto", interpolation="nearest",
            extent=(0, hours + 1, gpus, 0),
        )  # fmt: skip
        edges = np.cumsum([0, *episode["racks"]]) * episode["width"]
        axes.hlines(edges[1:-1], 0, hours + 1, color="white", linewidth=1.2)
        axes.set_yticks((edges[:-1] + edges[1:]) / 2, [str(rack) for rack in range(len(edges) - 1)], fontsize=7)
        axes.set_title(short_name(name), loc="left")
        axes.set_xlabel("hours")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
    panels[0][0].set_ylabel("rack")
    marks = [mpl.patches.Patch(color=colour) for colour in colours]
    figure.legend(marks, ["free", *episode["classes"]], ncols=len(colours), loc="lower center", frameon=False,
                  bbox_to_anchor=(0.5, -0.05))  # fmt: skip
    figure.tight_layout()
    return figure


def class_colours(names: Sequence[str]) -> list[str]:
    """A colour for each job class, the same one in every figure and in the replay."""
    spare = ("#6A5ACD", "#8B5A2B", "#999999", "#000000")
    return [CLASS_COLOURS.get(name) or spare[k % len(spare)] for k, name in enumerate(names)]


def gaps(each: Json) -> dict[str, Json]:
    """Policy -> interval of the share that it closes of the gap between the reference and the pool, if there is one."""
    summary, rows = each["summary"], each["summary"]["policies"]
    names = [name for name in candidates(summary) if name != summary["reference"]]
    return {name: rows[name]["gap_closed_interval"] for name in names if rows[name]["gap_closed"] is not None}


ONE_SET: dict[str, Callable[[Json, Sequence[str]], Figure]] = {
    "decay": decay_curve, "frontier": frontier, "cost_terms": cost_terms, "waits_by_class": waits_by_class,
}  # fmt: skip


def draw_set(results: Json, order: Sequence[str], folder: Path) -> list[Path]:
    """Every figure of one set of workloads, into a folder. `order` gives each policy its colour."""
    return [save(draw(results, order), folder / f"{name}.png") for name, draw in ONE_SET.items()]


def draw_results(results: Json, folder: Path) -> list[Path]:
    """Every figure of results.json: those of the first set, of the others in folders of their own, and of all sets."""
    order, sets = results["names"], {label: results["sets"][label] for label in results["labels"]}
    pictures = []
    for k, (label, each) in enumerate(sets.items()):
        pictures += draw_set(each, order, folder / label.replace(" ", "-") if k else folder)
    if any(gaps(each) for each in sets.values()):
        pictures.append(save(gap_by_set(sets, order), folder / "gap_closed.png"))
    return pictures
