"""How soon there is an answer: CPU time of a fresh process whose kernels are compiled already."""

from __future__ import annotations

import os
from typing import Any

import pytest

from nvlenv.kernel import is_compiled
from tests.benchmarks.figures import Figure, fastest
from tests.benchmarks.work import run_python


def of_children() -> float:
    """CPU seconds of the processes that have come and gone."""
    times = os.times()
    return times.children_user + times.children_system


HELP = "import sys; from nvlenv.engine.__main__ import main; sys.exit(main(['--help']))"
FIRST_DECISION = """
import gymnasium as gym
import numpy as np
env = gym.make("nvlenv/NVL72-v0", scenario="lab-16")
observation, info = env.reset(seed=1)
observation, reward, *_ = env.step(np.flatnonzero(info["action_mask"])[0])
print(reward)
"""
STARTS = {
    "python -m nvlenv.engine --help": (HELP, "usage", 0.3),
    "first decision after a compiled import": (FIRST_DECISION, "0", 2.0),
}
pytestmark = [pytest.mark.slow, pytest.mark.benchmark(timer=of_children)]


@pytest.mark.parametrize("name", STARTS)
def test_start(name: str, benchmark: Any, figures: list[Figure]) -> None:
    code, expected, target = STARTS[name]
    run_python(code)  # compiles what is not
    assert is_compiled()

    printed = benchmark.pedantic(run_python, args=(code,), rounds=7)

    assert expected in printed
    figures.append(Figure(name, fastest(benchmark), "s", target, "less"))
