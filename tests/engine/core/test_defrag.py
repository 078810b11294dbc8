"""Moves that free racks: which, in which order, and what stays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nvlenv.common.errors import InputError
from nvlenv.engine.core.engine import PlacementEngine
from tests.engine.clusters import NOW, cluster, node, nodes_of, tenant


def nodes_in(rack: int, first: int, count: int) -> list[str]:
    return [node(rack, n) for n in range(first, first + count)]


def test_the_cheapest_rack_is_cleared_and_pinned_work_stays() -> None:
    jobs = [
        tenant("pinned", nodes_in(0, 0, 4), preemptible=False),
        tenant("large", nodes_in(1, 0, 6)),
        tenant("small", nodes_in(2, 0, 3)),
        tenant("hole", nodes_in(3, 0, 13), preemptible=False),
    ]
    engine = PlacementEngine(cluster(nodes_of([18] * 4), jobs), at=NOW)
    before = engine.state()

    found = engine.defrag(16, at=NOW)

    assert [clearing.rack for clearing in found] == ["b0/r2", "b0/r1"]
    small, large = found
    assert (small.slots_before, small.slots_after, large.slots_after) == (0, 1, 2)
    assert (small.nodes_moved, small.slots_per_node) == (3, pytest.approx(1 / 3))
    (move,) = small.moves
    assert (move.job, move.gpus, move.nodes) == ("test/small", 12, tuple(nodes_in(2, 0, 3)))
    assert {binding.rack for binding in move.to} == {"b0/r3"}  # the fullest rack that takes it whole
    assert move.cost == pytest.approx(12 * (0.25 + 0.25))
    assert {m.job for clearing in found for m in clearing.moves} == {"test/small", "test/large"}
    assert engine.state() == before


def test_a_gang_moves_whole_and_only_movable_pods_are_spread() -> None:
    filled = [tenant(f"held-{rack}", nodes_in(rack, 0, 17), preemptible=False) for rack in (1, 2)]
    alone = cluster(nodes_of([18] * 3), [tenant("gang", nodes_in(0, 0, 3)), *filled])
    spread = cluster(nodes_of([18] * 3), [tenant("web", nodes_in(0, 0, 2), preemptible=False, movable=True), *filled])

    assert PlacementEngine(alone, at=NOW).defrag(16, at=NOW) == ()
    (clearing,) = PlacementEngine(spread, at=NOW).defrag(18, at=NOW)
    assert {b.node for b in clearing.moves[0].to} == {node(1, 17), node(2, 17)}
    assert clearing.cost == 8 * 0.25  # a rolling restart keeps its progress


def test_cpu_and_memory_decide_where_moved_pods_may_go() -> None:
    nodes = nodes_of([2, 1, 1], cpu=10_000, memory=2**30, pods=4)
    jobs = [
        tenant("moves", [node(0, 0)], gpus=2),
        tenant("greedy", [node(1, 0)], gpus=2, preemptible=False),
        tenant("modest", [node(2, 0)], gpus=2, preemptible=False),
    ]
    cores = {"moves": 4_000, "greedy": 9_000, "modest": 1_000}
    jobs = [replace(job, pods=tuple(replace(pod, cpu=cores[job.name]) for pod in job.pods)) for job in jobs]

    (clearing,) = PlacementEngine(cluster(nodes, jobs), at=NOW).defrag(2, at=NOW)

    assert [b.node for b in clearing.moves[0].to] == [node(2, 0)]


def test_a_slice_larger_than_any_rack_is_an_error() -> None:
    with pytest.raises(InputError, match="1 to 4, the nodes of the largest rack"):
        PlacementEngine(cluster(nodes_of([4])), at=NOW).defrag(16, at=NOW)


def test_where_an_earlier_move_put_a_job_is_where_it_may_be_moved_from() -> None:
    """Clearing the rack to which it went would gain nothing; nor is the job on the nodes that it had before."""
    walks = tenant("walks", nodes_in(0, 1, 3), gpus=2)

    (clearing,) = PlacementEngine(cluster(nodes_of([4, 3]), [walks]), at=NOW).defrag(2, limit=9, at=NOW)

    (move,) = clearing.moves
    assert (clearing.rack, move.nodes, clearing.slots_after) == ("b0/r0", walks.nodes, 2)


def test_pods_that_arrived_with_an_earlier_move_count_for_a_later_one() -> None:
    cores = {node(0, 1): 5_000, node(1, 1): 5_000}
    nodes = [replace(n, cpu=cores.get(n.name, 10_000)) for n in nodes_of([2, 2, 1])]
    jobs = [tenant("first", [node(0, 0)], gpus=2), tenant("second", [node(1, 0)], gpus=2)]
    jobs = [replace(job, pods=tuple(replace(pod, cpu=6_000) for pod in job.pods)) for job in jobs]

    found = PlacementEngine(cluster(nodes, jobs), at=NOW).defrag(2, limit=9, at=NOW)

    assert [[b.node for move in clearing.moves for b in move.to] for clearing in found] == [[node(2, 0)]]
