"""What a policy is asked and what it answers: `Policy` is `Decision -> Action`, for all kinds of policies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nvlenv.cluster.types import BoolArray
from nvlenv.simulator.state import Sim


@dataclass(frozen=True)
class ActionLayout:
    """One masked Discrete(2R + 2): place[0..R), open[0..R), fill, hold."""

    racks: int

    @property
    def size(self) -> int:
        """How many actions there are."""
        return 2 * self.racks + 2

    @property
    def fill(self) -> int:
        """Put the rest of the present slice into the tightest holes."""
        return 2 * self.racks

    @property
    def hold(self) -> int:
        """Let the job wait for the next instant."""
        return 2 * self.racks + 1

    def place(self, rack: int) -> int:
        """Put as much of the present slice on this rack as fits."""
        return rack

    def open(self, rack: int) -> int:
        """Evict or move others from this rack so that it holds one more slice, and place that."""
        return self.racks + rack

    def describe(self, action: int) -> str:
        """`place[3]`, `open[0]`, `fill` or `hold`."""
        if not 0 <= action < self.size:
            return f"illegal[{action}]"
        if action < self.racks:
            return f"place[{action}]"
        if action < self.fill:
            return f"open[{action - self.racks}]"
        return "fill" if action == self.fill else "hold"


@dataclass(frozen=True)
class Decision:
    """What a policy is asked: the cluster as it is now, the job at hand, and the legal actions."""

    sim: Sim  # arrays of the simulator; read-only for policies
    mask: BoolArray  # (2R + 2,) True: legal
    layout: ActionLayout = field(repr=False)

    @property
    def job(self) -> int:
        """Index of the job in the workload."""
        return int(self.sim.clock["current"][0])


Action = int
Policy = Callable[[Decision], Action]
