"""What more cores would give a training run: constants measured here, and the arithmetic that follows from them.

    python -m agents.scaling

A rollout of W workers takes the time that one of them plays its share, then the learner joins all of it and updates:

    seconds per decision = play / W + join + learn

`play` is spread over workers; `join` (receiving rollouts and laying them side by side) and `learn` are not, so a run
never goes faster than 1 / (join + learn). Many runs side by side have no such limit: seeds, tuning trials, evaluation.
`play` is measured with all simulators in one worker. With fewer of them a decision is dearer, because a step of the
network costs about as much for 8 as for 64; so give a run with workers more simulators, and fewer steps of each.
"""

from __future__ import annotations

import argparse
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from agents.config import TrainConfig
from agents.distributed import ARRAYS, DistributedPPO, RemoteEnvs, Rollout, RolloutWorker, Weights
from agents.train import make_env, make_model
from nvlenv.config import config_names, find_config, load_config
from nvlenv.errors import InputError

CORES = (1, 2, 10, 100, 1000)


@dataclass(frozen=True)
class Constants:
    """Seconds of one core, and bytes sent, per decision."""

    play: float
    join: float
    learn: float
    bytes: float

    def rate(self, workers: int) -> float:
        """Decisions per second of one run; 0 workers: in one process, where nothing is sent."""
        return 1 / (self.play / max(workers, 1) + (self.join if workers else 0.0) + self.learn)


class _Here(RemoteEnvs):
    """One worker in this process, whose rollouts are pickled as Ray pickles them."""

    def __init__(self, config: TrainConfig) -> None:
        env = make_env(config)
        super(RemoteEnvs, self).__init__(config.envs, env.observation_space, env.action_space)
        self.worker, self.play, self.bytes = RolloutWorker(config, 0, config.envs), 0.0, 0

    def collect(self, weights: Weights, done_steps: int) -> list[Rollout]:
        begin = time.process_time()
        rollout = self.worker.collect(weights, done_steps)
        self.play += time.process_time() - begin
        sent: list[pickle.PickleBuffer] = []
        head = pickle.dumps(rollout, protocol=5, buffer_callback=sent.append)
        self.bytes += len(head) + sum(buffer.raw().nbytes for buffer in sent)
        return [pickle.loads(head, buffers=[bytes(buffer.raw()) for buffer in sent])]


def measure(config: TrainConfig, rollouts: int) -> Constants:
    """Play and learn so many rollouts in this process, after one to warm up. Measured is the time of the CPU."""
    env = _Here(config)
    model = make_model(config, env, DistributedPPO)
    steps = config.envs * config.ppo.n_steps
    model.learn(steps)
    env.play, env.bytes = 0.0, 0
    learn = _timed(model, "train")
    begin = time.process_time()
    model.learn(rollouts * steps, reset_num_timesteps=False)
    total = time.process_time() - begin
    done = rollouts * steps
    return Constants(env.play / done, (total - env.play - learn()) / done, learn() / done, env.bytes / done)


def _timed(owner: object, name: str) -> Callable[[], float]:
    """Replace a method by one that is timed; the result says how long it took so far."""
    method, spent = getattr(owner, name), [0.0]

    def timed() -> None:
        begin = time.process_time()
        method()
        spent[0] += time.process_time() - begin

    setattr(owner, name, timed)
    return lambda: spent[0]


def plan(constants: Constants, envs: int) -> Table:
    """Decisions per second of one run on all the cores, and of one run on every core."""
    table = Table(title="what so many cores would give, in decisions per second")
    for head in ("cores", "workers", "one run", "against one core", "a run per core"):
        table.add_column(head, justify="right")
    alone = constants.rate(0)
    for cores in CORES:
        workers = 0 if cores == 1 else min(cores, envs)  # the learner sleeps while they play
        rate = constants.rate(workers)
        table.add_row(str(cores), str(workers), f"{rate:,.0f}", f"{rate / alone:.2f}x", f"{cores * alone:,.0f}")
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
        constants = measure(config, arguments.rollouts)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name in ("play", "join", "learn"):
        print(f"{name:6s}{1e6 * getattr(constants, name):8.1f} us of one core per decision")
    print(f"sent  {constants.bytes:8.0f} bytes per decision, {len(ARRAYS)} arrays and the observation")
    Console().print(plan(constants, config.envs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
