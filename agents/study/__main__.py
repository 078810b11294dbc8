"""Production realities, one command and one page each.

    python -m agents.study verification-incident    test pods that are counted as usage block customers
    python -m agents.study quota-vs-shape           a job within quota, scattered or in slices: the cliff by rounds
    python -m agents.study hero-blocked             a third of the cluster empty, no rack open: who starts the hero
    python -m agents.study maintenance              failures, drains and spare nodes: what each of them costs

A study plays its scenario (configs/scenarios/NAME.yaml), writes study.html, study.md and study.png into a folder and
prints a small table.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from agents.evaluation.tables import Terminal
from agents.study import drains, hero, incident, shape
from agents.study.page import Study, show, write
from agents.study.play import Options
from nvlenv.common.commandline import command
from nvlenv.common.errors import InputError

STUDIES: dict[str, Callable[[Options, str], Study]] = {
    module.NAME: module.study for module in (incident, shape, hero, drains)
}


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(prog="python -m agents.study", description=__doc__, allow_abbrev=False)
    out.formatter_class = argparse.RawDescriptionHelpFormatter
    out.add_argument("name", choices=list(STUDIES), metavar="NAME", help=f"one of {', '.join(STUDIES)}")
    out.add_argument("--episodes", type=int, default=Options.episodes, help="workloads (default %(default)s)")
    out.add_argument("--seed", type=int, default=Options.seed, help="of the workloads (default %(default)s)")
    out.add_argument("--policy", default="", metavar="FILE", help="a learned policy to play as well, in hero-blocked")
    out.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", dest="overrides",
                     help="settings of the scenario, such as workload.load=0.5")  # fmt: skip
    out.add_argument("--out", type=Path, help="folder (default checkpoints/study-NAME)")
    return out


def run(arguments: argparse.Namespace, command: str) -> None:
    if arguments.episodes < 1:
        raise InputError("--episodes", "", arguments.episodes, "at least 1")
    if arguments.seed < 0:
        raise InputError("--seed", "", arguments.seed, "at least 0")
    if arguments.policy and arguments.name != hero.NAME:
        raise InputError("--policy", "", repr(arguments.policy), f"a policy only with {hero.NAME}")
    options = Options(arguments.episodes, arguments.seed, arguments.policy, tuple(arguments.overrides))
    study = STUDIES[arguments.name](options, command)
    page = write(study, arguments.out or Path("checkpoints") / f"study-{study.name}")
    console = Terminal()  # after the page, which is whole even if nobody reads on
    show(study, console)
    console.print(f"page: {page}")


@command
def main(argv: list[str]) -> None:
    run(parser().parse_args(argv), "python -m agents.study " + shlex.join(argv))


if __name__ == "__main__":
    sys.exit(main())
