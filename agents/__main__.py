"""`nvlenv COMMAND`: every command line of the project under one name, once it is installed.

A command's module is imported only when it is called: placing a job needs no learning library.
"""

from __future__ import annotations

import importlib
import sys

from nvlenv.common.commandline import command
from nvlenv.common.errors import InputError
from nvlenv.engine.__main__ import COMMANDS as ENGINE_COMMANDS

COMMANDS = {
    "train": "train a policy with PPO, compare it with rules, export it",
    "evaluate": "compare policies on the same held-out workloads",
    "export": "a trained policy as a file that needs no torch",
    "report": "one HTML page of an evaluation or training run, with a replay",
    "study": "production realities, one page each",
    "tune": "search for the best rule, or for PPO's settings",
    "evolve": "a policy by evolution, without a gradient",
    "lookahead": "what there is left to gain by deciding otherwise",
    "scaling": "what more cores give a training run",
    "reproduce": "every table and picture of the documents, from nothing",
    "workload": "look at a job trace, or convert it",
}
ELSEWHERE = {  # than in a module of agents with the command's name
    "report": "agents.report.__main__", "study": "agents.study.__main__", "workload": "nvlenv.workload.__main__",
}  # fmt: skip


@command
def main(arguments: list[str]) -> int:
    """Run a command with the arguments after its name; its exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    name, *rest = arguments
    if name in ENGINE_COMMANDS:
        return int(importlib.import_module("nvlenv.engine.__main__").main(arguments))
    if name not in COMMANDS:
        raise InputError("nvlenv", "command", repr(name), f"one of {[*ENGINE_COMMANDS, *COMMANDS]}")
    return int(importlib.import_module(ELSEWHERE.get(name, f"agents.{name}")).main(rest))


def _usage() -> str:
    both = {"of a real cluster": ENGINE_COMMANDS, "of the simulator": COMMANDS}
    lines = ["usage: nvlenv COMMAND ...   (nvlenv COMMAND --help says more)"]
    for title, commands in both.items():
        lines += ["", f"{title}:", *(f"  {name:10} {text}" for name, text in commands.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
