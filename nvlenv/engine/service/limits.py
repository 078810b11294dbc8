"""Who may ask, and how much at once: layers of ASGI around the application."""

from __future__ import annotations

import hmac
import ipaddress
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN_PATHS = frozenset({"/healthz"})  # a kubelet probe has no token
MEBIBYTE = 2**20


def is_loopback(host: str) -> bool:
    """Whether a server bound to this address can be reached from its own machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class BodyLimit:
    """Refuses with 413 a body of more bytes than allowed, announced or not, without reading the rest.

    limit : bytes; of paths under `prefix`, where full node objects may come in, `prefix_limit`.
    """

    def __init__(self, app: ASGIApp, limit: int, prefix: str, prefix_limit: int) -> None:
        self.app, self.limit, self.prefix, self.prefix_limit = app, limit, prefix, prefix_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = self.prefix_limit if scope["path"].startswith(self.prefix) else self.limit
        announced = _header(scope, b"content-length")
        if announced.isdigit() and int(announced) > limit:
            await refuse(send, 413, "body", f"{int(announced)} bytes", f"at most {limit} bytes")
            return
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if len(body) > limit:
                await refuse(send, 413, "body", f"more than {limit} bytes", f"at most {limit} bytes")
                return
            if not message.get("more_body", False):
                break
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]
        await self.app(scope, lambda: _next(whole, receive), send)


async def _next(whole: list[Message], receive: Receive) -> Message:
    """The body once, then whatever the server says: the client's leaving."""
    return whole.pop() if whole else await receive()


class BearerToken:
    """Refuses with 401 what does not carry the token; compared in constant time."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            given = _header(scope, b"authorization")
            if not hmac.compare_digest(given, self.expected):
                found = "another token" if given else "no token"
                await refuse(send, 401, "Authorization", found, "Bearer and the token of this service")
                return
        await self.app(scope, receive, send)


class SameOrigin:
    """Refuses with 403 what a page of another site has a browser ask: a loopback address does not keep that out."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = _header(scope, b"origin") if scope["type"] == "http" else b""
        if origin and origin.rpartition(b"//")[2] != _header(scope, b"host"):
            await refuse(send, 403, "Origin", ascii(origin.decode("latin-1")), "a page of this service, or no page")
            return
        await self.app(scope, receive, send)


def problem(where: str, field: str, found: str, expected: str) -> dict[str, Any]:
    """The body of every 4xx answer."""
    return {"where": where, "field": field, "found": found, "expected": expected}


async def refuse(send: Send, status: int, field: str, found: str, expected: str) -> None:
    """A whole 4xx answer; the connection closes, as a body may be left unread."""
    body = json.dumps(problem("request", field, found, expected)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, (b"connection", b"close")]})
    await send({"type": "http.response.body", "body": body})


def _header(scope: Scope, name: bytes) -> bytes:
    return next((value for key, value in scope["headers"] if key == name), b"")
