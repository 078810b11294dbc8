"""Compare policies on the same held-out workloads: tables, results.json and the figures.

    python -m agents.evaluate --policies baseline best-fit checkpoints/RUN/policy.npz --out results
    python -m agents.evaluate --policies ... --scenarios lab-16 hero-rush --split test --shifts all --out results
    python -m agents.evaluate --policies ... --traces jobs.csv.gz --out results
    python -m agents.evaluate --release

Every policy plays the same workloads; differences are paired per workload, with bootstrap intervals. `baseline` is the
tuned heuristic of each scenario (configs/baselines.yaml); `POLICY@true` is a policy that is told the true run times.
With --out every episode is kept as soon as it is played: the same command, given again, goes on where it was stopped.
results.json holds nothing that depends on the machine's speed; that is in latency.json.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agents.evaluation.cases import SHIFTS, Case, evaluation_scenario, make_case, warm_started
from agents.evaluation.cells import BASELINE, Stage, fingerprint, resolve, stage
from agents.evaluation.episodes import SPLITS, TRUE_DURATIONS, Played, find_policy, split_seeds
from agents.evaluation.latency import decision_latency
from agents.evaluation.summary import describe, short_name
from agents.evaluation.tables import Terminal, table
from nvlenv.common.commandline import command
from nvlenv.common.errors import InputError
from nvlenv.common.files import write_json
from nvlenv.envs.scenario import Scenario, scenario_names

__all__ = ["evaluate", "evaluation_scenario", "main", "short_name", "table", "versions"]

EPISODES = {"train": 64, "validation": 64, "test": 200}
RELEASE = Path("checkpoints") / "release"
VERSIONED = ("nvlenv", "numpy", "numba", "gymnasium", "torch", "stable-baselines3", "sb3-contrib")


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
    """Play all policies on the same workloads of one scenario. Returns the results, and what was played."""
    for name in names:
        find_policy(name)
    played_scenario, warm_jobs = warm_started(scenario, split)
    case = Case(scenario.name, scenario.name, (), played_scenario, scenario.name, warm_jobs)
    with stage(None, workers, quiet) as theatre:
        played = theatre.play(case, names, split_seeds(seed, split, episodes))
    head = {"split": split, "seed": seed, "episodes": episodes, "versions": versions()}
    return {**head, **about(case), **describe(played, names, reference or names[0])}, played


def about(case: Case) -> dict[str, Any]:
    """What set of workloads this is."""
    return {
        "scenario": case.base,
        "source": case.source,
        "overrides": list(case.overrides),
        "scenario_digest": case.scenario.digest(),
        "warm_jobs": case.warm_jobs,
        "baseline": resolve(BASELINE, case),
    }


def evaluate_case(
    case: Case, names: Sequence[str], settings: Mapping[str, Any], seeds: Mapping[str, Sequence[str]], theatre: Stage
) -> dict[str, Any]:
    """All numbers about one set of workloads; `settings` has split, seed, episodes and reference."""
    workloads = split_seeds(settings["seed"], settings["split"], settings["episodes"])
    played = theatre.play(case, names, workloads)
    return {**about(case), **describe(played, names, settings["reference"], seeds)}


# --------------------------------------------------------------------------------------------------------------------
# The command line
# --------------------------------------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(prog="python -m agents.evaluate", description=__doc__, allow_abbrev=False)
    out.formatter_class = argparse.RawDescriptionHelpFormatter
    out.add_argument("--policies", nargs="+", default=[], metavar="POLICY",
                     help="baseline, heuristics such as best-fit+fill+open, policy files, or run folders")  # fmt: skip
    out.add_argument("--seeds", action="append", default=[], metavar="LABEL=PATTERN",
                     help="policy files or run folders of one recipe trained with several seeds, such as "
                          "'ppo=checkpoints/lab-16-s*'; reported one by one and together")  # fmt: skip
    out.add_argument("--scenarios", "--scenario", nargs="+", default=["lab-16"], metavar="SCENARIO",
                     help=f"YAML files or some of {', '.join(scenario_names())}")  # fmt: skip
    out.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", dest="overrides",
                     help="settings of every scenario, such as workload.load=0.9")  # fmt: skip
    out.add_argument("--shifts", nargs="+", default=[], metavar="SHIFT",
                     help=f"every scenario also out of distribution: {', '.join(SHIFTS)}, or all")  # fmt: skip
    out.add_argument("--traces", nargs="+", default=[], type=Path, metavar="FILE",
                     help="also replays of these job traces on the cluster of the first scenario")  # fmt: skip
    out.add_argument("--episodes", type=int, help=f"workloads of each set (default {EPISODES['validation']}, "
                                                  f"of the test split {EPISODES['test']})")  # fmt: skip
    out.add_argument("--seed", type=int, default=0, help="of the workloads (default 0)")
    out.add_argument("--split", choices=list(SPLITS), default="validation",
                     help="which workloads; test is for the last word only (default validation)")  # fmt: skip
    out.add_argument("--reference", help="the policy that differences are taken against (default: the first)")
    out.add_argument("--workers", type=int, default=1, help="processes; 0: as many as cores (default 1)")
    out.add_argument("--ray", action="store_true", help="processes on the Ray cluster that RAY_ADDRESS names")
    out.add_argument("--out", type=Path, help="folder for results.json, latency.json, figures and played episodes")
    out.add_argument("--release", nargs="?", const=RELEASE, type=Path, metavar="FOLDER",
                     help=f"check a released policy against its own record instead (default {RELEASE})")  # fmt: skip
    out.add_argument("--quiet", action="store_true", help="no progress bar")
    return out


def seed_groups(options: Sequence[str]) -> dict[str, list[str]]:
    """label -> the policies that match its pattern, sorted. Raises `InputError` for fewer than two."""
    groups = {}
    for option in options:
        label, _, pattern = option.partition("=")
        found = sorted(map(str, _matching(pattern))) if pattern else []
        if not label or len(found) < 2:
            raise InputError("--seeds", "", repr(option), "LABEL=PATTERN that matches two or more policies")
        groups[label] = found
    return groups


def _matching(pattern: str) -> list[Path]:
    """The paths that a shell pattern, relative or not, stands for."""
    path = Path(pattern)
    return list(Path(path.anchor).glob(str(path.relative_to(path.anchor))))


def make_cases(arguments: argparse.Namespace) -> list[Case]:
    """Every set of workloads that the command line asks for."""
    shifts = list(SHIFTS) if "all" in arguments.shifts else arguments.shifts
    cases = [
        make_case(source, arguments.overrides, arguments.split, shift)
        for source in arguments.scenarios
        for shift in (None, *shifts)
    ]
    first = arguments.scenarios[0]
    cases += [make_case(first, arguments.overrides, arguments.split, trace=trace) for trace in arguments.traces]
    labels = [case.label for case in cases]
    double = next((label for label in labels if labels.count(label) > 1), None)
    if double is not None:
        raise InputError("--scenarios", "", f"two sets of workloads called {double!r}", "distinct names")
    return cases


def run(arguments: argparse.Namespace) -> None:
    groups = seed_groups(arguments.seeds)
    names = list(dict.fromkeys([*arguments.policies, *(name for group in groups.values() for name in group)]))
    if not names:
        raise InputError("--policies", "", "none", "at least one policy")
    reference = arguments.reference or names[0]
    if reference not in names:
        raise InputError("--reference", "", repr(arguments.reference), f"one of the policies {names}")
    episodes = EPISODES[arguments.split] if arguments.episodes is None else arguments.episodes
    if episodes < 1:
        raise InputError("--episodes", "", episodes, "at least 1")
    if arguments.seed < 0:
        raise InputError("--seed", "", arguments.seed, "at least 0")
    if arguments.out is not None and arguments.out.exists() and not arguments.out.is_dir():
        raise InputError("--out", "", arguments.out, "a folder")
    told = BASELINE if BASELINE in names else reference
    names = list(dict.fromkeys([*names, told.removesuffix(TRUE_DURATIONS) + TRUE_DURATIONS]))
    cases = make_cases(arguments)
    policies = {name: fingerprint(resolve(name, cases[0])) for name in names}
    settings = {"split": arguments.split, "seed": arguments.seed, "episodes": episodes, "reference": reference}
    sets, terminal = {}, Terminal()
    with stage(arguments.out, arguments.workers, arguments.quiet, arguments.ray) as theatre:
        for case in cases:
            sets[case.label] = evaluate_case(case, names, settings, groups, theatre)
            terminal.print(table(sets[case.label]["summary"], case.label, terminal.width))
    if arguments.out is not None:
        what = {
            **settings,
            "policies": policies,
            "sets": {label: each["scenario_digest"] for label, each in sets.items()},
        }
        results = {
            **settings,
            "command": "python -m agents.evaluate " + shlex.join(arguments.given),
            "config_sha256": hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest(),
            "versions": versions(),
            "names": names,
            "policies": policies,
            "labels": list(sets),
            "sets": sets,
        }
        save(results, cases[0], arguments.out)


def save(results: dict[str, Any], first: Case, out: Path) -> None:
    """Write results.json, latency.json and the figures."""
    from agents.evaluation.figures import draw_results

    write_json(out / "results.json", results)
    seed = split_seeds(results["seed"], results["split"], 1)[0]
    names = [name for name in results["policies"] if not name.endswith(TRUE_DURATIONS)]
    latency = {name: decision_latency(resolve(name, first), first, seed) for name in names}
    write_json(out / "latency.json", {"set": first.label, "machine": platform.machine(), "policies": latency})
    print(out / "results.json")
    for picture in draw_results(results, out):
        print(picture)


@command
def main(argv: list[str]) -> int:
    """Run the command line; 0: done, 1: a release that does not give what it says, 2: bad input, 130: interrupted."""
    arguments = parser().parse_args(argv)
    arguments.given = argv
    if arguments.release is not None:
        from agents.evaluation.release import check_release

        return 0 if check_release(arguments.release, arguments.workers, arguments.quiet) else 1
    try:
        run(arguments)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the same command goes on" if arguments.out is not None else "") from None
    return 0


if __name__ == "__main__":
    sys.exit(main())
