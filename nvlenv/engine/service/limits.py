"""Who may ask, and how much at once: layers of ASGI around the application, and what refusals look like."""

from __future__ import annotations

import hmac

from pydantic import BaseModel
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN_PATHS = frozenset({"/healthz"})  # a kubelet probe has no token
MEBIBYTE = 2**20


class Problem(BaseModel):
    """What is wrong with a request: the body of every 4xx answer."""

    where: str
    field: str
    found: str
    expected: str


def problem(status: int, field: str, found: str, expected: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """An answer that says what is wrong."""
    body = Problem(where="request", field=field, found=found, expected=expected)
    return JSONResponse(body.model_dump(), status, headers)


def refusal(status: int, field: str, found: str, expected: str) -> JSONResponse:
    """An answer after which the connection closes, as a body may be left unread."""
    headers = {"connection": "close"} | ({"www-authenticate": "Bearer"} if status == 401 else {})
    return problem(status, field, found, expected, headers)


class Guard:
    """Refuses what may not ask.

    403: what a page of another site has a browser ask, as a loopback address does not keep that out. 401: what does not
    carry the token, if there is one; compared in constant time.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.expected = app, f"Bearer {token}".encode() if token else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refusal(scope) if scope["type"] == "http" else None
        await (refused or self.app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        origin, given = _header(scope, b"origin"), _header(scope, b"authorization")
        if origin and origin.rpartition(b"//")[2] != _header(scope, b"host"):
            return refusal(403, "Origin", ascii(origin.decode("latin-1")), "a page of this service, or no page")
        is_open = not self.expected or scope["path"] in OPEN_PATHS
        if is_open or hmac.compare_digest(given, self.expected):
            return None
        found = "another token" if given else "no token"
        return refusal(401, "Authorization", found, "Bearer and the token of this service")


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
            answer = refusal(413, "body", f"{int(announced)} bytes", f"at most {limit} bytes")
            await answer(scope, receive, send)
            return
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if len(body) > limit:
                answer = refusal(413, "body", f"more than {limit} bytes", f"at most {limit} bytes")
                await answer(scope, receive, send)
                return
            if not message.get("more_body", False):
                break
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replayed() -> Message:
            """The body once, then whatever the server says: the client's leaving."""
            return whole.pop() if whole else await receive()

        await self.app(scope, replayed, send)


def _header(scope: Scope, name: bytes) -> bytes:
    return next((value for key, value in scope["headers"] if key == name), b"")
