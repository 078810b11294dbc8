"""Search for settings on the validation workloads.

    python -m agents.tune baselines --scenario lab-16
    python -m agents.tune ppo --trials 40 ppo.batch_size=2048

The second searches PPO's settings, see `agents.search.ppo`. The first finds the best heuristic of a scenario: every
packing rule x ways to spread x reservations x ways to open racks, then the parameters of the best. The winner goes to
configs/baselines.yaml, where the rest of the project reads it
(`nvlenv.policies.baseline_name`): the bar that a learned policy has to clear.

All candidates start on the same few workloads; the better third goes on to twice as many, and so on until all workloads
are played (successive halving). Test workloads are never touched.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from tqdm import tqdm

from agents.evaluate import evaluation_scenario, versions
from agents.evaluation.episodes import measure, split_scenario, split_seeds
from agents.evaluation.fanout import Mapper, fan_out
from agents.evaluation.statistics import bootstrap, paired
from nvlenv.common.commandline import command
from nvlenv.common.config import config_names, read_yaml
from nvlenv.common.errors import InputError
from nvlenv.common.files import write_text
from nvlenv.envs.scenario import Scenario, prepare, scenario_names
from nvlenv.policies.heuristics.packing import PACKINGS
from nvlenv.policies.heuristics.rule import parse_rule
from nvlenv.policies.play import play
from nvlenv.policies.resolver import BASELINES, UNTUNED, heuristic

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

Costs = NDArray[np.float64]  # one per workload


@dataclass(frozen=True)
class Candidate:
    """A heuristic in parts, so that its parameters can be varied."""

    packing: str
    modifiers: tuple[tuple[str, tuple[tuple[str, Number], ...]], ...] = ()

    @property
    def name(self) -> str:
        """As `nvlenv.policies.heuristic` reads it."""
        parts = [self.packing]
        for modifier, parameters in self.modifiers:
            settings = ",".join(f"{key}={value:g}" for key, value in parameters)
            parts.append(f"{modifier}({settings})" if settings else modifier)
        return "+".join(parts)

    def varied(self) -> Iterator[Candidate]:
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


def all_candidates() -> list[Candidate]:
    """Every packing rule x spreads x reservations x openings, with default parameters but the variants of EASY."""
    found = []
    for packing, spread, reservation, opening in itertools.product(PACKINGS, SPREADS, RESERVATIONS, OPENINGS):
        for variant in EASY_VARIANTS if "easy" in reservation else ({},):
            names = (*spread, *reservation, *opening)
            modifiers = tuple((name, tuple(variant.items()) if name == "easy" else ()) for name in names)
            found.append(Candidate(packing, modifiers))
    return found


def costs_on(seed: np.random.SeedSequence, scenario: Scenario, names: Sequence[str]) -> list[float]:
    """The cost of every heuristic on one workload."""
    episode = scenario.draw(seed)
    costs = []
    for name in names:
        sim = prepare(scenario, episode, sample=False)
        play(heuristic(name), sim)
        costs.append(measure(sim, episode.workload.class_names)["cost"])
    return costs


class Search:
    """Plays candidates on the validation workloads, never one twice on the same, and counts the episodes."""

    def __init__(self, scenario: Scenario, workloads: int, seed: int, quiet: bool, mapped: Mapper = map) -> None:
        self.scenario = split_scenario(scenario, SPLIT)
        self.seeds = split_seeds(seed, SPLIT, workloads)
        self.quiet, self.mapped = quiet, mapped
        self.costs: dict[str, list[float]] = {}  # by name, in the order of the seeds

    @property
    def episodes(self) -> int:
        return sum(map(len, self.costs.values()))

    def play(self, candidates: Iterable[Candidate], workloads: int) -> None:
        """Bring the candidates to so many workloads."""
        groups: dict[int, list[str]] = {}  # workloads played so far -> names
        for name in dict.fromkeys(candidate.name for candidate in candidates):
            groups.setdefault(len(self.costs.setdefault(name, [])), []).append(name)
        for played, names in groups.items():
            if played < workloads:
                self._play_on(self.seeds[played:workloads], names)

    def _play_on(self, seeds: Sequence[np.random.SeedSequence], names: Sequence[str]) -> None:
        task = partial(costs_on, scenario=self.scenario, names=names)
        shown = tqdm(
            self.mapped(task, seeds), f"{len(names)} heuristics", len(seeds), disable=self.quiet, file=sys.stderr
        )
        for costs in shown:
            for name, cost in zip(names, costs, strict=True):
                self.costs[name].append(cost)

    def mean(self, candidate: Candidate) -> float:
        return float(np.mean(self.costs[candidate.name]))

    def halve(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Successive halving; returns the finalists, which have played all workloads, best first."""
        workloads = min(FIRST, len(self.seeds))
        while True:
            self.play(candidates, workloads)
            candidates = sorted(candidates, key=self.mean)
            if workloads == len(self.seeds):
                return list(candidates)
            candidates = candidates[: max(FINALISTS, int(KEEP * len(candidates)))]
            workloads = min(2 * workloads, len(self.seeds))

    def refine(self, best: Candidate) -> Candidate:
        """Vary one parameter at a time, on all workloads, for as long as that helps."""
        while True:
            varied = list(best.varied())
            self.play(varied, len(self.seeds))
            better = min(varied, key=self.mean, default=best)
            if self.mean(better) >= self.mean(best):
                return best
            best = better

    def run(self) -> Candidate:
        """The best heuristic found."""
        finalists = self.halve(all_candidates())
        self.play([Candidate(*_split(name)) for name in REFERENCES], len(self.seeds))
        return min(map(self.refine, finalists[:2]), key=self.mean)


