"""The page: summary, tables, figures and replay put together into one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import io
import json
import textwrap
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from matplotlib.figure import Figure

from agents.evaluation.figures import ONE_SET, gap_closed, has_gap, rack_map, save_into
from agents.evaluation.summary import short_name
from agents.evaluation.tables import HEADS, candidates, number, ranked, row_of, span, verdict
from agents.report.words import gap_in_words, headline, hours, standing_in_words

Json = dict[str, Any]
SCRIPTS = ("state.js", "words.js", "draw.js", "app.js")
READING = (
    "Cost is weighted waiting, slowdown and lost work in GPU-hours per GPU-hour of the cluster; lower is better. "
    "Differences are paired by workload, with 95 % bootstrap intervals; where an interval holds zero, it is a tie. "
    "The gap is that between the reference and the same GPUs as one pool without topology under EASY backfilling, "
    "which is no lower bound: a share above 100 % means that a policy queues better than EASY. Stall is the share of "
    "time in which some job waits for shape alone; 16-slots are free slices of 16 nodes inside one rack."
)
CAPTIONS = {
    "decay": "Free slices of 16 nodes since the cluster was empty: what is left here is what the next hero finds.",
    "frontier": "What short waits of heroes cost all others. Down and left is better.",
    "cost_terms": "What the cost is made of. The dotted line is the pool without topology.",
    "waits_by_class": "Who waits for it, on a logarithmic scale.",
}


def page(results: Json, replay: Json | None) -> str:
    """The whole file. `replay`: see `agents.report.__main__.replay_of`; None: without."""
    label, first = next(iter((label, results["sets"][label]) for label in results["labels"]))
    best = candidates(first["summary"])[0]
    parts = {
        "title": escape(f"nvlenv report: {label}"),
        "style": _text("style.css"),
        "eyebrow": escape(_eyebrow(results)),
        "headline": escape(headline(first, best, label)).replace("-", "&#8209;"),  # names are not broken
        "lede": escape(f"{standing_in_words(first, best)} {gap_in_words(first, best)}"),
        "cards": _cards(first, best),
        "contents": _contents(replay is not None),
        "replay": Template(_text("replay.html")).substitute(note=escape(replay["note"])) if replay else "",
        "reading": escape(READING),
        "tables": "".join(_table(each, results["sets"][each]) for each in results["labels"]),
        "figures": _figures(results, replay),
        "method": _method(results),
        "data": _embedded({key: replay[key] for key in ("episode", "policies", "colours", "start")} if replay else {}),
        "script": "\n".join(_text(name) for name in SCRIPTS),
    }
    return Template(_text("page.html")).substitute(parts)


def _text(name: str) -> str:
    return (files("agents.report") / name).read_text("utf-8")


def _embedded(data: Json) -> str:
    """JSON that no HTML parser mistakes for markup."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _eyebrow(results: Json) -> str:
    sets = f"{len(results['labels'])} sets of workloads" if len(results["labels"]) > 1 else results["labels"][0]
    return f"placement policies on {sets}, {results['split']} split, {results['episodes']} workloads each"


def _contents(replay: bool) -> str:
    links = [("replay", "Replay")] if replay else []
    links += [("tables", "The numbers"), ("figures", "Figures"), ("method", "How this was made")]
    return "".join(f'<a href="#{anchor}">{text}</a>' for anchor, text in links)


def _cards(each: Json, best: str) -> str:
    """The numbers that a decision turns on: the best policy against the reference."""
    rows, reference = each["summary"]["policies"], each["summary"]["reference"]
    mine, theirs, out = rows[best]["mean"], rows[reference]["mean"], []
    for key, what in (
        ("cost", "cost per GPU-hour"), ("hero_wait", "mean wait of heroes"), ("other_wait", "mean wait of all others"),
        ("evictions", "evictions in a workload"), ("stall", "time in fragmentation stall"),
    ):  # fmt: skip
        if mine[key] is None or theirs[key] is None:
            continue
        most = max(mine[key], theirs[key], 1e-12)
        bars = "".join(f'<i style="width:{100 * value / most:.1f}%"></i>' for value in (mine[key], theirs[key]))
        was = f"{short_name(reference)}: {_value(key, theirs[key])}" if best != reference else "the reference"
        out.append(
            f'<div class="card"><div class="what">{what}</div><div class="value">{_value(key, mine[key])}</div>'
            f'<div class="was">{escape(was)}</div><div class="bars" aria-hidden="true">{bars}</div></div>'
        )
    return "".join(out)


