"""A cluster from what `kubectl get nodes,pods -A -o json` prints, with Kueue's objects if they are there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nvlenv.engine.importers import kueue
from nvlenv.engine.importers.document import Field
from nvlenv.engine.importers.gangs import gangs_of, promised
from nvlenv.engine.importers.levels import Levels, choose_levels, choose_topology
from nvlenv.engine.importers.options import Options
from nvlenv.engine.importers.quantities import read_quantity, read_whole
from nvlenv.engine.snapshot import UNLIMITED, ClusterSnapshot, Job, Node, NodeState, make_snapshot
from nvlenv.errors import InputError
from nvlenv.policies.kueue.types import Taint

NAMES_SHOWN = 3  # of those left out, in a note

Objects = Mapping[str, Sequence[Field]]  # by kind


@dataclass(frozen=True)
class _Machine:
    """A GPU node before its place in the topology is known."""

    field: Field
    name: str
    labels: Mapping[str, str]


def read_cluster(where: str, objects: Objects, options: Options) -> ClusterSnapshot:
    """The cluster that these objects describe.

    Nodes without GPUs are left out, as are nodes that no ResourceFlavor of the chosen Topology selects. Pods that have
    ended or have no node yet hold nothing. Every such choice is told in the notes.

    Raises
    ------
    InputError : a GPU node without a level label (unless `skip_unlabelled`), a malformed object.
    """
    notes: list[str] = []
    machines = _gpu_machines(where, objects.get("Node", ()), options, notes)
    topologies = objects.get("Topology", ())
    levels = choose_levels(where, options, topologies, [machine.labels for machine in machines])
    notes.insert(0, str(levels))
    flavors = _flavors(where, objects, options)
    machines = _selected(where, machines, flavors, notes)
    nodes = _place(machines, levels, options, notes)
    local_queues = kueue.read_local_queues(objects.get("LocalQueue", ()))
    jobs = _jobs(objects, nodes, local_queues, options, notes)
    counted = frozenset(flavors) if flavors else None
    queues = [kueue.read_queue(queue, options.gpu_resource, counted) for queue in objects.get("ClusterQueue", ())]
    return make_snapshot(where, levels.labels, levels.nvlink, nodes, jobs, queues, local_queues, notes)


def _flavors(where: str, objects: Objects, options: Options) -> dict[str, dict[str, str]]:
    """Node labels of each ResourceFlavor of the Topology that the levels come from, if they do come from one."""
    if options.levels and not options.topology:
        return {}
    topology = choose_topology(where, options, objects.get("Topology", ()))
    return {} if topology is None else kueue.topology_flavors(objects.get("ResourceFlavor", ()), topology)


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
    field = machine.field
    allocatable = field["status"]["allocatable"]
    ready = any(c["type"].value == "Ready" and c["status"].value == "True" for c in field["status"]["conditions"])
    if not ready or not read_whole(allocatable[options.gpu_resource]):
        state = NodeState.FAILED
    else:
        state = NodeState.CORDONED if field["spec"]["unschedulable"].flag(False) else NodeState.UP
    return Node(
        name=machine.name,
        path=path,
        gpus=_gpus(field, options),
        cpu=read_quantity(allocatable["cpu"], 1000) if allocatable["cpu"].present else UNLIMITED,
        memory=read_quantity(allocatable["memory"]) if allocatable["memory"].present else UNLIMITED,
        pods=read_whole(allocatable["pods"]) if allocatable["pods"].present else UNLIMITED,
        state=state,
        taints=tuple(
            Taint(
                taint["key"].text(),
                taint["value"].text("", empty=True),
                taint["effect"].text(),
            )
            for taint in field["spec"]["taints"]
        ),
        labels=dict(machine.labels),
    )


def _jobs(
    objects: Objects, nodes: Iterable[Node], local_queues: Mapping[str, str], options: Options, notes: list[str]
) -> list[Job]:
    """The jobs on these nodes: gangs of pods, and what Kueue promised to gangs whose pods are still to come."""
    hosts = {node.path[-1]: node.name for node in nodes}
    workloads = kueue.read_workloads(objects.get("Workload", ()), options.gpu_resource)
    gangs = promised(gangs_of(objects, options.gpu_resource), workloads, hosts)
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
