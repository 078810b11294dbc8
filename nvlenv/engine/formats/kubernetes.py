"""A cluster from what `kubectl get nodes,pods -A -o json` prints, with Kueue's objects if they are there.

Objects are sorted by kind, the GPU nodes picked, the levels of their topology chosen from options, Kueue's Topology or
well-known labels, and each node placed by its labels; gangs.py makes jobs of the pods. A new field of a node is one
more line of `_node`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nvlenv.common.errors import InputError
from nvlenv.engine.formats import kueue
from nvlenv.engine.formats.document import Field, Objects
from nvlenv.engine.formats.gangs import gangs_of, promised
from nvlenv.engine.formats.options import Options
from nvlenv.engine.formats.values import read_quantity, read_whole
from nvlenv.engine.model.jobs import UNLIMITED, Job
from nvlenv.engine.model.snapshot import ClusterSnapshot, Node, NodeState, make_snapshot
from nvlenv.policies.kueue.types import HOSTNAME, Taint

KUEUE = "kueue.x-k8s.io"
KUEUE_VERSIONS = ("v1alpha1", "v1beta1", "v1beta2")
# API group of each kind that some reader knows; other groups use the same names for other things.
GROUPS = {
    **dict.fromkeys(("Node", "Pod"), ""),
    "Job": "batch",
    "JobSet": "jobset.x-k8s.io",
    **dict.fromkeys(("Deployment", "StatefulSet"), "apps"),
    "PriorityClass": "scheduling.k8s.io",
    **dict.fromkeys(("WorkloadPriorityClass", "Topology", "ResourceFlavor"), KUEUE),
    **dict.fromkeys(("ClusterQueue", "LocalQueue", "Workload"), KUEUE),
}
# Labels seen in the field, coarse to fine. A value of nvidia.com/gpu.clique names an NVLink domain as a whole.
KNOWN = (
    "cloud.provider.com/topology-block",
    "topology.k8s.aws/network-node-layer-1",
    "topology.k8s.aws/network-node-layer-2",
    "topology.k8s.aws/network-node-layer-3",
    "cloud.google.com/gce-topology-block",
    "cloud.google.com/gce-topology-subblock",
    "cloud.provider.com/topology-rack",
    "ds.coreweave.com/nvlink.domain",
    "nvidia.com/gpu.clique",
    "cloud.google.com/gce-topology-host",
)
# Of those, the ones that can be the NVLink domain, the surest first.
NVLINK = (
    "nvidia.com/gpu.clique",
    "ds.coreweave.com/nvlink.domain",
    "cloud.provider.com/topology-rack",
    "cloud.google.com/gce-topology-subblock",
    "topology.k8s.aws/network-node-layer-3",
)
NAMES_SHOWN = 3  # of those left out, in a note


def is_object(document: Field) -> bool:
    """Whether a document is an object of Kubernetes: it says its kind."""
    return isinstance(document.value, dict) and isinstance(document.value.get("kind"), str)


def objects_by_kind(documents: Iterable[Field]) -> dict[str, list[Field]]:
    """The objects of the kinds above; those of other kinds are none of our business and left out."""
    found: dict[str, list[Field]] = {}
    for document in documents:
        for kind, version, item in _items(document):
            group, _, number = version.rpartition("/")
            if kind not in GROUPS or (version and group != GROUPS[kind]):
                continue
            if group == KUEUE and number not in KUEUE_VERSIONS:
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


@dataclass(frozen=True)
class Levels:
    """Which node labels make the topology."""

    labels: tuple[str, ...]  # coarse to fine, the host name last
    nvlink: str  # the one of the NVLink domain
    named: bool  # False: nobody asked for the host name as a level, so a node without that label counts by its name
    origin: str  # how they came to be chosen

    def __str__(self) -> str:
        return f"levels {list(self.labels)} {self.origin}; NVLink domain {self.nvlink}"

    def path(self, name: str, labels: Mapping[str, str]) -> tuple[str, ...]:
        """The label values of a node, coarse to fine; "" where it has none."""
        host = "" if self.named else name
        return (*(labels.get(label, "") for label in self.labels[:-1]), labels.get(HOSTNAME, "") or host)


def choose_levels(where: str, options: Options, topology: Field | None, nodes: Sequence[Mapping[str, str]]) -> Levels:
    """The levels that the user gives, else those of Kueue's Topology, else the well-known labels on the GPU nodes.

    `nodes` are the labels of each GPU node. `InputError` if there is nothing to go by: a cluster is never taken as flat
    in silence.
    """
    if options.levels:
        return _levels(where, options.levels, options, "as given")
    if topology is not None:
        labels = [level["nodeLabel"].text() for level in topology["spec"]["levels"]]
        return _levels(where, labels, options, f"of Topology {topology['metadata']['name'].text()}")
    found = [label for label in KNOWN if any(label in labels for labels in nodes)]
    if not found:
        expected = f"levels, a Kueue Topology, or one of {list(KNOWN)}"
        raise InputError(where, "levels", "no topology label on any GPU node", expected)
    return _levels(where, found, options, "auto-detected")


def choose_topology(where: str, options: Options, topologies: Sequence[Field]) -> Field | None:
    """The Kueue Topology of the given name, or the only one; none where the user's levels stand alone."""
    if options.levels and not options.topology:
        return None
    names = [topology["metadata"]["name"].text() for topology in topologies]
    if options.topology and options.topology not in names:
        raise InputError(where, "topology", repr(options.topology), f"the name of a Topology in it: {names}")
    if not options.topology and len(names) > 1:
        raise InputError(where, "topology", f"several Topologies {names}", "the name of one of them, or levels")
    return next((t for t, name in zip(topologies, names, strict=True) if options.topology in ("", name)), None)


