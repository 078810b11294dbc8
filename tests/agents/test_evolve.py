"""Evolution of the closed-form scorer: what it searches, what it compares, and that it can be interrupted."""

from __future__ import annotations

import pickle
import shlex
from pathlib import Path

import numpy as np
import pytest

from agents.evolve import main
from agents.search import evolution
from agents.search.evolution import HISTORY, POLICY, STATE, STEPS, RelativeCost, dimensions, first_arrays, moved
from nvlenv.engine import load_policy
from nvlenv.envs.scenario import Scenario
from nvlenv.policies.learned import LearnedPolicy, fingerprint, read_policy_file, save_policy
from nvlenv.policies.resolver import resolve_policy


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
    assert fingerprint(moved(start, np.zeros(dimensions(start)))) == fingerprint(start)
    stepped = moved(start, np.ones(dimensions(start)))
    for name, array in start.items():
        expected = array.copy()
        for (searched, column), step in STEPS.items():
            if searched == name:
                expected[..., column] += step
        assert np.array_equal(stepped[name], expected), name


def test_candidates_of_a_generation_play_the_same_workloads_and_the_next_one_plays_others(small_file: str) -> None:
    judge = RelativeCost([(small_file, 2)], "train", seed=0, threads=2)
    policy = LearnedPolicy(first_arrays(""))
    first, again = judge([policy, policy], 1), judge([policy], 1)
    assert first[0] == first[1] == again[0]
    assert judge([policy], 2)[0] != first[0]


def test_a_worse_policy_is_judged_worse(small_file: str) -> None:
    judge = RelativeCost([(small_file, 8)], "train", seed=0, threads=1)
    good, bad = judge([resolve_policy("best-fit+easy+open"), resolve_policy("least-allocated")], 0)
    assert good < bad


def test_an_interrupted_evolution_goes_on_as_if_it_had_not_been(small_file: str, tmp_path: Path) -> None:
    assert run(small_file, tmp_path / "whole", 3) == 0
    assert run(small_file, tmp_path / "parts", 1) == 0
    assert run(small_file, tmp_path / "parts", 3, "--resume") == 0
    policies = [load_policy(tmp_path / name / "policy.npz") for name in ("whole", "parts")]
    assert fingerprint(policies[0].arrays) == fingerprint(policies[1].arrays)
    history = [(tmp_path / name / "evolution.json").read_text() for name in ("whole", "parts")]
    assert history[0] == history[1]


def interrupt_after(monkeypatch: pytest.MonkeyPatch, generations: int) -> None:
    """Ctrl-C in the generation after so many."""
    save, saved = evolution.save_progress, []

    def saving(*arguments: object) -> None:
        save(*arguments)  # type: ignore[arg-type]
        saved.append(1)
        if len(saved) == generations:
            raise KeyboardInterrupt

    monkeypatch.setattr(evolution, "save_progress", saving)


