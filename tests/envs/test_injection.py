"""Jobs and rewards of one's own, in place of the scenario's."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import nvlenv.envs.env
from nvlenv.cluster.types import ClusterSpec, Mode, Workload
from nvlenv.common.errors import InputError
from nvlenv.envs.env import NVL72Env
from nvlenv.envs.scenario import RewardConfig, Scenario
from nvlenv.workload.mix import DEFAULT_CLASSES, SyntheticWorkload

HERE = __name__
N = 40


def jobs(cluster: ClusterSpec, rng: np.random.Generator, **changes: Any) -> Workload:
    """Whole racks, one an hour."""
    duration = rng.uniform(1, 5, N)
    columns: dict[str, Any] = {
        "submit": np.arange(N, dtype=float), "gpus": np.full(N, 72, np.int32), "gpus_per_pod": np.full(N, 4, np.int32),
        "mode": np.full(N, Mode.REQUIRED, np.int8), "height": np.zeros(N, np.int8),
        "slice_gpus": np.zeros(N, np.int32), "duration": duration, "estimate": duration,
        "comm_fraction": np.zeros(N), "priority": np.ones(N, np.int32), "queue": np.zeros(N, np.int32),
        "job_class": np.zeros(N, np.int32), "preemptible": np.ones(N, bool), "movable": np.zeros(N, bool),
        "checkpoint_interval": np.full(N, np.inf), "restart_time": np.zeros(N), "class_names": ("wide", "hero"),
    }  # fmt: skip
    return Workload(**columns | changes)


def lost_only(terms: Mapping[str, Any]) -> Any:
    return -2 * terms["waiting"]


class Sized:
    """A generator with a setting."""

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus

    def __call__(self, cluster: ClusterSpec, rng: np.random.Generator) -> Workload:
        return jobs(cluster, rng, gpus=np.full(N, self.gpus, np.int32))


def rewards(env: gym.Env[Any, Any], steps: int = 60, seed: int = 1) -> list[tuple[float, dict[str, float]]]:
    rng, seen = np.random.default_rng(0), []
    _, info = env.reset(seed=seed)
    for _ in range(steps):
        _, reward, _, over, info = env.step(rng.choice(np.flatnonzero(info["action_mask"])))
        seen.append((float(reward), info["reward_terms"]))
        if over:
            break
    return seen


def test_a_generator_draws_the_jobs(small: Scenario) -> None:
    env = gym.make(nvlenv.ENV_ID, scenario=small, workload=jobs)
    check_env(env.unwrapped)
    env.reset(seed=1)
    sim = env.unwrapped.batch.view(0)  # type: ignore[attr-defined]
    assert sim.clock[0]["n_jobs"] == N
    assert set(sim.jobs["gpus"][:N]) == {72}
    assert rewards(env, seed=2) == rewards(env, seed=2) != rewards(env, seed=3)
    assert env.unwrapped.scenario.class_names() == ("wide", "hero")  # type: ignore[attr-defined]
    assert env.unwrapped.scenario.class_weights() == (1.0, 4.0)  # type: ignore[attr-defined]


def test_it_may_be_named_and_have_settings(small: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "my_jobs", __import__("types").SimpleNamespace(jobs=jobs))
    named = NVL72Env(small, workload="my_jobs:jobs")
    assert rewards(named) == rewards(NVL72Env(small, workload=jobs)) != rewards(NVL72Env(small, workload=Sized(36)))


def test_a_config_takes_the_place_of_the_scenarios(make_small: Callable[..., Scenario], small: Scenario) -> None:
    config = SyntheticWorkload(classes=DEFAULT_CLASSES[:3], load=0.3)
    env, other = NVL72Env(small, workload=config), make_small("workload.load=0.3")
    assert env.scenario.workload == config
    written = Scenario.model_validate({**other.model_dump(), "workload": config.model_dump()})
    assert rewards(env) == rewards(NVL72Env(written)) != rewards(NVL72Env(other))
    with pytest.raises(InputError, match=r"lab-16: workload.hero.sizes: found 384 GPUs, expected at most 256"):
        NVL72Env(small, workload=SyntheticWorkload())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": np.full(N, 73, np.int32)}, "a multiple of gpus_per_pod"),
        ({"gpus": np.full(N, 76, np.int32)}, "gpus: found 76, expected what the empty cluster could hold"),
        ({"gpus_per_pod": np.full(N, 8, np.int32)}, "gpus_per_pod: found 8, expected at most 4"),
        ({"height": np.full(N, 5, np.int8)}, "height: found 5, expected at most 1"),
        ({"queue_names": ("vip",)}, "found 'vip', expected one of the scenario's queues"),
    ],
)
def test_jobs_that_could_never_run_are_refused(small: Scenario, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        NVL72Env(small, workload=lambda cluster, rng: jobs(cluster, rng, **changes)).reset(seed=0)


def test_the_classes_are_those_of_the_first_draw(small: Scenario) -> None:
    calls = iter(("wide", "narrow"))
    env = NVL72Env(small, workload=lambda cluster, rng: jobs(cluster, rng, class_names=(next(calls),)))
    with pytest.raises(InputError, match="narrow"):
        env.reset()


def test_a_generator_is_part_of_what_the_scenario_means(small: Scenario) -> None:
    with_jobs = small.with_generator(jobs)
    assert len({small.digest(), with_jobs.digest(), small.with_generator(Sized(36)).digest()}) == 3
    assert pickle.loads(pickle.dumps(small.with_generator(Sized(36)))).class_names() == ("wide", "hero")


def test_weights_are_counted_like_the_scenarios(make_small: Callable[..., Scenario], small: Scenario) -> None:
    expected = rewards(NVL72Env(make_small("reward.waiting=0.5", "reward.lost=7")))
    assert rewards(NVL72Env(small, reward={"waiting": 0.5, "lost": 7})) == expected
    assert rewards(NVL72Env(small, reward=RewardConfig(waiting=0.5, lost=7))) == expected
    assert rewards(NVL72Env(small)) != expected


def test_a_function_of_the_terms_is_the_reward(small: Scenario) -> None:
    seen = rewards(NVL72Env(small, reward=lost_only))
    assert [reward for reward, _ in seen] == [-2 * terms["waiting"] for _, terms in seen]
    assert any(reward for reward, _ in seen)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reward": {"wating": 1}}, "reward: wating: found unknown field 'wating', expected waiting"),
        ({"reward": "no_such_module:f"}, r"found 'no_such_module:f' \(No module"),
        ({"reward": "math:no_such_function"}, "expected a function as package.module:name"),
        ({"workload": "bursty"}, "workload: found 'bursty', expected a function"),
        ({"workload": "math:pi"}, "workload: found 'math:pi', expected a function"),
    ],
)
def test_what_is_no_part_is_told_in_one_line(small: Scenario, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        NVL72Env(small, **options)
