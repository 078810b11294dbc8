"""Readers of public job traces in their original formats."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from nvlenv.errors import InputError
from nvlenv.workload.traces.formats import find_format, format_names
from nvlenv.workload.traces.trace import Trace, TraceReport, collect

__all__ = ["Trace", "TraceReport", "cached_trace", "format_names", "read_trace"]


def read_trace(path: str | Path, format: str = "auto") -> Trace:
    """Read a job trace, plain or gzip, row by row.

    Parameters
    ----------
    path : the file; PAI 2020 and Lingjun need their second table beside it.
    format : a name of `format_names()`, or "auto" to go by the first line of the file.

    Raises
    ------
    InputError : the file cannot be read, is in no known format, or a row is broken; names the line and the column.
    """
    path = Path(path)
    known = find_format(path, format)
    return collect(path, known.name, known.read(path), known.source_gpus, known.note)


def cached_trace(path: str | Path, format: str = "auto") -> Trace:
    """`read_trace`, once per process as long as the file does not change."""
    path = Path(path)
    try:
        stat = path.stat()
    except OSError as error:
        raise InputError(path, "", (error.strerror or str(error)).lower(), "a readable file") from None
    return _cached(path, format, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=8)
def _cached(path: Path, format: str, changed: int, size: int) -> Trace:
    return read_trace(path, format)
