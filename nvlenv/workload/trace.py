"""A trace: what a format of them is, and jobs in memory as they were submitted, before they are mapped onto ours."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nvlenv.cluster.types import FloatArray, IntArray
from nvlenv.common.errors import InputError

NO_USER = "-1"
UNKNOWN = "unknown"
BATCH_GAP_S = 60.0  # members of a sweep follow each other within seconds; restarts of a long job come much later


class TraceJob(NamedTuple):
    """One job as a reader yields it; NaN stands for a number that the file does not give."""

    submit_s: float  # any epoch; the trace starts at its first job
    gpus: float  # all GPUs of the job; a share of one GPU is allowed
    duration_s: float  # run time without the time in the queue
    kind: str = UNKNOWN
    user: str = NO_USER
    status: str = UNKNOWN


Entry = TraceJob | str  # a job, or the reason for which a row of the file is none


@dataclass(frozen=True)
class Format:
    """One public format; a file is of it if its header holds `columns`, or if `matches` says so of its first line."""

    name: str
    title: str
    read: Callable[[Path], Iterator[Entry]]
    columns: tuple[str, ...] = ()
    matches: Callable[[str], bool] | None = None  # for files without a header
    source_gpus: int | None = None  # GPUs of the cluster it was recorded on
    note: str = ""

    def recognises(self, line: str, header: frozenset[str]) -> bool:
        """Whether a file with this first line, whose comma separated cells are `header`, is of this format."""
        if self.columns and header.issuperset(self.columns):
            return True
        return self.matches is not None and self.matches(line)


@dataclass(frozen=True)
class TraceReport:
    """What was read and what was left out."""

    format: str
    rows: int  # jobs, tasks or pods found in the file
    kept: int
    dropped: dict[str, int]  # reason -> rows
    note: str = ""  # what to keep in mind about this format


@dataclass(frozen=True)
class Trace:
    """Jobs of one trace as a struct of arrays of length n, sorted by submit time (ties in the order of the file)."""

    submit_s: FloatArray  # s since the first submit
    gpus: FloatArray  # > 0, may be a fraction
    duration_s: FloatArray  # > 0
    kind: IntArray  # index into kind_names
    user: IntArray  # index into user_names
    status: IntArray  # index into status_names
    kind_names: tuple[str, ...]
    user_names: tuple[str, ...]  # "-1": the source does not say
    status_names: tuple[str, ...]
    source: str
    source_gpus: int | None  # GPUs of the cluster that the trace comes from, if known
    report: TraceReport

    def __len__(self) -> int:
        return len(self.submit_s)

    @property
    def span_s(self) -> float:
        """Seconds from the first to the last submit."""
        return float(self.submit_s[-1] - self.submit_s[0])

    def offered_load(self, gpus: int) -> float:
        """GPU-seconds asked for per GPU-second that `gpus` GPUs have over the span of the submits."""
        work = float(np.dot(self.gpus, self.duration_s))
        return work / (gpus * self.span_s) if self.span_s > 0 else math.inf

    @cached_property
    def batch(self) -> IntArray:
        """Number of each job's batch: jobs of one user, kind and size that follow each other within a minute.

        Where the users are unknown only jobs of the same second form a batch; else the whole trace would be one.
        """
        order = np.lexsort((self.submit_s, self.gpus, self.kind, self.user))
        known = np.array([name != NO_USER for name in self.user_names])[self.user[order]]
        gap = np.diff(self.submit_s[order], prepend=-np.inf)
        new = gap > np.where(known, BATCH_GAP_S, 0.0)
        for column in (self.user, self.kind, self.gpus):
            new[1:] |= column[order][1:] != column[order][:-1]
        numbers = np.empty(len(self), np.int32)
        numbers[order] = np.cumsum(new) - 1
        return numbers


def _flaw(job: TraceJob) -> str | None:
    """Why this job cannot be replayed."""
    if not 0 < job.gpus < math.inf:
        return "no GPUs"
    if not math.isfinite(job.submit_s):
        return "no submit time"
    if not math.isfinite(job.duration_s):
        return "no run time"
    return None if job.duration_s > 0 else "zero or negative run time"


def collect(path: Path, format: Format) -> Trace:
    """Read a file that is of a format into a `Trace`; memory grows with the kept jobs only.

    Raises `InputError` if no job is left.
    """
    numbers = [array("d"), array("d"), array("d")]  # submit, GPUs, duration
    codes = [array("i"), array("i"), array("i")]  # kind, user, status: strings, numbered by first appearance
    known: tuple[dict[str, int], ...] = ({}, {}, {})
    dropped: Counter[str] = Counter()
    for entry in format.read(path):
        reason = entry if isinstance(entry, str) else _flaw(entry)
        if isinstance(entry, str) or reason:
            dropped[str(reason)] += 1
            continue
        for column, value in zip(numbers, entry[:3], strict=True):
            column.append(value)
        words = entry.kind.lower() or UNKNOWN, entry.user or NO_USER, entry.status or UNKNOWN
        for code, numbered, word in zip(codes, known, words, strict=True):
            code.append(numbered.setdefault(word, len(numbered)))
    kept = len(numbers[0])
    rows = kept + dropped.total()
    if not kept:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in dropped.most_common()) or "nothing in it"
        raise InputError(path, f"format {format.name}", f"no job to replay in {rows} rows ({reasons})", "at least one")
    times = np.frombuffer(numbers[0], np.float64)
    order = np.argsort(times, kind="stable").astype(np.int32)
    gpus, duration = (np.frombuffer(column, np.float64)[order] for column in numbers[1:])
    kind, user, status = (np.frombuffer(code, np.int32)[order] for code in codes)
    kind_names, user_names, status_names = (tuple(names) for names in known)
    return Trace(
        submit_s=times[order] - times[order[0]],
        gpus=gpus,
        duration_s=duration,
        kind=kind,
        user=user,
        status=status,
        kind_names=kind_names,
        user_names=user_names,
        status_names=status_names,
        source=path.name,
        source_gpus=format.source_gpus,
        report=TraceReport(format.name, rows, kept, dict(dropped.most_common()), format.note),
    )
