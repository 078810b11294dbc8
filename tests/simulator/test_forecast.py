"""Drain time, readiness and reservation of racks: equal to a look at every GPU, at every decision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nvlenv.cluster.types import Mode
from nvlenv.envs.batch import Batch
from nvlenv.envs.scenario import Scenario
from nvlenv.policies.observation import PATIENCE
from nvlenv.simulator.forecast import pool_start, refresh_for
from nvlenv.simulator.load import Rules, load
from nvlenv.simulator.state import RUNNING, Dims, Sim, allocate, view
from nvlenv.simulator.step import advance, step
from tests.simulator.cases import make_cluster, make_workload

INF = math.inf


def predicted_end(sim: Sim, j: int) -> float:
    """By the estimate; each time the job outlives it, half as long again (at least a minute)."""
    job, now = sim.jobs[j], float(sim.clock["now"][0])
    run = float(job["predicted"] - job["start"])
    while job["start"] + run <= now:
        run = max(1 / 60, 1.5 * run)
    return float(job["start"] + run)


def rack_forecast(sim: Sim, r: int, nodes: int) -> tuple[float, float]:
    """When rack r drains, and when so many of its nodes are free."""
    now, g = float(sim.clock["now"][0]), sim.cap.shape[1] - 1
    drain, releases = now, []
    for n in range(sim.racks[r]["node0"], sim.racks[r]["node1"]):
        jobs = {int(j) for j in sim.gpu_job[n * g : (n + 1) * g] if j >= 0}
        if sim.nodes[n]["blocked"] or any(sim.jobs[j]["status"] != RUNNING for j in jobs):
            continue  # it cannot be said when
        releases.append(max([now, *(predicted_end(sim, j) for j in jobs)]))
        drain = max(drain, releases[-1])
    return drain, sorted(releases)[nodes - 1] if nodes <= len(releases) else INF


def urgency(sim: Sim, j: int, patience: float) -> float:
    job = sim.jobs[j]
    return float(sim.classes[job["klass"]]["weight"] / (job["estimate_error"] * job["work"] + patience))


def find_target(sim: Sim, least: int, patience: float) -> int:
    """The first waiting job of at least so many GPUs, or with patience the most urgent one; -1: none."""
    line = [int(j) for j in sim.waiting[: sim.clock[0]["n_waiting"]] if sim.jobs[j]["gpus"] >= least]
    if not line or not patience:
        return line[0] if line else -1
    return max(line, key=lambda j: urgency(sim, j, patience))


def target_needs(sim: Sim, target: int) -> tuple[int, int]:
    """The nodes that make a rack ready for the target, and how many such racks it still needs."""
    c, g = sim.clock[0], sim.cap.shape[1] - 1
    if target < 0:
        return int(c["slice_nodes"]), 0
    job, widest = sim.jobs[target], int((sim.racks["node1"] - sim.racks["node0"]).max())
    units = int(c["slices_left"] if target == c["current"] else job["slices"])
    unit = math.ceil(job["slice_pods"] * job["pod_gpus"] / g)
    if unit > widest:
        return widest, math.ceil(units * unit / widest)
    return unit * (widest // unit), math.ceil(units / (widest // unit))


def hours_to_pool(sim: Sim, gpus: int) -> float:
    """Hours until so many GPUs are free anywhere, as running jobs end one after the other."""
    free, now = int(sim.cap[-1, 1]), float(sim.clock["now"][0])
    ends = sorted((predicted_end(sim, int(j)), int(j)) for j in sim.heap[: sim.clock[0]["n_running"]])
    for end, j in [(now, -1), *ends]:
        free += int(sim.jobs[j]["gpus"]) if j >= 0 else 0
        if free >= gpus:
            return end - now
    return INF


def assert_forecast_is_right(sim: Sim, least: int, patience: float) -> None:
    """Compare all that `refresh_for` keeps with a look at every GPU."""
    c, racks = sim.clock[0], range(len(sim.racks))
    hero = find_target(sim, least, patience)
    nodes, needed = target_needs(sim, hero)
    seen = [rack_forecast(sim, r, nodes) for r in racks]
    assert (c["target"], c["target_nodes"]) == (hero, nodes)
    assert [max(float(c["now"]), float(rack["drain"])) for rack in sim.racks] == [drain for drain, _ in seen]
    assert [max(float(c["now"]), float(rack["ready"])) for rack in sim.racks] == [ready for _, ready in seen]
    first = sorted((ready, r) for r, (_, ready) in enumerate(seen) if ready < INF)[:needed]
    assert np.flatnonzero(sim.racks["reserved"]).tolist() == sorted(r for _, r in first)
    shadow = first[-1][0] if needed and len(first) == needed else INF
    assert max(float(c["now"]), float(c["shadow"])) == shadow
    if hero >= 0 and hero != c["current"]:
        hours = hours_to_pool(sim, int(sim.jobs[hero]["gpus"])) if shadow < INF else INF
        assert max(0.0, float(c["pool_start"] - c["now"])) == pytest.approx(hours, rel=0.01, abs=0.05)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("failures={node_mtbf_hours: 150}", "verification={}"),
        ("workload.estimate_sigma=2", "slice_nodes=8", "cluster={racks: [18, 16, 17, 18]}"),
        ("workload.classes.hero.mode=preferred", "workload.classes.hero.slice_gpus=0", "hero_share=0.2"),
    ],
)
def test_it_equals_a_look_at_every_gpu(make_small: Callable[..., Scenario], overrides: tuple[str, ...]) -> None:
    batch, rng = Batch(make_small(*overrides), 1, np.random.SeedSequence(3)), np.random.default_rng(0)
    sim, reserved, inside = batch.view(0), 0, 0
    for _ in range(800):
        assert_forecast_is_right(sim, int(sim.clock["slice_nodes"][0]) * (sim.cap.shape[1] - 1), PATIENCE)
        refresh_for(sim, int(sim.clock["hero_gpus"][0]))
        assert_forecast_is_right(sim, int(sim.clock["hero_gpus"][0]), 0.0)
        reserved += int(sim.racks["reserved"].any())
        current = sim.clock["current"][0]
        inside += int(current >= 0 and sim.jobs["first_gpu"][current] >= 0)
        batch.step(np.array([rng.choice(np.flatnonzero(batch.mask[0]))]))
        if batch.done[0]:
            batch.reset(0)
            sim = batch.view(0)
    assert reserved > 20
    assert inside > 0


# --- Small cases with known answers -----------------------------------------------------------------------------------


def refresh(sim: Sim) -> None:
    """As EASY asks for it: for the oldest waiting hero."""
    refresh_for(sim, int(sim.clock["hero_gpus"][0]))


RACK, GANG = 8, {"gpus_per_pod": 4, "mode": Mode.REQUIRED, "slice_gpus": 8}  # racks of two nodes of four GPUs


def begin(racks: int, jobs: list[dict[str, Any]], **rules: Any) -> Sim:
    """Racks of two nodes and one of a single node, at the first decision."""
    cluster, workload = make_cluster([[4, 4]] * racks + [[4]]), make_workload(jobs)
    sim = view.py_func(allocate(1, Dims.of(cluster, len(workload), 1, 3)), 0)
    load(sim, cluster, workload, Rules(horizon=100.0, slice_nodes=2, allow_open=False, **rules), (1.0, 1.0, 1.0))
    assert advance(sim)
    return sim


def simulate(racks: int, jobs: list[dict[str, Any]], **rules: Any) -> Sim:
    """The same at the decision for the last job; the others went to the first legal place."""
    sim = begin(racks, jobs, **rules)
    while sim.clock["current"][0] != len(jobs) - 1:
        assert step(sim, int(np.argmax(sim.mask)))
    refresh(sim)
    return sim


def gang(gpus: int, estimate: float, submit: float = 0.0, duration: float = 50.0, **other: Any) -> dict[str, Any]:
    return {**GANG, "gpus": gpus, "estimate": estimate, "submit": submit, "duration": duration, **other}


def probe(submit: float) -> dict[str, Any]:
    """A job that always fits, so that there is a decision to look at."""
    return {"submit": submit, "gpus": 1, "duration": 0.01}


def test_a_hero_is_promised_the_racks_that_drain_first() -> None:
    sim = simulate(4, [gang(RACK, hours) for hours in (3.0, 5.0, 2.0, 9.0)] + [gang(2 * RACK, 9.0, 1.0), probe(1.5)])
    assert sim.racks["drain"][:4].tolist() == [3.0, 5.0, 2.0, 9.0]
    assert sim.racks["reserved"].tolist() == [1, 0, 1, 0, 0]
    assert sim.clock["shadow"][0] == 3.0


def test_a_job_that_outlives_its_estimate_takes_half_as_long_again() -> None:
    sim = simulate(2, [gang(RACK, 1.0), gang(RACK, 8.0), probe(1.5)])
    assert sim.racks["drain"][0] == 2.25  # 1 and 1.5 are past
    assert sim.racks["ready"][0] == 2.25


def test_looking_does_not_change_what_is_predicted() -> None:
    jobs = [gang(RACK, 0.1), gang(RACK, 8.0)]
    often = simulate(2, [*jobs, *(probe(t / 7) for t in range(1, 30)), probe(6.0)])
    once = simulate(2, [*jobs, probe(6.0)])
    assert often.racks["drain"][0] == once.racks["drain"][0]


def test_a_started_job_of_many_slices_is_seen_in_all_its_racks() -> None:
    sim = begin(3, [gang(3 * RACK, 7.0), probe(1.0)])
    for r in range(3):
        refresh(sim)  # when the job ends is not known before it starts
        assert (sim.racks["ready"][:3] < INF).tolist() == [k >= r for k in range(3)]
        step(sim, r)
    refresh(sim)
    assert sim.racks["drain"][:3] == pytest.approx(7.0)


def test_a_hero_half_placed_needs_only_the_rest() -> None:
    sim = simulate(4, [gang(3 * RACK, 7.0)])
    assert np.flatnonzero(sim.racks["reserved"]).tolist() == [0, 1, 2]
    step(sim, 1)
    refresh(sim)
    assert np.flatnonzero(sim.racks["reserved"]).tolist() == [0, 2]


def test_a_hero_wider_than_a_rack_is_promised_as_many_racks_as_it_spans() -> None:
    wide = {"gpus": 20, "gpus_per_pod": 4, "mode": Mode.PREFERRED, "submit": 1.0}
    sim = simulate(3, [gang(RACK, hours) for hours in (3.0, 5.0, 2.0)] + [wide, probe(1.5)], hero_share=0.5)
    assert sim.clock["shadow"][0] == 5.0
    assert sim.racks["reserved"].tolist() == [1, 1, 1, 0]


def test_small_slices_of_a_hero_share_racks() -> None:
    jobs = [gang(RACK, hours) for hours in (3.0, 5.0, 2.0)]
    small = {**gang(12, 9.0, 1.0), "slice_gpus": 4}  # three slices of one node: two racks
    sim = simulate(3, [*jobs, small, probe(1.5)])
    assert sim.clock["target_nodes"][0] == 2
    assert sim.racks["reserved"].tolist() == [1, 0, 1, 0]


def test_a_hero_that_can_never_start_has_no_shadow_time() -> None:
    sim = simulate(2, [gang(RACK, 3.0), gang(RACK, 4.0), gang(3 * RACK, 9.0, 1.0), probe(1.5)])
    assert sim.clock["shadow"][0] == INF


def test_without_a_waiting_hero_nothing_is_reserved() -> None:
    sim = simulate(2, [gang(RACK, 3.0), probe(1.5)], hero_share=0.9)
    assert not sim.racks["reserved"].any()
    assert (sim.clock["target"][0], sim.clock["shadow"][0]) == (-1, INF)


def test_the_most_urgent_job_has_most_weight_per_hour_to_run() -> None:
    jobs = [gang(RACK, hours) for hours in (3.0, 5.0)]
    short, long, heavy = gang(RACK, 2.0, 1.0), gang(RACK, 40.0, 1.0), gang(RACK, 40.0, 1.0, job_class=1)
    for line, patience, expected in (
        ([long, short], 1.0, 1),
        ([long, short, heavy], 1.0, 1),
        ([long, short, heavy], 500.0, 2),
        ([short, long], 0.0, 0),
    ):
        sim = begin(2, [*jobs, *line, probe(1.5)])
        sim.classes["weight"][1] = 4.0
        while sim.clock["current"][0] != len(jobs) + len(line):
            assert step(sim, int(np.argmax(sim.mask)))
        refresh_for(sim, RACK, patience)
        assert sim.clock["target"][0] == len(jobs) + expected


def test_a_job_larger_than_the_quota_of_its_queue_has_nothing_kept_for_it() -> None:
    sim = simulate(2, [gang(RACK, 3.0), gang(RACK, 5.0), gang(RACK, 9.0, 1.0), probe(1.5)])
    sim.cohorts["limit"][0] = RACK - 1
    refresh_for(sim, RACK)
    assert sim.clock["target"][0] == -1


def test_the_pool_is_free_when_enough_jobs_have_ended_wherever_they_run() -> None:
    jobs = [gang(RACK, hours) for hours in (3.0, 5.0, 2.0)]
    sim = simulate(3, [*jobs, gang(3 * RACK, 9.0, 1.0), probe(1.5)])
    for gpus, hours in ((4, 0.0), (5, 0.5), (12, 0.5), (13, 1.5), (20, 1.5), (21, 3.5), (28, 3.5), (29, INF)):
        assert pool_start(sim, gpus) - 1.5 == pytest.approx(hours, rel=0.01, abs=0.01), gpus
