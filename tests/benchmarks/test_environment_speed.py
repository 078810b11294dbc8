"""The batched and the single environment with observations and masks, beside SB3's ways to step many of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from nvlenv.envs.batch import Batch
from nvlenv.envs.env import NVL72Env
from nvlenv.envs.sb3 import NVL72VecEnv
from tests.benchmarks.support.figures import Figure, typical
from tests.benchmarks.support.work import any_legal, choices

pytestmark = [pytest.mark.slow, pytest.mark.benchmark(timer=time.process_time)]
SCENARIO, SIMULATORS, STEPS = "lab-16", 64, 2000
PROCESSES, RIVAL_STEPS = 4, 400


def test_batch(benchmark: Any, figures: list[Figure]) -> None:
    batch = Batch(NVL72Env(SCENARIO).scenario, SIMULATORS, np.random.SeedSequence(1), stagger=True)

    def act() -> tuple[tuple[Any, ...], dict[str, Any]]:
        for i in np.flatnonzero(batch.done):
            batch.reset(i)
        return (choices(batch),), {}

    benchmark.pedantic(batch.step, setup=act, rounds=STEPS, warmup_rounds=100)

    rate = SIMULATORS / typical(benchmark)
    figures.append(Figure(f"batch of {SIMULATORS}, 16 racks", rate, "decisions/s", 250_000))


def test_single(benchmark: Any, figures: list[Figure]) -> None:
    env = NVL72Env(SCENARIO)
    env.reset(seed=1)

    def act() -> tuple[tuple[Any, ...], dict[str, Any]]:
        if env.batch.done[0]:
            env.reset()
        return (int(choices(env.batch)[0]),), {}

    benchmark.pedantic(env.step, setup=act, rounds=20_000, warmup_rounds=500)

    figures.append(Figure("single Gymnasium env, 16 racks", 1 / typical(benchmark), "decisions/s", 50_000))


def make_env() -> NVL72Env:
    return NVL72Env(SCENARIO)


def cpu_of(processes: list[Any]) -> float:
    """CPU seconds of this process and of these."""
    return time.process_time() + sum(sum(process.cpu_times()[:2]) for process in processes)


def rate_of(env: VecEnv, steps: int) -> float:
    """Decisions per CPU second of all processes."""
    psutil = pytest.importorskip("psutil", reason="pip install 'nvlenv[benchmark]'")
    rng, processes = np.random.default_rng(1), [psutil.Process(p.pid) for p in getattr(env, "processes", [])]
    env.reset()
    for k in range(steps + 50):
        if k == 50:
            begin = cpu_of(processes)
        env.step(any_legal(np.stack(env.env_method("action_masks")), rng))
    return env.num_envs * steps / (cpu_of(processes) - begin)


@pytest.mark.parametrize(
    ("name", "count", "make"),
    [("DummyVecEnv", SIMULATORS, DummyVecEnv), ("SubprocVecEnv", PROCESSES, SubprocVecEnv)],
)
def test_beside_vectors_of_single_environments(
    name: str, count: int, make: Callable[[list[Callable[[], NVL72Env]]], VecEnv], figures: list[Figure]
) -> None:
    ours, theirs = NVL72VecEnv(NVL72Env(SCENARIO).scenario, count), make([make_env] * count)
    try:
        rate, rival_rate = rate_of(ours, 5 * RIVAL_STEPS), rate_of(theirs, RIVAL_STEPS)
    finally:
        theirs.close()
    title = f"NVL72VecEnv, {count} simulators, random actions"
    figures.append(Figure(title, rate, "decisions/s", rival=f"SB3 {name}", rival_value=rival_rate))
