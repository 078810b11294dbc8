"""The command line: look at a job trace, or convert it to the common CSV."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from nvlenv.cluster.hardware import RACK_GPUS
from nvlenv.common.commandline import command, option, parse_command
from nvlenv.workload.describe import trace_table
from nvlenv.workload.formats.common import write_csv
from nvlenv.workload.formats.registry import format_names, read_trace


@dataclass(frozen=True)
class _Source:
    file: Path = option("the trace, plain or .gz; PAI and Lingjun need their second table beside it", positional=True)
    format: str = option(f"auto (by the first line) or one of {', '.join(format_names())}", default="auto")


@dataclass(frozen=True)
class DescribeOptions(_Source):
    """Print a trace's statistics."""

    racks: int = option(f"racks of {RACK_GPUS} GPUs for which the offered load is given", default=16, least=1)


@dataclass(frozen=True)
class ConvertOptions(_Source):
    """Write a trace as common CSV.

    Its columns are submit_s,gpus,duration_s,kind,user,status, its rows sorted by submit time.
    """

    out: Path = option("file to write or replace; .gz writes gzip", metavar="FILE")


@command
def main(arguments: list[str]) -> None:
    """Describe or convert one trace."""
    options = parse_command(
        {"describe": DescribeOptions, "convert": ConvertOptions},
        arguments,
        "python -m nvlenv.workload",
        "Look at public GPU job traces in their original formats, or convert them to one common CSV.",
    )
    trace = read_trace(options.file, options.format)
    if isinstance(options, DescribeOptions):
        print(trace_table(trace, options.racks * RACK_GPUS))
    else:
        write_csv(trace, options.out)
        print(f"wrote {len(trace):,} jobs to {options.out}")


if __name__ == "__main__":
    sys.exit(main())
