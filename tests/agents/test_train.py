"""A tiny training run from end to end: what it leaves behind, and how it goes on after an interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback

from agents import train as training
from agents.learning.model import TrainConfig, make_env, make_model, network_of
from agents.learning.network import network_arrays
from nvlenv.common.errors import InputError
from nvlenv.engine import load_policy
from nvlenv.policies.learned import read_policy_file
from nvlenv.policies.resolver import baseline_name

SMALL = [
    "cluster.racks=4",
    "episode.hours=48",
    "workload.classes.pre-training.sizes={64: 1}",
    "workload.classes.hero.sizes={128: 1}",
]
TINY = [
    "steps=2048", "envs=8", "hidden=8", "ppo.n_steps=64", "ppo.batch_size=256", "ppo.n_epochs=2",
    f"overrides={SMALL}", "evaluation.every_steps=1024",
    "evaluation.episodes=2", "evaluation.final_episodes=2", "evaluation.baselines=[best-fit, best-fit+open]",
    "evaluation.reference=best-fit",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    assert training.main([*TINY, "--quiet", "--out", str(folder), "--seed", "3"]) == 0
    return folder


def test_a_run_leaves_everything_in_its_folder(run: Path) -> None:
    names = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}

    assert {"config.yaml", "versions.json", "model.zip", "state.json", "policy.npz", "metrics.json"} <= names
    assert "card.md" in names
    assert {"figures/decay.png", "figures/frontier.png", "figures/cost_terms.png"} <= names
    assert any(name.startswith("tensorboard/events") for name in names)
    assert not any(name.endswith(".part") for name in names)


def test_the_table_compares_the_policy_with_the_heuristics(run: Path) -> None:
    metrics = json.loads((run / "metrics.json").read_text("utf-8"))

    assert set(metrics["summary"]["policies"]) == {"best-fit", "best-fit+open", str(run)}
    assert metrics["summary"]["reference"] == "best-fit"


def test_the_baseline_is_the_tuned_heuristic_of_the_first_scenario() -> None:
    config = training.config_of(training.TrainOptions(overrides=("scenarios=[hero-rush, lab-16]",)))

    assert config.evaluation.reference == baseline_name("hero-rush") != baseline_name("lab-16")
    assert baseline_name("hero-rush") in config.evaluation.baselines
    assert "baseline" not in config.evaluation.baselines


def test_tensorboard_has_sb3s_tags_and_the_clusters(run: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    tags = set(events.Tags()["scalars"])

    assert {"train/loss", "train/approx_kl", "eval/cost", "eval/gap_vs_best-fit", "eval/hero_wait"} <= tags
    assert {"cluster/cost", "cluster/stall", "reward/waiting", "reward/twin"} <= tags


def test_the_exported_policy_knows_what_made_it(run: Path) -> None:
    manifest = load_policy(run / "policy.npz").manifest

    assert manifest["scenario"] == "lab-16"
    assert manifest["config"]["seed"] == 3
    assert manifest["licence"] == "Apache-2.0"


class Interrupt(BaseCallback):
    """Ctrl-C after so many steps."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.at:
            raise KeyboardInterrupt
        return True


def test_an_interrupted_run_says_how_to_go_on_and_ends_with_exact_counters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    real, rates = training.CallbackList, []

    class Rates(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            rates.append((self.num_timesteps, self.model._current_progress_remaining))

    monkeypatch.setattr(training, "CallbackList", lambda callbacks: real([Interrupt(1_000), *callbacks]))
    assert training.main([*TINY, "--quiet", "--out", str(folder)]) == 130
    assert f"--resume {folder}" in capsys.readouterr().err
    saved = MaskablePPO.load(folder / "model.zip")

    monkeypatch.setattr(training, "CallbackList", lambda callbacks: real([Rates(), *callbacks]))
    assert training.main(["--quiet", "--resume", str(folder)]) == 0
    final = MaskablePPO.load(folder / "model.zip")

    assert saved.num_timesteps == 1_000 and saved._n_updates == 2
    assert final.num_timesteps >= 2_048
    assert final._n_updates == 2 + 2 * len(rates)
    assert final._total_timesteps == 2_048
    assert rates[1][1] == pytest.approx(1 - rates[1][0] / 2_048)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), InputError("trace", "line 1", "nothing", "a job")])
