"""What more cores would give a training run: constants measured here, and the arithmetic that follows from them.

    python -m agents.scaling

A rollout of D decisions, learned from in M minibatches (all epochs together), takes W workers

    D (play + learn) / W  +  M (trip + step + W answer)    seconds:

playing and gradients are spread; for each minibatch the learner sends weights and hears from workers (`trip`), takes
in each answer (`answer`) and steps the optimizer (`step`). Larger minibatches have fewer trips. `play` and `learn` are
measured with all simulators in one worker; with few of them a decision is dearer, so that many workers want more
simulators and fewer steps of each.
"""

from __future__ import annotations

import argparse
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from agents.config import TrainConfig
from agents.distributed import DistributedPPO, RemoteEnvs, parts_of
from agents.train import make_env, make_model
from agents.worker import Arrays, Gradient, Played, Worker
from nvlenv.config import config_names, find_config, load_config
from nvlenv.errors import InputError

CORES = (1, 2, 10, 100, 1000)
TRIPS = 50

Result = TypeVar("Result")


@dataclass(frozen=True)
class Constants:
    """Seconds of one core."""

    play: float  # per decision
    learn: float  # per decision, all epochs
    step: float  # per minibatch
    answer: float  # per minibatch and worker
    trip: float = 0.0  # per minibatch, by the clock

    def rate(self, workers: int, decisions: int, minibatches: int) -> float:
        """Decisions per second of one run; 0 workers: in one process, where nothing is sent."""
        spread = decisions * (self.play + self.learn) / max(1, workers)
        exchange = self.trip + workers * self.answer if workers else 0.0
        return decisions / (spread + minibatches * (self.step + exchange))


class _Timed(RemoteEnvs):
    """One worker in this process, whose answers are pickled as they would be on their way."""

    def __init__(self, config: TrainConfig) -> None:
        env = make_env(config)
        super(RemoteEnvs, self).__init__(config.envs, env.observation_space, env.action_space)
        self.parts = parts_of(config)
        self.worker = Worker(config, 0, config.envs, self.parts)
        self.spent = dict.fromkeys(("play", "learn", "answer"), 0.0)

    def play(self, weights: Arrays, done_steps: int) -> list[Played]:
        return [self._timed("play", lambda: self.worker.play(weights, done_steps))]

    def gradients(self, weights: Arrays, part: int) -> list[Gradient]:
        answer = pickle.dumps(self._timed("learn", lambda: self.worker.gradient(weights, part)), protocol=5)
        gradient: Gradient | None = self._timed("answer", lambda: pickle.loads(answer))
        return [] if gradient is None else [gradient]

    def _timed(self, name: str, call: Callable[[], Result]) -> Result:
        begin = time.process_time()
        result = call()
        self.spent[name] += time.process_time() - begin
        return result


def measure(config: TrainConfig, rollouts: int) -> Constants:
    """Play and learn from so many rollouts in this process, after one to warm up. Measured is the time of the CPU."""
    env = _Timed(config)
    model = make_model(config, env, DistributedPPO)
    decisions = config.envs * config.ppo.n_steps
    model.learn(decisions)
    env.spent = dict.fromkeys(env.spent, 0.0)
    begin = time.process_time()
    model.learn(rollouts * decisions, reset_num_timesteps=False)
    rest = time.process_time() - begin - sum(env.spent.values())
    done, minibatches = rollouts * decisions, rollouts * env.parts * config.ppo.n_epochs
    spent = env.spent
    return Constants(spent["play"] / done, spent["learn"] / done, rest / minibatches, spent["answer"] / minibatches)


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


def plan(constants: Constants, config: TrainConfig) -> Table:
    """Decisions per second of one run on all the cores, and of one run on every core."""
    table = Table(title="what so many cores would give, in decisions per second")
    for head in ("cores", "one run on all", "against one core", "a run per core"):
        table.add_column(head, justify="right")
    sizes = config.envs * config.ppo.n_steps, parts_of(config) * config.ppo.n_epochs
    alone = constants.rate(0, *sizes)
    for cores in CORES:
        rate = alone if cores == 1 else constants.rate(cores, *sizes)  # the learner sleeps while they work
        table.add_row(f"{cores:,}", f"{rate:,.0f}", f"{rate / alone:.1f}x", f"{cores * alone:,.0f}")
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0: done, 2: bad input, told in one line on stderr."""
    parser = argparse.ArgumentParser(prog="python -m agents.scaling", description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of the run, such as envs=128")
    parser.add_argument("--config", default="default", help=f"a YAML file or one of {', '.join(config_names('train'))}")
    parser.add_argument("--rollouts", type=int, default=5, help="to measure (default %(default)s)")
    arguments = parser.parse_args(argv)
    try:
        if arguments.rollouts < 1:
            raise InputError("--rollouts", "", arguments.rollouts, "at least 1")
        config = load_config(TrainConfig, find_config("train", arguments.config), arguments.overrides)
        measured = measure(config, arguments.rollouts)
        constants = Constants(measured.play, measured.learn, measured.step, measured.answer, round_trip(config))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, value in vars(constants).items():
        print(f"{name:6s} {1e6 * value:8.1f} us per {'decision' if name in ('play', 'learn') else 'minibatch'}")
    Console().print(plan(constants, config))
    return 0


if __name__ == "__main__":
    sys.exit(main())
