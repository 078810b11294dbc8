"""Make the report of an evaluation or of a training run: one HTML file that needs no network.

python -m agents.report results --out report.html
python -m agents.report checkpoints/RUN --out report.html --replay policy.npz best-fit --workload 3

A policy that is replayed is one of the results, by its name there or in their tables, or by a file or folder that holds
the same policy.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from agents.evaluation.release import read_results
from agents.report.page import page
from agents.report.replay import replay_of
from nvlenv.common.commandline import command, option, parse
from nvlenv.common.files import write_text


@dataclass(frozen=True)
class ReportOptions:
    __doc__ = __doc__

    results: Path = option("folder of an evaluation or training run", positional=True, metavar="RUN_OR_RESULTS")
    out: Path = option("the file", default=Path("report.html"), metavar="FILE")
    replay: tuple[str, ...] = option("two policies (default: best, reference)", default=(), nargs=2, metavar="POLICY")
    workload: int | None = option("which workload (default: a typical one)", default=None)
    no_replay: bool = option("tables and figures only", default=False)


@command
def main(argv: list[str]) -> None:
    """Run the command line."""
    options = parse(ReportOptions, argv, "python -m agents.report")
    results = read_results(options.results)
    replay = None if options.no_replay else replay_of(results, options.replay, options.workload)
    write_text(options.out, page(results, replay))
    print(options.out)


if __name__ == "__main__":
    sys.exit(main())
