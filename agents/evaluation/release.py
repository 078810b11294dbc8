"""Check a released policy against its own record: the same file, and the same metrics when it is played again.

A release is a folder with policy.npz and metrics.json, which is the results.json of the evaluation that it was released
on (or of one whose other policies are heuristics): its policies are named there relative to the folder, or as the
folder's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from agents.evaluation.cases import Case, make_case
from agents.evaluation.compare import BASELINE, CasePlayer, name_on_case, open_player, policy_fingerprint
from agents.evaluation.episodes import TRUE_DURATIONS, split_seeds
from agents.evaluation.statistics import mean_known
from agents.evaluation.summary import Json, columns_as_json, columns_of
from nvlenv.common.config import read_yaml
from nvlenv.common.errors import InputError
from nvlenv.policies.learned import read_policy_file

TOLERANCE = 1e-6  # relative; records have seven digits


def check_release(folder: Path, workers: int = 1, quiet: bool = False) -> bool:
    """Print what was checked, line by line; False if anything differs. Raises `InputError` if there is no record."""
    results = read_results(folder)
    problems = list(_check_file(folder, results))
    with open_player(None, workers, quiet) as player:
        for label in results["sets"]:
            found = list(_check_set(folder, results, label, player))
            print(f"{label}: {results['episodes']} workloads played again, {'as recorded' if not found else 'DIFFERS'}")
            problems += found
    for problem in problems:
        print(f"  {problem}")
    print("the release is what it says" if not problems else f"{len(problems)} differences")
    return not problems


def read_results(path: Path) -> Json:
    """The results in a file, or in the folder of an evaluation, a training run or a release.

    A training run compares on one set of workloads; it reads like an evaluation with that one. Raises `InputError`.
    """
    candidates = [path / name for name in ("results.json", "metrics.json")] if path.is_dir() else [path]
    source = next((file for file in candidates if file.is_file()), None)
    if source is None:
        found = "neither results.json nor metrics.json" if path.is_dir() else "no such file or folder"
        raise InputError(path, "", found, "the folder of an evaluation or of a training run")
    try:
        results = json.loads(source.read_text("utf-8"))
    except ValueError as error:
        raise InputError(source, "", f"text that is not JSON ({error})", "results of agents.evaluate") from None
    if isinstance(results, dict) and "summary" in results:
        names, reference = list(results["summary"]["policies"]), results["summary"]["reference"]
        policies, label = dict.fromkeys(names, ""), results["scenario"]
        head = {"reference": reference, "names": names, "policies": policies, "labels": [label]}
        results = {**results, **head, "sets": {label: {**results, **_trained_on(source.parent)}}}
    if not isinstance(results, dict) or not results.get("sets") or "names" not in results:
        raise InputError(source, "", "other contents", "results of agents.evaluate")
    return results


def _trained_on(run: Path) -> Json:
    """Where the scenario of a training run comes from, by its config."""
    if not (run / "config.yaml").is_file():
        return {}
    config = read_yaml(run / "config.yaml")
    return {"source": config["scenarios"][0], "overrides": list(config.get("overrides") or ())}


def _check_file(folder: Path, results: Json) -> Iterator[str]:
    """The policy file is whole (reading it checks its own hash) and the one that was evaluated."""
    _, manifest = read_policy_file(folder / "policy.npz")
    print(f"policy.npz: sha256 {manifest['sha256']}")
    if manifest["sha256"] not in results["policies"].values():
        yield f"policy.npz has the fingerprint {manifest['sha256']}, which none of the evaluated policies had"


def _check_set(folder: Path, results: Json, label: str, player: CasePlayer) -> Iterator[str]:
    each = results["sets"][label]
    case = make_case(each["source"], each["overrides"], results["split"])
    if case.scenario.digest() != each["scenario_digest"]:
        yield f"{label}: its scenario has other settings now than when it was recorded"
        return
    here = {}
    for name, recorded in results["policies"].items():
        plain = name.removesuffix(TRUE_DURATIONS)  # `baseline` is another policy in every scenario
        meant = each["baseline"] + name[len(plain) :] if plain == BASELINE else recorded
        if (found := _found_here(folder, name, case, meant)) is None:
            yield f"{label}: {name} is not here, so it was not played"
        else:
            here[name] = found
    seeds = split_seeds(results["seed"], results["split"], results["episodes"])
    again = columns_as_json(columns_of(player.play(case, list(here.values()), seeds)))
    for name, found in here.items():
        for metric, recorded in each["workloads"][name].items():
            before, now = (np.array(rows, np.float64) for rows in (recorded, again[found].get(metric, [])))
            if before.shape != now.shape or not np.allclose(before, now, rtol=TOLERANCE, atol=1e-9, equal_nan=True):
                means = f"recorded mean {mean_known(before):.6g}, now {mean_known(now):.6g}"
                yield f"{label}, {name}, {metric}: {means}"


def _found_here(folder: Path, name: str, case: Case, fingerprint: str) -> str | None:
    """A recorded policy as it is found now: a file in the release or where it was, a heuristic by its name."""
    own = str(folder / "policy.npz")
    if policy_fingerprint(own) == fingerprint:
        return own
    try:
        return name if policy_fingerprint(name_on_case(name, case)) == fingerprint else None
    except InputError:
        return None
