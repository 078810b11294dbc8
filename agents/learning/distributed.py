"""Training on more than one machine: Ray's actors play and work out gradients, this process takes the steps.

    python -m agents.train --distributed 8                        8 workers on this machine
    RAY_ADDRESS=head:6379 python -m agents.train --distributed 64 64 workers on the nodes of a Ray cluster

A worker has the very model that a single process would have; SB3's own code collects its rollouts and works out their
advantages. Every worker plays its share of the simulators and keeps what it played. For each minibatch the learner
sends weights, every worker answers with the gradient on its share, and their mean is one step of the optimizer. So both
playing and learning are spread, a run with W workers is synchronous PPO on the same simulators, and its files are those
of any other run: `--resume` goes on with or without workers. (Advantages are normalised within a worker's share.)

A worker that dies with its machine is started again by Ray on a node with a free core. If it was playing, it plays that
rollout again, with new episodes; if it was learning, the others' gradients go on without it. So a loss costs at most
one rollout of that worker. If no core is free, the run waits.

Why SB3's loop and not RLlib: RLlib's runners step Gymnasium environments one by one and pass every step through Python.
On lab-16 with 64 simulators one core plays 8,500 decisions a second that way (Ray 2.60, a network of two layers of 32),
and 36,000 here. `python -m agents.scaling` measures what more cores give.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableDictRolloutBufferSamples
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import explained_variance
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices
from torch import Tensor

from agents.evaluation.fanout import THREADS, connect_ray
from agents.learning.model import PlacementPolicy, TrainConfig, make_env, make_model, network_of, prepare_process
from nvlenv.common.errors import InputError
from nvlenv.envs.env import Observation, action_space, observation_space
from nvlenv.envs.scenario import load_scenario

Arrays = dict[str, NDArray[np.float32]]  # by the names of the network's parameters

WITH_CALL = 80_000  # bytes; Ray stores arguments of 100 KB and more, once for every call


def minibatches_of(config: TrainConfig) -> int:
    """Minibatches of one rollout of all simulators."""
    return -(-config.envs * config.ppo.n_steps // config.ppo.batch_size)


@dataclass(frozen=True)
class Rollout:
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
    """Worker `rank` of a run, a process maybe far away: it plays so many simulators, and cuts rollouts into `parts`."""

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
        prepare_process(threads=1)
        model = make_model(config, make_env(config))
        model._setup_learn(config.steps, self.infos)
        self.begun_at = done_steps
        return model

    def play(self, weights: Arrays, done_steps: int) -> Rollout:
        """Play one rollout with these weights; `done_steps` of the run are done."""
        if self.model is None:
            self.model = self._begin(done_steps)
        model, buffer = self.model, self.model.rollout_buffer
        assert isinstance(buffer, MaskableDictRolloutBuffer) and model.env is not None
        _load(model, weights)
        self.infos.steps = []
        model.collect_rollouts(model.env, self.infos, buffer, model.n_steps)
        explained = float(explained_variance(buffer.values.flatten(), buffer.returns.flatten()))
        return Rollout(self.infos.steps, explained, self.begun_at)

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
        if (batch := next(self.batches, None)) is None:
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


class RemoteEnvs(VecEnv):
    """All simulators of a run as the learner sees them: their spaces and their number. They are played elsewhere."""

    def __init__(self, config: TrainConfig, workers: int) -> None:
        if not 1 <= workers <= config.envs:
            raise InputError("--distributed", "", workers, f"1 to {config.envs}, the simulators of the run")
        self.ray = connect_ray()
        cores = int(self.ray.cluster_resources().get("CPU", 0))
        if workers > cores:  # Ray would wait for more
            raise InputError("--distributed", "", workers, f"at most {cores}, the cores of the Ray cluster")
        racks = max(load_scenario(name, config.overrides).cluster_spec().racks for name in config.scenarios)
        super().__init__(config.envs, observation_space(racks), action_space(racks))
        self.parts = minibatches_of(config)
        actor = self.ray.remote(
            num_cpus=1, max_restarts=-1, max_task_retries=-1, scheduling_strategy="SPREAD",
            runtime_env={"env_vars": THREADS},
        )(Worker)  # fmt: skip
        shares = [len(share) for share in np.array_split(np.arange(config.envs), workers)]
        self.workers = [actor.remote(config, rank, envs, self.parts) for rank, envs in enumerate(shares)]

    def play(self, weights: Arrays, done_steps: int) -> list[Rollout]:
        """One rollout of every worker, in their order."""
        return self._asked("play", weights, done_steps)

    def gradients(self, weights: Arrays, part: int) -> list[Gradient]:
        """The gradients of those workers that have something to learn from, in their order."""
        return [answer for answer in self._asked("gradient", weights, part) if answer is not None]

    def _asked(self, method: str, weights: Arrays, number: int) -> list[Any]:
        """Every worker's answer. Small weights go with the call, which halves the trip."""
        small = sum(array.nbytes for array in weights.values()) < WITH_CALL
        shared = weights if small else self.ray.put(weights)
        return list(self.ray.get([getattr(worker, method).remote(shared, number) for worker in self.workers]))

    def close(self) -> None:
        """End the workers' processes."""
        for worker in self.workers:
            self.ray.kill(worker)
        self.workers = []

    def reset(self) -> Observation:  # type: ignore[override]
        """SB3 asks for a first observation; nobody looks at it."""
        spaces = self.observation_space.spaces  # type: ignore[attr-defined]
        return {name: np.zeros((self.num_envs, *space.shape), np.float32) for name, space in spaces.items()}

    def refused(self, *_: Any, **__: Any) -> NoReturn:
        """Nobody steps, changes or calls the simulators from here."""
        raise NotImplementedError("simulators are set up by their scenario and stepped by workers: use DistributedPPO")

    step_async = step_wait = set_attr = env_method = refused

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """What SB3 asks of every environment, without a value; other attributes live elsewhere."""
        if attr_name not in ("render_mode", "spec"):
            raise AttributeError(f"RemoteEnvs has no attribute {attr_name!r}; the simulators live elsewhere")
        return [None] * len(list(self._get_indices(indices)))

    def env_is_wrapped(self, wrapper_class: Any, indices: VecEnvIndices = None) -> list[bool]:
        """(N,) False: nothing is wrapped here."""
        return [False] * len(list(self._get_indices(indices)))


