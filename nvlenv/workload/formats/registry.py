"""The registry of trace formats: which there are, and which one a file is in.

A module of this folder with a tuple FORMATS is found by itself, so a new format is one new file.
"""

from __future__ import annotations

import csv
import pkgutil
from functools import lru_cache
from importlib import import_module
from pathlib import Path

from nvlenv.common.errors import InputError, brief
from nvlenv.workload import formats
from nvlenv.workload.table import read_head
from nvlenv.workload.trace import Format, Trace, collect

_MODULES = (module.name for module in pkgutil.iter_modules(formats.__path__, "nvlenv.workload.formats."))
_FOUND = [known for name in _MODULES if name != __name__ for known in import_module(name).FORMATS]

# Where the columns of one format hold those of another, the one with more of them comes first.
FORMATS: tuple[Format, ...] = tuple(sorted(_FOUND, key=lambda known: -len(known.columns)))

# Files that lie beside the traces and are easily taken for one.
_NO_TRACES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("TIMESTAMP", "ContextTokens", "GeneratedTokens"), "a trace of LLM requests, which hold no GPUs of their own"),
    (("gmt_create", "predict_type", "exec_time_seconds"), "a trace of image requests, which hold no GPUs of their own"),
    (("name", "num_gpu", "gpu_milli"), "a pod list without times"),
    (("sn", "gpu", "model"), "a list of nodes"),
    (("gpu_model", "gpu_capacity_num", "node_name"), "a list of nodes"),
    (("ip", "ASW"), "a list of network switches"),
    (("date", "total"), "a table of quotas by day"),
    (("pod_id", "used_gpu_hours"), "hourly samples of pods"),
)


def format_names() -> list[str]:
    """The names of all formats: our own, then the others in the order of the alphabet."""
    return sorted({known.name for known in FORMATS}, key=lambda name: (name != "common", name))


def find_format(path: Path, name: str = "auto") -> Format:
    """The format called `name`, or the one that the first line of the file shows.

    Raises `InputError` for an unknown name or an unknown file.
    """
    line = next((line for line in read_head(path).splitlines() if line.strip()), "")
    if not line:
        raise InputError(path, "", "an empty file", "a job trace")
    header = frozenset(cell.strip() for cell in next(csv.reader([line])))
    for known in FORMATS:
        if known.name == name or (name == "auto" and known.recognises(line, header)):
            return known
    if name != "auto":
        raise InputError(path, "format", repr(name), f"auto or one of {', '.join(format_names())}")
    for columns, what in _NO_TRACES:
        if header.issuperset(columns):
            raise InputError(path, "", what, "a job trace with submit times, GPUs and run times")
    expected = f"one of the formats {', '.join(format_names())} (or name it with `format`)"
    raise InputError(path, "line 1", brief(line, 80), expected)


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
    return collect(path, find_format(path, format))


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
