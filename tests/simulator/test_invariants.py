"""What holds at every step of a large random run, whatever legal actions are taken. No reference: counts and sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

from nvlenv.cluster.types import ClusterSpec, Mode, NodeEventKind, NodeEvents, QueueSpec, Workload
from nvlenv.simulator.decision import ActionLayout
from nvlenv.simulator.load import Rules, load
from nvlenv.simulator.state import DONE, RUNNING, SLOT_SIZES, WAITING, Dims, Sim, copy_into
from nvlenv.simulator.step import advance, apply, step
from tests.simulator.cases import CLASSES, empty_sim, make_cluster, make_workload

RACKS, NODES, GPUS, JOBS = 16, 18, 4, 250
QUEUES = (QueueSpec("prod", 900, "lab"), QueueSpec("research", 252, "lab", strict=True))
SEEDS = [0, 1, 2, 3]


def large_cluster() -> ClusterSpec:
    racks = [[GPUS] * (NODES - r % 3) for r in range(RACKS)]
    return make_cluster(racks, [[r // 8] for r in range(RACKS)], cordoned=[3, 40, 41])


def large_workload(rng: Random) -> Workload:
    """Services, trainers and heroes that ask for more than there is, for a day."""
    kinds = rng.choices(["service", "post", "pre", "hero"], [6, 3, 2, 1], k=JOBS)
    return make_workload([_job(rng, kind) for kind in kinds], tuple(queue.name for queue in QUEUES))


def _job(rng: Random, kind: str) -> dict[str, Any]:
    pod = rng.randint(1, 4) if kind == "service" else 4
    pods = {"service": rng.choice([1, 1, 2, 5, 9]), "post": rng.choice([1, 2, 4, 9])}.get(kind, 12)
    slices = {"pre": rng.choice([1, 1, 2, 3]), "hero": 5}.get(kind, 1)
    return {
        "submit": rng.choice([0.0, rng.uniform(0, 24), float(rng.randint(0, 24))]),
        "gpus_per_pod": pod,
        "gpus": pod * pods * slices,
        "slice_gpus": pod * pods,
        "mode": {"service": Mode.UNCONSTRAINED, "post": Mode.PREFERRED}.get(kind, Mode.REQUIRED),
        "height": rng.choice([0, 0, 0, 1]),
        "comm_fraction": 0.0 if kind == "service" else 0.2,
        "priority": {"service": rng.randint(0, 3), "post": 1, "pre": 2, "hero": 4}[kind],
        "queue": int(kind == "post" and rng.random() < 0.5),
        "job_class": rng.randrange(CLASSES),
        "movable": kind == "service" and rng.random() < 0.7,
        "preemptible": kind in ("post", "pre") or (kind == "service" and rng.random() < 0.5),
        "duration": rng.choice([0.0, rng.expovariate(0.3), rng.expovariate(0.1)]),
        "checkpoint_interval": rng.choice([0.0, 0.5, float("inf")]),
        "restart_time": rng.choice([0.0, 0.2]),
    }


def outages(rng: Random) -> NodeEvents:
    """Pairs of failure and repair, cordon and uncordon, verification and its end; all over by hour 40."""
    pairs = [(k, NodeEventKind(k + 1)) for k in (NodeEventKind.FAIL, NodeEventKind.CORDON, NodeEventKind.VERIFY)]
    rows = []
    for _ in range(60):
        (first, last), begin, node = rng.choice(pairs), rng.uniform(0, 30), rng.randrange(RACKS * (NODES - 2))
        rows += [(begin, node, first), (begin + rng.uniform(0.1, 10), node, last)]
    times, nodes, kinds = zip(*sorted(rows), strict=True)
    return NodeEvents(np.array(times), np.array(nodes, np.int32), np.array(kinds, np.int8))


def large_sim(seed: int, sim: Sim | None = None, **rules: bool | float) -> Sim:
    """A large simulator at its start, in new arrays or in used ones."""
    rng = Random(seed)
    cluster, workload, events = large_cluster(), large_workload(rng), outages(rng)
    dims = Dims.of(cluster, JOBS, len(QUEUES), CLASSES, len(events.time), 60)
    sim = empty_sim(dims) if sim is None else sim
    load(sim, cluster, workload, Rules(**{"horizon": 60.0, **rules}), (1.0, 2.0, 4.0), QUEUES, events)
    return sim


def choose(sim: Sim, rng: Random) -> int:
    """A legal action; `hold` one time in five."""
    legal = [int(action) for action in np.flatnonzero(sim.mask)]
    hold = ActionLayout(len(sim.racks)).hold
    others = [action for action in legal if action != hold]
    return hold if hold in legal and rng.random() < 0.2 else rng.choice(others)


def play(sim: Sim, seed: int) -> Iterator[None]:
    """Random legal actions to the end of the window; stops at every decision, and at the end."""
    rng, alive = Random(seed), advance(sim)
    while alive:
        yield
        alive = step(sim, choose(sim, rng))
    yield


# --- Counts -----------------------------------------------------------------------------------------------------------


def check_nodes(sim: Sim) -> None:
    """Free GPUs, what fits each domain, free slots: all as the GPUs themselves say."""
    per_node, nodes, clock = sim.cap.shape[1] - 1, sim.nodes, sim.clock[0]
    owner = sim.gpu_job.reshape(-1, per_node)
    free = (owner == -1).sum(axis=1)
    assert (nodes["free"] == free).all()
    usable = np.where(nodes["blocked"] == 0, free, 0)
    for p in range(1, per_node + 1):
        expected = np.zeros(len(sim.cap), np.int64)
        for height in range(sim.ancestors.shape[1]):
            np.add.at(expected, sim.ancestors[nodes["rack"], height], usable // p)
        assert (sim.cap[:, p] == expected).all()
    whole = sim.cap[: len(sim.racks), per_node]
    assert list(sim.slots[0]) == [(whole // size).sum() for size in SLOT_SIZES]
    part = (nodes["blocked"] == 0) & (free > 0) & (free < nodes["gpus"])
    assert (sim.racks["part"] == np.bincount(nodes["rack"], part, len(sim.racks))).all()
    assert (sim.racks["usable"] == np.bincount(nodes["rack"], nodes["blocked"] == 0, len(sim.racks))).all()
    assert clock["free_all"] == free.sum()


def check_jobs(sim: Sim) -> None:
    """Every running job has exactly its GPUs, nobody else has any, and its chain walks through them."""
    owned = Counter(int(j) for j in sim.gpu_job if j >= 0)
    current = int(sim.clock[0]["current"])
    owned.pop(current, None)  # half placed
    running = np.flatnonzero(sim.jobs["status"] == RUNNING)
    assert owned == {int(j): int(sim.jobs[j]["gpus"]) for j in running}
    for j in running:
        slot, chain = int(sim.jobs[j]["first_gpu"]), []
        while slot >= 0:
            chain.append(slot)
            slot = int(sim.gpu_next[slot])
        assert len(set(chain)) == len(chain) == sim.jobs[j]["gpus"]
        assert (sim.gpu_job[chain] == j).all()
    idle = np.setdiff1d(np.arange(len(sim.jobs)), [*running, current])
    assert (sim.jobs["first_gpu"][idle] == -1).all()


def check_queues(sim: Sim) -> None:
    """Quota used is that of the running jobs; the waiting list and the heap hold what they should, in order."""
    clock, jobs = sim.clock[0], sim.jobs
    running, waiting = jobs["status"] == RUNNING, jobs["status"] == WAITING
    tests = np.where((sim.nodes["verify"] == 1) & (clock["verify_counted"] == 1), sim.nodes["gpus"], 0).sum()
    used = np.bincount(jobs["queue"][running], jobs["gpus"][running], len(sim.queues))
    used[0] += tests
    assert (sim.queues["used"] == used).all()
    assert (sim.cohorts["used"] == np.bincount(sim.queues["cohort"], used, len(sim.cohorts))).all()
    order = sorted(np.flatnonzero(waiting), key=lambda j: (-jobs["priority"][j], j))
    assert list(sim.waiting[: clock["n_waiting"]]) == order
    by_class = np.bincount(jobs["klass"][waiting], jobs["gpus"][waiting], len(sim.classes))
    assert (sim.classes["waiting_gpus"] == by_class).all()
    heap = sim.heap[: clock["n_running"]]
    assert sorted(heap) == list(np.flatnonzero(running))
    assert (jobs["heap_pos"][heap] == np.arange(len(heap))).all()
    keys = [(jobs["end"][j], j) for j in heap]
    assert all(keys[(k - 1) // 2] < keys[k] for k in range(1, len(keys)))
    slow = (jobs["gpus"] * (1 - jobs["speed"]))[running].sum()
    assert clock["slow_rate"] == pytest.approx(slow, abs=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_gpus_quota_and_lists_agree_at_every_step(seed: int) -> None:
    sim = large_sim(seed, verify_counted=seed == 1, evict_whole_rack=seed == 2)
    for number, _ in enumerate(play(sim, seed)):
        check_nodes(sim)
        if number % 4 == 0:
            check_jobs(sim)
            check_queues(sim)
    assert sim.clock[0]["evictions"] > 0 and sim.clock[0]["moves"] > 0 and sim.clock[0]["failures"] > 0


# --- Progress ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_every_scan_ends(seed: int) -> None:
    """In one instant a job comes up once, and once more each time it is stopped; a decision takes a step per pod."""
    sim, layout, came_up, steps = large_sim(seed), ActionLayout(RACKS), Counter[int](), 0
    instant, decision, stopped_before = -1, -1, 0
    for _ in play(sim, seed):
        clock = sim.clock[0]
        job = int(clock["current"])
        if clock["instant"] != instant:
            instant, stopped_before = int(clock["instant"]), int(clock["evictions"] + clock["moves"])
            came_up.clear()
        if clock["decisions"] != decision:
            decision, steps = int(clock["decisions"]), 0
            came_up[job] += 1
        steps += 1
        if job >= 0:
            assert came_up[job] <= 1 + clock["evictions"] + clock["moves"] - stopped_before
            assert steps <= sim.jobs[job]["gpus"] // sim.jobs[job]["pod_gpus"]
            assert sim.mask.any() and sim.mask.sum() > sim.mask[layout.hold]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_job_that_begins_can_go_on_until_it_starts(seed: int) -> None:
    """After any legal action but `hold` the job runs, or is up again with more than `hold`."""
    sim, rng, hold = large_sim(seed, allow_hold=False), Random(seed), ActionLayout(RACKS).hold
    opened, alive = 0, advance(sim)
    while alive:
        job, action = int(sim.clock[0]["current"]), choose(sim, rng)
        assert not sim.mask[hold]
        opened += RACKS <= action < 2 * RACKS
        if apply(sim, action):
            assert sim.clock[0]["current"] == job and sim.mask.any()
        else:
            assert sim.jobs[job]["status"] == RUNNING
            alive = advance(sim)
    assert opened > 10


# --- Determinism ------------------------------------------------------------------------------------------------------


def live_bytes(sim: Sim) -> list[bytes]:
    """All that a simulator has said, work space and unused rows left out."""
    clock = sim.clock[0]
    used = {"waiting": clock["n_waiting"], "heap": clock["n_running"], "samples": clock["n_samples"]}
    skipped = {"scratch", "scratch_float", "open_gpus", "open_lost"}
    return [getattr(sim, name)[: used.get(name)].tobytes() for name in sim._fields if name not in skipped]


def test_the_same_inputs_give_the_same_bytes_also_in_used_arrays() -> None:
    sim, used = large_sim(5), large_sim(6)
    for _ in play(used, 6):
        pass
    used = large_sim(5, used)
    for _ in zip(play(sim, 5), play(used, 5), strict=True):
        assert live_bytes(sim) == live_bytes(used)


def test_a_copy_lives_a_life_of_its_own_and_the_same() -> None:
    sim, twin = large_sim(7), large_sim(8)
    life = play(sim, 7)
    for _ in range(150):
        next(life)
    copy_into(twin, sim)
    before = live_bytes(sim)
    assert live_bytes(twin) == before
    twin_end = finish(twin, 9)
    assert live_bytes(sim) == before
    assert finish(sim, 9) == twin_end != before


def finish(sim: Sim, seed: int) -> list[bytes]:
    """Random legal actions from the present decision to the end."""
    rng = Random(seed)
    while step(sim, choose(sim, rng)):
        pass
    return live_bytes(sim)


# --- Sums -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_busy_gpu_hours_are_useful_work_plus_slowdown_plus_losses(seed: int) -> None:
    sim = large_sim(seed, allow_hold=False, horizon=10_000.0)
    for _ in play(sim, seed):
        pass
    clock, jobs = sim.clock[0], sim.jobs
    assert (jobs["status"] == DONE).all()
    assert clock["lost"] == pytest.approx(np.dot(jobs["gpus"], jobs["lost"]), rel=1e-9)
    useful = np.dot(jobs["gpus"], jobs["duration"])
    assert clock["busy"] == pytest.approx(useful + clock["slowdown"] + clock["lost"], rel=1e-9)
    assert clock["evictions"] == jobs["evictions"].sum()
    hours = np.bincount(jobs["klass"], jobs["gpus"] * jobs["waited"], CLASSES)
    assert sim.classes["waiting_hours"] == pytest.approx(hours, rel=1e-9)
    assert clock["waiting"] == pytest.approx(np.dot(hours, sim.classes["weight"]), rel=1e-9)
    assert clock["slowdown"] > 0 and clock["lost"] > 0
