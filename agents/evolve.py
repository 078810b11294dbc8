"""Evolve the closed-form scorer: the linear prior of the network, by CMA-ES on the cost of whole episodes.

    python -m agents.evolve --scenarios lab-16 hero-rush --generations 100 --out checkpoints/evolved

A rival to PPO that needs no gradient, no value function and no discount: what is minimised is what is measured. All
candidates of a generation play the same workloads (common random numbers), so that their order tells the policies apart
and not the luck of the draw; every generation plays new ones. The policy file is of the same kind as PPO's, with a
network that adds nothing to the prior, so that `python -m agents.train init=...` can go on from it.

The mean of the distribution is played on validation workloads now and then; the best one is kept. Ctrl-C ends early
with what was found so far, `--resume` goes on.
"""

from __future__ import annotations

import argparse
import math
import pickle
import shlex
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from agents.cases import evaluation_scenario
from agents.episodes import SPLITS, find_policy, split_scenario, split_seeds
from agents.evaluate import versions
from agents.export import LICENCE
from agents.network import PlacementNetwork, network_arrays
from nvlenv.commandline import command
from nvlenv.engine.policy_file import Arrays, LearnedPolicy, read_policy_file, save_policy
from nvlenv.errors import InputError
from nvlenv.files import write_json, written_whole
from nvlenv.loading import prepare
from nvlenv.policies import baseline_name
from nvlenv.policies.play import play
from nvlenv.scenario import Scenario
from nvlenv.simulator.state import Sim
from nvlenv.types import Policy

Vector = NDArray[np.float64]
VALIDATION = 4  # times the workloads of a generation, for choosing the best
STATE = "evolution.pkl"

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


def make_course(name: str, workloads: int, split: str, seed: int) -> Course:
    """Par is what the baseline pays for the first workloads of the split, `VALIDATION` times those of a generation."""
    scenario = split_scenario(evaluation_scenario(name), split)
    baseline = find_policy(baseline_name(name))
    costs = [costs_on([baseline], scenario, each) for each in split_seeds(seed, split, VALIDATION * workloads)]
    return Course(scenario, workloads, float(np.mean(costs)))


class Judge:
    """What a policy costs on courses, as a share of what the baselines pay; every scenario counts the same."""

    def __init__(self, scenarios: Sequence[tuple[str, int]], split: str, seed: int, threads: int) -> None:
        self.courses = [make_course(name, workloads, split, seed) for name, workloads in scenarios]
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


@dataclass
class Progress:
    """All that goes from one generation to the next."""

    strategy: Any  # cma.CMAEvolutionStrategy
    best: Vector
    best_score: float
    history: list[dict[str, float]]
    generator: Any  # state of NumPy's global generator, which the strategy draws from


def first_arrays(init: str) -> Arrays:
    """The arrays of a policy file, or the prior and nothing else."""
    if init:
        return read_policy_file(init)[0]
    arrays = network_arrays(PlacementNetwork(hidden=1))
    return {name: array if name.startswith("prior") else np.zeros_like(array) for name, array in arrays.items()}


def begin(arguments: argparse.Namespace, size: int) -> Progress:
    from cma.evolution_strategy import CMAEvolutionStrategy

    state = arguments.out / STATE
    if arguments.resume:
        if not state.is_file():
            raise InputError(arguments.out, "--resume", "no state of an evolution", f"a folder with {STATE}")
        try:
            progress: Progress = pickle.loads(state.read_bytes())  # as SB3's model.zip: a run's own file, not a user's
        except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, ValueError) as error:
            raise InputError(state, "", f"a file that cannot be read ({error})", "the state of an evolution") from None
        np.random.set_state(progress.generator)  # noqa: NPY002
        return progress
    options = {"seed": arguments.seed + 1, "popsize": arguments.population, "CMA_diagonal": True, "verbose": -9}
    strategy = CMAEvolutionStrategy(np.zeros(size), arguments.sigma, options)
    return Progress(strategy, np.zeros(size), np.inf, [], None)


