"""A policy file and what is said of it: the results on record, its model card, and whether it is what the record says.

A release is a folder with policy.npz and metrics.json, which is the results.json of the evaluation that it was released
on (or of one whose other policies are heuristics): its policies are named there relative to the folder, or as the
folder's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from agents.evaluation import tables
from agents.evaluation.compare import BASELINE, CasePlayer, name_on_case, open_player, policy_fingerprint
from agents.evaluation.episodes import TRUE_DURATIONS, Case, make_case, split_seeds
from agents.evaluation.statistics import Json, columns_as_json, columns_of, mean_known
from nvlenv.common.config import read_yaml
from nvlenv.common.errors import InputError
from nvlenv.common.files import write_text
from nvlenv.policies.learned import read_policy_file
from nvlenv.policies.observation import LONGEST

OwnSet = tuple[str, Json, str]  # label and results of a set, and the name of the policy there
TOLERANCE = 1e-6  # relative; records have seven digits
CARD = "card.md"
LIMITS = """\
- It chooses racks; which nodes of a rack, what fits where and who may be evicted are decided by rules that it cannot
  break: an action that is not legal has no chance.
- It knows run times by estimates only, and the cluster as it is now; it does not foresee arrivals.
- Priorities, quotas and the weights of job classes are given. With other weights, cost means something else.
- The simulator's slowdown of a spread job is a model of collectives, not a measurement of your jobs.
- Nothing was learned on live clusters. Run it in shadow mode beside what decides today before it decides."""
OUT_OF_RANGE = f"""\
- Any number of racks; the order of racks makes no difference to it but for ties, which go to the lowest index.
- Every feature is cut off at the ends of its range: waits and run times beyond {LONGEST:g} h look like {LONGEST:g} h,
  jobs of more than 4,096 GPUs like jobs of 4,096.
