"""The common CSV of this project, `submit_s,gpus,duration_s[,kind,user,status]`: read, and written whole."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from nvlenv.cluster.types import FloatArray, IntArray, Workload
from nvlenv.common.files import written_whole
from nvlenv.workload.table import read_table
from nvlenv.workload.trace import NO_USER, UNKNOWN, Entry, Format, Trace, TraceJob

COLUMNS = ("submit_s", "gpus", "duration_s", "kind", "user", "status")
_REQUIRED = COLUMNS[:3]


def _read(path: Path) -> Iterator[Entry]:
    for row in read_table(path, _REQUIRED):
        submit, gpus, duration = (row.number(name) for name in _REQUIRED)
        kind, user = row.text("kind", UNKNOWN), row.text("user", NO_USER)
        yield TraceJob(submit, gpus, duration, kind, user, row.text("status", UNKNOWN))


FORMATS = (Format("common", "submit_s,gpus,duration_s[,kind,user,status]", _read, _REQUIRED),)


def write_csv(jobs: Workload | Trace, path: str | Path) -> None:
    """Write jobs as common CSV, gzip if the name ends in .gz; an interrupted write leaves the old file.

    Numbers are written with all their digits. A workload loses what the format has no column for: its class becomes
    the kind, its queue the user; topology and eviction come back from the mapping rules.
    """
    path = Path(path)
    if isinstance(jobs, Trace):
        numbers = jobs.submit_s, jobs.gpus, jobs.duration_s
        named = (jobs.kind, jobs.kind_names), (jobs.user, jobs.user_names), (jobs.status, jobs.status_names)
    else:
        numbers = jobs.submit * 3600, jobs.gpus.astype(np.float64), jobs.duration * 3600
        statuses = np.zeros(len(jobs), np.int32), (UNKNOWN,)
        named = (jobs.job_class, jobs.class_names), (jobs.queue, jobs.queue_names), statuses
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    table.writerows(zip(*map(_digits, numbers), *(_names(*pair) for pair in named), strict=True))
    data = text.getvalue().encode()
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)  # no time stamp: same jobs, same bytes
    with written_whole(path) as part:
        part.write_bytes(data)


def _digits(column: FloatArray) -> list[str]:
    return [repr(value).removesuffix(".0") for value in column.tolist()]


def _names(codes: IntArray, names: tuple[str, ...]) -> list[str]:
    lines = [re.sub(r"[\r\n]+", " ", name) for name in names]  # the csv module leaves a lone \r unquoted
    return [lines[code] for code in codes.tolist()]
