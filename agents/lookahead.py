"""Label decisions by what they come to: the same future, once with the job acted for and once with it held.

    python -m agents.lookahead --scenario lab-16 --episodes 60

At decisions of a heuristic's own episodes the state is copied twice. In one copy the job at hand gets the rack that the
heuristic's packing and opening would give it, whatever it keeps for others; in the other it is held. Both go on under
the heuristic, on the same arrivals and run times (common random numbers), and the difference of their costs after some
days is the label: an unbiased sample of the advantage of holding, however chaotic the future is.

The command says what is in it for a policy: how much less a decision costs on average if it is taken as the heuristic
takes it, as the best linear function of the observation says (measured on episodes that it was not fitted to), and by
someone who knows the future. The first two close together mean that the heuristic holds about as well as anybody can
who sees what it sees.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.table import Column, Table

from agents.evaluation.episodes import evaluation_scenario, split_scenario, split_seeds
from agents.evaluation.statistics import Interval, bootstrap
from agents.evaluation.tables import Terminal
from nvlenv.common.commandline import command, option, parse
from nvlenv.common.errors import InputError
from nvlenv.common.kernel import compiled, kernel
from nvlenv.envs.scenario import Scenario, prepare, scenario_names
from nvlenv.policies.heuristics.choose import choose
from nvlenv.policies.heuristics.rule import Rule, parse_rule
from nvlenv.policies.observation import N_CLUSTER, N_JOB, N_RACK, observe
from nvlenv.simulator.state import Sim, copy_into
from nvlenv.simulator.step import advance, apply, step

RIDGE = 5.0  # of the linear fit: features are within [-1, 1]
FITTED = 0.8  # share of the labels, those of the first episodes
SPREAD = 2654435761  # Knuth's multiplier: which decisions are labelled looks random, and is the same on every machine


@dataclass(frozen=True)
class LookaheadOptions:
    __doc__ = __doc__

    scenario: str = option(f"a YAML file or one of {', '.join(scenario_names())}", default="lab-16")
    policy: str = option("the heuristic", default="slurm-block+delay(hours=8)+easy(slices=1,patience=20)+drain+open")
    episodes: int = option("training workloads", default=60, least=1)
    every: int = option("label one in so many decisions", default=50, least=1)
    hours: float = option("of lookahead", default=64.0, above=0)
    seed: int = option("of the workloads", default=0, least=0)
    threads: int = option("episodes played side by side", default=1, least=1)


class Labels(NamedTuple):
    """L labelled decisions."""

    rack: NDArray[np.float32]  # (L, F): features of the rack that the action takes; 0 for `fill`
    job: NDArray[np.float32]  # (L, J)
    cluster: NDArray[np.float32]  # (L, C)
    held: NDArray[np.bool_]  # (L,): what the heuristic does
    advantage: NDArray[np.float64]  # (L,): cost of holding less cost of acting, GPU-hours / GPUs of the cluster


def without_keeping(rule: Rule) -> Rule:
    """The heuristic that acts whenever it can: nothing is kept for others, nobody waits for a better place."""
    return rule._replace(easy=0, drain=0, delay_hours=0.0, hold_racks=0)


def collect_labels(
    scenario: Scenario, rule: Rule, seeds: Sequence[np.random.SeedSequence], every: int, hours: float, threads: int = 1
) -> Labels:
    """Play one episode per seed, and label about one in `every` decisions by `hours` of lookahead."""
    with ThreadPoolExecutor(threads) as pool:  # kernels run without Python's lock
        parts = list(pool.map(partial(_collect_one, scenario, rule, every, hours), seeds))
    return Labels(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _collect_one(scenario: Scenario, rule: Rule, every: int, hours: float, seed: np.random.SeedSequence) -> Labels:
    sim = prepare(scenario, scenario.draw(seed), sample=False)
    sim.clock["measure_from"] = 0.0
    copy = Sim(*(array.copy() for array in sim))
    room = 50_000 // every
    rack, job, cluster = (np.zeros((room, size), np.float32) for size in (N_RACK, N_JOB, N_CLUSTER))
    labels = Labels(rack, job, cluster, np.zeros(room, np.bool_), np.zeros(room))
    racks = np.zeros((len(sim.racks), N_RACK), np.float32)
    offset = int(seed.generate_state(1)[0])
    count = _label_episode(sim, copy, rule, without_keeping(rule), every, offset, hours, racks, labels)
    return Labels(*(column[:count] for column in labels))  # type: ignore[arg-type]


@compiled
def _label_episode(sim, copy, rule, eager, every, offset, hours, racks, labels):
    """Returns the number of labels."""
    count, number, n = 0, offset, len(sim.racks)
    alive = advance(sim)
    while alive and count < len(labels.advantage):
        action = choose(sim, rule)
        number += 1
        drawn = (number * SPREAD) % 2**32 < 2**32 // every
        if drawn and sim.mask[2 * n + 1] and sim.clock[0].now + hours <= sim.clock[0].horizon:
            act = choose(sim, eager)
            if act != 2 * n + 1:
                observe(sim, racks, labels.job[count], labels.cluster[count])
                if act < 2 * n:
                    labels.rack[count] = racks[act % n]
                labels.held[count] = action == 2 * n + 1
                cost = _cost_after(sim, copy, rule, 2 * n + 1, hours) - _cost_after(sim, copy, rule, act, hours)
                labels.advantage[count] = cost / sim.clock[0].capacity
                count += 1
                action = choose(sim, rule)  # the observation brought another reservation up to date
        alive = step(sim, action)
    return count


@compiled
def _cost_after(sim, copy, rule, action, hours):
    """GPU-hours that the next hours cost if this action is taken now and the heuristic decides from then on."""
    copy_into(copy, sim)
    copy.clock[0].horizon = copy.clock[0].now + hours
    before = _cost(copy)
    alive = apply(copy, action) or advance(copy)
    while alive:
        alive = step(copy, choose(copy, rule))
    return _cost(copy) - before


@kernel
def _cost(sim):
    c = sim.clock[0]
    return c.waiting + c.slowdown + c.lost


def gains(labels: Labels) -> dict[str, Interval]:
    """What a decision costs on average, against acting always, on the labels that the linear fit has not seen."""
    seen = int(FITTED * len(labels.advantage))
    one = np.ones((len(labels.job), 1), np.float32)
    inputs = np.concatenate([labels.rack, labels.job, labels.cluster, one], axis=1)
    known, unknown = inputs[:seen].astype(np.float64), inputs[seen:].astype(np.float64)
    normal = known.T @ known + RIDGE * np.eye(known.shape[1])
    weights = np.linalg.solve(normal, known.T @ labels.advantage[:seen])
    advantage = labels.advantage[seen:]
    holds = {
        "the heuristic": labels.held[seen:],
        "the best linear function": unknown @ weights < 0,
        "who knows the future": advantage < 0,
    }
    return {name: bootstrap(np.where(held, advantage, 0.0)) for name, held in holds.items()}


@command
def main(argv: list[str]) -> None:
    """Label decisions, and print what there is to gain by deciding otherwise."""
    options = parse(LookaheadOptions, argv, "python -m agents.lookahead")
    scenario = split_scenario(evaluation_scenario(options.scenario), "train")
    seeds, rule = split_seeds(options.seed, "train", options.episodes), parse_rule(options.policy)
    labels = collect_labels(scenario, rule, seeds, options.every, options.hours, options.threads)
    if len(labels.advantage) < 2 * labels.rack.shape[1]:
        raise InputError("--episodes", "", f"{len(labels.advantage)} labels", "more episodes, or --every lower")
    heads = ("who decides to hold", Column(f"{len(labels.advantage):,} labels", justify="right"))
    title = f"cost of a decision after {options.hours:g} h, in GPU-hours per GPU, against acting always"
    table = Table(*heads, title=title)
    for name, gain in gains(labels).items():
        table.add_row(name, str(gain))
    Terminal().print(table)


if __name__ == "__main__":
    sys.exit(main())
