"""The arithmetic of more cores, and constants that were really measured."""

from __future__ import annotations

import pytest

from agents.learning.model import TrainConfig
from agents.scaling import Constants, main, measure_constants
from tests.agents.learning.test_distributed import CONFIG

CONSTANTS = Constants(play=30e-6, turn=400e-6, learn=50e-6, step=1e-3, answer=1e-4, trip=2e-3)
# 10,000 decisions in 250 steps, learned from in 16 minibatches
RUN = TrainConfig(envs=40, ppo={"n_steps": 250, "batch_size": 2_500, "n_epochs": 4})


def test_work_is_shared_and_exchange_is_not() -> None:
    assert 10_000 / CONSTANTS.rate(0, RUN) == pytest.approx(0.8 + 0.1 + 16 * 1e-3)
    assert 10_000 / CONSTANTS.rate(1, RUN) == pytest.approx(0.8 + 0.1 + 16 * 3.1e-3)
    assert 10_000 / CONSTANTS.rate(10, RUN) == pytest.approx(0.08 + 0.1 + 16 * 4e-3)


def test_beyond_some_workers_a_run_gets_slower_again() -> None:
    rates = [CONSTANTS.rate(workers, RUN) for workers in (1, 20, 10_000)]

    assert rates[1] > rates[0] > rates[2]


@pytest.mark.slow
def test_constants_are_measured() -> None:
    pytest.importorskip("ray", reason="needs the extra `ray`")
    constants = measure_constants(CONFIG, rollouts=2)

    assert min(constants.learn, constants.step, constants.answer, constants.trip) > 0
    assert CONFIG.envs * constants.play + constants.turn > 0  # how it divides among them is noise in so short a run
    assert constants.answer < constants.step


@pytest.mark.slow
def test_the_plan_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    ray = pytest.importorskip("ray", reason="needs the extra `ray`")
    settings = [f"overrides={list(CONFIG.overrides)}", "envs=4", "hidden=8", "ppo.n_steps=16", "ppo.batch_size=32"]
    assert main([*settings, "--rollouts", "1"]) == 0
    ray.shutdown()

    assert "us per minibatch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rollouts", "0"], "--rollouts: found '0', expected a whole number of at least 1"),
        (["--workers", "1,none"], "--workers: found '1,none', expected numbers of workers, such as 1,2"),
        (["envs=1"], "agents.scaling: envs: found 1, expected at least 2"),
    ],
)
def test_bad_input_is_told_in_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2

    assert capsys.readouterr().err == f"error: {said}\n"
