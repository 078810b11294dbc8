"""The common CSV of this project, `submit_s,gpus,duration_s[,kind,user,status]`: read, and written whole."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from nvlenv.cluster.types import FloatArray, IntArray, Workload
from nvlenv.common.files import written_whole
from nvlenv.workload.table import read_table
from nvlenv.workload.trace import NO_USER, UNKNOWN, Entry, Format, Trace, TraceJob

COLUMNS = ("submit_s", "gpus", "duration_s", "kind", "user", "status")
_REQUIRED = COLUMNS[:3]


def _read(path: Path) -> Iterator[Entry]:
    for row in read_table(path, _REQUIRED):
        yield TraceJob(
            row.number("submit_s"),
            row.number("gpus"),
            row.number("duration_s"),
            row.text("kind", UNKNOWN),
            row.text("user", NO_USER),
            row.text("status", UNKNOWN),
        )


FORMATS = (Format("common", "submit_s,gpus,duration_s[,kind,user,status]", _read, _REQUIRED),)


def write_csv(jobs: Workload | Trace, path: str | Path) -> None:
    """Write jobs as common CSV, gzip if the name ends in .gz; an interrupted write leaves the old file.

    Numbers are written with all their digits. A workload loses what the format has no column for: its class becomes
    the kind, its queue the user; topology and eviction come back from the mapping rules.
    """
    path = Path(path)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    table.writerows(_trace_rows(jobs) if isinstance(jobs, Trace) else _workload_rows(jobs))
    data = text.getvalue().encode()
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)  # no time stamp: same jobs, same bytes
    with written_whole(path) as part:
        part.write_bytes(data)


def _trace_rows(trace: Trace) -> Iterable[tuple[str, ...]]:
    return zip(
        *(_digits(column) for column in (trace.submit_s, trace.gpus, trace.duration_s)),
        _names(trace.kind, trace.kind_names),
        _names(trace.user, trace.user_names),
        _names(trace.status, trace.status_names),
        strict=True,
    )


def _workload_rows(workload: Workload) -> Iterable[tuple[str, ...]]:
    seconds = (workload.submit * 3600, workload.gpus.astype(float), workload.duration * 3600)
    return zip(
        *(_digits(column) for column in seconds),
        _names(workload.job_class, workload.class_names),
        _names(workload.queue, workload.queue_names),
        [UNKNOWN] * len(workload),
        strict=True,
    )


def _digits(column: FloatArray) -> list[str]:
    return [repr(value).removesuffix(".0") for value in column.tolist()]


def _names(codes: IntArray, names: tuple[str, ...]) -> list[str]:
    lines = [re.sub(r"[\r\n]+", " ", name) for name in names]  # the csv module leaves a lone \r unquoted
    return [lines[code] for code in codes.tolist()]
