"""The summary of a set of workloads as people read it, in tables and in words: terminal, documents, card, page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console, JustifyMethod
from rich.table import Table

from agents.evaluation.episodes import BOUND, TRUE_DURATIONS
from agents.evaluation.statistics import Json, bootstrap

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


def short_name(name: str) -> str:
    """How a policy is called in tables: a heuristic by its name, a file by its folder."""
    if name.endswith(TRUE_DURATIONS):
        return f"{short_name(name.removesuffix(TRUE_DURATIONS))}, true run times"
    path = Path(name)
    if path.suffix == ".npz":
        return path.parent.name if path.stem == "policy" and path.parent.name else path.stem
    return path.name if path.is_dir() else name


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


def summary_rows(summary: Json, heads: Sequence[str]) -> list[list[str]]:
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
        "": VERDICTS[row["difference"]["verdict"]],
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
    return "no gap" if share is None else f"{100 * share:.0f} %" if share > -0.005 else "none"


def decimals(value: float | None, digits: int) -> str:
    """A number with so many decimals; a dash if there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def span(interval: Json) -> str:
    """A difference with its interval, as text."""
    known = interval["low"] is not None and interval["high"] is not None
    return f"{interval['mean']:+.3f}" + (f" [{interval['low']:+.3f}, {interval['high']:+.3f}]" if known else "")


# In words: what is better than what, by how much, and at whose cost


def standing(each: Json, name: str) -> dict[str, list[str]]:
    """The other policies that this one is cheaper than, ties with and is dearer than, where intervals say so."""
    found: dict[str, list[str]] = {"better": [], "tie": [], "worse": []}
    for other in candidates(each["summary"]):
        if other != name:
            found[VERDICTS[bootstrap(_difference(each, name, other)).verdict]].append(other)
    return found


def standing_in_words(each: Json, name: str) -> str:
    """The same as a sentence."""
    texts = {"better": "costs less than", "tie": "ties with", "worse": "costs more than"}
    found = standing(each, name)
    parts = [f"{texts[word]} {_listed(list(map(short_name, found[word])))}" for word in texts if found[word]]
    return f"{short_name(name)} {_listed(parts)}." if parts else f"{short_name(name)} was compared with nothing else."


def verdict_in_words(each: Json, name: str, label: str) -> str:
    """What a policy changes against the reference of a set, in one or two sentences."""
    reference, rows = each["summary"]["reference"], each["summary"]["policies"]
    if name == reference:
        return f"On {label}, no policy was found that costs less than {short_name(reference)}."
    mine, theirs, difference = rows[name]["mean"], rows[reference]["mean"], rows[name]["difference"]
    if difference["verdict"] == "tie":
        first = f"On {label}, {short_name(name)} ties with {short_name(reference)}: the difference is within chance."
    else:
        share = abs(difference["mean"]) / max(1e-12, float(theirs["cost"]))
        word = "less" if difference["verdict"] == "lower" else "more"
        first = f"On {label}, {short_name(name)} costs {100 * share:.0f} % {word} than {short_name(reference)}."
    waits = [
        f"{who} wait {hours(mine[key])} instead of {hours(theirs[key])}"
        for key, who in (("hero_wait", "heroes"), ("other_wait", "all other jobs"))
        if mine[key] is not None and theirs[key] is not None
    ]
    return f"{first} {capitalised(_listed(waits))}." if waits else first


def hours(value: float) -> str:
    """A wait as people say it."""
    if value < 1:
        return f"{60 * value:.0f} min"
    return f"{value:.1f} h" if value < 48 else f"{value / 24:.1f} days"


def gap_in_words(each: Json, name: str) -> str:
    """How much of what topology costs is left."""
    row, bound = each["summary"]["policies"][name], each["summary"]["references"][BOUND]["cost"]
    left = f"The same GPUs as one pool without topology, queued the baseline's way, would cost {bound:.3f}"
    if row["gap_closed"] is None or name == each["summary"]["reference"]:
        return f"{left}."
    return f"{left}; {short_name(name)} closes {share_closed(row['gap_closed'])} of the gap to it."


def typical_workload(each: Json, name: str, other: str) -> int:
    """The workload on which two policies differ about as much as on average."""
    difference = _difference(each, name, other)
    return int(np.argmin(np.abs(difference - difference.mean())))


def _difference(each: Json, name: str, other: str) -> np.ndarray:
    """What a policy costs more than another, (n,) by workload."""
    mine, theirs = (np.array(each["workloads"][n]["cost"], np.float64) for n in (name, other))
    return mine - theirs


def capitalised(text: str) -> str:
    """A sentence with its first letter large."""
    return text[0].upper() + text[1:]


def _listed(parts: list[str]) -> str:
    """a, b and c."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""
