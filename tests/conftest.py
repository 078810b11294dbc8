"""Scenarios that the tests of the environment share, and how hypothesis runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings

from nvlenv.envs.scenario import Scenario, load_scenario

settings.register_profile("kernels", deadline=None)  # the first example may wait for the compiler
settings.load_profile("kernels")

# Four racks, two days, many heroes of half the cluster: everything happens within a few hundred decisions.
SMALL = (
    "cluster.racks=4",
    "episode.hours=48",
    "workload.classes.pre-training.sizes={64: 0.7, 128: 0.3}",
    "workload.classes.pre-training.share=0.1",
    "workload.classes.hero.sizes={128: 0.5, 192: 0.5}",
    "workload.classes.hero.share=0.03",
)


@pytest.fixture(scope="session")
def small_overrides() -> tuple[str, ...]:
    """What makes the default scenario small."""
    return SMALL


@pytest.fixture(scope="session")
def make_small() -> Callable[..., Scenario]:
    """Builds a small scenario with further overrides."""
    return lambda *overrides: load_scenario("lab-16", (*SMALL, *overrides))


@pytest.fixture(scope="session")
def small(make_small: Callable[..., Scenario]) -> Scenario:
    return make_small()
