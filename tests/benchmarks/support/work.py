"""The work that benchmarks and rivals are given: episodes, decisions in mid-episode, a long trace, legal actions."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nvlenv.cluster.types import Workload
from nvlenv.envs.batch import Batch
from nvlenv.envs.scenario import Episode, Scenario, load_scenario, prepare
from nvlenv.policies.heuristics.choose import choose
from nvlenv.policies.heuristics.rule import parse_rule
from nvlenv.policies.resolver import resolve_policy
from nvlenv.simulator.state import Sim
from nvlenv.simulator.step import advance, step

ROOT = Path(__file__).parents[3]
RULE = "best-fit"
TRAINED_LIKE = "best-fit+easy+open"
WARM = 300  # decisions before a cluster counts as in use
NOBODY = "-1"  # SWF's word for what is not known


def lab(racks: int, hours: float, *overrides: str) -> tuple[Scenario, Episode]:
    """An episode of the lab's job mix on so many racks, in blocks of 16."""
    size = (f"cluster.racks={racks}", f"cluster.blocks={max(1, racks // 16)}", f"episode.hours={hours:g}")
    scenario = load_scenario("lab-16", (*size, *overrides))
    return scenario, scenario.draw(np.random.SeedSequence(1))


def in_use(racks: int, hours: float = 336.0) -> Sim:
    """A simulator with a decision at hand, after some hundred others."""
    sim = prepare(*lab(racks, hours), sample=False)
    rule, alive = parse_rule(RULE), advance(sim)
    for _ in range(WARM):
        assert alive
        alive = step(sim, choose(sim, rule))
    return sim


def record(scenario: Scenario, episode: Episode) -> list[int]:
    """The actions of best fit on an episode."""
    sim, policy, actions = prepare(scenario, episode, sample=False), parse_rule(RULE), []
    alive = advance(sim)
    while alive:
        actions.append(int(choose(sim, policy)))
        alive = step(sim, actions[-1])
    return actions


def play(scenario: Scenario, episode: Episode) -> float:
    """CPU seconds in which best fit plays an episode."""
    sim, policy = prepare(scenario, episode, sample=False), resolve_policy(RULE)
    begin = time.process_time()
    policy.play(sim)
    return time.process_time() - begin


def choices(batch: Batch) -> NDArray[np.int64]:
    """What the policy that training starts from, or nearly so, does in each simulator."""
    rule = parse_rule(TRAINED_LIKE)
    return np.array([choose(batch.view(i), rule) for i in range(batch.n)])


def any_legal(masks: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    """A random legal action of each simulator."""
    return np.argmax(masks * rng.random(masks.shape, dtype=np.float32), axis=1)


def write_swf(path: Path, workload: Workload) -> None:
    """The workload in the Standard Workload Format, a processor per GPU, times in whole seconds."""
    with path.open("w") as file:
        for j in range(len(workload)):
            submit, run = round(3600 * workload.submit[j]), max(1, round(3600 * workload.duration[j]))
            gpus = workload.gpus[j]
            known = {0: j + 1, 1: submit, 3: run, 4: gpus, 7: gpus, 8: run, 10: 1}
            file.write(" ".join(str(known.get(column, NOBODY)) for column in range(18)) + "\n")


def replay_of(path: Path, racks: int) -> tuple[Scenario, Episode]:
    """A scenario that replays all jobs of a trace, at the times and of the sizes that it says."""
    workload = f"workload={{kind: trace, path: {path}, format: swf, thin: false, load: null, cap_share: 1.0}}"
    return lab(racks, 1.0e6, workload)


def run_python(*arguments: str, cwd: Path = ROOT) -> str:
    """What a fresh interpreter with these arguments prints."""
    command = [sys.executable, "-W", "ignore", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def seconds(call: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    begin = time.process_time()
    call()
    return time.process_time() - begin
