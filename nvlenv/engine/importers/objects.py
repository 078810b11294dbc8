"""Kubernetes objects, out of lists and multi-document files, sorted by kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nvlenv.engine.importers.document import Field

KUEUE_VERSIONS = ("v1alpha1", "v1beta1", "v1beta2")
# API group of each kind that some reader knows; other groups use the same names for other things.
GROUPS = {
    "Node": "",
    "Pod": "",
    "Job": "batch",
    "JobSet": "jobset.x-k8s.io",
    "Deployment": "apps",
    "StatefulSet": "apps",
    "PriorityClass": "scheduling.k8s.io",
    "WorkloadPriorityClass": "kueue.x-k8s.io",
    "Topology": "kueue.x-k8s.io",
    "ResourceFlavor": "kueue.x-k8s.io",
    "ClusterQueue": "kueue.x-k8s.io",
    "LocalQueue": "kueue.x-k8s.io",
    "Workload": "kueue.x-k8s.io",
}


def is_object(document: Field) -> bool:
    return isinstance(document.value, dict) and isinstance(document.value.get("kind"), str)


def objects_by_kind(documents: Iterable[Field]) -> dict[str, list[Field]]:
    """The objects of the kinds above; those of other kinds are none of our business and left out."""
    found: dict[str, list[Field]] = {}
    for document in documents:
        for kind, version, item in _items(document):
            group, _, number = version.rpartition("/")
            if kind not in GROUPS or (version and group != GROUPS[kind]):
                continue
            if group == "kueue.x-k8s.io" and number not in KUEUE_VERSIONS:
                raise item["apiVersion"].error(f"{group}/ and one of {list(KUEUE_VERSIONS)}")
            found.setdefault(kind, []).append(item)
    return found


def _items(document: Field) -> Iterator[tuple[str, str, Field]]:
    """Kind, apiVersion and value of the object itself or, for a list, of its items."""
    kind, version = document["kind"].text(), document["apiVersion"].text("")
    if not kind.endswith("List"):
        yield kind, version, document
        return
    for item in document["items"]:  # those of a NodeList do not say what they are
        own = item["kind"].text(kind.removesuffix("List"))
        yield own, item["apiVersion"].text("" if kind == "List" else version), item
