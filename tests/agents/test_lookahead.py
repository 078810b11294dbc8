"""Labels are differences of whole futures: checked by playing both futures by hand."""

from __future__ import annotations

import numpy as np
import pytest

from agents.lookahead import Labels, collect_labels, gains, main, without_keeping
from nvlenv.envs.scenario import Scenario, prepare
from nvlenv.policies.heuristics.choose import choose
from nvlenv.policies.heuristics.rule import parse_rule
from nvlenv.simulator.state import Sim
from nvlenv.simulator.step import advance, step

RULE = parse_rule("best-fit+easy(slices=1,patience=20)+drain+open")
HOURS = 12.0


def cost(sim: Sim) -> float:
    return float(sum(sim.clock[0][name] for name in ("waiting", "slowdown", "lost")))


def future(sim: Sim, action: int) -> float:
    """What the next hours cost, played decision by decision on a copy."""
    copy = Sim(*(array.copy() for array in sim))
    copy.clock["horizon"] = copy.clock["now"] + HOURS
    before, alive = cost(copy), step(copy, action)
    while alive:
        alive = step(copy, choose(copy, RULE))
    return cost(copy) - before


def by_hand(scenario: Scenario, seed: np.random.SeedSequence) -> list[tuple[bool, float]]:
    """Every decision of one episode that can be labelled: whether the rule holds, and the advantage of holding."""
    sim = prepare(scenario, scenario.draw(seed), sample=False)
    sim.clock["measure_from"] = 0.0
    hold, found, alive = 2 * len(sim.racks) + 1, [], advance(sim)
    while alive:
        act, action = choose(sim, without_keeping(RULE)), choose(sim, RULE)
        if sim.mask[hold] and act != hold and sim.clock["now"][0] + HOURS <= sim.clock["horizon"][0]:
            difference = future(sim, hold) - future(sim, act)
            found.append((action == hold, difference / int(sim.clock["capacity"][0])))
        alive = step(sim, action)
    return found


def test_a_label_is_the_difference_of_two_futures(small: Scenario) -> None:
    seed = np.random.SeedSequence(5)

    labels, expected = collect_labels(small, RULE, [seed], every=1, hours=HOURS), by_hand(small, seed)

    assert len(expected) > 30
    assert labels.held.tolist() == [held for held, _ in expected]
    np.testing.assert_allclose(labels.advantage, [advantage for _, advantage in expected], rtol=1e-9, atol=1e-9)
    assert (labels.advantage != 0).any()


def test_one_in_so_many_decisions_is_labelled_and_always_the_same(small: Scenario) -> None:
    seeds = np.random.SeedSequence(1).spawn(3)
    every, all_, again = (
        collect_labels(small, RULE, seeds, n, HOURS, threads) for n, threads in ((10, 1), (1, 2), (10, 2))
    )
    assert len(all_.advantage) / 20 < len(every.advantage) < len(all_.advantage) / 5
    assert all(np.array_equal(a, b) for a, b in zip(every, again, strict=True))


def test_a_linear_rule_is_found_and_nobody_beats_who_knows_the_future() -> None:
    rng, n = np.random.default_rng(0), 4_000
    job = rng.uniform(-1, 1, (n, 4)).astype(np.float32)
    advantage = job[:, 0] + 0.5 * rng.normal(size=n)
    labels = Labels(np.zeros((n, 2), np.float32), job, np.zeros((n, 3), np.float32), np.zeros(n, np.bool_), advantage)

    found = {name: gain.mean for name, gain in gains(labels).items()}

    assert found["the heuristic"] == 0.0
    assert found["the best linear function"] == pytest.approx(np.minimum(job[:, 0], 0).mean(), abs=0.03)
    assert found["who knows the future"] < found["the best linear function"]


def test_too_few_labels_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--episodes", "0"]) == 2
    assert "--episodes" in capsys.readouterr().err
