"""Inputs that once showed a mistake in the kernel, each as small as it gets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nvlenv.cluster.types import ClusterSpec, Mode, NodeEventKind, NodeEvents
from nvlenv.common.errors import InputError
from nvlenv.simulator.decision import ActionLayout
from nvlenv.simulator.load import Rules, load
from nvlenv.simulator.preemption import price_opens
from nvlenv.simulator.state import Dims, Scratch, Sim, copy_into
from nvlenv.simulator.step import advance, step
from tests.simulator.cases import CLASSES, empty_sim, make_cluster, make_workload

RULES = Rules(horizon=100.0, slice_nodes=1)
GANG = {"mode": Mode.REQUIRED, "submit": 1.0, "priority": 9}


def loaded(
    cluster: ClusterSpec,
    jobs: list[dict[str, Any]],
    rules: Rules = RULES,
    events: NodeEvents | None = None,
    dims: Dims | None = None,
) -> Sim:
    """A simulator with one queue, in the smallest arrays or in those of `dims`."""
    workload = make_workload(jobs)
    n_events = 0 if events is None else len(events.time)
    dims = dims or Dims.of(cluster, len(workload), 1, CLASSES, n_events, 4)
    sim = empty_sim(dims)
    load(sim, cluster, workload, rules, (1.0,) * CLASSES, events=events)
    return sim


def legal(sim: Sim) -> list[str]:
    layout = ActionLayout(len(sim.racks))
    return [layout.describe(int(action)) for action in np.flatnonzero(sim.mask)]


def play(sim: Sim, *actions: str) -> bool:
    """Carry out actions by name, from the first decision or the present one on; False: the window ended."""
    layout = ActionLayout(len(sim.racks))
    number = {layout.describe(action): action for action in range(layout.size)}
    alive = advance(sim) if sim.clock[0]["current"] < 0 else True
    for action in actions:
        assert alive and action in legal(sim)
        alive = step(sim, number[action])
    return bool(alive)


def node_events(*events: tuple[float, int, NodeEventKind]) -> NodeEvents:
    times, nodes, kinds = zip(*events, strict=True)
    return NodeEvents(np.array(times), np.array(nodes, np.int32), np.array(kinds, np.int8))


# --- Arrays -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("neighbour", [make_cluster([[4]] * 10, [[0]] * 10), make_cluster([[4]], [[0, 0, 0]])])
def test_a_cluster_with_more_blocks_fits_arrays_shared_with_one_of_more_racks_or_levels(neighbour: ClusterSpec) -> None:
    cluster = make_cluster([[4]] * 3, [[0], [1], [2]])
    dims = Dims.of(neighbour, 1, 1, CLASSES).union(Dims.of(cluster, 1, 1, CLASSES))
    sim = loaded(cluster, [{"gpus": 8, "gpus_per_pod": 4, "mode": Mode.PREFERRED, "height": 1}], dims=dims)
    assert advance(sim)
    assert legal(sim) == ["place[0]", "place[1]", "place[2]", "fill", "hold"]
    assert sim.cap[-1, 4] == 3


def test_opening_a_rack_of_many_one_gpu_jobs_stays_within_its_work_space() -> None:
    services = [{"preemptible": True}] * 17
    cluster = make_cluster([[8, 8], [8, 8], [8]])
    sim = loaded(cluster, [*services, {**GANG, "gpus": 16, "gpus_per_pod": 8}])
    sim.scratch[Scratch.POLICY] = -7
    assert play(sim, *["place[0]"] * 16, "place[1]")
    price_opens(sim)
    assert sim.open_gpus[0] == 16
    assert (sim.scratch[Scratch.POLICY] == -7).all()


def test_a_job_of_many_thousand_racks_is_loaded() -> None:
    sim = loaded(make_cluster([[1]] * 2), [{"gpus": 20_000, "comm_fraction": 0.5, "mode": Mode.PREFERRED}])
    assert sim.jobs[0]["ideal"] == 18.0


def test_a_pod_larger_than_every_node_is_refused() -> None:
    with pytest.raises(InputError, match=r"job 0, gpus_per_pod: found 8, expected at most 4"):
        loaded(make_cluster([[4, 2]]), [{"gpus": 8, "gpus_per_pod": 8}])


def test_a_cluster_of_smaller_nodes_is_refused_by_arrays_for_larger_ones() -> None:
    dims = Dims.of(make_cluster([[8]]), 1, 1, CLASSES)
    with pytest.raises(InputError, match="gpus_per_node: found 4, expected 8"):
        loaded(make_cluster([[4]]), [{"gpus": 1}], dims=dims)


def test_copying_takes_the_samples_along() -> None:
    sim, twin = (loaded(make_cluster([[4]]), [{"gpus": 1, "submit": 2.5}]) for _ in range(2))
    assert advance(sim)
    copy_into(twin, sim)
    assert list(twin.samples[:3, 0]) == [0.0, 1.0, 2.0]


# --- Nodes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stray", [NodeEventKind.REPAIR, NodeEventKind.UNCORDON])
def test_a_repair_or_uncordon_without_a_cause_changes_nothing(stray: NodeEventKind) -> None:
    sim = loaded(make_cluster([[4]]), [{"gpus": 4, "submit": 2.0}], events=node_events((1.0, 0, stray)))
    assert advance(sim)
    assert legal(sim) == ["place[0]", "fill", "hold"]


def test_an_uncordon_does_not_bring_back_a_failed_node() -> None:
    events = node_events((0.5, 0, NodeEventKind.FAIL), (1.0, 0, NodeEventKind.UNCORDON), (3.0, 0, NodeEventKind.REPAIR))
    sim = loaded(make_cluster([[4]]), [{"gpus": 4, "submit": 2.0}], events=events)
    assert advance(sim)
    assert sim.clock[0]["now"] == 3.0


# --- Opening ----------------------------------------------------------------------------------------------------------


def test_a_job_that_is_evicted_costs_its_lost_work_even_if_it_could_be_moved() -> None:
    service = {"gpus": 3, "gpus_per_pod": 3}
    jobs = [
        {**service, "preemptible": True, "movable": True},  # evicted, it loses 1 h of work
        {**service, "preemptible": True, "checkpoint_interval": 0.0, "restart_time": 0.5},
        *[service] * 2,
        {**GANG, "gpus": 4, "gpus_per_pod": 4},
    ]
    sim = loaded(make_cluster([[4] * 4]), jobs)
    assert play(sim, *["place[0]"] * 4)
    price_opens(sim)
    assert (sim.open_gpus[0], sim.open_lost[0]) == (3.0, 1.5)
    assert play(sim, "open[0]")
    assert list(sim.jobs["evictions"]) == [0, 1, 0, 0, 0]


def test_moving_a_job_off_a_cordoned_node_does_not_strand_the_opener() -> None:
    jobs = [
        {"gpus": 2, "movable": True},  # on nodes 0 and 1
        {"preemptible": True},  # on node 2
        {"gpus": 2, "gpus_per_pod": 2},  # on node 3
        {**GANG, "gpus": 8, "gpus_per_pod": 4, "slice_gpus": 4},
    ]
    events = node_events((0.5, 0, NodeEventKind.CORDON))
    sim = loaded(make_cluster([[1], [4], [4], [4]]), jobs, events=events)
    # Job 0 leaves 1 usable GPU and takes 2: after the first slice, 3 are free where the second needs 4.
    assert play(sim, "fill", "place[2]", "place[3]", "open[1]")
    assert legal(sim) == ["open[2]", "hold"]


def test_a_rack_opened_for_the_job_before_takes_moved_pods_again() -> None:
    jobs = [
        {"gpus": 3, "gpus_per_pod": 3},
        {"gpus": 2, "gpus_per_pod": 2, "movable": True},  # cleared from rack 0 for the first gang, to rack 2
        {"movable": True},  # cleared from rack 1 for the second gang, to the hole beside job 0
        {"gpus": 2, "gpus_per_pod": 2},
        {**GANG, "gpus": 4, "gpus_per_pod": 4},
        {**GANG, "gpus": 4, "gpus_per_pod": 4, "submit": 1.5},
    ]
    sim = loaded(make_cluster([[4, 4], [4], [4]]), jobs)
    assert play(sim, "place[0]", "place[0]", "place[1]", "place[2]", "open[0]")
    assert sim.clock[0]["now"] == 1.5
    assert legal(sim) == ["open[1]", "hold"]
