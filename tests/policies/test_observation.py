"""The observation: within its ranges, equal to a look at every GPU, and indifferent to the order of racks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from nvlenv.cluster.types import Mode
from nvlenv.envs.batch import Batch
from nvlenv.envs.scenario import Scenario
from nvlenv.policies.observation import (
    CLUSTER_FEATURES,
    GRID,
    JOB_FEATURES,
    LONGEST,
    N_CLUSTER,
    N_JOB,
    N_RACK,
    RACK_FEATURES,
    Feature,
)
from nvlenv.simulator.state import Sim

SCHEMAS = {"racks": RACK_FEATURES, "job": JOB_FEATURES, "cluster": CLUSTER_FEATURES}
KINDS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "worn": ("failures={node_mtbf_hours: 100, maintenance: [{start: 10, hours: 8, racks: [1]}]}", "verification={}"),
    "incident": ("verification={counted: true}", "cluster={racks: [18, 16, 17, 18]}", "slice_nodes=8"),
    "late": ("workload.estimate_sigma=2", "workload.load=1.6", "cluster.cordoned=1"),
}


def random_play(batch: Batch, steps: int, seed: int = 0) -> Iterator[None]:
    """Stops before every decision of random legal play."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        yield
        batch.step(np.array([rng.choice(np.flatnonzero(mask)) for mask in batch.mask]))
        yield
        for i in np.flatnonzero(batch.done):
            batch.reset(i)


@pytest.mark.parametrize("features", SCHEMAS.values(), ids=SCHEMAS)
def test_names_are_unique_and_meanings_told(features: tuple[Feature, ...]) -> None:
    assert len({feature.name for feature in features}) == len(features)
    assert all(feature.meaning and feature.name.islower() for feature in features)
    assert all(-1.0 <= feature.range[0] < feature.range[1] <= 1.0 for feature in features)


def test_the_sizes_follow_the_schema() -> None:
    assert (len(RACK_FEATURES), len(JOB_FEATURES), len(CLUSTER_FEATURES)) == (N_RACK, N_JOB, N_CLUSTER)


def test_every_value_lies_in_its_range_and_on_the_grid(make_small: Callable[..., Scenario]) -> None:
    scenarios = [make_small(*overrides) for overrides in KINDS.values()]
    batch = Batch(scenarios, 8, np.random.SeedSequence(1))
    highest, lowest = ({name: np.zeros(len(features)) for name, features in SCHEMAS.items()} for _ in range(2))
    for _ in random_play(batch, 600):
        for name, features in SCHEMAS.items():
            values = getattr(batch, name).reshape(-1, len(features))
            low, high = np.array([feature.range for feature in features]).T
            assert np.all((values >= low) & (values <= high)), name
            assert np.array_equal(values * GRID, np.round(values * GRID)), name
            highest[name] = np.maximum(highest[name], values.max(axis=0))
            lowest[name] = np.minimum(lowest[name], values.min(axis=0))
    for name, features in SCHEMAS.items():
        silent = [f.name for f, top in zip(features, highest[name], strict=True) if top == 0.0]
        assert silent == [], f"features of {name} that were zero all the time"
    assert lowest["racks"][[f.name for f in RACK_FEATURES].index("delays_target")] < 0
    assert (lowest["job"][[f.name for f in JOB_FEATURES].index("outlasts_pool")]) < 0


def test_without_a_job_at_hand_its_features_are_zero(small: Scenario) -> None:
    batch = Batch(small, 1, np.random.SeedSequence(0))
    while batch.sim.clock["current"][0, 0] >= 0:
        batch.step(np.argmax(batch.mask, axis=1))
    table = dict(zip((f.name for f in RACK_FEATURES), batch.racks[0].T, strict=True))
    assert not batch.job.any()
    assert not any(table[name].any() for name in ("can_place", "can_open", "fits", "here", "breaks_slot"))


# --- A second look, GPU by GPU ----------------------------------------------------------------------------------------


def log_time(hours: float) -> float:
    return math.log1p(min(max(hours, 0.0), LONGEST)) / math.log1p(LONGEST)


