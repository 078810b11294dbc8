"""Make the report of an evaluation or of a training run: one HTML file that needs no network.

python -m agents.report results --out report.html
python -m agents.report checkpoints/RUN --out report.html --replay policy.npz best-fit --workload 3
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agents.cases import Case, make_case
from agents.cells import resolve
from agents.episodes import find_policy, split_seeds
from agents.figures import class_colours
from agents.release import read_results
from agents.report.page import page
from agents.report.recording import describe_episode, record
from agents.report.words import typical_workload
from agents.summary import short_name
from agents.tables import candidates
from nvlenv.commandline import command
from nvlenv.errors import InputError
from nvlenv.files import write_text
from nvlenv.types import Workload

Json = dict[str, Any]


def replayed_policies(each: Json, wanted: Sequence[str]) -> tuple[str, str]:
    """The two policies of the replay: those asked for, else the cheapest and the reference (or the next one)."""
    names = candidates(each["summary"])
    for name in wanted:
        if name not in names:
            raise InputError("--replay", "", repr(name), f"two of {names}")
    if wanted:
        return wanted[0], wanted[1]
    best, reference = names[0], each["summary"]["reference"]
    return (best, reference) if best != reference else (best, names[min(1, len(names) - 1)])


def replay_of(results: Json, wanted: Sequence[str] = (), workload: int | None = None) -> dict[str, Any]:
    """What the replay shows: one workload of the first set, played again by two policies.

    Raises `InputError` if a policy is not there any more, or does not give what the results say.
    """
    label = results["labels"][0]
    each = results["sets"][label]
    names = replayed_policies(each, wanted)
    k = typical_workload(each, *names) if workload is None else workload
    if not 0 <= k < results["episodes"]:
        raise InputError("--workload", "", k, f"0 to {results['episodes'] - 1}")
    case = make_case(each["source"], each["overrides"], results["split"])
    if case.scenario.digest() != each["scenario_digest"]:
        raise InputError("results", label, "a scenario whose settings have changed since", "evaluate again")
    episode = case.scenario.draw(split_seeds(results["seed"], results["split"], k + 1)[k])
    policies = []
    for name in names:
        recording, metrics = record(_found(name, case), case, episode)
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


def _found(name: str, case: Case) -> str:
    """The policy, if it can still be read."""
    meant = resolve(name, case)
    find_policy(meant)
    return meant


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
    out.add_argument("--replay", nargs=2, default=(), metavar="POLICY", help="the two policies that are replayed")
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
