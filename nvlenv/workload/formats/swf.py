"""Standard Workload Format of the Parallel Workloads Archive: processors stand for GPUs, one for one.

18 columns separated by blanks, some archives append more; `;` starts a comment; -1 is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nvlenv.common.errors import InputError, brief
from nvlenv.workload.table import read_lines
from nvlenv.workload.trace import NO_USER, UNKNOWN, Entry, Format, TraceJob

_COLUMNS = 18
_USED = {1: "submit time", 3: "run time", 4: "processors", 7: "requested processors", 10: "status", 11: "user"}
_STATUS: dict[float, str] = {0: "FAILED", 1: "COMPLETED", 5: "CANCELLED"}
_PARTIAL = (2, 3, 4)  # pieces of a job that has a line of its own


def _values(path: Path, line: int, cells: list[str]) -> dict[int, float]:
    if len(cells) < _COLUMNS:
        raise InputError(path, f"line {line}", f"{len(cells)} columns", f"the {_COLUMNS} columns of SWF")
    values = {}
    for index, name in _USED.items():
        try:
            values[index] = float(cells[index])
        except ValueError:
            raise InputError(path, f"line {line}, column {name!r}", brief(cells[index]), "a number") from None
    return values


def _read(path: Path) -> Iterator[Entry]:
    for line, text in enumerate(read_lines(path), 1):
        cells = text.split(maxsplit=_COLUMNS)
        if not cells or cells[0].startswith(";"):
            continue
        submit, run_time, used, requested, status, user = _values(path, line, cells).values()
        if status in _PARTIAL:
            yield "part of a job"
        elif submit < 0:
            yield "no submit time"
        else:
            gpus = used if used > 0 else requested
            who = NO_USER if user < 0 else cells[11]
            yield TraceJob(submit, gpus, run_time, user=who, status=_STATUS.get(status, UNKNOWN))


def _matches(line: str) -> bool:
    cells = line.split()
    return line.startswith(";") or (len(cells) >= _COLUMNS and all(_is_number(cell) for cell in cells[:_COLUMNS]))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


FORMATS = (Format("swf", "Standard Workload Format, processors as GPUs", _read, matches=_matches),)
