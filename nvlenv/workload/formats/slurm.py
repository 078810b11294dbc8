"""Accounting logs: MIT SuperCloud (slurm-log.csv) and AIST's AAIC (a headerless table)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nvlenv.workload.table import TableRow, read_table
from nvlenv.workload.trace import UNKNOWN, Entry, Format, TraceJob

_SUPERCLOUD = ("id_user", "state", "time_submit", "time_start", "time_end", "tres_alloc", "tres_req")
_GPU_KINDS = ("1001", "1002")  # trackable resources gpu:tesla and gpu:volta
_SLURM_STATES: dict[float, str] = {3: "COMPLETED", 4: "CANCELLED", 5: "FAILED", 6: "FAILED", 7: "FAILED", 11: "FAILED"}
_AAIC = (
    *("job", "user", "group", "queue", "nodes", "gpus_per_node", "req_walltime", "termcode"),
    *("submit", "start", "finish", "wait", "walltime"),
)
_AAIC_STATES: dict[float, str] = {0: "COMPLETED", 1: "FAILED", 2: "FAILED", 3: "CANCELLED", 4: "CANCELLED"}


def _tres_gpus(row: TableRow) -> float:
    """GPUs in a list of trackable resources such as `1=20,2=170000,4=1,5=20,1002=2`."""
    column = "tres_alloc" if row.text("tres_alloc").strip('"') else "tres_req"
    pairs = [item.partition("=") for item in row.text(column).strip('"').split(",") if item]
    try:
        return sum(float(count) for key, _, count in pairs if key in _GPU_KINDS)
    except ValueError:
        raise row.error(column, "resources like 1=20,1002=2") from None


def _read_supercloud(path: Path) -> Iterator[Entry]:
    for row in read_table(path, _SUPERCLOUD):
        gpus, start, end = _tres_gpus(row), row.number("time_start"), row.number("time_end")
        if gpus > 0 and start == 0:
            yield "never started"
        elif gpus > 0 and end == 0:
            yield "still running"
        else:
            status = _SLURM_STATES.get(row.number("state"), UNKNOWN)
            yield TraceJob(row.number("time_submit"), gpus, end - start, user=row.text("id_user"), status=status)


def _read_aaic(path: Path) -> Iterator[Entry]:
    for row in read_table(path, _AAIC, _AAIC):
        yield TraceJob(
            row.number("submit"),
            row.number("nodes") * row.number("gpus_per_node"),
            row.number("finish") - row.number("start"),
            user=row.text("user"),
            status=_AAIC_STATES.get(row.number("termcode"), UNKNOWN),
        )


def _is_aaic(line: str) -> bool:
    cells = line.strip().split(",")
    return len(cells) == len(_AAIC) and all(cell.strip().isdigit() for cell in cells[4:6] + cells[7:10])


FORMATS = (
    Format("supercloud", "MIT SuperCloud slurm-log.csv", _read_supercloud, _SUPERCLOUD, source_gpus=448),
    Format("aaic", "AIST AAIC workload, headerless csv.gz", _read_aaic, matches=_is_aaic, source_gpus=320),
)
