"""The model card of a policy file: what it is, what it was trained on, what it is worth, and where it is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agents.evaluation.summary import Json, short_name
from agents.evaluation.tables import summary_markdown
from agents.evaluation.words import gap_in_words, standing, standing_in_words, verdict_in_words
from nvlenv.common.files import write_text
from nvlenv.policies.learned import Arrays, read_policy_file
from nvlenv.policies.observation import LONGEST

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


def card(policy: Path, results: Json | None = None) -> str:
    """The text of the card, in Markdown. `results`: as `agents.evaluation.release.read_results` gives them.

    Raises `InputError` for a file that is no policy.
    """
    arrays, manifest = read_policy_file(policy)
    parts = [
        f"# Model card: {short_name(str(policy))}",
        "A placement policy for clusters of NVLink racks (NVL72), for `nvlenv.engine.load_policy`.",
        _facts(arrays, manifest),
        f"## Training\n\n{_training(manifest)}",
        f"## What it is worth\n\n{_worth(manifest, results)}",
        f"## Limits\n\n{LIMITS}",
        f"## Outside what it was trained on\n\n{_elsewhere(manifest, results)}{OUT_OF_RANGE}",
    ]
    return "\n\n".join(parts) + "\n"


def write_card(policy: Path, results: Json | None = None) -> Path:
    """Write card.md beside a policy file."""
    path = policy.parent / CARD
    write_text(path, card(policy, results))
    return path


def _facts(arrays: Arrays, manifest: Json) -> str:
    numbers = sum(array.size for array in arrays.values())
    facts = {
        "file hash": f"`{manifest['sha256']}` (SHA-256 of the arrays; checked whenever the file is read)",
        "licence": manifest.get("licence", "not stated"),
        "size": f"{numbers:,} numbers, {manifest['hidden']} hidden units, float64, no pickle",
        "features": f"schema version {manifest['schema']['version']}: {len(manifest['schema']['racks'])} per rack, "
        f"{len(manifest['schema']['job'])} of the job, {len(manifest['schema']['cluster'])} of the cluster",
    }
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())


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


def _worth(manifest: Json, results: Json | None) -> str:
    if results is None:
        return "Not evaluated yet: `python -m agents.evaluate --policies baseline FILE --out results`."
    parts = []
    for label, each, name in _own_sets(manifest, results):
        parts += [f"### {label}", *_verdict(each, name, label), summary_markdown(each["summary"])]
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


def _own_sets(manifest: Json, results: Json) -> Iterator[tuple[str, Json, str]]:
    """The sets in which this very file was evaluated, and its name there; of a training run, the only path."""
    policies = results["policies"]
    known = [name for name in policies if policies[name] == manifest["sha256"]]
    for label in results["labels"]:
        each = results["sets"][label]
        paths = [name for name in each["summary"]["policies"] if "/" in name and not policies.get(name)]
        for name in (known or paths)[:1]:
            yield label, each, name


def _verdict(each: Json, name: str, label: str) -> Iterator[str]:
    """Where it wins, ties and loses, in words."""
    yield f"{verdict_in_words(each, name, label)} {gap_in_words(each, name)}"
    found, words = standing(each, name), standing_in_words(each, name)
    if not found["tie"] and not found["worse"]:
        words += " It ties with none and loses to none of them."
    yield words[0].upper() + words[1:]


def _elsewhere(manifest: Json, results: Json | None) -> str:
    """The sets that were not what it was trained on, and what became of it there."""
    word = {"lower": "better than", "higher": "worse than", "tie": "a tie with", "reference": "is"}
    lines = []
    for label, each, name in _own_sets(manifest, results) if results else ():
        if label != manifest.get("scenario"):
            difference, reference = each["summary"]["policies"][name]["difference"], each["summary"]["reference"]
            lines.append(
                f"- {label}: {word[difference['verdict']]} {short_name(reference)}, {difference['mean']:+.3f}\n"
            )
    return "".join(lines)