class Look:
    """Rack r as a list of nodes, found from `gpu_job` alone, and what placing the job at hand would leave of it."""

    def __init__(self, sim: Sim, r: int) -> None:
        self.index = r
        self.sim, self.clock, self.rack = sim, sim.clock[0], sim.racks[r]
        self.g = sim.cap.shape[1] - 1
        self.nodes = range(self.rack["node0"], self.rack["node1"])
        self.usable = [n for n in self.nodes if sim.nodes[n]["blocked"] == 0]
        self.free = [sum(int(j) == -1 for j in self.gpus(n)) for n in self.usable]
        self.job = sim.jobs[self.clock["current"]] if self.clock["current"] >= 0 else None
        self.after, self.placed = list(self.free), 0
        if self.job is not None:
            self.place(int(self.job["pod_gpus"]), int(self.clock["pods_left"]))

    def gpus(self, n: int) -> list[int]:
        return self.sim.gpu_job[n * self.g : (n + 1) * self.g].tolist()

    def place(self, p: int, pods: int) -> None:
        """Each pod to the tightest node that holds it."""
        while pods > self.placed and max(self.after, default=0) >= p:
            tightest = min((free, k) for k, free in enumerate(self.after) if free >= p)[1]
            self.after[tightest] -= p
            self.placed += 1

    def room(self) -> int:
        """GPUs that pods of the job at hand (single GPUs if there is none) could still take."""
        p = int(self.job["pod_gpus"]) if self.job is not None else 1
        return sum(free // p * p for free in self.after)

    def is_in_block(self) -> bool:
        """Whether the tightest domain of the lowest level that holds the rest of the job has this rack in it."""
        if self.job is None:
            return False
        sim, c, r = self.sim, self.clock, self.index
        if c["scope"] >= 0:
            return bool(sim.ancestors[r, c["reach"]] == c["scope"])
        top = sim.ancestors.shape[1] - 1
        for height in range(top):
            fitting = [d for d in np.unique(sim.ancestors[:, height]) if self.holds_rest(int(d), height)]
            if fitting:
                tightest = min(fitting, key=lambda d: (sim.cap[d, self.job["pod_gpus"]], d))
                return bool(sim.ancestors[r, height] == tightest)
        return True

    def holds_rest(self, domain: int, height: int) -> bool:
        sim, c, p = self.sim, self.clock, self.job["pod_gpus"] if self.job is not None else 1
        inner = min(int(self.job["height"]), height) if self.job is not None and self.job["mode"] == 2 else height
        parts = np.unique(sim.ancestors[sim.ancestors[:, height] == domain, inner])
        return bool(sum(sim.cap[part, p] // c["pods_left"] for part in parts) >= c["slices_left"])

    def slots(self, size: int) -> int:
        """Slices of so many nodes that placing takes away."""
        return self.free.count(self.g) // size - self.after.count(self.g) // size

    def drain(self) -> float:
        """Hours until the last job on a usable node ends, by estimates; the job at hand does not run yet."""
        now, last = float(self.clock["now"]), 0.0
        for n in self.usable:
            jobs = {j for j in self.gpus(n) if j >= 0}
            if self.clock["current"] not in jobs:
                last = max([last, *(self.remaining(j) - now for j in jobs)])
        return last

    def remaining(self, j: int) -> float:
        job, now = self.sim.jobs[j], float(self.clock["now"])
        run = float(job["predicted"] - job["start"])
        while job["start"] + run <= now:
            run = max(1 / 60, 1.5 * run)
        return float(job["start"] + run)

    def features(self) -> dict[str, float]:
        gpus, nodes, unit = len(self.nodes) * self.g, len(self.nodes), int(self.clock["slice_nodes"])
        whole, drain = self.free.count(self.g), self.drain()
        estimate = float(self.job["estimate_error"] * self.job["work"]) if self.job is not None else 0.0
        here = sum(self.gpus(n).count(int(self.clock["current"])) for n in self.nodes) if self.job is not None else 0
        return {
            "exists": 1.0,
            "free": sum(self.free) / gpus,
            "whole": whole / nodes,
            "part": sum(0 < free < self.g for free in self.free) / nodes,
            "usable": len(self.usable) / nodes,
            "fits": self.placed / int(self.clock["pods_left"]) if self.job is not None else 0.0,
            "left": sum(self.after) / gpus,
            "room_left": self.room() / gpus,
            "in_block": float(self.is_in_block()),
            "exact": float(self.g not in self.after),
            "breaks_slot": min(1.0, self.slots(unit)),
            "breaks_half": min(1.0, self.slots(max(1, unit // 2)) / 2),
            "breaks_quarter": min(1.0, self.slots(max(1, unit // 4)) / 4),
            "empty": float(bool(self.free) and all(free == self.g for free in self.free)),
            "missing": max(0, unit - whole) / unit,
            "drain": log_time(drain),
            "extends": log_time(estimate - drain),
            "gap": log_time(drain - estimate),
            "here": here / gpus,
        }


def signed_log_time(hours: float) -> float:
    return math.copysign(log_time(abs(hours)), hours)


def find_target(sim: Sim) -> int:
    """The waiting job of a standard slice or more with most weight per estimated hour; -1: none."""
    c, g = sim.clock[0], sim.cap.shape[1] - 1
    large = [int(j) for j in sim.waiting[: c["n_waiting"]] if sim.jobs[j]["gpus"] >= c["slice_nodes"] * g]
    return max(large, key=lambda j: urgency(sim, j), default=-1)


def urgency(sim: Sim, j: int) -> float:
    """Weight per hour, relative to a job of weight 4 that is about to end."""
    job = sim.jobs[j]
    return float(sim.classes[job["klass"]]["weight"] / 4 * 20 / (20 + job["estimate_error"] * job["work"]))


def outlasts(sim: Sim, start: float) -> float:
    """Hours by which the job at hand would outlast the start of the target, if that is another."""
    c = sim.clock[0]
    if c["target"] in (-1, c["current"]):
        return 0.0
    job = sim.jobs[c["current"]]
    return signed_log_time(float(job["estimate_error"] * job["work"]) - max(0.0, start - float(c["now"])))


def patience(sim: Sim) -> float:
    """1 less the log of the wait of a preferred job that would do without its domain now, though one could hold it."""
    c, g = sim.clock[0], sim.cap.shape[1] - 1
    job = sim.jobs[c["current"]]
    domain = sim.ancestors[:, job["height"]]
    nodes = max(int(sim.racks["usable"][domain == d].sum()) for d in np.unique(domain))
    waits = job["mode"] == Mode.PREFERRED and c["reach"] > job["height"] and c["scope"] < 0
    if not waits or nodes * (g // job["pod_gpus"]) < job["slice_pods"]:
        return 0.0
    return 1.0 - log_time(float(job["waited"] + c["now"] - job["queued"]))


def expected_job(sim: Sim) -> dict[str, float]:
    c, g = sim.clock[0], sim.cap.shape[1] - 1
    job = sim.jobs[c["current"]]
    pooled = outlasts(sim, float(c["pool_start"]))
    sizeable = job["gpus"] >= c["slice_nodes"] * g / 4
    return {
        "target": float(c["current"] == find_target(sim)),
        "urgency": min(1.0, urgency(sim, int(c["current"]))),
        "outlasts": outlasts(sim, float(c["shadow"])),
        "outlasts_pool": pooled,
        "drains": max(0.0, pooled) if sizeable else 0.0,
        "patience": patience(sim),
        "present": 1.0,
        "gpus": math.log2(job["gpus"]) / 12,
        "pods_left": math.log2(1 + c["pods_left"]) / 12,
        "units_left": math.log2(1 + c["slices_left"]) / 6,
        "begun": float((sim.gpu_job == c["current"]).any()),
        **{mode.name.lower(): float(job["mode"] == mode) for mode in Mode},
        "sub_node": float(job["pod_gpus"] < g),
        "no_shape": float(not sim.mask[: len(sim.racks)].any()),
        "priority": min(1.0, job["priority"] / 4),
        "estimate": log_time(float(job["estimate_error"] * job["work"])),
        "waited": log_time(float(job["waited"] + c["now"] - job["queued"])),
        "comm": float(job["comm"]),
        "hero": float(job["gpus"] >= c["hero_gpus"]),
        "fixed": float(not job["preemptible"] and not job["movable"]),
    }


def expected_cluster(sim: Sim, looks: list[Look]) -> dict[str, float]:
    c, g = sim.clock[0], sim.cap.shape[1] - 1
    waiting = sim.jobs[sim.waiting[: c["n_waiting"]]]
    whole, unit = [look.free.count(g) for look in looks], int(c["slice_nodes"])
    heroes = waiting[waiting["gpus"] >= c["hero_gpus"]]
    weights = sim.classes["weight"][waiting["klass"]]
    target = sim.jobs[find_target(sim)] if find_target(sim) >= 0 else None
    ready = sum(k >= c["target_nodes"] for k in whole)
    shortfall = 0.0
    if target is not None:
        share = c["slices_left"] / target["slices"] if c["target"] == c["current"] else 1.0
        needed = max(1.0, float(share * target["gpus"] / (c["target_nodes"] * g)))
        shortfall = max(0.0, needed - ready) / needed
    return {
        "free": sum(sum(look.free) for look in looks) / c["capacity"],
        "whole": sum(whole) * g / c["capacity"],
        "slots": min(1.0, sum(k // unit for k in whole) / len(looks)),
        "half_slots": min(1.0, sum(k // (unit // 2) for k in whole) / len(looks) / 2),
        "ready_racks": ready / len(looks),
        "target_shortfall": shortfall,
        "waiting": min(1.0, math.log2(1 + waiting["gpus"].sum() / c["capacity"])),
        "weighted": min(1.0, math.log2(1 + (weights * waiting["gpus"]).sum() / c["capacity"]) / 3),
        "queue": math.log2(1 + len(waiting)) / 12,
        "target_waits": float(target is not None),
        "target_gpus": target["gpus"] / c["capacity"] if target is not None else 0.0,
        "target_waited": log_time(float(target["waited"] + c["now"] - target["queued"])) if target is not None else 0.0,
        "target_shadow": log_time(float(c["shadow"] - c["now"])) if target is not None else 0.0,
        "target_pool": log_time(float(c["pool_start"] - c["now"])) if target is not None else 0.0,
        "target_lacks": max(0.0, 1 - sim.cap[-1, 1] / target["gpus"]) if target is not None else 0.0,
        "target_urgency": urgency(sim, find_target(sim)) if target is not None else 0.0,
        "heroes": min(1.0, heroes["gpus"].sum() / c["capacity"]),
    }


def assert_equal(features: tuple[Feature, ...], values: np.ndarray, expected: dict[str, float]) -> None:
    """Equal up to the rounding of the grid."""
    seen = dict(zip((feature.name for feature in features), values.tolist(), strict=True))
    assert {name: seen[name] for name in expected} == pytest.approx(expected, abs=0.5 / GRID + 1e-7)


@pytest.mark.parametrize("overrides", KINDS.values(), ids=KINDS)
def test_features_equal_a_look_at_every_gpu(make_small: Callable[..., Scenario], overrides: tuple[str, ...]) -> None:
    batch = Batch(make_small(*overrides), 1, np.random.SeedSequence(2))
    for _ in random_play(batch, 250):
        sim, places = batch.view(0), batch.mask[0]
        looks = [Look(sim, r) for r in range(len(sim.racks))]
        for r, look in enumerate(looks):
            opens = {"can_place": float(places[r]), "can_open": float(places[len(looks) + r])}
            kept = {"reserved": float(sim.racks[r]["reserved"])}
            assert_equal(RACK_FEATURES, batch.racks[0, r], {**look.features(), **opens, **kept})
        assert_equal(CLUSTER_FEATURES, batch.cluster[0], expected_cluster(sim, looks))
        if sim.clock["current"][0] >= 0:
            assert_equal(JOB_FEATURES, batch.job[0], expected_job(sim))


@pytest.mark.parametrize("order", [(1, 0, 2, 3), (3, 2, 1, 0), (2, 3, 0, 1)])
def test_permuting_the_racks_permutes_the_rows(make_small: Callable[..., Scenario], order: tuple[int, ...]) -> None:
    sizes = (18, 17, 16, 18)
    one_block = "cluster={{racks: {}, blocks: 1}}".format
    plain = make_small(one_block(list(sizes)))
    turned = make_small(one_block([sizes[r] for r in order]))
    batch = Batch([plain, turned], 2, np.random.SeedSequence(0))
    # Of equally ready racks the first is reserved and of equally tight ones the first is the block: marks of both move.
    names, tied = [f.name for f in RACK_FEATURES], ("reserved", "delays_target", "conflicts", "in_block")
    columns = [k for k, name in enumerate(names) if name not in tied]
    back, rng, steps = np.argsort(order), np.random.default_rng(0), 0
    for seed in range(4):
        episode = plain.draw(np.random.SeedSequence(seed))
        batch.reset(0, episode)
        batch.reset(1, replace(episode, cluster=turned.cluster_spec()))
        while not batch.done.any():
            assert np.array_equal(batch.racks[0][list(order)][:, columns], batch.racks[1][:, columns])
            assert np.array_equal(batch.job[0], batch.job[1])
            assert np.array_equal(batch.cluster[0], batch.cluster[1])
            assert np.array_equal(batch.mask[0, :4][list(order)], batch.mask[1, :4])
            # `open` and `fill` break ties by the order of racks; `place` and `hold` have none to break.
            legal = [a for a in np.flatnonzero(batch.mask[0]) if a < 4 or a == batch.layout.hold]
            action = int(rng.choice(legal))
            batch.step(np.array([action, back[action] if action < 4 else action]))
            steps += 1
    assert steps > 150
