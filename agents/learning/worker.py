"""A worker of a distributed run: plays its share of the simulators, keeps what it played, and works out gradients.

It has the very model that a single process would have. Its rollouts are collected, and their advantages worked out, by
SB3's own code; the loss is that of MaskablePPO.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableDictRolloutBufferSamples
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import explained_variance
from torch import Tensor

from agents.learning.config import TrainConfig
from agents.learning.memory import keep_freed_memory
from agents.learning.model import make_env, make_model
from agents.learning.policy import PlacementPolicy, network_of

Arrays = dict[str, NDArray[np.float32]]  # by the names of the network's parameters


@dataclass(frozen=True)
class Played:
    """What a worker says of its rollout of T steps of E simulators; the rollout itself stays where it is."""

    infos: list[list[dict[str, Any]]]  # (T, E): of SB3's environments; empty but where an episode ended
    explained: float  # share of the variance of returns that the values explain
    begun_at: int  # steps of the whole run when this worker's first episodes began


@dataclass(frozen=True)
class Gradient:
    """The mean gradient over some decisions, and what SB3 logs of a minibatch."""

    decisions: int
    arrays: Arrays
    logged: dict[str, float]


class Worker:
    """Worker number `rank` of a run, with so many of its simulators; lives in a process of its own, maybe far away.

    `parts` : minibatches into which each worker cuts its rollout.
    """

    def __init__(self, config: TrainConfig, rank: int, envs: int, parts: int) -> None:
        self.config, self.rank, self.envs, self.parts = config, rank, envs, parts
        self.infos = _Infos()
        self.model: MaskablePPO | None = None
        self.begun_at = 0
        self.batches: Iterator[MaskableDictRolloutBufferSamples] = iter(())

    def _begin(self, done_steps: int) -> MaskablePPO:
        """Simulators and a model with a seed that no other worker has, nor this one before it was started again.

        The first worker's first seed is the run's: with one worker alone a run is the same, bit for bit, as with none.
        """
        seed = self.config.seed
        if self.rank or done_steps:
            seed = int(np.random.SeedSequence((seed, self.rank, done_steps)).generate_state(1)[0])
        # Weights come from the learner; the file that it began with may not be on this machine.
        config = self.config.model_copy(update={"seed": seed, "envs": self.envs, "init": ""})
        torch.set_num_threads(1)
        keep_freed_memory()
        model = make_model(config, make_env(config))
        model._setup_learn(config.steps, self.infos)
        self.begun_at = done_steps
        return model

    def play(self, weights: Arrays, done_steps: int) -> Played:
        """Play one rollout with these weights; `done_steps` of the run are done."""
        if self.model is None:
            self.model = self._begin(done_steps)
        model, buffer = self.model, self.model.rollout_buffer
        assert isinstance(buffer, MaskableDictRolloutBuffer) and model.env is not None
        _load(model, weights)
        self.infos.steps = []
        model.collect_rollouts(model.env, self.infos, buffer, model.n_steps)
        explained = float(explained_variance(buffer.values.flatten(), buffer.returns.flatten()))
        return Played(self.infos.steps, explained, self.begun_at)

    def gradient(self, weights: Arrays, part: int) -> Gradient | None:
        """The gradient at these weights on the next minibatch; part 0 shuffles the rollout anew.

        None: there is nothing to learn from, because the worker was started again after it had played, or because its
        share was too small for so many parts.
        """
        if self.model is None:
            return None
        buffer = self.model.rollout_buffer
        assert isinstance(buffer, MaskableDictRolloutBuffer)
        if part == 0:
            self.batches = buffer.get(-(-buffer.buffer_size * buffer.n_envs // self.parts))
        batch = next(self.batches, None)
        if batch is None:
            return None
        _load(self.model, weights)
        return minibatch_gradient(self.model, batch)


def _load(model: MaskablePPO, weights: Arrays) -> None:
    # Copies: what comes out of Ray's shared memory is read-only.
    network_of(model).load_state_dict({name: torch.from_numpy(array.copy()) for name, array in weights.items()})


def minibatch_gradient(model: MaskablePPO, batch: MaskableDictRolloutBufferSamples) -> Gradient:
    """As in `MaskablePPO.train`, up to the step of the optimizer."""
    policy, network, clip = model.policy, network_of(model), float(model.clip_range(1.0))  # type: ignore[operator]
    assert isinstance(policy, PlacementPolicy)
    values, log_prob, entropy = policy.evaluate_actions(
        batch.observations, batch.actions.long().flatten(), batch.action_masks
    )
    advantages: Tensor = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
    log_ratio = log_prob - batch.old_log_prob
    ratio = torch.exp(log_ratio)
    policy_loss = -torch.min(advantages * ratio, advantages * torch.clamp(ratio, 1 - clip, 1 + clip)).mean()
    value_loss = torch.nn.functional.mse_loss(batch.returns, values.flatten())
    entropy_loss = -torch.mean(entropy)
    loss = policy_loss + model.ent_coef * entropy_loss + model.vf_coef * value_loss
    network.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        logged = {
            "entropy_loss": entropy_loss,
            "policy_gradient_loss": policy_loss,
            "value_loss": value_loss,
            "approx_kl": torch.mean((ratio - 1) - log_ratio),
            "clip_fraction": torch.mean((torch.abs(ratio - 1) > clip).float()),
            "loss": loss,
        }
    arrays = {name: p.grad.numpy().copy() for name, p in network.named_parameters() if p.grad is not None}
    return Gradient(len(batch.actions), arrays, {name: float(value.item()) for name, value in logged.items()})


class _Infos(BaseCallback):
    """Keeps what the environments say of each step, for the learner's callbacks."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[list[dict[str, Any]]] = []

    def _on_step(self) -> bool:
        self.steps.append([{k: v for k, v in i.items() if k != "terminal_observation"} for i in self.locals["infos"]])
        return True