class DistributedPPO(MaskablePPO):
    """MaskablePPO whose rollouts and gradients come from the workers of its `RemoteEnvs`."""

    env: RemoteEnvs

    def weights(self) -> Arrays:
        """The network's parameters by name, float32, sharing memory with it."""
        return {name: tensor.numpy() for name, tensor in network_of(self).state_dict().items()}

    def collect_rollouts(  # type: ignore[override]
        self, env: RemoteEnvs, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int,
        use_masking: bool = True,
    ) -> bool:  # fmt: skip
        """Let the workers play, and tell the callbacks step by step what happened. The buffer stays empty."""
        callback.on_rollout_start()
        played = env.play(self.weights(), self.num_timesteps)
        for step in range(n_rollout_steps):
            infos = [info for worker in played for info in worker.infos[step]]
            self.num_timesteps += env.num_envs
            callback.update_locals({"infos": infos})
            if not callback.on_step():
                return False
            self._update_info_buffer(infos)
        self.logger.record("train/explained_variance", float(np.mean([worker.explained for worker in played])))
        callback.on_rollout_end()
        return True

    def train(self) -> None:
        """One step of the optimizer per minibatch, on the mean of the workers' gradients."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        logged: list[dict[str, float]] = []
        for _ in range(self.n_epochs):
            self._n_updates += 1
            if not self._epoch(logged):
                break
        for name in logged[-1]:
            self.logger.record(f"train/{name}", float(np.mean([values[name] for values in logged])))
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")

    def _epoch(self, logged: list[dict[str, float]]) -> bool:
        """One pass over all rollouts. False: the policy has moved so far that learning stops until the next rollout."""
        for part in range(self.env.parts):
            gradients = self.env.gradients(self.weights(), part)
            if not gradients:
                continue
            share = np.array([gradient.decisions for gradient in gradients]) / sum(g.decisions for g in gradients)
            logged.append({k: float(share @ [g.logged[k] for g in gradients]) for k in gradients[0].logged})
            if self.target_kl is not None and logged[-1]["approx_kl"] > 1.5 * self.target_kl:
                return False
            for name, parameter in network_of(self).named_parameters():
                if name in gradients[0].arrays:
                    mean = sum(s * g.arrays[name] for s, g in zip(share.astype(np.float32), gradients, strict=True))
                    parameter.grad = torch.from_numpy(np.asarray(mean, np.float32))
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
        return True
