"""The Gymnasium environment: a batch of one simulator, with no logic of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from nvlenv import register_envs
from nvlenv.common.errors import InputError
from nvlenv.envs.batch import Batch
from nvlenv.envs.render import draw_ansi, draw_rgb
from nvlenv.envs.reward import TERMS
from nvlenv.envs.scenario import RewardConfig, RewardFunction, Scenario, WorkloadGenerator, assemble_scenario
from nvlenv.policies.observation import CLUSTER_FEATURES, JOB_FEATURES, RACK_FEATURES, Feature
from nvlenv.simulator.decision import ActionLayout, Decision
from nvlenv.simulator.state import Sim
from nvlenv.workload.mix import WorkloadConfig

RENDER_MODES = ("ansi", "rgb_array")
Observation = dict[str, NDArray[np.float32]]


def _box(features: tuple[Feature, ...], *leading: int) -> spaces.Box:
    low, high = np.array([f.range for f in features], np.float32).T
    shape = (*leading, len(features))
    return spaces.Box(np.broadcast_to(low, shape).copy(), np.broadcast_to(high, shape).copy(), dtype=np.float32)


def observation_space(racks: int) -> spaces.Dict:
    """Bounds and shapes as the feature schema says."""
    return spaces.Dict(
        {"racks": _box(RACK_FEATURES, racks), "job": _box(JOB_FEATURES), "cluster": _box(CLUSTER_FEATURES)}
    )


def action_space(racks: int) -> spaces.Discrete:
    """Place or open one of R racks, fill, hold: 2 R + 2 actions."""
    return spaces.Discrete(ActionLayout(racks).size)


class NVL72Env(gym.Env[Any, np.int64]):
    """Place jobs on the racks of an NVL72 cluster so that it does not fragment.

    Time jumps from event to event (arrivals, completions, failures). At each, the waiting jobs are looked at in queue
    order, and every job for which something can be decided becomes one step of this environment. No simulated time
    passes inside a decision; a job of k slices takes k of them.

    Observation: a dict of float32 arrays, all values in [-1, 1]
        racks    (R, 27)  one row per rack: free, whole and part-used nodes, what placing here would break, drain time
                          by estimates, cost of opening it, whether it is kept for another job
        job      (24,)    the job at hand: size, what is left to place, mode, estimate, wait, whom it would delay
        cluster  (19,)    free slots, queue, the job that racks are kept for
        `nvlenv.policies.observation` lists every feature with its range and meaning.

    Actions: Discrete(2 R + 2), masked; an illegal one counts as `hold` and is reported in info["illegal"]
        0 .. R-1      place[r]  put the next slice (or as much as fits, if the job must spread) on rack r
        R .. 2R-1     open[r]   evict or move the cheapest jobs that free a slice in rack r, and put it there
        2R            fill      put all pods of an unconstrained or spread job into the tightest holes
        2R + 1        hold      let the job wait until capacity next grows
        `action_masks()` and info["action_mask"] (2R + 2,) bool say which are legal.

    Reward: minus weighted waiting, slowdown and lost GPU-hours per GPU of the cluster since the last decision, less
        what the pooled twin paid in that time (`nvlenv.envs.reward`); the terms are in info["reward_terms"].

    End: never terminated; truncated at the first decision in the last twentieth of the scenario's episode.

    Parameters
    ----------
    scenario : name of a shipped scenario, path of a YAML file, or a `Scenario`.
    overrides : dotted settings such as "workload.load=0.9"; for a scenario by name or path.
    workload : jobs in place of the scenario's: a `SyntheticWorkload` or `TraceWorkload`, or a function
        (ClusterSpec, np.random.Generator) -> Workload, itself or as "package.module:name".
    reward : weights in place of the scenario's, as a `RewardConfig` or a mapping such as {"waiting": 1, "lost": 5}
        (what it leaves out has its default), or a function from the mapping of terms to the reward, itself or as
        "package.module:name". Weights are counted in compiled code; a function is called once a step.
    render_mode : "ansi" (text) or "rgb_array" (H, W, 3) uint8.

    Example
    -------
    >>> env = gym.make("nvlenv/NVL72-v0", scenario="lab-16")
    >>> observation, info = env.reset(seed=1)
    >>> first_legal = np.flatnonzero(info["action_mask"])[0]
    >>> observation, reward, terminated, truncated, info = env.step(first_legal)
    >>> sorted(info["reward_terms"])
    ['lost', 'slowdown', 'twin', 'waiting']

    Many at once, stepped by one call into compiled code (`nvlenv.envs.vector`):

    >>> envs = gym.make_vec("nvlenv/NVL72-v0", num_envs=64, vectorization_mode="vector_entry_point")

    Version history
    ---------------
    v0 : the first version; with NVL72Flat-v0, the same with racks, job and cluster in one vector.
    """

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        scenario: str | Path | Scenario = "lab-16",
        overrides: tuple[str, ...] = (),
        render_mode: str | None = None,
        workload: WorkloadConfig | WorkloadGenerator | str | None = None,
        reward: RewardConfig | Mapping[str, Any] | RewardFunction | str | None = None,
    ) -> None:
        self.render_mode = known_mode(render_mode)
        self.scenario, self._reward = assemble_scenario(scenario, overrides, workload, reward)
        self.layout = ActionLayout(self.scenario.cluster_spec().racks)
        self.observation_space = observation_space(self.layout.racks)
        self.action_space = action_space(self.layout.racks)
        self._batch: Batch | None = None

    @property
    def batch(self) -> Batch:
        """The one simulator with its arrays. Raises Gymnasium's `ResetNeeded` before the first reset."""
        if self._batch is None:
            raise gym.error.ResetNeeded("call reset() before anything else")
        return self._batch

    @property
    def decision(self) -> Decision:
        """The decision at hand, for policies that look at the cluster itself."""
        return Decision(self.batch.view(0), self.batch.mask[0], self.layout)

    def action_masks(self) -> NDArray[np.bool_]:
        """(2R + 2,) True where an action is legal."""
        return np.array(self.batch.mask[0])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Draw a new episode. The same seed gives the same one; without a seed the next one of the stream follows."""
        super().reset(seed=seed)
        if self._batch is None or seed is not None:
            root = np.random.SeedSequence(seed if seed is not None else int(self.np_random.integers(2**63)))
            if self._batch is None:
                self._batch = Batch(self.scenario, 1, root)
            else:
                self._batch.reseed(0, root.spawn(1)[0])
                self._batch.reset(0)
        else:
            self._batch.reset(0)
        self._batch.terms[0] = 0.0
        return self._observation(), self._info(illegal=False)

    def step(self, action: np.int64 | int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Carry out one action and run to the next decision."""
        batch = self.batch
        illegal = not (0 <= action < self.layout.size and batch.mask[0, action])
        batch.step(np.array([action], np.int64))
        info = self._info(illegal)
        reward = float(batch.reward[0] if self._reward is None else self._reward(info["reward_terms"]))
        return self._observation(), reward, False, bool(batch.done[0]), info

    def render(self) -> Any:
        """The cluster as it is now, in the form that `render_mode` names."""
        return draw_state(self.batch.view(0), self.render_mode, self.scenario.class_names())

    def _observation(self) -> Any:
        b = self.batch
        return {"racks": b.racks[0].copy(), "job": b.job[0].copy(), "cluster": b.cluster[0].copy()}

    def _info(self, illegal: bool) -> dict[str, Any]:
        b = self.batch
        return {
            "action_mask": self.action_masks(),
            "reward_terms": dict(zip(TERMS, b.terms[0].tolist(), strict=True)),
            "hour": float(b.sim.clock["now"][0, 0]),
            "illegal": illegal,
        }


