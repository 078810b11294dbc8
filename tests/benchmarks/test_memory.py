"""How much memory large simulations take: peak resident size of a fresh process."""

from __future__ import annotations

import pytest

from tests.benchmarks.support.figures import Figure
from tests.benchmarks.support.work import run_python

pytestmark = pytest.mark.slow
# Not ru_maxrss: that one remembers the process that started this one.
PEAK = """
from pathlib import Path
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
"""
LARGE = (
    PEAK
    + """
from nvlenv.envs.scenario import prepare
from nvlenv.policies.resolver import resolve_policy
from tests.benchmarks.support.work import RULE, lab
scenario, episode = lab(1000, 1.0e5, "workload.jobs=1000000")
sim = prepare(scenario, episode, sample=False)
resolve_policy(RULE).play(sim)
print(len(episode.workload), int((sim.jobs["finish"] < float("inf")).sum()), peak())
"""
)
MANY = (
    PEAK
    + """
import numpy as np
from nvlenv.envs.batch import Batch
from nvlenv.envs.scenario import load_scenario
from tests.benchmarks.support.work import any_legal
batch, rng = Batch(load_scenario("lab-16"), 256, np.random.SeedSequence(1)), np.random.default_rng(1)
for _ in range(200):
    batch.step(any_legal(batch.mask, rng))
print(batch.n, int(batch.sim.clock["decisions"].min()), peak())
"""
)


def test_a_large_simulation(figures: list[Figure]) -> None:
    jobs, finished, peak = map(float, run_python("-c", LARGE).split())
    assert jobs == 1e6
    assert finished > 0.99 * jobs
    figures.append(Figure("memory, 1,000 racks and 1,000,000 jobs, played", peak, "MiB", 2000, "less"))


def test_many_simulators(figures: list[Figure]) -> None:
    simulators, decisions, peak = map(float, run_python("-c", MANY).split())
    assert simulators == 256
    assert decisions > 0
    figures.append(Figure("memory, 256 simulators of 16 racks", peak, "MiB", 500, "less"))
