"""Make the report of an evaluation or of a training run: one HTML file that needs no network.

python -m agents.report results --out report.html
python -m agents.report checkpoints/RUN --out report.html --replay policy.npz best-fit --workload 3

A policy that is replayed is one of the results, by its name there or in their tables, or by a file or folder that holds
the same policy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agents.evaluation.cases import Case, make_case
from agents.evaluation.cells import fingerprint, resolve
from agents.evaluation.episodes import split_seeds
from agents.evaluation.figures import class_colours
from agents.evaluation.release import read_results
from agents.evaluation.summary import short_name
from agents.evaluation.tables import candidates
from agents.report.page import page
from agents.report.recording import describe_episode, record
from agents.report.words import typical_workload
from nvlenv.cluster.types import Workload
from nvlenv.common.commandline import command
from nvlenv.common.errors import InputError
from nvlenv.common.files import write_text

Json = dict[str, Any]


def replayed_policies(results: Json, each: Json, wanted: Sequence[str], case: Case) -> list[tuple[str, str]]:
    """The two policies of the replay: those asked for, else the cheapest and the reference (or the next one).

    Of each, how the results call it, and the heuristic or file that is played.
    """
    names = candidates(each["summary"])
    if wanted:
        return [_asked_for(name, names, results["policies"], case) for name in wanted]
    best, reference = names[0], each["summary"]["reference"]
    other = reference if best != reference else names[min(1, len(names) - 1)]
    return [(name, resolve(name, case)) for name in (best, other)]


def _asked_for(wanted: str, names: Sequence[str], recorded: Json, case: Case) -> tuple[str, str]:
    """A policy by its name in the results, by that in their tables, or by a file (or heuristic) that is the same."""
    called = [name for name in names if name == wanted] or [name for name in names if short_name(name) == wanted]
    if len(called) == 1:
        return called[0], resolve(called[0], case)
    mine = _fingerprint(wanted)
    for name in called or names:
        if mine and mine == (recorded.get(name) or _fingerprint(resolve(name, case))):
            return name, wanted
    expected = f"one of {', '.join(names)}, its name in the table, or a file or folder with the same policy"
    raise InputError("--replay", "", repr(wanted), expected)


def _fingerprint(name: str) -> str:
    """What makes a policy the same one; "": there is none of this name. Raises `InputError` for a damaged file."""
    try:
        return fingerprint(name)
    except InputError:
        if Path(name).is_file():
            raise
        return ""


def replay_of(results: Json, wanted: Sequence[str] = (), workload: int | None = None) -> dict[str, Any]:
    """What the replay shows: one workload of the first set, played again by two policies.

    Raises `InputError` if a policy is not there any more, or does not give what the results say.
    """
    label = results["labels"][0]
    each = results["sets"][label]
    case = make_case(each["source"], each["overrides"], results["split"])
    chosen = replayed_policies(results, each, wanted, case)
    k = typical_workload(each, *(name for name, _ in chosen)) if workload is None else workload
    if not 0 <= k < results["episodes"]:
        raise InputError("--workload", "", k, f"0 to {results['episodes'] - 1}")
    if case.scenario.digest() != each["scenario_digest"]:
        raise InputError("results", label, "a scenario whose settings have changed since", "evaluate again")
    episode = case.scenario.draw(split_seeds(results["seed"], results["split"], k + 1)[k])
    policies = []
    for name, played in chosen:
        recording, metrics = record(played, case, episode)
        recorded = each["workloads"][name]["cost"][k]
        if abs(metrics["cost"] - recorded) > 1e-6 * max(1.0, abs(recorded)):
            found = f"cost {metrics['cost']:.7g} on workload {k}, now"
            raise InputError("results", f"{label}, {name}", found, f"{recorded:.7g}, as recorded: evaluate again")
        policies.append({"label": short_name(name), "name": name, **recording})
    describe = describe_episode(case, episode)
    return {
        "episode": describe,
        "policies": policies,
        "colours": class_colours(episode.workload.class_names),
        "start": _opening(policies[1], episode.workload, int(describe["hero"]), float(describe["from"])),
        "workload": k,
        "note": _note(case, label, k, workload is None, len(episode.workload)),
    }


def _note(case: Case, label: str, k: int, typical: bool, jobs: int) -> str:
    """What the reader of the replay sees."""
    chosen = "on which the two differ about as much as on average" if typical else "chosen by hand"
    spec = case.scenario.cluster_spec()
    nodes = int(np.bincount(spec.node_rack).max())
    return (
        f"Workload {k} of {label}, {chosen}. Each column is a rack of {nodes} nodes, each node a row of "
        f"{spec.gpus_per_node} GPUs. Both policies see the same {jobs:,} jobs; the pointers above the racks show the "
        "last decision."
    )


def _opening(policy: Json, jobs: Workload, hero: int, after: float) -> float:
    """The hour at which the replay opens: halfway through the longest wait of a hero under the second policy."""
    runs = policy["runs"]
    starts = dict(zip(reversed(runs["job"]), reversed(runs["start"]), strict=True))  # the first start of each job
    waits = [
        (start - jobs.submit[job], -job, (start + jobs.submit[job]) / 2)
        for job, start in starts.items()
        if jobs.gpus[job] >= hero and jobs.submit[job] >= after
    ]
    return round(float(max(waits)[2]), 1) if waits else after


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(prog="python -m agents.report", description=__doc__, allow_abbrev=False)
    out.formatter_class = argparse.RawDescriptionHelpFormatter
    out.add_argument("results", type=Path, metavar="RUN_OR_RESULTS", help="folder of an evaluation or training run")
    out.add_argument("--out", type=Path, default=Path("report.html"), metavar="FILE", help="(default %(default)s)")
    out.add_argument("--replay", nargs=2, default=(), metavar="POLICY", help="two policies (default: best, reference)")
    out.add_argument("--workload", type=int, help="which workload (default: a typical one)")
    out.add_argument("--no-replay", action="store_true", help="tables and figures only")
    return out


@command
def main(argv: list[str]) -> None:
    arguments = parser().parse_args(argv)
    results = read_results(arguments.results)
    replay = None if arguments.no_replay else replay_of(results, arguments.replay, arguments.workload)
    write_text(arguments.out, page(results, replay))
    print(arguments.out)


if __name__ == "__main__":
    sys.exit(main())
