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

import hashlib
import json
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agents.evaluation.compare import (
    BASELINE,
    compare_on_case,
    decision_latency,
    name_on_case,
    open_player,
    policy_fingerprint,
    versions,
)
from agents.evaluation.episodes import SHIFTS, SPLITS, TRUE_DURATIONS, Case, make_case, split_seeds
from agents.evaluation.figures import draw_results
from agents.evaluation.release import check_release
from agents.evaluation.statistics import Json
from agents.evaluation.tables import Terminal, summary_table
from nvlenv.common.commandline import command, option, parse
from nvlenv.common.errors import InputError
from nvlenv.common.files import write_json
from nvlenv.envs.scenario import scenario_names

EPISODES = {"train": 64, "validation": 64, "test": 200}
RELEASE = Path("checkpoints") / "release"


@dataclass(frozen=True)
class EvaluateOptions:
    __doc__ = __doc__

    policies: tuple[str, ...] = option(
        "baseline, heuristics such as best-fit+fill+open, policy files, or run folders", default=(), metavar="POLICY"
    )
    seeds: tuple[str, ...] = option(
        "policy files or run folders of one recipe trained with several seeds, such as 'ppo=checkpoints/lab-16-s*'; "
        "reported one by one and together",
        default=(), append=True, metavar="LABEL=PATTERN",
    )  # fmt: skip
    scenarios: tuple[str, ...] = option(
        f"YAML files or some of {', '.join(scenario_names())}",
        default=("lab-16",), flags=("--scenarios", "--scenario"), metavar="SCENARIO",
    )  # fmt: skip
    overrides: tuple[str, ...] = option(
        "settings of every scenario, such as workload.load=0.9",
        default=(), flags=("--set",), nargs="*", metavar="KEY=VALUE",
    )  # fmt: skip
    shifts: tuple[str, ...] = option(
        f"every scenario also out of distribution: {', '.join(SHIFTS)}, or all", default=(), metavar="SHIFT"
    )
    traces: tuple[Path, ...] = option(
        "also replays of these job traces on the cluster of the first scenario", default=(), metavar="FILE"
    )
    episodes: int | None = option(
        f"workloads of each set (default {EPISODES['validation']}, of the test split {EPISODES['test']})",
        default=None, least=1,
    )  # fmt: skip
    seed: int = option("of the workloads", default=0, least=0)
    split: str = option("which workloads; test is for the last word only", default="validation", choices=tuple(SPLITS))
    reference: str | None = option("the policy that differences are taken against (default: the first)", default=None)
    workers: int = option("processes; 0: as many as cores", default=1, least=0)
    ray: bool = option("processes on the Ray cluster that RAY_ADDRESS names", default=False)
    out: Path | None = option("folder for results.json, latency.json, figures and played episodes", default=None)
    release: Path | None = option(
        f"check a released policy against its own record instead (default {RELEASE})",
        default=None, nargs="?", const=RELEASE, metavar="FOLDER",
    )  # fmt: skip
    quiet: bool = option("no progress bar", default=False)


def evaluate_policies(options: EvaluateOptions, given: Sequence[str]) -> None:
    """Play, print a table per set of workloads, and write all to the folder with the command line `given`."""
    groups = seed_groups(options.seeds)
    names = list(dict.fromkeys([*options.policies, *(name for group in groups.values() for name in group)]))
    if not names:
        raise InputError("--policies", "", "none", "at least one policy")
    reference = options.reference or names[0]
    if reference not in names:
        raise InputError("--reference", "", repr(options.reference), f"one of the policies {names}")
    if options.out is not None and options.out.exists() and not options.out.is_dir():
        raise InputError("--out", "", options.out, "a folder")
    told = BASELINE if BASELINE in names else reference
    names = list(dict.fromkeys([*names, told.removesuffix(TRUE_DURATIONS) + TRUE_DURATIONS]))
    cases = make_cases(options)
    policies = {name: policy_fingerprint(name_on_case(name, cases[0])) for name in names}
    episodes = options.episodes or EPISODES[options.split]
    settings = {"split": options.split, "seed": options.seed, "episodes": episodes, "reference": reference}
    sets, terminal = {}, Terminal()
    with open_player(options.out, options.workers, options.quiet, options.ray) as player:
        for case in cases:
            sets[case.label] = compare_on_case(case, names, settings, player, groups)
            terminal.print(summary_table(sets[case.label]["summary"], case.label, terminal.width))
    if options.out is not None:
        digests = {label: each["scenario_digest"] for label, each in sets.items()}
        what = json.dumps({**settings, "policies": policies, "sets": digests}, sort_keys=True)
        results = {
            **settings,
            "command": "python -m agents.evaluate " + shlex.join(given),
            "config_sha256": hashlib.sha256(what.encode()).hexdigest(),
            "versions": versions(),
            "names": names,
            "policies": policies,
            "labels": list(sets),
            "sets": sets,
        }
        write_results(results, cases[0], options.out)


def seed_groups(options: Sequence[str]) -> dict[str, list[str]]:
    """label -> the policies that match its pattern, sorted. Raises `InputError` for fewer than two."""
    groups = {}
    for given in options:
        label, _, pattern = given.partition("=")
        path = Path(pattern)  # a shell pattern, relative or not
        found = sorted(map(str, Path(path.anchor).glob(str(path.relative_to(path.anchor))))) if pattern else []
        if not label or len(found) < 2:
            raise InputError("--seeds", "", repr(given), "LABEL=PATTERN that matches two or more policies")
        groups[label] = found
    return groups


def make_cases(options: EvaluateOptions) -> list[Case]:
    """Every set of workloads that the command line asks for. Raises `InputError` for two of one name."""
    shifts = tuple(SHIFTS) if "all" in options.shifts else options.shifts
    first, overrides, split = options.scenarios[0], options.overrides, options.split
    cases = [make_case(source, overrides, split, shift) for source in options.scenarios for shift in (None, *shifts)]
    cases += [make_case(first, overrides, split, trace=trace) for trace in options.traces]
    labels = [case.label for case in cases]
    double = next((label for label in labels if labels.count(label) > 1), None)
    if double is not None:
        raise InputError("--scenarios", "", f"two sets of workloads called {double!r}", "distinct names")
    return cases


def write_results(results: Json, first: Case, out: Path) -> None:
    """Write results.json, latency.json and the figures."""
    write_json(out / "results.json", results)
    seed = split_seeds(results["seed"], results["split"], 1)[0]
    names = [name for name in results["policies"] if not name.endswith(TRUE_DURATIONS)]
    latency = {name: decision_latency(name_on_case(name, first), first, seed) for name in names}
    write_json(out / "latency.json", {"set": first.label, "machine": platform.machine(), "policies": latency})
    print(out / "results.json", *draw_results(results, out), sep="\n")


@command
def main(argv: list[str]) -> int:
    """Run the command line; 0: done, 1: a release that does not give what it says, 2: bad input, 130: interrupted."""
    options = parse(EvaluateOptions, argv, "python -m agents.evaluate")
    if options.release is not None:
        return 0 if check_release(options.release, options.workers, options.quiet) else 1
    try:
        evaluate_policies(options, argv)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the same command goes on" if options.out is not None else "") from None
    return 0


if __name__ == "__main__":
    sys.exit(main())
