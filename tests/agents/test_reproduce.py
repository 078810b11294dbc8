"""The README's tables come from results, are checked against them, and an empty folder is enough to start from."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from agents import reproduce
from agents.evaluation.release import read_results

README = "# Title\n\n<!-- table small -->\nold\n<!-- end -->\n\nText.\n\n<!-- table whole -->\n<!-- end -->\n"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, small_overrides: tuple[str, ...]) -> Path:
    root = tmp_path_factory.mktemp("project")
    options = ["--policies", "best-fit", "least-allocated", "--episodes", "3", "--quiet"]
    plan = {
        "steps": {"play": {"run": "agents.evaluate", "arguments": [*options, "--set", *small_overrides]}},
        "tables": {
            "small": {"step": "play", "columns": ["policy", "cost"]},
            "whole": {"step": "play", "label": "lab-16"},
        },
        "pictures": {"docs/pictures/decay.png": {"step": "play", "figure": "decay.png"}},
    }
    (root / "plan.yaml").write_text(yaml.safe_dump(plan), "utf-8")
    (root / "README.md").write_text(README, "utf-8")
    return root


def arguments(project: Path, *extra: str) -> list[str]:
    return ["--plan", str(project / "plan.yaml"), "--root", str(project), "--folder", str(project / "made"), *extra]


def test_everything_is_made_from_nothing_and_then_agrees(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce.main(arguments(project, "--check")) == 1  # the old tables are not what is made
    assert "-old" in capsys.readouterr().out
    assert reproduce.main(arguments(project)) == 0
    assert reproduce.main(arguments(project, "--check")) == 0

    text = (project / "README.md").read_text("utf-8")
    policies = read_results(project / "made" / "play")["sets"]["lab-16"]["summary"]["policies"]
    assert f"| best-fit | {policies['best-fit']['mean']['cost']:.3f} |" in text
    assert text.startswith("# Title\n\n<!-- table small -->\n| policy | cost |\n|---|---:|\n") and "Text." in text
    assert (project / "docs" / "pictures" / "decay.png").read_bytes().startswith(b"\x89PNG")


def test_a_number_that_was_touched_is_found(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce.main(arguments(project)) == 0
    readme = project / "README.md"
    readme.write_text(readme.read_text("utf-8").replace("| best-fit | ", "| best-fit | 9", 1), "utf-8")

    assert reproduce.main(arguments(project, "--check")) == 1
    assert "-| best-fit | 9" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tables": {"small": {"step": "plya"}}}, "'plya'"),
        ({"tables": {"small": {"step": "play", "columns": ["price"]}}}, "'price'"),
        ({"tables": {"nowhere": {"step": "play"}}}, "nowhere"),
        ({"pictures": {"a.png": {"step": "play"}}}, "a.png"),
        ({"steps": {"play": {"run": "os.system"}}}, "run"),
    ],
)
def test_mistakes_in_the_plan_are_told_in_one_line(
    change: dict[str, object], said: str, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = yaml.safe_load((project / "plan.yaml").read_text("utf-8")) | change
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan), "utf-8")

    assert reproduce.main([*arguments(project), "--plan", str(tmp_path / "plan.yaml")]) == 2

    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ") and said in error and "\n" not in error


def test_ctrl_c_in_a_step_ends_in_one_line(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("agents.evaluate.compare_on_case", interrupted)

    assert reproduce.main([*arguments(project), "--folder", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "\ninterrupted; the same command goes on\n"


def test_a_mistake_in_the_arguments_of_a_step_is_told_once(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = {"steps": {"play": {"run": "agents.evaluate", "arguments": ["--policies", "best-fit", "--episodes", "0"]}}}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan), "utf-8")

    assert reproduce.main([*arguments(project), "--plan", str(tmp_path / "plan.yaml")]) == 2
    assert capsys.readouterr().err == "error: --episodes: found '0', expected a whole number of at least 1\n"


def test_the_shipped_plan_can_be_read() -> None:
    assert reproduce.load_plan(reproduce.PLAN).tables
