"""The summary of a set of workloads as people read it: in the terminal, in the README, in a model card."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from agents.evaluation.episodes import TRUE_DURATIONS
from agents.evaluation.summary import short_name

Json = dict[str, Any]
WIDE = 180  # characters, where there is no terminal
HEADS = (
    "policy", "cost", "difference [95 %]", "", "gap closed", "hero wait h", "other wait h", "lost", "evictions",
    "stall", "16-slots",
)  # fmt: skip
COLUMNS = {  # of a table this wide, or wider
    150: HEADS,
    100: ("policy", "cost", "difference [95 %]", "", "hero wait h", "other wait h"),
    0: ("policy", "cost", "difference [95 %]", ""),
}


class Terminal(Console):
    """Stdout for tables: as wide as the terminal, or wide enough for any table where there is none.

    Its reader may go, as `head` does: it then raises `BrokenPipeError`, with which `command` ends.
    """

    def __init__(self) -> None:
        super().__init__(width=None if sys.stdout.isatty() else WIDE)

    def on_broken_pipe(self) -> None:
        """Rich's own way is to send the rest of stdout to nowhere, which is right, and to fail, which is not."""
        try:
            super().on_broken_pipe()
        except SystemExit:
            raise BrokenPipeError from None


def ranked(summary: Json) -> list[str]:
    """The policies, cheapest first; those that are told the true run times are no candidates and come last."""
    rows = summary["policies"]
    return sorted(rows, key=lambda name: (name.endswith(TRUE_DURATIONS), float(rows[name]["mean"]["cost"]), name))


def candidates(summary: Json) -> list[str]:
    """The policies that could be used, cheapest first."""
    return [name for name in ranked(summary) if not name.endswith(TRUE_DURATIONS)]


def table(summary: Json, title: str = "", width: int = WIDE) -> Table:
    """The summary as people read it, with as many columns as there is room for. Lower cost is better."""
    bound = f"pool without topology {summary['bound']['cost']:.3f}"
    out = Table(title=f"{title + ': ' if title else ''}cost against {short_name(summary['reference'])} ({bound})")
    heads = next(heads for least, heads in COLUMNS.items() if width >= least)
    for head in heads:  # names are told in full, on several lines: two rules may differ at their ends alone
        left, whole = head in ("policy", ""), head != "policy"
        out.add_column(head, justify="left" if left else "right", overflow="fold", no_wrap=whole)
    for name in ranked(summary):
        texts = dict(zip(HEADS, row_of(name, summary["policies"][name], summary["reference"]), strict=True))
        out.add_row(*(texts[head] for head in heads))
    for label, group in summary["seeds"].items():
        line = [
            f"{label}, {len(group['policies'])} seeds: IQM", f"{group['iqm']['mean']:.3f}",
            span(group["iqm_difference"]), verdict(group["iqm_difference"]["verdict"]),
            f"P(better) {group['probability_of_improvement']['mean']:.2f}",
        ]  # fmt: skip
        out.add_section()
        out.add_row(*line[: len(heads)])
    return out


def row_of(name: str, row: Json, reference: str) -> list[str]:
    """One policy's row: the texts under the heads of `table`."""
    mean = row["mean"]
    return [
        short_name(name),
        f"{mean['cost']:.3f}",
        "reference" if name == reference else span(row["difference"]),
        "" if name == reference else verdict(row["difference"]["verdict"]),
        "" if name == reference else closed(row["gap_closed"]),
        number(mean["hero_wait"], 1),
        number(mean["other_wait"], 2),
        f"{mean['lost']:.4f}",
        f"{mean['evictions']:.0f}",
        f"{100 * mean['stall']:.0f} %",
        f"{mean['slots_16']:.2f}",
    ]


def closed(share: float | None) -> str:
    """The share of a gap that is closed; where it is widened instead, by how much says little."""
    if share is None:
        return "no gap"
    return f"{100 * share:.0f} %" if share > -0.005 else "none"


def number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def span(interval: Json) -> str:
    """A difference with its interval, as text."""
    if interval["low"] is None or interval["high"] is None:
        return f"{interval['mean']:+.3f}"
    return f"{interval['mean']:+.3f} [{interval['low']:+.3f}, {interval['high']:+.3f}]"


def verdict(word: str) -> str:
    """What the interval of a difference of cost says."""
    return {"lower": "better", "higher": "worse", "tie": "tie", "reference": ""}[word]


def markdown(summary: Json, heads: tuple[str, ...] = HEADS) -> str:
    """The summary as a Markdown table with these of its columns, cheapest policy first."""
    names = {"": "verdict", "difference [95 %]": f"difference to {short_name(summary['reference'])} [95 %]"}
    lines = [
        "| " + " | ".join(names.get(head, head) for head in heads) + " |",
        "|" + "|".join("---" if head in ("policy", "") else "---:" for head in heads) + "|",
    ]
    for name in ranked(summary):
        texts = dict(zip(HEADS, row_of(name, summary["policies"][name], summary["reference"]), strict=True))
        lines.append("| " + " | ".join(texts[head] for head in heads) + " |")
    return "\n".join(lines)
