"""Every registered environment keeps Gymnasium's and SB3's contracts, and is reproducible to the byte."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as check_env_sb3

import nvlenv.envs.env

ENV_IDS = [name for name, spec in gym.registry.items() if spec.namespace == "nvlenv"]


@pytest.fixture(params=ENV_IDS)
def env(request: pytest.FixtureRequest, small_overrides: tuple[str, ...]) -> Iterator[gym.Env[Any, Any]]:
    made = gym.make(request.param, scenario="lab-16", overrides=small_overrides)
    yield made
    made.close()


def rollout(env: gym.Env[Any, Any], seed: int, steps: int) -> Iterator[bytes]:
    """Everything that each step of a random legal rollout returns, as bytes."""
    rng = np.random.default_rng(seed)
    observation, info = env.reset(seed=seed)
    for _ in range(steps):
        yield pickle.dumps((observation, info))
        action = rng.choice(np.flatnonzero(info["action_mask"]))
        observation, reward, terminated, truncated, info = env.step(action)
        yield pickle.dumps((reward, terminated, truncated))
        if truncated:
            observation, info = env.reset()


def test_the_environment_is_registered_once() -> None:
    nvlenv.register_envs()
    assert ENV_IDS == [nvlenv.ENV_ID, nvlenv.FLAT_ENV_ID]


@pytest.mark.parametrize("imports", ["import gymnasium, nvlenv", "import nvlenv.envs.env, gymnasium"])
def test_a_fresh_process_finds_the_environments_after_an_import(imports: str) -> None:
    program = f"{imports}\nprint(gymnasium.spec('{nvlenv.ENV_ID}').entry_point)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "nvlenv.envs.env:NVL72Env\n"


def test_the_readmes_python_runs_as_it_is_printed() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    first = readme.split("```python\n")[1].split("```")[0]
    assert "gym.make" in first
    subprocess.run([sys.executable, "-c", first], check=True, capture_output=True)


def test_gymnasium_finds_nothing_to_warn_of(env: gym.Env[Any, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)


def test_sb3_finds_nothing_to_warn_of_but_the_rack_table(env: gym.Env[Any, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if isinstance(env.observation_space, gym.spaces.Dict):
            # SB3's default networks want vectors; the rack table is meant for a network of its own.
            warnings.filterwarnings("ignore", message="Your observation racks has an unconventional shape")
        check_env_sb3(env)


def test_equal_seeds_give_equal_rollouts_to_the_byte(env: gym.Env[Any, Any]) -> None:
    first, second, other = (list(rollout(env, seed, 600)) for seed in (5, 5, 6))
    assert first == second
    assert first != other


def test_a_new_instance_repeats_the_rollout(env: gym.Env[Any, Any]) -> None:
    assert env.spec is not None
    assert list(rollout(env, 5, 300)) == list(rollout(gym.make(env.spec), 5, 300))


def test_the_spec_survives_json(env: gym.Env[Any, Any]) -> None:
    assert env.spec is not None
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.spec is not None
    assert again.observation_space == env.observation_space
    assert again.action_space == env.action_space
    assert list(rollout(again, 1, 50)) == list(rollout(env, 1, 50))
