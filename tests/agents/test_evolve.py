"""Evolution of the closed-form scorer: what it searches, what it compares, and that it can be interrupted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agents.evolve import STATE, STEPS, Judge, Scorer, first_arrays, main
from nvlenv.engine import load_policy
from nvlenv.engine.policy_file import LearnedPolicy, fingerprint
from nvlenv.policies import heuristic
from nvlenv.scenario import Scenario


@pytest.fixture
def small_file(small: Scenario, tmp_path: Path) -> str:
    """The small scenario as a file."""
    path = tmp_path / "small.yaml"
    path.write_text(small.model_dump_json(exclude_unset=True))
    return str(path)


def run(scenario: str, out: Path, generations: int, *more: str) -> int:
    arguments = ["--scenarios", f"{scenario}:1", "--population", "4", "--every", "1", "--out", str(out), "--quiet"]
    return main([*arguments, "--generations", str(generations), *more])


def test_no_step_is_the_start_and_a_step_moves_only_the_prior() -> None:
    start = first_arrays("")
    scorer = Scorer(start)
    assert fingerprint(scorer.arrays(np.zeros(scorer.size))) == fingerprint(start)
    moved = scorer.arrays(np.ones(scorer.size))
    for name, array in start.items():
        expected = array.copy()
        for (searched, column), step in STEPS.items():
            if searched == name:
                expected[..., column] += step
        assert np.array_equal(moved[name], expected), name


def test_candidates_of_a_generation_play_the_same_workloads_and_the_next_one_plays_others(small_file: str) -> None:
    judge = Judge([(small_file, 2)], "train", seed=0, threads=2)
    policy = LearnedPolicy(first_arrays(""))
    first, again = judge([policy, policy], 1), judge([policy], 1)
    assert first[0] == first[1] == again[0]
    assert judge([policy], 2)[0] != first[0]


def test_a_worse_policy_is_judged_worse(small_file: str) -> None:
    judge = Judge([(small_file, 8)], "train", seed=0, threads=1)
    good, bad = judge([heuristic("best-fit+easy+open"), heuristic("least-allocated")], 0)
    assert good < bad


def test_an_interrupted_evolution_goes_on_as_if_it_had_not_been(small_file: str, tmp_path: Path) -> None:
    assert run(small_file, tmp_path / "whole", 3) == 0
    assert run(small_file, tmp_path / "parts", 1) == 0
    assert run(small_file, tmp_path / "parts", 3, "--resume") == 0
    policies = [load_policy(tmp_path / name / "policy.npz") for name in ("whole", "parts")]
    assert fingerprint(policies[0].arrays) == fingerprint(policies[1].arrays)
    history = [(tmp_path / name / "evolution.json").read_text() for name in ("whole", "parts")]
    assert history[0] == history[1]


def test_resuming_nothing_is_an_error_that_says_so(
    small_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(small_file, tmp_path / "nothing", 1, "--resume") == 2
    assert "no state of an evolution" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--population", "1"], "--population: found 1, expected at least 2"),
        (["--every", "0"], "--every: found 0, expected at least 1"),
        (["--threads", "0"], "--threads: found 0, expected at least 1"),
        (["--seed", "-1"], "--seed: found -1, expected at least 0"),
        (["--generations", "0"], "--generations: found 0, expected at least 1"),
        (["--sigma", "nan"], "--sigma: found nan, expected a number above 0"),
        (["--scenarios", "lab-16:0"], "--scenarios: found lab-16:0, expected at least 1 workload"),
    ],
)
def test_settings_that_no_evolution_could_have_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str], said: str
) -> None:
    assert main([*options, "--out", str(tmp_path / "run"), "--quiet"]) == 2
    assert capsys.readouterr().err == f"error: {said}\n"
    assert not (tmp_path / "run").exists()


def test_a_broken_state_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / STATE).write_bytes(b"broken")

    assert main(["--resume", "--out", str(tmp_path), "--quiet"]) == 2
    assert f"{tmp_path / STATE}: found a file that cannot be read" in capsys.readouterr().err


def test_a_run_shorter_than_its_first_validation_leaves_a_policy(small_file: str, tmp_path: Path) -> None:
    assert run(small_file, tmp_path, 1, "--every", "5") == 0
    assert (tmp_path / "policy.npz").is_file()
