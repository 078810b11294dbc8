"""When a hero job could start under each policy: the cluster played forward with the work that usually arrives.

What runs now ends by its estimates. Arrivals are those of a job trace in any public format, or of the generator of the
scenario lab-16, scaled to the load; every policy sees the same.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nvlenv.engine.commands import common
from nvlenv.engine.formats.load import load_job

if TYPE_CHECKING:
    from nvlenv.engine.core.whatif import Forecast

MOST_HOURS, MOST_LOAD, MOST_DRAWS = 1e5, 100.0, 10_000  # beyond them the arrivals fill the memory
POLICIES = ("least-allocated", "best-fit", "best-fit+open", "best-fit+easy+open")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hero", required=True, metavar="FILE", help="the job that waits; formats as for place --job")
    parser.add_argument(
        "--policies", nargs="+", default=POLICIES, metavar="NAME|FILE", help=f"default {' '.join(POLICIES)}"
    )
    parser.add_argument("--trace", type=Path, metavar="FILE", help="job trace that arrives; default: generated jobs")
    parser.add_argument("--load", type=_share, default=0.8, metavar="SHARE", help="offered load; default %(default)s")
    parser.add_argument("--hours", type=_hours, default=336.0, metavar="H", help="how far to play; default %(default)s")
    parser.add_argument("--draws", type=_draws, default=8, metavar="N", help="of the arrivals; default %(default)s")
    parser.add_argument("--seed", type=_seed, default=1, metavar="N", help="of the arrivals; default %(default)s")
    parser.add_argument("--now", type=_time, metavar="S", help="s since 1970 (UTC) at which the cluster was like that")
    common.add_json(parser)
    common.add_cluster(parser)


def run(arguments: argparse.Namespace) -> int:
    cluster, hero = common.read_cluster(arguments), load_job(arguments.hero)
    common.load_compiler()
    from nvlenv.engine.core.whatif import play_forward, usual_arrivals
    from nvlenv.workload.mix import SyntheticWorkload, TraceWorkload

    now = time.time() if arguments.now is None else arguments.now
    arrivals: SyntheticWorkload | TraceWorkload = usual_arrivals(cluster, arguments.load)
    if arguments.trace:
        arrivals = TraceWorkload(path=arguments.trace, load=arguments.load)
    found = play_forward(
        cluster, hero, arguments.policies, arrivals, now, arguments.hours, arguments.draws, arguments.seed
    )
    if arguments.json:
        common.print_json({"hours": arguments.hours, "forecasts": [forecast.to_dict() for forecast in found]})
    else:
        print(describe(found, hero.name, arguments.hours))
    return 0 if any(forecast.started for forecast in found) else common.REFUSED


def describe(found: Sequence[Forecast], hero: str, hours: float) -> str:
    rows = []
    for forecast in found:
        known = sorted(start for start in forecast.hero_start if start is not None)
        all_started = forecast.started == len(forecast.hero_start)
        rows.append(
            (
                forecast.policy,
                f"{forecast.started}/{len(forecast.hero_start)}",
                f"{known[0]:.1f}" if known else "-",
                f"{forecast.median:.1f}" if math.isfinite(forecast.median) else f"> {hours:g}",
                f"{known[-1]:.1f}" if known and all_started else f"> {hours:g}",
                f"{forecast.others_wait:.2f}",
                f"{forecast.evictions:.1f}",
            )
        )
    header = ("policy", "started", "earliest h", "median h", "latest h", "others' wait h", "evictions")
    return f"when {hero} could start, from now:\n\n{common.table(header, rows)}"


def _hours(text: str) -> float:
    return common.number(text, "hours", MOST_HOURS)


def _share(text: str) -> float:
    return common.number(text, "a share of the cluster", MOST_LOAD)


def _time(text: str) -> float:
    return common.number(text, "seconds since 1970", 1e12, zero=True)


def _draws(text: str) -> int:
    return common.whole(text, 1, MOST_DRAWS)


def _seed(text: str) -> int:
    return common.whole(text, 0)
