"""The common CSV of this project: `submit_s,gpus,duration_s[,kind,user,status]`, written by `write_csv`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nvlenv.workload.traces.formats.format import Format
from nvlenv.workload.traces.text import read_table
from nvlenv.workload.traces.trace import NO_USER, UNKNOWN, Entry, Job

COLUMNS = ("submit_s", "gpus", "duration_s", "kind", "user", "status")
_REQUIRED = COLUMNS[:3]


def _read(path: Path) -> Iterator[Entry]:
    for row in read_table(path, _REQUIRED):
        yield Job(
            row.number("submit_s"),
            row.number("gpus"),
            row.number("duration_s"),
            row.text("kind", UNKNOWN),
            row.text("user", NO_USER),
            row.text("status", UNKNOWN),
        )


FORMATS = (Format("common", "submit_s,gpus,duration_s[,kind,user,status]", _read, _REQUIRED),)
