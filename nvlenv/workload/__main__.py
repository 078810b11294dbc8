"""Command line: look at a job trace, or convert it to the common CSV."""

from __future__ import annotations

import argparse
import sys

from nvlenv.common.commandline import command
from nvlenv.workload.describe import table
from nvlenv.workload.formats.common import write_csv
from nvlenv.workload.formats.registry import format_names, read_trace

RACK_GPUS = 72  # of an NVL72 rack


def _positive(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number of at least 1")
    return value


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nvlenv.workload",
        description="Look at public GPU job traces in their original formats, or convert them to one common CSV.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    source = argparse.ArgumentParser(add_help=False)
    source.add_argument("file", help="the trace, plain or .gz; PAI and Lingjun need their second table beside it")
    source.add_argument(
        "--format",
        default="auto",
        metavar="NAME",
        help=f"auto (default: by the first line) or one of {', '.join(format_names())}",
    )
    describe = commands.add_parser(
        "describe", parents=[source], help="print a table of its statistics", description="Print a trace's statistics."
    )
    describe.add_argument(
        "--racks",
        type=_positive,
        default=16,
        metavar="N",
        help=f"racks of {RACK_GPUS} GPUs for which the offered load is given (default %(default)s)",
    )
    convert = commands.add_parser(
        "convert",
        parents=[source],
        help="write it as common CSV",
        description="Write a trace as common CSV: submit_s,gpus,duration_s,kind,user,status, sorted by submit time.",
    )
    convert.add_argument("--out", required=True, metavar="FILE", help="file to write or replace; .gz writes gzip")
    return parser


@command
def main(argv: list[str]) -> None:
    options = build_parser().parse_args(argv)
    trace = read_trace(options.file, options.format)
    if options.command == "describe":
        print(table(trace, options.racks * RACK_GPUS))
    else:
        write_csv(trace, options.out)
        print(f"wrote {len(trace):,} jobs to {options.out}")


if __name__ == "__main__":
    sys.exit(main())
