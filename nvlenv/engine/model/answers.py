"""What the placement engine answers: plain frozen records, each with `to_dict()` for JSON.

Names are those of the snapshot: jobs by their id, nodes by their name, racks by their path ("block-00/rack-007").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic_core import to_jsonable_python


class Cause(StrEnum):
    """Why a job was refused."""

    QUOTA = "quota"  # its queue may not use so many GPUs more
    BEHIND = "behind"  # an older job of its StrictFIFO queue waits
    CAPACITY = "capacity"  # too few free GPUs that its pods can reach
    SHAPE = "shape"  # enough free GPUs, but not where its topology request wants them
    HELD = "held"  # it would fit, the policy lets it wait


class Loss(StrEnum):
    """Why a job loses its nodes, or some of them."""

    VERIFICATION = "verification"  # a test of idle nodes, it gives way to any real job
    PREEMPTED = "preempted"  # of lower priority, its GPUs are needed
    RESOURCES = "beside"  # of lower priority, its cpu, memory or place among the pods of a node is needed
    MOVED = "moved"  # restarted elsewhere
    FAILED = "failed"  # its node failed and its rack has no spare


class Answer:
    """A frozen dataclass that gives itself as plain JSON data."""

    def to_dict(self) -> dict[str, Any]:
        """Nested mappings, lists, texts and numbers only."""
        data: dict[str, Any] = to_jsonable_python(self)
        return data


@dataclass(frozen=True)
class Binding(Answer):
    """Pods of one pod set on one node."""

    pod_set: str
    node: str
    rack: str
    pods: int
    gpus: int  # that they hold together


@dataclass(frozen=True)
class Eviction(Answer):
    """A job that has to leave nodes before the placed one can start there."""

    job: str
    reason: Loss
    nodes: tuple[str, ...]  # that it leaves
    pods: tuple[str, ...]  # names of its pods there, where the snapshot knows them
    gpus: int  # that it loses; all of its own if it is evicted
    cost: float  # GPU-hours of work lost: since the last checkpoint, and the restart
    moved_to: tuple[Binding, ...] = ()  # for MOVED: where it restarts


@dataclass(frozen=True)
class Candidate(Answer):
    """One rack as the policy saw it."""

    rack: str
    action: str  # "place" or "open"
    score: tuple[float, ...]  # of a heuristic: keys, smaller is better; of a learned policy: one logit, larger is
    free_gpus: int
    free_nodes: int  # wholly free ones
    pods: int  # of the present slice that would go there
    note: str = ""  # why it was not allowed, or what opening it evicts


@dataclass(frozen=True)
class Step(Answer):
    """One decision of the policy on the way: where a slice, or a part of one, goes."""

    action: str  # "place", "open", "fill" or "hold"
    rack: str  # empty for fill and hold
    pods: int  # placed by it
    rule: str  # what decided, in words
    legal: int  # racks among which it could choose
    candidates: tuple[Candidate, ...]  # the best of them, the chosen one first


@dataclass(frozen=True)
class Why(Answer):
    """How an answer came about."""

    policy: str
    rule: str  # what decided, in one sentence
    steps: tuple[Step, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Placed(Answer):
    """The whole job has its nodes."""

    job: str
    bindings: tuple[Binding, ...]  # by pod set, then in node order: pods in order of rank
    evictions: tuple[Eviction, ...]
    speed: float  # relative to the best shape of its size and slice, in (0, 1]
    why: Why

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of its nodes, in order, each once."""
        return tuple(dict.fromkeys(binding.node for binding in self.bindings))

    @property
    def racks(self) -> Mapping[str, int]:
        """GPUs in each of its racks."""
        gpus: dict[str, int] = {}
        for binding in self.bindings:
            gpus[binding.rack] = gpus.get(binding.rack, 0) + binding.gpus
        return gpus

    @property
    def cost(self) -> float:
        """GPU-hours of work lost by all evictions."""
        return sum(eviction.cost for eviction in self.evictions)


@dataclass(frozen=True)
class Refused(Answer):
    """Nothing has changed, and why."""

    job: str
    cause: Cause
    reason: str  # one sentence
    racks: Mapping[str, str]  # rack -> why not there
    why: Why


@dataclass(frozen=True)
class Replacement(Answer):
    """A job goes on with a node of the same rack in place of a failed one."""

    job: str
    rack: str
    failed: str
    spares: tuple[Binding, ...]
    cost: float  # GPU-hours lost since the last checkpoint, and by the restart


@dataclass(frozen=True)
class NodeLoss(Answer):
    """What a failed node means for the jobs that had pods on it."""

    node: str
    replaced: tuple[Replacement, ...]  # jobs that were kept
    evictions: tuple[Eviction, ...]  # jobs that were not: their racks have no spare


@dataclass(frozen=True)
class Slots(Answer):
    """Free slices: for each size in nodes, how many fit, each inside one rack."""

    free: Mapping[int, int]  # slice size -> slots
    racks: Mapping[str, int]  # rack -> wholly free nodes that pods may use
    free_gpus: int  # that pods may use
    unreachable_gpus: int  # idle, but on failed or cordoned nodes
    gpus: int  # of the cluster
    largest_slice: int  # nodes, in one rack
    whole_racks: int  # racks that are wholly free


@dataclass(frozen=True)
class Move(Answer):
    """What of a job is in one rack restarts elsewhere, and the job with it."""

    job: str
    gpus: int
    nodes: tuple[str, ...]  # that it leaves
    to: tuple[Binding, ...]
    cost: float  # GPU-hours of the whole job's work lost


@dataclass(frozen=True)
class Clearing(Answer):
    """Moves that together free room for one more slice in a rack."""

    rack: str
    moves: tuple[Move, ...]
    nodes_moved: int
    cost: float  # GPU-hours lost
    slots_before: int  # free slices in the whole cluster
    slots_after: int

    @property
    def slots_per_node(self) -> float:
        """Slices freed per node moved."""
        return (self.slots_after - self.slots_before) / max(1, self.nodes_moved)

    def to_dict(self) -> dict[str, Any]:
        """With `slots_per_node`."""
        return {**super().to_dict(), "slots_per_node": self.slots_per_node}