def _split(name: str) -> tuple[str, tuple[tuple[str, tuple[tuple[str, Number], ...]], ...]]:
    """Parts of a name without parameters."""
    packing, *modifiers = name.split("+")
    return packing, tuple((modifier, ()) for modifier in modifiers)


def report(search: Search, best: Candidate) -> dict[str, Any]:
    """What is written about the winner."""
    full = {name: np.array(costs) for name, costs in search.costs.items() if len(costs) == len(search.seeds)}
    cost = full[best.name]
    others = sorted((name for name in full if name != best.name), key=lambda name: float(full[name].mean()))
    return {
        "policy": best.name,
        "cost": _interval(bootstrap(cost)),
        "less_than": {name: _interval(paired(cost, full[name])) for name in REFERENCES if name != best.name},
        "runners_up": {name: round(float(full[name].mean()), 4) for name in others[:SHOWN]},
        "candidates": len(search.costs),
        "episodes_played": search.episodes,
    }


def _interval(interval: Any) -> dict[str, float]:
    return {key: round(float(value), 4) for key, value in vars(interval).items()}


def save(path: Path, name: str, entry: dict[str, Any]) -> None:
    """Put one scenario's entry into the file, whole or not at all; the others stay."""
    entries = {**(read_yaml(path) if path.exists() else {}), name: entry}
    header = (
        "# The best heuristic of each scenario on validation workloads; written by python -m agents.tune baselines\n"
    )
    write_text(path, header + yaml.safe_dump(entries, sort_keys=False, width=120))


def baselines(arguments: argparse.Namespace) -> None:
    if arguments.workloads < 2:
        raise InputError("--workloads", "", arguments.workloads, "at least 2")
    scenario = evaluation_scenario(arguments.scenario, arguments.overrides)
    with fan_out(arguments.workers, arguments.ray) as mapped:
        search = Search(scenario, arguments.workloads, arguments.seed, arguments.quiet, mapped)
        best = search.run()
    entry = {
        **report(search, best),
        "split": SPLIT,
        "workloads": arguments.workloads,
        "seed": arguments.seed,
        "warmup_hours": scenario.episode.warmup_hours,
        "scenario_digest": scenario.digest(),
        "command": "python -m agents.tune " + shlex.join(arguments.given),
        "versions": versions(),
    }
    save(arguments.out, scenario.name, entry)
    print(f"{scenario.name}: {best.name} (cost {entry['cost']['mean']:.3f}), written to {arguments.out}")


def ppo(arguments: argparse.Namespace) -> None:
    try:
        from agents.search.ppo import ppo as search
    except ModuleNotFoundError as error:
        raise InputError("tune ppo", "", f"no package {error.name}", "pip install 'nvlenv[tune]'") from None
    search(arguments)


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(prog="python -m agents.tune", description=__doc__, allow_abbrev=False)
    out.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = out.add_subparsers(dest="command", required=True)
    command = commands.add_parser("baselines", help="find the best heuristic of a scenario", allow_abbrev=False)
    command.set_defaults(run=baselines)
    command.add_argument("--scenario", default="lab-16", help=f"a YAML file or one of {', '.join(scenario_names())}")
    command.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", dest="overrides",
                         help="settings of the scenario, such as workload.load=0.9")  # fmt: skip
    command.add_argument("--workloads", type=int, default=64, help="validation workloads (default 64)")
    command.add_argument("--seed", type=int, default=0, help="of the workloads (default 0)")
    command.add_argument("--workers", type=int, default=1, help="processes, 0 for all cores (default 1)")
    command.add_argument("--ray", action="store_true", help="processes on the Ray cluster that RAY_ADDRESS names")
    command.add_argument("--out", type=Path, default=Path("configs") / BASELINES, help="file (default %(default)s)")
    command.add_argument("--quiet", action="store_true", help="no progress bars")
    add_ppo(commands.add_parser("ppo", help="find better settings for training", allow_abbrev=False))
    return out


def add_ppo(command: argparse.ArgumentParser) -> None:
    command.set_defaults(run=ppo)
    command.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="settings of every trial, such as steps=200000"
    )
    command.add_argument(
        "--config", default="default", help=f"a YAML file or one of {', '.join(config_names('train'))}"
    )
    command.add_argument("--trials", type=int, default=40, help="in all, those of earlier calls included (default 40)")
    command.add_argument("--folder", type=Path, default=Path("checkpoints/tune-ppo"),
                         help="of the study; the same one goes on (default %(default)s)")  # fmt: skip
    command.add_argument("--seed", type=int, default=0, help="of what is tried (default 0)")
    command.add_argument("--workers", type=int, default=1, help="trials at a time (default 1)")
    command.add_argument("--ray", action="store_true", help="workers on the Ray cluster that RAY_ADDRESS names")
    command.add_argument("--workloads", type=int, default=64, help="to compare the winner on (default 64)")
    command.add_argument(
        "--out", type=Path, default=Path("configs/train/tuned.yaml"), help="file (default %(default)s)"
    )


@command
def main(argv: list[str]) -> None:
    arguments = parser().parse_args(argv)
    arguments.given = argv
    arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
