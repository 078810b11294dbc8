"""N simulators, their workloads, observations and rewards, stepped by one call into compiled code.

Everything above drives this: the Gymnasium environment is a batch of one, the vector environment shows a batch as
SB3 wants it. All arrays keep their identity between steps (except when a longer workload makes them grow), so callers
may read them without copying and must copy what they want to keep.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nvlenv.common.errors import InputError
from nvlenv.common.kernel import compiled, kernel
from nvlenv.envs.reward import TERMS, read_totals, score
from nvlenv.envs.scenario import Episode, Scenario, dims_of, load_episode
from nvlenv.policies.observation import N_CLUSTER, N_JOB, N_RACK, observe
from nvlenv.simulator.decision import ActionLayout
from nvlenv.simulator.pooled import NOBODY, run_pooled
from nvlenv.simulator.state import Dims, Sim, allocate, copy_into, view
from nvlenv.simulator.step import advance, step

RUN_OUT = 0.05  # share of an episode, at its end, in which the first decision truncates it
HEADROOM = 1.2  # arrays are made this much longer than the first workloads need


class Batch:
    """N simulators on episodes of one or several scenarios.

    Parameters
    ----------
    scenarios : simulator i plays scenario i modulo their number. Their clusters may differ: smaller ones are padded.
    n : how many simulators.
    seed : every simulator draws its episodes from a child of its own.
    stagger : shorten the first episodes evenly, so that resets do not come all at once.

    Attributes (all with leading axis N; overwritten by every step)
    ----------
    racks (N, R, F), job (N, J), cluster (N, C) : float32, see `nvlenv.policies.observation`.
    mask : (N, 2R + 2) bool, legal actions.
    reward : (N,) float64.  terms : (N, 4) float64, see `nvlenv.envs.reward`.
    totals : (N, 4) float64, the terms since the start of the episode.
    done : (N,) bool, the episode was truncated by the last step; `reset` it.
    """

    def __init__(
        self, scenarios: Scenario | Sequence[Scenario], n: int, seed: np.random.SeedSequence, stagger: bool = False
    ) -> None:
        self.scenarios = [scenarios] if isinstance(scenarios, Scenario) else list(scenarios)
        self.n = n
        self._seeds = seed.spawn(n)
        first = [self._draw(i) for i in range(n)]
        dims = dims_of(self.scenario(0), first[0])
        for i, episode in enumerate(first):
            dims = dims.union(dims_of(self.scenario(i), episode))
        self._allocate(dims)
        self.racks = np.zeros((n, dims.racks, N_RACK), np.float32)
        self.job, self.cluster = np.zeros((n, N_JOB), np.float32), np.zeros((n, N_CLUSTER), np.float32)
        self.reward, self.terms, self.done = np.zeros(n), np.zeros((n, len(TERMS))), np.zeros(n, np.bool_)
        self.totals, self._points = np.zeros((n, len(TERMS))), np.zeros(n, np.int64)
        self._window = np.zeros(n)
        rewards = [self.scenario(i).reward for i in range(n)]
        self._paired = np.array([r.paired for r in rewards])
        self._scale = np.array([r.scale for r in rewards])
        self._weights = np.array([[r.waiting, r.slowdown, r.lost] for r in rewards])
        for i, episode in enumerate(first):
            self._start(i, episode)
        self._stagger = stagger
        self._shorten_first()

    def scenario(self, i: int) -> Scenario:
        """The scenario that simulator i plays."""
        return self.scenarios[i % len(self.scenarios)]

    @property
    def layout(self) -> ActionLayout:
        """The actions of every simulator: those of the one with the most racks."""
        return ActionLayout(self.racks.shape[1])

    @property
    def mask(self) -> NDArray[np.bool_]:
        """(N, 2R + 2): legal actions; where `done`, `hold` alone."""
        return self.sim.mask

    def view(self, i: int) -> Sim:
        """Simulator i, sharing the batch's memory."""
        return Sim(*(array[i] for array in self.sim))

    def reseed(self, i: int, seed: np.random.SeedSequence) -> None:
        """From its next reset on, simulator i draws its episodes from this seed."""
        self._seeds[i] = seed

    def reset(self, i: int, episode: Episode | None = None) -> None:
        """Start a new episode in simulator i: the given one, or one drawn from its scenario."""
        self._start(i, self._draw(i) if episode is None else episode)

    def reset_all(self) -> None:
        """Start a new episode in every simulator, staggered if that was asked for."""
        for i in range(self.n):
            self.reset(i)
        self._shorten_first()

    def step(self, actions: NDArray[np.int64]) -> None:
        """Carry out one action (N,) in every simulator and run each to its next decision."""
        _step_all(
            self.sim, actions, self._twin_times, self._twin_costs, self._points, self._paired, self._weights,
            self._scale, self._window, self.totals, self.terms, self.reward, self.done, self.racks, self.job,
            self.cluster,
        )  # fmt: skip

    def _shorten_first(self) -> None:
        if self._stagger:
            self._window *= np.arange(1, self.n + 1) / self.n

    def _draw(self, i: int) -> Episode:
        return self.scenario(i).draw(self._seeds[i].spawn(1)[0])

    def _start(self, i: int, episode: Episode) -> None:
        needed = dims_of(self.scenario(i), episode)
        self._check_cluster(needed)
        if self._dims.union(needed) != self._dims:
            self._grow(self._dims.union(needed))
        sim, twin = self.view(i), Sim(*(array[0] for array in self._twin))
        load_episode(sim, self.scenario(i), episode)
        copy_into(twin, sim)
        self._points[i] = run_pooled(twin, self._twin_times[i], self._twin_costs[i], NOBODY, 0.0)
        self.totals[i] = 0.0
        self.done[i] = False
        self._window[i] = (1 - RUN_OUT) * float(sim.clock["horizon"][0])
        _first_decision(sim, self.racks[i], self.job[i], self.cluster[i])

    def _check_cluster(self, needed: Dims) -> None:
        """Only the arrays of jobs and their kind grow."""
        for name in ("racks", "nodes", "rack_nodes", "heights", "domains"):
            found, room = getattr(needed, name), getattr(self._dims, name)
            if found > room:
                raise InputError("Batch", f"cluster, {name}", found, f"at most the {room} of the largest scenario")

    def _allocate(self, dims: Dims) -> None:
        room = {"jobs": int(dims.jobs * HEADROOM) + 1, "events": int(dims.events * HEADROOM)}
        self._dims = Dims(**{**vars(dims), **room})
        self.sim, self._twin = allocate(self.n, self._dims), allocate(1, self._dims)
        self._twin_times = np.zeros((self.n, 2 * self._dims.jobs + 3))
        self._twin_costs = np.zeros_like(self._twin_times)

    def _grow(self, dims: Dims) -> None:
        old = (*self.sim, self._twin_times, self._twin_costs)
        self._allocate(dims)
        for new, array in zip((*self.sim, self._twin_times, self._twin_costs), old, strict=True):
            new[tuple(slice(0, length) for length in array.shape)] = array


@compiled
def _first_decision(sim, racks, job, cluster):
    if not advance(sim):
        _leave_hold(sim)
    observe(sim, racks, job, cluster)


@kernel
def _leave_hold(sim):
    """No decision is left in the window; the mask still has an action, which does nothing."""
    for a in range(len(sim.mask)):
        sim.mask[a] = a == len(sim.mask) - 1


@compiled
def _step_all(
    batch, actions, twin_times, twin_costs, points, paired, weights, scale, window, totals, terms, reward, done, racks,
    job, cluster,
):  # fmt: skip
    for i in range(len(actions)):
        sim = view(batch, i)
        alive = sim.clock[0].current >= 0 and step(sim, actions[i])
        if not alive:
            _leave_hold(sim)
        before = (totals[i, 0], totals[i, 1], totals[i, 2], totals[i, 3])
        read_totals(sim, twin_times[i], twin_costs[i], points[i], paired[i], totals[i])
        for k in range(4):
            terms[i, k] = totals[i, k] - before[k]
        reward[i] = score(terms[i], weights[i], scale[i])
        done[i] = not alive or sim.clock[0].now >= window[i]
        observe(sim, racks[i], job[i], cluster[i])
