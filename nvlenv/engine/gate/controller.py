"""The loop: watch nodes and pods, decide when something has changed, and carry it out.

It looks at the whole state each time and not at single events, so a missed event, a crash or a conflict costs one pass.
Run one of it: two would not undo each other's patches, but could mean the same nodes for different gangs.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from kubernetes.watch.watch import iter_resp_lines
from urllib3.exceptions import HTTPError

from nvlenv.common.errors import InputError
from nvlenv.engine.formats.options import Options
from nvlenv.engine.gate.decide import GangDecision, Object, Release, decide_gangs, patch_of
from nvlenv.simulator.decision import Policy

SETTLE_SECONDS = 0.2  # the pods of a gang come one by one; wait for the burst to end
PASS_SECONDS = 60.0  # a pass at least so often, since reservations move with time
WATCH_SECONDS = 300  # the server ends a watch after this time, and it is begun anew
CONNECT_SECONDS = 10
RETRY_SECONDS = 2.0
CONFLICT, NOT_FOUND, TOO_MANY = 409, 404, 429  # changed meanwhile; gone; a disruption budget says not now
GONE = 410  # the version from which to watch is too old
MERGE_PATCH = "application/merge-patch+json"

log = logging.getLogger("nvlenv.gate")


def connect(kubeconfig: str = "", context: str = "") -> client.CoreV1Api:
    """The core API: by the service account inside a pod, else by kubeconfig. `InputError` if there is neither."""
    try:
        if not kubeconfig and not context:
            with suppress(ConfigException):
                config.load_incluster_config()
                return client.CoreV1Api()
        config.load_kube_config(kubeconfig or None, context or None)
    except (ConfigException, OSError) as error:
        found = str(error).splitlines()[0]
        raise InputError(kubeconfig or "kubeconfig", "", found, "a service account, or a kubeconfig file") from None
    return client.CoreV1Api()


class Controller:
    """Decides gated gangs and lets their pods go.

    Parameters
    ----------
    api : of the cluster.
    policy : as for `PlacementEngine`.
    options : labels and GPU resource, as for the importer of clusters.
    dry_run : only say what would be done.
    clock : seconds since 1970.
    """

    def __init__(
        self,
        api: client.CoreV1Api,
        policy: Policy | str | Path,
        options: Options,
        dry_run: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._api, self._policy, self._options = api, policy, options
        self._dry_run, self._clock = dry_run, clock
        self._changed = threading.Event()
        self.nodes = Mirror(api.list_node, self._changed)
        self.pods = Mirror(api.list_pod_for_all_namespaces, self._changed)
        self._said: dict[str, str] = {}  # what was last said of each gang that waits

    def run(self, stop: threading.Event) -> None:
        """Until told to stop."""
        mirrors = (self.nodes, self.pods)
        for mirror in mirrors:
            threading.Thread(target=mirror.follow, args=(stop,), daemon=True).start()
        pause = SETTLE_SECONDS
        while not stop.is_set():
            self._changed.wait(PASS_SECONDS)
            stop.wait(pause)
            self._changed.clear()
            if all(mirror.listed.is_set() for mirror in mirrors) and not stop.is_set():
                began = time.monotonic()
                self.once()
                pause = max(SETTLE_SECONDS, time.monotonic() - began)  # seconds on a large cluster: rest as long

    def wake(self) -> None:
        """Have `run` look up, for instance to see that it shall stop."""
        self._changed.set()

    def once(self) -> list[GangDecision]:
        """One pass over what the mirrors hold."""
        nodes, pods = self.nodes.objects(), self.pods.objects()
        try:
            decisions = decide_gangs(nodes, pods, self._policy, self._options, self._clock())
        except InputError as error:
            decisions = [GangDecision("cluster", str(error))]
        said = {decision.gang: _line(decision) for decision in decisions}
        for gang, line in said.items():
            if self._said.get(gang) != line:
                log.info("%s%s: %s", "dry run, " if self._dry_run else "", gang, line)
        self._said = said
        if not self._dry_run:
            for decision in decisions:
                self._carry_out(decision)
        return decisions

    def _carry_out(self, decision: GangDecision) -> None:
        """Pods first: if we stop in between, kube-scheduler preempts for them by priority."""
        gone = [self._release(release) for release in decision.releases]
        if any(gone):
            for namespace, name in decision.victims:
                self._evict(namespace, name)

    def _release(self, release: Release) -> bool:
        meta, patch = release.pod["metadata"], patch_of(release.pod, release.host, release.plan)
        how: dict[str, Any] = {"_content_type": MERGE_PATCH, "_preload_content": False}
        try:
            answer: Any = self._api.patch_namespaced_pod(meta["name"], meta["namespace"], patch, **how)
            self.pods.put(json.loads(answer.data))
        except ApiException as error:
            level = logging.INFO if error.status in (CONFLICT, NOT_FOUND) else logging.ERROR
            log.log(level, "pod %s/%s stays gated: %s %s", meta["namespace"], meta["name"], error.status, error.reason)
            return False
        return True

    def _evict(self, namespace: str, name: str) -> None:
        """Ask for it: PodDisruptionBudgets have their say."""
        body = client.V1Eviction(metadata=client.V1ObjectMeta(name=name, namespace=namespace))
        try:
            self._api.create_namespaced_pod_eviction(name, namespace, body, _preload_content=False)
            log.info("pod %s/%s evicted", namespace, name)
        except ApiException as error:
            level = logging.INFO if error.status in (NOT_FOUND, TOO_MANY) else logging.ERROR
            log.log(level, "pod %s/%s not evicted: %s %s", namespace, name, error.status, error.reason)


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
        response = self._call(
            watch=True,
            resource_version=version,
            timeout_seconds=WATCH_SECONDS,
            allow_watch_bookmarks=True,
            _preload_content=False,
            _request_timeout=(CONNECT_SECONDS, WATCH_SECONDS + CONNECT_SECONDS),
        )
        try:
            for event in map(json.loads, iter_resp_lines(response)):
                item = event["object"]
                if event["type"] == "ERROR":
                    raise ApiException(status=item.get("code"), reason=item.get("message"))
                if event["type"] == "DELETED":
                    self.drop(item)
                elif event["type"] in ("ADDED", "MODIFIED"):
                    self.put(item)
                if stop.is_set():
                    return
        finally:
            response.close()
            response.release_conn()


def _line(decision: GangDecision) -> str:
    hosts = sorted({release.host for release in decision.releases})
    where = f" [{', '.join(hosts[:4])}{', ...' if len(hosts) > 4 else ''}]" if hosts else ""
    out = f"; evicts {len(decision.victims)} pods" if decision.victims else ""
    return f"{decision.reason}{where}{out}"


def _key(item: Object) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _version(item: Object) -> int:
    """Versions of one object are numbers that grow: so etcd makes them, and KEP-5504 promises it."""
    version = str(item["metadata"].get("resourceVersion", ""))
    return int(version) if version.isdigit() else 0


def _told(error: Exception) -> str:
    return f"{getattr(error, 'status', '')} {getattr(error, 'reason', '') or error}".strip()
