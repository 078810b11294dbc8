"""Evolution of a policy's prior by CMA-ES: the experiment, what it searches and plays, and how it goes on.

An evolution that goes on asks for nothing again. A setting, scenario or policy file that is no longer what it was would
make it another experiment, and is refused.
"""

from __future__ import annotations

import pickle
import shlex
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from agents.evaluation.compare import versions
from agents.evaluation.episodes import SPLITS, evaluation_scenario, find_policy, split_scenario
from agents.learning.network import LICENCE, PlacementNetwork, network_arrays
from nvlenv.common.errors import InputError
from nvlenv.common.files import write_json, written_whole
from nvlenv.envs.scenario import Scenario, prepare
from nvlenv.policies.learned import Arrays, LearnedPolicy, fingerprint, read_policy_file, save_policy
from nvlenv.policies.resolver import baseline_name, play
from nvlenv.simulator.decision import Policy
from nvlenv.simulator.state import Sim

GENERATIONS = 100
STATE, POLICY, HISTORY = "evolution.pkl", "policy.npz", "evolution.json"  # what is in the folder of an evolution
Vector = NDArray[np.float64]
VALIDATION = 4  # times the workloads of a generation, for choosing the best


@dataclass(frozen=True)
class Experiment:
    """All settings that the result depends on: they stay what they were when the evolution began."""

    scenarios: tuple[tuple[str, int], ...] = (("lab-16", 16),)  # and how many workloads a generation plays
    population: int = 24
    sigma: float = 0.5
    every: int = 5
    init: str = ""
    seed: int = 0
    validation: int = VALIDATION  # not an option

    def command(self, generations: int) -> str:
        """The command line that comes to the same result: whatever else was typed does not matter."""
        options: list[Any] = ["--scenarios", *map(_told_scenario, self.scenarios), "--generations", generations]
        for name in ("population", "sigma", "every", "init", "seed"):
            value = getattr(self, name)
            options += [f"--{name}", value] if value != "" else []
        return "python -m agents.evolve " + shlex.join(map(str, options))


@dataclass
class Progress:
    """All that goes from one generation to the next, and from one call to the next."""

    experiment: Experiment
    generations: int  # in all, as last asked for
    start: Arrays
    digests: list[str]  # of the scenarios
    baseline_costs: dict[str, list[float]]  # split -> that of every exam; empty until they are played
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


# (array, column) -> the step in which its entries are searched: about what it takes to change a close decision. When to
# `fill` is left as it is: it is not worth the dimensions.
STEPS: dict[tuple[str, int], float] = {
    ("prior_rack", 0): 1.5,  # place
    ("prior_rack", 1): 1.5,  # open
    ("prior_rack_bias", 1): 3.0,
    ("prior_global", 1): 6.0,  # hold
    ("prior_global_bias", 1): 3.0,
}


def dimensions(start: Arrays) -> int:
    """How many entries of the prior are searched."""
    return sum(start[name][..., column].size for name, column in STEPS)


def moved(start: Arrays, x: Vector) -> Arrays:
    """The arrays at this distance (dimensions,) from the start, in `STEPS`."""
    arrays, at = {name: array.copy() for name, array in start.items()}, 0
    for (name, column), step in STEPS.items():
        entries = arrays[name][..., column]
        arrays[name][..., column] = entries + step * x[at : at + entries.size].reshape(entries.shape)
        at += entries.size
    return arrays


class Exam(NamedTuple):
    """A scenario, how many of its workloads a generation plays, and what the baseline pays for one of them."""

    scenario: Scenario
    workloads: int
    baseline_cost: float


def policy_costs(policies: Sequence[Policy], scenario: Scenario, seed: np.random.SeedSequence) -> list[float]:
    """What each policy costs on one workload, in GPU-hours per GPU-hour of the cluster."""
    start, costs = prepare(scenario, scenario.draw(seed), sample=False), []
    for policy in policies:
        sim = Sim(*(array.copy() for array in start))
        play(policy, sim)
        c = sim.clock[0]
        cost = (c["waiting"] + c["slowdown"] + c["lost"]) / ((c["horizon"] - c["measure_from"]) * c["capacity"])
        costs.append(float(cost))
    return costs


class RelativeCost:
    """What a policy costs on exams, as a share of what the baselines pay; every scenario counts the same.

    `baseline_costs` : those that an evolution which goes on began with; None: play the baselines, on the first
    workloads of the split, `VALIDATION` times those of a generation.
    """

    def __init__(
        self, scenarios: Sequence[tuple[str, int]], split: str, seed: int, threads: int,
        baseline_costs: Sequence[float] | None = None,
    ) -> None:  # fmt: skip
        self.seed, self.split, self.threads = seed, split, threads
        self.exams: list[Exam] = []
        for k, (name, workloads) in enumerate(scenarios):
            scenario = split_scenario(evaluation_scenario(name), split)
            if baseline_costs:
                cost = baseline_costs[k]
            else:
                baseline, seeds = find_policy(baseline_name(name)), self._seeds(0, VALIDATION * workloads)
                cost = float(np.mean([policy_costs([baseline], scenario, each) for each in seeds]))
            self.exams.append(Exam(scenario, workloads, cost))

    def __call__(self, policies: Sequence[Policy], generation: int, times: int = 1) -> Vector:
        """(len(policies),) on the workloads of a generation, `times` as many as usual."""
        totals = np.zeros(len(policies))
        with ThreadPoolExecutor(self.threads) as pool:  # kernels run without Python's lock
            for exam in self.exams:
                seeds = self._seeds(generation, times * exam.workloads)
                costs = list(pool.map(partial(policy_costs, policies, exam.scenario), seeds))
                totals += np.mean(costs, axis=0) / exam.baseline_cost
        return totals / len(self.exams)

    def _seeds(self, generation: int, count: int) -> list[np.random.SeedSequence]:
        """Those of the split's workloads that a generation of so many plays."""
        numbers = range(generation * count, (generation + 1) * count)
        return [np.random.SeedSequence(self.seed, spawn_key=(SPLITS[self.split], k)) for k in numbers]


