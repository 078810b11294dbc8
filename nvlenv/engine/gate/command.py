"""`python -m nvlenv.engine gate`: the controller that places gated pods."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Sequence

from nvlenv.common.errors import InputError
from nvlenv.engine.commands.common import add_policy
from nvlenv.engine.model.snapshot import Options


def main(argv: Sequence[str] | None = None) -> int:
    """Run the controller until it is told to stop. Raises `InputError` for bad input."""
    parser = argparse.ArgumentParser(prog="python -m nvlenv.engine gate", description=__doc__)
    add_policy(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and change nothing")
    parser.add_argument("--kubeconfig", default="", help="file (default: the service account, else ~/.kube/config)")
    parser.add_argument("--context", default="", help="of the kubeconfig file")
    add_levels(parser)
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    _run(args, options_of(args))
    return 0


def add_levels(parser: argparse.ArgumentParser) -> None:
    """What a user can say about the topology beside the objects themselves."""
    group = parser.add_argument_group("topology")
    group.add_argument("--levels", default="", metavar="LABEL,...", help="node labels, coarse to fine")
    group.add_argument("--nvlink-level", default="", metavar="LABEL", help="the one that is the NVLink domain")
    group.add_argument("--topology", default="", metavar="NAME", help="which of several topologies")
    group.add_argument("--skip-unlabelled", action="store_true", help="leave out nodes without a level label")
    group.add_argument("--gpu-resource", default=Options.gpu_resource, metavar="NAME", help="default: %(default)s")


def options_of(args: argparse.Namespace) -> Options:
    levels = tuple(filter(None, args.levels.split(",")))
    return Options(levels, args.nvlink_level, args.topology, args.skip_unlabelled, args.gpu_resource)


def _run(args: argparse.Namespace, options: Options) -> None:
    try:
        from nvlenv.engine.gate.controller import Controller
        from nvlenv.engine.gate.kube import connect
    except ModuleNotFoundError as error:
        found = f"no module {error.name}"
        raise InputError("gate", "", found, "the extra kubernetes: pip install 'nvlenv[kubernetes]'") from None
    controller = Controller(connect(args.kubeconfig, args.context), args.policy, options, args.dry_run)
    stop = threading.Event()

    def ended(number: int, frame: object) -> None:
        stop.set()
        controller.wake()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ended)
    controller.run(stop)
