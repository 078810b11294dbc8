"""Compare policies on the same held-out workloads: the table, results.json and the figures.

    python -m agents.evaluate --policies best-fit least-allocated checkpoints/RUN/policy.npz --out results

Every policy plays the same workloads; differences are paired per workload, with bootstrap intervals.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from agents.episodes import BOUND, SPLITS, Played, find_policy, play_all, split_scenario, split_seeds
from agents.statistics import bootstrap, gap_closed, mean_known, paired
from nvlenv.errors import InputError
from nvlenv.files import write_json
from nvlenv.scenario import Scenario, load_scenario, scenario_names

WARMUP = 0.1  # share of the episode that is discarded, unless the scenario says how much: longer than a mean hero run
VERSIONED = ("nvlenv", "numpy", "numba", "gymnasium", "torch", "stable-baselines3", "sb3-contrib")


def evaluation_scenario(name: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """A scenario with the start of its episodes discarded, so that what is measured is the steady state."""
    scenario = load_scenario(name, overrides)
    if scenario.episode.warmup_hours > 0:
        return scenario
    return load_scenario(name, [*overrides, f"episode.warmup_hours={WARMUP * scenario.episode.hours:g}"])


def short_name(name: str) -> str:
    """How a policy is called in tables: a heuristic by its name, a file by its folder."""
    path = Path(name)
    if path.suffix == ".npz" and path.stem == "policy":
        return path.parent.name
    return path.stem if path.suffix == ".npz" else (path.name if path.is_dir() else name)


def summarise(played: Sequence[Played], names: Sequence[str], reference: str) -> dict[str, Any]:
    """Means, paired differences of cost against the reference with intervals, and the share of the gap closed."""
    cost = {name: np.array([p.metrics[name]["cost"] for p in played]) for name in (*names, BOUND)}
    rows: dict[str, Any] = {}
    for name in names:
        difference = paired(cost[name], cost[reference])
        keys = played[0].metrics[name]
        rows[name] = {
            "mean": {key: _mean([p.metrics[name][key] for p in played]) for key in keys},
            "cost_interval": vars(bootstrap(cost[name])),
            "difference": {**vars(difference), "verdict": difference.verdict if name != reference else "reference"},
            "gap_closed": gap_closed(cost[name], cost[reference], cost[BOUND]),
        }
    return {"reference": reference, "bound": {"cost": float(cost[BOUND].mean())}, "policies": rows}


def _mean(values: Sequence[float]) -> float | None:
    """As `mean_known`; None, which JSON can say, instead of nan."""
    mean = mean_known(values)
    return None if np.isnan(mean) else mean


def table(summary: dict[str, Any]) -> Table:
    """The summary as people read it. Lower cost is better."""
    out = Table(title=f"cost against {summary['reference']} (pooled bound {summary['bound']['cost']:.3f})")
    heads = ("policy", "cost", "difference [95 %]", "gap closed", "hero wait h", "other wait h", "lost", "evictions")
    for head in (*heads, "stall", "16-slots"):
        out.add_column(head, justify="left" if head == "policy" else "right")
    for name, row in sorted(summary["policies"].items(), key=lambda item: item[1]["mean"]["cost"]):
        mean, difference = row["mean"], row["difference"]
        span = f"{difference['mean']:+.3f} [{difference['low']:+.3f}, {difference['high']:+.3f}]"
        is_reference = name == summary["reference"]
        out.add_row(
            short_name(name),
            f"{mean['cost']:.3f}",
            "reference" if is_reference else span,
            "" if is_reference else f"{100 * row['gap_closed']:.0f} %",
            "-" if mean["hero_wait"] is None else f"{mean['hero_wait']:.1f}",
            "-" if mean["other_wait"] is None else f"{mean['other_wait']:.2f}",
            f"{mean['lost']:.4f}",
            f"{mean['evictions']:.0f}",
            f"{100 * mean['stall']:.0f} %",
            f"{mean['slots_16']:.2f}",
        )
    return out


def versions() -> dict[str, str]:
    """Versions of everything that may change a figure."""
    found = {"python": platform.python_version()}
    for name in VERSIONED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def evaluate(
    scenario: Scenario,
    names: Sequence[str],
    episodes: int,
    seed: int = 0,
    split: str = "validation",
    reference: str | None = None,
    workers: int = 1,
    quiet: bool = False,
) -> tuple[dict[str, Any], list[Played]]:
    """Play all policies on the same workloads. Returns what goes to results.json, and what was played."""
    for name in names:
        find_policy(name)
    seeds = split_seeds(seed, split, episodes)

    def progress(results: Iterable[Played]) -> Iterable[Played]:
        yield from tqdm(results, total=len(seeds), desc="workloads", disable=quiet, file=sys.stderr)

    played = play_all(split_scenario(scenario, split), names, seeds, workers, progress)
    summary = summarise(played, names, reference or names[0])
    results = {
        "scenario": scenario.name,
        "scenario_digest": scenario.digest(),
        "split": split,
        "seed": seed,
        "episodes": episodes,
        "versions": versions(),
        "summary": summary,
        "workloads": [p.metrics for p in played],
    }
    return results, played


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(prog="python -m agents.evaluate", description=__doc__, allow_abbrev=False)
    out.formatter_class = argparse.RawDescriptionHelpFormatter
    out.add_argument("--policies", nargs="+", required=True, metavar="POLICY",
                     help="heuristics such as best-fit+fill+open, policy files, or run folders")  # fmt: skip
    out.add_argument("--scenario", default="lab-16", help=f"a YAML file or one of {', '.join(scenario_names())}")
    out.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", dest="overrides",
                     help="settings of the scenario, such as workload.load=0.9")  # fmt: skip
    out.add_argument("--episodes", type=int, default=64, help="workloads (default 64)")
    out.add_argument("--seed", type=int, default=0, help="of the workloads (default 0)")
    out.add_argument("--split", choices=list(SPLITS), default="validation",
                     help="which workloads; test is for the last word only (default validation)")  # fmt: skip
    out.add_argument("--reference", help="the policy that differences are taken against (default: the first)")
    out.add_argument("--workers", type=int, default=1, help="processes (default 1)")
    out.add_argument("--out", type=Path, help="folder for results.json and figures")
    out.add_argument("--quiet", action="store_true", help="no progress bar")
    return out


def run(arguments: argparse.Namespace) -> None:
    names = list(dict.fromkeys(arguments.policies))
    if arguments.reference is not None and arguments.reference not in names:
        raise InputError("--reference", "", repr(arguments.reference), f"one of the policies {names}")
    if arguments.episodes < 1:
        raise InputError("--episodes", "", arguments.episodes, "at least 1")
    scenario = evaluation_scenario(arguments.scenario, arguments.overrides)
    results, played = evaluate(
        scenario, names, arguments.episodes, arguments.seed, arguments.split, arguments.reference, arguments.workers,
        arguments.quiet,
    )  # fmt: skip
    Console(width=160).print(table(results["summary"]))
    if arguments.out is not None:
        from agents.figures import draw_all

        results["command"] = "python -m agents.evaluate " + " ".join(sys.argv[1:])
        write_json(arguments.out / "results.json", results)
        for picture in draw_all(played, names, arguments.out):
            print(picture)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    try:
        run(arguments)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
