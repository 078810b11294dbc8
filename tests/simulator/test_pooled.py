"""The pooled twin: equal to a small simulator in plain Python, and what a lower reference should be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings

from nvlenv.envs.batch import Batch
from nvlenv.envs.scenario import Scenario
from nvlenv.simulator.pooled import NOBODY, run_pooled
from tests.simulator.cases import Case, cases


class Pool:
    """Jobs on one pool of GPUs, worked out anew at every instant."""

    def __init__(self, case: Case) -> None:
        self.case, self.jobs = case, case.workload
        self.waiting: list[int] = []
        self.ends: dict[int, float] = {}  # of the running jobs

    def used(self, queues: set[int]) -> int:
        return sum(int(self.jobs.gpus[j]) for j in self.ends if int(self.jobs.queue[j]) in queues)

    def has_quota(self, j: int) -> bool:
        gpus, mine, specs = int(self.jobs.gpus[j]), int(self.jobs.queue[j]), self.case.queues
        cohort = {k for k, spec in enumerate(specs) if k == mine or (spec.cohort and spec.cohort == specs[mine].cohort)}
        spec = specs[mine]
        if spec.borrowing_limit >= 0 and self.used({mine}) + gpus > spec.nominal + spec.borrowing_limit:
            return False
        return self.used(cohort) + gpus <= sum(specs[k].nominal for k in cohort)

    def start_what_fits(self, now: float) -> None:
        blocked: set[int] = set()
        for j in sorted(self.waiting, key=lambda j: (-self.jobs.priority[j], j)):
            free = self.case.cluster.gpus - self.used(set(range(len(self.case.queues))))
            queue = int(self.jobs.queue[j])
            if queue not in blocked and self.jobs.gpus[j] <= free and self.has_quota(j):
                self.waiting.remove(j)
                self.ends[j] = now + float(self.jobs.duration[j])
            elif self.case.queues[queue].strict:
                blocked.add(queue)

    def curve(self) -> list[tuple[float, float]]:
        """(hour, weighted waiting GPU-hours since `measure_from`) at every event."""
        rules, now, cost, points = self.case.rules, 0.0, 0.0, [(0.0, 0.0)]
        arrivals = [float(t) for t in self.jobs.submit]
        while now < rules.horizon:
            coming = [*arrivals, *self.ends.values(), rules.horizon]
            then = min(coming)
            rate = sum(self.case.weights[self.jobs.job_class[j]] * int(self.jobs.gpus[j]) for j in self.waiting)
            if now < rules.measure_from < then:
                points.append((rules.measure_from, cost))
            cost += rate * max(0.0, then - max(now, rules.measure_from))
            now = then
            points.append((now, cost))
            self.ends = {j: end for j, end in self.ends.items() if end > now}
            while arrivals and arrivals[0] <= now:
                self.waiting.append(len(self.jobs) - len(arrivals))
                arrivals.pop(0)
            self.start_what_fits(now)
        return points


def pooled(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """The kernel's curve."""
    room = 2 * len(case.workload) + 3
    times, costs = np.full(room + 5, np.nan), np.full(room + 5, np.nan)
    points = run_pooled(case.load(), times, costs, NOBODY, 0.0)
    assert 1 <= points <= room
    return times[:points], costs[:points]


@settings(max_examples=80)
@given(cases())
def test_it_equals_a_pool_in_plain_python(case: Case) -> None:
    case = replace(case, cohorts=())  # the plain pool knows one level of them
    times, costs = pooled(case)
    expected_times, expected = np.array(Pool(case).curve()).T
    grid = np.union1d(times, expected_times)
    np.testing.assert_allclose(
        np.interp(grid, times, costs), np.interp(grid, expected_times, expected), rtol=1e-9, atol=1e-9
    )
    assert times[-1] == case.rules.horizon


@settings(max_examples=40)
@given(cases())
def test_its_cost_never_falls_and_time_goes_on(case: Case) -> None:
    times, costs = pooled(case)
    assert (times[0], costs[0]) == (0.0, 0.0)
    assert np.all(np.diff(times) > 0)
    assert np.all(np.diff(costs) >= 0)


def test_it_costs_less_than_best_fit_on_average(small: Scenario) -> None:
    batch = Batch(small, 12, np.random.SeedSequence(0))
    excess = np.full(batch.n, np.nan)
    while np.isnan(excess).any():
        racks = batch.layout.racks
        free = np.where(batch.mask[:, :racks], batch.sim.cap[:, :racks, 1], 10_000)
        batch.step(np.where(free.min(axis=1) < 10_000, np.argmin(free, axis=1), batch.layout.hold))
        first = batch.done & np.isnan(excess)
        excess[first] = batch.totals[first, 0] + batch.totals[first, 3]  # waiting less what the twin paid
    assert excess.mean() > 0
    assert np.mean(excess > -1e-9) > 0.8
