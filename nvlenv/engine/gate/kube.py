"""The API server through the official client: objects as plain mappings, kept up to date by watches."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from kubernetes.watch.watch import iter_resp_lines
from urllib3.exceptions import HTTPError

from nvlenv.common.errors import InputError

WATCH_SECONDS = 300  # the server ends a watch after this time, and it is begun anew
CONNECT_SECONDS = 10
RETRY_SECONDS = 2.0
GONE = 410  # the version from which to watch is too old
MERGE_PATCH = "application/merge-patch+json"

log = logging.getLogger("nvlenv.gate")
Object = dict[str, Any]


def connect(kubeconfig: str = "", context: str = "") -> client.CoreV1Api:
    """The core API: by the service account inside a pod, else by kubeconfig. `InputError` if there is neither."""
    try:
        if not kubeconfig and not context:
            try:
                config.load_incluster_config()
                return client.CoreV1Api()
            except ConfigException:
                pass
        config.load_kube_config(kubeconfig or None, context or None)
    except (ConfigException, OSError) as error:
        found = str(error).splitlines()[0]
        raise InputError(kubeconfig or "kubeconfig", "", found, "a service account, or a kubeconfig file") from None
    return client.CoreV1Api()


class Mirror:
    """All objects of one kind, as the API server has them.

    `changed` is set whenever something may have changed. Objects are replaced and never altered. Of two versions of an
    object the one with the higher resource version stays, so that what we have written ourselves is not undone by an
    event from before.
    """

    def __init__(self, call: Callable[..., Any], changed: threading.Event) -> None:
        self._call, self._changed = call, changed
        self._objects: dict[tuple[str, str], Object] = {}
        self._lock = threading.Lock()
        self.listed = threading.Event()  # set once they have all been read

    def objects(self) -> list[Object]:
        """All of them, as they are now."""
        with self._lock:
            return list(self._objects.values())

    def put(self, item: Object) -> None:
        """Take in one version of an object."""
        with self._lock:
            old = self._objects.get(_key(item))
            if old is None or _version(item) >= _version(old):
                self._objects[_key(item)] = item
        self._changed.set()

    def drop(self, item: Object) -> None:
        """Forget an object that is gone."""
        with self._lock:
            self._objects.pop(_key(item), None)
        self._changed.set()

    def follow(self, stop: threading.Event) -> None:
        """List, then watch, again and again, until told to stop."""
        while not stop.is_set():
            try:
                self._watch(self._list(), stop)
            except (ApiException, HTTPError, OSError, ValueError) as error:
                if getattr(error, "status", None) != GONE:
                    log.warning("watching: %s; again in %g s", _told(error), RETRY_SECONDS)
                    stop.wait(RETRY_SECONDS)

    def _list(self) -> str:
        """Read all of them; returns the version from which to watch."""
        page = json.loads(self._call(_preload_content=False, _request_timeout=WATCH_SECONDS).data)
        with self._lock:
            old, self._objects = self._objects, {}
            for item in page["items"]:
                own = old.get(_key(item), item)
                self._objects[_key(item)] = own if _version(own) > _version(item) else item
        self.listed.set()
        self._changed.set()
        return str(page["metadata"].get("resourceVersion", ""))

    def _watch(self, version: str, stop: threading.Event) -> None:
        for event in self._events(version):
            item = event["object"]
            if event["type"] == "ERROR":
                raise ApiException(status=item.get("code"), reason=item.get("message"))
            if event["type"] == "DELETED":
                self.drop(item)
            elif event["type"] in ("ADDED", "MODIFIED"):
                self.put(item)
            if stop.is_set():
                return

    def _events(self, version: str) -> Iterator[Any]:
        response = self._call(
            watch=True,
            resource_version=version,
            timeout_seconds=WATCH_SECONDS,
            allow_watch_bookmarks=True,
            _preload_content=False,
            _request_timeout=(CONNECT_SECONDS, WATCH_SECONDS + CONNECT_SECONDS),
        )
        try:
            for line in iter_resp_lines(response):
                yield json.loads(line)
        finally:
            response.close()
            response.release_conn()


def patch_pod(api: client.CoreV1Api, pod: Object, patch: Object) -> Object:
    """The pod as it is after the patch. `ApiException` if the API server refuses it."""
    meta = pod["metadata"]
    response: Any = api.patch_namespaced_pod(
        meta["name"], meta["namespace"], patch, _content_type=MERGE_PATCH, _preload_content=False
    )
    changed: Object = json.loads(response.data)
    return changed


def evict_pod(api: client.CoreV1Api, namespace: str, name: str) -> None:
    """Ask for a pod's eviction; PodDisruptionBudgets have their say."""
    body = client.V1Eviction(metadata=client.V1ObjectMeta(name=name, namespace=namespace))
    api.create_namespaced_pod_eviction(name, namespace, body, _preload_content=False)


def _key(item: Object) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _version(item: Object) -> int:
    """Versions of one object are numbers that grow: so etcd makes them, and KEP-5504 promises it."""
    version = str(item["metadata"].get("resourceVersion", ""))
    return int(version) if version.isdigit() else 0


def _told(error: Exception) -> str:
    return f"{getattr(error, 'status', '')} {getattr(error, 'reason', '') or error}".strip()
