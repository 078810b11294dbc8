"""Production realities, one command and one page each.

    python -m agents.study verification-incident    test pods that are counted as usage block customers
    python -m agents.study quota-vs-shape           a job within quota, scattered or in slices: the cliff by rounds
    python -m agents.study hero-blocked             a third of the cluster empty, no rack open: who starts the hero
    python -m agents.study maintenance              failures, drains and spare nodes: what each of them costs

A study plays its scenario (configs/scenarios/NAME.yaml), writes study.html, study.md and study.png into a folder and
prints a small table.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agents.evaluation.tables import Terminal
from agents.study import drains, hero, incident, shape
from agents.study.study import Study, StudySettings, print_study, write_study
from nvlenv.common.commandline import command, option, parse
from nvlenv.common.errors import InputError

PROGRAM = "python -m agents.study"
STUDIES: dict[str, Callable[[StudySettings], Study]] = {
    module.NAME: module.study for module in (incident, shape, hero, drains)
}


@dataclass(frozen=True)
class StudyOptions(StudySettings):
    __doc__ = __doc__

    name: str = option(f"one of {', '.join(STUDIES)}", positional=True, metavar="NAME", choices=list(STUDIES))
    out: Path | None = option("folder (default checkpoints/study-NAME)", default=None)


@command
def main(argv: list[str]) -> None:
    """Run the command line."""
    options = parse(StudyOptions, argv, PROGRAM)
    if options.policy and options.name != hero.NAME:
        raise InputError("--policy", "", repr(options.policy), f"a policy only with {hero.NAME}")
    study = STUDIES[options.name](options)
    page = write_study(
        study, options.out or Path("checkpoints") / f"study-{study.name}", f"{PROGRAM} {shlex.join(argv)}"
    )
    console = Terminal()  # after the page, which is whole even if nobody reads on
    print_study(study, console)
    console.print(f"page: {page}")


if __name__ == "__main__":
    sys.exit(main())
