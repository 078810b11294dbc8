"""The Gymnasium vector environment: what Gymnasium's own would return of single environments, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from hypothesis import given, settings
from hypothesis import strategies as st

import nvlenv
import nvlenv.envs.vector
from nvlenv.common.errors import InputError
from nvlenv.envs.env import NVL72Env
from nvlenv.envs.scenario import Scenario
from nvlenv.envs.vector import NVL72FlatVectorEnv, NVL72VectorEnv

IDS = (nvlenv.ENV_ID, nvlenv.FLAT_ENV_ID)


def make(mode: str, n: int, scenario: Scenario, name: str = nvlenv.ENV_ID, **options: Any) -> Any:
    return gym.make_vec(name, n, vectorization_mode=mode, scenario=scenario, **options)


def assert_same(found: Any, expected: Any) -> None:
    """Equal to the bit, in type and shape, and key by key."""
    if isinstance(expected, dict):
        assert set(found) == set(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    else:
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def random_actions(masks: Any, rng: np.random.Generator) -> np.ndarray:
    return np.array([rng.choice(np.flatnonzero(mask)) for mask in masks])


def blame(terms: Mapping[str, Any]) -> Any:
    """A reward that both kinds of environment can count."""
    return -terms["waiting"] * terms["waiting"] - 3 * terms["lost"]


@pytest.fixture(scope="module")
def short(make_small: Callable[..., Scenario]) -> Scenario:
    return make_small("episode.hours=10", "failures={node_mtbf_hours: 200}")


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("reward", [None, blame])
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**31), n=st.integers(1, 4))
def test_it_equals_gymnasiums_vector_of_single_environments(
    short: Scenario, name: str, reward: Any, seed: int, n: int
) -> None:
    fast, slow = (make(mode, n, short, name, reward=reward) for mode in ("vector_entry_point", "sync"))
    rng, ended = np.random.default_rng(seed), 0
    assert fast.single_observation_space == slow.single_observation_space
    assert fast.observation_space == slow.observation_space
    assert fast.action_space == slow.action_space
    found, expected = fast.reset(seed=seed), slow.reset(seed=seed)
    for k in range(250):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
        assert found[0] in fast.observation_space
        actions = random_actions(found[-1]["action_mask"], rng)
        if k % 50 == 49:
            actions[0] = rng.integers(fast.single_action_space.n)  # type: ignore[attr-defined]  # may be illegal
        found, expected = fast.step(actions), slow.step(actions)
        ended += int(found[3].sum())
    for one, other in zip(fast.reset(), slow.reset(), strict=True):
        assert_same(one, other)
    for one, other in zip(fast.reset(seed=[7] * n), slow.reset(seed=[7] * n), strict=True):
        assert_same(one, other)
    assert ended


def test_the_step_after_the_last_starts_the_next_episode(short: Scenario) -> None:
    envs = NVL72VectorEnv(2, short)
    _, info = envs.reset(seed=1)
    over = np.zeros(2, bool)
    seen = 0
    while seen < 3:
        _, rewards, terminated, truncated, info = envs.step(np.argmax(info["action_mask"], axis=1))
        assert not terminated.any()
        if over.any():
            seen += int(over.sum())
            assert not rewards[over].any() and not truncated[over].any()
            assert (info["hour"][over] < 5).all()
            assert not any(terms[over].any() for name, terms in info["reward_terms"].items() if name[0] != "_")
        over = truncated


def test_gymnasiums_wrapper_counts_the_episodes(short: Scenario) -> None:
    envs = RecordEpisodeStatistics(make("vector_entry_point", 3, short))
    _, info = envs.reset(seed=4)
    sums, lengths, over, episodes = np.zeros(3), np.zeros(3, int), np.zeros(3, bool), 0
    while episodes < 5:
        _, rewards, _, truncated, info = envs.step(np.argmax(info["action_mask"], axis=1))
        sums, lengths = np.where(over, 0.0, sums + rewards), np.where(over, 0, lengths + 1)
        if truncated.any():
            assert info["episode"]["r"][truncated] == pytest.approx(sums[truncated])
            assert info["episode"]["l"][truncated].tolist() == lengths[truncated].tolist()
            episodes += int(truncated.sum())
        over = truncated


def test_make_vec_has_nothing_to_warn_of(short: Scenario, recwarn: pytest.WarningsRecorder) -> None:
    envs = make("vector_entry_point", 2, short)
    assert [str(warning.message) for warning in recwarn] == []
    assert envs.metadata["autoreset_mode"] is gym.vector.AutoresetMode.NEXT_STEP
    assert envs.spec is not None and envs.spec.id == nvlenv.ENV_ID


def test_the_flat_observation_is_gymnasiums(short: Scenario) -> None:
    plain, flat = NVL72VectorEnv(2, short), NVL72FlatVectorEnv(2, short)
    (observation, _), (vector, _) = plain.reset(seed=3), flat.reset(seed=3)
    for i in range(2):
        one = {part: values[i] for part, values in observation.items()}
        assert np.array_equal(gym.spaces.flatten(plain.single_observation_space, one), vector[i])


def test_every_simulator_has_its_picture(short: Scenario) -> None:
    envs = NVL72VectorEnv(2, short, render_mode="rgb_array")
    envs.reset(seed=1)
    single = NVL72Env(short, render_mode="rgb_array")
    single.reset(seed=2)
    pictures = envs.render()
    assert pictures is not None and len(pictures) == 2
    assert np.array_equal(pictures[1], single.render())
    assert NVL72VectorEnv(2, short).render() is None
    with pytest.raises(InputError, match="render_mode"):
        NVL72VectorEnv(2, short, render_mode="human")
    with pytest.raises(InputError, match="3 seeds"):
        envs.reset(seed=[1, 2, 3])
