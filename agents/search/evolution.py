"""What an evolution is, and how it is kept: its settings, all that goes from one generation to the next, and the file.

An evolution that goes on asks for nothing again. A setting, scenario or policy file that is no longer what it was would
make it another experiment, and is refused.
"""

from __future__ import annotations

import argparse
import pickle
import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.evaluation.cases import evaluation_scenario
from agents.learning.network import PlacementNetwork, network_arrays
from nvlenv.common.errors import InputError
from nvlenv.common.files import written_whole
from nvlenv.policies.learned import Arrays, fingerprint, read_policy_file

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
        options: list[Any] = ["--scenarios", *map(_told_course, self.scenarios), "--generations", generations]
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
    pars: dict[str, list[float]]  # split -> par of every course; empty until they are played
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


def scenario_digests(experiment: Experiment) -> list[str]:
    return [evaluation_scenario(name).digest() for name, _ in experiment.scenarios]


def given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings of the experiment that the command line names."""
    given = {each.name: getattr(arguments, each.name, None) for each in fields(Experiment)}
    return {name: value for name, value in given.items() if value is not None}


def check_same(arguments: argparse.Namespace, progress: Progress) -> None:
    """Raise `InputError` for an option that says otherwise than the state, and for a file that is not what it was."""
    experiment, done = progress.experiment, len(progress.history)
    began = f"as the evolution in {arguments.out} began"
    for name, value in given_settings(arguments).items():
        kept = getattr(experiment, name)
        if value != kept:
            raise InputError(f"--{name}", "", _told(value), f"{_told(kept)}, {began}")
    if arguments.init and fingerprint(first_arrays(arguments.init)) != fingerprint(progress.start):
        raise InputError("--init", "", f"{arguments.init} with other arrays", f"those of then, {began}; or no --init")
    for (name, _), now, then in zip(experiment.scenarios, scenario_digests(experiment), progress.digests, strict=True):
        if now != then:
            raise InputError("--resume", name, "a scenario that has changed", f"the one of then, {began}")
    if arguments.generations is not None and arguments.generations < done:
        raise InputError("--generations", "", arguments.generations, f"at least the {done} that are done")


def _told_course(course: tuple[str, int]) -> str:
    return f"{course[0]}:{course[1]}"


def _told(value: Any) -> str:
    """A setting as it is typed."""
    return " ".join(map(_told_course, value)) if isinstance(value, tuple) else str(value) or "none"


def _has_fields(kept: Any, kind: type[Progress | Experiment]) -> bool:
    return isinstance(kept, dict) and kept.keys() == {each.name for each in fields(kind)}


def read_state(path: Path) -> Progress:
    """What `write_state` wrote. Raises `InputError` for anything else."""
    try:
        kept = pickle.loads(path.read_bytes())  # as SB3's model.zip: a run's own file, not a user's
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, ValueError) as error:
        raise InputError(path, "", f"a file that cannot be read ({error})", "the state of an evolution") from None
    if not (_has_fields(kept, Progress) and _has_fields(kept["experiment"], Experiment)):
        raise InputError(path, "", "the state of another version", "one of this version; begin anew in another folder")
    return Progress(**{**kept, "experiment": Experiment(**kept["experiment"])})


def write_state(path: Path, progress: Progress) -> None:
    """Plain data, as classes of a module that runs as a command line are found again only by the same."""
    with written_whole(path) as part:
        part.write_bytes(pickle.dumps({**vars(progress), "experiment": vars(progress.experiment)}))
