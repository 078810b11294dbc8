"""The vector environment: the same episodes as single environments, in the form that SB3 expects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.vec_env import VecMonitor

from nvlenv.common.errors import InputError
from nvlenv.envs.batch import RUN_OUT
from nvlenv.envs.env import NVL72Env
from nvlenv.envs.sb3 import NVL72VecEnv
from nvlenv.envs.scenario import Scenario

PARTS = ("racks", "job", "cluster")


def singles(scenario: Scenario, n: int, seed: int) -> list[NVL72Env]:
    """Environments with the streams of episodes that a vector environment of this seed has."""
    envs = []
    for child in np.random.SeedSequence(seed).spawn(n):
        env = NVL72Env(scenario)
        env.reset(seed=0)
        env.batch.reseed(0, child)
        envs.append(env)
    return envs


def random_actions(masks: Any, rng: np.random.Generator) -> np.ndarray:
    return np.array([rng.choice(np.flatnonzero(mask)) for mask in masks])


def test_it_equals_single_environments_on_the_same_episodes(make_small: Callable[..., Scenario]) -> None:
    scenario, n, ended = make_small("failures={node_mtbf_hours: 200}", "episode.hours=24"), 3, 0
    vector, envs = NVL72VecEnv(scenario, n, seed=5), singles(scenario, n, 5)
    rng = np.random.default_rng(0)
    now = vector.reset()
    last = [env.reset()[0] for env in envs]
    for _ in range(400):
        for i, env in enumerate(envs):
            assert all(np.array_equal(now[part][i], last[i][part]) for part in PARTS)
            assert np.array_equal(vector.action_masks()[i], env.action_masks())
        actions = random_actions(vector.action_masks(), rng)
        now, rewards, dones, infos = vector.step(actions)
        for i, env in enumerate(envs):
            last[i], reward, _, truncated, _ = env.step(actions[i])
            assert rewards[i] == np.float32(reward)
            assert dones[i] == truncated
            assert ("terminal_observation" in infos[i]) == truncated
            if truncated:
                ended += 1
                assert all(np.array_equal(infos[i]["terminal_observation"][part], last[i][part]) for part in PARTS)
                last[i] = env.reset()[0]
    assert ended >= n


def test_a_finished_episode_is_reported_whole(small: Scenario) -> None:
    vector = NVL72VecEnv(small, 2, seed=1)
    vector.reset()
    rewards, steps, finished = np.zeros(2), np.zeros(2, np.int64), []
    while len(finished) < 4:
        _, reward, dones, infos = vector.step(np.argmax(vector.action_masks(), axis=1))
        rewards, steps = rewards + reward, steps + 1
        for i in np.flatnonzero(dones):
            info = infos[i]
            assert info["TimeLimit.truncated"] is True
            assert info["episode"]["l"] == steps[i]
            assert info["episode"]["r"] == pytest.approx(rewards[i], rel=1e-5, abs=1e-5)
            assert info["episode"]["t"] == info["clock"]["now"] >= (1 - RUN_OUT) * info["clock"]["horizon"]
            totals, weights = info["totals"], small.reward.model_dump(include={"waiting", "slowdown", "lost"})
            cost = sum(w * totals[name] for name, w in weights.items()) + weights["waiting"] * totals["twin"]
            assert info["episode"]["r"] == pytest.approx(-cost)
            rewards[i], steps[i] = 0.0, 0
            finished.append(info)
        assert all(infos[i] == {} for i in np.flatnonzero(~dones))


def test_masks_are_views_of_the_batch(small: Scenario) -> None:
    vector = NVL72VecEnv(small, 3)
    vector.reset()
    rows = vector.env_method("action_masks")
    assert all(np.shares_memory(row, vector.batch.mask) for row in rows)
    assert is_masking_supported(vector)
    assert np.array_equal(get_action_masks(vector), vector.batch.mask)
    assert np.array_equal(vector.env_method("action_masks", indices=[2])[0], vector.batch.mask[2])


def test_observations_are_the_callers_own(small: Scenario) -> None:
    vector = NVL72VecEnv(small, 2)
    first = vector.reset()
    kept = {part: first[part].copy() for part in PARTS}
    vector.step(np.argmax(vector.action_masks(), axis=1))
    assert all(np.array_equal(first[part], kept[part]) for part in PARTS)


@pytest.mark.parametrize("stagger", [False, True])
def test_maskable_ppo_learns_on_it(make_small: Callable[..., Scenario], stagger: bool) -> None:
    vector = NVL72VecEnv(make_small("episode.hours=6"), 4, seed=1, stagger=stagger)
    model = MaskablePPO(
        "MultiInputPolicy", vector, n_steps=32, batch_size=64, n_epochs=1, seed=3, device="cpu",
        policy_kwargs={"net_arch": [8]},
    )  # fmt: skip
    before = [parameter.detach().clone() for parameter in model.policy.parameters()]
    model.learn(2 * 32 * 4)
    assert model.num_timesteps == 256
    assert any(bool((old != new).any()) for old, new in zip(before, model.policy.parameters(), strict=True))
    assert len(model.ep_info_buffer or ()) > 0
    assert all(bool(new.isfinite().all()) for new in model.policy.parameters())


def test_sb3_wrappers_go_around_it(small: Scenario) -> None:
    wrapped = VecMonitor(NVL72VecEnv(small, 2))
    wrapped.reset()
    _, rewards, _, _ = wrapped.step(np.argmax(get_action_masks(wrapped), axis=1))
    assert rewards.shape == (2,)
    assert wrapped.get_images()[0].dtype == np.uint8


def test_seeding_starts_the_streams_again(small: Scenario) -> None:
    vector = NVL72VecEnv(small, 2, seed=1)
    drawn = vector.reset()
    other = vector.reset()
    vector.seed(1)
    again = vector.reset()
    assert all(np.array_equal(drawn[part], again[part]) for part in PARTS)
    assert not np.array_equal(drawn["job"], other["job"])


def test_a_stagger_outlives_seeding(small: Scenario) -> None:
    vector = NVL72VecEnv(small, 4, seed=1, stagger=True)
    vector.seed(2)
    vector.reset()
    hours = np.zeros(4)
    while not hours.all():
        _, _, dones, infos = vector.step(np.argmax(vector.action_masks(), axis=1))
        for i in np.flatnonzero(dones):
            hours[i] = hours[i] or infos[i]["episode"]["t"]
    assert np.all(np.diff(hours) > 0)


def test_scenarios_of_different_size_are_padded_and_padding_is_never_legal(make_small: Callable[..., Scenario]) -> None:
    scenarios = [make_small(), make_small("cluster={racks: 6, blocks: 2}", "failures={node_mtbf_hours: 200}")]
    vector, rng = NVL72VecEnv(scenarios, 4, seed=2), np.random.default_rng(0)
    now = vector.reset()
    assert vector.observation_space["racks"].shape[0] == 6
    assert vector.action_space.n == 14
    opened = 0
    for _ in range(600):
        masks = vector.action_masks()
        places, opens = masks[:, :6], masks[:, 6:12]
        assert not places[::2, 4:].any()
        assert not opens[::2, 4:].any()
        assert not now["racks"][::2, 4:].any()
        assert np.all(now["racks"][1::2, :, 0] == 1.0)
        assert masks.any(axis=1).all()
        opened += int(opens[::2].any())
        now, *_ = vector.step(random_actions(masks, rng))
    assert opened > 0


def test_what_it_does_not_have_is_refused_in_one_line(small: Scenario) -> None:
    vector = NVL72VecEnv(small, 2)
    with pytest.raises(InputError, match="action_masks"):
        vector.env_method("teleport")
    with pytest.raises(InputError, match="gamma"):
        vector.set_attr("gamma", 1.0)
    with pytest.raises(AttributeError, match="nothing_here"):
        vector.get_attr("nothing_here")
    assert not vector.has_attr("nothing_here")
    assert vector.env_is_wrapped(VecMonitor) == [False, False]
