"""`python -m nvlenv.engine gate`: the controller that places gated pods."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from nvlenv.common.commandline import DONE, option, parse
from nvlenv.common.errors import InputError
from nvlenv.engine.formats.options import Options, PolicyOptions


@dataclass(frozen=True)
class GateOptions(PolicyOptions, Options):
    """Watch gated pods of a Kubernetes cluster: decide each gang as a whole, and let its pods go to their nodes."""

    dry_run: bool = option("say what would be done, and change nothing", default=False)
    kubeconfig: str = option("default: the service account, else ~/.kube/config", default="", metavar="FILE")
    context: str = option("of the kubeconfig file", default="", metavar="NAME")


def gate_command(argv: Sequence[str]) -> int:
    """Run the controller until it is told to stop. Raises `InputError` for bad input."""
    options = parse(GateOptions, argv, "python -m nvlenv.engine gate")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        from nvlenv.engine.gate.controller import Controller, connect
    except ModuleNotFoundError as error:
        found = f"no module {error.name}"
        raise InputError("gate", "", found, "the extra kubernetes: pip install 'nvlenv[kubernetes]'") from None
    api = connect(options.kubeconfig, options.context)
    controller = Controller(api, options.policy, options, options.dry_run)
    stop = threading.Event()

    def ended(number: int, frame: object) -> None:
        stop.set()
        controller.wake()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ended)
    controller.run(stop)
    return DONE
