"""The page: summary, tables, figures and replay put together into one HTML file that needs nothing else.

What is said is computed here, from the results alone; how it looks is in assets/.
"""

from __future__ import annotations

import base64
import io
import textwrap
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from agents.evaluation.figures import ONE_SET, gap_by_set, gaps, rack_map, save_into
from agents.evaluation.tables import (
    HEADS,
    VERDICTS,
    candidates,
    decimals,
    gap_in_words,
    hours,
    policy_row,
    ranked,
    short_name,
    span,
    standing_in_words,
    verdict_in_words,
)

Json = dict[str, Any]
SCRIPTS = ("state.js", "words.js", "draw.js", "app.js")
VERDICT = HEADS.index("")  # the column that is coloured
CARDS = {
    "cost": "cost per GPU-hour",
    "hero_wait": "mean wait of heroes",
    "other_wait": "mean wait of all others",
    "evictions": "evictions in a workload",
    "stall": "time in fragmentation stall",
}
CAPTIONS = {
    "decay": "Free slices of 16 nodes since the cluster was empty: what is left here is what the next hero finds.",
    "frontier": "What short waits of heroes cost all others. Down and left is better.",
    "cost_terms": "What the cost is made of. The dotted line is the pool without topology.",
    "waits_by_class": "Who waits for it, on a logarithmic scale.",
}


def page(results: Json, replay: Json | None) -> str:
    """The whole file. `replay`: see `agents.report.replay.replay_of`; None: without."""
    label, sets = results["labels"][0], results["sets"]
    first = sets[label]
    best = candidates(first["summary"])[0]
    # `tojson` escapes what a parser of HTML would take for markup.
    pages = Environment(loader=PackageLoader("agents.report", "assets"), autoescape=True, undefined=StrictUndefined)
    pages.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return pages.get_template("page.html").render(
        results=results,
        label=label,
        headline=verdict_in_words(first, best, label),
        lede=f"{standing_in_words(first, best)} {gap_in_words(first, best)}",
        cards=_cards(first, best),
        heads=HEADS,
        verdict_column=VERDICT,
        tables=[_table(label, sets[label]) for label in results["labels"]],
        figures=_figures(results, replay),
        reference=short_name(next(iter(sets.values()))["summary"]["reference"]),
        policies=[(short_name(name), results["policies"].get(name) or name) for name in results["names"]],
        shorten=lambda text: textwrap.shorten(text, 120, placeholder=" ..."),
        replay=replay,
        data={key: replay[key] for key in ("episode", "policies", "colours", "start")} if replay else {},
        scripts=SCRIPTS,
        source=lambda name: Markup(pages.loader.get_source(pages, name)[0]),  # type: ignore[union-attr]
    )


def _cards(each: Json, best: str) -> list[Json]:
    """The numbers that a decision turns on: the best policy against the reference."""
    rows, reference = each["summary"]["policies"], each["summary"]["reference"]
    cards = []
    for key, what in CARDS.items():
        mine, theirs = rows[best]["mean"][key], rows[reference]["mean"][key]
        if mine is None or theirs is None:
            continue
        was = f"{short_name(reference)}: {_value(key, theirs)}" if best != reference else "the reference"
        shares = [100 * value / max(mine, theirs, 1e-12) for value in (mine, theirs)]
        cards.append({"what": what, "value": _value(key, mine), "was": was, "shares": shares})
    return cards


def _value(key: str, value: float) -> str:
    if key == "cost":
        return f"{value:.3f}"
    if key == "stall":
        return f"{100 * value:.0f} %"
    return f"{value:.0f}" if key == "evictions" else hours(value)


def _table(label: str, each: Json) -> Json:
    """A set's rows as (CSS class, cells): its policies in order, then groups of training seeds."""
    summary, usable = each["summary"], candidates(each["summary"])
    rows = []
    for name in ranked(summary):
        css = "first" if name == usable[0] else "" if name in usable else "told"
        rows.append((css, [*policy_row(summary, name).values()]))
    for group, found in summary["seeds"].items():
        difference, better = found["iqm_difference"], found["probability_of_improvement"]["mean"]
        cells = [f"{group}: {len(found['policies'])} training seeds, IQM", decimals(found["iqm"]["mean"], 3)]
        cells += [span(difference), VERDICTS[difference["verdict"]], "", f"better in {100 * better:.0f} %"]
        rows.append(("group", cells + [""] * (len(HEADS) - len(cells))))
    return {"label": label, "pool": summary["bound"]["cost"], "baseline": each["baseline"], "rows": rows}


def _figures(results: Json, replay: Json | None) -> list[Json]:
    order, sets, label = results["names"], results["sets"], results["labels"][0]
    figures = []
    if replay:
        picture = rack_map(replay["episode"], {each["label"]: each for each in replay["policies"]})
        text = "Every GPU over the whole replay, by the class of its job. White lines separate racks."
        figures.append(_figure(picture, text, wide=True))
    for name, draw in ONE_SET.items():
        figures.append(_figure(draw(sets[label], order), f"{CAPTIONS[name]} ({label})"))
    if any(gaps(each) for each in sets.values()):
        picture = gap_by_set({each: sets[each] for each in results["labels"]}, order)
        figures.append(_figure(picture, "How much of the gap each policy closes, by set.", wide=len(sets) > 6))
    return figures


def _figure(figure: Figure, caption: str, wide: bool = False) -> Json:
    content = io.BytesIO()
    image = wide and figure.axes[0].images  # of a thousand rows: no vector graphic
    save_into(figure, content, "png" if image else "svg")
    mime, data = "image/png" if image else "image/svg+xml", base64.b64encode(content.getvalue()).decode()
    return {"source": f"data:{mime};base64,{data}", "caption": caption, "wide": wide}
