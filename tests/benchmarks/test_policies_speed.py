"""Heuristics decide fast: CPU time per decision of a whole episode, simulator included.

python -m pytest -m slow -s tests/benchmarks/test_policies_speed.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from nvlenv.envs.scenario import Episode, Scenario, load_scenario, prepare
from nvlenv.policies.heuristics.choose import play_rule
from nvlenv.policies.heuristics.packing import PACKINGS
from nvlenv.policies.heuristics.rule import parse_rule

EVERYTHING = "slurm-block+fill+tight+delay+hold+easy(share=0.1,spare=1)+open-hero"
NAMES = (*PACKINGS, "best-fit+fill+easy+open", "rack-fgd+tight+easy(spare=1)+open", EVERYTHING)
SIZES = {  # racks -> settings, longest time per decision (microseconds)
    16: (("cluster.racks=16", "episode.hours=168"), 20.0),
    1000: (("cluster.racks=1000", "cluster.blocks=50", "episode.hours=8"), 200.0),
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=SIZES, ids=lambda racks: f"{racks}-racks")
def drawn(request: pytest.FixtureRequest) -> tuple[Scenario, Episode, float]:
    settings, limit = SIZES[request.param]
    scenario = load_scenario("lab-16", settings)
    return scenario, scenario.draw(np.random.SeedSequence(1)), limit


def microseconds_per_decision(scenario: Scenario, episode: Episode, name: str) -> float:
    """The best of three episodes."""
    times = []
    for _ in range(3):
        sim = prepare(scenario, episode, sample=False)
        begin = time.process_time()
        decisions = play_rule(sim, parse_rule(name))
        times.append(1e6 * (time.process_time() - begin) / decisions)
    return min(times)


@pytest.mark.parametrize("name", NAMES)
def test_a_decision_takes_microseconds(
    name: str, drawn: tuple[Scenario, Episode, float], record_property: Callable[[str, object], None]
) -> None:
    scenario, episode, limit = drawn

    took = microseconds_per_decision(scenario, episode, name)

    record_property("microseconds per decision", took)
    print(f"{name:75s} {scenario.cluster.racks:5} racks {took:8.1f} us")
    assert took < limit
