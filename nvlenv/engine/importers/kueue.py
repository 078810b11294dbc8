"""Kueue's objects: queues with their quota, flavors, and what admitted workloads were promised."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nvlenv.engine.formats import read_assignment
from nvlenv.engine.importers.document import Field
from nvlenv.engine.importers.pods import Demand, pod_demand
from nvlenv.engine.importers.quantities import read_whole
from nvlenv.engine.importers.times import read_time
from nvlenv.policies.kueue.types import HOSTNAME
from nvlenv.types import QueueSpec

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
LOCAL_QUEUE_LABEL = "kueue.x-k8s.io/local-queue-name"
CLUSTER_QUEUE_LABEL = "kueue.x-k8s.io/cluster-queue-name"
POD_SET_LABEL = "kueue.x-k8s.io/podset"
WORKLOAD_ANNOTATION = "kueue.x-k8s.io/workload"


@dataclass(frozen=True)
class Promise:
    """One pod set of an admitted workload: what each pod takes, and how many go to each host."""

    name: str
    demand: Demand
    hosts: Mapping[str, int]  # hostname label -> pods; empty: no assignment, or one that names no hosts


@dataclass(frozen=True)
class AdmittedWorkload:
    """A workload that holds quota: from admission until it has finished or is evicted."""

    name: str
    namespace: str
    uid: str
    owner: tuple[str, str, str]  # kind, name and uid of the job behind it; empty if it has none
    queue: str  # ClusterQueue
    priority: int
    start: float | None
    estimate: float | None
    promises: tuple[Promise, ...]


def read_queue(queue: Field, gpu_resource: str, flavors: frozenset[str] | None) -> QueueSpec:
    """A ClusterQueue's GPU quota, summed over its flavors (over those named, if any are)."""
    spec = queue["spec"]
    nominal, limit = 0, 0
    for resource in _gpu_quotas(spec, gpu_resource, flavors):
        nominal += read_whole(resource["nominalQuota"])
        borrowing = resource["borrowingLimit"]
        limit = limit + read_whole(borrowing) if borrowing.present and limit >= 0 else -1
    strategy = spec["queueingStrategy"].text("BestEffortFIFO")
    if strategy not in ("BestEffortFIFO", "StrictFIFO"):
        raise spec["queueingStrategy"].error("BestEffortFIFO or StrictFIFO")
    cohort = spec["cohortName"] if spec["cohortName"].present else spec["cohort"]  # v1beta2, v1beta1
    return QueueSpec(
        name=queue["metadata"]["name"].text(),
        nominal=nominal,
        cohort=cohort.text("", empty=True),
        borrowing_limit=limit,
        strict=strategy == "StrictFIFO",
    )


def _gpu_quotas(spec: Field, gpu_resource: str, flavors: frozenset[str] | None) -> Iterable[Field]:
    for group in spec["resourceGroups"]:
        for flavor in group["flavors"]:
            if flavors is not None and flavor["name"].text() not in flavors:
                continue
            yield from (entry for entry in flavor["resources"] if entry["name"].text() == gpu_resource)


def read_local_queues(queues: Iterable[Field]) -> dict[str, str]:
    """ "namespace/name" of each LocalQueue and its ClusterQueue."""
    return {
        f"{queue['metadata']['namespace'].text('default')}/{queue['metadata']['name'].text()}": queue["spec"][
            "clusterQueue"
        ].text()
        for queue in queues
    }


def topology_flavors(flavors: Sequence[Field], topology: Field) -> dict[str, dict[str, str]]:
    """Name and node labels of the ResourceFlavors that belong to a Topology."""
    name = topology["metadata"]["name"].text()
    return {
        flavor["metadata"]["name"].text(): flavor["spec"]["nodeLabels"].texts()
        for flavor in flavors
        if flavor["spec"]["topologyName"].value == name
    }


def read_workloads(workloads: Iterable[Field], gpu_resource: str) -> list[AdmittedWorkload]:
    """The workloads that hold quota now."""
    return [
        _read_workload(workload, gpu_resource)
        for workload in workloads
        if workload["status"]["admission"].present and _condition(workload, "Finished") is None
    ]


def _read_workload(workload: Field, gpu_resource: str) -> AdmittedWorkload:
    meta, spec, admission = workload["metadata"], workload["spec"], workload["status"]["admission"]
    demands = {
        pods["name"].text("main"): pod_demand(pods["template"]["spec"], gpu_resource) for pods in spec["podSets"]
    }
    promises = []
    for given in admission["podSetAssignments"]:
        name = given["name"].text("main")
        if name not in demands:
            raise given["name"].error(f"the name of one of the pod sets {sorted(demands)}")
        promises.append(Promise(name, demands[name], _hosts(given["topologyAssignment"])))
    admitted = _condition(workload, "Admitted")
    limit = spec["maximumExecutionTimeSeconds"]
    return AdmittedWorkload(
        name=meta["name"].text(),
        namespace=meta["namespace"].text("default"),
        uid=meta["uid"].text(""),
        owner=_owner(meta),
        queue=admission["clusterQueue"].text(),
        priority=spec["priority"].integer(0),
        start=None if admitted is None else read_time(admitted["lastTransitionTime"]),
        estimate=limit.integer(at_least=1) / 3600 if limit.present else None,
        promises=tuple(promises),
    )


def _hosts(assignment: Field) -> dict[str, int]:
    if not assignment.present:
        return {}
    found = read_assignment(assignment)
    if found.levels[-1] != HOSTNAME:
        return {}
    hosts: dict[str, int] = {}
    for values, count in found.domains:
        hosts[values[-1]] = hosts.get(values[-1], 0) + count
    return hosts


def _owner(meta: Field) -> tuple[str, str, str]:
    for owner in meta["ownerReferences"]:
        if owner["controller"].flag(False):
            return owner["kind"].text(), owner["name"].text(), owner["uid"].text("")
    return "", "", ""


def _condition(workload: Field, kind: str) -> Field | None:
    """A condition that is met."""
    met = (c for c in workload["status"]["conditions"] if c["type"].value == kind and c["status"].value == "True")
    return next(met, None)
