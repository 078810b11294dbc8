"""The HTTP API: what each path takes, and what it answers.

Jobs come in any format that `nvlenv.engine.formats.load.parse_job` reads: the project's own JSON, a Kubernetes Job,
JobSet or Workload as JSON or YAML, an sbatch script. A refusal is an answer too: 409, with the reason and every rack's
own.
"""

from __future__ import annotations

import hmac
import json
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nvlenv.common.errors import InputError
from nvlenv.engine.formats import document
from nvlenv.engine.formats.options import LARGEST
from nvlenv.engine.model.answers import Answer, NodeLoss, Placed, Refused, Slots
from nvlenv.engine.service.extender import VERBS
from nvlenv.engine.service.metrics import Measured, Metrics
from nvlenv.engine.service.shared import SharedEngine, UnavailableError
from nvlenv.simulator.state import SLOT_SIZES

OPEN_PATHS = frozenset({"/healthz"})  # a kubelet probe has no token
BODY_LIMIT = 2**20  # bytes
EXTENDER = "/scheduler"
EXTENDER_LIMIT = 32 * BODY_LIMIT  # the names of a million nodes, or some thousand nodes in full
MAX_SLICES = 100  # sizes that one request may ask for
EXAMPLE = {"name": "hero", "gpus": 64, "slice_pods": 16, "mode": "required", "priority": 4, "estimate_hours": 24}
ANY_JOB = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"type": "object"}, "example": EXAMPLE},
            "application/yaml": {"schema": {"type": "string"}, "example": "a Kubernetes Job, JobSet or Workload"},
            "text/plain": {"schema": {"type": "string"}, "example": "sbatch --nodes=16 --gpus-per-node=4 train.sh"},
        },
    }
}
EXTENDER_ARGS = {"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}}


class Problem(BaseModel):
    """What is wrong with a request: the body of every 4xx answer."""

    where: str
    field: str
    found: str
    expected: str


class JobId(BaseModel):
    """Which job: "namespace/name", as `place` and `enqueue` answer it."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"job": "default/hero"}})
    job: str = Field(max_length=1024)


class NodeName(BaseModel):
    """Which node, by the name that the cluster's files give it."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"node": "rack-000-node-00"}})
    node: str = Field(max_length=1024)


class Done(BaseModel):
    """The operation is on disk."""

    done: bool = True


async def _body(request: Request) -> str:
    return document.read_text("request", await request.body())


Text = Annotated[str, Depends(_body)]
PROBLEMS: dict[int | str, dict[str, Any]] = {
    404: {"model": Problem, "description": "no such job or node"},
    413: {"model": Problem, "description": "too large"},
    422: {"model": Problem, "description": "malformed, or a job that this cluster can never have"},
    503: {"model": Problem, "description": "the journal cannot be written"},
}
DECISION: dict[int | str, dict[str, Any]] = {409: {"model": Refused, "description": "refused"}}


def create_app(engine: SharedEngine, token: str = "") -> FastAPI:
    """The service in front of an engine; with a token, every request but /healthz has to carry it."""
    metrics = Metrics(engine)
    app = FastAPI(title="nvlenv placement engine", description=__doc__, responses=PROBLEMS)
    app.add_middleware(BodyLimit)
    app.add_middleware(Guard, token=token)
    app.add_middleware(Measured, metrics=metrics)
    _add_errors(app)
    _add_jobs(app, engine, metrics)
    _add_nodes(app, engine)
    _add_views(app, engine, metrics)
    _add_extender(app, engine)
    return app


def _add_jobs(app: FastAPI, engine: SharedEngine, metrics: Metrics) -> None:
    @app.post("/v1/place", response_model=Placed, responses=DECISION, openapi_extra=ANY_JOB, tags=["jobs"])
    def place(job: Text, dry_run: bool = False) -> Response:
        """Place the whole job, or nothing of it. A job that already runs gets its placement again."""
        answer = engine.dry_run(job) if dry_run else engine.do("place", job)
        if not dry_run:
            metrics.decided(answer)
        return _answered(answer)

    @app.post("/v1/explain", response_model=Placed, responses=DECISION, openapi_extra=ANY_JOB, tags=["jobs"])
    def explain(job: Text) -> Response:
        """What `place` would answer, with every candidate rack; changes nothing."""
        return _answered(engine.explain(job))

    @app.post("/v1/enqueue", response_model=JobId, openapi_extra=ANY_JOB, tags=["jobs"])
    def enqueue(job: Text) -> Response:
        """The job waits: reservations are made for it, and it keeps its turn until `place` or `finish`."""
        return JSONResponse({"job": engine.do("enqueue", job)})

    @app.post("/v1/finish", response_model=Done, tags=["jobs"])
    def finish(job: JobId) -> Response:
        """The job has ended, or is withdrawn while it waits."""
        return _changed(engine, "finish", job.job)


def _add_nodes(app: FastAPI, engine: SharedEngine) -> None:
    @app.post("/v1/cordon", response_model=Done, tags=["nodes"])
    def cordon(node: NodeName) -> Response:
        """Running pods stay, no new ones come."""
        return _changed(engine, "cordon", node.node)

    @app.post("/v1/uncordon", response_model=Done, tags=["nodes"])
    def uncordon(node: NodeName) -> Response:
        return _changed(engine, "uncordon", node.node)

    @app.post("/v1/fail", response_model=NodeLoss, tags=["nodes"])
    def fail(node: NodeName) -> Response:
        """The node is gone: each of its jobs goes on with a spare of the same rack, or else is evicted."""
        return _changed(engine, "fail", node.node)

    @app.post("/v1/repair", response_model=Done, tags=["nodes"])
    def repair(node: NodeName) -> Response:
        """A failed node is back."""
        return _changed(engine, "repair", node.node)


def _add_views(app: FastAPI, engine: SharedEngine, metrics: Metrics) -> None:
    @app.get("/v1/cluster", tags=["views"])
    def cluster() -> Response:
        """The cluster as it is now, in the JSON that `--cluster` reads."""
        return JSONResponse(engine.snapshot().as_json())

    @app.get("/v1/slots", response_model=Slots, tags=["views"])
    def slots(sizes: Annotated[list[int] | None, Query(max_length=MAX_SLICES)] = None) -> Response:
        """Free slots by slice size in nodes, as the policy sees them."""
        for size in sizes or ():
            if not 1 <= size <= LARGEST:
                raise InputError("request", "sizes", size, "nodes of a slice, at least 1")
        return _answered(engine.slots(sizes or SLOT_SIZES))

    @app.get("/healthz", tags=["service"])
    def healthz() -> Response:
        if engine.problem:
            raise UnavailableError(engine.problem)
        return JSONResponse({"ok": True})

    @app.get("/metrics", tags=["service"])
    def page() -> Response:
        return Response(metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_extender(app: FastAPI, engine: SharedEngine) -> None:
    @app.post(EXTENDER + "/{verb}", openapi_extra=EXTENDER_ARGS, tags=["kube-scheduler"])
    def extender(verb: str, body: Text) -> Response:
        """kube-scheduler's extender protocol v1: filter, prioritize and preempt."""
        if verb not in VERBS:
            raise HTTPException(404)
        try:
            args = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise InputError("request", "body", f"broken JSON ({error})", "JSON") from None
        return JSONResponse(VERBS[verb](engine, document.Field("request", args)))


def _changed(engine: SharedEngine, name: str, argument: str) -> Response:
    try:
        answer = engine.do(name, argument)
    except InputError as error:  # the only thing that can be wrong is the name
        return problem(404, error.field, str(error.found), error.expected)
    return _answered(answer) if isinstance(answer, Answer) else JSONResponse({"done": True})


def _answered(answer: Answer) -> Response:
    return JSONResponse(answer.to_dict(), 409 if isinstance(answer, Refused) else 200)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(InputError)
    def malformed(request: Request, error: InputError) -> Response:
        return problem(422, error.field, str(error.found), error.expected)

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        return problem(422, field, document.quoted(first["input"]), str(first["msg"]))

    @app.exception_handler(UnavailableError)
    def unavailable(request: Request, error: UnavailableError) -> Response:
        return problem(503, "", str(error), "a journal that can be written")

    @app.exception_handler(HTTPException)
    def unknown(request: Request, error: HTTPException) -> Response:
        if error.status_code == 400:  # bytes that are no text in any encoding that JSON may have
            return problem(400, "body", str(error.detail), "JSON")
        return problem(error.status_code, "path", f"{request.method} {request.url.path}", "what /docs lists")


def problem(status: int, field: str, found: str, expected: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """An answer that says what is wrong."""
    return JSONResponse({"where": "request", "field": field, "found": found, "expected": expected}, status, headers)


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
    """Refuses with 413 a body of more bytes than allowed, announced or not, without reading the rest."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = EXTENDER_LIMIT if scope["path"].startswith(EXTENDER) else BODY_LIMIT
        announced = _header(scope, b"content-length")
        large = f"{int(announced)} bytes" if announced.isdigit() and int(announced) > limit else ""
        body, more = bytearray(), True
        while more and not large:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            large = f"more than {limit} bytes" if len(body) > limit else ""
        if large:
            await refusal(413, "body", large, f"at most {limit} bytes")(scope, receive, send)
            return
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replayed() -> Message:
            """The body once, then whatever the server says: the client's leaving."""
            return whole.pop() if whole else await receive()

        await self.app(scope, replayed, send)


def _header(scope: Scope, name: bytes) -> bytes:
    return next((value for key, value in scope["headers"] if key == name), b"")
