"""Evolve the closed-form scorer: the linear prior of the network, by CMA-ES on the cost of whole episodes.

    python -m agents.evolve --scenarios lab-16 hero-rush --generations 100 --out checkpoints/evolved

A rival to PPO that needs no gradient, no value function and no discount: what is minimised is what is measured. All
candidates of a generation play the same workloads (common random numbers), so that their order tells the policies apart
and not the luck of the draw; every generation plays new ones. The policy file is of the same kind as PPO's, with a
network that adds nothing to the prior, so that `python -m agents.train init=...` can go on from it.

The mean of the distribution is played on validation workloads now and then; the best one is kept. Ctrl-C ends early
with what was found so far, `--resume --out DIR` goes on. All that makes the result is kept in the folder and not asked
for again; with `--resume` only --generations may be another, and what does not change the result.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from tqdm import tqdm

from agents.evaluate import versions
from agents.evaluation.cases import evaluation_scenario
from agents.evaluation.episodes import SPLITS, find_policy, split_scenario, split_seeds
from agents.export import LICENCE
from agents.search.evolution import (
    VALIDATION,
    Experiment,
    Progress,
    Vector,
    check_same,
    first_arrays,
    given_settings,
    read_state,
    scenario_digests,
    write_state,
)
from nvlenv.common.commandline import command
from nvlenv.common.errors import InputError
from nvlenv.common.files import write_json
from nvlenv.envs.scenario import Scenario, prepare
from nvlenv.policies.learned import Arrays, LearnedPolicy, save_policy
from nvlenv.policies.play import play
from nvlenv.policies.resolver import baseline_name
from nvlenv.simulator.decision import Policy
from nvlenv.simulator.state import Sim

GENERATIONS = 100
STATE, POLICY, HISTORY = "evolution.pkl", "policy.npz", "evolution.json"  # what is in the folder of an evolution

# (array, column) -> the step in which its entries are searched: about what it takes to change a close decision. When to
# `fill` is left as it is: it is not worth the dimensions.
STEPS: dict[tuple[str, int], float] = {
    ("prior_rack", 0): 1.5,  # place
    ("prior_rack", 1): 1.5,  # open
    ("prior_rack_bias", 1): 3.0,
    ("prior_global", 1): 6.0,  # hold
    ("prior_global_bias", 1): 3.0,
}


@dataclass(frozen=True)
class Scorer:
    """The prior as a vector: what evolution sees of a policy's arrays."""

    start: Arrays

    @property
    def size(self) -> int:
        return sum(self.start[name][..., column].size for name, column in STEPS)

    def arrays(self, x: Vector) -> Arrays:
        """The arrays at this distance from the start, in steps."""
        moved, at = {name: array.copy() for name, array in self.start.items()}, 0
        for (name, column), step in STEPS.items():
            entries = moved[name][..., column]
            moved[name][..., column] = entries + step * x[at : at + entries.size].reshape(entries.shape)
            at += entries.size
        return moved


@dataclass(frozen=True)
class Course:
    """A scenario, how many of its workloads a generation plays, and what the baseline pays for one of them."""

    scenario: Scenario
    workloads: int
    par: float


def costs_on(policies: Sequence[Policy], scenario: Scenario, seed: np.random.SeedSequence) -> list[float]:
    """What each policy costs on one workload, in GPU-hours per GPU-hour of the cluster."""
    start, costs = prepare(scenario, scenario.draw(seed), sample=False), []
    for policy in policies:
        sim = Sim(*(array.copy() for array in start))
        play(policy, sim)
        c = sim.clock[0]
        cost = (c["waiting"] + c["slowdown"] + c["lost"]) / ((c["horizon"] - c["measure_from"]) * c["capacity"])
        costs.append(float(cost))
    return costs


def make_course(name: str, workloads: int, split: str, seed: int, par: float | None = None) -> Course:
    """Par is what the baseline pays for the first workloads of the split, `VALIDATION` times those of a generation."""
    scenario = split_scenario(evaluation_scenario(name), split)
    if par is None:
        baseline = find_policy(baseline_name(name))
        costs = [costs_on([baseline], scenario, each) for each in split_seeds(seed, split, VALIDATION * workloads)]
        par = float(np.mean(costs))
    return Course(scenario, workloads, par)