- A file for another feature schema, a damaged one, or one with numbers that are not finite is refused, never guessed.
- The same state gives the same action on every machine: logits are rounded to a grid, sums have a fixed order."""


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
        run = source.parent / "config.yaml"
        config = read_yaml(run) if run.is_file() else {}
        made_of = {"source": config["scenarios"][0], "overrides": list(config.get("overrides") or ())} if config else {}
        results = {**results, **head, "sets": {label: {**results, **made_of}}}
    if not isinstance(results, dict) or not results.get("sets") or "names" not in results:
        raise InputError(source, "", "other contents", "results of agents.evaluate")
    return results


def card(policy: Path, results: Json | None = None) -> str:
    """The card in Markdown; `results` are those of `read_results`. Raises `InputError` for a file that is no policy."""
    arrays, manifest = read_policy_file(policy)
    schema, numbers = manifest["schema"], sum(array.size for array in arrays.values())
    own = list(_own_sets(manifest, results)) if results is not None else []
    facts = {
        "file hash": f"`{manifest['sha256']}` (SHA-256 of the arrays; checked whenever the file is read)",
        "licence": manifest.get("licence", "not stated"),
        "size": f"{numbers:,} numbers, {manifest['hidden']} hidden units, float64, no pickle",
        "features": f"schema version {schema['version']}: {len(schema['racks'])} per rack, {len(schema['job'])} of the "
        f"job, {len(schema['cluster'])} of the cluster",
    }
    parts = [
        f"# Model card: {tables.short_name(str(policy))}",
        "A placement policy for clusters of NVLink racks (NVL72), for `nvlenv.engine.load_policy`.",
        "\n".join(f"- {name}: {value}" for name, value in facts.items()),
        f"## Training\n\n{_training(manifest)}",
        f"## What it is worth\n\n{_worth(own, results)}",
        f"## Limits\n\n{LIMITS}",
        f"## Outside what it was trained on\n\n{''.join(_elsewhere(own, manifest.get('scenario')))}{OUT_OF_RANGE}",
    ]
    return "\n\n".join(parts) + "\n"


def write_card(policy: Path, results: Json | None = None) -> Path:
    """Write card.md beside a policy file."""
    path = policy.parent / CARD
    write_text(path, card(policy, results))
    return path


def _training(manifest: Json) -> str:
    config = manifest.get("config") or {}
    if not config:
        return "The file does not say how it was made."
    scenarios = ", ".join(map(str, config.get("scenarios") or [manifest.get("scenario", "unknown")]))
    overrides = ", ".join(f"`{text}`" for text in config.get("overrides") or ()) or "none"
    lines = [f"data: workloads of the train split of {scenarios}; settings changed: {overrides}"]
    if "scenario_digest" in manifest:
        lines.append(f"digest of the first scenario's settings: `{manifest['scenario_digest'][:16]}`")
    if "steps" in manifest:
        lines.append(f"decisions seen: {manifest['steps']:,}")
    if "seed" in config:
        lines.append(f"seed: {config['seed']}")
    if config.get("init"):
        lines.append(f"started from: `{Path(config['init']).name}`")
    for name, value in sorted(config.items()):
        if isinstance(value, dict):
            lines.append(f"{name}: {', '.join(f'{key} {value[key]}' for key in sorted(value))}")
    lines.append("selection: the best by mean cost on validation workloads; test workloads played no part")
    return "\n".join(f"- {line}" for line in lines)


def _worth(own: Sequence[OwnSet], results: Json | None) -> str:
    if results is None:
        return "Not evaluated yet: `python -m agents.evaluate --policies baseline FILE --out results`."
    parts = []
    for label, each, name in own:
        verdict = f"{tables.verdict_in_words(each, name, label)} {tables.gap_in_words(each, name)}"
        found, words = tables.standing(each, name), tables.capitalised(tables.standing_in_words(each, name))
        if not found["tie"] and not found["worse"]:
            words += " It ties with none and loses to none of them."
        parts += [f"### {label}", verdict, words, tables.summary_markdown(each["summary"])]
    if not parts:
        return "The evaluation at hand does not hold this file."
    head = (
        f"{results['episodes']} workloads of the {results['split']} split, seed {results['seed']}. Cost is weighted "
        "waiting, slowdown and lost work in GPU-hours per GPU-hour of the cluster; differences are paired by workload, "
        "with 95 % bootstrap intervals."
    )
    if "command" in results:
        head += f" Reproduce with `{results['command']}`."
    return "\n\n".join([head, *parts])


def _own_sets(manifest: Json, results: Json) -> Iterator[OwnSet]:
    """The sets in which this very file was evaluated, and its name there; of a training run, the only path."""
    policies = results["policies"]
    known = [name for name in policies if policies[name] == manifest["sha256"]]
    for label in results["labels"]:
        each = results["sets"][label]
        paths = [name for name in each["summary"]["policies"] if "/" in name and not policies.get(name)]
        for name in (known or paths)[:1]:
            yield label, each, name


def _elsewhere(own: Sequence[OwnSet], trained_on: str | None) -> Iterator[str]:
    """The sets that were not what it was trained on, and what became of it there."""
    word = {"lower": "better than", "higher": "worse than", "tie": "a tie with", "reference": "is"}
    for label, each, name in own:
        if label != trained_on:
            difference = each["summary"]["policies"][name]["difference"]
            than = f"{word[difference['verdict']]} {tables.short_name(each['summary']['reference'])}"
            yield f"- {label}: {than}, {difference['mean']:+.3f}\n"


def check_release(folder: Path, workers: int = 1, quiet: bool = False) -> bool:
    """Print what was checked, line by line; False if anything differs. Raises `InputError` if there is no record."""
    results, (_, manifest) = read_results(folder), read_policy_file(folder / "policy.npz")
    print(f"policy.npz: sha256 {manifest['sha256']}")
    problems = []
    if manifest["sha256"] not in results["policies"].values():
        problems.append(
            f"policy.npz has the fingerprint {manifest['sha256']}, which none of the evaluated policies had"
        )
    with open_player(None, workers, quiet) as player:
        for label in results["sets"]:
            found = list(_check_set(folder, results, label, player))
            print(f"{label}: {results['episodes']} workloads played again, {'as recorded' if not found else 'DIFFERS'}")
            problems += found
    for problem in problems:
        print(f"  {problem}")
    print("the release is what it says" if not problems else f"{len(problems)} differences")
    return not problems


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
