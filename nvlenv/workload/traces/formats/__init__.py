"""The registry of trace formats: which there are, and which one a file is in."""

from __future__ import annotations

import csv
from pathlib import Path

from nvlenv.errors import InputError
from nvlenv.workload.traces.formats import acme, alibaba, common, lingjun, pai, philly, slurm, swf
from nvlenv.workload.traces.formats.format import Format
from nvlenv.workload.traces.text import read_head, shown

# Where the columns of one format hold those of another, the more specific one comes first.
FORMATS: tuple[Format, ...] = (
    *common.FORMATS,
    *acme.FORMATS,
    *philly.FORMATS,
    *pai.FORMATS,
    *alibaba.FORMATS,
    *lingjun.FORMATS,
    *slurm.FORMATS,
    *swf.FORMATS,
)

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
    """The names of all formats, in the order in which they are tried."""
    return list(dict.fromkeys(known.name for known in FORMATS))


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
    raise InputError(path, "line 1", shown(line, 80), expected)
