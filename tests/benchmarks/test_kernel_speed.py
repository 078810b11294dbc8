"""The kernel with best fit, beside the same rules in plain Python."""

from __future__ import annotations

import time
from typing import Any

import pytest

from nvlenv.envs.scenario import prepare, simulator_rules
from nvlenv.policies.heuristics.choose import play_rule
from nvlenv.policies.heuristics.rule import parse_rule
from tests.benchmarks.support.figures import Figure, fastest
from tests.benchmarks.support.work import RULE, lab, play, record, seconds
from tests.simulator.reference.simulator import Action, Reference

pytestmark = [pytest.mark.slow, pytest.mark.benchmark(timer=time.process_time)]
TARGETS = {16: (336.0, 500_000), 1000: (24.0, 100_000)}  # racks -> hours of the episode, decisions/s
REFERENCE_HOURS = 24.0


@pytest.mark.parametrize("racks", TARGETS)
def test_best_fit(racks: int, benchmark: Any, figures: list[Figure]) -> None:
    hours, target = TARGETS[racks]
    scenario, episode = lab(racks, hours)
    rule = parse_rule(RULE)
    decisions = play_rule(prepare(scenario, episode, sample=False), rule)

    def fresh() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (prepare(scenario, episode, sample=False), rule), {}

    again = benchmark.pedantic(play_rule, setup=fresh, rounds=25)

    assert again == decisions
    rival, rate = ("reference simulator, plain Python", python_rate()) if racks == 16 else ("", None)
    ours = decisions / fastest(benchmark)
    if racks == 16:  # the rival's work is a day of it, so compare on that day
        day = lab(racks, REFERENCE_HOURS)
        own = len(record(*day)) / min(play(*day) for _ in range(25))
        name = "kernel, best fit, 16 racks, first day"
        figures.append(Figure(name, own, "decisions/s", rival=rival, rival_value=rate))
    figures.append(Figure(f"kernel, best fit, {racks} racks", ours, "decisions/s", target))


def python_rate() -> float:
    """Decisions per second of the reference simulator, which is told what best fit decides."""
    scenario, episode = lab(16, REFERENCE_HOURS)
    numbers = record(scenario, episode)
    racks = episode.cluster.racks
    kinds: dict[int, Action] = {2 * racks: ("fill", -1), 2 * racks + 1: ("hold", -1)}
    actions = [kinds.get(a, ("place" if a < racks else "open", a % racks)) for a in numbers]
    rules = simulator_rules(scenario, episode)
    weights = scenario.class_weights()
    reference = Reference(episode.cluster, episode.workload, rules, weights, episode.queues, episode.node_events)
    alive = [True]

    def run() -> None:
        alive[0] = reference.advance()
        for action in actions:
            assert alive[0]
            alive[0] = reference.step(action)

    took = seconds(run)
    assert not alive[0]
    return len(actions) / took