class NVL72FlatEnv(NVL72Env):
    """The same environment with one float32 vector as observation, for libraries that want that.

    It holds what Gymnasium's `FlattenObservation` makes of the dict: cluster (19,), job (24,), racks (R * 27,).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.observation_space = spaces.flatten_space(self.observation_space)

    def _observation(self) -> Any:
        return flat(super()._observation(), ())


def flat(observation: Observation, leading: tuple[int, ...]) -> NDArray[np.float32]:
    """The arrays of observations with so many `leading` axes as one vector each, in the order of their names."""
    return np.concatenate([observation[name].reshape(*leading, -1) for name in sorted(observation)], axis=-1)


def known_mode(render_mode: str | None) -> str | None:
    """The mode itself. Raises `InputError` for one that no environment has."""
    if render_mode not in (None, *RENDER_MODES):
        raise InputError("NVL72Env", "render_mode", repr(render_mode), f"one of {list(RENDER_MODES)}")
    return render_mode


def draw_state(sim: Sim, mode: str | None, names: Sequence[str]) -> Any:
    """A picture of one simulator in a render mode of the environments: text, pixels (H, W, 3) uint8, or None."""
    if mode == "ansi":
        return draw_ansi(sim, names)
    return draw_rgb(sim, names=names) if mode else None


register_envs()
