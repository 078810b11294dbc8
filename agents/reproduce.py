"""Make every table and picture of the README from nothing.

    python -m agents.reproduce            run what is missing, then rewrite README.md and the pages in docs/
    python -m agents.reproduce --check    the same, but say what differs instead of writing (pictures are left alone)

What is made is listed in configs/reproduce.yaml. Steps that are done are not run again: evaluations and trainings go on
where they stopped. Pictures of the report need Chromium and its driver, and are left as they are without.
"""

from __future__ import annotations

import base64
import difflib
import importlib
import importlib.util
import inspect
import io
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from PIL import Image
from pydantic import Field

from agents.evaluation.release import read_results
from agents.evaluation.tables import HEADS, summary_markdown
from agents.report import __main__ as report
from nvlenv.common.commandline import DONE, Entry, command, option, parse
from nvlenv.common.config import CONFIG_ROOTS, Model, load_config
from nvlenv.common.errors import InputError
from nvlenv.common.files import write_text, written_whole

PLAN = CONFIG_ROOTS[0] / "reproduce.yaml"
FOLDER = Path("checkpoints") / "reproduce"
MAIN = {"agents.study": "agents.study.__main__"}  # where a package keeps its command line
MARK = r"(<!-- table {name} -->\n).*?(<!-- end -->)"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PARTS = {"top": "header", "replay": "#replay"}  # of a report, as CSS names them
VIEW = {"width": 1360, "height": 1200, "deviceScaleFactor": 1.2, "mobile": False}  # in CSS pixels


class PlannedStep(Model):
    """A command whose results tables and pictures are made from."""

    run: Literal["agents.evaluate", "agents.train", "agents.study"]
    arguments: tuple[str, ...] = ()


class PlannedTable(Model):
    """A table: the results of one set of workloads of a step."""

    step: str
    label: str | None = None  # of the set; None: the first
    columns: tuple[str, ...] = Field(HEADS, min_length=1)


class PlannedPicture(Model):
    """A figure of a step, or a part of its report."""

    step: str
    figure: str | None = None
    report: Literal["top", "replay"] | None = None


class ReproducePlan(Model):
    """configs/reproduce.yaml."""

    steps: dict[str, PlannedStep]
    tables: dict[str, PlannedTable] = Field(default_factory=dict)
    pictures: dict[str, PlannedPicture] = Field(default_factory=dict)


def load_plan(path: Path) -> ReproducePlan:
    """The plan in a file. Raises `InputError` for steps, columns and parts that do not exist."""
    plan = load_config(ReproducePlan, path)
    for kind, entries in (("tables", plan.tables), ("pictures", plan.pictures)):
        for name, entry in entries.items():
            if entry.step not in plan.steps:
                raise InputError(path, f"{kind}.{name}.step", repr(entry.step), f"one of the steps {list(plan.steps)}")
    for name, table in plan.tables.items():
        for column in table.columns:
            if column not in HEADS:
                raise InputError(path, f"tables.{name}.columns", repr(column), f"some of {list(HEADS)}")
    for name, picture in plan.pictures.items():
        if (picture.figure is None) == (picture.report is None):
            raise InputError(path, f"pictures.{name}", "neither or both of figure and report", "one of them")
    return plan


def call(main: Entry, arguments: Sequence[str]) -> int:
    """Another command line's work without its last words: mistakes and interruptions are told once, by this one."""
    return inspect.unwrap(main)(list(arguments)) or DONE  # type: ignore[no-any-return]


def run_step(name: str, step: PlannedStep, folder: Path, workers: int) -> Path:
    """Run a step unless it is done; returns the folder of its results. Raises `InputError` if it fails."""
    out = folder / name
    arguments = [*step.arguments, "--out", str(out)]
    if step.run == "agents.evaluate":
        arguments += ["--workers", str(workers)]
    elif (out / "metrics.json").is_file() or (out / "study.html").is_file():
        return out
    elif (out / "model.zip").is_file():
        arguments = ["--resume", str(out)]
    print(f"{name}: python -m {step.run} {' '.join(arguments)}", flush=True)
    if call(importlib.import_module(MAIN.get(step.run, step.run)).main, arguments) != DONE:
        raise InputError("reproduce", name, "a step that failed", "the same command again")
    return out


def read_pages(root: Path) -> dict[Path, str]:
    """README.md and the pages of docs/, by their files."""
    readme = root / "README.md"
    if not readme.is_file():
        raise InputError("--root", "", str(root), "a folder with README.md in it")
    return {page: page.read_text("utf-8") for page in (readme, *sorted((root / "docs").glob("*.md")))}


