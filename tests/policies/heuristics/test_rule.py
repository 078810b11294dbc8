"""Heuristics by name: what a name means, and what is said about names that mean nothing."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import yaml

from nvlenv.common.errors import InputError
from nvlenv.policies import UNTUNED, resolver
from nvlenv.policies.heuristics.choose import Heuristic
from nvlenv.policies.heuristics.packing import PACKINGS
from nvlenv.policies.heuristics.rule import MODIFIERS, OPEN_CHEAPEST, OPEN_HERO, Rule, parse_rule
from nvlenv.policies.kueue.policy import KUEUE, KueuePolicy
from nvlenv.policies.resolver import baseline_name, resolve_policy


def test_a_name_says_which_parts_there_are() -> None:
    rule = parse_rule(
        "anchor-loss+fill+tight+delay(hours=2)+hold(racks=3, nodes=4, hours=6)+easy(share=.1,spare=1)+open"
    )

    assert rule == Rule(
        packing=PACKINGS.index("anchor-loss"), fill=1, tight=1, delay_hours=2.0, hold_racks=3, hold_nodes=4,
        hold_hours=6.0, easy=1, easy_share=0.1, easy_spare=1, open=OPEN_CHEAPEST,
    )  # fmt: skip


def test_every_packing_rule_goes_with_every_modifier() -> None:
    rules = [parse_rule(f"{packing}+{modifier}") for packing, modifier in product(PACKINGS, MODIFIERS)]

    assert len(set(rules)) == len(PACKINGS) * len(MODIFIERS)


def test_the_order_of_modifiers_does_not_matter() -> None:
    assert parse_rule("best-fit+open+fill+easy") == parse_rule("best-fit+easy+fill+open")


def test_modifiers_have_defaults() -> None:
    assert parse_rule("best-fit+hold").hold_racks == 2
    assert parse_rule("best-fit+delay").delay_hours == 4.0
    assert parse_rule("random(seed=7)+open-hero") == Rule(packing=0, random_seed=7, open=OPEN_HERO)


def test_kueue_is_found_by_name_like_any_other() -> None:
    assert isinstance(resolve_policy(KUEUE), KueuePolicy)
    assert isinstance(resolve_policy("best-fit"), Heuristic)
    assert resolve_policy("best-fit+open").name == "best-fit+open"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "found '', expected one of the packing rules"),
        ("worst-fit", "found 'worst-fit', expected one of the packing rules ['random'"),
        ("best-fit+", "found '', expected one of the modifiers"),
        ("best-fit+first-fit", "found 'first-fit', expected one of the modifiers ['fill'"),
        ("fill", "found 'fill', expected one of the packing rules"),
        ("best-fit(seed=1)", "found 'seed=1', expected parameters of best-fit: none"),
        ("best-fit+hold(rack=1)", "found 'rack=1', expected parameters of hold: ['racks', 'nodes', 'hours']"),
        ("best-fit+hold(racks=many)", "racks: found 'many', expected a number of at least 0, below 2^31 (int)"),
        ("best-fit+hold(racks=1.5)", "racks: found '1.5', expected a number of at least 0, below 2^31 (int)"),
        ("best-fit+delay(hours=-1)", "hours: found '-1', expected a number of at least 0, below 2^31 (float)"),
        ("best-fit+delay(hours=nan)", "hours: found 'nan', expected a number of at least 0, below 2^31 (float)"),
        ("best-fit+hold(racks)", "racks: found '', expected a number of at least 0, below 2^31 (int)"),
        ("best-fit+open+open-hero", "found 'open-hero', expected every modifier once"),
        ("best-fit+hold(racks=0)+hold", "found 'hold', expected every modifier once"),
        ("kueue-tas+open", "found 'kueue-tas+open', expected kueue-tas alone"),
    ],
)
def test_a_name_that_means_nothing_is_refused(name: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve_policy(name)

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_baseline_of_a_scenario_is_the_one_on_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "baselines.yaml").write_text(yaml.safe_dump({"mine": {"policy": "first-fit+open"}, "bad": {"cost": 1}}))
    monkeypatch.setattr(resolver, "CONFIG_ROOTS", (tmp_path / "none", tmp_path))

    assert baseline_name("mine") == "first-fit+open"
    assert baseline_name("another") == UNTUNED
    with pytest.raises(InputError, match=r"bad: found .* expected a mapping with the name of a policy"):
        baseline_name("bad")


def test_the_shipped_baselines_are_heuristics() -> None:
    for root in resolver.CONFIG_ROOTS:
        if (file := root / resolver.BASELINES).is_file():
            for scenario in yaml.safe_load(file.read_text()):
                assert isinstance(resolve_policy(baseline_name(scenario)), Heuristic)
