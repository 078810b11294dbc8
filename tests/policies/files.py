"""Weights and observations made up for the tests of policy files."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nvlenv.policies.inference import shapes
from nvlenv.policies.observation import N_CLUSTER, N_JOB, N_RACK

Arrays = dict[str, NDArray[Any]]
Observation = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]


def random_arrays(seed: int = 0, hidden: int = 8) -> Arrays:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape) / 2 for name, shape in shapes(hidden).items()}


def random_observation(racks: int, seed: int = 0) -> Observation:
    """Features on the observation's grid; every rack exists."""
    rng = np.random.default_rng(seed)
    rows, job, cluster = (
        (rng.integers(-4096, 4097, size=shape) / 4096).astype(np.float32)
        for shape in ((racks, N_RACK), (N_JOB,), (N_CLUSTER,))
    )
    rows[:, 0] = 1.0
    return rows, job, cluster
