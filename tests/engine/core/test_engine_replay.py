"""What was trained is what runs: a simulated episode, replayed through the engine, gives the same placements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from nvlenv.cluster.types import ClusterSpec, Mode, Workload
from nvlenv.engine.core.engine import PlacementEngine
from nvlenv.engine.model.answers import Loss, Placed
from nvlenv.engine.model.jobs import Job, PodSet
from nvlenv.engine.model.settings import Settings
from nvlenv.engine.model.snapshot import ClusterSnapshot, Node, make_snapshot
from nvlenv.envs.scenario import Scenario, prepare
from nvlenv.policies.kueue.types import Layer
from nvlenv.policies.learned import load_policy, save_policy
from nvlenv.policies.resolver import resolve_policy
from nvlenv.simulator.decision import ActionLayout, Decision, Policy
from nvlenv.simulator.state import DONE, RUNNING, WAITING, Sim
from nvlenv.simulator.step import advance, apply
from tests.policies.files import random_arrays

Nodes = dict[str, int]  # GPUs by node
RULES = ["best-fit", "best-fit+fill+easy+open", "least-allocated+open", "best-fit+tight+hold+easy(spare=1)+open-hero"]
HOUR = 3600.0


@dataclass
class History:
    """What a simulated episode did."""

    starts: list[tuple[float, int, Nodes]] = field(default_factory=list)
    left: dict[tuple[int, int], float] = field(default_factory=dict)  # (job, evictions) -> h that it still asks for
    evictions: int = 0
    wasted: int = 0  # decisions that evicted somebody and then held the job: the engine takes that back


def simulate(sim: Sim, policy: Policy, spec: ClusterSpec) -> History:
    """Play an episode decision by decision and write down every start."""
    history, layout, g = History(), ActionLayout(len(sim.racks)), sim.cap.shape[1] - 1
    alive = advance(sim)
    while alive:
        j, ran = int(sim.clock[0]["current"]), sim.jobs["status"] == RUNNING
        again = True
        while again:
            again = apply(sim, policy(Decision(sim, sim.mask, layout)))
        for victim in np.flatnonzero(ran & (sim.jobs["status"] == WAITING)):
            key = (int(victim), int(sim.jobs["evictions"][victim]))
            history.left[key] = float(sim.jobs["estimate_error"][victim] * sim.jobs["work"][victim])
        history.wasted += int(sim.jobs["status"][j] != RUNNING and bool((ran & (sim.jobs["status"] != RUNNING)).any()))
        if sim.jobs["status"][j] == RUNNING:
            nodes, counts = np.unique(np.flatnonzero(sim.gpu_job == j) // g, return_counts=True)
            where = {spec.node_names[node]: int(gpus) for node, gpus in zip(nodes, counts, strict=True)}
            history.starts.append((float(sim.clock[0]["now"]), j, where))
        alive = advance(sim)
    history.evictions = int(sim.clock[0]["evictions"])
    return history


def snapshot_of(spec: ClusterSpec) -> ClusterSnapshot:
    paths = [
        (*spec.rack_names[rack].split("/"), name) for rack, name in zip(spec.node_rack, spec.node_names, strict=True)
    ]
    nodes = [Node(path[-1], path, int(gpus)) for path, gpus in zip(paths, spec.node_gpus, strict=True)]
    return make_snapshot("test", spec.levels, spec.levels[-2], nodes)


def request(w: Workload, j: int, spec: ClusterSpec, estimate: float) -> Job:
    """Job j of a workload as somebody would ask for it."""
    level = spec.levels[len(spec.levels) - 2 - int(w.height[j])]
    mode, pod_gpus = Mode(int(w.mode[j])), int(w.gpus_per_pod[j])
    slices = (Layer(level, int(w.slice_gpus[j]) // pod_gpus),) if mode == Mode.REQUIRED and w.slice_gpus[j] else ()
    if slices or mode == Mode.UNCONSTRAINED:
        mode, level = Mode.UNCONSTRAINED, ""
    return Job(
        name=f"job-{j:05d}",
        pod_sets=(PodSet("main", int(w.gpus[j]) // pod_gpus, pod_gpus, mode=mode, level=level, slices=slices),),
        priority=int(w.priority[j]),
        estimate=estimate,
        preemptible=bool(w.preemptible[j]),
        movable=bool(w.movable[j]),
        comm_fraction=float(w.comm_fraction[j]),
        checkpoint_hours=float(w.checkpoint_interval[j]),
        restart_hours=float(w.restart_time[j]),
    )


class Controller:
    """Asks the engine as the simulator's scan asks a policy: in order, once per instant, and again after evictions."""

    def __init__(self, engine: PlacementEngine, w: Workload, spec: ClusterSpec, history: History) -> None:
        self._engine, self._w, self._spec, self._history = engine, w, spec, history
        self._evicted: dict[int, int] = {}
        self.starts: list[tuple[float, int, Nodes]] = []

    def run(self, events: Iterator[tuple[float, list[int], list[int]]]) -> None:
        seen: set[str] = set()
        held: set[str] = set()
        for time, finished, arrived in events:
            for j in finished:
                self._engine.finish(f"default/job-{j:05d}", at=time * HOUR)
            for j in arrived:
                self._engine.enqueue(self._request(j), at=time * HOUR)
            if finished:
                seen, held = set(), set()
            self._scan(time, seen, held)

    def _scan(self, time: float, seen: set[str], held: set[str]) -> None:
        while (name := next((n for n in self._engine.waiting if n not in seen), None)) is not None:
            seen.add(name)
            if name in held:
                continue
            j = int(name[-5:])
            answer = self._engine.place(self._request(j), at=time * HOUR)
            if isinstance(answer, Placed):
                self.starts.append((time, j, {b.node: b.gpus for b in answer.bindings}))
                for eviction in answer.evictions:
                    if eviction.reason != Loss.MOVED:
                        victim = int(eviction.job[-5:])
                        self._evicted[victim] = self._evicted.get(victim, 0) + 1
                if answer.evictions:
                    seen.clear()
            elif answer.why.steps:
                held.add(name)

    def _request(self, j: int) -> Job:
        times = self._evicted.get(j, 0)
        estimate = self._history.left[j, times] if times else float(self._w.estimate[j])
        return request(self._w, j, self._spec, estimate)


