"""The search for PPO's settings: it starts from the config, goes on where it stopped, and writes what is better."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml

from agents.evaluation.statistics import Interval
from agents.learning.model import TrainConfig
from agents.search import ppo as tune_ppo
from agents.search.ppo import PPOSearch, as_it_is, propose
from agents.tune import main
from nvlenv.common.config import find_config, load_config
from nvlenv.common.errors import InputError
from tests.agents.test_train import TINY

# One rollout a trial with the most steps, four with the fewest.
FAST = [*(s for s in TINY if not s.startswith(("steps", "envs", "evaluation.reference"))), "envs=2", "steps=512"]


@pytest.fixture
def search(tmp_path: Path) -> PPOSearch:
    return PPOSearch("default", tuple(FAST), tmp_path / "study", trials=2, seed=1)


def run(search: PPOSearch, *options: str) -> int:
    return main([
        "ppo", *FAST, "--folder", str(search.folder), "--workloads", "3", "--out", str(search.folder / "tuned.yaml"),
        *options,
    ])  # fmt: skip


def test_a_proposal_is_a_valid_config_and_changes_nothing_else(search: PPOSearch) -> None:
    changes = propose(search.study().ask())
    before, after = search.settings(), search.settings(changes)

    assert after.ppo.lr_start == changes["ppo.lr_start"] and after.ppo.gamma == changes["ppo.gamma"]
    assert after.model_copy(update={"ppo": before.ppo}) == before


def test_the_shipped_config_lies_in_the_space_that_is_searched() -> None:
    point = as_it_is(load_config(TrainConfig, find_config("train", "default")))
    proposed = propose(optuna.trial.FixedTrial(point))  # type: ignore[arg-type]
    config = load_config(TrainConfig, find_config("train", "default"), [f"{k}={v!r}" for k, v in proposed.items()])

    assert config.ppo.model_dump() == pytest.approx(
        load_config(TrainConfig, find_config("train", "default")).ppo.model_dump()
    )
    study = optuna.create_study()
    study.enqueue_trial(point)
    propose(trial := study.ask())
    assert trial.params == point


def test_the_same_command_goes_on_and_does_nothing_more_when_it_is_done(
    search: PPOSearch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(search, "--trials", "2") == 0
    assert run(search, "--trials", "3") == 0
    trials = search.study().get_trials()
    assert [trial.number for trial in trials] == [0, 1, 2]
    assert trials[0].params == as_it_is(search.settings())
    assert all(max(trial.intermediate_values) == tune_ppo.JUDGED for trial in trials)
    assert all(search.policy(trial.number).is_file() for trial in trials)

    assert run(search, "--trials", "3") == 0

    assert len(search.study().get_trials()) == 3
    assert "The config as it is costs" in capsys.readouterr().out


def test_the_config_as_it_is_gets_another_turn_after_an_interruption(
    search: PPOSearch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> float:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tune_ppo, "run_trial", interrupted)
        assert run(search, "--trials", "2") == 130
    assert "Traceback" not in capsys.readouterr().err

    assert run(search, "--trials", "2") == 0

    states = [trial.state.name for trial in search.study().get_trials()]
    assert states == ["FAIL", "COMPLETE", "COMPLETE"]
    assert "The config as it is costs" in capsys.readouterr().out


def test_trials_of_other_settings_do_not_share_a_folder(search: PPOSearch) -> None:
    search.study()

    with pytest.raises(InputError, match=r"--folder: found .* expected a new folder, or the settings of its search"):
        replace(search, overrides=(*search.overrides, "seed=9")).study()


def test_a_bad_trial_is_given_up(search: PPOSearch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_ppo, "STARTUP", 1)
    study = search.study()
    for _ in range(3):  # others that were much better all the time
        trial = study.ask()
        for step in range(1, 5):
            trial.report(0.0, step)
        study.tell(trial, 0.0)

    study = search.study()
    study.optimize(lambda trial: tune_ppo.run_trial(trial, search, tune_ppo.Validation(search.settings())), n_trials=1)

    last = study.get_trials()[-1]
    assert last.state == optuna.trial.TrialState.PRUNED and list(last.intermediate_values) == [1]


@pytest.mark.parametrize(("gap", "written"), [((-0.2, -0.3, -0.1), True), ((-0.2, -0.3, 0.1), False)])
def test_only_a_clear_winner_is_written(
    gap: tuple[float, float, float], written: bool, search: PPOSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = search.study()
    study.enqueue_trial(as_it_is(search.settings()), user_attrs={tune_ppo.AS_IT_IS: True})
    for cost in (1.0, 0.5):
        trial = study.ask()
        propose(trial)
        study.tell(trial, cost)
    monkeypatch.setattr(tune_ppo, "confirm", lambda *_: Interval(*gap))

    assert run(search, "--trials", "2") == 0

    tuned = search.folder / "tuned.yaml"
    assert tuned.exists() == written
    if written:
        config = load_config(TrainConfig, tuned)
        assert config.ppo.lr_start == pytest.approx(study.best_trial.params["ppo.lr_start"])
        assert config.ppo.gamma == pytest.approx(1 - study.best_trial.params["forgotten"])
        assert "in 2 trials of 512 steps" in tuned.read_text() and yaml.safe_load(tuned.read_text())["envs"] == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--trials", "1"], "error: --trials: found '1', expected a whole number of at least 2"),
        (["--config", "nobody"], "error: train: found 'nobody'"),
        (["ppo.gama=1"], "error: "),
    ],
)
def test_bad_input_is_told_in_one_line(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ppo", *options, "--folder", str(tmp_path / "study")]) == 2

    error = capsys.readouterr().err
    assert error.startswith(said) and error.count("\n") == 1
    assert not (tmp_path / "study").exists()


@pytest.mark.slow
def test_two_workers_share_one_study(search: PPOSearch) -> None:
    assert run(search, "--trials", "4", "--workers", "2") == 0

    states = [trial.state for trial in search.study().get_trials()]
    assert 4 <= len(states) <= 5 and all(state in tune_ppo.COUNTED for state in states)
