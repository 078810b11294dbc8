"""The process of the service: an engine from its journal behind a listening socket, until it is told to stop."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import uvicorn

from nvlenv.common.errors import InputError
from nvlenv.engine.model.snapshot import ClusterSnapshot
from nvlenv.engine.service.app import create_app
from nvlenv.engine.service.journal import Journal
from nvlenv.engine.service.shared import SharedEngine

CONCURRENT = 256  # open requests; more are answered 503
KEEP_ALIVE_SECONDS = 15
QUIET_SECONDS = 1.0  # without a request; time enough for a checkpoint


def open_engine(
    path: Path, policy: str, load: Callable[[], ClusterSnapshot] | None, plan_seconds: float
) -> SharedEngine:
    """The engine of a journal; a new journal starts with the cluster that `load` gives, which else is not called.

    Raises `InputError` as `Journal` and `SharedEngine` do.
    """
    journal = Journal(path)
    cluster = load() if load is not None and journal.state() is None else None
    engine = SharedEngine(journal, policy, cluster, plan_seconds=plan_seconds)
    engine.dry_run('{"gpus": 1}')  # compiled code is loaded before the first request comes
    return engine


def run_server(engine: SharedEngine, host: str, port: int, token: str) -> None:
    """Answer at this address until SIGINT or SIGTERM; then leave a checkpoint and close the journal.

    Raises `InputError` if the address cannot be had.
    """
    config = uvicorn.Config(
        create_app(engine, token),
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=CONCURRENT,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
    with _bound(host, port) as listener:
        name, number = listener.getsockname()[:2]
        print(f"serving on http://{name}:{number}, described at /docs; journal {engine.path}", flush=True)
        for wanted in (signal.SIGINT, signal.SIGTERM):  # uvicorn stops on them, and then raises them once more
            signal.signal(wanted, lambda number, frame: None)
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
    """A listening socket.

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