def evolve(arguments: argparse.Namespace) -> Progress:
    """Run the generations that are left."""
    scorer = Scorer(first_arrays(arguments.init))
    progress = begin(arguments, scorer.size)
    train = Judge(arguments.scenarios, "train", arguments.seed, arguments.threads)
    validation = Judge(arguments.scenarios, "validation", arguments.seed, arguments.threads)

    def policies(points: Sequence[Vector]) -> list[Policy]:
        return [LearnedPolicy(scorer.arrays(x)) for x in points]

    if not progress.history:
        progress.best_score = float(validation(policies([progress.best]), 0, VALIDATION)[0])
    first = len(progress.history)
    bar = tqdm(range(first, arguments.generations), desc="generations", disable=arguments.quiet, file=sys.stderr)
    for generation in bar:
        points = progress.strategy.ask()
        scores = train(policies(points), generation + 1)
        progress.strategy.tell(points, list(scores))
        entry = {"generation": generation, "train": float(scores.mean()), "sigma": float(progress.strategy.sigma)}
        if (generation + 1) % arguments.every == 0:
            mean = np.array(progress.strategy.mean)
            entry["validation"] = float(validation(policies([mean]), 0, VALIDATION)[0])
            if entry["validation"] < progress.best_score:
                progress.best, progress.best_score = mean, entry["validation"]
        progress.history.append(entry)
        bar.set_postfix(cost=f"{entry['train']:.3f}", best=f"{progress.best_score:.3f}")
        save(arguments, scorer, progress)
    return progress


def save(arguments: argparse.Namespace, scorer: Scorer, progress: Progress) -> None:
    """The best policy so far, and the state to go on from."""
    names = [name for name, _ in arguments.scenarios]
    manifest = {
        "scenario": names[0],
        "config": {
            "scenarios": names,
            "seed": arguments.seed,
            "init": arguments.init,
            "evolution": {
                "method": "CMA-ES on the linear prior (python -m agents.evolve)",
                "generations": len(progress.history),
                "population": arguments.population,
                "first_sigma": arguments.sigma,
                "workloads_of_a_generation": sum(count for _, count in arguments.scenarios),
                "validation_cost_relative_to_baselines": round(progress.best_score, 4),
            },
        },
        "command": "python -m agents.evolve " + shlex.join(arguments.given),
        "versions": versions(),
    }
    progress.generator = np.random.get_state()  # noqa: NPY002
    save_policy(arguments.out / "policy.npz", scorer.arrays(progress.best), {"licence": LICENCE, **manifest})
    with written_whole(arguments.out / STATE) as part:
        part.write_bytes(pickle.dumps(progress))
    write_json(arguments.out / "evolution.json", progress.history)


def _course(text: str) -> tuple[str, int]:
    name, _, count = text.rpartition(":")
    return (name, int(count)) if name and count.isdecimal() else (text, 16)


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(prog="python -m agents.evolve", description=__doc__, allow_abbrev=False)
    out.formatter_class = argparse.RawDescriptionHelpFormatter
    out.add_argument("--scenarios", nargs="+", type=_course, default=[("lab-16", 16)], metavar="NAME[:WORKLOADS]",
                     help="scenarios, and how many workloads a generation plays (default lab-16:16)")  # fmt: skip
    out.add_argument("--generations", type=int, default=100, help="in all (default 100)")
    out.add_argument("--population", type=int, default=24, help="candidates of a generation (default 24)")
    out.add_argument("--sigma", type=float, default=0.5, help="first step size, in units of STEPS (default 0.5)")
    out.add_argument("--every", type=int, default=5, help="generations between two validations (default 5)")
    out.add_argument("--init", default="", help="policy file to start from (default: the heuristic prior)")
    out.add_argument("--seed", type=int, default=0, help="of candidates and workloads (default 0)")
    out.add_argument("--threads", type=int, default=1, help="episodes played side by side (default 1)")
    out.add_argument("--out", type=Path, default=Path("checkpoints/evolved"), help="folder (default %(default)s)")
    out.add_argument("--resume", action="store_true", help="go on with the evolution in the folder")
    out.add_argument("--quiet", action="store_true", help="no progress bar")
    return out


def check(arguments: argparse.Namespace) -> None:
    """Raise `InputError` for a setting that no evolution could have."""
    least = {"generations": 1, "population": 2, "every": 1, "seed": 0, "threads": 1}
    for name, bound in least.items():
        if getattr(arguments, name) < bound:
            raise InputError(f"--{name}", "", getattr(arguments, name), f"at least {bound}")
    if not 0 < arguments.sigma < math.inf:
        raise InputError("--sigma", "", arguments.sigma, "a number above 0")
    empty = next((name for name, workloads in arguments.scenarios if workloads < 1), None)
    if empty is not None:
        raise InputError("--scenarios", "", f"{empty}:0", "at least 1 workload")


@command
def main(argv: list[str]) -> None:
    arguments = parser().parse_args(argv)
    arguments.given = argv
    check(arguments)
    try:
        progress = evolve(arguments)
    except KeyboardInterrupt:
        kept = (arguments.out / STATE).is_file()
        raise KeyboardInterrupt(f"go on with --resume --out {arguments.out}" if kept else "nothing is kept") from None
    print(f"best on validation: {progress.best_score:.3f} of what the baselines pay; {arguments.out / 'policy.npz'}")


if __name__ == "__main__":
    sys.exit(main())
