"""Small clusters and requests for the tests of Kueue's placement, and a short way to show where the pods went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nvlenv.policies.kueue.snapshot import Snapshot
from nvlenv.policies.kueue.types import (
    HOSTNAME,
    Assignment,
    Failure,
    Gates,
    KueueNode,
    Layer,
    PodSetRequest,
    Repair,
    Result,
    TopologyMode,
    TopologyRequest,
)

LEVELS = ("block", "rack", HOSTNAME)
BALANCED = Gates(balanced_placement=True)
AFFINITY = Gates(respect_preferred_affinity=True)
ANY = TopologyRequest(TopologyMode.UNCONSTRAINED)


def required(level: str, *layers: tuple[str, int]) -> TopologyRequest:
    return TopologyRequest(TopologyMode.REQUIRED, level, tuple(Layer(*layer) for layer in layers))


def preferred(level: str, *layers: tuple[str, int]) -> TopologyRequest:
    return TopologyRequest(TopologyMode.PREFERRED, level, tuple(Layer(*layer) for layer in layers))


def slices_only(*layers: tuple[str, int]) -> TopologyRequest:
    return TopologyRequest(TopologyMode.SLICE_ONLY, None, tuple(Layer(*layer) for layer in layers))


def hosts(free: Mapping[str, int], levels: Sequence[str] = LEVELS) -> list[KueueNode]:
    """Nodes from "b1 r1 h1": free GPUs."""
    return [
        KueueNode(path.split()[-1], dict(zip(levels, path.split(), strict=True)), {"gpu": gpus, "pods": 110})
        for path, gpus in free.items()
    ]


def flat(*free: int) -> list[KueueNode]:
    """Hosts h1, h2, ... with so many free GPUs, in a topology of hosts alone."""
    return hosts({f"h{number}": gpus for number, gpus in enumerate(free, start=1)}, (HOSTNAME,))


def rack(*free: int) -> list[KueueNode]:
    """One rack r1 of hosts h1, h2, ..."""
    return hosts({f"r1 h{number}": gpus for number, gpus in enumerate(free, start=1)}, ("rack", HOSTNAME))


def job(count: int, topology: TopologyRequest, gpus: int = 1, **rest: Any) -> PodSetRequest:
    return PodSetRequest("job", count, {"gpu": gpus}, topology, **rest)


def assign(
    levels: Sequence[str],
    nodes: Sequence[KueueNode],
    podsets: Sequence[PodSetRequest],
    gates: Gates | None = None,
    repair: Repair | None = None,
    **rest: Any,
) -> Result:
    """One workload on one cluster; see `Snapshot` for the rest."""
    return Snapshot(levels, nodes, gates=gates, **rest).assign(podsets, repair)


def place(
    nodes: Sequence[KueueNode], podset: PodSetRequest, gates: Gates | None = None, **rest: Any
) -> dict[str, int] | str:
    """Pods by last label value, or the reason why there are none."""
    width = len(nodes[0].labels) if nodes else 1
    levels = rest.pop("levels", LEVELS[-width:])
    return shown(assign(levels, nodes, [podset], gates, **rest)[podset.name])


def shown(outcome: Assignment | Failure) -> dict[str, int] | str:
    return outcome.reason if isinstance(outcome, Failure) else {v[-1]: count for v, count in outcome.domains}
