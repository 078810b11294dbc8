"""`python -m nvlenv.engine serve`: the placement engine as an HTTP service."""

from __future__ import annotations

import argparse
import signal
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nvlenv.common.errors import InputError
from nvlenv.engine.commands.common import LARGEST, add_policy, number, whole
from nvlenv.engine.gate.command import add_levels, options_of
from nvlenv.engine.service.limits import is_loopback

if TYPE_CHECKING:
    from nvlenv.engine.service.shared import SharedEngine

PORT = 8420
CONCURRENT = 256  # open requests; more are answered 503
KEEP_ALIVE_SECONDS = 15
QUIET_SECONDS = 1.0  # without a request; time enough for a checkpoint
SHORTEST_TOKEN = 16  # characters


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until told to stop. Raises `InputError` for bad input."""
    parser = argparse.ArgumentParser(prog="python -m nvlenv.engine serve", description=__doc__)
    parser.add_argument("--cluster", nargs="+", default=[], help="files to start a new journal with; else not read")
    parser.add_argument("--journal", type=Path, default=Path("nvlenv-journal.sqlite"), help="default: %(default)s")
    add_policy(parser)
    parser.add_argument("--host", default="127.0.0.1", help="any but a loopback address needs a token")
    parser.add_argument("--port", type=_port, default=PORT, help="default: %(default)s; 0: any that is free")
    parser.add_argument("--token-file", type=Path, help="file with the bearer token that requests must carry")
    parser.add_argument("--plan-seconds", type=_seconds, default=300.0, help="a gang plan waits so long for its pods")
    add_levels(parser)
    args = parser.parse_args(argv)
    token = _token(args.token_file)
    if not token and not is_loopback(args.host):
        raise InputError("--host", "", args.host, "a loopback address, or --token-file beside it")
    _serve(args, token)
    return 0


def _seconds(text: str) -> float:
    return number(text, "seconds", LARGEST)


def _port(text: str) -> int:
    return whole(text, 0, 65535)  # the resolver takes larger ones modulo 2**16


def _token(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        token = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(path, "", f"{error}", "a file with a token in ASCII") from None
    if len(token) < SHORTEST_TOKEN or not token.isprintable() or " " in token:
        raise InputError(path, "", f"{len(token)} characters", f"a token of {SHORTEST_TOKEN} or more, without spaces")
    return token


def _serve(args: argparse.Namespace, token: str) -> None:
    try:
        import uvicorn

        from nvlenv.engine.service.app import create_app
    except ModuleNotFoundError as error:
        found = f"no module {error.name}"
        raise InputError("serve", "", found, "the extra serve: pip install 'nvlenv[serve]'") from None
    from nvlenv.engine.formats.load import load_snapshot
    from nvlenv.engine.service.journal import Journal
    from nvlenv.engine.service.shared import SharedEngine

    journal = Journal(args.journal)
    fresh = journal.state() is None
    cluster = load_snapshot(*args.cluster, **vars(options_of(args))) if fresh and args.cluster else None
    engine = SharedEngine(journal, args.policy, cluster, plan_seconds=args.plan_seconds)
    engine.dry_run('{"gpus": 1}')  # compiled code is loaded before the first request comes
    config = uvicorn.Config(
        create_app(engine, token),
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=CONCURRENT,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
    with _bound(args.host, args.port) as listener:
        host, port = listener.getsockname()[:2]
        print(f"serving on http://{host}:{port}, described at /docs; journal {args.journal}", flush=True)
        for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn stops on them, and then raises them once more
            signal.signal(number, lambda number, frame: None)
        stop = threading.Event()
        tidier = threading.Thread(target=_tidy, args=(engine, stop), daemon=True)
        tidier.start()
        uvicorn.Server(config).run(sockets=[listener])
    stop.set()
    tidier.join()
    engine.close()


def _tidy(engine: SharedEngine, stop: threading.Event) -> None:
    while not stop.wait(QUIET_SECONDS):
        engine.tidy(QUIET_SECONDS)


def _bound(host: str, port: int) -> socket.socket:
    """A listening socket; `InputError` if the address cannot be had.

    The protocol is named, as asyncio turns off Nagle's algorithm only then: with it, every answer waits 40 ms for the
    acknowledgement of its headers.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(CONCURRENT)
    except (OSError, OverflowError) as error:
        found, expected = f"{host}:{port}: {error}", "an address of this machine with a free port"
        raise InputError("--host", "", found, expected) from None
    return listener
