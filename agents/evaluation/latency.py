"""How long a policy takes to decide, asked from Python one decision at a time, as a placement engine asks it."""

from __future__ import annotations

import time

import numpy as np

from agents.evaluation.cases import Case
from agents.evaluation.episodes import find_policy, loaded
from nvlenv.simulator.decision import ActionLayout, Decision
from nvlenv.simulator.step import advance, step

DECISIONS = 1_000
FIRST = 20  # decisions that are not counted: code is loaded, caches are cold


def decision_latency(
    name: str, case: Case, seed: np.random.SeedSequence, decisions: int = DECISIONS
) -> dict[str, float]:
    """p50 and p99 of the time per decision (microseconds) over the first decisions of a workload, observation and all.

    A figure of this machine at this moment, so it is kept apart from the results that can be reproduced.
    """
    sim, policy = loaded(case.scenario, case.scenario.draw(seed), sample=False), find_policy(name)
    layout = ActionLayout(len(sim.racks))
    taken: list[int] = []
    alive = advance(sim)
    while alive and len(taken) < decisions + FIRST:
        decision = Decision(sim, sim.mask, layout)
        start = time.perf_counter_ns()
        action = policy(decision)
        taken.append(time.perf_counter_ns() - start)
        alive = step(sim, action)
    counted = np.array(taken[FIRST:] or taken or [0]) / 1e3
    p50, p99 = np.quantile(counted, (0.5, 0.99))
    return {"p50_us": round(float(p50), 1), "p99_us": round(float(p99), 1), "decisions": len(counted)}