def _value(key: str, value: float) -> str:
    if key == "cost":
        return f"{value:.3f}"
    if key == "stall":
        return f"{100 * value:.0f} %"
    return f"{value:.0f}" if key == "evictions" else hours(value)


def _table(label: str, each: Json) -> str:
    summary = each["summary"]
    head = "".join(f"<th>{escape(text)}</th>" for text in HEADS)
    rows, usable = [], candidates(summary)
    for name in ranked(summary):
        cells = [escape(text) for text in row_of(name, summary["policies"][name], summary["reference"])]
        cells[3] = f'<span class="{cells[3]}">{cells[3]}</span>'
        css = "first" if name == usable[0] else "" if name in usable else "told"
        rows.append(f'<tr class="{css}">' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    for group, found in summary["seeds"].items():
        difference, better = found["iqm_difference"], found["probability_of_improvement"]["mean"]
        word = verdict(difference["verdict"])
        cells = [
            f"{group}: {len(found['policies'])} training seeds, IQM", number(found["iqm"]["mean"], 3), span(difference),
            f'<span class="{word}">{word}</span>', "", f"better in {100 * better:.0f} %",
        ]  # fmt: skip
        rows.append('<tr class="group">' + "".join(f"<td>{cell}</td>" for cell in cells) + "<td></td>" * 5 + "</tr>")
    bound = f"pool without topology {summary['bound']['cost']:.3f}, baseline {each['baseline']}"
    caption = f"{escape(label)} <span>{escape(bound)}</span>"
    return (
        f'<div class="scroll"><table><caption>{caption}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _figures(results: Json, replay: Json | None) -> str:
    order, sets, out = results["names"], results["sets"], []
    label = results["labels"][0]
    if replay:
        picture = rack_map(replay["episode"], {each["label"]: each for each in replay["policies"]})
        text = "Every GPU over the whole replay, by the class of its job. White lines separate racks."
        out.append(_figure(picture, text, wide=True))
    for name, draw in ONE_SET.items():
        out.append(_figure(draw(sets[label], order), f"{CAPTIONS[name]} ({label})"))
    if any(has_gap(each) for each in sets.values()):
        ordered = {each: sets[each] for each in results["labels"]}
        out.append(
            _figure(gap_closed(ordered, order), "How much of the gap each policy closes, by set.", wide=len(sets) > 6)
        )
    return f'<div class="gallery">{"".join(out)}</div>'


def _figure(figure: Figure, caption: str, wide: bool = False) -> str:
    content = io.BytesIO()
    kind = "png" if wide and figure.axes[0].images else "svg"  # an image of a thousand rows is no vector graphic
    save_into(figure, content, kind)
    source = base64.b64encode(content.getvalue()).decode()
    mime = "image/png" if kind == "png" else "image/svg+xml"
    css = ' class="wide"' if wide else ""
    return (
        f'<figure{css}><img src="data:{mime};base64,{source}" alt="{escape(caption)}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _method(results: Json) -> str:
    reference = next(iter(results["sets"].values()))["summary"]["reference"]
    terms = {
        "command": f"<code>{escape(results.get('command', 'not recorded'))}</code>",
        "settings": f"<code>{escape(results.get('config_sha256', 'not recorded'))}</code> (SHA-256)",
        "versions": escape(", ".join(f"{name} {version}" for name, version in results["versions"].items())),
        "workloads": escape(
            f"{results['episodes']} of the {results['split']} split, seed {results['seed']}; splits share none"
        ),
        "reference": escape(short_name(reference)),
    }
    policies = "".join(
        f"<dt>{escape(short_name(name))}</dt><dd><code>{escape(str(results['policies'].get(name) or name))}</code></dd>"
        for name in results["names"]
    )
    scenarios = "".join(
        f"<dt>{escape(label)}</dt><dd>{escape(_scenario(results['sets'][label]))}</dd>" for label in results["labels"]
    )
    rows = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in terms.items())
    return (
        f'<dl class="terms">{rows}</dl><h3>Policies</h3><dl class="terms">{policies}</dl>'
        f'<h3>Sets of workloads</h3><dl class="terms">{scenarios}</dl>'
    )


def _scenario(each: Json) -> str:
    settings = ", ".join(textwrap.shorten(text, 120, placeholder=" ...") for text in each["overrides"]) or "as shipped"
    warm = f"; the first {each['warm_jobs']} jobs of every replay fill the cluster" if each["warm_jobs"] else ""
    return f"scenario {each['source']}, {settings}{warm}; digest {each['scenario_digest'][:16]}"
