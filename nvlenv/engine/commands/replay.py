"""`python -m nvlenv.engine replay`: when a job that waits could start under each policy, while other jobs arrive."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import nvlenv.engine
from nvlenv.common.commandline import DONE, option, parse
from nvlenv.engine.commands.common import EXIT_CODES, REFUSED, CommandOptions, print_json, text_table
from nvlenv.engine.formats.options import LARGEST
from nvlenv.policies import UNTUNED
from nvlenv.workload.mix import SyntheticWorkload, TraceWorkload

if TYPE_CHECKING:
    from nvlenv.engine.core.whatif import Forecast

MOST_HOURS, MOST_LOAD, MOST_DRAWS = 1e5, 100.0, 10_000  # beyond them the arrivals fill the memory


@dataclass(frozen=True)
class ReplayOptions(CommandOptions):
    """When a hero job could start under each policy: the cluster played forward with the work that usually arrives.

    What runs now ends by its estimates. Arrivals are those of a job trace in any public format, or of the generator of
    the scenario lab-16, scaled to the load; every policy sees the same.
    """

    hero: str = option("the job that waits; formats as for place --job", metavar="FILE")
    policies: tuple[str, ...] = option(
        "who decides", default=("least-allocated", "best-fit", "best-fit+open", UNTUNED), metavar="NAME|FILE"
    )
    trace: Path | None = option("job trace that arrives; default: generated jobs", default=None, metavar="FILE")
    load: float = option("offered load, a share of the cluster", default=0.8, above=0, most=MOST_LOAD, metavar="SHARE")
    hours: float = option("how far to play", default=336.0, above=0, most=MOST_HOURS, metavar="H")
    draws: int = option("of the arrivals", default=8, least=1, most=MOST_DRAWS, metavar="N")
    seed: int = option("of the arrivals", default=1, least=0, most=LARGEST, metavar="N")
    now: float | None = option(
        "s since 1970 (UTC) at which the cluster was like that", default=None, least=0, most=1e12, metavar="S"
    )


def replay_command(argv: Sequence[str]) -> int:
    """Print one line for each policy; 3 if the hero does not start under any."""
    options = parse(ReplayOptions, argv, "python -m nvlenv.engine replay", EXIT_CODES)
    cluster, hero = options.load_cluster(), options.load_job(options.hero)
    arrivals: SyntheticWorkload | TraceWorkload = nvlenv.engine.usual_arrivals(cluster, options.load)
    if options.trace:
        arrivals = TraceWorkload(path=options.trace, load=options.load)
    now = time.time() if options.now is None else options.now
    found = nvlenv.engine.play_forward(
        cluster, hero, options.policies, arrivals, now, options.hours, options.draws, options.seed
    )
    if options.json:
        print_json({"hours": options.hours, "forecasts": [forecast.to_dict() for forecast in found]})
    else:
        print(f"when {hero.name} could start, from now:\n\n{_starts(found, options.hours)}")
    return DONE if any(forecast.started for forecast in found) else REFUSED


def _starts(found: Sequence[Forecast], hours: float) -> str:
    rows = []
    for forecast in found:
        known, draws = sorted(start for start in forecast.hero_start if start is not None), len(forecast.hero_start)
        earliest = f"{known[0]:.1f}" if known else "-"
        median = f"{forecast.median:.1f}" if math.isfinite(forecast.median) else f"> {hours:g}"
        latest = f"{known[-1]:.1f}" if known and len(known) == draws else f"> {hours:g}"
        others = f"{forecast.others_wait:.2f}", f"{forecast.evictions:.1f}"
        rows.append((forecast.policy, f"{len(known)}/{draws}", earliest, median, latest, *others))
    header = ("policy", "started", "earliest h", "median h", "latest h", "others' wait h", "evictions")
    return text_table(header, rows)
