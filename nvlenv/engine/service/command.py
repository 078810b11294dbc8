"""`python -m nvlenv.engine serve`: what it is asked, and who may ask the service then."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nvlenv.common.commandline import DONE, option, parse
from nvlenv.common.errors import InputError
from nvlenv.engine.formats.load import ClusterOptions
from nvlenv.engine.formats.options import LARGEST, PolicyOptions
from nvlenv.engine.service.plans import PLAN_SECONDS

PORT = 8420
SHORTEST_TOKEN = 16  # characters


@dataclass(frozen=True)
class ServeOptions(PolicyOptions, ClusterOptions):
    """Serve the placement engine over HTTP: native API, kube-scheduler extender, and state that survives a crash."""

    cluster: tuple[str, ...] = option("files to start a new journal with; else not read", default=(), metavar="FILE")
    journal: Path = option("what was asked and answered", default=Path("nvlenv-journal.sqlite"), metavar="FILE")
    host: str = option("any but a loopback address needs a token", default="127.0.0.1", metavar="ADDRESS")
    port: int = option("0: any that is free", default=PORT, least=0, most=65535)  # a resolver takes more modulo 2**16
    token_file: Path | None = option("with the bearer token that requests must carry", default=None, metavar="FILE")
    plan_seconds: float = option(
        "a gang plan waits so long for its pods", default=PLAN_SECONDS, above=0, most=LARGEST, metavar="S"
    )


def serve_command(argv: Sequence[str]) -> int:
    """Serve until told to stop. Raises `InputError` for bad input."""
    options = parse(ServeOptions, argv, "python -m nvlenv.engine serve")
    token = _token(options.token_file)
    if not token and not is_loopback(options.host):
        raise InputError("--host", "", options.host, "a loopback address, or --token-file beside it")
    try:
        from nvlenv.engine.service.server import open_engine, run_server
    except ModuleNotFoundError as error:
        found = f"no module {error.name}"
        raise InputError("serve", "", found, "the extra serve: pip install 'nvlenv[serve]'") from None
    load = options.load_cluster if options.cluster else None
    engine = open_engine(options.journal, options.policy, load, options.plan_seconds)
    run_server(engine, options.host, options.port, token)
    return DONE


def is_loopback(host: str) -> bool:
    """Whether a server bound to this address can be reached from its own machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


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
