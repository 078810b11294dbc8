"""The cheapest jobs to clear from a rack, against a search through all sets of groups and of jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, combinations
from random import Random
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from nvlenv.simulator.load import Rules, load
from nvlenv.simulator.occupancy import occupy, release
from nvlenv.simulator.preemption import cheapest_victims
from nvlenv.simulator.state import Dims, Scratch
from tests.simulator.cases import CLASSES, empty_sim, make_cluster, make_workload

T = TypeVar("T")
FREE, CLEARABLE, MOVABLE = 1, 2, 3
GPUS, JOBS = 4, 9  # of a node; that may stand in the way
NOW = 4.0

Cost = tuple[float, float]  # GPUs, GPU-hours


class Rack:
    """One rack of random jobs on its last 1-7 nodes, and the opener that wants nodes of it."""

    def __init__(self, seed: int) -> None:
        rng = Random(seed)
        pods = [(rng.randint(1, GPUS), rng.choice([1, 1, 1, 2, 3])) for _ in range(JOBS)]
        movers = [rng.random() < 0.5 for _ in pods]
        jobs = [
            {
                "gpus": pod * count,
                "gpus_per_pod": pod,
                "movable": mover,
                "preemptible": not mover or rng.random() < 0.5,
                "restart_time": rng.choice([0.0, 0.25, 0.5]),
                "checkpoint_interval": rng.choice([0.0, 1.5, float("inf")]),
            }
            for (pod, count), mover in zip(pods, movers, strict=True)
        ]
        cluster = make_cluster([[GPUS] * rng.randint(1, 3), [GPUS] * rng.randint(1, 7)])
        workload = make_workload([*jobs, {"gpus": GPUS, "gpus_per_pod": GPUS, "priority": 9}])
        self.sim = empty_sim(Dims.of(cluster, len(workload), 1, CLASSES))
        load(self.sim, cluster, workload, Rules(horizon=9.0), (1.0,) * CLASSES)
        self.opener = len(jobs)
        self._place(rng)
        self.sim.clock["now"] = NOW
        self.sim.jobs["start"], self.sim.jobs["speed"] = [rng.choice([0.0, 1.0, 3.0]) for _ in workload.gpus], 1.0
        self.nodes = range(self.sim.racks[1]["node0"], self.sim.racks[1]["node1"])
        self.worst = rng.choice([CLEARABLE, MOVABLE])
        for n in self.nodes:
            self.sim.scratch[Scratch.STATE, n] = self._state(n)

    def _place(self, rng: Random) -> None:
        for j in range(self.opener):
            for _ in range(self.sim.jobs[j]["gpus"] // self.sim.jobs[j]["pod_gpus"]):
                p = int(self.sim.jobs[j]["pod_gpus"])
                fitting = [n for n, node in enumerate(self.sim.nodes) if node["free"] >= p]
                if not fitting:
                    release(self.sim, j)
                    break
                occupy(self.sim, j, rng.choice(fitting), p)

    def jobs_on(self, n: int) -> set[int]:
        return {int(j) for j in self.sim.gpu_job[n * GPUS : (n + 1) * GPUS] if j >= 0}

    def is_evicted(self, j: int) -> bool:
        return bool(self.sim.jobs[j]["preemptible"])

    def _state(self, n: int) -> int:
        jobs = self.jobs_on(n)
        if not jobs:
            return FREE
        return CLEARABLE if all(self.is_evicted(j) for j in jobs) else MOVABLE

    def candidates(self) -> list[int]:
        return [n for n in self.nodes if CLEARABLE <= self._state(n) <= self.worst]

    def groups(self) -> list[set[int]]:
        """Nodes that share jobs, in the order of their first nodes."""
        groups: list[set[int]] = []
        for n in self.candidates():
            linked = [g for g in groups if any(self.jobs_on(n) & self.jobs_on(m) for m in g)]
            groups = [g for g in groups if g not in linked] + [{n}.union(*linked)]
        return sorted(groups, key=min)

    def cleared(self, victims: Iterable[int]) -> int:
        return sum(self.jobs_on(n) <= set(victims) for n in self.candidates())

    def cost(self, victims: Iterable[int]) -> Cost:
        """GPUs, then GPU-hours of lost work: quarters of an hour, so the sums are exact."""
        gpus, hours = 0.0, 0.0
        for j in victims:
            job = self.sim.jobs[j]
            done = NOW - job["start"]
            since = {0.0: 0.0, 1.5: done % 1.5}.get(float(job["checkpoint"]), done) if self.is_evicted(j) else 0.0
            gpus += float(job["gpus"])
            hours += float(job["gpus"] * (since + job["restart"]))
        return gpus, hours

    def jobs_of(self, nodes: Iterable[int]) -> set[int]:
        return set().union(*(self.jobs_on(n) for n in nodes))

    def victims(self, need: int) -> list[int]:
        count = cheapest_victims(self.sim, self.opener, 1, need, self.worst)
        return [int(j) for j in self.sim.scratch[Scratch.VICTIMS, :count]]


def subsets(items: list[T]) -> Iterator[tuple[T, ...]]:
    return chain.from_iterable(combinations(items, size) for size in range(1, len(items) + 1))


cases = st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 5))


@given(cases)
def test_victims_are_those_of_the_cheapest_groups_less_the_unneeded(case: tuple[int, int]) -> None:
    rack, need = Rack(case[0]), case[1]
    groups = rack.groups()
    choices = [s for s in subsets(list(range(len(groups)))) if sum(len(groups[k]) for k in s) >= need]
    victims = rack.victims(need)
    if not choices:
        assert victims == []
        return
    # Equal costs: the earlier groups, so whatever leaves the last ones alone.
    best = min(choices, key=lambda s: (rack.cost(rack.jobs_of(set().union(*(groups[k] for k in s)))), sorted(s)[::-1]))
    chosen = rack.jobs_of(set().union(*(groups[k] for k in best)))
    assert set(victims) <= chosen
    assert rack.cleared(victims) >= need
    assert all(rack.cleared(v for v in victims if v != spared) < need for spared in victims)
    assert len(set(victims)) == len(victims)
    sizes = [int(rack.sim.jobs[v]["gpus"]) for v in victims]
    assert sizes == sorted(sizes, reverse=True)


@given(cases)
def test_no_cheaper_jobs_would_do_where_no_group_has_several_of_both(case: tuple[int, int]) -> None:
    """Then a group is all or nothing, and the cheapest groups are the cheapest jobs."""
    rack, need = Rack(case[0]), case[1]
    simple = all(len(group) == 1 or len(rack.jobs_of(group)) == 1 for group in rack.groups())
    enough = [s for s in subsets(sorted(rack.jobs_of(rack.candidates()))) if rack.cleared(s) >= need]
    victims = rack.victims(need)
    assert (victims == []) == (not enough)
    if enough and simple:
        assert rack.cost(victims) == min(map(rack.cost, enough))
