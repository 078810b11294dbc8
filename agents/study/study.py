"""What the studies share: what they are told and what they find, episodes played in parts, and the page.

A study is read as one sentence, one picture and one small table; in the terminal, as Markdown and as HTML.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator
from rich.console import Console
from rich.table import Column, Table

from agents.evaluation.figures import OKABE_ITO, save
from agents.evaluation.statistics import bootstrap, mean_known
from nvlenv.common.commandline import option
from nvlenv.common.errors import InputError
from nvlenv.common.files import write_text
from nvlenv.envs.scenario import Episode, Scenario, load_scenario, prepare
from nvlenv.simulator.decision import ActionLayout, Decision, Policy
from nvlenv.simulator.state import RUNNING, Sim, copy_into
from nvlenv.simulator.step import advance, step

PICTURE = "study.png"
PAGES = Environment(loader=PackageLoader("agents.study", ""), autoescape=select_autoescape(), undefined=StrictUndefined)


@dataclass(frozen=True)
class StudySettings:
    """What the command line says to a study."""

    episodes: int = option("workloads", default=16, least=1)
    seed: int = option("of the workloads", default=0, least=0)
    policy: str = option("a learned policy to play as well, in hero-blocked", default="", metavar="FILE")
    overrides: tuple[str, ...] = option(
        "settings of the scenario, such as workload.load=0.5",
        default=(),
        flags=("--set",),
        nargs="*",
        metavar="KEY=VALUE",
    )

    @property
    def workloads(self) -> str:
        """What is played, in words."""
        return f"{self.episodes} workloads (seed {self.seed})"

    def scenario(self, name: str, *changes: str) -> Scenario:
        """The study's scenario with the user's overrides, and then the study's own."""
        return load_scenario(name, [*self.overrides, *changes])

    def seeds(self) -> list[np.random.SeedSequence]:
        """One for each workload."""
        return np.random.SeedSequence(self.seed).spawn(self.episodes)


@dataclass(frozen=True)
class Study:
    """What a study has found. `rows` are as long as `heads`; the first column names the variant."""

    name: str
    point: str  # what the picture shows, with the measured numbers in it
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    figure: Figure
    setting: str  # what was played: workloads, seed, policies


def play_until(sim: Sim, policy: Policy, stop: Callable[[Sim], bool]) -> bool:
    """Play on from where the simulator stands until `stop` holds at a decision. False: the window ended before."""
    layout = ActionLayout(len(sim.racks))
    alive = int(sim.clock[0]["current"]) >= 0 or bool(advance(sim))
    while alive and not stop(sim):
        alive = bool(step(sim, policy(Decision(sim, sim.mask, layout))))
    return alive


def branch(sim: Sim, scenario: Scenario, episode: Episode) -> Sim:
    """Another simulator in the same state."""
    twin = prepare(scenario, episode)
    copy_into(twin, sim)
    return twin


def with_one_hero(scenario: Scenario, seed: np.random.SeedSequence, hour: float) -> tuple[Episode, int]:
    """An episode with its first hero submitted at `hour` and no other. Returns it and the hero's number."""
    episode = scenario.draw(seed)
    jobs = episode.workload
    heroes = np.flatnonzero(jobs.gpus >= scenario.hero_share * scenario.cluster_spec().gpus)
    if len(heroes) == 0:
        raise InputError(jobs.source, "jobs", "no hero", "a workload with one; give it more hours or another seed")
    submit = jobs.submit.copy()
    submit[heroes[0]] = hour
    kept = np.setdiff1d(np.arange(len(jobs)), heroes[1:])
    order = kept[np.argsort(submit[kept], kind="stable")]
    moved = replace(episode, workload=replace(jobs, submit=submit).select(order))
    return moved, int(np.flatnonzero(order == heroes[0])[0])


def at(hour: float) -> Callable[[Sim], bool]:
    """Stop at the first decision from this hour on."""
    return lambda sim: bool(sim.clock[0]["now"] >= hour)


def running(job: int) -> Callable[[Sim], bool]:
    """Stop when this job runs."""
    return lambda sim: bool(sim.jobs[job]["status"] == RUNNING)


def means(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each metric's mean over the workloads that have it."""
    return {key: mean_known([metrics[key] for metrics in runs]) for key in runs[0]}


def study_page(study: Study, kind: str, command: str) -> str:
    """The page as "md" or "html", with the command that made it; the picture lies beside it."""
    return PAGES.get_template(f"study.{kind}").render(study=study, picture=PICTURE, command=command)


def write_study(study: Study, folder: Path, command: str) -> Path:
    """Write picture, Markdown and the HTML page into a folder. Returns the page's path."""
    save(study.figure, folder / PICTURE)
    for kind in ("md", "html"):
        write_text(folder / f"study.{kind}", study_page(study, kind, command))
    return folder / "study.html"


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
