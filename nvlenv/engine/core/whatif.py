"""A cluster played forward: when could a hero start under each policy, if the usual work goes on arriving?

The simulator starts with what runs now where it runs now, ends it by its estimates, and gets the hero first and then
the jobs of a trace or of a generator. All policies see the same jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nvlenv.cluster.types import Workload
from nvlenv.common.errors import InputError
from nvlenv.engine.core.live import Running, parts_of, queues_of, workload_of
from nvlenv.engine.model.answers import Answer
from nvlenv.engine.model.jobs import Job, check_job
from nvlenv.engine.model.settings import Settings
from nvlenv.engine.model.snapshot import ClusterSnapshot
from nvlenv.policies.resolver import play, policy_name, resolve_policy
from nvlenv.simulator.decision import Policy
from nvlenv.simulator.forecast import OVERDUE_FACTOR, SHORTEST_ESTIMATE
from nvlenv.simulator.load import load
from nvlenv.simulator.state import Dims, Sim, allocate
from nvlenv.workload.draw import class_weights, draw_workload
from nvlenv.workload.fit import Capacity
from nvlenv.workload.generate import build_mix
from nvlenv.workload.mix import DEFAULT_CLASSES, JobClass, SyntheticWorkload, TraceWorkload

RUNNING, HERO = "running", "hero"  # classes beside those of the work that arrives


@dataclass(frozen=True)
class Forecast(Answer):
    """One policy over all draws of the work that arrives."""

    policy: str
    hero_start: tuple[float | None, ...]  # h from now, draw by draw; None: not within the hours played
    others_wait: float  # h, mean over the jobs that arrive; those still waiting at the end count until then
    evictions: float  # per draw, of running jobs and of those that arrive

    @property
    def started(self) -> int:
        """Draws in which the hero started."""
        return sum(start is not None for start in self.hero_start)

    @property
    def median(self) -> float:
        """h; inf if the hero did not start in half of the draws."""
        return float(np.median([np.inf if start is None else start for start in self.hero_start]))


def play_forward(
    cluster: ClusterSnapshot,
    hero: Job,
    policies: Sequence[str | Path],
    arrivals: SyntheticWorkload | TraceWorkload,
    at: float,
    hours: float = 336.0,
    draws: int = 8,
    seed: int = 1,
    settings: Settings | None = None,
) -> tuple[Forecast, ...]:
    """One forecast per policy.

    Parameters
    ----------
    hero : asked for now; a single pod set (or leader and workers of one size).
    arrivals : jobs that come from now on, drawn for this cluster `draws` times.
    at : now, s since 1970.
    hours : how far to play.

    Raises `InputError` for a hero or arrivals that the cluster could never run.
    """
    check_job("hero", hero)
    settings = settings or Settings()
    spec, queues = cluster.cluster_spec(settings.nvlink, settings.network), queues_of(cluster)
    asked, _ = parts_of(hero.on(cluster.levels, cluster.nvlink_level), spec, len(queues) - 1, settings)
    if len(asked) != 1:
        raise InputError(f"job {hero.name}", "pod sets", f"{len(asked)} of unlike sizes", "one, for the simulator")
    jobs, parts, runs = Running.of(cluster, settings, at)
    left = [_hours_left(start, end) for start, end in runs]
    parts = [replace(part, estimate=hours_left) for part, hours_left in zip(parts, left, strict=True)]
    running = Running(jobs, parts, [(0.0, end) for end in left])
    present = workload_of([*parts, *asked], [0] * len(jobs) + [1], (RUNNING, HERO), [queue.name for queue in queues])
    weights = (1.0, settings.weights.get(hero.priority, 1.0), *class_weights(arrivals, spec).values())
    players = [resolve_policy(policy) for policy in policies]
    if arrivals.jobs is None and arrivals.hours is None:
        arrivals = arrivals.model_copy(update={"hours": hours})
    seeds = np.random.SeedSequence(seed).spawn(draws)
    works = [_joined(present, draw_workload(arrivals, spec, one)) for one in seeds]

    def begun(work: Workload) -> Sim:
        """A simulator in which the cluster's work runs, the hero waits and the arriving jobs are on their way."""
        sim = Sim(*(a[0] for a in allocate(1, Dims.of(spec, len(work), len(queues), len(work.class_names)))))
        load(sim, spec, work, replace(settings.rules(), horizon=hours), weights, queues)
        running.begin(sim, cluster)
        sim.clock["next_job"] = len(jobs)
        return sim

    return tuple(_forecast(player, map(begun, works), len(jobs), hours) for player in players)


def _forecast(policy: Policy, futures: Iterable[Sim], hero: int, hours: float) -> Forecast:
    """One policy over all that may come; `hero` is the number of the hero in each."""
    starts, waits, evictions = [], [], []
    for sim in futures:
        play(policy, sim)
        start = float(sim.jobs["first_start"][hero])
        starts.append(start if np.isfinite(start) else None)
        others = sim.jobs[hero + 1 :]
        waits.append(np.minimum(others["first_start"], hours) - np.minimum(others["submit"], hours))
        evictions.append(int(sim.clock["evictions"][0]))
    every = np.concatenate(waits)
    wait = float(every.mean()) if len(every) else 0.0
    return Forecast(policy_name(policy), tuple(starts), wait, float(np.mean(evictions)))


def _hours_left(start: float, end: float) -> float:
    """Until the end by the estimate; a job that outlived it is taken to need half as long again, as in the forecast."""
    run = end - start
    while start + run <= 0:
        run = max(SHORTEST_ESTIMATE, OVERDUE_FACTOR * run)
    return start + run


def _joined(first: Workload, arriving: Workload) -> Workload:
    """Both, one after the other; what arrives is outside of all queues, the last of the first's."""
    queue = np.full(len(arriving), len(first.queue_names) - 1, np.int32)
    job_class = arriving.job_class + np.int32(len(first.class_names))
    then = replace(arriving, queue=queue, job_class=job_class)
    columns = {name: np.concatenate([getattr(first, name), getattr(then, name)]) for name in Workload.columns()}
    names = (*first.class_names, *(f"arriving {name}" for name in arriving.class_names))
    return Workload(**columns, class_names=names, queue_names=first.queue_names, source=arriving.source)


def usual_arrivals(cluster: ClusterSnapshot, load: float) -> SyntheticWorkload:
    """The generator's usual classes, without the sizes that this cluster could never hold."""
    room = Capacity(cluster.cluster_spec())
    classes = []
    for job_class in DEFAULT_CLASSES:
        sizes = {size: share for size, share in job_class.sizes.items() if _could_run(job_class, size, room)}
        if sizes:
            total = sum(sizes.values())
            kept = {size: share / total for size, share in sizes.items()}
            classes.append(job_class.model_copy(update={"sizes": kept, "share": job_class.share * total}))
    return SyntheticWorkload(classes=tuple(classes), load=load)


def _could_run(job_class: JobClass, size: int, room: Capacity) -> bool:
    try:
        build_mix((job_class.model_copy(update={"sizes": {size: 1.0}}),), room)
    except InputError:
        return False
    return True
