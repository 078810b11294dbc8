"""The Gymnasium environment: episodes, seeds, illegal actions, what it reports, and what it refuses."""

from __future__ import annotations

import doctest
import hashlib
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import nvlenv
from nvlenv.common.errors import InputError
from nvlenv.envs import env as env_module
from nvlenv.envs.batch import RUN_OUT
from nvlenv.envs.env import NVL72Env
from nvlenv.envs.scenario import Scenario


def play(
    env: NVL72Env, info: dict[str, Any], rng: np.random.Generator
) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    """One random legal step."""
    return env.step(rng.choice(np.flatnonzero(info["action_mask"])))


def fingerprint(scenario: Scenario, seed: int, steps: int = 200) -> str:
    """A digest of all that a seeded random rollout returns."""
    env, rng, digest = NVL72Env(scenario), np.random.default_rng(seed), hashlib.sha256()
    _, info = env.reset(seed=seed)
    for _ in range(steps):
        observation, reward, _, truncated, info = play(env, info, rng)
        digest.update(pickle.dumps((observation, reward, truncated, info)))
        if truncated:
            _, info = env.reset()
    return digest.hexdigest()


def test_the_example_in_the_docstring_runs() -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(NVL72Env, "NVL72Env", globs={"gym": gym, "np": np})
    result = doctest.DocTestRunner().run(example)
    assert (result.attempted, result.failed) == (6, 0)


def test_the_docstring_gives_the_shapes_of_the_observation() -> None:
    spaces = env_module.observation_space(racks=4)
    assert NVL72Env.__doc__ is not None
    for name, shape in (("racks", "(R, {})"), ("job", "({},)"), ("cluster", "({},)")):
        box = spaces[name]
        assert box.shape is not None
        assert f"{name:<8} {shape.format(box.shape[-1])}" in NVL72Env.__doc__


def test_a_reset_without_seed_starts_another_episode(small: Scenario) -> None:
    env = NVL72Env(small)
    hours = [env.reset(seed=1)[1]["hour"], env.reset()[1]["hour"], env.reset()[1]["hour"]]
    assert len(set(hours)) == 3


def test_a_seed_brings_the_whole_stream_of_episodes_back(small: Scenario) -> None:
    env = NVL72Env(small)
    env.reset(seed=7)
    second = env.reset()
    env.reset(seed=8)
    env.reset()
    env.reset(seed=7)
    assert pickle.dumps(env.reset()) == pickle.dumps(second)


def test_an_environment_that_was_never_seeded_draws_its_own_seed(small: Scenario) -> None:
    hours = {NVL72Env(small).reset()[1]["hour"] for _ in range(3)}
    assert len(hours) > 1


