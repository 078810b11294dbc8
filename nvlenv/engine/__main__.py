"""Command line of the placement engine: `python -m nvlenv.engine COMMAND --help`.

A command's function `(argv) -> int` reads its own options, and is imported only when it is called, so that help and
errors come at once.
"""

from __future__ import annotations

import pkgutil
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
FUNCTIONS = {
    "place": "nvlenv.engine.commands.place:place_command",
    "slots": "nvlenv.engine.commands.slots:slots_command",
    "explain": "nvlenv.engine.commands.place:explain_command",
    "defrag": "nvlenv.engine.commands.slots:defrag_command",
    "replay": "nvlenv.engine.commands.replay:replay_command",
    "serve": "nvlenv.engine.service.command:serve_command",
    "gate": "nvlenv.engine.gate.command:gate_command",
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
        return int(pkgutil.resolve_name(FUNCTIONS[name])(rest))
    except SystemExit as end:  # argparse has already said what is wrong
        return int(end.code or 0)


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"usage: {PROGRAM} COMMAND ...", "", "commands:"]
    lines += [f"  {name:{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join([*lines, "", f"{PROGRAM} COMMAND --help says more; {EXIT_CODES}"])


if __name__ == "__main__":
    sys.exit(main())
