"""What more cores give a training run: measured on this machine, and arithmetic for more from constants measured here.

    python -m agents.scaling

A rollout of T steps of all simulators, D decisions, learned from in M minibatches (of all epochs) takes W workers

    D (play + learn) / W  +  T turn  +  M (trip + step + W answer)    seconds:

playing and gradients are spread; what a step of simulators and network costs however few they are (`turn`) is not. For
each minibatch the learner sends weights and hears from workers (`trip`), takes in each answer (`answer`) and steps the
optimizer (`step`). So one run on many cores wants larger minibatches, and more simulators with fewer steps each.
Left out is that workers wait for the slowest of them, and what cores share: their memory's bandwidth.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Column, Table
from sb3_contrib import MaskablePPO

from agents.evaluation.tables import Terminal
from agents.learning.distributed import Arrays, DistributedPPO, Gradient, RemoteEnvs, Rollout, Worker, minibatches_of
from agents.learning.model import TrainConfig, make_env, make_model, prepare_process
from nvlenv.common.commandline import command, option, parse
from nvlenv.common.config import config_names, find_config, load_config
from nvlenv.common.errors import InputError

CORES = (1, 2, 10, 100, 1000)
TRIPS, TURNS = 50, 5
WARM_UP = 3  # rollouts, until memory has grown
FEWER = 8  # simulators are measured all together, and an eighth of them
PER = {"play": "decision", "learn": "decision", "turn": "step of all simulators"}


@dataclass(frozen=True)
class Constants:
    """Seconds of one core."""

    play: float  # per decision
    turn: float  # per step of all simulators
    learn: float  # per decision, all epochs
    step: float  # per minibatch
    answer: float  # per minibatch and worker
    trip: float  # per minibatch, by the clock

    def rate(self, workers: int, config: TrainConfig) -> float:
        """Decisions per second of one run; 0 workers: in one process, where nothing is sent."""
        steps, minibatches = config.ppo.n_steps, minibatches_of(config) * config.ppo.n_epochs
        decisions = config.envs * steps
        spread = decisions * (self.play + self.learn) / max(1, workers)
        exchange = self.trip + workers * self.answer if workers else 0.0
        return decisions / (spread + steps * self.turn + minibatches * (self.step + exchange))


class _Timed(RemoteEnvs):
    """One worker in this process, whose answers are pickled as they would be on their way."""

    def __init__(self, config: TrainConfig) -> None:
        env = make_env(config)
        super(RemoteEnvs, self).__init__(config.envs, env.observation_space, env.action_space)
        self.parts = minibatches_of(config)
        self.worker = Worker(config, 0, config.envs, self.parts)
        self.spent = dict.fromkeys(("play", "learn", "answer"), 0.0)

    def play(self, weights: Arrays, done_steps: int) -> list[Rollout]:
        return [self._timed("play", self.worker.play, weights, done_steps)]

    def gradients(self, weights: Arrays, part: int) -> list[Gradient]:
        answer = pickle.dumps(self._timed("learn", self.worker.gradient, weights, part), protocol=5)
        gradient: Gradient | None = self._timed("answer", pickle.loads, answer)
        return [] if gradient is None else [gradient]

    def _timed(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        begin = time.process_time()
        result = call(*arguments)
        self.spent[name] += time.process_time() - begin
        return result


def measure_constants(config: TrainConfig, rollouts: int) -> Constants:
    """Play and learn from so many rollouts in this process, after one to warm up. Measured is the time of the CPU."""
    spent, rest = _spent(config, rollouts)
    few = max(1, config.envs // FEWER)
    fewer, _ = _spent(config.model_copy(update={"envs": few}), rollouts)
    steps, minibatches = rollouts * config.ppo.n_steps, rollouts * minibatches_of(config) * config.ppo.n_epochs
    play = max(0.0, (spent["play"] - fewer["play"]) / (config.envs - few)) / steps
    return Constants(
        play=play,
        turn=spent["play"] / steps - config.envs * play,
        learn=spent["learn"] / (steps * config.envs),
        step=rest / minibatches,
        answer=spent["answer"] / minibatches,
        trip=round_trip(config),
    )


def _spent(config: TrainConfig, rollouts: int) -> tuple[dict[str, float], float]:
    """Seconds of a worker that has all simulators of the run, and of the learner."""
    env = _Timed(config)
    model = make_model(config, env, DistributedPPO)
    decisions = config.envs * config.ppo.n_steps
    model.learn(decisions)
    env.spent = dict.fromkeys(env.spent, 0.0)
    begin = time.process_time()
    model.learn(rollouts * decisions, reset_num_timesteps=False)
    return env.spent, time.process_time() - begin - sum(env.spent.values())


def round_trip(config: TrainConfig) -> float:
    """Seconds from sending weights to a worker's answer, by the clock, where the worker has nothing to work out."""
    env = RemoteEnvs(config, 1)
    weights = make_model(config, env, DistributedPPO).weights()  # type: ignore[attr-defined]
    env.gradients(weights, 0)
    begin = time.perf_counter()
    for _ in range(TRIPS):
        env.gradients(weights, 0)
    env.close()
    return (time.perf_counter() - begin) / TRIPS


