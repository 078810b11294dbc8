"""The Gymnasium vector environment: N simulators stepped by one call into compiled code.

`gym.make_vec("nvlenv/NVL72-v0", num_envs=64, vectorization_mode="vector_entry_point")` makes one. What it returns is
what `SyncVectorEnv` would return of N `NVL72Env`, step by step and to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from nvlenv.common.errors import InputError
from nvlenv.envs.batch import Batch
from nvlenv.envs.env import NVL72Env, action_space, draw_state, flat, known_mode, observation_space
from nvlenv.envs.reward import TERMS
from nvlenv.envs.scenario import RewardConfig, RewardFunction, Scenario, WorkloadGenerator, assemble_scenario
from nvlenv.workload.mix import WorkloadConfig

Step = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class NVL72VectorEnv(gym.vector.VectorEnv[Any, Any, Any]):
    """N independent `NVL72Env`, which tells the observations, actions and reward; every array has a leading axis N.

    A finished simulator starts its next episode in the step after its last one, which ignores its action and has
    reward 0 (Gymnasium's next-step autoreset). Infos are arrays too: `action_mask` (N, 2R + 2), `hour`, `illegal`, and
    `reward_terms` with an array per term; as in all vector environments `_name` says which simulators have `name`.

    Parameters
    ----------
    num_envs : how many.
    scenario, overrides, render_mode, workload, reward : as of `NVL72Env`. A reward function gets arrays (N,).
    """

    metadata: dict[str, Any] = dict(NVL72Env.metadata)  # noqa: RUF012

    def __init__(
        self,
        num_envs: int = 1,
        scenario: str | Path | Scenario = "lab-16",
        overrides: tuple[str, ...] = (),
        render_mode: str | None = None,
        workload: WorkloadConfig | WorkloadGenerator | str | None = None,
        reward: RewardConfig | Mapping[str, Any] | RewardFunction | str | None = None,
    ) -> None:
        self.num_envs, self.render_mode = num_envs, known_mode(render_mode)
        self.scenario, self._reward = assemble_scenario(scenario, overrides, workload, reward)
        self.batch = Batch(self.scenario, num_envs, np.random.SeedSequence())
        self.layout = self.batch.layout
        self.single_observation_space = self._one_observation(self.layout.racks)
        self.single_action_space = action_space(self.layout.racks)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._over = np.zeros(num_envs, np.bool_)
        self._fresh = True

    def action_masks(self) -> NDArray[np.bool_]:
        """(N, 2R + 2) True where an action is legal."""
        return np.array(self.batch.mask)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Draw new episodes: of seed + i in the i-th simulator, of seeds of their own, or the next of their streams."""
        n, b = self.num_envs, self.batch
        if isinstance(seed, int):
            super().reset(seed=seed)
        seeds = [seed] * n if seed is None else [seed + i for i in range(n)] if isinstance(seed, int) else list(seed)
        if len(seeds) != n:
            raise InputError("NVL72VectorEnv.reset", "seed", f"{len(seeds)} seeds", f"one for each of {n} simulators")
        for i, own in enumerate(seeds):
            if own is not None:
                b.reseed(i, np.random.SeedSequence(own).spawn(1)[0])
            if own is not None or not self._fresh:
                b.reset(i)
        b.terms[:], self._over[:], self._fresh = 0.0, False, False
        return self._observation(), self._info(np.zeros(n, np.bool_))

    def step(self, actions: Any) -> Step:
        """Carry out one action (N,) in every simulator and run each to its next decision."""
        b, over = self.batch, self._over
        chosen = np.where(over, self.layout.hold, np.asarray(actions, np.int64))
        inside = (chosen >= 0) & (chosen < self.layout.size)
        legal = inside & b.mask[np.arange(self.num_envs), np.where(inside, chosen, 0)]
        b.step(chosen)
        for i in np.flatnonzero(over).tolist():  # the step that such a simulator made past its end does not count
            b.reset(i)
        b.reward[over], b.terms[over] = 0.0, 0.0
        info = self._info(~legal & ~over)
        rewards = b.reward.copy()
        if self._reward is not None:
            terms = {name: info["reward_terms"][name] for name in TERMS}
            rewards = np.where(over, 0.0, np.asarray(self._reward(terms), np.float64))
        self._over = b.done.copy()
        return self._observation(), rewards, np.zeros(self.num_envs, np.bool_), b.done.copy(), info

    def render(self) -> tuple[Any, ...] | None:
        """A picture of each simulator, in the form that `render_mode` names."""
        names = self.scenario.class_names()
        pictures = (draw_state(self.batch.view(i), self.render_mode, names) for i in range(self.num_envs))
        return tuple(pictures) if self.render_mode else None

    def _one_observation(self, racks: int) -> gym.Space[Any]:
        return observation_space(racks)

    def _observation(self) -> Any:
        b = self.batch
        return {"cluster": b.cluster.copy(), "job": b.job.copy(), "racks": b.racks.copy()}

    def _info(self, illegal: NDArray[np.bool_]) -> dict[str, Any]:
        b = self.batch
        return self._for_all(
            {
                "action_mask": self.action_masks(),
                "reward_terms": self._for_all({name: b.terms[:, k].copy() for k, name in enumerate(TERMS)}),
                "hour": b.sim.clock["now"][:, 0].copy(),
                "illegal": illegal,
            }
        )

    def _for_all(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values, and that every simulator has each of them."""
        return values | {f"_{name}": np.ones(self.num_envs, np.bool_) for name in values}


class NVL72FlatVectorEnv(NVL72VectorEnv):
    """N independent `NVL72FlatEnv`: observations are float32 arrays (N, 43 + 27 R)."""

    def _one_observation(self, racks: int) -> gym.Space[Any]:
        return gym.spaces.flatten_space(observation_space(racks))

    def _observation(self) -> Any:
        return flat(super()._observation(), (self.num_envs,))


if hasattr(gym.vector, "AutoresetMode"):  # Gymnasium 1.0 knows this mode alone, and no name for it
    NVL72VectorEnv.metadata["autoreset_mode"] = gym.vector.AutoresetMode.NEXT_STEP
