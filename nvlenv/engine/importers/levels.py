"""Which node labels make the topology, and the path of label values of each node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nvlenv.engine.importers.document import Field
from nvlenv.engine.importers.options import Options
from nvlenv.errors import InputError
from nvlenv.policies.kueue.types import HOSTNAME

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


@dataclass(frozen=True)
class Levels:
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


def choose_levels(
    where: str, options: Options, topologies: Sequence[Field], nodes: Sequence[Mapping[str, str]]
) -> Levels:
    """The levels that the user gives, else those of Kueue's Topology, else the well-known labels on the GPU nodes.

    Parameters
    ----------
    topologies : Kueue Topology objects.
    nodes : labels of each GPU node.

    Raises
    ------
    InputError : several Topologies and no name, or nothing to go by: a cluster is never taken as flat in silence.
    """
    if options.levels:
        return _levels(where, options.levels, options, "as given")
    topology = choose_topology(where, options, topologies)
    if topology is not None:
        labels = [level["nodeLabel"].text() for level in topology["spec"]["levels"]]
        return _levels(where, labels, options, f"of Topology {topology['metadata']['name'].text()}")
    found = [label for label in KNOWN if any(label in labels for labels in nodes)]
    if not found:
        expected = f"levels, a Kueue Topology, or one of {list(KNOWN)}"
        raise InputError(where, "levels", "no topology label on any GPU node", expected)
    return _levels(where, found, options, "auto-detected")


def choose_topology(where: str, options: Options, topologies: Sequence[Field]) -> Field | None:
    """The Kueue Topology of the given name, or the only one."""
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