def new_progress(settings: dict[str, Any], generations: int, out: Path) -> Progress:
    """A new evolution. Raises `InputError` if there is one in the folder already, or no package for it."""
    try:
        from cma.evolution_strategy import CMAEvolutionStrategy
    except ModuleNotFoundError:
        raise InputError("agents.evolve", "", "no package cma", "pip install 'nvlenv[tune]'") from None
    if out.exists() and not out.is_dir():
        raise InputError("--out", "", out, "a folder")
    if any((out / name).exists() for name in (STATE, POLICY, HISTORY)):
        raise InputError("--out", "", out, "a new folder, or --resume to go on in it")
    experiment = Experiment(**settings)
    start = first_arrays(experiment.init)
    size = dimensions(start)
    options = {"seed": experiment.seed + 1, "popsize": experiment.population, "CMA_diagonal": True, "verbose": -9}
    strategy = CMAEvolutionStrategy(np.zeros(size), experiment.sigma, options)
    digests = [evaluation_scenario(name).digest() for name, _ in experiment.scenarios]
    return Progress(experiment, generations, start, digests, {}, strategy, np.zeros(size), np.inf, [], None)


def kept_progress(settings: dict[str, Any], generations: int | None, out: Path) -> Progress:
    """The evolution in the folder. Raises `InputError` for an option or a file that would make it another one."""
    if not (out / STATE).is_file():
        raise InputError(out, "--resume", "no state of an evolution", f"a folder with {STATE}")
    progress = read_state(out / STATE)
    experiment, done, began = progress.experiment, len(progress.history), f"as the evolution in {out} began"
    for name, value in settings.items():
        kept = getattr(experiment, name)
        if value != kept:
            raise InputError(f"--{name}", "", _told(value), f"{_told(kept)}, {began}")
    init = settings.get("init")
    if init and fingerprint(first_arrays(init)) != fingerprint(progress.start):
        raise InputError("--init", "", f"{init} with other arrays", f"those of then, {began}; or no --init")
    for (name, _), then in zip(experiment.scenarios, progress.digests, strict=True):
        if evaluation_scenario(name).digest() != then:
            raise InputError("--resume", name, "a scenario that has changed", f"the one of then, {began}")
    if generations is not None and generations < done:
        raise InputError("--generations", "", generations, f"at least the {done} that are done")
    progress.generations = generations or progress.generations
    np.random.set_state(progress.generator)  # noqa: NPY002
    return progress


def _told_scenario(scenario: tuple[str, int]) -> str:
    return f"{scenario[0]}:{scenario[1]}"


def _told(value: Any) -> str:
    """A setting as it is typed."""
    return " ".join(map(_told_scenario, value)) if isinstance(value, tuple) else str(value) or "none"


def read_state(path: Path) -> Progress:
    """What `save_progress` wrote. Raises `InputError` for anything else."""
    try:
        kept = pickle.loads(path.read_bytes())  # as SB3's model.zip: a run's own file, not a user's
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, ValueError) as error:
        raise InputError(path, "", f"a file that cannot be read ({error})", "the state of an evolution") from None
    if not (_has_fields(kept, Progress) and _has_fields(kept["experiment"], Experiment)):
        raise InputError(path, "", "the state of another version", "one of this version; begin anew in another folder")
    return Progress(**{**kept, "experiment": Experiment(**kept["experiment"])})


def _has_fields(kept: Any, kind: type[Progress | Experiment]) -> bool:
    return isinstance(kept, dict) and kept.keys() == {each.name for each in fields(kind)}


def evolve(
    settings: dict[str, Any], generations: int | None, out: Path, resume: bool, threads: int, quiet: bool
) -> Progress:
    """Run the generations that are left; what is not given is as it was, or as usual.

    `settings` are by the names of `Experiment`; `generations` in all.
    """
    if resume:
        progress = kept_progress(settings, generations, out)
    else:
        progress = new_progress(settings, generations or GENERATIONS, out)
    experiment = progress.experiment
    costs = {
        split: RelativeCost(experiment.scenarios, split, experiment.seed, threads, progress.baseline_costs.get(split))
        for split in ("train", "validation")
    }
    train, validation = costs.values()
    progress.baseline_costs = {s: [exam.baseline_cost for exam in judged.exams] for s, judged in costs.items()}

    def policies(points: Sequence[Vector]) -> list[Policy]:
        return [LearnedPolicy(moved(progress.start, x)) for x in points]

    if progress.history:
        save_progress(out, progress)  # again: the files may be of different generations, after Ctrl-C
    else:
        progress.best_score = float(validation(policies([progress.best]), 0, experiment.validation)[0])
    first = len(progress.history)
    bar = tqdm(range(first, progress.generations), desc="generations", disable=quiet, file=sys.stderr)
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
        save_progress(out, progress)
    return progress


def save_progress(out: Path, progress: Progress) -> None:
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
    with written_whole(out / STATE) as part:  # plain data, by which the state of another version is told
        part.write_bytes(pickle.dumps({**vars(progress), "experiment": vars(experiment)}))
    save_policy(out / POLICY, moved(progress.start, progress.best), {"licence": LICENCE, **manifest})
    write_json(out / HISTORY, progress.history)
