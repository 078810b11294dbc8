"""The card of a policy file says what the file and its evaluation say, and admits ties and losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agents import evaluate, export
from agents.evaluation.release import card, read_results, write_card
from agents.learning.network import network_arrays
from nvlenv.common.errors import InputError
from nvlenv.policies.learned import read_policy_file, save_policy
from tests.agents.decisions import perturbed

MANIFEST = {
    "licence": "Apache-2.0",
    "scenario": "lab-16",
    "steps": 1_234_567,
    "config": {"seed": 5, "scenarios": ["lab-16"], "overrides": ["workload.load=0.9"], "ppo": {"gamma": 0.998}},
}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cards") / "mine" / "policy.npz"
    save_policy(path, network_arrays(perturbed(4, 8, 3.0)), MANIFEST)
    return path


@pytest.fixture(scope="module")
def results(policy: Path, small_overrides: tuple[str, ...]) -> dict[str, Any]:
    out = policy.parent.parent / "evaluation"
    options = ["--policies", "best-fit", "least-allocated", str(policy), "--set", *small_overrides, "workload.load=1.1"]
    assert evaluate.main([*options, "--episodes", "6", "--shifts", "load-20", "--quiet", "--out", str(out)]) == 0
    return read_results(out)


def test_the_hash_and_the_training_are_those_of_the_file(policy: Path) -> None:
    text = card(policy)

    assert read_policy_file(policy)[1]["sha256"] in text
    for said in ("Apache-2.0", "1,234,567", "seed: 5", "`workload.load=0.9`", "gamma 0.998", "Not evaluated yet"):
        assert said in text


def test_its_numbers_are_those_of_the_evaluation(policy: Path, results: dict[str, Any]) -> None:
    text = card(policy, results)

    for label in results["labels"]:
        row = results["sets"][label]["summary"]["policies"][str(policy)]
        difference = row["difference"]
        assert f"### {label}" in text
        assert f"{row['mean']['cost']:.3f}" in text
        assert f"{difference['mean']:+.3f} [{difference['low']:+.3f}, {difference['high']:+.3f}]" in text


def test_a_policy_that_loses_is_said_to_lose(policy: Path, results: dict[str, Any]) -> None:
    each = results["sets"]["lab-16"]
    assert each["summary"]["policies"][str(policy)]["difference"]["verdict"] == "higher"  # it is nowhere near its prior

    text = card(policy, results)

    assert "costs more than" in text and "loses to none" not in text
    assert "worse than best-fit" in text  # out of distribution as well


def test_another_file_does_not_borrow_the_numbers(policy: Path, results: dict[str, Any], tmp_path: Path) -> None:
    other = tmp_path / "other" / "policy.npz"
    save_policy(other, network_arrays(perturbed(9, 8, 3.0)), MANIFEST)

    assert "does not hold this file" in card(other, results)


def test_a_card_is_written_beside_every_export(policy: Path, results: dict[str, Any], tmp_path: Path) -> None:
    evaluation = policy.parent.parent / "evaluation"

    assert export.main([str(policy), "--out", str(tmp_path / "p.npz"), "--results", str(evaluation)]) == 0

    assert (tmp_path / "card.md").read_text("utf-8") == card(tmp_path / "p.npz", results)


def test_a_file_that_is_no_policy_has_no_card(tmp_path: Path) -> None:
    (tmp_path / "policy.npz").write_bytes(b"no archive")

    with pytest.raises(InputError, match=r"policy\.npz"):
        write_card(tmp_path / "policy.npz")

    assert not (tmp_path / "card.md").exists()