def by_the_clock(config: TrainConfig, workers: int, rollouts: int) -> float:
    """Decisions per second of a run with so many workers (0: none, in this process): the median of so many rollouts."""
    env = RemoteEnvs(config, workers) if workers else make_env(config)
    model = make_model(config, env, DistributedPPO if workers else MaskablePPO)
    decisions, seconds = config.envs * config.ppo.n_steps, []
    for _ in range(WARM_UP + rollouts):
        begin = time.perf_counter()
        model.learn(decisions, reset_num_timesteps=False)
        seconds.append(time.perf_counter() - begin)
    env.close()
    return decisions / float(np.median(seconds[WARM_UP:]))


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table of numbers, which end in line."""
    table = Table(*(Column(head, justify="right") for head in heads), title=title)
    for row in rows:
        table.add_row(*row)
    return table


def clock_table(config: TrainConfig, workers: Sequence[int], rollouts: int) -> Table:
    """What runs with so many workers do on this machine, by the clock.

    Runs of all sizes take turns, because a machine has fast and slow minutes; shown are medians over the turns.
    """
    counts = (0, *workers)
    rates = np.array([[by_the_clock(config, count, rollouts) for count in counts] for _ in range(TURNS)])
    medians = zip(counts, np.median(rates, axis=0), np.median(rates / rates[:, :1], axis=0), strict=True)
    rows = [(f"{n:,}" if n else "none", f"{rate:,.0f}", f"{ratio:.2f}x") for n, rate, ratio in medians]
    heads = ("workers", "one run", "against no workers")
    return _table("measured, in decisions per second by the clock", heads, rows)


def cores_table(constants: Constants, config: TrainConfig) -> Table:
    """Decisions per second of one run on all the cores, and of one run on every core."""
    alone = constants.rate(0, config)
    rates = {n: alone if n == 1 else constants.rate(n, config) for n in CORES}  # the learner sleeps while they work
    rows = [(f"{n:,}", f"{rate:,.0f}", f"{rate / alone:.1f}x", f"{n * alone:,.0f}") for n, rate in rates.items()]
    heads = ("cores", "one run on all", "against one core", "a run per core")
    return _table("what so many cores would give, in decisions per second", heads, rows)


def counts_of(text: str) -> list[int]:
    """Numbers of workers, "1,2". Raises `InputError` for anything else."""
    counts = [int(count) if count.isdecimal() else 0 for count in text.split(",")]
    if not all(counts):
        raise InputError("--workers", "", repr(text), "numbers of workers, such as 1,2")
    return counts


@dataclass(frozen=True)
class ScalingOptions:
    __doc__ = __doc__

    overrides: tuple[str, ...] = option(
        "settings of the run, such as envs=128", default=(), positional=True, nargs="*", metavar="KEY=VALUE"
    )
    config: str = option(f"a YAML file or one of {', '.join(config_names('train'))}", default="default")
    rollouts: int = option("to measure", default=10, least=1)
    workers: str = option("to measure by the clock", default="1,2", metavar="N,N")


@command
def main(argv: list[str]) -> None:
    """Measure, then print what was measured and what more cores would give."""
    options = parse(ScalingOptions, argv, "python -m agents.scaling")
    config = load_config(TrainConfig, find_config("train", options.config), options.overrides)
    if config.envs < 2:  # what they cost and what each of them costs are told apart by their number
        raise InputError("agents.scaling", "envs", config.envs, "at least 2")
    prepare_process(config.threads)
    clock = clock_table(config, counts_of(options.workers), options.rollouts)
    constants = measure_constants(config, options.rollouts)
    for name, value in vars(constants).items():
        print(f"{name:6s} {1e6 * value:8.1f} us per {PER.get(name, 'minibatch')}")
    Terminal().print(clock)
    Terminal().print(cores_table(constants, config))


if __name__ == "__main__":
    sys.exit(main())