class Judge:
    """What a policy costs on courses, as a share of what the baselines pay; every scenario counts the same.

    `pars` : those of an evolution that goes on, as baselines may have been tuned since it began; None: play them.
    """

    def __init__(
        self, scenarios: Sequence[tuple[str, int]], split: str, seed: int, threads: int,
        pars: Sequence[float] | None = None,
    ) -> None:  # fmt: skip
        known: Sequence[float | None] = pars or [None] * len(scenarios)
        self.courses = [make_course(*each, split, seed, par) for each, par in zip(scenarios, known, strict=True)]
        self.threads = threads
        self._root = np.random.SeedSequence(seed, spawn_key=(SPLITS[split],))

    def __call__(self, policies: Sequence[Policy], generation: int, times: int = 1) -> Vector:
        """(len(policies),) on the workloads of a generation, `times` as many as usual."""
        totals = np.zeros(len(policies))
        with ThreadPoolExecutor(self.threads) as pool:  # kernels run without Python's lock
            for course in self.courses:
                count = times * course.workloads
                seeds = [self._seed(generation * count + k) for k in range(count)]
                costs = list(pool.map(partial(costs_on, policies, course.scenario), seeds))
                totals += np.mean(costs, axis=0) / course.par
        return totals / len(self.courses)

    def _seed(self, workload: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(self._root.entropy, spawn_key=(*self._root.spawn_key, workload))


def begin(arguments: argparse.Namespace) -> Progress:
    """A new evolution. Raises `InputError` if there is one in the folder already."""
    from cma.evolution_strategy import CMAEvolutionStrategy

    if arguments.out.exists() and not arguments.out.is_dir():
        raise InputError("--out", "", arguments.out, "a folder")
    if any((arguments.out / name).exists() for name in (STATE, POLICY, HISTORY)):
        raise InputError("--out", "", arguments.out, "a new folder, or --resume to go on in it")
    experiment = Experiment(**given_settings(arguments))
    start = first_arrays(experiment.init)
    size = Scorer(start).size
    options = {"seed": experiment.seed + 1, "popsize": experiment.population, "CMA_diagonal": True, "verbose": -9}
    strategy = CMAEvolutionStrategy(np.zeros(size), experiment.sigma, options)
    generations, digests = arguments.generations or GENERATIONS, scenario_digests(experiment)
    return Progress(experiment, generations, start, digests, {}, strategy, np.zeros(size), np.inf, [], None)


def go_on(arguments: argparse.Namespace) -> Progress:
    """The evolution in the folder. Raises `InputError` for settings that would make it another one."""
    if not (arguments.out / STATE).is_file():
        raise InputError(arguments.out, "--resume", "no state of an evolution", f"a folder with {STATE}")
    progress = read_state(arguments.out / STATE)
    check_same(arguments, progress)
    progress.generations = arguments.generations or progress.generations
    np.random.set_state(progress.generator)  # noqa: NPY002
    return progress


def evolve(arguments: argparse.Namespace) -> Progress:
    """Run the generations that are left."""
    progress = go_on(arguments) if arguments.resume else begin(arguments)
    experiment, scorer = progress.experiment, Scorer(progress.start)
    judges = {
        split: Judge(experiment.scenarios, split, experiment.seed, arguments.threads, progress.pars.get(split))
        for split in ("train", "validation")
    }
    train, validation = judges.values()
    progress.pars = {split: [course.par for course in judge.courses] for split, judge in judges.items()}

    def policies(points: Sequence[Vector]) -> list[Policy]:
        return [LearnedPolicy(scorer.arrays(x)) for x in points]

    if progress.history:
        save(arguments.out, scorer, progress)  # again: the files may be of different generations, after Ctrl-C
    else:
        progress.best_score = float(validation(policies([progress.best]), 0, experiment.validation)[0])
    first = len(progress.history)
    bar = tqdm(range(first, progress.generations), desc="generations", disable=arguments.quiet, file=sys.stderr)
    for generation in bar:
        points = progress.strategy.ask()
        scores = train(policies(points), generation + 1)
        progress.strategy.tell(points, list(scores))
        entry = {"generation": generation, "train": float(scores.mean()), "sigma": float(progress.strategy.sigma)}
        if (generation + 1) % experiment.every == 0:
            mean = np.array(progress.strategy.mean)
            entry["validation"] = float(validation(policies([mean]), 0, experiment.validation)[0])
            if entry["validation"] < progress.best_score:
                progress.best, progress.best_score = mean, entry["validation"]
        progress.history.append(entry)
        bar.set_postfix(cost=f"{entry['train']:.3f}", best=f"{progress.best_score:.3f}")
        save(arguments.out, scorer, progress)
    return progress


def save(out: Path, scorer: Scorer, progress: Progress) -> None:
    """The state to go on from, first, as the rest can be made of it; the best policy so far, and the history."""
    experiment = progress.experiment
    names = [name for name, _ in experiment.scenarios]
    manifest = {
        "scenario": names[0],
        "config": {
            "scenarios": names,
            "seed": experiment.seed,
            "init": experiment.init,
            "evolution": {
                "method": "CMA-ES on the linear prior (python -m agents.evolve)",
                "generations": len(progress.history),
                "population": experiment.population,
                "first_sigma": experiment.sigma,
                "workloads_of_a_generation": sum(count for _, count in experiment.scenarios),
                "validation_cost_relative_to_baselines": round(progress.best_score, 4),
            },
        },
        "command": experiment.command(len(progress.history)),
        "versions": versions(),
    }
    progress.generator = np.random.get_state()  # noqa: NPY002
    write_state(out / STATE, progress)
    save_policy(out / POLICY, scorer.arrays(progress.best), {"licence": LICENCE, **manifest})
    write_json(out / HISTORY, progress.history)


def _course(text: str) -> tuple[str, int]:
    name, _, count = text.rpartition(":")
    return (name, int(count)) if name and count.isdecimal() else (text, 16)


def parser() -> argparse.ArgumentParser:
    """Settings that are not given are None: an evolution that goes on has its own."""
    out = argparse.ArgumentParser(prog="python -m agents.evolve", description=__doc__, allow_abbrev=False)
    out.formatter_class = argparse.RawDescriptionHelpFormatter
    out.add_argument("--scenarios", nargs="+", type=_course, metavar="NAME[:WORKLOADS]",
                     help="scenarios, and how many workloads a generation plays (default lab-16:16)")  # fmt: skip
    out.add_argument("--generations", type=int,
                     help=f"in all (default {GENERATIONS}; with --resume: as many as were asked for)")  # fmt: skip
    out.add_argument("--population", type=int, help=f"candidates of a generation (default {Experiment.population})")
    out.add_argument("--sigma", type=float, help=f"first step size, in units of STEPS (default {Experiment.sigma})")
    out.add_argument("--every", type=int, help=f"generations between two validations (default {Experiment.every})")
    out.add_argument("--init", metavar="POLICY", help="policy file to start from (default: the heuristic prior)")
    out.add_argument("--seed", type=int, help=f"of candidates and workloads (default {Experiment.seed})")
    out.add_argument("--threads", type=int, default=1, help="episodes played side by side (default 1)")
    out.add_argument("--out", type=Path, default=Path("checkpoints/evolved"), help="folder (default %(default)s)")
    out.add_argument("--resume", action="store_true", help="go on with the evolution in the folder, as it was begun")
    out.add_argument("--quiet", action="store_true", help="no progress bar")
    return out


def parse(argv: list[str]) -> argparse.Namespace:
    """The arguments. Raises `InputError` for a setting that no evolution could have."""
    arguments = parser().parse_args(argv)
    least = {"generations": 1, "population": 2, "every": 1, "seed": 0, "threads": 1}
    for name, bound in least.items():
        value = getattr(arguments, name)
        if value is not None and value < bound:
            raise InputError(f"--{name}", "", value, f"at least {bound}")
    if arguments.sigma is not None and not 0 < arguments.sigma < math.inf:
        raise InputError("--sigma", "", arguments.sigma, "a number above 0")
    if arguments.scenarios is not None:
        arguments.scenarios = tuple(arguments.scenarios)
        empty = next((name for name, workloads in arguments.scenarios if workloads < 1), None)
        if empty is not None:
            raise InputError("--scenarios", "", f"{empty}:0", "at least 1 workload")
    return arguments


@command
def main(argv: list[str]) -> None:
    arguments = parse(argv)
    try:
        progress = evolve(arguments)
    except KeyboardInterrupt:
        kept = (arguments.out / STATE).is_file()
        raise KeyboardInterrupt(f"go on with --resume --out {arguments.out}" if kept else "nothing is kept") from None
    print(f"best on validation: {progress.best_score:.3f} of what the baselines pay; {arguments.out / POLICY}")


if __name__ == "__main__":
    sys.exit(main())
