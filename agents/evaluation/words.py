"""Results in words: what is better than what, by how much, and at whose cost."""

from __future__ import annotations

import numpy as np

from agents.evaluation.episodes import BOUND
from agents.evaluation.statistics import paired
from agents.evaluation.summary import Json, short_name
from agents.evaluation.tables import VERDICTS, candidates, share_closed


def standing(each: Json, name: str) -> dict[str, list[str]]:
    """The other policies that this one is cheaper than, ties with and is dearer than, where intervals say so."""
    found: dict[str, list[str]] = {"better": [], "tie": [], "worse": []}
    for other in candidates(each["summary"]):
        if other != name:
            found[VERDICTS[paired(*_costs(each, name, other)).verdict]].append(other)
    return found


def standing_in_words(each: Json, name: str) -> str:
    """The same as a sentence."""
    texts = {"better": "costs less than", "tie": "ties with", "worse": "costs more than"}
    found = standing(each, name)
    parts = [f"{texts[word]} {_listed(list(map(short_name, found[word])))}" for word in texts if found[word]]
    return f"{short_name(name)} {_listed(parts)}." if parts else f"{short_name(name)} was compared with nothing else."


def verdict_in_words(each: Json, name: str, label: str) -> str:
    """What a policy changes against the reference of a set, in one or two sentences."""
    reference = each["summary"]["reference"]
    rows = each["summary"]["policies"]
    if name == reference:
        return f"On {label}, no policy was found that costs less than {short_name(reference)}."
    mine, theirs, difference = rows[name]["mean"], rows[reference]["mean"], rows[name]["difference"]
    if difference["verdict"] == "tie":
        first = f"On {label}, {short_name(name)} ties with {short_name(reference)}: the difference is within chance."
    else:
        share = abs(difference["mean"]) / max(1e-12, float(theirs["cost"]))
        word = "less" if difference["verdict"] == "lower" else "more"
        first = f"On {label}, {short_name(name)} costs {100 * share:.0f} % {word} than {short_name(reference)}."
    return f"{first} {trade(mine, theirs)}"


def trade(mine: Json, theirs: Json) -> str:
    """Who waits less and who waits more."""
    parts = []
    for key, who in (("hero_wait", "heroes"), ("other_wait", "all other jobs")):
        if mine[key] is not None and theirs[key] is not None:
            parts.append(f"{who} wait {hours(mine[key])} instead of {hours(theirs[key])}")
    text = _listed(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


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
    mine, theirs = _costs(each, name, other)
    difference = mine - theirs
    return int(np.argmin(np.abs(difference - difference.mean())))


def _costs(each: Json, name: str, other: str) -> tuple[np.ndarray, np.ndarray]:
    """The costs (n,) of two policies by workload."""
    mine, theirs = (np.array(each["workloads"][n]["cost"], np.float64) for n in (name, other))
    return mine, theirs


def _listed(parts: list[str]) -> str:
    """a, b and c."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""
