"""The search for baselines: what it tries, what it keeps, and what it writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from agents.evaluation.fanout import fan_out
from agents.search import tuning
from agents.search.tuning import REFERENCES, Combination, RuleSearch, all_combinations, write_entry
from agents.tune import main
from nvlenv.envs.scenario import Scenario
from nvlenv.policies import resolver
from nvlenv.policies.heuristics.choose import Heuristic
from nvlenv.policies.heuristics.packing import PACKINGS
from nvlenv.policies.heuristics.rule import MODIFIERS
from nvlenv.policies.resolver import baseline_name, resolve_policy

FEW = [Combination(packing) for packing in ("first-fit", "least-allocated", "best-fit")]
EASY = Combination("best-fit", (("hold", ()), ("easy", (("spare", 1),)), ("open", ())))


@pytest.fixture
def search(small: Scenario) -> RuleSearch:
    return RuleSearch(small, workloads=6, seed=0, quiet=True)


def test_every_packing_rule_meets_every_known_modifier() -> None:
    names = [candidate.name for candidate in all_combinations()]

    assert len(set(names)) == len(names)
    assert all(isinstance(resolve_policy(name), Heuristic) for name in names)
    assert {name.split("+")[0] for name in names} == set(PACKINGS)
    known = set(MODIFIERS) - {
        "drain",
        "preempt-priority",
    }  # the latter is for `preemption: priority`, not yet tuned for
    assert all(any(f"+{modifier}" in name for name in names) for modifier in known)
    assert not any("drain" in name or "patience" in name for name in names)


def test_a_candidate_is_varied_one_parameter_at_a_time() -> None:
    names = [candidate.name for candidate in EASY.varied()]

    assert EASY.name == "best-fit+hold+easy(spare=1)+open"
    assert "best-fit+hold(racks=3)+easy(spare=1)+open" in names
    assert "best-fit+hold+easy(share=0.1,spare=1)+open" in names
    assert "best-fit+hold+easy(spare=0)+open" in names
    assert "best-fit+hold(racks=2)+easy(spare=1)+open" not in names  # the default, which it has already


def test_nobody_plays_a_workload_twice(search: RuleSearch, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[tuple[str, int]] = []
    original = tuning.rule_costs

    def noted(seed: np.random.SeedSequence, scenario: Scenario, names: list[str]) -> list[float]:
        played.extend((name, seed.spawn_key[-1]) for name in names)
        return original(seed, scenario, names)

    monkeypatch.setattr(tuning, "rule_costs", noted)
    search.play(FEW[:1], 2)
    search.play(FEW, 3)
    search.play(FEW, 3)

    assert len(played) == len(set(played)) == search.episodes == 9


def test_halving_keeps_the_better_ones_and_orders_them(search: RuleSearch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "FINALISTS", 2)

    best_first = search.halve(FEW)

    assert len(best_first) == 2
    assert all(len(search.costs[candidate.name]) == 6 for candidate in best_first)
    assert search.mean(best_first[0]) <= search.mean(best_first[1])
    dropped = next(candidate for candidate in FEW if candidate not in best_first)
    first = {candidate: np.mean(search.costs[candidate.name][: tuning.FIRST]) for candidate in FEW}
    assert len(search.costs[dropped.name]) == tuning.FIRST
    assert first[dropped] == max(first.values())


def test_refinement_never_makes_it_worse(search: RuleSearch) -> None:
    start = Combination("best-fit", (("delay", ()),))
    search.play([start], 6)

    refined = search.refine(start)

    assert search.mean(refined) <= search.mean(start)
    assert all(search.mean(refined) <= search.mean(varied) for varied in refined.varied())


def test_the_winner_is_written_with_what_reproduces_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_overrides: tuple[str, ...]
) -> None:
    out = tmp_path / "baselines.yaml"
    write_entry(out, "other", {"policy": "first-fit"})
    candidates = [Combination("least-allocated"), Combination("best-fit", (("open", ()),))]
    monkeypatch.setattr(tuning, "all_combinations", lambda: candidates)
    monkeypatch.setattr(resolver, "CONFIG_ROOTS", (tmp_path,))

    given = ["baselines", "--workloads", "4", "--out", str(out), "--quiet", "--set", *small_overrides]
    assert main(given) == 0

    entry = yaml.safe_load(out.read_text())["lab-16"]
    names = {candidate.name for candidate in candidates} | set(REFERENCES)
    assert entry["policy"] in names
    assert baseline_name("lab-16") == entry["policy"] and baseline_name("other") == "first-fit"
    assert entry["cost"]["mean"] <= min(entry["runners_up"].values())
    assert (entry["split"], entry["workloads"], entry["seed"]) == ("validation", 4, 0)
    assert entry["episodes_played"] == 4 * entry["candidates"] <= 4 * len(names)
    assert entry["command"].startswith("python -m agents.tune baselines --workloads 4")


def test_several_processes_find_the_same(make_small: Callable[..., Scenario], search: RuleSearch) -> None:
    search.play(FEW, 3)

    with fan_out(2) as mapped:
        other = RuleSearch(search.scenario, 3, 0, quiet=True, mapped=mapped)
        other.play(FEW, 3)

    assert other.costs == search.costs


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--workloads", "1"], "error: --workloads: found '1', expected a whole number of at least 2"),
        (["--workers", "-1"], "error: --workers: found '-1', expected a whole number of at least 0"),
        (["--scenario", "nowhere"], "error: scenarios: found 'nowhere'"),
    ],
)
def test_bad_input_is_told_in_one_line(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["baselines", *options]) == 2

    error = capsys.readouterr().err
    assert error.startswith(said) and error.count("\n") == 1
