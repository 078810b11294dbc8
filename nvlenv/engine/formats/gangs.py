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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nvlenv.engine.formats.document import Field
from nvlenv.engine.formats.kueue import (
    CLUSTER_QUEUE_LABEL,
    GROUP_NAME,
    GROUP_SIZE,
    LOCAL_QUEUE_LABEL,
    POD_SET_LABEL,
    QUEUE_LABEL,
    WORKLOAD_ANNOTATION,
    AdmittedWorkload,
    Promise,
    controller_of,
)
from nvlenv.engine.formats.values import pod_demand, read_time
from nvlenv.engine.model.jobs import Job, Pod

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

Objects = Mapping[str, Sequence[Field]]  # by kind
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
    """The gangs of all pods that hold something of a node: bound to it and not ended, terminating ones included."""
    gangs: dict[Key, Gang] = {}
    owners = {_key(o, kind.lower()): o for kind in ("Job", "JobSet") for o in objects.get(kind, ())}
    for item in objects.get("Pod", ()):
        pod = item.named(f"pod {item['metadata']['namespace'].text('default')}/{item['metadata']['name'].text()}")
        if pod["spec"]["nodeName"].value in (None, "") or pod["status"]["phase"].value in ENDED:
            continue
        kind, name, uid = _controller(pod)
        key = _gang_key(pod, kind, name)
        gang = gangs.setdefault(key, Gang(key, owner=kind))
        _join(gang, pod, gpu_resource)
        if key[1] == kind:
            gang.uid = uid
        if key in owners:
            _describe(gang, owners[key])
    return list(gangs.values())


def promised(gangs: list[Gang], workloads: Iterable[AdmittedWorkload], hosts: Mapping[str, str]) -> list[Gang]:
    """The gangs, with what Kueue knows of them and the pods that it has assigned but that do not exist yet.

    Kueue charges a workload from its admission on, so those places are taken. `hosts` gives the node of each host name.
    """
    by_workload = {(gang.key[0], name): gang for gang in gangs for name in gang.workloads}
    by_uid = {gang.uid: gang for gang in gangs if gang.uid}
    by_key = {gang.key: gang for gang in gangs}
    result = list(gangs)
    for workload in workloads:
        kind, name, uid = workload.owner
        key = (workload.namespace, kind.lower(), name) if kind else (workload.namespace, "podgroup", workload.name)
        gang = by_workload.get((workload.namespace, workload.name)) or by_uid.get(uid) or by_key.get(key)
        if gang is None:
            gang = Gang(key if kind else (workload.namespace, "workload", workload.name), uid or workload.uid, key[1])
            result.append(gang)
        gang.queue, gang.admitted, gang.priority = workload.queue, True, workload.priority
        gang.start = workload.start if gang.start is None else gang.start
        gang.estimate = workload.estimate if gang.estimate is None else gang.estimate
        gang.pods.extend([pod for promise in workload.promises for pod in _absent(promise, gang, hosts)])
    return result


def _absent(promise: Promise, gang: Gang, hosts: Mapping[str, str]) -> list[Pod]:
    """Pods of a promise that do not exist yet; never more than the pod set lacks as a whole."""
    there = zip(gang.pods, gang.pod_sets, strict=False)
    present = Counter(pod.node for pod, pod_set in there if pod_set in ("", promise.name))
    short = sum(promise.hosts.values()) - present.total()
    demand, pods = promise.demand, []
    for host, count in promise.hosts.items():
        node = hosts.get(host)
        lacking = 0 if node is None else max(0, min(count - present[node], short))
        pods += [Pod(node or "", demand.gpus, demand.cpu, demand.memory)] * lacking
        short -= lacking
    return pods


def _join(gang: Gang, pod: Field, gpu_resource: str) -> None:
    meta, spec = pod["metadata"], pod["spec"]
    labels, annotations = meta["labels"].texts(), meta["annotations"]
    demand = pod_demand(spec, gpu_resource)
    gang.pods.append(
        Pod(
            node=spec["nodeName"].text(),
            gpus=demand.gpus,
            cpu=demand.cpu,
            memory=demand.memory,
            name=meta["name"].text(),
            uid=meta["uid"].text(""),
            terminating=meta["deletionTimestamp"].present,
        )
    )
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
    if gang.estimate is None and seconds.present:
        gang.estimate = seconds.integer(at_least=1) / 3600


def _gang_key(pod: Field, owner_kind: str, owner_name: str) -> Key:
    """The gang that a label names, else the pod's controller, else the pod itself."""
    namespace, _, own = _key(pod, "pod")
    alone = owner_kind in ("", "pod", "node")  # the node "controls" static pods
    by_owner = ("pod", own) if alone else (owner_kind, owner_name)
    return namespace, *(_named_gang(pod["metadata"]["labels"].texts()) or by_owner)


def _named_gang(labels: Mapping[str, str]) -> tuple[str, str] | None:
    """Kind and name of the gang by the outermost label that names one."""
    return next(((kind, labels[label]) for label, kind in GANG_LABELS.items() if labels.get(label)), None)


def _key(item: Field, kind: str) -> Key:
    return item["metadata"]["namespace"].text("default"), kind, item["metadata"]["name"].text()


def _controller(pod: Field) -> tuple[str, str, str]:
    """Kind, name and uid of what controls a pod; the pod itself if nothing does."""
    meta = pod["metadata"]
    kind, name, uid = controller_of(meta)
    return (kind.lower(), name, uid) if kind else ("pod", meta["name"].text(), meta["uid"].text(""))


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
