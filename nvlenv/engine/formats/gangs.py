"""Gangs: which Kubernetes pods belong together, and the job that they make.

Pods belong together by the labels that Kueue, JobSet, Kubeflow, batch Jobs and others set on them; a pod without any
belongs to its controller, or stands alone. `gangs_of` groups the pods that run, `promised` adds the ones that Kueue has
assigned but that do not exist yet. Pods that still wait come one by one: `read_member` tells the gang of one, and
`gang_job` makes a job of those that are there. How many there will be no label of a batch Job says, so the pod template
carries an annotation: `nvlenv/gang-size`, or `kueue.x-k8s.io/pod-group-total-count` where Kueue's pod groups are used.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nvlenv.engine.formats.document import Field, Objects
from nvlenv.engine.formats.kueue import GROUP_NAME, GROUP_SIZE, QUEUE_LABEL, read_assignment
from nvlenv.engine.formats.values import PodDemand, pod_demand, read_time
from nvlenv.engine.model.jobs import Job, Pod
from nvlenv.policies.kueue.types import HOSTNAME

LOCAL_QUEUE_LABEL = "kueue.x-k8s.io/local-queue-name"
CLUSTER_QUEUE_LABEL = "kueue.x-k8s.io/cluster-queue-name"
POD_SET_LABEL = "kueue.x-k8s.io/podset"
WORKLOAD_ANNOTATION = "kueue.x-k8s.io/workload"
# Labels that name a gang, the outermost first: the pods of a JobSet carry the name of their Job too.
GANG_LABELS = {
    GROUP_NAME: "podgroup",
    "jobset.sigs.k8s.io/jobset-name": "jobset",
    "leaderworkerset.sigs.k8s.io/group-key": "leaderworkerset",
    "training.kubeflow.org/job-name": "trainingjob",
    "volcano.sh/job-name": "volcanojob",
    "ray.io/cluster": "raycluster",
    "scheduling.x-k8s.io/pod-group": "podgroup",
    "batch.kubernetes.io/job-name": "job",
    "job-name": "job",
}
SERVING = frozenset({"replicaset", "statefulset", "deployment"})  # their pods can be restarted one by one
KEEP = "cluster-autoscaler.kubernetes.io/safe-to-evict"  # "false": nobody may move this pod
REQUIRED = "kueue.x-k8s.io/podset-required-topology"
ENDED = ("Succeeded", "Failed")

GANG_SIZE = "nvlenv/gang-size"  # annotation of a pod
MAX_SIZE = 2**20  # pods
# Where a pod's place in its gang is written, the outermost first: a JobSet's pod has the index of its Job, and its own.
RANKS = (
    "jobset.sigs.k8s.io/job-global-index",
    "kueue.x-k8s.io/pod-group-pod-index",
    "leaderworkerset.sigs.k8s.io/worker-index",
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/job-completion-index",
)

Key = tuple[str, str, str]  # namespace, kind, name


@dataclass
class Gang:
    """A job in the making."""

    key: Key
    uid: str = ""
    owner: str = ""  # kind of the pods' controller
    queue: str = ""  # LocalQueue, or ClusterQueue if `admitted`
    admitted: bool = False
    priority: int = -(2**31)
    start: float | None = None
    estimate: float | None = None
    pinned: bool = False  # a pod of it says that nobody may evict it
    required: bool = False  # asks for a shape, so its pods cannot be moved one by one
    workloads: set[str] = field(default_factory=set)  # names, from the pods' annotations
    pods: list[Pod] = field(default_factory=list)
    pod_sets: list[str] = field(default_factory=list)  # of each pod; empty: not said

    def job(self, local_queues: Mapping[str, str], nodes: set[str]) -> Job:
        """The job, with its pods on these nodes."""
        namespace, kind, name = self.key
        queue = self.queue if self.admitted else local_queues.get(f"{namespace}/{self.queue}", self.queue)
        serves = self.owner in SERVING and kind in (*SERVING, "podgroup")
        return Job(
            id="/".join(self.key),
            pods=tuple(pod for pod in self.pods if pod.node in nodes),
            name=name,
            namespace=namespace,
            uid=self.uid,
            queue=queue,
            priority=self.priority,
            preemptible=bool(queue) and not serves and not self.pinned,
            movable=serves and not self.pinned and not self.required,
            verification=not queue and self.priority < 0,
            start=self.start,
            estimate=self.estimate,
        )


@dataclass(frozen=True)
class Member:
    """What one pod says of its gang."""

    gang: str  # namespace/kind/name, as the gang is called in a `ClusterSnapshot`
    size: int  # pods of the gang
    rank: tuple[int, ...]  # sorts the pods of a gang; empty: it has none
    name: str
    uid: str


def gangs_of(objects: Objects, gpu_resource: str) -> list[Gang]:
    """The gangs of all pods that hold something of a node: bound to it and not ended, terminating ones included.

    A pod's gang is the one that a label names, else the pod's controller, else the pod itself.
    """
    gangs: dict[Key, Gang] = {}
    owners = {_key(o, kind.lower()): o for kind in ("Job", "JobSet") for o in objects.get(kind, ())}
    for item in objects.get("Pod", ()):
        namespace, _, own = _key(item, "pod")
        pod = item.named(f"pod {namespace}/{own}")
        if pod["spec"]["nodeName"].value in (None, "") or pod["status"]["phase"].value in ENDED:
            continue
        meta = pod["metadata"]
        kind, name, uid = _controller(meta) or ("pod", own, meta["uid"].text(""))
        by_owner = ("pod", own) if kind in ("pod", "node") else (kind, name)  # the node "controls" static pods
        key = namespace, *(_named_gang(meta["labels"].texts()) or by_owner)
        gang = gangs.setdefault(key, Gang(key, owner=kind))
        _join(gang, pod, gpu_resource)
        if key[1] == kind:
            gang.uid = uid
        if key in owners:
            _describe(gang, owners[key])
    return list(gangs.values())


def _join(gang: Gang, pod: Field, gpu_resource: str) -> None:
    meta, spec = pod["metadata"], pod["spec"]
    labels, annotations = meta["labels"].texts(), meta["annotations"]
    name, uid, terminating = meta["name"].text(), meta["uid"].text(""), meta["deletionTimestamp"].present
    gang.pods.append(Pod(spec["nodeName"].text(), *pod_demand(spec, gpu_resource), name, uid, terminating))
    gang.pod_sets.append(labels.get(POD_SET_LABEL, ""))
    gang.priority = max(gang.priority, spec["priority"].integer(0))
    gang.pinned |= annotations[KEEP].value == "false"
    gang.required |= annotations[REQUIRED].present
    gang.workloads.update(filter(None, [annotations[WORKLOAD_ANNOTATION].text("", empty=True)]))
    if not gang.queue:
        gang.admitted = bool(labels.get(CLUSTER_QUEUE_LABEL))
        names = (labels.get(label) for label in (CLUSTER_QUEUE_LABEL, QUEUE_LABEL, LOCAL_QUEUE_LABEL))
        gang.queue = next(filter(None, names), "")
    started = read_time(pod["status"]["startTime"])
    gang.start = min((time for time in (gang.start, started) if time is not None), default=None)
    _limit(gang, spec["activeDeadlineSeconds"])


def _describe(gang: Gang, owner: Field) -> None:
    """What the Job or JobSet itself says: the queue label stands there, not on its pods."""
    gang.queue = gang.queue or owner["metadata"]["labels"].texts().get(QUEUE_LABEL, "")
    gang.uid = gang.uid or owner["metadata"]["uid"].text("")
    _limit(gang, owner["spec"]["activeDeadlineSeconds"])


def _limit(gang: Gang, seconds: Field) -> None:
    if gang.estimate is None:
        gang.estimate = _hours(seconds)


def promised(gangs: list[Gang], objects: Objects, hosts: Mapping[str, str], gpu_resource: str) -> list[Gang]:
    """The gangs, with what Kueue's workloads say of them and the pods that it has assigned but that do not exist yet.

    A workload holds its quota from its admission until it has finished, so those places are taken. `hosts` gives the
    node of each host name.
    """
    by_workload = {(gang.key[0], name): gang for gang in gangs for name in gang.workloads}
    by_uid = {gang.uid: gang for gang in gangs if gang.uid}
    by_key = {gang.key: gang for gang in gangs}
    result = list(gangs)
    for workload in objects.get("Workload", ()):
        meta, spec, admission = workload["metadata"], workload["spec"], workload["status"]["admission"]
        if not admission.present or _met(workload, "Finished").present:
            continue
        promises = list(_promises(workload, gpu_resource))
        start = read_time(_met(workload, "Admitted")["lastTransitionTime"])
        estimate = _hours(spec["maximumExecutionTimeSeconds"])
        namespace, _, name = own = _key(workload, "workload")
        owner = _controller(meta)
        uid = owner[2] if owner else ""
        key = (namespace, *owner[:2]) if owner else (namespace, "podgroup", name)
        gang = by_workload.get((namespace, name)) or by_uid.get(uid) or by_key.get(key)
        if gang is None:
            gang = Gang(key if owner else own, uid or meta["uid"].text(""), key[1])
            result.append(gang)
        gang.queue, gang.admitted, gang.priority = admission["clusterQueue"].text(), True, spec["priority"].integer(0)
        gang.start = start if gang.start is None else gang.start
        gang.estimate = estimate if gang.estimate is None else gang.estimate
        gang.pods += [pod for promise in promises for pod in _absent(gang, hosts, *promise)]
    return result


def _promises(workload: Field, gpu_resource: str) -> Iterator[tuple[str, PodDemand, Mapping[str, int]]]:
    """Of each admitted pod set: its name, what a pod of it takes, and how many pods go to each host."""
    pod_sets = workload["spec"]["podSets"]
    demands = {pods["name"].text("main"): pod_demand(pods["template"]["spec"], gpu_resource) for pods in pod_sets}
    for given in workload["status"]["admission"]["podSetAssignments"]:
        name, assigned, counts = given["name"].text("main"), given["topologyAssignment"], Counter[str]()
        if name not in demands:
            raise given["name"].error(f"the name of one of the pod sets {sorted(demands)}")
        assignment = read_assignment(assigned) if assigned.present else None
        if assignment is not None and assignment.levels[-1] == HOSTNAME:
            for values, count in assignment.domains:
                counts[values[-1]] += count
        yield name, demands[name], counts


def _absent(
    gang: Gang, hosts: Mapping[str, str], pod_set: str, demand: PodDemand, counts: Mapping[str, int]
) -> list[Pod]:
    """Pods of a promise that do not exist yet; never more than the pod set lacks as a whole."""
    there = zip(gang.pods, gang.pod_sets, strict=False)
    present = Counter(pod.node for pod, own in there if own in ("", pod_set))
    short = sum(counts.values()) - present.total()
    pods: list[Pod] = []
    for host, count in counts.items():
        node = hosts.get(host)
        lacking = 0 if node is None else max(0, min(count - present[node], short))
        pods += [Pod(node or "", *demand)] * lacking
        short -= lacking
    return pods


def _key(item: Field, kind: str) -> Key:
    return item["metadata"]["namespace"].text("default"), kind, item["metadata"]["name"].text()


def _named_gang(labels: Mapping[str, str]) -> tuple[str, str] | None:
    """Kind and name of the gang by the outermost label that names one."""
    return next(((kind, labels[label]) for label, kind in GANG_LABELS.items() if labels.get(label)), None)


def _controller(meta: Field) -> tuple[str, str, str] | None:
    """Kind in small letters, name and uid of the controller among the owners of an object."""
    for owner in meta["ownerReferences"]:
        if owner["controller"].flag(False):
            return owner["kind"].text().lower(), owner["name"].text(), owner["uid"].text("")
    return None


def _met(workload: Field, kind: str) -> Field:
    """The condition of that kind if it is met, else an absent one."""
    conditions = workload["status"]["conditions"]
    met = (c for c in conditions if c["type"].value == kind and c["status"].value == "True")
    return next(met, Field(workload.where, None))


def _hours(seconds: Field) -> float | None:
    return seconds.integer(at_least=1) / 3600 if seconds.present else None


def read_member(pod: Field) -> Member:
    """The pod's part in its gang. `InputError` without a name, or for a gang that does not say how large it is."""
    meta = pod["metadata"]
    labels, annotations = meta["labels"].texts(), meta["annotations"]
    name, namespace = meta["name"].text(), meta["namespace"].text("default")
    named = _named_gang(labels)
    kind, group = named or ("pod", name)
    sizes = [size for size in (annotations[GANG_SIZE], annotations[GROUP_SIZE]) if size.present]
    if named and not sizes:
        raise annotations[GANG_SIZE].error(f"the number of pods of {kind} {group}")
    ranks = (labels.get(key) or annotations[key].text("", empty=True) for key in RANKS)
    return Member(
        gang=f"{namespace}/{kind}/{group}",
        size=_gang_size(sizes[0]) if named else 1,
        rank=tuple(int(rank) for rank in ranks if rank.isascii() and rank.isdigit() and len(rank) < 10),
        name=name,
        uid=meta["uid"].text(""),
    )


def gang_job(pods: Sequence[dict[str, Any]], member: Member) -> str:
    """The gang as a text for `parse_job`: its pods as a pod group of Kueue's, the one kind that says its size.

    If they are fewer than the gang has, they must be equal, and those to come are taken to be equal too.
    """
    label, size = {GROUP_NAME: member.gang.partition("/")[2]}, {GROUP_SIZE: str(member.size)}
    items = []
    for pod in pods:
        meta = pod["metadata"]
        grouped = {
            "name": meta["name"],
            "namespace": meta.get("namespace") or "default",
            "labels": (meta.get("labels") or {}) | label,
            "annotations": (meta.get("annotations") or {}) | size,
        }
        items.append({"apiVersion": "v1", "kind": "Pod", "metadata": grouped, "spec": pod.get("spec")})
    return json.dumps({"kind": "List", "apiVersion": "v1", "items": items})


def _gang_size(field: Field) -> int:
    text = field.text()
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MAX_SIZE):
        raise field.error(f"a whole number from 1 to {MAX_SIZE}, as text")
    return int(text)
