"""Clusters and trace files that the workload tests share."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from nvlenv.cluster.types import ClusterSpec

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "cases" / "traces"


def _make_cluster(
    racks: int = 16, nodes: int = 18, gpus: int = 4, blocks: int = 2, cordoned: Sequence[int] = ()
) -> ClusterSpec:
    """`racks` racks of `nodes` nodes of `gpus` GPUs each, in `blocks` blocks of neighbouring racks."""
    count = racks * nodes
    off = np.zeros(count, np.bool_)
    off[list(cordoned)] = True
    return ClusterSpec(
        levels=("block", "rack", "hostname"),
        rack_names=tuple(f"rack-{rack:02d}" for rack in range(racks)),
        rack_parents=(np.arange(racks) * blocks // racks).astype(np.int32).reshape(-1, 1),
        node_names=tuple(f"node-{node:04d}" for node in range(count)),
        node_rack=np.repeat(np.arange(racks), nodes).astype(np.int32),
        node_gpus=np.full(count, gpus, np.int32),
        cordoned=off,
    )


@pytest.fixture(scope="session")
def make_cluster() -> Callable[..., ClusterSpec]:
    return _make_cluster


@pytest.fixture(scope="session")
def lab16() -> ClusterSpec:
    """The 16 racks of the default scenario."""
    return _make_cluster()


@pytest.fixture(scope="session")
def cases() -> Path:
    return CASES


@pytest.fixture(scope="session")
def trace_archive() -> Path:
    """The folder with the larger traces, which are not part of this repository."""
    places = [os.environ.get("NVLENV_TRACES"), ROOT / "shared" / "traces", ROOT.parent / "shared" / "traces"]
    for place in places:
        if place and Path(place).is_dir():
            return Path(place)
    pytest.skip("the larger traces are not here: set NVLENV_TRACES to their folder")