def events(sim: Sim, horizon: float) -> Iterator[tuple[float, list[int], list[int]]]:
    """Instants of a simulated episode: who finished, who arrived."""
    jobs = sim.jobs[: int(sim.clock[0]["n_jobs"])]
    finish = np.where(jobs["status"] == DONE, jobs["finish"], np.inf)
    times = np.unique(np.concatenate([finish, jobs["submit"]]))
    for time in times[times < horizon]:
        yield float(time), np.flatnonzero(finish == time).tolist(), np.flatnonzero(jobs["submit"] == time).tolist()


def replay(scenario: Scenario, policy: Policy, seed: int) -> tuple[History, Controller, PlacementEngine]:
    episode = scenario.draw(np.random.SeedSequence(seed))
    sim = prepare(scenario, episode, sample=False)
    history = simulate(sim, policy, episode.cluster)
    settings = Settings(by_priority=False, max_evictions=scenario.max_evictions_per_job)
    engine = PlacementEngine(snapshot_of(episode.cluster), policy, settings, at=0.0)
    controller = Controller(engine, episode.workload, episode.cluster, history)
    controller.run(events(sim, float(sim.clock[0]["horizon"])))
    return history, controller, engine


def assert_same(history: History, controller: Controller) -> None:
    for simulated, placed in zip(history.starts, controller.starts, strict=False):
        assert placed == simulated
    assert len(controller.starts) == len(history.starts)
    assert history.wasted == 0


@pytest.mark.parametrize("name", RULES)
def test_an_episode_replayed_through_the_engine_gives_the_same_placements(
    make_small: Callable[..., Scenario], name: str
) -> None:
    history, controller, _ = replay(make_small("episode.hours=200", "workload.load=0.9"), resolve_policy(name), seed=2)

    assert len(history.starts) > 100
    assert_same(history, controller)
    assert (history.evictions > 0) == ("open" in name)


def test_a_learned_policy_decides_in_the_engine_as_in_the_simulator(
    make_small: Callable[..., Scenario], tmp_path: Path
) -> None:
    arrays = random_arrays(hidden=16, seed=3)
    arrays["global_bias"][1] -= 1000.0  # it never holds: what it opens it also takes
    save_policy(tmp_path / "policy.npz", arrays)
    policy = load_policy(tmp_path / "policy.npz")

    history, controller, _ = replay(make_small("episode.hours=200", "workload.load=0.9"), policy, seed=2)

    assert len(history.starts) > 100
    assert history.evictions > 0
    assert_same(history, controller)
