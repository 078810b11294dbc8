"""A small Kubernetes API server: nodes and pods over HTTP, for the official client.

It is a fake, made for these tests, that keeps the rules which the gate lives by, as the real server has them:
lists and watches share one resource version, so a watch goes on where its list ended, or is answered 410; a patch with
an old resource version is answered 409; of a pod that exists, a node selector may only grow and only while it is gated,
gates may only be removed, and nothing else in its spec may change; every stored pod is valid by the published schema.
An eviction lets the pod terminate, or is answered 429 where a disruption budget says so.
"""

from __future__ import annotations

import copy
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate

Object = dict[str, Any]
SCHEMA = "1.33"
COLLECTIONS = {"/api/v1/nodes": "Node", "/api/v1/pods": "Pod"}


class RefusedError(Exception):
    """A Status that is not success."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.status = code, {"kind": "Status", "status": "Failure", "code": code, "reason": reason}
        self.status["message"] = message


class ApiServer:
    """The objects, and the events of their changes. Use `running`."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}  # (kind, namespace, name)
        self.events: list[tuple[int, str, str, Object]] = []  # version, kind, type, object
        self.oldest = 0  # version from which a watch can still begin
        self.protected: set[str] = set()  # names of pods that a disruption budget keeps
        self.patches: list[Object] = []
        self.changed = threading.Condition()
        self.closing = False
        self.url = ""

    @property
    def version(self) -> int:
        return self.events[-1][0] if self.events else 0

    def pods(self) -> dict[str, Object]:
        with self.changed:
            return {name: copy.deepcopy(item) for (kind, _, name), item in self.objects.items() if kind == "Pod"}

    def put(self, kind: str, item: Object, event: str = "") -> Object:
        """Create an object, or replace it."""
        if kind == "Pod":
            kubernetes_validate.validate({"apiVersion": "v1", "kind": kind, **item}, SCHEMA, strict=True)
        with self.changed:
            key = kind, item["metadata"].get("namespace", ""), item["metadata"]["name"]
            item = copy.deepcopy(item)
            item["metadata"]["resourceVersion"] = str(self.version + 1)
            event = event or ("MODIFIED" if key in self.objects else "ADDED")
            self.objects[key] = item
            self.events.append((self.version + 1, kind, event, item))
            self.changed.notify_all()
            return item

    def delete(self, kind: str, namespace: str, name: str) -> None:
        with self.changed:
            self.put(kind, self.objects[kind, namespace, name], "DELETED")
            del self.objects[kind, namespace, name]

    def forget_events(self) -> None:
        """As etcd does when it compacts: watches from before have to list again."""
        with self.changed:
            self.oldest = self.version + 1

    def list(self, kind: str) -> Object:
        with self.changed:
            items = [item for (other, _, _), item in self.objects.items() if other == kind]
            return {"kind": f"{kind}List", "metadata": {"resourceVersion": str(self.version)}, "items": items}

    def watch(self, kind: str, after: int) -> Iterator[Object]:
        while True:
            with self.changed:
                if after + 1 < self.oldest:
                    yield {"type": "ERROR", "object": RefusedError(410, "Expired", "too old resource version").status}
                    return
                fresh = [event for event in self.events if event[0] > after]
                if not fresh and not self.closing:
                    self.changed.wait(0.2)
                if self.closing:
                    return
            for version, other, type_, item in fresh:
                after = version
                if other == kind:
                    yield {"type": type_, "object": item}

    def patch(self, namespace: str, name: str, patch: Object) -> Object:
        with self.changed:
            old = self.find(namespace, name)
            wanted = patch.get("metadata", {}).get("resourceVersion")
            if wanted is not None and wanted != old["metadata"]["resourceVersion"]:
                raise RefusedError(409, "Conflict", "the object has been modified")
            new = merged(old, patch)
            check_update(old, new)
            self.patches.append(patch)
            return self.put("Pod", new)

    def evict(self, namespace: str, name: str) -> Object:
        with self.changed:
            pod = self.find(namespace, name)
            if name in self.protected:
                raise RefusedError(429, "TooManyRequests", "Cannot evict pod as it would violate its disruption budget")
            self.put("Pod", merged(pod, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}))
            return {"kind": "Status", "status": "Success"}

    def find(self, namespace: str, name: str) -> Object:
        try:
            return self.objects["Pod", namespace, name]
        except KeyError:
            raise RefusedError(404, "NotFound", f'pods "{name}" not found') from None


def merged(old: Any, patch: Any) -> Any:
    """JSON merge patch, RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    new = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = merged(new.get(key), value)
    return new


def check_update(old: Object, new: Object) -> None:
    """The rules of ValidatePodUpdate that concern gated pods."""
    gates = [gate["name"] for gate in old["spec"].get("schedulingGates", ())]
    for gate in new["spec"].get("schedulingGates", ()):
        if gate["name"] not in gates:
            raise RefusedError(422, "Invalid", f"only deletion is allowed, but found new gate {gate['name']}")
    before, after = old["spec"].get("nodeSelector", {}), new["spec"].get("nodeSelector", {})
    if before != after and not (gates and before.items() <= after.items()):
        raise RefusedError(422, "Invalid", "only additions to spec.nodeSelector of gated pods are allowed")
    if fixed(old) != fixed(new):
        raise RefusedError(422, "Invalid", "pod updates may not change fields other than those")


def fixed(pod: Object) -> Object:
    return {key: value for key, value in pod["spec"].items() if key not in ("nodeSelector", "schedulingGates")}


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        api = self.server.api
        if url.path not in COLLECTIONS:
            self.answer(404, RefusedError(404, "NotFound", url.path).status)
        elif query.get("watch", "").lower() != "true":
            self.answer(200, api.list(COLLECTIONS[url.path]))
        else:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for event in api.watch(COLLECTIONS[url.path], int(query["resourceVersion"])):
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.write(b"0\r\n\r\n")

    def do_PATCH(self) -> None:
        _, _, _, _, namespace, _, name = self.path.split("/")
        if self.headers["Content-Type"] != "application/merge-patch+json":
            self.answer(415, RefusedError(415, "UnsupportedMediaType", self.headers["Content-Type"]).status)
        else:
            self.change(lambda body: self.server.api.patch(namespace, name, body))

    def do_POST(self) -> None:
        _, _, _, _, namespace, _, name, _ = self.path.split("/")
        self.change(lambda body: self.server.api.evict(namespace, name))

    def change(self, apply: Any) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            self.answer(200, apply(body))
        except RefusedError as error:
            self.answer(error.code, error.status)

    def answer(self, code: int, body: Object) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, api: ApiServer) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.api = api

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client that ends in the midst of a watch
            super().handle_error(request, client_address)


@contextmanager
def running() -> Iterator[ApiServer]:
    """A server on a free port."""
    api = ApiServer()
    server = Server(api)
    api.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield api
    finally:
        api.closing = True
        server.shutdown()
        thread.join()
        server.server_close()