@pytest.fixture(scope="module")
def begun(small: Scenario, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A scenario file, and an evolution of one generation on it; not to be written to."""
    folder = tmp_path_factory.mktemp("begun")
    (folder / "small.yaml").write_text(small.model_dump_json(exclude_unset=True))
    assert run(str(folder / "small.yaml"), folder / "run", 1) == 0
    return str(folder / "small.yaml"), folder / "run"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_is_told_at_ctrl_c_goes_on_with_the_same_experiment(
    small_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    more, (whole, parts) = ("--sigma", "0.7", "--seed", "3"), (tmp_path / "whole", tmp_path / "parts")
    assert run(small_file, whole, 3, *more) == 0
    with monkeypatch.context() as patch:
        interrupt_after(patch, 1)
        assert run(small_file, parts, 3, *more) == 130
    hint = capsys.readouterr().err.strip().removeprefix("interrupted; go on with ")

    assert main([*shlex.split(hint), "--threads", "2", "--quiet"]) == 0

    assert (whole / HISTORY).read_text() == (parts / HISTORY).read_text()
    manifests = [read_policy_file(folder / POLICY)[1] for folder in (whole, parts)]
    assert manifests[0] == manifests[1]
    assert manifests[1]["config"]["evolution"]["population"] == 4
    assert manifests[1]["config"]["scenarios"] == [small_file]


def test_the_command_in_the_manifest_comes_to_the_same_policy(small_file: str, tmp_path: Path) -> None:
    assert run(small_file, tmp_path / "first", 1) == 0
    assert main(["--resume", "--out", str(tmp_path / "first"), "--generations", "2", "--quiet"]) == 0
    manifest = read_policy_file(tmp_path / "first" / POLICY)[1]

    options = shlex.split(manifest["command"].removeprefix("python -m agents.evolve "))
    assert main([*options, "--out", str(tmp_path / "again"), "--quiet"]) == 0

    assert read_policy_file(tmp_path / "again" / POLICY)[1] == manifest


def test_going_on_needs_neither_the_first_policy_nor_the_baselines_of_then(
    small_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init = tmp_path / "init.npz"
    arrays = first_arrays("")
    save_policy(init, {**arrays, "prior_rack": arrays["prior_rack"] + 0.1})
    for name, generations in (("whole", 2), ("parts", 1)):
        assert run(small_file, tmp_path / name, generations, "--init", str(init)) == 0
    init.unlink()
    monkeypatch.setattr(evolution, "baseline_name", lambda name: "least-allocated")

    assert main(["--resume", "--out", str(tmp_path / "parts"), "--generations", "2", "--quiet"]) == 0
    assert (tmp_path / "whole" / HISTORY).read_text() == (tmp_path / "parts" / HISTORY).read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--population", "24"], "--population: found 24, expected 4"),
        (["--sigma", "0.4"], "--sigma: found 0.4, expected 0.5"),
        (["--every", "5"], "--every: found 5, expected 1"),
        (["--seed", "1"], "--seed: found 1, expected 0"),
        (["--init", "other.npz"], "--init: found other.npz, expected none"),
        (["--scenarios", "lab-16"], "--scenarios: found lab-16:16, expected {scenario}:1"),
        (["--scenarios", "{scenario}:2"], "--scenarios: found {scenario}:2, expected {scenario}:1"),
    ],
)
def test_a_setting_that_would_make_it_another_evolution_is_refused_and_nothing_is_written(
    begun: tuple[str, Path], capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    (scenario, out), given = begun, [option.format(scenario=begun[0]) for option in options]
    before = contents(out)

    assert main(["--resume", "--out", str(out), "--quiet", *given]) == 2

    expected = f"error: {said.format(scenario=scenario)}, as the evolution in {out} began\n"
    assert capsys.readouterr().err == expected
    assert contents(out) == before


def test_fewer_generations_than_are_done_are_refused(
    small_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(small_file, tmp_path / "run", 2) == 0
    assert main(["--resume", "--out", str(tmp_path / "run"), "--generations", "1", "--quiet"]) == 2
    assert capsys.readouterr().err == "error: --generations: found 1, expected at least the 2 that are done\n"


def test_a_scenario_that_has_changed_since_is_refused(
    small_file: str, small: Scenario, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(small_file, tmp_path / "run", 1) == 0
    longer = small.model_copy(update={"episode": small.episode.model_copy(update={"hours": 2 * small.episode.hours})})
    Path(small_file).write_text(longer.model_dump_json())

    assert main(["--resume", "--out", str(tmp_path / "run"), "--generations", "2", "--quiet"]) == 2
    assert f"--resume: {small_file}: found a scenario that has changed" in capsys.readouterr().err


@pytest.mark.parametrize("left", [STATE, POLICY, HISTORY])
def test_a_folder_with_an_evolution_in_it_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], left: str
) -> None:
    (tmp_path / left).write_bytes(b"left")

    assert main(["--out", str(tmp_path), "--quiet"]) == 2
    said = f"error: --out: found {tmp_path}, expected a new folder, or --resume to go on in it\n"
    assert capsys.readouterr().err == said
    assert contents(tmp_path) == {left: b"left"}


def test_a_state_without_settings_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / STATE).write_bytes(pickle.dumps({"history": []}))

    assert main(["--resume", "--out", str(tmp_path), "--quiet"]) == 2
    assert "found the state of another version" in capsys.readouterr().err


def test_resuming_nothing_is_an_error_that_says_so(
    small_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(small_file, tmp_path / "nothing", 1, "--resume") == 2
    assert "no state of an evolution" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--population", "1"], "--population: found '1', expected a whole number of at least 2"),
        (["--every", "0"], "--every: found '0', expected a whole number of at least 1"),
        (["--threads", "0"], "--threads: found '0', expected a whole number of at least 1"),
        (["--seed", "-1"], "--seed: found '-1', expected a whole number of at least 0"),
        (["--generations", "0"], "--generations: found '0', expected a whole number of at least 1"),
        (["--sigma", "nan"], "--sigma: found 'nan', expected a number above 0"),
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
