"""The figures: readable in print and by colour-blind readers, each a PNG with one message."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agents.episodes import Played, series_column
from agents.statistics import mean_known
from nvlenv.files import written_whole

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
DASHES = ("-", "--", "-.", ":")


def style(k: int) -> dict[str, Any]:
    """Colour and dash of the k-th policy: distinct even without colour."""
    return {"color": OKABE_ITO[k % len(OKABE_ITO)], "linestyle": DASHES[k // 2 % len(DASHES)]}


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG, whole or not at all."""
    with written_whole(path) as part:
        figure.savefig(part, format="png", dpi=150, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)
    return path


def _axes(title: str, x: str, y: str, width: float = 8.0, height: float = 4.2) -> tuple[Figure, Axes]:
    figure, axes = plt.subplots(figsize=(width, height))
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)
    return figure, axes


def short(name: str) -> str:
    from agents.evaluate import short_name

    return short_name(name)


def decay_curve(played: Sequence[Played], names: Sequence[str], path: Path) -> Path:
    """Free 16-node slots over time since an empty cluster: how fast each policy loses them, and keeps how many."""
    figure, axes = _axes(
        "How a cluster fragments: free 16-node slots since it was empty", "hours", "free 16-node slots"
    )
    column = series_column("slots_16")
    for k, name in enumerate(names):
        length = min(len(p.series[name]) for p in played)
        runs = np.array([p.series[name][:length, column] for p in played])
        smooth = np.ones(min(12, length)) / min(12, length)
        runs = np.array([np.convolve(np.pad(run, (len(smooth) - 1, 0), "edge"), smooth, "valid") for run in runs])
        hours = played[0].series[name][:length, 0]
        mean, error = runs.mean(axis=0), runs.std(axis=0) / np.sqrt(len(runs))
        axes.plot(hours, mean, label=short(name), linewidth=1.8, **style(k))
        axes.fill_between(
            hours, mean - 1.96 * error, mean + 1.96 * error, color=style(k)["color"], alpha=0.15, linewidth=0
        )
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.legend(frameon=False, fontsize=9)
    figure.text(0.01, -0.02, f"mean of {len(played)} workloads, 12 h running mean; band: 95 % of the mean", fontsize=8)
    return save(figure, path)


def frontier(played: Sequence[Played], names: Sequence[str], path: Path) -> Path:
    """Hero wait against the wait of all other jobs: down and left is better."""
    figure, axes = _axes(
        "What heroes gain and others pay", "mean wait of other jobs (h)", "mean wait of heroes (h)", 6.4
    )
    for k, name in enumerate(names):
        x = mean_known([p.metrics[name]["other_wait"] for p in played])
        y = mean_known([p.metrics[name]["hero_wait"] for p in played])
        axes.scatter([x], [y], s=60, color=style(k)["color"], marker="osD^vP*X"[k % 8], zorder=3)
        axes.annotate(short(name), (x, y), xytext=(7, 4), textcoords="offset points", fontsize=9)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.margins(x=0.25)
    return save(figure, path)


def cost_terms(played: Sequence[Played], names: Sequence[str], path: Path) -> Path:
    """What each policy's cost is made of, with the pooled bound as a line."""
    order = sorted(names, key=lambda name: float(np.mean([p.metrics[name]["cost"] for p in played])))
    figure, axes = _axes("Cost per GPU-hour of the cluster, by term", "cost", "", 8.0, 0.9 + 0.42 * len(names))
    left = np.zeros(len(order))
    for k, term in enumerate(("waiting", "slowdown", "lost")):
        values = np.array([np.mean([p.metrics[name][term] for p in played]) for name in order])
        axes.barh(range(len(order)), values, left=left, color=OKABE_ITO[k], label=term, hatch=("", "//", "xx")[k])
        left += values
    for row, total in enumerate(left):
        axes.text(total, row, f" {total:.3f}", va="center", fontsize=9)
    bound = float(np.mean([p.metrics["pooled"]["cost"] for p in played]))
    axes.axvline(bound, color="black", linestyle=":", linewidth=1.2, label="pooled bound")
    axes.set_yticks(range(len(order)), [short(name) for name in order])
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.06, 1.0))
    return save(figure, path)


def waits_by_class(played: Sequence[Played], names: Sequence[str], path: Path) -> Path:
    """Mean wait of each job class under each policy (logarithmic)."""
    keys = [k for k in played[0].metrics[names[0]] if k.startswith("wait_") and not k.endswith(("_p50", "_p95"))]
    figure, axes = _axes("Mean wait by class", "", "hours", 8.0)
    width = 0.8 / len(names)
    for k, name in enumerate(names):
        means = [mean_known([p.metrics[name].get(key, np.nan) for p in played]) for key in keys]
        at = np.arange(len(keys)) + (k - (len(names) - 1) / 2) * width
        axes.bar(at, np.maximum(means, 1e-3), width, color=OKABE_ITO[k % 8], label=short(name), edgecolor="white")
    axes.set_xticks(range(len(keys)), [key.removeprefix("wait_") for key in keys])
    axes.set_yscale("log")
    axes.legend(frameon=False, fontsize=9)
    return save(figure, path)


def draw_all(played: Sequence[Played], names: Sequence[str], folder: Path) -> list[Path]:
    """Every figure of a comparison, into a folder."""
    figures = {
        "decay.png": decay_curve,
        "frontier.png": frontier,
        "cost_terms.png": cost_terms,
        "waits_by_class.png": waits_by_class,
    }
    return [draw(played, names, folder / name) for name, draw in figures.items()]
