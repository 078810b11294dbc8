"""Training on more than one machine: Ray's actors play, this process learns.

    python -m agents.train --distributed 8                        8 workers on this machine
    RAY_ADDRESS=head:6379 python -m agents.train --distributed 64 64 workers on the nodes of a Ray cluster

Every worker has its share of the simulators and the very model that a single process would have: its rollouts are
collected and their advantages worked out by SB3's own code. The learner joins the rollouts side by side and updates as
SB3 does, so a run with W workers is synchronous PPO on the same number of simulators, and its files are those of any
other run: `--resume` goes on with or without workers.

A worker that dies with its machine is started again by Ray on a node with a free core, and asked for the same rollout;
its simulators begin new episodes. So a loss costs at most one rollout of that worker. If no core is free, it waits.

Why SB3 and not RLlib: RLlib's runners step Gymnasium environments one by one and pass every step through Python. On
lab-16 with 64 simulators one core plays 8,500 decisions a second that way (Ray 2.60, a network of two layers of 32),
and 36,000 here. `python -m agents.scaling` measures what is left to gain: learning, which is not spread, takes two
thirds of a run's time, so workers speed one run up by half at most, and many runs side by side gain all there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices, VecEnvStepReturn

from agents.config import TrainConfig
from agents.fanout import THREADS, connect
from agents.policy import network_of
from agents.train import make_env, make_model
from nvlenv.env import Observation, action_space, observation_space
from nvlenv.errors import InputError
from nvlenv.scenario import load_scenario

Weights = dict[str, NDArray[np.float32]]
ARRAYS = ("actions", "rewards", "values", "log_probs", "advantages", "returns", "episode_starts", "action_masks")


@dataclass(frozen=True)
class Rollout:
    """What one worker played: T steps of its E simulators."""

    observations: dict[str, NDArray[np.float32]]  # each (T, E, ...)
    arrays: dict[str, NDArray[Any]]  # by the names in ARRAYS, each (T, E, ...)
    infos: list[list[dict[str, Any]]]  # (T, E): of SB3's environments; empty but where an episode ended
    begun_at: int  # steps of the whole run when this worker's first episodes began


class RolloutWorker:
    """Plays its share of the simulators; lives in a process of its own, maybe on another machine."""

    def __init__(self, config: TrainConfig, rank: int, envs: int) -> None:
        self.config, self.rank, self.envs = config, rank, envs
        self.infos = _Infos()
        self.model: MaskablePPO | None = None
        self.begun_at = 0

    def _begin(self, done_steps: int) -> MaskablePPO:
        """Simulators and a model with a seed that no other worker has, nor this one before it was started again.

        The first worker's first seed is the run's: with one worker alone a run is the same, bit for bit, as with none.
        """
        seed = self.config.seed
        if self.rank or done_steps:
            seed = int(np.random.SeedSequence((seed, self.rank, done_steps)).generate_state(1)[0])
        config = self.config.model_copy(update={"seed": seed, "envs": self.envs})
        torch.set_num_threads(1)
        model = make_model(config, make_env(config))
        model._setup_learn(config.steps, self.infos)
        self.begun_at = done_steps
        return model

    def collect(self, weights: Weights, done_steps: int) -> Rollout:
        """Play one rollout with these weights; `done_steps` of the run are done."""
        if self.model is None:
            self.model = self._begin(done_steps)
        model, buffer = self.model, self.model.rollout_buffer
        assert isinstance(buffer, MaskableDictRolloutBuffer) and model.env is not None
        # Copies: what comes out of Ray's shared memory is read-only.
        network_of(model).load_state_dict({name: torch.from_numpy(array.copy()) for name, array in weights.items()})
        self.infos.steps = []
        model.collect_rollouts(model.env, self.infos, buffer, model.n_steps)
        arrays = {name: getattr(buffer, name) for name in ARRAYS}
        arrays["action_masks"] = arrays["action_masks"].astype(np.bool_)  # a quarter of the bytes to send
        return Rollout(buffer.observations, arrays, self.infos.steps, self.begun_at)


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
        self.ray = connect()
        cores = int(self.ray.cluster_resources().get("CPU", 0))
        if workers > cores:  # Ray would wait for more
            raise InputError("--distributed", "", workers, f"at most {cores}, the cores of the Ray cluster")
        racks = max(load_scenario(name, config.overrides).cluster_spec().racks for name in config.scenarios)
        super().__init__(config.envs, observation_space(racks), action_space(racks))
        shares = [len(part) for part in np.array_split(np.arange(config.envs), workers)]
        worker = self.ray.remote(RolloutWorker).options(
            num_cpus=1,
            max_restarts=-1,
            max_task_retries=-1,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": THREADS},
        )
        self.workers = [worker.remote(config, rank, envs) for rank, envs in enumerate(shares)]

    def collect(self, weights: Weights, done_steps: int) -> list[Rollout]:
        """One rollout of every worker, in their order."""
        shared = self.ray.put(weights)
        rollouts: list[Rollout] = self.ray.get([w.collect.remote(shared, done_steps) for w in self.workers])
        return rollouts

    def close(self) -> None:
        """End the workers' processes."""
        for worker in self.workers:
            self.ray.kill(worker)
        self.workers = []

    def reset(self) -> Observation:  # type: ignore[override]
        """SB3 asks for a first observation; nobody looks at it."""
        spaces = self.observation_space.spaces  # type: ignore[attr-defined]
        return {name: np.zeros((self.num_envs, *space.shape), np.float32) for name, space in spaces.items()}

    def step_async(self, actions: NDArray[np.int64]) -> None:
        raise NotImplementedError("the simulators are stepped by the workers: use DistributedPPO")

    def step_wait(self) -> VecEnvStepReturn:
        raise NotImplementedError("the simulators are stepped by the workers: use DistributedPPO")

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        if attr_name not in ("render_mode", "spec"):
            raise AttributeError(f"RemoteEnvs has no attribute {attr_name!r}; the simulators live elsewhere")
        return [None for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        raise InputError("RemoteEnvs.set_attr", attr_name, value, "nothing: simulators are set up by their scenario")

    def env_method(self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **_: Any) -> list[Any]:
        raise InputError("RemoteEnvs.env_method", method_name, "a call", "nothing: the simulators live elsewhere")

    def env_is_wrapped(self, wrapper_class: Any, indices: VecEnvIndices = None) -> list[bool]:
        return [False for _ in self._get_indices(indices)]


class DistributedPPO(MaskablePPO):
    """MaskablePPO whose rollouts are played by the workers of its `RemoteEnvs`."""

    def collect_rollouts(  # type: ignore[override]
        self,
        env: RemoteEnvs,
        callback: BaseCallback,
        rollout_buffer: MaskableDictRolloutBuffer,
        n_rollout_steps: int,
        use_masking: bool = True,
    ) -> bool:
        """Fill the buffer with the workers' rollouts side by side, and tell the callbacks step by step."""
        rollout_buffer.reset()
        callback.on_rollout_start()
        weights = {name: tensor.detach().numpy() for name, tensor in network_of(self).state_dict().items()}
        rollouts = env.collect(weights, self.num_timesteps)
        for name, target in rollout_buffer.observations.items():
            np.concatenate([rollout.observations[name] for rollout in rollouts], axis=1, out=target)
        for name in ARRAYS:
            target = getattr(rollout_buffer, name)
            np.concatenate([rollout.arrays[name] for rollout in rollouts], axis=1, out=target, casting="unsafe")
        rollout_buffer.pos, rollout_buffer.full = n_rollout_steps, True
        for step in range(n_rollout_steps):
            infos = [info for rollout in rollouts for info in rollout.infos[step]]
            self.num_timesteps += env.num_envs
            callback.update_locals({"infos": infos})
            if not callback.on_step():
                return False
            self._update_info_buffer(infos)
        callback.on_rollout_end()
        return True
