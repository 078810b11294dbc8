"""Command line of the placement engine: `python -m nvlenv.engine COMMAND --help`.

A command's module is imported only when it is called, so that help and errors come at once: each has a
`main(argv) -> int` that reads its own options.
"""

from __future__ import annotations

import importlib
import sys

from nvlenv.common.commandline import command
from nvlenv.common.errors import InputError
from nvlenv.engine.commands.common import EXIT_CODES

COMMANDS = {
    "place": "where a job would go, and why",
    "slots": "free slots by slice size, and what keeps GPUs out of reach",
    "explain": "every candidate rack of a job, with scores, and the alternatives by policy",
    "defrag": "moves that free room for one more slice, cheapest first",
    "replay": "when a hero job could start under each policy (what-if)",
    "serve": "answer over HTTP: native API and kube-scheduler extender",
    "gate": "watch gated pods of a Kubernetes cluster and place their gangs",
}
MODULES = {name: f"nvlenv.engine.commands.{name}" for name in COMMANDS} | {
    "serve": "nvlenv.engine.service.command",
    "gate": "nvlenv.engine.gate.command",
}
PROGRAM = "python -m nvlenv.engine"


@command
def main(arguments: list[str]) -> int:
    """Run a command; 0: placed or done, 3: refused, 2: bad input, told in one line on stderr."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in COMMANDS:
        raise InputError(PROGRAM, "command", repr(name), f"one of {list(COMMANDS)}")
    try:
        return int(importlib.import_module(MODULES[name]).main(rest))
    except SystemExit as end:  # argparse has already said what is wrong
        return int(end.code or 0)


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"usage: {PROGRAM} COMMAND ...", "", "commands:"]
    lines += [f"  {name:{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join([*lines, "", f"{PROGRAM} COMMAND --help says more; {EXIT_CODES}"])


if __name__ == "__main__":
    sys.exit(main())
