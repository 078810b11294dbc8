"""Every packing rule chooses the rack that its definition says, whatever the state of the cluster."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from nvlenv.common.errors import InputError
from nvlenv.policies.heuristics.choose import choose
from nvlenv.policies.heuristics.packing import PACKINGS, RULES, random_key
from nvlenv.policies.heuristics.rule import Rule, parse_rule
from nvlenv.simulator.step import advance, step
from tests.policies.heuristics.definitions import DEFINITIONS, best_rack, expected_stranded, mix_of
from tests.policies.heuristics.states import gang, occupied, whole
from tests.simulator.cases import Case, cases

untimed = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


def test_every_rule_has_a_definition() -> None:
    assert set(DEFINITIONS) == set(PACKINGS) - {"random"}


@given(case=cases())
@untimed
def test_the_rack_is_the_one_that_the_definition_says(case: Case) -> None:
    sim, picks, racks = case.load(), cycle(case.picks), len(case.load().racks)
    rules = {name: parse_rule(name) for name in DEFINITIONS}
    alive = advance(sim)
    while alive:
        legal = np.flatnonzero(sim.mask[:racks]).tolist()
        for name, rule in rules.items():
            chosen = choose(sim, rule)
            if legal:
                assert chosen == best_rack(sim, name, legal), name
            elif sim.mask[-1]:
                assert chosen == 2 * racks + 1
            else:
                assert sim.mask[chosen]  # where hold is illegal, even a rule without `open` opens
        alive = step(sim, np.flatnonzero(sim.mask)[next(picks) % int(sim.mask.sum())])


@given(case=cases())
@untimed
def test_the_mix_of_a_workload_gives_the_same_fragmentation_as_its_list_of_shapes(case: Case) -> None:
    sim = case.load()
    rng = np.random.default_rng(case.picks[0])
    free = rng.integers(0, sim.cap.shape[1], size=6)
    room = {p: int((free // p).sum()) for p in range(1, sim.cap.shape[1])}

    expected = expected_stranded(free.tolist(), mix_of(sim))
    most = sim.mix.shape[1] - 1
    found = sum(
        sim.mix[p, min(room[p], most)] * free.sum()
        + (sim.mix[p, 0] - sim.mix[p, min(room[p], most)]) * free[free < p].sum()
        for p in room
    )

    if max(room.values()) <= most:
        assert found == pytest.approx(expected)
    assert sim.mix[:, 0].sum() == pytest.approx(1.0)


def test_the_random_rule_repeats_itself_and_depends_on_its_seed() -> None:
    def draws(seed: int) -> list[int]:
        sim = occupied(whole(*[18] * 16), [gang(1)] * 30)
        rule, chosen = parse_rule(f"random(seed={seed})"), []
        for _ in range(30):
            chosen.append(int(choose(sim, rule)))
            step(sim, chosen[-1])
        return chosen

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)
    assert len(set(draws(3))) > 8


def test_random_keys_are_even() -> None:
    sim = occupied(whole(*[18] * 16), [gang(1)])

    first = [min(range(16), key=lambda r: random_key(sim, Rule(0, seed), r, (0, 0))) for seed in range(3200)]

    assert np.bincount(first, minlength=16).min() > 100  # 200 each, were they perfectly even


def test_a_decorated_function_is_all_that_a_rule_needs() -> None:
    assert tuple(rule.name for rule in RULES) == PACKINGS
    for number, rule in enumerate(RULES):
        assert parse_rule(rule.name).packing == number  # the parser knows it,
        assert rule.words  # so does what explains a decision,
    with pytest.raises(InputError) as raised:
        parse_rule("no-such-rule")
    assert all(name in str(raised.value) for name in PACKINGS)  # and what says which rules there are
