"""The summary of a set of workloads as people read it: in the terminal, in the README, in a model card."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console, JustifyMethod
from rich.table import Table

from agents.evaluation.episodes import TRUE_DURATIONS
from agents.evaluation.summary import Json, short_name

WIDE = 180  # characters, where there is no terminal
HEADS = (
    "policy", "cost", "difference [95 %]", "", "gap closed", "hero wait h", "other wait h", "lost", "evictions",
    "stall", "16-slots",
)  # fmt: skip
LEFT = ("policy", "")  # columns of words
VERDICTS = {"lower": "better", "higher": "worse", "tie": "tie", "reference": ""}  # what an interval of cost says
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


def summary_table(summary: Json, title: str = "", width: int = WIDE) -> Table:
    """The summary as people read it, with as many columns as there is room for. Lower cost is better."""
    bound = f"pool without topology {summary['bound']['cost']:.3f}"
    out = Table(title=f"{title + ': ' if title else ''}cost against {short_name(summary['reference'])} ({bound})")
    heads = next(heads for least, heads in COLUMNS.items() if width >= least)
    for head in heads:  # names are told in full, on several lines: two rules may differ at their ends alone
        justify: JustifyMethod = "left" if head in LEFT else "right"
        out.add_column(head, justify=justify, overflow="fold", no_wrap=head != "policy")
    for row in summary_rows(summary, heads):
        out.add_row(*row)
    for label, group in summary["seeds"].items():
        line = [
            f"{label}, {len(group['policies'])} seeds: IQM", f"{group['iqm']['mean']:.3f}",
            span(group["iqm_difference"]), VERDICTS[group["iqm_difference"]["verdict"]],
            f"P(better) {group['probability_of_improvement']['mean']:.2f}",
        ]  # fmt: skip
        out.add_section()
        out.add_row(*line[: len(heads)])
    return out


def summary_markdown(summary: Json, heads: Sequence[str] = HEADS) -> str:
    """The summary as a Markdown table with these of its columns, cheapest policy first."""
    names = {"": "verdict", "difference [95 %]": f"difference to {short_name(summary['reference'])} [95 %]"}
    rules = ["---" if head in LEFT else "---:" for head in heads]
    rows = ["| " + " | ".join(row) + " |" for row in ([names.get(h, h) for h in heads], *summary_rows(summary, heads))]
    return "\n".join([rows[0], "|" + "|".join(rules) + "|", *rows[1:]])


def summary_rows(summary: Json, heads: Sequence[str] = HEADS) -> list[list[str]]:
    """The texts under these heads, one row per policy, cheapest first."""
    return [[policy_row(summary, name)[head] for head in heads] for name in ranked(summary)]


def policy_row(summary: Json, name: str) -> dict[str, str]:
    """Head -> text of one policy."""
    row, is_reference = summary["policies"][name], name == summary["reference"]
    mean = row["mean"]
    return {
        "policy": short_name(name),
        "cost": f"{mean['cost']:.3f}",
        "difference [95 %]": "reference" if is_reference else span(row["difference"]),
        "": "" if is_reference else VERDICTS[row["difference"]["verdict"]],
        "gap closed": "" if is_reference else share_closed(row["gap_closed"]),
        "hero wait h": decimals(mean["hero_wait"], 1),
        "other wait h": decimals(mean["other_wait"], 2),
        "lost": f"{mean['lost']:.4f}",
        "evictions": f"{mean['evictions']:.0f}",
        "stall": f"{100 * mean['stall']:.0f} %",
        "16-slots": f"{mean['slots_16']:.2f}",
    }


def share_closed(share: float | None) -> str:
    """The share of a gap that is closed; where it is widened instead, by how much says little."""
    if share is None:
        return "no gap"
    return f"{100 * share:.0f} %" if share > -0.005 else "none"


def decimals(value: float | None, digits: int) -> str:
    """A number with so many decimals; a dash if there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def span(interval: Json) -> str:
    """A difference with its interval, as text."""
    if interval["low"] is None or interval["high"] is None:
        return f"{interval['mean']:+.3f}"
    return f"{interval['mean']:+.3f} [{interval['low']:+.3f}, {interval['high']:+.3f}]"
