"""Racks are kept for a waiting job, but not for ever if it cannot have them."""

from __future__ import annotations

import pytest

from nvlenv.cluster.types import Mode, QueueSpec
from nvlenv.engine.core.engine import PlacementEngine
from nvlenv.engine.model.answers import Placed
from nvlenv.engine.model.jobs import Job
from nvlenv.engine.model.settings import Settings
from nvlenv.engine.model.snapshot import ClusterSnapshot
from tests.engine.clusters import HOUR, NOW, cluster, gang, node, nodes_of, tenant

POLICIES = ("best-fit+easy+open", "best-fit+easy(slices=1,patience=20)+drain(hours=4)+open")
DAYS = 10


def in_two_halves() -> ClusterSnapshot:
    """Two blocks of two racks; in each, work that never ends holds one rack."""
    held = [tenant(f"h{r}", [node(r, n) for n in range(4)], preemptible=False, start=NOW, estimate=1e5) for r in (0, 2)]
    return cluster(nodes_of([4, 4, 4, 4], blocks=[0, 0, 1, 1]), held)


def without_quota() -> ClusterSnapshot:
    """Four free racks, and a queue of 16 GPUs of which work that never ends holds four."""
    user = tenant("user", [node(0, 0)], queue="q", preemptible=False, start=NOW, estimate=1e5)
    return cluster(nodes_of([4, 4, 4, 4]), [user], [QueueSpec("q", 16)])


def share_used(snapshot: ClusterSnapshot, hero: Job, policy: str) -> float:
    """Share of the free GPUs that one-node jobs of a day find when they are asked for again and again, hero waiting."""
    engine = PlacementEngine(snapshot, policy, Settings(slice_nodes=4), at=NOW)
    free = engine.slots().free_gpus
    engine.enqueue(hero, at=NOW)
    running: list[tuple[float, str]] = []
    for hour in range(0, 24 * DAYS, 6):
        at = NOW + hour * HOUR
        for end, job in [entry for entry in running if entry[0] <= at]:
            engine.finish(job, at=at)
            running.remove((end, job))
        assert not isinstance(engine.place(hero, at=at), Placed), "the case is one in which it cannot start"
        for number in range(4):
            small = gang(f"s{hour}-{number}", 1, mode=Mode.UNCONSTRAINED, estimate=24.0, preemptible=False)
            answer = engine.place(small, at=at)
            if isinstance(answer, Placed):
                running.append((at + 24 * HOUR, answer.job))
    return 1.0 - engine.slots().free_gpus / free


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("snapshot", "hero"),
    [
        pytest.param(in_two_halves(), gang("hero", 8, level="block", priority=4), id="no block has both racks"),
        pytest.param(without_quota(), gang("hero", 4, queue="q", priority=4), id="others hold its quota"),
    ],
)
def test_a_hero_that_cannot_start_does_not_keep_others_waiting_for_days(
    snapshot: ClusterSnapshot, hero: Job, policy: str
) -> None:
    assert share_used(snapshot, hero, policy) > 0.75  # what it lacks beside quota may be kept for it
