"""PPO end to end, where its time goes, and stock MaskablePPO on the single environment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv

from agents.learning.model import TrainConfig, make_env, make_model
from agents.learning.network import PlacementNetwork
from nvlenv.envs.env import NVL72Env
from tests.benchmarks.support.figures import Figure
from tests.benchmarks.support.work import seconds

pytestmark = pytest.mark.slow
ROLLOUTS, RIVAL_ROLLOUT = 3, 32  # of the rival: steps of each simulator
RACKS = 16


class Spent:
    """CPU seconds in some methods of an object."""

    def __init__(self, owner: Any, *names: str) -> None:
        self.seconds = dict.fromkeys(names, 0.0)
        for name in names:
            setattr(owner, name, self._timed(name, getattr(owner, name)))

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            begin = time.process_time()
            result = method(*arguments, **named)
            self.seconds[name] += time.process_time() - begin
            return result

        return call


def flops(hidden: int) -> int:
    """Multiplications and additions of one forward pass over 16 racks."""
    layers = [module for module in PlacementNetwork(hidden).modules() if isinstance(module, torch.nn.Linear)]
    per_rack = ("rack_in", "mid", "rack_head", "prior_rack")
    named = dict(PlacementNetwork(hidden).named_modules())
    once = sum(2 * layer.in_features * layer.out_features for layer in layers)
    shared = sum(2 * named[name].in_features * named[name].out_features for name in per_rack)  # type: ignore[operator]
    return once + (RACKS - 1) * shared


def matmul_rate(hidden: int, rows: int) -> float:
    """Operations per second of this machine's matrix product, one thread, at the size of the widest layer."""
    a, b = torch.randn(rows, hidden), torch.randn(hidden, hidden)
    out = torch.empty(rows, hidden)
    took = min(seconds(lambda: [torch.mm(a, b, out=out) for _ in range(20)]) for _ in range(5)) / 20
    return 2 * rows * hidden * hidden / took


def test_training(figures: list[Figure]) -> None:
    config = TrainConfig()
    torch.set_num_threads(1)
    model = make_model(config, env := make_env(config))
    model.set_logger(Logger(None, []))
    steps = config.envs * config.ppo.n_steps
    model.learn(steps)
    spent = Spent(model, "collect_rollouts", "train")
    stepping = Spent(env, "step_wait")
    took = seconds(lambda: model.learn(ROLLOUTS * steps, reset_num_timesteps=False))
    rate = ROLLOUTS * steps / took

    name = "training, 16 racks, rollout and update"
    figures.append(
        Figure(
            name, rate, "steps/s", 10_000, rival="stock MaskablePPO, DummyVecEnv, flat MLP", rival_value=stock_rate()
        )
    )
    update, rollout, inside = (
        100 * s / took
        for s in (spent.seconds["train"], spent.seconds["collect_rollouts"], stepping.seconds["step_wait"])
    )
    floor = 3 * config.ppo.n_epochs * flops(config.hidden) / matmul_rate(config.hidden, config.ppo.batch_size * RACKS)
    figures.append(Figure("  of this the update", update, "%"))
    figures.append(Figure("  the rollout: network, sampling, buffers", rollout - inside, "%"))
    figures.append(Figure("  the rollout: simulators", inside, "%"))
    figures.append(Figure("  matrix products of the update alone", 100 * floor * rate, "%"))


def stock_rate() -> float:
    """Steps per CPU second of MaskablePPO as it comes, with the same settings but shorter rollouts."""
    config = TrainConfig()
    ppo = config.ppo
    env = DummyVecEnv([lambda: NVL72Env(config.scenarios[0])] * config.envs)
    steps = config.envs * RIVAL_ROLLOUT
    model = MaskablePPO("MultiInputPolicy", env, n_steps=RIVAL_ROLLOUT, batch_size=steps // 4, n_epochs=ppo.n_epochs)
    model.set_logger(Logger(None, []))
    model.learn(steps)
    return 2 * steps / seconds(lambda: model.learn(2 * steps, reset_num_timesteps=False))
