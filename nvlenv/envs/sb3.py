"""The Stable-Baselines3 vector environment: N simulators stepped by one call into compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices, VecEnvStepReturn

from nvlenv.common.errors import InputError
from nvlenv.envs.batch import Batch
from nvlenv.envs.env import Observation, action_space, observation_space
from nvlenv.envs.render import draw_rgb
from nvlenv.envs.reward import TERMS
from nvlenv.envs.scenario import Scenario


class NVL72VecEnv(VecEnv):
    """N simulators as one vector environment; see `NVL72Env` for observations, actions and reward.

    Parameters
    ----------
    scenarios : one scenario, or several that are dealt out in turn (padded to the largest cluster).
    n_envs : how many simulators.
    seed : of the workloads; every simulator has a stream of its own.
    stagger : spread the first resets evenly over the length of an episode.
    """

    def __init__(
        self,
        scenarios: Scenario | Sequence[Scenario],
        n_envs: int,
        seed: int | Sequence[int] = 0,
        stagger: bool = False,
    ) -> None:
        self.batch = Batch(scenarios, n_envs, np.random.SeedSequence(seed), stagger)
        self.render_mode = "rgb_array"
        racks = self.batch.layout.racks
        super().__init__(n_envs, observation_space(racks), action_space(racks))
        self._actions = np.zeros(n_envs, np.int64)
        self._fresh = True
        self._episode_reward, self._episode_steps = np.zeros(n_envs), np.zeros(n_envs, np.int64)

    def reset(self) -> Observation:  # type: ignore[override]
        """Start a new episode in every simulator (the first call keeps the episodes drawn when it was made)."""
        if not self._fresh:
            self.batch.reset_all()
        self._fresh = False
        self._episode_reward[:], self._episode_steps[:] = 0.0, 0
        self._reset_options()
        return self._observation()

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Give every simulator a new stream of episodes, from its next reset on."""
        for i, child in enumerate(np.random.SeedSequence(seed).spawn(self.num_envs)):
            self.batch.reseed(i, child)
        self._fresh = False
        return [seed] * self.num_envs

    def step_async(self, actions: NDArray[np.int64]) -> None:
        """Take the actions (N,) of the next `step_wait`."""
        self._actions = np.asarray(actions, np.int64)

    def step_wait(self) -> VecEnvStepReturn:
        """Carry them out; a finished simulator starts its next episode at once."""
        b = self.batch
        b.step(self._actions)
        rewards, dones = b.reward.astype(np.float32), b.done.copy()
        self._episode_reward += b.reward
        self._episode_steps += 1
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(dones).tolist():
            infos[i] = self._finish(i)
        return self._observation(), rewards, dones, infos

    def _finish(self, i: int) -> dict[str, Any]:
        """What SB3 wants to know of a truncated episode; then the next one starts."""
        b = self.batch
        last = {"racks": b.racks[i].copy(), "job": b.job[i].copy(), "cluster": b.cluster[i].copy()}
        hour = float(b.sim.clock["now"][i, 0])
        info = {
            "terminal_observation": last,
            "TimeLimit.truncated": True,
            "episode": {"r": float(self._episode_reward[i]), "l": int(self._episode_steps[i]), "t": hour},
            "totals": dict(zip(TERMS, b.totals[i].tolist(), strict=True)),
            "clock": b.sim.clock[i, 0].copy(),
        }
        self._episode_reward[i], self._episode_steps[i] = 0.0, 0
        b.reset(i)
        return info

    def _observation(self) -> Observation:
        b = self.batch
        return {"racks": b.racks.copy(), "job": b.job.copy(), "cluster": b.cluster.copy()}

    def action_masks(self) -> NDArray[np.bool_]:
        """(N, 2R + 2) True where an action is legal; overwritten by the next step."""
        return self.batch.mask

    def env_method(self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **_: Any) -> list[Any]:
        """`action_masks`, which sb3-contrib asks of single environments; there are no other methods."""
        if method_name != "action_masks":
            raise InputError("NVL72VecEnv.env_method", "method_name", repr(method_name), "'action_masks'")
        return [self.batch.mask[i] for i in self._get_indices(indices)]

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """One of the few attributes that SB3 asks of single environments."""
        values = {"render_mode": self.render_mode, "action_masks": self.action_masks, "spec": None}
        if attr_name not in values:
            raise AttributeError(f"NVL72VecEnv has no attribute {attr_name!r} per simulator; it has {sorted(values)}")
        return [values[attr_name] for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Refused: there are no single environments to set it in."""
        raise InputError("NVL72VecEnv.set_attr", attr_name, value, "nothing: simulators are set up by their scenario")

    def env_is_wrapped(self, wrapper_class: Any, indices: VecEnvIndices = None) -> list[bool]:
        """Never: there are no single environments that something could wrap."""
        return [False for _ in self._get_indices(indices)]

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """A picture (H, W, 3) of every simulator."""
        return [draw_rgb(self.batch.view(i)) for i in range(self.num_envs)]

    def close(self) -> None:
        """Nothing to close: there are no processes behind this."""