def test_another_process_plays_the_same_rollout(make_small: Callable[..., Scenario]) -> None:
    scenario = make_small("failures={node_mtbf_hours: 200}")
    program = (
        "import sys, pickle; from importlib.util import spec_from_file_location as at, module_from_spec as make;"
        f"spec = at('test_env', {__file__!r}); module = make(spec); sys.modules['test_env'] = module;"
        "spec.loader.exec_module(module);"
        "from nvlenv.envs.scenario import Scenario;"
        "scenario = Scenario.model_validate_json(sys.stdin.read());"
        "print(module.fingerprint(scenario, 11))"
    )
    other = subprocess.run(
        [sys.executable, "-c", program], input=scenario.model_dump_json(), capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == fingerprint(scenario, 11)


@pytest.mark.parametrize("action", [-1, 10, 9_999, "open"])
def test_an_illegal_action_counts_as_hold(small: Scenario, action: int | str) -> None:
    env, twin = NVL72Env(small), NVL72Env(small)
    env.reset(seed=3)
    twin.reset(seed=3)
    number = env.layout.open(0) if action == "open" else int(action)  # nothing needs opening at the start
    assert not (0 <= number < env.layout.size and env.action_masks()[number])

    *got, info = env.step(number)
    *expected, expected_info = twin.step(env.layout.hold)

    assert pickle.dumps(got) == pickle.dumps(expected)
    assert (info["illegal"], expected_info["illegal"]) == (True, False)
    assert env.batch.view(0).clock["illegal"][0] == 1


def test_episodes_are_truncated_in_their_last_twentieth_and_never_terminated(small: Scenario) -> None:
    env, rng = NVL72Env(small), np.random.default_rng(0)
    for seed in range(3):
        _, info = env.reset(seed=seed)
        truncated = False
        while not truncated:
            before = info["hour"]
            _, _, terminated, truncated, info = play(env, info, rng)
            assert not terminated
        end = float(env.batch.view(0).clock["horizon"][0])
        assert end <= small.episode.hours
        assert before < (1 - RUN_OUT) * end <= info["hour"] <= end


def test_no_time_passes_inside_a_job_of_many_slices(small: Scenario) -> None:
    env, rng, seen = NVL72Env(small), np.random.default_rng(0), 0
    _, info = env.reset(seed=2)
    for _ in range(400):
        sim = env.batch.view(0)
        inside = sim.clock["slices_left"][0] > 1 and info["action_mask"][: env.layout.racks].any()
        before = info["hour"]
        legal = np.flatnonzero(info["action_mask"][: env.layout.racks]) if inside else []
        action = legal[0] if len(legal) else rng.choice(np.flatnonzero(info["action_mask"]))
        _, reward, _, truncated, info = env.step(action)
        if inside:
            seen += 1
            assert (info["hour"], reward) == (before, 0.0)
        if truncated:
            _, info = env.reset()
    assert seen > 10


def test_info_reports_mask_terms_hour_and_legality(small: Scenario) -> None:
    env, rng = NVL72Env(small), np.random.default_rng(0)
    _, info = env.reset(seed=1)
    assert set(info["reward_terms"].values()) == {0.0}
    hour = info["hour"]
    for _ in range(300):
        _, reward, _, truncated, info = play(env, info, rng)
        terms, weights = info["reward_terms"], small.reward.model_dump(include={"waiting", "slowdown", "lost"})
        assert set(info) == {"action_mask", "reward_terms", "hour", "illegal"}
        assert set(terms) == {"waiting", "slowdown", "lost", "twin"}
        cost = sum(weight * terms[name] for name, weight in weights.items()) + weights["waiting"] * terms["twin"]
        assert reward == pytest.approx(-small.reward.scale * cost, abs=1e-12)
        assert np.array_equal(info["action_mask"], env.action_masks())
        assert info["action_mask"].any()
        assert info["hour"] >= hour
        hour = info["hour"]
        if truncated:
            break


def test_what_is_returned_is_the_callers_own(small: Scenario) -> None:
    env = NVL72Env(small)
    observation, info = env.reset(seed=1)
    kept = pickle.dumps((observation, info))
    env.step(0)
    assert pickle.dumps((observation, info)) == kept


def test_the_decision_is_a_view_of_the_simulator(small: Scenario) -> None:
    env = NVL72Env(small)
    env.reset(seed=1)
    decision = env.decision
    assert np.array_equal(decision.mask, env.action_masks())
    assert decision.job == env.batch.sim.clock["current"][0, 0] >= 0
    assert np.shares_memory(decision.sim.gpu_job, env.batch.sim.gpu_job)


def test_an_episode_without_jobs_has_one_empty_step(small: Scenario) -> None:
    env = NVL72Env(small)
    env.reset(seed=0)
    episode = small.draw(np.random.SeedSequence(1))
    env.batch.reset(0, replace(episode, workload=episode.workload.select(slice(0))))
    assert np.flatnonzero(env.action_masks()).tolist() == [env.layout.hold]
    observation, reward, terminated, truncated, info = env.step(env.layout.hold)
    assert (reward, terminated, truncated, info["illegal"]) == (0.0, False, True, False)
    assert observation["job"].max() == 0.0


def test_the_render_modes_show_the_cluster(small: Scenario) -> None:
    pictures = {}
    for mode in NVL72Env.metadata["render_modes"]:
        env = NVL72Env(small, render_mode=mode)
        env.reset(seed=1)
        pictures[mode] = env.render()
    assert "hero" in pictures["ansi"]
    assert pictures["rgb_array"].dtype == np.uint8
    assert pictures["rgb_array"].ndim == 3
    silent = NVL72Env(small)
    silent.reset(seed=1)
    assert silent.render() is None


def test_nothing_works_before_the_first_reset(small: Scenario) -> None:
    env = NVL72Env(small, render_mode="ansi")
    for call in (lambda: env.step(0), env.render, env.action_masks, lambda: env.decision):
        with pytest.raises(gym.error.ResetNeeded, match="reset"):
            call()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scenario": "lab-61"}, "lab-16"),
        ({"scenario": "nowhere.yaml"}, "nowhere.yaml"),
        ({"overrides": ("cluster.rack=4",)}, "cluster.rack"),
        ({"overrides": ("cluster.racks=four",)}, "cluster.racks"),
        ({"overrides": ("cluster.racks",)}, "cluster.racks"),
        ({"render_mode": "human"}, "rgb_array"),
    ],
)
def test_a_wrong_argument_is_told_in_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        gym.make(nvlenv.ENV_ID, **arguments).unwrapped if "render_mode" not in arguments else NVL72Env(**arguments)
    assert "\n" not in str(caught.value)