def with_tables(pages: dict[Path, str], plan: ReproducePlan, folder: Path) -> dict[Path, str]:
    """The pages with every table between its markers made anew. Raises `InputError` for a marker that is nowhere."""
    pages = dict(pages)
    for name, table in plan.tables.items():
        pattern = re.compile(MARK.format(name=re.escape(name)), re.DOTALL)
        page = next((page for page, text in pages.items() if pattern.search(text)), None)
        if page is None:
            raise InputError("README.md", name, "no such marker", f"<!-- table {name} --> and <!-- end -->")
        results = read_results(folder / table.step)
        label = table.label or results["labels"][0]
        if label not in results["sets"]:
            raise InputError("reproduce", f"tables.{name}.label", repr(label), f"one of {results['labels']}")
        made = summary_markdown(results["sets"][label]["summary"], table.columns)
        pages[page] = pattern.sub(lambda match, made=made: f"{match[1]}{made}\n{match[2]}", pages[page])  # type: ignore[misc]
    return pages


def draw(plan: ReproducePlan, folder: Path, root: Path) -> Iterator[Path]:
    """Put every picture in its place."""
    for name, picture in plan.pictures.items():
        results = folder / picture.step
        if picture.figure is not None:
            found = next(results.rglob(picture.figure), None)
            if found is None:
                raise InputError("reproduce", f"pictures.{name}.figure", repr(picture.figure), f"a figure in {results}")
            with written_whole(root / name) as part:
                shutil.copyfile(found, part)
        elif not (browser := _browser()):
            print(f"{name}: left as it is, there is no Chromium with its driver", file=sys.stderr)
            continue
        else:
            page = results / "report.html"
            if call(report.main, [str(results), "--out", str(page)]) != DONE:
                raise InputError("reproduce", name, "a report that could not be made", "results that it can be made of")
            shoot(page, PARTS[str(picture.report)], root / name, browser)
        yield root / name


def _browser() -> str | None:
    """Chromium, if its driver and selenium are there, too."""
    if not (shutil.which("chromedriver") and importlib.util.find_spec("selenium")):
        return None
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def shoot(page: Path, part: str, out: Path, browser: str) -> None:
    """Write a PNG of the part of a page that a CSS selector names, as a browser shows it. Needs selenium."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    with webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver"))) as chrome:
        chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", VIEW)
        chrome.get(page.resolve().as_uri())
        chrome.execute_async_script(
            "const done = arguments[0];"
            "document.fonts.ready.then(() => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        box = chrome.execute_script(
            "const box = document.querySelector(arguments[0]).getBoundingClientRect();"
            "return {x: box.x, y: box.y + scrollY, width: box.width, height: box.height, scale: 1}",
            part,
        )
        picture = chrome.execute_cdp_cmd("Page.captureScreenshot", {"clip": box, "captureBeyondViewport": True})
    image = Image.open(io.BytesIO(base64.b64decode(picture["data"]))).convert("RGB")
    with written_whole(out) as file:  # a few colours only, so a palette holds them all and the file is small
        image.quantize(256, dither=Image.Dither.NONE).save(file, format="PNG", optimize=True)


@dataclass(frozen=True)
class ReproduceOptions:
    __doc__ = __doc__

    plan: Path = option("what to make", default=PLAN, metavar="FILE")
    folder: Path = option("where results are kept", default=FOLDER)
    root: Path = option("folder of README.md", default=Path())
    workers: int = option("processes", default=1, least=1)
    check: bool = option("write nothing, say what differs", default=False)


def reproduce(options: ReproduceOptions) -> int:
    """Run what is missing and bring the documents up to date. Returns 1 if they are only checked and differ, else 0."""
    plan, old = load_plan(options.plan), read_pages(options.root)
    for name, step in plan.steps.items():
        run_step(name, step, options.folder, options.workers)
    new = with_tables(old, plan, options.folder)
    if options.check:
        for page, text in old.items():
            lines, made = text.splitlines(True), new[page].splitlines(True)
            sys.stdout.writelines(difflib.unified_diff(lines, made, str(page), "as made now"))
        return 0 if old == new else 1
    for page, text in new.items():
        if text != old[page]:
            write_text(page, text)
    for picture in draw(plan, options.folder, options.root):
        print(picture)
    return 0


@command
def main(argv: list[str]) -> int:
    """Run the command line; 0: done, 1: --check found a difference, 2: bad input, told in one line, 130: stopped."""
    options = parse(ReproduceOptions, argv, "python -m agents.reproduce")
    try:
        return reproduce(options)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the same command goes on") from None


if __name__ == "__main__":
    sys.exit(main())
