"""What happens to nodes: failures, maintenance windows and verification pods, drawn before the episode starts.

`Failures` and `Verification` are the sections of a scenario; `draw` turns each into `NodeEvents`. The streams of one
seed do not depend on the length of the window: a longer one only adds events at its end.

FAIL and REPAIR, CORDON and UNCORDON are counted per node: a node on which its own failure and that of its rack overlap
fails twice and is back after its second repair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from nvlenv.cluster.types import ClusterSpec, FloatArray, IntArray, NodeEventKind, NodeEvents
from nvlenv.common.config import Model, NonNegative, Positive
from nvlenv.common.errors import InputError

# Mean time between failures of clusters of H100-class GPUs, from public reports:
# - Llama 3 405B: 419 unexpected interruptions in 54 days on 16,384 GPUs = 4.7e-4 per GPU-day (arXiv 2407.21783);
# - Meta RSC-1: 6.5 failures per 1000 node-days of 8 GPUs = 8.1e-4 per GPU-day (HPCA 2025);
# - 35 of the 419 (8 %) lie in the network, which takes a whole rack or leaf along.
# So 6.5e-4 per GPU-day; 92 % of that on a node of 4 GPUs, 8 % on a rack of 72. A crash whose cause is not a broken part
# ends the job all the same, so it counts on a node, too.
NODE_MTBF_HOURS = 10_000.0  # 24 h / (0.92 * 6.5e-4 * 4)
RACK_MTBF_HOURS = 6_400.0  # 24 h / (0.08 * 6.5e-4 * 72)
# Repair times are not in those reports. Assumed: a drained node is back within a shift, often after a mere reset; a
# switch tray or a cooling loop takes longer. The wide spread stands for resets and replaced parts alike.
NODE_REPAIR_HOURS = 4.0
RACK_REPAIR_HOURS = 6.0
REPAIR_SIGMA = 1.0

Mtbf = Annotated[float, Field(ge=1, allow_inf_nan=True)]  # h; .inf in YAML: never fails


class Maintenance(Model):
    """A planned window in which whole racks take no new pods. Running jobs stay, or are drained after a grace."""

    start: NonNegative  # h since the start of the episode
    hours: Positive
    racks: tuple[Annotated[int, Field(ge=0)], ...]  # rack numbers
    grace_hours: NonNegative | None = None  # after so long the racks go down, with what still runs; None: never

    @model_validator(mode="after")
    def _drains_inside_the_window(self) -> Self:
        if self.grace_hours is not None and self.grace_hours >= self.hours:
            raise InputError("maintenance", "grace_hours", self.grace_hours, f"less than the {self.hours:g} of hours")
        return self

    def events(self, cluster: ClusterSpec) -> NodeEvents:
        """CORDON at the start and UNCORDON at the end of the window, for every node of its racks.

        With a grace they also go down, as by a failure: FAIL after it, REPAIR at the end.
        """
        nodes = np.flatnonzero(np.isin(cluster.node_rack, self.racks)).astype(np.int32)
        begin, end = np.full(len(nodes), self.start), np.full(len(nodes), self.start + self.hours)
        spans = [_span(begin, end, nodes, NodeEventKind.CORDON, NodeEventKind.UNCORDON)]
        if self.grace_hours is not None:
            spans.append(_span(begin + self.grace_hours, end, nodes, NodeEventKind.FAIL, NodeEventKind.REPAIR))
        return merge_events(spans)


class Failures(Model):
    """Random failures of nodes and racks, and planned maintenance.

    Time to failure is exponential. Repair is lognormal with the given median and `repair_sigma` (natural log), or
    always the same if that is 0. A unit does not fail while it is being repaired.
    """

    node_mtbf_hours: Mtbf = NODE_MTBF_HOURS
    node_repair_hours: Positive = NODE_REPAIR_HOURS  # median
    rack_mtbf_hours: Mtbf = RACK_MTBF_HOURS
    rack_repair_hours: Positive = RACK_REPAIR_HOURS  # median
    repair_sigma: Annotated[float, Field(ge=0, le=3)] = REPAIR_SIGMA
    maintenance: tuple[Maintenance, ...] = ()

    def draw(self, cluster: ClusterSpec, hours: float, seed: np.random.SeedSequence) -> NodeEvents:
        """FAIL, REPAIR, CORDON and UNCORDON events before `hours`, sorted by (time, node, kind).

        Raises `InputError` if a maintenance window names a rack that the cluster does not have.
        """
        self.check(cluster)
        node_seed, rack_seed = child_seeds(seed, 2)
        of_nodes = self._outages(cluster.nodes, self.node_mtbf_hours, self.node_repair_hours, hours, node_seed)
        down, up, rack = self._outages(cluster.racks, self.rack_mtbf_hours, self.rack_repair_hours, hours, rack_seed)
        outage, member = np.nonzero(rack[:, None] == cluster.node_rack)
        fail, repair = NodeEventKind.FAIL, NodeEventKind.REPAIR
        return merge_events(
            [
                _span(*of_nodes, fail, repair),
                _span(down[outage], up[outage], member.astype(np.int32), fail, repair),
                *(window.events(cluster) for window in self.maintenance),
            ],
            hours,
        )

    def check(self, cluster: ClusterSpec) -> None:
        """Raise `InputError` for the first maintenance window on a rack that does not exist."""
        for i, window in enumerate(self.maintenance):
            for rack in window.racks:
                if rack >= cluster.racks:
                    raise InputError("failures", f"maintenance.{i}.racks", rack, f"rack numbers below {cluster.racks}")

    def _outages(
        self, units: int, mtbf: float, median_repair: float, hours: float, seed: np.random.SeedSequence
    ) -> tuple[FloatArray, FloatArray, IntArray]:
        """Start, end and unit of every outage that starts before `hours`; unit by unit they do not overlap."""
        rng, downs, ups, back = np.random.default_rng(seed), [], [], np.zeros(units)
        while np.any(back < hours) and np.isfinite(mtbf):
            downs.append(back + rng.exponential(mtbf, units))
            back = downs[-1] + median_repair * np.exp(self.repair_sigma * rng.standard_normal(units))
            ups.append(back)
        down, up = np.array(downs).reshape(-1), np.array(ups).reshape(-1)
        unit = np.tile(np.arange(units, dtype=np.int32), len(downs))
        begun = down < hours
        return down[begun], up[begun], unit[begun]


class Verification(Model):
    """Short whole-node test pods, started on a node if it is idle."""

    counted: bool = False  # True: they count as usage, so that racks and quota look full
    every_hours: Positive = 24.0  # between the tests of one node
    duration_hours: Positive = 0.5

    @model_validator(mode="after")
    def _ends_before_the_next(self) -> Self:
        if self.duration_hours >= self.every_hours:
            raise InputError("verification", "duration_hours", self.duration_hours, f"less than {self.every_hours:g}")
        return self

    def draw(self, cluster: ClusterSpec, hours: float, seed: np.random.SeedSequence) -> NodeEvents:
        """VERIFY and VERIFY_END events before `hours`, each node at its own phase, sorted by (time, node, kind)."""
        phase = np.random.default_rng(seed).uniform(0.0, self.every_hours, cluster.nodes)
        rounds = np.arange(int(np.ceil(hours / self.every_hours)))
        begin = (phase + self.every_hours * rounds[:, None]).reshape(-1)
        node = np.tile(np.arange(cluster.nodes, dtype=np.int32), len(rounds))
        span = _span(begin, begin + self.duration_hours, node, NodeEventKind.VERIFY, NodeEventKind.VERIFY_END)
        return merge_events([span], hours)


def merge_events(streams: Sequence[NodeEvents], hours: float = np.inf) -> NodeEvents:
    """All events before `hours` in one stream, sorted by (time, node, kind)."""
    if not streams:
        return NodeEvents.none()
    time = np.concatenate([s.time for s in streams])
    node = np.concatenate([s.node for s in streams])
    kind = np.concatenate([s.kind for s in streams])
    order = np.lexsort((kind, node, time))
    order = order[time[order] < hours]
    return NodeEvents(time[order], node[order], kind[order])


def child_seeds(seed: np.random.SeedSequence, n: int) -> list[np.random.SeedSequence]:
    """The first n children of a seed, always the same ones; unlike `spawn`, the seed does not count them."""
    return np.random.SeedSequence(seed.entropy, spawn_key=seed.spawn_key, pool_size=seed.pool_size).spawn(n)


def _span(begin: FloatArray, end: FloatArray, node: IntArray, first: NodeEventKind, last: NodeEventKind) -> NodeEvents:
    """One event at the begin and one at the end of each interval."""
    kind = np.repeat(np.array([first, last], np.int8), len(node))
    return NodeEvents(np.concatenate([begin, end]), np.concatenate([node, node]), kind)
