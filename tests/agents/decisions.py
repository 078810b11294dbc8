"""Decisions of real episodes, recorded for the tests of network, policy and export; and networks far from the prior."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from agents.learning.network import PlacementNetwork
from nvlenv.envs.batch import Batch
from nvlenv.envs.scenario import load_scenario
from nvlenv.policies.observation import RACK_FEATURES

LEFT = [f.name for f in RACK_FEATURES].index("left")
AT_RANDOM = 0.15  # share of decisions answered by any legal action, so that odd situations come up too


@dataclass(frozen=True)
class Recorded:
    """N decisions on clusters of R racks."""

    racks: NDArray[np.float32]  # (N, R, F)
    job: NDArray[np.float32]  # (N, J)
    cluster: NDArray[np.float32]  # (N, C)
    mask: NDArray[np.bool_]  # (N, 2R + 2)

    def __len__(self) -> int:
        return len(self.mask)

    def observation(self) -> dict[str, NDArray[np.float32]]:
        return {"racks": self.racks, "job": self.job, "cluster": self.cluster}

    def tensors(self, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        racks, job, cluster = (torch.from_numpy(array).to(dtype) for array in self.observation().values())
        return racks, job, cluster


@cache
def record(n: int, scenario: str = "lab-16", racks: int | None = None) -> Recorded:
    """n decisions of loosely played best fit."""
    overrides = () if racks is None else (f"cluster.racks={racks}", "hero_share=0.5")
    rng, simulators = np.random.default_rng(n), 1 + n // 200
    batch = Batch(load_scenario(scenario, overrides), simulators, np.random.SeedSequence(n), stagger=True)
    steps = list(_play(batch, rng, -(-n // simulators)))
    return Recorded(*(np.concatenate(parts)[:n] for parts in zip(*steps, strict=True)))


def _play(batch: Batch, rng: np.random.Generator, steps: int) -> Iterator[tuple[NDArray[np.generic], ...]]:
    racks = batch.layout.racks
    for _ in range(steps):
        yield batch.racks.copy(), batch.job.copy(), batch.cluster.copy(), batch.mask.copy()
        keys = rng.random(batch.mask.shape)
        loose = rng.random(batch.n) < AT_RANDOM
        keys[~loose, :racks] = 10.0 - batch.racks[~loose, :, LEFT]
        keys[~loose, -1] = 0.0
        batch.step(np.where(batch.mask, keys, -1.0).argmax(axis=1))
        for i in np.flatnonzero(batch.done):
            batch.reset(i)


def perturbed(seed: int = 0, hidden: int = 32, size: float = 0.5) -> PlacementNetwork:
    """A network whose logits are nowhere near the prior's."""
    torch.manual_seed(seed)
    network = PlacementNetwork(hidden)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(size * torch.randn_like(parameter))
    return network
