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

import sys
from dataclasses import dataclass, fields
from pathlib import Path

from agents.search.evolution import GENERATIONS, POLICY, STATE, Experiment, evolve
from nvlenv.common.commandline import command, option, parse


def scenario_and_workloads(text: str) -> tuple[str, int]:
    """NAME[:WORKLOADS] as the two of them; 16 workloads where none are given."""
    name, _, count = text.rpartition(":")
    if not name or not count.isdecimal():
        return text, 16
    if int(count) < 1:
        raise ValueError(f"found {text}, expected at least 1 workload")
    return name, int(count)


@dataclass(frozen=True)
class EvolveOptions:
    __doc__ = __doc__

    # Settings that are not given are None: an evolution that goes on has its own.
    scenarios: tuple[tuple[str, int], ...] | None = option(
        "scenarios, and how many workloads a generation plays (default lab-16:16)",
        default=None, nargs="+", parse=scenario_and_workloads, metavar="NAME[:WORKLOADS]",
    )  # fmt: skip
    generations: int | None = option(
        f"in all (default {GENERATIONS}; with --resume: as many as were asked for)", default=None, least=1
    )
    population: int | None = option(f"of a generation (default {Experiment.population})", default=None, least=2)
    sigma: float | None = option(
        f"first step size, in units of STEPS (default {Experiment.sigma})", default=None, above=0
    )
    every: int | None = option(f"generations between validations (default {Experiment.every})", default=None, least=1)
    init: str | None = option(
        "policy file to start from (default: the heuristic prior)", default=None, metavar="POLICY"
    )
    seed: int | None = option(f"of candidates and workloads (default {Experiment.seed})", default=None, least=0)
    threads: int = option("episodes played side by side", default=1, least=1)
    out: Path = option("folder", default=Path("checkpoints/evolved"))
    resume: bool = option("go on with the evolution in the folder, as it was begun", default=False)
    quiet: bool = option("no progress bar", default=False)


@command
def main(argv: list[str]) -> None:
    """Evolve, or go on, and say what the best policy costs."""
    options = parse(EvolveOptions, argv, "python -m agents.evolve")
    given = {each.name: getattr(options, each.name, None) for each in fields(Experiment)}
    settings = {name: value for name, value in given.items() if value is not None}
    try:
        progress = evolve(settings, options.generations, options.out, options.resume, options.threads, options.quiet)
    except KeyboardInterrupt:
        kept = (options.out / STATE).is_file()
        raise KeyboardInterrupt(f"go on with --resume --out {options.out}" if kept else "nothing is kept") from None
    print(f"best on validation: {progress.best_score:.3f} of what the baselines pay; {options.out / POLICY}")


if __name__ == "__main__":
    sys.exit(main())
