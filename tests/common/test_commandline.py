"""How command lines end."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from nvlenv.common.commandline import command
from nvlenv.common.errors import InputError


def test_arguments_are_those_of_the_process_unless_others_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    entry = command(seen.append)
    monkeypatch.setattr(sys, "argv", ["program", "own"])

    assert entry() == entry(["given"]) == 0

    assert seen == [["own"], ["given"]]


def test_what_main_returns_is_the_exit_code() -> None:
    assert command(lambda argv: 3)([]) == 3
    assert command(lambda argv: None)([]) == 0


MISTAKE = InputError("jobs.csv", "line 3", "-1", "a number of GPUs")


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (MISTAKE, 2, f"error: {MISTAKE}\n"),
        (KeyboardInterrupt(), 130, "\ninterrupted\n"),
        (KeyboardInterrupt("the same command goes on"), 130, "\ninterrupted; the same command goes on\n"),
    ],
)
def test_what_goes_wrong_is_told_in_one_line(
    error: BaseException, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def main(argv: list[str]) -> None:
        raise error

    assert command(main)([]) == code

    assert capsys.readouterr().err == told


@pytest.mark.parametrize("printed", ["one line", "a line\\n' * 100_000 + '"])
def test_a_reader_that_has_seen_enough_is_no_mistake(printed: str) -> None:
    program = (
        f"from nvlenv.common.commandline import command; import sys; sys.exit(command(lambda _: print('{printed}'))())"
    )
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    reads, writes = os.pipe()
    os.close(reads)

    done = subprocess.run([sys.executable, "-c", program], stdout=writes, stderr=subprocess.PIPE, env=buffered)

    os.close(writes)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_defect_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        command(lambda argv: 1 // len(argv))([])
