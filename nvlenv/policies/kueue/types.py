"""What goes into a placement and what comes out of it.

Terms are Kueue's: a *pod set* is `count` equal pods of a workload, a *domain* is one value of a topology level (a
block, a rack, a host), a *leaf* is a domain of the last level, a *slice* is a group of pods that must share a domain.
Quantities are integers: CPU in milli-cores, memory in bytes, everything else in pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

HOSTNAME = "kubernetes.io/hostname"
PODS = "pods"  # the resource of which every pod takes one

Resources = Mapping[str, int]
Path = tuple[str, ...]  # label values, coarse to fine


class TopologyMode(StrEnum):
    """What a pod set asks of the topology."""

    REQUIRED = "required"  # all pods inside one domain of the level, or wait
    PREFERRED = "preferred"  # try the level, then coarser ones, then spread at the top
    UNCONSTRAINED = "unconstrained"  # any leaves
    IMPLIED = "none"  # nothing asked, but the queue has topology flavors only: as unconstrained
    SLICE_ONLY = "slice-only"  # only slices asked for: they may go anywhere
    EMPTY = "empty"  # a request with nothing in it


@dataclass(frozen=True)
class Layer:
    """Every `size` pods share one domain of `level`. Size 0 stands for a missing one."""

    level: str
    size: int


@dataclass(frozen=True)
class TopologyRequest:
    """A pod set's topology annotations."""

    mode: TopologyMode = TopologyMode.IMPLIED
    level: str | None = None  # for REQUIRED and PREFERRED
    slices: tuple[Layer, ...] = ()  # coarse to fine; the first one is the slice, the others are inner layers


@dataclass(frozen=True)
class Taint:
    """What keeps pods off a node unless they tolerate it, as in Kubernetes."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


@dataclass(frozen=True)
class Toleration:
    """Which taints a pod puts up with, as in Kubernetes."""

    key: str = ""  # empty: every key
    operator: str = "Equal"  # or Exists
    value: str = ""
    effect: str = ""  # empty: every effect


@dataclass(frozen=True)
class Expression:
    """A condition on one label."""

    key: str
    operator: str  # In, NotIn, Exists, DoesNotExist, Gt, Lt
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Term:
    """A node matches if it meets all expressions on its labels and all on its fields (`metadata.name`)."""

    expressions: tuple[Expression, ...] = ()
    fields: tuple[Expression, ...] = ()


@dataclass(frozen=True)
class NodeAffinity:
    """Which nodes a pod may run on, and which of them it likes better."""

    required: tuple[Term, ...] | None = None  # one of them must match; None: no requirement
    preferred: tuple[tuple[int, Term], ...] = ()  # (weight, term)


@dataclass(frozen=True)
class KueueNode:
    """A node as Kueue's cache knows it."""

    name: str
    labels: Mapping[str, str]
    allocatable: Resources
    ready: bool = True
    unschedulable: bool = False  # cordoned
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True)
class Assignment:
    """Pods per leaf, in ascending order of the leaves' full paths. A host topology names hosts only."""

    levels: tuple[str, ...]
    domains: tuple[tuple[Path, int], ...]

    @property
    def pods(self) -> int:
        """How many pods it places."""
        return sum(count for _, count in self.domains)


@dataclass(frozen=True)
class Failure:
    """Why a pod set finds no place, in Kueue's words."""

    reason: str


Result = dict[str, Assignment | Failure]  # by pod set


@dataclass(frozen=True)
class PodSetRequest:
    """One pod set of a workload that wants to be placed."""

    name: str
    count: int
    requests: Resources  # of one pod, without the implicit one of `pods`
    topology: TopologyRequest = TopologyRequest()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    affinity: NodeAffinity = NodeAffinity()
    group: str | None = None  # the two pod sets of a group, leader and workers, are placed together
    previous: Assignment | None = None  # of the workload slice that this one replaces (elastic jobs)


@dataclass(frozen=True)
class RunningPod:
    """A pod outside topology aware scheduling: a DaemonSet's, a static one, a foreign Deployment's."""

    node: str | None
    requests: Resources
    phase: str = "Running"


@dataclass(frozen=True)
class Usage:
    """`count` pods of an admitted workload on one leaf. In a host topology only the last value, the host, is read."""

    values: Path
    requests: Resources  # of one pod
    count: int


@dataclass(frozen=True)
class Repair:
    """An admitted workload that lost nodes: only its pods on the first of them are placed anew."""

    unhealthy_nodes: tuple[str, ...]
    assignments: Mapping[str, Assignment]  # by pod set
    owned_by_single_pod: bool = False  # a plain pod cannot move and keeps its old place


@dataclass(frozen=True)
class Gates:
    """Feature gates that change a placement, with Kueue's defaults."""

    mixed_profile: bool = True  # TASProfileMixed: LeastFreeCapacity for unconstrained requests
    balanced_placement: bool = False  # TASBalancedPlacement
    respect_preferred_affinity: bool = False  # TASRespectNodeAffinityPreferred
    multi_layer: bool = True  # TASMultiLayerTopology: inner slice layers count
    skip_pod_owned: bool = True  # SkipReassignmentForPodOwnedWorkloads
    elastic: bool = False  # ElasticJobsViaWorkloadSlicesWithTAS
