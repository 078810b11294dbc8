"""A study as people read it: one sentence, one picture, one small table; in the terminal, as Markdown and as HTML.

Also what the pictures of several studies have in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator
from rich.console import Console
from rich.table import Column, Table

from agents.evaluation.figures import OKABE_ITO, save
from agents.evaluation.statistics import bootstrap
from nvlenv.common.files import write_text

PICTURE, MARKDOWN, HTML = "study.png", "study.md", "study.html"
PAGES = Environment(loader=PackageLoader("agents.study", ""), autoescape=True, undefined=StrictUndefined)


@dataclass(frozen=True)
class Study:
    """What a study has found. `rows` are as long as `heads`; the first column names the variant."""

    name: str
    point: str  # what the picture shows, with the measured numbers in it
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    figure: Figure
    setting: str  # what was played: workloads, seed, policies


def write_study(study: Study, folder: Path, command: str) -> Path:
    """Write picture, Markdown and the HTML page into a folder, with the command that did. Returns the page's path."""
    save(study.figure, folder / PICTURE)
    write_text(folder / MARKDOWN, study_markdown(study, command))
    write_text(folder / HTML, study_html(study, command))
    return folder / HTML


def study_markdown(study: Study, command: str) -> str:
    """The page in Markdown; the picture lies beside it."""
    rules = "|".join(["---", *["---:"] * (len(study.heads) - 1)])
    lines = [" | ".join(row) for row in (study.heads, *study.rows)]
    table = "\n".join([f"| {lines[0]} |", f"|{rules}|", *(f"| {line} |" for line in lines[1:])])
    return f"# {study.name}\n\n{study.point}\n\n![]({PICTURE})\n\n{table}\n\n{study.setting}\n\n    {command}\n"


def study_html(study: Study, command: str) -> str:
    """The page in HTML; the picture lies beside it."""
    return PAGES.get_template("study.html").render(study=study, picture=PICTURE, command=command)


def print_study(study: Study, console: Console) -> None:
    """The point and the table in a terminal."""
    table = Table(*(Column(head, justify="right" if k else "left") for k, head in enumerate(study.heads)))
    table.title = study.name
    for row in study.rows:
        table.add_row(*row)
    console.print(table)
    console.print(study.point)


def filled(cells: Mapping[str, str], variants: Mapping[str, Mapping[str, Any]]) -> tuple[tuple[str, ...], ...]:
    """The rows of a table: each variant's name, then the formats of all columns filled with its numbers."""
    return tuple(
        (name, *(cell.format_map(numbers).replace("%", " %") for cell in cells.values()))
        for name, numbers in variants.items()
    )


def panels(
    title: str, size: tuple[float, float], rows: int = 1, columns: int = 2, **options: Any
) -> tuple[Figure, Any]:
    """A figure of this size (inches) under a title at the left, and its axes as `plt.subplots` gives them."""
    figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", **options)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    return figure, axes


def unframed(axis: Axes, title: str) -> None:
    """A title at the left, and no frame above and to the right."""
    axis.set_title(title, loc="left", fontsize=11)
    axis.spines[["top", "right"]].set_visible(False)


def bars_with_intervals(
    axis: Axes, played: Mapping[str, Sequence[Mapping[str, float]]], key: str, title: str, digits: int = 1
) -> None:
    """One horizontal bar per variant: a metric's mean over workloads, a line for its 95 % interval, and as a number."""
    for row, runs in enumerate(played.values()):
        interval = bootstrap([metrics[key] for metrics in runs])
        axis.barh(row, interval.mean, color=OKABE_ITO[row % len(OKABE_ITO)])
        end = interval.mean
        if interval.high < float("inf"):  # of one workload there is no interval
            axis.plot((interval.low, interval.high), (row, row), color="black", linewidth=1)
            end = interval.high
        axis.text(end, row, f" {interval.mean:.{digits}f}", va="center", fontsize=9)
    axis.set_yticks(range(len(played)), list(played))
    axis.invert_yaxis()
    axis.xaxis.set_major_locator(MaxNLocator(4))
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.margins(x=0.2)
    axis.set_xlim(left=0)
    unframed(axis, title)
