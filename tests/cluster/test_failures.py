"""Streams of node events: sorted, balanced, reproducible, and at the rates that were asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nvlenv.cluster.failures import Failures, Maintenance, Verification, child_seeds, merge_events
from nvlenv.cluster.topology import uniform_cluster
from nvlenv.cluster.types import ClusterSpec, NodeEventKind, NodeEvents
from nvlenv.common.errors import InputError

FAIL, REPAIR, CORDON, UNCORDON, VERIFY, VERIFY_END = NodeEventKind
CLUSTER = uniform_cluster(4, blocks=2, nodes_per_rack=(5, 4, 3, 5))

failures = st.builds(
    Failures,
    node_mtbf_hours=st.sampled_from([5.0, 100.0, np.inf]),
    node_repair_hours=st.floats(0.1, 50),
    rack_mtbf_hours=st.sampled_from([20.0, 1000.0, np.inf]),
    rack_repair_hours=st.floats(0.1, 50),
    repair_sigma=st.sampled_from([0.0, 1.0]),
    maintenance=st.lists(
        st.builds(
            Maintenance,
            start=st.floats(0, 120),
            hours=st.floats(0.5, 30),
            racks=st.lists(st.integers(0, 3), max_size=3).map(tuple),
            grace_hours=st.sampled_from([None, 0.0, 0.25]),
        ),
        max_size=3,
    ).map(tuple),
)
seeds = st.integers(0, 2**32 - 1).map(np.random.SeedSequence)


def triples(events: NodeEvents) -> list[tuple[float, int, int]]:
    return list(zip(events.time.tolist(), events.node.tolist(), events.kind.tolist(), strict=True))


def quiet(**changes: object) -> Failures:
    """Nothing fails by chance but what `changes` say."""
    return Failures.model_validate({"node_mtbf_hours": np.inf, "rack_mtbf_hours": np.inf, **changes})


@given(failures, seeds)
def test_events_are_sorted_and_before_the_end(config: Failures, seed: np.random.SeedSequence) -> None:
    events = config.draw(CLUSTER, 100.0, seed)
    drawn = triples(events)
    assert drawn == sorted(drawn)
    assert np.all((events.time >= 0) & (events.time < 100.0))
    assert np.all((events.node >= 0) & (events.node < CLUSTER.nodes))
    assert (events.time.dtype, events.node.dtype, events.kind.dtype) == (np.float64, np.int32, np.int8)


@given(failures, seeds)
def test_no_node_comes_back_before_it_went(config: Failures, seed: np.random.SeedSequence) -> None:
    events = config.draw(CLUSTER, 100.0, seed)
    for down, up in ((FAIL, REPAIR), (CORDON, UNCORDON)):
        change = np.where(events.kind == down, 1, np.where(events.kind == up, -1, 0))
        for node in range(CLUSTER.nodes):
            assert np.all(np.cumsum(change[events.node == node]) >= 0)


@given(failures, seeds, st.floats(1, 150))
def test_a_longer_window_only_adds_events_at_the_end(
    config: Failures, seed: np.random.SeedSequence, hours: float
) -> None:
    shorter, longer = config.draw(CLUSTER, hours, seed), config.draw(CLUSTER, 150.0, seed)
    assert triples(shorter) == triples(longer)[: len(shorter.time)]
    assert np.all(longer.time[len(shorter.time) :] >= hours)


def test_the_same_seed_gives_the_same_events_again() -> None:
    seed = np.random.SeedSequence(3)
    config = Failures(node_mtbf_hours=10)
    assert triples(config.draw(CLUSTER, 50, seed)) == triples(config.draw(CLUSTER, 50, seed))
    assert triples(config.draw(CLUSTER, 50, seed)) != triples(config.draw(CLUSTER, 50, np.random.SeedSequence(4)))


def test_rack_failures_do_not_move_node_failures() -> None:
    seed = np.random.SeedSequence(3)
    nodes_only = Failures(node_mtbf_hours=10, rack_mtbf_hours=np.inf).draw(CLUSTER, 50, seed)
    both = Failures(node_mtbf_hours=10, rack_mtbf_hours=20).draw(CLUSTER, 50, seed)
    assert set(triples(nodes_only)) < set(triples(both))


def test_a_rack_fails_and_returns_as_a_whole() -> None:
    events = quiet(rack_mtbf_hours=30).draw(CLUSTER, 300, np.random.SeedSequence(1))
    for time in np.unique(events.time):
        hit = events.node[events.time == time]
        rack = CLUSTER.node_rack[hit[0]]
        assert hit.tolist() == np.flatnonzero(CLUSTER.node_rack == rack).tolist()


def test_a_node_does_not_fail_while_it_is_repaired() -> None:
    events = quiet(node_mtbf_hours=2).draw(CLUSTER, 200, np.random.SeedSequence(1))
    for node in range(CLUSTER.nodes):
        kinds = events.kind[events.node == node]
        assert kinds[::2].tolist() == [FAIL] * len(kinds[::2])
        assert kinds[1::2].tolist() == [REPAIR] * len(kinds[1::2])


def test_rates_and_repair_times_are_those_asked_for() -> None:
    cluster: ClusterSpec = uniform_cluster(50, nodes_per_rack=18)
    config = quiet(node_mtbf_hours=100.0, node_repair_hours=4.0, repair_sigma=1.0)
    events = config.draw(cluster, 1000.0, np.random.SeedSequence(5))
    up_share = 100 / (100 + 4 * np.exp(0.5))
    expected = cluster.nodes * 1000 / 100 * up_share
    assert np.count_nonzero(events.kind == FAIL) == pytest.approx(expected, rel=0.05)
    order = np.lexsort((events.time, events.node))
    time, kind = events.time[order], events.kind[order]
    repaired = np.flatnonzero(kind == REPAIR)
    assert np.median(time[repaired] - time[repaired - 1]) == pytest.approx(4.0, rel=0.1)


def test_without_spread_every_repair_takes_as_long() -> None:
    events = quiet(node_mtbf_hours=20, node_repair_hours=3.0, repair_sigma=0).draw(
        uniform_cluster(1, nodes_per_rack=1), 500, np.random.SeedSequence(2)
    )
    pairs = len(events.time) // 2
    assert pairs > 5
    assert events.time[1 : 2 * pairs : 2] - events.time[0 : 2 * pairs : 2] == pytest.approx(3.0)


def test_defaults_are_the_published_rates() -> None:
    """Unexpected interruptions per GPU-day lie between Llama 3 (4.7e-4) and RSC-1 (8.1e-4), 8 % of them rack-wide."""
    config = Failures()
    per_gpu_day = 24 / config.node_mtbf_hours / 4 + 24 / config.rack_mtbf_hours / 72
    assert 4.7e-4 < per_gpu_day < 8.1e-4
    assert 24 / config.rack_mtbf_hours / 72 / per_gpu_day == pytest.approx(0.08, abs=0.01)


def test_maintenance_cordons_exactly_its_racks() -> None:
    window = Maintenance(start=10, hours=5, racks=(1, 2))
    events = quiet(maintenance=(window,)).draw(CLUSTER, 100, np.random.SeedSequence(0))
    nodes = np.flatnonzero(np.isin(CLUSTER.node_rack, [1, 2])).tolist()
    assert triples(events) == [(10, n, CORDON) for n in nodes] + [(15, n, UNCORDON) for n in nodes]


def test_maintenance_beyond_the_cluster_is_refused() -> None:
    config = quiet(maintenance=({"start": 0, "hours": 1, "racks": [1, 4]},))
    with pytest.raises(InputError, match=r"maintenance\.0\.racks: found 4, expected rack numbers below 4"):
        config.draw(CLUSTER, 10, np.random.SeedSequence(0))


@given(st.floats(0.5, 40), st.floats(0.01, 0.99), st.floats(1, 200), seeds)
def test_every_node_is_verified_once_per_period(
    every: float, share: float, hours: float, seed: np.random.SeedSequence
) -> None:
    config = Verification(every_hours=every, duration_hours=every * share)
    events = config.draw(CLUSTER, hours, seed)
    assert triples(events) == sorted(triples(events))
    for node in range(CLUSTER.nodes):
        mine = events.node == node
        begins, ends = events.time[mine & (events.kind == VERIFY)], events.time[mine & (events.kind == VERIFY_END)]
        assert int(hours // every) <= len(begins) <= int(hours // every) + 1
        assert np.diff(begins) == pytest.approx(every)
        assert ends == pytest.approx(begins[: len(ends)] + every * share)


def test_nodes_are_verified_at_different_times() -> None:
    begins = Verification().draw(CLUSTER, 24.0, np.random.SeedSequence(0)).time
    assert len(np.unique(begins)) == len(begins)


@pytest.mark.parametrize(
    "settings",
    [{"node_mtbf_hours": 0.5}, {"node_mtbf_hours": float("nan")}, {"rack_repair_hours": 0}, {"repair_sigma": -1}],
)
def test_impossible_rates_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Failures.model_validate(settings)


def test_a_verification_that_outlasts_its_period_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"duration_hours: found 2\.0, expected less than 2"):
        Verification(every_hours=2, duration_hours=2)


def test_merging_nothing_gives_no_events() -> None:
    assert len(merge_events([]).time) == 0


def test_child_seeds_leave_the_seed_as_it_was_and_match_spawn() -> None:
    seed = np.random.SeedSequence(9, spawn_key=(2,))
    first, again = child_seeds(seed, 3), child_seeds(seed, 3)
    spawned = np.random.SeedSequence(9, spawn_key=(2,)).spawn(3)
    states = [[s.generate_state(2).tolist() for s in group] for group in (first, again, spawned)]
    assert states[0] == states[1] == states[2]
    assert len({tuple(s) for s in states[0]}) == 3


def test_a_drain_ends_jobs_after_its_grace_and_gives_the_racks_back_at_its_end() -> None:
    window = Maintenance(start=5, hours=8, grace_hours=2, racks=(1,))
    nodes = np.flatnonzero(CLUSTER.node_rack == 1)

    events = window.events(CLUSTER)

    expected = [(5.0, CORDON), (7.0, FAIL), (13.0, REPAIR), (13.0, UNCORDON)]
    for time, kind in expected:
        assert events.node[(events.time == time) & (events.kind == kind)].tolist() == nodes.tolist()
    assert len(events.time) == len(expected) * len(nodes)


def test_a_grace_as_long_as_the_window_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"grace_hours: found 8\.0, expected less than the 8 of hours"):
        Maintenance(start=5, hours=8, grace_hours=8, racks=(1,))
