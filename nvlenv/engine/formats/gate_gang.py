"""A gang as its pods tell of it: name, size, ranks, and the job that they make together.

Pods belong together by the labels that Kueue, JobSet, Kubeflow, batch Jobs and others set on them; a pod without any
stands alone. How many there will be no label of a batch Job says, so the pod template carries an annotation:
`nvlenv/gang-size`, or `kueue.x-k8s.io/pod-group-total-count` where Kueue's pod groups are used anyway.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nvlenv.engine.formats.document import Field
from nvlenv.engine.formats.gangs import GANG_LABELS
from nvlenv.engine.formats.manifests import GROUP_NAME, GROUP_SIZE

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


@dataclass(frozen=True)
class Member:
    """What one pod says of its gang."""

    gang: str  # namespace/kind/name, as the gang is called in a `ClusterSnapshot`
    size: int  # pods of the gang
    rank: tuple[int, ...]  # sorts the pods of a gang; empty: it has none
    name: str
    uid: str


def read_member(pod: Field) -> Member:
    """The pod's part in its gang. `InputError` without a name, or for a gang that does not say how large it is."""
    meta = pod["metadata"]
    labels, annotations = meta["labels"].texts(), meta["annotations"]
    name, namespace = meta["name"].text(), meta["namespace"].text("default")
    label = next((label for label in GANG_LABELS if labels.get(label)), "")
    kind, group = (GANG_LABELS[label], labels[label]) if label else ("pod", name)
    sizes = [size for size in (annotations[GANG_SIZE], annotations[GROUP_SIZE]) if size.present]
    if label and not sizes:
        raise annotations[GANG_SIZE].error(f"the number of pods of {kind} {group}")
    ranks = (labels.get(key) or annotations[key].text("", empty=True) for key in RANKS)
    return Member(
        gang=f"{namespace}/{kind}/{group}",
        size=_whole(sizes[0]) if label else 1,
        rank=tuple(int(rank) for rank in ranks if rank.isascii() and rank.isdigit() and len(rank) < 10),
        name=name,
        uid=meta["uid"].text(""),
    )


def gang_job(pods: Sequence[dict[str, Any]], member: Member) -> str:
    """The gang as a text for `parse_job`: its pods as a pod group of Kueue's, the one kind that says its size.

    If they are fewer than the gang has, they must be equal, and those to come are taken to be equal too.
    """
    group = member.gang.partition("/")[2]
    return json.dumps(
        {"kind": "List", "apiVersion": "v1", "items": [_grouped(pod, group, member.size) for pod in pods]}
    )


def _grouped(pod: dict[str, Any], group: str, size: int) -> dict[str, Any]:
    meta = pod["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": meta["name"],
            "namespace": meta.get("namespace") or "default",
            "labels": {**(meta.get("labels") or {}), GROUP_NAME: group},
            "annotations": {**(meta.get("annotations") or {}), GROUP_SIZE: str(size)},
        },
        "spec": pod.get("spec"),
    }


def _whole(field: Field) -> int:
    text = field.text()
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MAX_SIZE):
        raise field.error(f"a whole number from 1 to {MAX_SIZE}, as text")
    return int(text)