def test_a_run_that_has_not_begun_leaves_no_folder(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> bool:
        assert (tmp_path / "run" / "config.yaml").is_file()
        raise error

    monkeypatch.setattr(training, "train", fail)

    assert training.main([*TINY, "--out", str(tmp_path / "run")]) in (2, 130)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", [["--seed", "5"], ["--config", "default"], ["--trace", "jobs.csv"], ["--init", "x"]])
def test_options_of_a_new_run_are_refused_for_one_that_goes_on(
    option: list[str], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert training.main(["--resume", str(run), *option]) == 2

    assert f"error: --resume: found {option[0]} beside it" in capsys.readouterr().err


def test_a_seed_gives_the_same_policy_again(run: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    training.main([*TINY, "--quiet", "--out", str(again), "--seed", "3"])

    assert load_policy(again / "policy.npz").manifest["sha256"] == load_policy(run / "policy.npz").manifest["sha256"]


def test_a_run_can_start_from_a_policy_file(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"

    assert training.main([*TINY, "--quiet", "--out", str(folder), "--init", str(run / "policy.npz")]) == 0


def test_a_model_begins_with_what_its_config_says(run: Path) -> None:
    policy = str(run / "policy.npz")
    base = TrainConfig(scenarios=("lab-16",), overrides=tuple(SMALL), envs=2, hidden=8)

    def arrays_of(**changes: Any) -> dict[str, NDArray[np.float64]]:
        config = base.model_copy(update=changes)
        return network_arrays(network_of(make_model(config, make_env(config))))

    assert np.any(arrays_of()["prior_rack"]) and not np.any(arrays_of(prior=False)["prior_rack"])
    given, _ = read_policy_file(policy)
    assert np.array_equal(arrays_of(init=policy)["mid"], given["mid"])


def test_a_trace_can_be_trained_on(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = "".join(
        f"{400 * k},{(1, 4, 8, 64)[k % 4]},{600 + 40 * (k % 97)},unknown,0,COMPLETED\n" for k in range(3_000)
    )
    trace.write_text("submit_s,gpus,duration_s,kind,user,status\n" + rows, "utf-8")

    assert training.main([*TINY, "--quiet", "--out", str(tmp_path / "run"), "--trace", str(trace)]) == 0

    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text("utf-8"))
    assert metrics["scenario"] == "trace"


def broken(path: Path, text: str) -> str:
    path.write_text(text, "utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stpes=10"], "stpes"),
        (["steps=many"], "many"),
        (["steps=0"], "steps"),
        (["ppo.gamma=1.5"], "gamma"),
        (["ppo.learning_rate=1"], "learning_rate"),
        (["scenarios=[lab-17]"], "lab-17"),
        (["scenarios=[]"], "scenarios"),
        (["overrides=['workload.lod=1']"], "lod"),
        (["evaluation.baselines=[worst-fit]"], "worst-fit"),
        (["evaluation.reference=worst-fit"], "worst-fit"),
        (["--config", "fast"], "fast"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--trace", "nowhere.csv"], "nowhere.csv"),
        (["--resume", "nowhere"], "nowhere"),
        (["--init", "nowhere.npz"], "nowhere.npz"),
        (["--init", "tests"], "tests"),
        (["--seed", "-1"], "seed"),
    ],
)
def test_mistakes_are_told_in_one_line_and_leave_nothing_behind(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = [] if "--resume" in arguments else ["--out", str(tmp_path / "run")]

    assert training.main(["--quiet", *out, *arguments]) == 2

    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ") and "\n" not in error
    assert message in error and "expected" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps: [1", "line"),
        ("- steps", "mapping"),
        ("", "nothing"),
        ("steps: 1\nsteps: 2\n", "steps"),
        ("ppo: 3", "ppo"),
    ],
)
def test_broken_configs_are_told_in_one_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = broken(tmp_path / "config.yaml", text)

    assert training.main(["--quiet", "--config", path, "--out", str(tmp_path / "run")]) == 2

    error = capsys.readouterr().err.strip()
    assert "config.yaml" in error and message in error and "\n" not in error


def test_the_shipped_default_is_the_default_of_every_field() -> None:
    from nvlenv.common.config import find_config, load_config

    shipped: dict[str, Any] = load_config(TrainConfig, find_config("train", "default")).model_dump()

    assert shipped == TrainConfig().model_dump()