def _levels(where: str, given: Sequence[str], options: Options, origin: str) -> Levels:
    """These levels, ended by the host name: the node itself is always the last level."""
    named = HOSTNAME in given
    labels = tuple(given) if named else (*given, HOSTNAME)
    racks = labels[:-1]
    if not racks or len(set(labels)) < len(labels) or labels[-1] != HOSTNAME:
        raise InputError(where, "levels", list(given), f"distinct labels, coarse to fine, only the last one {HOSTNAME}")
    nvlink = options.nvlink_level or next((label for label in NVLINK if label in racks), racks[-1])
    if nvlink not in racks:
        raise InputError(where, "nvlink_level", repr(nvlink), f"one of {list(racks)}")
    return Levels(labels, nvlink, named, origin)


class _Machine(NamedTuple):
    """A GPU node before its place in the topology is known."""

    field: Field
    name: str
    labels: Mapping[str, str]


def read_kubernetes(where: str, objects: Objects, options: Options) -> ClusterSnapshot:
    """The cluster that these objects describe.

    Nodes without GPUs are left out, as are nodes that no ResourceFlavor of the chosen Topology selects. Pods that have
    ended or have no node yet hold nothing. Every such choice is told in the notes. `InputError` for a GPU node
    without a level label (unless `skip_unlabelled`), or a malformed object.
    """
    notes: list[str] = []
    machines = _gpu_machines(where, objects.get("Node", ()), options, notes)
    topology = choose_topology(where, options, objects.get("Topology", ()))
    levels = choose_levels(where, options, topology, [machine.labels for machine in machines])
    notes.insert(0, str(levels))
    flavors = {} if topology is None else kueue.topology_flavors(objects.get("ResourceFlavor", ()), topology)
    machines = _selected(where, machines, flavors, notes)
    nodes = _place(machines, levels, options, notes)
    local_queues = kueue.read_local_queues(objects.get("LocalQueue", ()))
    jobs = _jobs(objects, nodes, local_queues, options, notes)
    counted = frozenset(flavors) if flavors else None
    queues = [kueue.read_queue(queue, options.gpu_resource, counted) for queue in objects.get("ClusterQueue", ())]
    return make_snapshot(where, levels.labels, levels.nvlink, nodes, jobs, queues, local_queues, notes)


def _gpu_machines(where: str, fields: Iterable[Field], options: Options, notes: list[str]) -> list[_Machine]:
    machines, others = [], []
    for field in fields:
        name = field["metadata"]["name"].text()
        node = field.named(f"node {name}")
        if _gpus(node, options) > 0:
            machines.append(_Machine(node, name, node["metadata"]["labels"].texts()))
        else:
            others.append(name)
    _tell(notes, others, f"without {options.gpu_resource}")
    if not machines:
        raise InputError(where, "nodes", f"none with {options.gpu_resource}", "at least one")
    return machines


