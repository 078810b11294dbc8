"""Composed heuristics act as the definitions of their modifiers say, whatever the state of the cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import combinations, cycle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from nvlenv.cluster.types import Mode
from nvlenv.envs.scenario import Scenario, prepare
from nvlenv.policies.heuristics.choose import choose
from nvlenv.policies.heuristics.packing import PACKINGS
from nvlenv.policies.heuristics.rule import OPEN_CHEAPEST, OPEN_HERO, Rule, parse_rule
from nvlenv.policies.resolver import resolve_policy
from nvlenv.simulator.forecast import refresh_for
from nvlenv.simulator.preemption import price_opens
from nvlenv.simulator.state import Sim, copy_into
from nvlenv.simulator.step import advance, apply, step
from tests.policies.heuristics.definitions import (
    after,
    best_rack,
    current,
    node_gpus,
    nodes_of,
    part,
    predicted_end,
    racks_under,
    whole,
)
from tests.policies.heuristics.states import PREFERRED, gang, nodes_by_rack, occupied, place_one
from tests.policies.heuristics.states import whole as whole_racks
from tests.simulator.cases import Case, cases, crowded_case

NAMES = (
    "best-fit+fill",
    "best-fit+fill+hold(racks=6,nodes=3,hours=2)",
    "first-fit+fill+easy",
    "best-fit+tight",
    "best-fit+tight+easy(share=0.1)",
    "anchor-loss+delay(hours=1)",
    "best-fit+hold(racks=2,nodes=2,hours=1)",
    "best-fit+easy",
    "least-allocated+easy(share=0.05,spare=1)",
    "best-fit+hold(racks=1)+easy+open",
    "best-fit+easy(slices=1,patience=5)+open",
    "first-fit+delay+easy(slices=1,patience=20)+drain(hours=1)",
    "best-fit+open",
    "best-fit+open-hero",
)
untimed = settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))


# --- The definitions --------------------------------------------------------------------------------------------------


def waited(sim: Sim) -> float:
    job = current(sim)
    return float(job["waited"] + sim.clock[0]["now"] - job["queued"])


def is_free_at_shadow(sim: Sim, n: int) -> bool:
    """Whether node n is whole, by estimates, when the hero could start."""
    c, g = sim.clock[0], node_gpus(sim)
    jobs = {int(j) for j in sim.gpu_job[n * g : (n + 1) * g] if j >= 0}
    ends = [float("inf") if j == c["current"] else predicted_end(sim, sim.jobs[j]) for j in jobs]
    return bool(sim.nodes[n]["blocked"] == 0 and sim.nodes[n]["gpus"] == g and max([0.0, *ends]) <= c["shadow"])


def delays_hero(sim: Sim, r: int, pods: int) -> bool:
    nodes = range(sim.racks[r]["node0"], sim.racks[r]["node1"])
    lost, p = pods, int(current(sim)["pod_gpus"])
    if pods == 1 and p < node_gpus(sim):
        fitting = [n for n in nodes if sim.nodes[n]["blocked"] == 0 and sim.nodes[n]["free"] >= p]
        lost = int(is_free_at_shadow(sim, min(fitting, key=lambda n: (sim.nodes[n]["free"], n))))
    return sum(is_free_at_shadow(sim, n) for n in nodes) - lost < sim.clock[0]["target_nodes"]


def is_kept(sim: Sim, rule: Rule, r: int, pods: int) -> bool:
    """Whether so many pods of the job at hand must keep out of rack r."""
    c, job, g = sim.clock[0], current(sim), node_gpus(sim)
    unit, before = int(c["slice_nodes"]), whole(nodes_of(sim, r), g)
    ready = sum(whole(nodes_of(sim, s), g) >= unit for s in range(len(sim.racks)))
    if rule.hold_racks and job["gpus"] <= rule.hold_nodes * g and waited(sim) < rule.hold_hours:
        left = whole(after(nodes_of(sim, r), int(job["pod_gpus"]), pods), g)
        if ready <= rule.hold_racks and before >= unit > left:
            return True
    outlasts = (
        c["target"] >= 0
        and c["target"] != c["current"]
        and c["now"] + job["estimate_error"] * job["work"] > c["shadow"]
    )
    if not (rule.easy and outlasts and sim.racks[r]["reserved"]):
        return False
    return not rule.easy_spare or delays_hero(sim, r, pods)


def delays(sim: Sim, rule: Rule) -> bool:
    c, job, g = sim.clock[0], current(sim), node_gpus(sim)
    if job["mode"] != Mode.PREFERRED or c["reach"] <= job["height"] or c["scope"] >= 0:
        return False
    domains = {int(d) for d in sim.ancestors[:, job["height"]]}
    most = max(sum(int(sim.racks[r]["usable"]) for r in racks_under(sim, d)) for d in domains)
    return waited(sim) < rule.delay_hours and most * (g // job["pod_gpus"]) >= job["slice_pods"]


def fill_is_kept(sim: Sim, rule: Rule, copy: Sim) -> bool:
    """Carry `fill` out on a copy and look at the racks that took pods."""
    copy_into(copy, sim)
    before, j = copy.gpu_job.copy(), int(copy.clock[0]["current"])
    apply(copy, 2 * len(sim.racks))
    racks = copy.nodes["rack"][np.flatnonzero((before != j) & (copy.gpu_job == j)) // node_gpus(sim)]
    pods = {int(r): int(np.sum(racks == r)) // int(current(sim)["pod_gpus"]) for r in np.unique(racks)}
    return any(is_kept(sim, rule, r, count) for r, count in pods.items())


def tight_racks(sim: Sim, allowed: list[int]) -> list[int]:
    """The racks with the smallest part that some spread over the fewest racks begins with."""
    left = int(sim.clock[0]["pods_left"])
    for count in range(1, len(allowed) + 1):
        sets = [s for s in combinations(allowed, count) if sum(part(sim, r) for r in s) >= left]
        if sets:
            members = {r for s in sets for r in s}
            return [r for r in members if part(sim, r) == min(part(sim, m) for m in members)]
    return []


def hero_cost(sim: Sim, r: int) -> float:
    c, g, opener, cost = sim.clock[0], node_gpus(sim), current(sim), 0.0
    gpus = int(sim.racks[r]["node1"] - sim.racks[r]["node0"]) * g
    slots = sim.gpu_job[sim.racks[r]["node0"] * g : sim.racks[r]["node1"] * g]
    for v in dict.fromkeys(int(j) for j in slots if j >= 0):
        victim = sim.jobs[v]
        evictable = victim["preemptible"] and victim["priority"] < opener["priority"]
        if not (evictable and victim["evictions"] < c["max_evictions"]) and not victim["movable"]:
            continue
        run = float(c["now"] - victim["start"])
        share = 0.7 * max(0, int(victim["priority"])) / max(1, int(opener["priority"]))
        share += 0.2 * min(1.0, int(victim["gpus"]) / gpus) + 0.1 * run / (run + 6.0)
        cost += share * (5.0 if victim["queue"] != opener["queue"] else 1.0)
    return cost


def hero_rack(sim: Sim, legal: list[int]) -> int:
    g, height = node_gpus(sim), min(1, sim.ancestors.shape[1] - 1)
    block, cost = sim.ancestors[:, height], {r: hero_cost(sim, r) for r in legal}
    first = int(current(sim)["first_gpu"])

    def total(b: int) -> float:
        members = racks_under(sim, b)
        need = int(sim.clock[0]["slices_left"]) - sum(
            whole(nodes_of(sim, r), g) // int(current(sim)["slice_pods"]) for r in members
        )
        costs = sorted(cost[r] for r in members if r in cost)
        return sum(costs[: max(0, need)]) if len(costs) >= need else float("inf")

    blocks = range(sim.level_start[height], sim.level_start[height + 1])
    chosen = block[sim.nodes[first // g]["rack"]] if first >= 0 else min(blocks, key=lambda b: (total(b), b))
    feasible = first >= 0 or total(chosen) < float("inf")
    inside = [r for r in legal if block[r] == chosen] if feasible else []
    return min(inside or legal, key=lambda r: (cost[r], r))


def drains(sim: Sim, rule: Rule) -> bool:
    """Whether a job of a quarter slice or more would still run long after the reserved job could have its GPUs."""
    c, job = sim.clock[0], current(sim)
    if not rule.drain or c["target"] in (-1, c["current"]) or job["first_gpu"] >= 0:
        return False
    sizeable = job["gpus"] >= c["slice_nodes"] * node_gpus(sim) / 4
    return bool(
        sizeable and job["estimate_error"] * job["work"] > max(0.0, c["pool_start"] - c["now"]) + rule.drain_hours
    )


def defined_action(sim: Sim, name: str, copy: Sim) -> int:
    """What the heuristic does; `copy` is work space."""
    rule, racks, hold = parse_rule(name), len(sim.racks), 2 * len(sim.racks) + 1
    share = math.ceil(rule.easy_share * sim.clock[0]["capacity"])
    least = rule.easy_slices * int(sim.clock[0]["slice_nodes"]) * node_gpus(sim)
    refresh_for(sim, least or share or int(sim.clock[0]["hero_gpus"]), rule.easy_patience)
    may_hold = bool(sim.mask[hold])
    if may_hold and (delays(sim, rule) or drains(sim, rule)):
        return hold
    if rule.fill and sim.mask[2 * racks] and not (may_hold and fill_is_kept(sim, rule, copy)):
        return 2 * racks
    legal = np.flatnonzero(sim.mask[:racks]).tolist()
    allowed = [r for r in legal if not (may_hold and is_kept(sim, rule, r, part(sim, r)))]
    if rule.tight and sim.clock[0]["reach"] > 0:
        allowed = tight_racks(sim, allowed)
    if allowed:
        return best_rack(sim, PACKINGS[rule.packing], allowed)
    price_opens(sim)
    opens = np.flatnonzero(sim.mask[racks : 2 * racks]).tolist()
    if rule.open == OPEN_HERO and opens:
        return racks + hero_rack(sim, opens)
    if opens and (rule.open == OPEN_CHEAPEST or not may_hold):
        return racks + min(opens, key=lambda r: (sim.open_gpus[r], sim.open_lost[r], r))
    return hold


def twin_of(sim: Sim) -> Sim:
    """Arrays of the same dimensions."""
    return Sim(*(np.zeros_like(array) for array in sim))


# --- The tests --------------------------------------------------------------------------------------------------------


def check_every_decision(sim: Sim, picks: Iterator[int]) -> None:
    """Compare at every decision of an episode that goes as `picks` says: half of the time at random, else sensibly."""
    copy, alive, sensible = twin_of(sim), advance(sim), parse_rule("best-fit+open")
    while alive:
        for name in NAMES:
            assert choose(sim, parse_rule(name)) == defined_action(sim, name, copy), name
        pick, legal = next(picks), np.flatnonzero(sim.mask)
        alive = step(sim, legal[pick // 2 % len(legal)] if pick % 2 else choose(sim, sensible))


@given(case=cases())
@untimed
def test_a_composition_acts_as_its_definition_says(case: Case) -> None:
    check_every_decision(case.load(), cycle(case.picks))


@pytest.mark.parametrize("seed", range(0, 150, 10))
def test_it_does_so_where_racks_must_be_opened(seed: int) -> None:
    for case in map(crowded_case, range(seed, seed + 10)):
        check_every_decision(case.load(), cycle(case.picks))


@pytest.mark.parametrize("seed", range(3))
def test_it_does_so_in_a_busy_lab(seed: int, make_small: Callable[..., Scenario]) -> None:
    scenario = make_small("workload.load=1.1", "episode.hours=30", "cluster.racks=6")
    sim = prepare(scenario, scenario.draw(np.random.SeedSequence(seed)))
    check_every_decision(sim, cycle(np.random.default_rng(seed).integers(0, 8, 997).tolist()))


@pytest.mark.parametrize(
    "name", ["best-fit+tight+delay+hold+easy(share=0.1,spare=1)+open-hero", "random+fill+easy+open"]
)
@given(case=cases())
@untimed
def test_a_heuristic_never_does_what_is_illegal(name: str, case: Case) -> None:
    sim = case.load()

    resolve_policy(name).play(sim)  # type: ignore[union-attr]

    assert sim.clock[0]["done"] == 1
    assert sim.clock[0]["illegal"] == 0


def test_easy_lets_short_jobs_pass_and_long_ones_wait() -> None:
    # Both racks are busy until hour 2, when the hero (two racks) can start; one node of each is free.
    def outcome(estimate: float, name: str) -> dict[int, int]:
        busy = {"duration": 2.0, "estimate": 2.0}
        hero = gang(6, slice_nodes=3, priority=1)
        sim = occupied(whole_racks(1, 1, size=3), [hero, gang(1, estimate=estimate)], fillers=busy, slice_nodes=3)
        return nodes_by_rack(sim, resolve_policy(name)) if sim.clock[0]["current"] >= 0 else {}

    assert outcome(1.5, "best-fit+easy") == {0: 1}
    assert outcome(2.5, "best-fit+easy") == {}
    assert outcome(2.5, "best-fit") == {0: 1}


def test_easy_with_spare_gives_away_the_nodes_that_the_hero_does_not_need() -> None:
    def outcome(name: str) -> dict[int, int]:
        busy = {"duration": 2.0, "estimate": 2.0}
        hero = gang(4, slice_nodes=2, priority=1)
        sim = occupied(whole_racks(1, 1, size=3), [hero, gang(1, estimate=9.0)], fillers=busy, slice_nodes=2)
        return nodes_by_rack(sim, resolve_policy(name))

    assert outcome("best-fit+easy") == {}
    assert outcome("best-fit+easy(spare=1)") == {0: 1}


def test_fill_goes_on_where_it_touches_nothing_reserved() -> None:
    # Three pods fit the holes of the third rack; the hero's racks are the first two.
    busy = {"duration": 2.0, "estimate": 2.0}
    hero = gang(6, slice_nodes=3, priority=1)
    small = {"gpus": 3, "gpus_per_pod": 1, "estimate": 50.0}
    racks = [[4, 0, 0], [4, 0, 0], [1, 1, 1]]
    sim = occupied(racks, [hero, small], fillers=busy, slice_nodes=3)

    assert place_one(sim, resolve_policy("best-fit+fill+easy")) == {2: 3}


def test_hold_keeps_the_last_ready_rack_for_a_while() -> None:
    def sim() -> Sim:
        return occupied(whole_racks(16, 0, size=18), [gang(1)])

    assert nodes_by_rack(sim(), resolve_policy("best-fit+hold")) == {}
    assert nodes_by_rack(sim(), resolve_policy("best-fit+hold(hours=0)")) == {0: 1}
    assert nodes_by_rack(occupied(whole_racks(18, 0), [gang(1)]), resolve_policy("best-fit+hold")) == {
        0: 1
    }  # 17 are left


def test_delay_waits_for_one_rack_only_if_there_could_be_one() -> None:
    def outcome(nodes: int) -> dict[int, int]:
        return nodes_by_rack(
            occupied(whole_racks(2, 2, size=3), [gang(nodes, PREFERRED)]), resolve_policy("best-fit+delay")
        )

    assert outcome(2) == {0: 2}
    assert outcome(3) == {}
    assert outcome(4) == {0: 2, 1: 2}


def test_the_hero_controller_stays_in_the_block_that_costs_least_in_all() -> None:
    # One node of every rack of three is free. The first rack is cheapest to open for two, but its block lacks another.
    job = {"gpus": 4, "gpus_per_pod": 4, "mode": Mode.REQUIRED, "duration": 99.0, "priority": 1, "preemptible": True}
    small, large, fixed = job, {**job, "gpus": 8}, {**job, "gpus": 8, "preemptible": False}
    hero = gang(4, slice_nodes=2, priority=3, submit=1.0)
    sim = occupied([[4, 4, 4]] * 4, [small, small, fixed, large, large, hero], blocks=[0, 0, 1, 1], slice_nodes=2)
    for rack in (0, 0, 1, 2, 3):
        step(sim, rack)

    assert sim.clock[0]["now"] == 1.0
    assert choose(sim, parse_rule("best-fit+open")) == 4  # open[0]: a victim of four GPUs
    assert choose(sim, parse_rule("best-fit+open-hero")) == 6  # open[2]
