"""Kueue's own placements: the suite of cases with expected values, and the command that runs such files."""

from __future__ import annotations

import doctest
import json
from pathlib import Path
from typing import Any

import pytest

from nvlenv.common.errors import InputError
from nvlenv.policies import kueue_tas
from nvlenv.policies.kueue.cases import expected_of, read_cases, run_case
from nvlenv.policies.kueue_tas import main

CASES = Path(__file__).parents[2] / "cases"
SUITE = CASES / "kueue_tas.json"  # its `meta` names source, commit and licence
RECORDED = CASES / "kueue_tas_recorded.json"  # likewise


@pytest.mark.parametrize("case", read_cases(SUITE), ids=lambda case: case["id"])
def test_the_suite_places_as_kueue_does(case: dict[str, Any]) -> None:
    assert run_case(case) == expected_of(case)


@pytest.mark.parametrize("case", read_cases(RECORDED), ids=lambda case: case["id"])
def test_random_workloads_are_placed_as_kueue_placed_them(case: dict[str, Any]) -> None:
    assert run_case(case) == expected_of(case)


def test_a_file_without_failures_ends_with_the_tally_and_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(SUITE)]) == 0
    assert capsys.readouterr().out == "81 passed, 0 failed\n"


def test_failing_cases_are_shown_with_expected_and_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(SUITE.read_text())
    document["cases"][0]["expected"] = {"main": {"failure": "something else"}}
    file = tmp_path / "cases.json"
    file.write_text(json.dumps(document))

    assert main([str(file)]) == 1

    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{document['cases'][0]['id']}: expected ")
    assert "something else" in first
    assert '"values": ["x2"]' in first
    assert last == "80 passed, 1 failed"


def test_a_case_of_another_kind_among_placements_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(SUITE.read_text())
    document["cases"][1]["kind"] = "schedule_cycle"
    file = tmp_path / "cases.json"
    file.write_text(json.dumps(document))

    assert main([str(file)]) == 1

    first, last = capsys.readouterr().out.splitlines()
    assert "kind schedule_cycle, which is not run here" in first
    assert last == "80 passed, 1 failed"


def test_a_pod_set_without_assignment_or_reason_is_expected_as_null() -> None:
    case = json.loads(SUITE.read_text())["cases"][0]
    case["expected"]["other"] = {"assignment": None}
    assert run_case(case) == expected_of(case)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("not json", "Expecting value"),
        ("[]", "expected a list of cases"),
        ('{"cases": 3}', "found int, expected a list of cases"),
        ('{"cases": [{"name": "no id"}]}', "expected a list of cases, each an object with an id"),
        ('{"cases": [{"id": "a1", "kind": "schedule_cycle"}]}', "a1.kind: found 'schedule_cycle'"),
        ('{"cases": [{"id": "a1", "expected": {}}]}', "a1: found no 'levels'"),
        ('{"cases": [{"id": "a1", "levels": ["x"], "nodes": [], "podsets": 3, "expected": {}}]}', "a1: found 'int'"),
    ],
)
def test_a_file_that_holds_no_cases_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    file = tmp_path / "cases.json"
    if content is not None:
        file.write_text(content)

    assert main([str(file)]) == 2

    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert str(file) in error


@pytest.mark.parametrize(("arguments", "said"), [([], "CASES.json"), (["one.json", "two.json"], "two.json")])
def test_the_command_takes_exactly_one_file(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(arguments)
    except SystemExit as end:
        code = end.code

    error = capsys.readouterr().err
    assert code == 2 and said in error and error.count("\n") == 1


def test_help_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--help"])

    said = capsys.readouterr()
    assert said.out.startswith("usage: python -m nvlenv.policies.kueue_tas [-h] CASES.json\n") and not said.err


def test_the_usage_of_sibling_flavors_stands_for_all_usage_on_shared_hosts() -> None:
    case = next(case for case in read_cases(SUITE) if case["id"] == "tas-134")  # x1 is used by a sibling, x2 is free
    own = [{"values": ["x2"], "requests_per_pod": {"cpu": 1000}, "count": 1}]
    on_x1, on_x2 = ({"values": [host], "count": 1} for host in ("x1", "x2"))

    assert run_case({**case, "tas_usage": own})["main"]["domains"] == [on_x2]
    apart = {**case, "tas_usage": own, "feature_gates": {"TASHandleOverlappingFlavors": False}}
    assert run_case(apart)["main"]["domains"] == [on_x1]


def test_a_pod_group_owned_by_one_pod_may_move() -> None:
    case = next(case for case in read_cases(SUITE) if case["id"] == "tas-005")  # x1 is lost, x2 is free
    case = {**case, "feature_gates": {}}

    kept = run_case(case)
    moved = run_case({**case, "workload": {**case["workload"], "pod_group": True}})

    assert kept["main"]["domains"][0]["values"] == ["x1"]
    assert moved["main"]["domains"][0]["values"] == ["x2"]


def test_reading_names_the_file() -> None:
    with pytest.raises(InputError, match=r"absent\.json"):
        read_cases("absent.json")


def test_the_example_in_the_docstring_holds() -> None:
    assert doctest.testmod(kueue_tas) == (0, 7)
