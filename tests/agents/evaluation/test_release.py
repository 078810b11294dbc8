"""A release is checked against its own record: what was tampered with is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agents import evaluate
from agents.learning.network import network_arrays
from nvlenv.policies.learned import save_policy
from tests.agents.decisions import perturbed


@pytest.fixture
def release(tmp_path: Path, small_overrides: tuple[str, ...]) -> Path:
    folder = tmp_path / "release"
    save_policy(folder / "policy.npz", network_arrays(perturbed(1, 8, 0.05)), {})
    options = ["--policies", "best-fit", str(folder), "--set", *small_overrides, "--episodes", "2", "--quiet"]
    assert evaluate.main([*options, "--out", str(tmp_path / "evaluation")]) == 0
    (folder / "metrics.json").write_bytes((tmp_path / "evaluation" / "results.json").read_bytes())
    return folder


def test_an_honest_release_passes_wherever_it_lies(release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    moved = release.rename(release.parent / "elsewhere")

    assert evaluate.main(["--release", str(moved), "--quiet"]) == 0
    assert "the release is what it says" in capsys.readouterr().out


def test_a_changed_number_is_named(release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads((release / "metrics.json").read_text("utf-8"))
    record["sets"]["lab-16"]["workloads"]["best-fit"]["evictions"][1] += 1
    (release / "metrics.json").write_text(json.dumps(record), "utf-8")

    assert evaluate.main(["--release", str(release), "--quiet"]) == 1
    assert "lab-16, best-fit, evictions" in capsys.readouterr().out


def test_another_policy_file_is_noticed(release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_policy(release / "policy.npz", network_arrays(perturbed(2, 8, 0.05)), {})

    assert evaluate.main(["--release", str(release), "--quiet"]) == 1
    assert "none of the evaluated policies" in capsys.readouterr().out


def test_a_folder_without_a_record_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.main(["--release", str(tmp_path)]) == 2
    assert "neither results.json nor metrics.json" in capsys.readouterr().err
