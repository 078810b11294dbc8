"""Toy instances and the least weighted waiting that any schedule of them could have.

Two independent ways: an integer program over start times and racks, and a search over all sequences of legal actions
of the simulator. Times are whole hours, nodes have one GPU, jobs run at full speed wherever they are and are never
evicted, so that there is nothing to pay but waiting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from nvlenv.cluster.types import Mode
from nvlenv.policies.resolver import play, resolve_policy
from nvlenv.simulator.load import Rules, load
from nvlenv.simulator.state import Dims, Sim, allocate, copy_into
from nvlenv.simulator.step import advance, step
from tests.simulator.cases import CLASSES, make_cluster, make_workload

WEIGHTS = (1.0, 2.0, 4.0)  # of the job classes


@dataclass(frozen=True)
class Job:
    submit: int  # h
    nodes: int
    hours: int
    slice: int = 0  # nodes that must share a rack; 0: all of them
    spread: bool = False  # unconstrained: any nodes
    weight: int = 1  # one of WEIGHTS

    @property
    def unit(self) -> int:
        """Nodes that must share a rack."""
        return 1 if self.spread else self.slice or self.nodes


@dataclass(frozen=True)
class Toy:
    """An instance, its least cost, and what heuristics pay on it (weighted waiting, node-hours)."""

    racks: tuple[int, ...]  # nodes of each
    jobs: tuple[Job, ...]  # by submit
    optimum: float
    costs: dict[str, float]
    solved: tuple[str, ...]  # heuristics that reach the optimum, as the instance was built for

    def simulator(self) -> Sim:
        modes = {True: Mode.UNCONSTRAINED, False: Mode.REQUIRED}
        rows: list[dict[str, Any]] = [
            {
                "submit": float(job.submit), "gpus": job.nodes, "duration": float(job.hours),
                "estimate": float(job.hours), "mode": modes[job.spread], "slice_gpus": job.slice,
                "job_class": WEIGHTS.index(job.weight), "priority": job.weight,
            }
            for job in self.jobs
        ]  # fmt: skip
        cluster, workload = make_cluster([[1] * nodes for nodes in self.racks]), make_workload(rows)
        sim = Sim(*(array[0] for array in allocate(1, Dims.of(cluster, len(rows), 1, CLASSES))))
        horizon = 1000.0 + sum(job.hours for job in self.jobs)  # long after the last job
        rules = Rules(horizon=horizon, slice_nodes=max(self.racks), allow_open=False)
        load(sim, cluster, workload, rules, WEIGHTS)
        return sim

    def cost(self, name: str) -> float:
        """Weighted waiting of a heuristic."""
        sim = self.simulator()
        play(resolve_policy(name), sim)
        assert sim.clock[0]["n_waiting"] == sim.clock[0]["n_running"] == 0
        return float(sim.clock[0]["waiting"])


def read_toy(path: Path) -> Toy:
    data = yaml.safe_load(path.read_text())
    jobs = [Job(**{key: value for key, value in row.items() if key != "times"})
            for row in data["jobs"] for _ in range(row.get("times", 1))]  # fmt: skip
    order = sorted(jobs, key=lambda job: job.submit)
    return Toy(tuple(data["racks"]), tuple(order), data["optimum"], data["costs"], tuple(data["solved_by"]))


def optimum_by_program(toy: Toy, known: float) -> float:
    """Least weighted waiting, by integer programming; `known`: what some schedule costs, which bounds every wait.

    start[j, t] is 1 if job j starts at hour t; units[j, r, t] of its slices (or nodes) then go to rack r. No rack ever
    holds more nodes than it has. Jobs start whole hours, because some best schedule only starts jobs at events.
    """
    starts = [(j, t) for j, job in enumerate(toy.jobs) for t in _start_hours(job, known)]
    units = [(j, r, t) for j, t in starts for r, nodes in enumerate(toy.racks) if nodes >= toy.jobs[j].unit]
    column = {key: k for k, key in enumerate([*starts, *units])}
    cost = [toy.jobs[j].weight * toy.jobs[j].nodes * (t - toy.jobs[j].submit) for j, t in starts]
    entries: list[tuple[int, int, float]] = []  # row, column, coefficient
    low: list[float] = []
    high: list[float] = []

    def add_row(terms: Iterator[tuple[int, float]], least: float, most: float) -> None:
        entries.extend((len(low), at, value) for at, value in terms)
        low.append(least)
        high.append(most)

    for j, job in enumerate(toy.jobs):
        add_row(((column[j, t], 1.0) for t in _start_hours(job, known)), 1, 1)
    for j, t in starts:
        pieces = [(column[j, r, t], 1.0) for r in range(len(toy.racks)) if (j, r, t) in column]
        add_row(iter([*pieces, (column[j, t], -toy.jobs[j].nodes / toy.jobs[j].unit)]), 0, 0)
    for r, nodes in enumerate(toy.racks):
        for hour in sorted({t for _, t in starts}):
            running = [(j, t) for j, rack, t in units if rack == r and t <= hour < t + toy.jobs[j].hours]
            add_row(((column[j, r, t], float(toy.jobs[j].unit)) for j, t in running), 0, nodes)
    rows, columns, values = zip(*entries, strict=True)
    matrix = coo_array((values, (rows, columns)), shape=(len(low), len(column))).tocsr()
    most = np.array([1.0] * len(starts) + [float(toy.jobs[j].nodes) for j, _, _ in units])
    found = milp(
        np.array([*cost, *[0.0] * len(units)]),
        constraints=LinearConstraint(matrix, low, high),
        bounds=Bounds(0, most),
        integrality=np.ones(len(column)),
    )
    assert found.status == 0, found.message
    return round(float(found.fun), 6)


def _start_hours(job: Job, known: float) -> range:
    return range(job.submit, job.submit + int(known / (job.weight * job.nodes)) + 1)


def optimum_by_search(toy: Toy) -> float:
    """Least weighted waiting over all sequences of legal actions: depth first, cut off where no better end is left."""
    best = min(toy.cost("best-fit"), toy.cost("first-fit"))
    pool = [toy.simulator() for _ in range(200)]

    def descend(depth: int) -> None:
        nonlocal best
        sim = pool[depth]
        for action in _distinct_actions(sim):
            copy_into(pool[depth + 1], sim)
            alive = step(pool[depth + 1], action)
            cost = float(pool[depth + 1].clock[0]["waiting"])
            if alive and cost < best:
                descend(depth + 1)
            elif not alive:
                best = min(best, cost)

    advance(pool[0])
    descend(0)
    return best


def _distinct_actions(sim: Sim) -> list[int]:
    """The legal actions, one of each kind: racks that will be free at the same hours are the same rack."""
    kinds: dict[Any, int] = {}
    for action in np.flatnonzero(sim.mask).tolist():
        kind: Any = action
        if action < len(sim.racks):
            slots = sim.gpu_job[sim.racks[action]["node0"] : sim.racks[action]["node1"]]
            kind = tuple(sorted(_end(sim, int(j)) for j in slots))
        kinds.setdefault(kind, action)
    return list(kinds.values())


def _end(sim: Sim, j: int) -> float:
    if j < 0:
        return 0.0
    return -1.0 if j == sim.clock[0]["current"] else float(sim.jobs[j]["end"])
