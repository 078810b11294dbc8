"""How soon there is an answer: CPU time of a fresh process whose kernels are compiled already."""

from __future__ import annotations

import resource
from typing import Any

import pytest

from nvlenv.common.kernel import is_compiled
from tests.benchmarks.support.figures import Figure, fastest
from tests.benchmarks.support.work import run_python


def of_children() -> float:
    """CPU seconds of the processes that have come and gone."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


FIRST_DECISION = """
import gymnasium as gym
import numpy as np
import nvlenv.envs.env
env = gym.make("nvlenv/NVL72-v0", scenario="lab-16")
observation, info = env.reset(seed=1)
observation, reward, *_ = env.step(np.flatnonzero(info["action_mask"])[0])
print("reward", reward)
"""
STARTS = {
    "python -m nvlenv.engine --help": (("-m", "nvlenv.engine", "--help"), "usage", 0.3),
    "first decision after a compiled import": (("-c", FIRST_DECISION), "reward", 2.0),
}
pytestmark = [pytest.mark.slow, pytest.mark.benchmark(timer=of_children)]


@pytest.mark.parametrize("name", STARTS)
def test_start(name: str, benchmark: Any, figures: list[Figure]) -> None:
    arguments, expected, target = STARTS[name]
    run_python(*arguments)  # compiles what is not
    assert is_compiled()

    printed = benchmark.pedantic(run_python, args=arguments, rounds=7)

    assert expected in printed
    figures.append(Figure(name, fastest(benchmark), "s", target, "less"))
