"""What a scenario says in the simulator and no snapshot of a real cluster does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nvlenv.cluster.hardware import HERO_SHARE, NETWORK, NVLINK, SLICE_NODES
from nvlenv.common.errors import InputError
from nvlenv.engine.model.answers import Answer
from nvlenv.simulator.load import Rules


@dataclass(frozen=True)
class Settings(Answer):
    """The defaults are those of the scenario lab-16, on which policies are trained."""

    slice_nodes: int = SLICE_NODES  # the slice that reservations and the policy's features speak of
    hero_share: float = HERO_SHARE  # a job that asks for this share of the cluster is a hero
    max_evictions: int = 3  # a job that was evicted so often is not evicted again
    # Priority -> cost of a waiting GPU-hour of jobs that require a shape; 1 for other priorities and all other jobs.
    weights: Mapping[int, float] = field(default_factory=lambda: {4: 4.0, 3: 2.0})
    by_priority: bool = True  # evict for priority also where free GPUs would not suffice; the simulator lets that wait
    estimate_hours: float = 24.0  # of a job that says nothing, from its start
    checkpoint_hours: float = 1.0  # of work between checkpoints, of a job that says nothing
    restart_hours: float = 0.25  # of work that a restart costs, of a job that says nothing
    comm_fraction: float = 0.0  # share of a step spent in communication, of a job that says nothing
    collective: str = "recursive-doubling"
    nvlink: float = NVLINK  # GB/s
    network: float = NETWORK  # GB/s

    def __post_init__(self) -> None:
        counts = {"slice_nodes": self.slice_nodes, "max_evictions": self.max_evictions + 1}
        hours = {"estimate_hours": self.estimate_hours, "checkpoint_hours": self.checkpoint_hours + 1}
        for name, value in {**counts, **hours, "hero_share": self.hero_share}.items():
            if not value > 0:
                raise InputError("settings", name, getattr(self, name), "a positive number")

    def rules(self) -> Rules:
        """The same for the simulator: a window without an end."""
        return Rules(
            horizon=float("inf"),
            collective=self.collective,
            slice_nodes=self.slice_nodes,
            hero_share=self.hero_share,
            max_evictions=self.max_evictions,
        )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Settings:
        """The inverse of `to_dict`."""
        return cls(**{**data, "weights": {int(key): value for key, value in data["weights"].items()}})
