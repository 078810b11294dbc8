"""The search for the best rule of a scenario, on validation workloads: `python -m agents.tune baselines`.

Every packing rule x ways to spread x reservations x ways to open racks, then the parameters of the best. All candidates
start on the same few workloads; the better third goes on to twice as many, and so on until all workloads are played
(successive halving). Test workloads are never touched.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from tqdm import tqdm

from agents.evaluation.episodes import measure, split_scenario, split_seeds
from agents.evaluation.fanout import Mapper
from agents.evaluation.statistics import Interval, bootstrap, paired
from nvlenv.common.config import read_yaml
from nvlenv.common.files import write_text
from nvlenv.envs.scenario import Scenario, prepare
from nvlenv.policies import UNTUNED
from nvlenv.policies.heuristics.packing import PACKINGS
from nvlenv.policies.heuristics.rule import parse_rule
from nvlenv.policies.resolver import play, resolve_policy

SPLIT = "validation"
FIRST = 4  # workloads of the first round
KEEP = 1 / 3  # share of the candidates that goes on to the next
FINALISTS = 6  # but never fewer than so many
SHOWN = 5  # of them in the file
REFERENCES = ("best-fit", UNTUNED)  # always play to the end, to be compared with

Number = int | float
Parameters = dict[str, Number]

SPREADS: tuple[tuple[str, ...], ...] = ((), ("fill",), ("tight",), ("delay",), ("fill", "delay"), ("tight", "delay"))
# The combinations are those of rules that were known before. `drain`, and `easy` with patience, came out of this
# project's own search for better policies: they are the readable rival of learned policies, not the bar.
RESERVATIONS: tuple[tuple[str, ...], ...] = ((), ("hold",), ("easy",), ("hold", "easy"))
EASY_VARIANTS: tuple[Parameters, ...] = ({}, {"spare": 1}, {"share": 0.1})
OPENINGS: tuple[tuple[str, ...], ...] = ((), ("open",), ("open-hero",))
REFINEMENTS: dict[str, dict[str, tuple[Number, ...]]] = {  # values tried for the parameters of the best candidates
    "delay": {"hours": (1.0, 2.0, 4.0, 8.0, 16.0)},
    "hold": {"racks": (1, 2, 3, 4), "nodes": (2, 4, 8), "hours": (6.0, 12.0, 24.0, 48.0)},
    "easy": {"share": (0.0, 0.05, 0.1, 0.15, 0.2), "spare": (0, 1)},
}


@dataclass(frozen=True)
class Combination:
    """A heuristic in parts, so that its parameters can be varied."""

    packing: str
    modifiers: tuple[tuple[str, tuple[tuple[str, Number], ...]], ...] = ()

    @property
    def name(self) -> str:
        """As `nvlenv.policies.resolver.resolve_policy` reads it."""
        parts = [self.packing]
        for modifier, parameters in self.modifiers:
            settings = ",".join(f"{key}={value:g}" for key, value in parameters)
            parts.append(f"{modifier}({settings})" if settings else modifier)
        return "+".join(parts)

    def varied(self) -> Iterator[Combination]:
        """Every candidate that differs from this one in a single parameter (defaults left out count as given)."""
        same = parse_rule(self.name)
        for place, (modifier, parameters) in enumerate(self.modifiers):
            for key, values in REFINEMENTS.get(modifier, {}).items():
                for value in values:
                    new = tuple(sorted({**dict(parameters), key: value}.items()))
                    changed = (*self.modifiers[:place], (modifier, new), *self.modifiers[place + 1 :])
                    candidate = replace(self, modifiers=changed)
                    if parse_rule(candidate.name) != same:
                        yield candidate


def all_combinations() -> list[Combination]:
    """Every packing rule x spreads x reservations x openings, with default parameters but the variants of EASY."""
    found = []
    for packing, spread, reservation, opening in itertools.product(PACKINGS, SPREADS, RESERVATIONS, OPENINGS):
        for variant in EASY_VARIANTS if "easy" in reservation else ({},):
            names = (*spread, *reservation, *opening)
            modifiers = tuple((name, tuple(variant.items()) if name == "easy" else ()) for name in names)
            found.append(Combination(packing, modifiers))
    return found


def rule_costs(seed: np.random.SeedSequence, scenario: Scenario, names: Sequence[str]) -> list[float]:
    """The cost of every heuristic on one workload."""
    episode = scenario.draw(seed)
    costs = []
    for name in names:
        sim = prepare(scenario, episode, sample=False)
        play(resolve_policy(name), sim)
        costs.append(measure(sim, episode.workload.class_names)["cost"])
    return costs


class RuleSearch:
    """Plays candidates on the validation workloads, never one twice on the same, and counts the episodes."""

    def __init__(self, scenario: Scenario, workloads: int, seed: int, quiet: bool, mapped: Mapper = map) -> None:
        self.scenario = split_scenario(scenario, SPLIT)
        self.seeds = split_seeds(seed, SPLIT, workloads)
        self.quiet, self.mapped = quiet, mapped
        self.costs: dict[str, list[float]] = {}  # by name, in the order of the seeds

    @property
    def episodes(self) -> int:
        """Episodes played so far."""
        return sum(map(len, self.costs.values()))

    def play(self, candidates: Iterable[Combination], workloads: int) -> None:
        """Bring the candidates to so many workloads."""
        groups: dict[int, list[str]] = {}  # workloads played so far -> names
        for name in dict.fromkeys(candidate.name for candidate in candidates):
            groups.setdefault(len(self.costs.setdefault(name, [])), []).append(name)
        for played, names in groups.items():
            if seeds := self.seeds[played:workloads]:
                results = self.mapped(partial(rule_costs, scenario=self.scenario, names=names), seeds)
                title = f"{len(names)} heuristics"
                for costs in tqdm(results, title, len(seeds), disable=self.quiet, file=sys.stderr):
                    for name, cost in zip(names, costs, strict=True):
                        self.costs[name].append(cost)

    def mean(self, candidate: Combination) -> float:
        """Mean cost of a candidate over the workloads that it has played."""
        return float(np.mean(self.costs[candidate.name]))

    def halve(self, candidates: Sequence[Combination]) -> list[Combination]:
        """Successive halving; returns the finalists, which have played all workloads, best first.

        Round by round and not as Optuna's pruners do it, one trial after another against those before: all rules of a
        round play the same workloads, so that the order of trials and the number of processes change nothing.
        """
        workloads = min(FIRST, len(self.seeds))
        while True:
            self.play(candidates, workloads)
            candidates = sorted(candidates, key=self.mean)
            if workloads == len(self.seeds):
                return list(candidates)
            candidates = candidates[: max(FINALISTS, int(KEEP * len(candidates)))]
            workloads = min(2 * workloads, len(self.seeds))

    def refine(self, best: Combination) -> Combination:
        """Vary one parameter at a time, on all workloads, for as long as that helps."""
        while True:
            varied = list(best.varied())
            self.play(varied, len(self.seeds))
            better = min(varied, key=self.mean, default=best)
            if self.mean(better) >= self.mean(best):
                return best
            best = better

    def run(self) -> Combination:
        """The best heuristic found."""
        finalists = self.halve(all_combinations())
        parts = [name.split("+") for name in REFERENCES]
        references = [Combination(packing, tuple((name, ()) for name in names)) for packing, *names in parts]
        self.play(references, len(self.seeds))
        return min(map(self.refine, finalists[:2]), key=self.mean)


def entry_of(search: RuleSearch, best: Combination) -> dict[str, Any]:
    """What is written about the winner."""
    full = {name: np.array(costs) for name, costs in search.costs.items() if len(costs) == len(search.seeds)}
    cost = full.pop(best.name)
    means = {name: float(costs.mean()) for name, costs in full.items()}
    return {
        "policy": best.name,
        "cost": _rounded(bootstrap(cost)),
        "less_than": {name: _rounded(paired(cost, full[name])) for name in REFERENCES if name in full},
        "runners_up": {name: round(means[name], 4) for name in sorted(means, key=means.__getitem__)[:SHOWN]},
        "candidates": len(search.costs),
        "episodes_played": search.episodes,
    }


def _rounded(interval: Interval) -> dict[str, float]:
    return {key: round(float(value), 4) for key, value in vars(interval).items()}


def write_entry(path: Path, name: str, entry: dict[str, Any]) -> None:
    """Put one scenario's entry into the file, whole or not at all; the others stay."""
    entries = {**(read_yaml(path) if path.exists() else {}), name: entry}
    header = "# The best heuristic of each scenario on validation workloads; written by python -m agents.tune baselines"
    write_text(path, f"{header}\n{yaml.safe_dump(entries, sort_keys=False, width=120)}")
