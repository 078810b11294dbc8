"""A study as people read it: one sentence, one picture, one small table; in the terminal, as Markdown and as HTML."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from agents.evaluation.figures import save
from nvlenv.common.files import write_text

PICTURE, MARKDOWN, HTML = "study.png", "study.md", "study.html"
STYLE = """body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
img { max-width: 100% } table { border-collapse: collapse; margin: 1rem 0 } code { font-size: 0.9em }
th, td { padding: 0.3rem 0.8rem; border-bottom: 1px solid #ccc; text-align: right }
th:first-child, td:first-child { text-align: left }"""


@dataclass(frozen=True)
class Study:
    """What a study has found. `rows` are as long as `heads`; the first column names the variant."""

    name: str
    point: str  # what the picture shows, with the measured numbers in it
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    figure: Figure
    setting: str  # what was played: workloads, seed, policies
    command: str


def write(study: Study, folder: Path) -> Path:
    """Write picture, Markdown and the HTML page into a folder. Returns the page's path."""
    save(study.figure, folder / PICTURE)
    write_text(folder / MARKDOWN, markdown(study))
    write_text(folder / HTML, html(study))
    return folder / HTML


def markdown(study: Study) -> str:
    """The page in Markdown; the picture lies beside it."""
    rules = "|".join(["---", *["---:"] * (len(study.heads) - 1)])
    lines = [" | ".join(row) for row in (study.heads, *study.rows)]
    table = "\n".join([f"| {lines[0]} |", f"|{rules}|", *(f"| {line} |" for line in lines[1:])])
    return f"# {study.name}\n\n{study.point}\n\n![]({PICTURE})\n\n{table}\n\n{study.setting}\n\n    {study.command}\n"


def html(study: Study) -> str:
    """The page in HTML; the picture lies beside it."""
    heads = "".join(f"<th>{escape(head)}</th>" for head in study.heads)
    rows = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in study.rows)
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{escape(study.name)}</title>
<style>{STYLE}</style>
<h1>{escape(study.name)}</h1>
<p>{escape(study.point)}</p>
<img src="{PICTURE}" alt="{escape(study.point)}">
<table><thead><tr>{heads}</tr></thead><tbody>
{rows}
</tbody></table>
<p>{escape(study.setting)}</p>
<p><code>{escape(study.command)}</code></p>
</html>
"""


def show(study: Study, console: Console) -> None:
    """The point and the table in a terminal."""
    table = Table(title=study.name)
    for k, head in enumerate(study.heads):
        table.add_column(head, justify="right" if k else "left")
    for row in study.rows:
        table.add_row(*row)
    console.print(table)
    console.print(study.point)
