"""The arithmetic of more cores, and constants that were really measured."""

from __future__ import annotations

import pytest

from agents.scaling import Constants, main, measure
from tests.agents.test_distributed import CONFIG

CONSTANTS = Constants(play=30e-6, join=1e-6, learn=50e-6, bytes=1000)


def test_workers_share_the_play_and_nothing_else() -> None:
    assert CONSTANTS.rate(0) == pytest.approx(1 / 80e-6)
    assert CONSTANTS.rate(1) == pytest.approx(1 / 81e-6)
    assert CONSTANTS.rate(3) == pytest.approx(1 / 61e-6)
    assert CONSTANTS.rate(10**9) == pytest.approx(1 / 51e-6)


def test_constants_are_measured() -> None:
    constants = measure(CONFIG, rollouts=2)

    assert constants.play > 0 and constants.learn > 0
    assert 4 * 134 < constants.bytes < 1000  # the observation of 4 racks is 134 numbers; flags, seven numbers, infos


def test_the_plan_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    settings = [f"overrides={list(CONFIG.overrides)}", "envs=4", "hidden=8", "ppo.n_steps=16", "ppo.batch_size=32"]
    assert main([*settings, "--rollouts", "1"]) == 0

    assert "us of one core per decision" in capsys.readouterr().out


def test_bad_input_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rollouts", "0"]) == 2

    assert capsys.readouterr().err == "error: --rollouts: found 0, expected at least 1\n"
