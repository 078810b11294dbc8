"""Philly (msr-fiddle/philly-traces, ATC'19): the original job log and three flattened copies that are in use.

A job of the log has attempts. Its run time is the sum over them: from the first start to the last end would count the
waits between retries, which is 1.9 times too much over the whole trace.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nvlenv.common.errors import InputError, brief
from nvlenv.workload.table import MISSING, read_chunks, read_table, timestamp
from nvlenv.workload.trace import NO_USER, UNKNOWN, Entry, Format, TraceJob

_STATUS = {"Pass": "COMPLETED", "Killed": "CANCELLED", "Failed": "FAILED"}
_DECODER = json.JSONDecoder()
_LONGEST_JOB = 1 << 24  # characters; a job that does not end within these is a broken file
_SUMMER_ENDS = timestamp("2017-11-05 02:00:00")
_RFOLD = ("#job id", "arrival time (sec)", "size", "duration (sec)")
_SIA = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")
_CHRONUS = ("user", "num_gpu", "submit_time", "duration", "expect_time_list", "best_effort")


class _JsonList:
    """The objects of one JSON list, too long to hold at once, taken from the front of a text that comes in chunks."""

    def __init__(self, path: Path) -> None:
        self._path, self._chunks = path, read_chunks(path)
        self._text, self._number = "", 1

    def __iter__(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Each object with its number, from 1."""
        self._take("[")
        while self._peek() != "]":
            if self._number > 1:
                self._take(",")
            yield self._number, self._object()
            self._number += 1

    def _error(self, found: str, expected: str) -> InputError:
        return InputError(self._path, f"job {self._number}", found, expected)

    def _more(self) -> bool:
        chunk = next(self._chunks, "")
        self._text += chunk
        return bool(chunk)

    def _peek(self) -> str:
        """The next character that is not blank, empty at the end of the file."""
        while not (text := self._text.lstrip()) and self._more():
            pass
        self._text = text
        return text[:1]

    def _take(self, character: str) -> None:
        if self._peek() != character:
            found = brief(self._text[:20]) if self._text else "the end of the file"
            raise self._error(found, f"{character!r} of a JSON list of jobs")
        self._text = self._text[1:]

    def _object(self) -> Mapping[str, Any]:
        self._peek()
        while True:
            try:
                job, end = _DECODER.raw_decode(self._text)
                break
            except json.JSONDecodeError as error:
                if len(self._text) > _LONGEST_JOB or not self._more():
                    raise self._error(f"broken JSON ({error.msg})", "a complete JSON list of jobs") from None
            except (RecursionError, ValueError):  # nested without end, or a number of thousands of digits
                raise self._error("absurd JSON", "a list of jobs") from None
        if not isinstance(job, dict):
            raise self._error(brief(job), "an object with status, submitted_time and attempts")
        self._text = self._text[end:]
        return job


def _time(value: object) -> float:
    """Seconds since 1970 of a local time in Redmond within the trace (August to December 2017), NaN for none."""
    if value is None or value in MISSING:
        return math.nan
    try:
        local = timestamp(str(value))
    except ValueError:
        raise ValueError(f"the time {brief(value)}") from None
    return local + 3600 * (7 if local < _SUMMER_ENDS else 8)


def _philly_job(job: Mapping[str, Any]) -> Entry:
    attempts = [
        (sum(len(server["gpus"]) for server in one["detail"]), _time(one["end_time"]) - _time(one["start_time"]))
        for one in job["attempts"]
    ]
    if not attempts:
        return "never started"
    if math.isnan(_time(job["attempts"][-1]["end_time"])):
        return "still running"
    complete = [(gpus, seconds) for gpus, seconds in attempts if seconds > 0]  # the log lost some starts and ends
    gpus = max((gpus for gpus, _ in complete), default=attempts[-1][0])
    gpu_seconds = sum(gpus * seconds for gpus, seconds in complete)  # attempts may differ in size
    run_time = gpu_seconds / gpus if gpus else 0.0
    status = _STATUS.get(job["status"], UNKNOWN)
    return TraceJob(_time(job["submitted_time"]), gpus, run_time, user=str(job["user"] or NO_USER), status=status)


def _read_log(path: Path) -> Iterator[Entry]:
    for number, job in _JsonList(path):
        try:
            yield _philly_job(job)
        except KeyError as error:
            found = f"no {error.args[0]!r} in {brief(sorted(job))}"
            raise InputError(path, f"job {number}", found, "a job as in cluster_job_log") from None
        except ValueError as error:
            raise InputError(path, f"job {number}", error, "a time like 2017-10-07 01:12:09") from None
        except TypeError:
            expected = "a list of attempts, each with start_time, end_time and detail"
            raise InputError(path, f"job {number}", brief(job["attempts"]), expected) from None


def _is_json(line: str) -> bool:
    return line.lstrip().startswith(("[", "{"))


def _read_rfold(path: Path) -> Iterator[Entry]:
    for row in read_table(path, _RFOLD):
        yield TraceJob(row.number("arrival time (sec)"), row.number("size"), row.number("duration (sec)"))


def _read_sia(path: Path) -> Iterator[Entry]:
    for row in read_table(path, _SIA):
        yield TraceJob(row.time("timestamp"), row.number("num_gpus"), row.number("duration"), user=row.text("cluster"))


def _read_chronus(path: Path) -> Iterator[Entry]:
    for row in read_table(path, _CHRONUS):
        yield TraceJob(row.number("submit_time"), row.number("num_gpu"), row.number("duration"), user=row.text("user"))


FORMATS = (
    Format("philly", "Philly cluster_job_log (JSON)", _read_log, matches=_is_json, source_gpus=2490),
    Format(
        "philly-rfold",
        "Philly as flattened for RFold",
        _read_rfold,
        _RFOLD,
        source_gpus=2490,
        note="run times go from the first start to the last end, so they include the waits between retries",
    ),
    Format(
        "philly-sia",
        "Philly as flattened for Sia and ElasticFlow",
        _read_sia,
        _SIA,
        source_gpus=2490,
        note="most retried and large jobs are missing",
    ),
    Format("philly-chronus", "Philly as resampled for Chronus", _read_chronus, _CHRONUS),
)
