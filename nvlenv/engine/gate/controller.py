"""The loop: watch nodes and pods, decide when something has changed, and carry it out.

It looks at the whole state each time and not at single events, so a missed event, a crash or a conflict costs one pass.
Run one of it: two would not undo each other's patches, but could mean the same nodes for different gangs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kubernetes.client.exceptions import ApiException

from nvlenv.common.errors import InputError
from nvlenv.engine.gate.decide import GangDecision, Release, decide_gangs
from nvlenv.engine.gate.kube import Mirror, evict_pod, patch_pod
from nvlenv.engine.gate.marks import patch_of
from nvlenv.engine.model.snapshot import Options
from nvlenv.simulator.decision import Policy

if TYPE_CHECKING:
    from kubernetes import client

SETTLE_SECONDS = 0.2  # the pods of a gang come one by one; wait for the burst to end
PASS_SECONDS = 60.0  # a pass at least so often, since reservations move with time
CONFLICT, NOT_FOUND, TOO_MANY = 409, 404, 429  # changed meanwhile; gone; a disruption budget says not now

log = logging.getLogger("nvlenv.gate")


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
        try:
            decisions = decide_gangs(
                self.nodes.objects(), self.pods.objects(), self._policy, self._options, self._clock()
            )
        except InputError as error:
            decisions = [GangDecision("cluster", str(error))]
        self._report(decisions)
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
        meta = release.pod["metadata"]
        try:
            self.pods.put(patch_pod(self._api, release.pod, patch_of(release.pod, release.host, release.plan)))
        except ApiException as error:
            level = logging.INFO if error.status in (CONFLICT, NOT_FOUND) else logging.ERROR
            log.log(level, "pod %s/%s stays gated: %s %s", meta["namespace"], meta["name"], error.status, error.reason)
            return False
        return True

    def _evict(self, namespace: str, name: str) -> None:
        try:
            evict_pod(self._api, namespace, name)
            log.info("pod %s/%s evicted", namespace, name)
        except ApiException as error:
            level = logging.INFO if error.status in (NOT_FOUND, TOO_MANY) else logging.ERROR
            log.log(level, "pod %s/%s not evicted: %s %s", namespace, name, error.status, error.reason)

    def _report(self, decisions: list[GangDecision]) -> None:
        """Say what is new."""
        said = {decision.gang: _line(decision) for decision in decisions}
        for gang, line in said.items():
            if self._said.get(gang) != line:
                log.info("%s%s: %s", "dry run, " if self._dry_run else "", gang, line)
        self._said = said


def _line(decision: GangDecision) -> str:
    hosts = sorted({release.host for release in decision.releases})
    where = f" [{', '.join(hosts[:4])}{', ...' if len(hosts) > 4 else ''}]" if hosts else ""
    out = f"; evicts {len(decision.victims)} pods" if decision.victims else ""
    return f"{decision.reason}{where}{out}"
