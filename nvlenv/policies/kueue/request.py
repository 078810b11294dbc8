"""A pod set's topology request, checked against the topology and turned into numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nvlenv.policies.kueue.types import Failure, Gates, Layer, Mode, PodSet, TopologyRequest

NO_SIZE = "slice topology requested, but slice size not provided"


@dataclass(frozen=True)
class Demand:
    """`count` worker pods, perhaps with one leader pod, to be placed in slices of `slice_size` pods."""

    count: int
    workers: PodSet
    leader: PodSet | None
    level: int  # where the search starts
    required: bool
    unconstrained: bool
    slice_level: int
    slice_size: int
    layers: tuple[Layer, ...] = ()  # all slice layers, if there is more than one
    inner: dict[int, int] = field(default_factory=dict)  # level -> pods that come together there, below the slice level

    @property
    def slices(self) -> int:
        """Whole slices only: a remainder of `count` is dropped, as in Kueue."""
        return self.count // self.slice_size

    @property
    def leaders(self) -> int:
        return 0 if self.leader is None else 1

    @property
    def unit(self) -> str:
        return "slice" if self.slice_size > 1 else "pod"


def understand(levels: Sequence[str], workers: PodSet, leader: PodSet | None, gates: Gates) -> Demand | Failure:
    """What the workers' request means on these levels; the leader's own request is not looked at."""
    request = workers.topology
    layers = _layers(request, levels, gates)
    if any(layer.size <= 0 for layer in layers):
        return Failure(NO_SIZE)
    key = _requested_level(request, levels)
    if key is None:
        return Failure("topology level not specified")
    if key not in levels:
        return Failure(f"no requested topology level: {key}")
    outer = layers[0]
    if outer.level not in levels:
        return Failure(f"no requested topology level for slices: {outer.level}")
    if levels.index(outer.level) < levels.index(key):
        return Failure(f"podset slice topology {outer.level} is above the podset topology {key}")
    inner = _inner_sizes(layers, levels)
    if isinstance(inner, Failure):
        return inner
    return Demand(
        count=workers.count,
        workers=workers,
        leader=leader,
        level=levels.index(key),
        required=request.mode == Mode.REQUIRED,
        unconstrained=request.mode not in (Mode.REQUIRED, Mode.PREFERRED),
        slice_level=levels.index(outer.level),
        slice_size=outer.size,
        layers=layers if inner else (),
        inner=inner,
    )


def _layers(request: TopologyRequest, levels: Sequence[str], gates: Gates) -> tuple[Layer, ...]:
    """The slice layers; without any, every pod is a slice of its own on the last level."""
    if not request.slices:
        return (Layer(levels[-1], 1),)
    return request.slices if gates.multi_layer else request.slices[:1]


def _requested_level(request: TopologyRequest, levels: Sequence[str]) -> str | None:
    if request.mode in (Mode.REQUIRED, Mode.PREFERRED):
        return request.level
    if request.slices:
        return levels[0]
    return levels[-1] if request.mode in (Mode.UNCONSTRAINED, Mode.IMPLIED) else None


def _inner_sizes(layers: Sequence[Layer], levels: Sequence[str]) -> dict[int, int] | Failure:
    """Pods that come together on each level below the slice level; a layer also rules the levels above it."""
    sizes: dict[int, int] = {}
    outer = layers[0]
    for layer in layers[1:]:
        if layer.level not in levels:
            return Failure(f"no requested topology level for additional slice layer: {layer.level}")
        above, level = levels.index(outer.level), levels.index(layer.level)
        if level <= above:
            return Failure(f"additional slice layer topology {layer.level} must be at a lower level than {outer.level}")
        if outer.size % layer.size != 0:
            return Failure(
                f"additional slice layer size {layer.size} must evenly divide parent layer size {outer.size}"
            )
        sizes.update(dict.fromkeys(range(above + 1, level + 1), layer.size))
        outer = layer
    return sizes