def _gpus(node: Field, options: Options) -> int:
    """Allocatable GPUs; those of the hardware if the node has lost them all, so that it is seen as failed."""
    allocatable, capacity = (node["status"][part][options.gpu_resource] for part in ("allocatable", "capacity"))
    return read_whole(allocatable) or read_whole(capacity)


def _selected(
    where: str, machines: list[_Machine], flavors: Mapping[str, Mapping[str, str]], notes: list[str]
) -> list[_Machine]:
    """The machines that carry all node labels of some flavor; all of them if there are no flavors."""
    if not flavors:
        return machines
    selected = [m for m in machines if any(wanted.items() <= m.labels.items() for wanted in flavors.values())]
    names = {machine.name for machine in selected}
    _tell(notes, [m.name for m in machines if m.name not in names], f"outside the ResourceFlavors {sorted(flavors)}")
    if not selected:
        raise InputError(where, "nodes", f"none that ResourceFlavors {sorted(flavors)} select", "at least one")
    return selected


def _place(machines: Iterable[_Machine], levels: Levels, options: Options, notes: list[str]) -> list[Node]:
    nodes, skipped = [], []
    for machine in machines:
        path = levels.path(machine.name, machine.labels)
        if all(path):
            nodes.append(_node(machine, path, options))
        elif options.skip_unlabelled:
            skipped.append(machine.name)
        else:
            label = levels.labels[path.index("")]
            expected = f"a value, as levels are {list(levels.labels)}; skip_unlabelled leaves such nodes out"
            raise machine.field["metadata"]["labels"][label].error(expected, found="no such label")
    _tell(notes, skipped, "without a label of every level")
    if not nodes:
        where = next(iter(machines)).field.where
        raise InputError(where, "nodes", f"none with all of the labels {list(levels.labels)}", "at least one")
    return nodes


def _node(machine: _Machine, path: tuple[str, ...], options: Options) -> Node:
    field, allocatable = machine.field, machine.field["status"]["allocatable"]
    cpu, memory, pods = (allocatable[name] for name in ("cpu", "memory", "pods"))
    ready = any(c["type"].value == "Ready" and c["status"].value == "True" for c in field["status"]["conditions"])
    if not ready or not read_whole(allocatable[options.gpu_resource]):
        state = NodeState.FAILED
    else:
        state = NodeState.CORDONED if field["spec"]["unschedulable"].flag(False) else NodeState.UP
    return Node(
        name=machine.name,
        path=path,
        gpus=_gpus(field, options),
        cpu=read_quantity(cpu, 1000) if cpu.present else UNLIMITED,
        memory=read_quantity(memory) if memory.present else UNLIMITED,
        pods=read_whole(pods) if pods.present else UNLIMITED,
        state=state,
        taints=tuple(
            Taint(taint["key"].text(), taint["value"].text("", empty=True), taint["effect"].text())
            for taint in field["spec"]["taints"]
        ),
        labels=dict(machine.labels),
    )


def _jobs(
    objects: Objects, nodes: Iterable[Node], local_queues: Mapping[str, str], options: Options, notes: list[str]
) -> list[Job]:
    """The jobs on these nodes: gangs of pods, and what Kueue promised to gangs whose pods are still to come."""
    hosts = {node.path[-1]: node.name for node in nodes}
    gangs = promised(gangs_of(objects, options.gpu_resource), objects, hosts, options.gpu_resource)
    listed = {field["metadata"]["name"].value for field in objects.get("Node", ())}
    unlisted = sorted({pod.node for gang in gangs for pod in gang.pods} - listed)
    _tell(notes, unlisted, "that have pods but are not listed")
    names = set(hosts.values())
    return [job for job in (gang.job(local_queues, names) for gang in gangs) if job.pods]


def _tell(notes: list[str], names: Sequence[str], why: str) -> None:
    """Note which nodes are left out."""
    if names:
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        notes.append(f"left out {len(names)} nodes {why}: {', '.join(names[:NAMES_SHOWN])}{more}")
