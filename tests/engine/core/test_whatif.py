"""A live cluster played forward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nvlenv.common.errors import InputError
from nvlenv.engine.core.whatif import Forecast, play_forward, usual_arrivals
from nvlenv.engine.model.jobs import Job, PodSet
from nvlenv.engine.model.snapshot import ClusterSnapshot
from tests.engine.clusters import HOUR, NOW, cluster, gang, node, nodes_of, tenant

HERO = gang("hero", 32, slice_pods=16, priority=4, estimate=24.0)


def forecasts(
    snapshot: ClusterSnapshot, hero: Job, *policies: str, load: float = 0.01, **options: Any
) -> list[Forecast]:
    return list(play_forward(snapshot, hero, policies, usual_arrivals(snapshot, load), NOW, **options))


def rack(number: int, **fields: float) -> Job:
    return tenant(f"t{number}", [node(number, n) for n in range(18)], preemptible=False, **fields)


def test_the_hero_starts_when_the_last_of_its_racks_is_free_by_estimate() -> None:
    jobs = [
        rack(0, start=NOW - 2 * HOUR, estimate=5.0),
        rack(1, start=NOW - 8 * HOUR, estimate=6.0),
        rack(2, estimate=99.0),
    ]

    (forecast,) = forecasts(cluster(nodes_of([18] * 3), jobs), HERO, "best-fit+easy", draws=3)

    # 3 h left of the first; the second has outlived 6 h and is taken to need 9
    assert forecast.hero_start == pytest.approx((3.0, 3.0, 3.0))
    assert forecast.started == 3


def test_a_policy_that_opens_racks_starts_it_at_once_and_says_at_what_cost() -> None:
    low = [replace(rack(number, estimate=50.0), preemptible=True) for number in range(2)]
    snapshot = cluster(
        nodes_of([18] * 4), [*low, *(tenant(f"half-{r}", [node(r, n) for n in range(9)]) for r in (2, 3))]
    )
    hero = gang("hero", 16, priority=4, estimate=5.0)

    waits, opens = forecasts(snapshot, hero, "best-fit+easy", "best-fit+open", draws=2)

    assert opens.hero_start == (0.0, 0.0)
    assert opens.evictions >= 1
    assert min(start for start in waits.hero_start if start is not None) > 1
    assert waits.evictions == 0


def test_the_same_seed_gives_the_same_forecast() -> None:
    snapshot = cluster(nodes_of([18] * 4), [rack(0, estimate=30.0)])

    first, second, other = (
        forecasts(snapshot, HERO, "least-allocated", load=0.8, hours=48.0, draws=2, seed=seed) for seed in (1, 1, 2)
    )

    assert first == second
    assert first != other


def test_a_hero_that_does_not_start_in_time_is_not_said_to() -> None:
    snapshot = cluster(nodes_of([18] * 2), [rack(0, estimate=99.0)])

    (forecast,) = forecasts(snapshot, HERO, "best-fit", hours=24.0, draws=2)

    assert forecast.hero_start == (None, None)
    assert forecast.median == float("inf")


def test_unlike_pod_sets_are_refused() -> None:
    two = Job(name="two", pod_sets=(PodSet("a", 2, 4), PodSet("b", 2, 2)))
    with pytest.raises(InputError, match="2 of unlike sizes"):
        forecasts(cluster(nodes_of([4])), two, "best-fit")
