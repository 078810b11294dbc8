"""The generator: jobs drawn from classes at a target offered load, in one vectorised pass.

First when jobs are submitted (independently, by the hour of the day, or in bursts), then what every job has from its
class alone, then the draw of all of them, and which classes ask for more than racks promise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nvlenv.cluster.hardware import NODES_PER_RACK, SLICE_NODES
from nvlenv.cluster.types import BoolArray, ClusterSpec, FloatArray, IntArray, Mode, Workload
from nvlenv.workload.fit import Capacity
from nvlenv.workload.mix import Bursty, Daily, JobClass, JobTraits, Poisson, SyntheticWorkload

# All arrival processes are one: a Poisson process whose rate is the mean rate times an hourly factor of mean 1. It is
# drawn at constant rate 1 and its clock is then bent, so that a factor of 2 makes the hour pass twice as fast.
WEEK_H = 7 * 24


def hourly_factors(
    arrivals: Poisson | Daily | Bursty, from_a_job: bool, rng: np.random.Generator
) -> Iterator[FloatArray]:
    """Factors of the rate, hour by hour, a week (168,) at a time and without end; their long-term mean is 1.

    `from_a_job` starts at a random job instead of a random hour. More jobs fall into busy hours, so such a start is
    tilted to them by the factor itself, which for the lognormal part is a shift of the mean. Without it an episode of n
    jobs would take longer than n mean gaps on average, and its load would come out too low.
    """
    rhythm = np.ones(WEEK_H)
    if not isinstance(arrivals, Poisson):
        rhythm = np.outer(arrivals.week, arrivals.day).ravel()
        rhythm /= rhythm.mean()
        start = rng.choice(WEEK_H, p=rhythm / WEEK_H if from_a_job else None)
        rhythm = np.roll(rhythm, -int(start))
    if not isinstance(arrivals, Bursty):
        while True:
            yield rhythm
    memory, wander = arrivals.memory, arrivals.wander
    mood = rng.standard_normal() + (wander if from_a_job else 0.0)
    while True:
        shocks = math.sqrt(1 - memory**2) * rng.standard_normal(WEEK_H)
        moods = list(accumulate(shocks.tolist(), lambda before, shock: memory * before + shock, initial=mood))[1:]
        mood = moods[-1]
        yield rhythm * np.exp(wander * np.array(moods) - wander**2 / 2)


def arrival_times(
    arrivals: Poisson | Daily | Bursty, rate: float, count: int | None, hours: float | None, rng: np.random.Generator
) -> FloatArray:
    """Sorted times (h) of the first `count` arrivals, or of all within `hours`, at a mean `rate` per hour."""
    factors = hourly_factors(arrivals, hours is None, rng)
    expected = _extend(np.zeros(1), rate * next(factors))  # arrivals expected by each full hour
    begin = rng.random()  # within the first hour
    before = begin * expected[1]
    if hours is None:
        clock = before + np.cumsum(rng.standard_exponential(count))
        while expected[-1] < clock[-1]:
            expected = _extend(expected, rate * next(factors))
    else:
        while len(expected) <= begin + hours:
            expected = _extend(expected, rate * next(factors))
        total = float(np.interp(begin + hours, np.arange(len(expected)), expected)) - before
        clock = before + np.sort(rng.uniform(0, total, rng.poisson(total)))
    times: FloatArray = np.maximum(np.interp(clock, expected, np.arange(len(expected))) - begin, 0.0)
    return times


def _extend(expected: FloatArray, more: FloatArray) -> FloatArray:
    return np.concatenate((expected, expected[-1] + np.cumsum(more)))


def batch_sizes(arrivals: Bursty, count: int, rng: np.random.Generator) -> IntArray:
    """(count,) jobs of so many batches."""
    drawn = np.rint(np.exp(arrivals.batch_log_mean + arrivals.batch_sigma * rng.standard_normal(count)))
    return np.clip(drawn, 1, arrivals.batch_max).astype(np.int32)


def rest_of_batch(arrivals: Bursty, rng: np.random.Generator) -> int:
    """Jobs of a batch from a random one of its jobs on: k with a probability in proportion to P(at least k jobs)."""
    edges = np.cumsum(arrivals.batch_at_least)
    return 1 + int(np.searchsorted(edges, rng.random() * edges[-1], side="right"))


def spread_batches(
    arrivals: Bursty, times: FloatArray, sizes: IntArray, rng: np.random.Generator
) -> tuple[FloatArray, IntArray]:
    """The jobs of batches that come at `times`.

    Returns
    -------
    times : (n,) h, unsorted; the first job of a batch comes at the time of the batch.
    origin : (n,) index of each job's batch.
    """
    origin = np.repeat(np.arange(len(times), dtype=np.int32), sizes)
    gaps = rng.standard_exponential(len(origin)) * arrivals.gap_s / 3600
    gaps[rng.random(len(origin)) < arrivals.same_second] = 0.0
    since = np.cumsum(gaps)
    first = np.cumsum(sizes) - sizes
    return times[origin] + since - since[first][origin], origin


def class_columns(classes: Sequence[JobTraits], k: IntArray, room: Capacity) -> dict[str, Any]:
    """What jobs of the classes `k` (n,) have from their class alone: columns of the workload, and its names."""
    class_names = tuple(dict.fromkeys(traits.name for traits in classes))
    queue_names = tuple(dict.fromkeys(traits.queue for traits in classes))
    hours = [np.inf if t.checkpoint_interval_h is None else t.checkpoint_interval_h for t in classes]
    columns: dict[str, NDArray[Any]] = {
        "mode": np.array([t.placement for t in classes], np.int8),
        "height": np.array([room.height(t) for t in classes], np.int8),
        "comm_fraction": np.array([t.comm_fraction for t in classes], np.float64),
        "priority": np.array([t.priority for t in classes], np.int32),
        "queue": np.array([queue_names.index(t.queue) for t in classes], np.int32),
        "job_class": np.array([class_names.index(t.name) for t in classes], np.int32),
        "preemptible": np.array([t.preemptible for t in classes], np.bool_),
        "movable": np.array([t.movable for t in classes], np.bool_),
        "checkpoint_interval": np.array(hours, np.float64),
        "restart_time": np.array([t.restart_time_h for t in classes], np.float64),
    }
    picked = {name: column[k] for name, column in columns.items()}
    return {**picked, "class_names": class_names, "queue_names": queue_names}


def noisy(duration: FloatArray, sigma: float, rng: np.random.Generator) -> FloatArray:
    """What users or a predictor say of run times: right in the median, lognormal with `sigma` around it."""
    return duration * np.exp(sigma * rng.standard_normal(len(duration)))


DEFAULT_JOBS = 3000


@dataclass(frozen=True)
class Mix:
    """Every size of every class, K in all, as arrays (K,): what one draw picks from."""

    share: FloatArray  # of the jobs, sums to 1
    job_class: IntArray  # index of the class
    gpus: IntArray
    gpus_per_pod: IntArray
    slice_gpus: IntArray
    batched: BoolArray
    gpu_hours: float  # expected, of one job


def build_mix(classes: tuple[JobClass, ...], room: Capacity) -> Mix:
    """Check the classes against the cluster; raises `InputError` for a job that could never run."""
    for job_class in classes:
        room.check(job_class)
    number = np.repeat(np.arange(len(classes), dtype=np.int32), [len(c.sizes) for c in classes])
    asked = np.array([size for c in classes for size in c.sizes], np.int32)
    gpus, pods, slices = room.cut(classes, number, asked)
    for k, *cell in zip(*(column.tolist() for column in (number, asked, gpus, pods, slices)), strict=True):
        room.check_size(classes[k], *cell)
    share = np.concatenate([c.share * np.array(list(c.sizes.values())) / sum(c.sizes.values()) for c in classes])
    share /= share.sum()
    means = np.array([c.duration.mean() for c in classes])
    batched = np.array([c.batched for c in classes])[number]
    return Mix(share, number, gpus, pods, slices, batched, gpu_hours=float(np.dot(share, gpus * means[number])))


def generate(config: SyntheticWorkload, cluster: ClusterSpec, rng: np.random.Generator) -> Workload:
    """Draw one episode's jobs, sorted by submit time.

    The arrival rate is load * GPUs / E[GPU-hours of a job], so that the offered load equals `config.load` in
    expectation and differs between draws as it does in life. Cordoned nodes do not count as GPUs of the cluster.

    Raises `InputError` if a class has jobs that could never run on this cluster. Same generator state, same jobs.
    """
    room = Capacity(cluster)
    mix = build_mix(config.classes, room)
    rate = config.load * room.gpus / mix.gpu_hours  # jobs per hour
    jobs = DEFAULT_JOBS if config.jobs is None and config.hours is None else config.jobs
    if isinstance(config.arrivals, Bursty):
        submit, cell = _arrive_in_batches(config.arrivals, mix, rate, jobs, config.hours, rng)
    else:
        submit = arrival_times(config.arrivals, rate, jobs, config.hours, rng)
        cell = _pick(mix.share, len(submit), rng)
    k, times = mix.job_class[cell], [c.duration for c in config.classes]
    sigma, least, most = (np.array([getattr(t, name) for t in times])[k] for name in ("sigma", "min_h", "max_h"))
    drawn = np.exp(np.log([t.median_h for t in times])[k] + sigma * rng.standard_normal(len(cell)))
    duration = np.clip(drawn, least, most)
    return Workload(
        submit=submit,
        gpus=mix.gpus[cell],
        gpus_per_pod=mix.gpus_per_pod[cell],
        slice_gpus=mix.slice_gpus[cell],
        duration=duration,
        estimate=noisy(duration, config.estimate_sigma, rng),
        source="synthetic",
        **class_columns(config.classes, k, room),
    )


def _arrive_in_batches(
    arrivals: Bursty, mix: Mix, rate: float, jobs: int | None, hours: float | None, rng: np.random.Generator
) -> tuple[FloatArray, IntArray]:
    """A batch brings many jobs, so it comes more rarely, and its jobs are all alike.

    An episode counted in jobs follows on a random job, at time 0, which may have been anywhere in its batch.
    """
    weight = mix.share / np.where(mix.batched, arrivals.batch_at_least.sum(), 1.0)
    times = arrival_times(arrivals, rate * float(weight.sum()), jobs, hours, rng)
    cell = _pick(weight, len(times), rng)
    sizes = np.where(mix.batched[cell], batch_sizes(arrivals, len(cell), rng), 1)
    if jobs is not None:
        before = _pick(mix.share, 1, rng)
        rest = rest_of_batch(arrivals, rng) if mix.batched[before[0]] else 1
        times, cell, sizes = np.append(0.0, times), np.append(before, cell), np.append(rest, sizes)
    submit, origin = spread_batches(arrivals, times, sizes, rng)
    order = np.argsort(submit, kind="stable")
    order = order[submit[order] < hours] if hours is not None else order[1 : 1 + (jobs or 0)]
    return submit[order], cell[origin[order]]


def _pick(weight: FloatArray, count: int, rng: np.random.Generator) -> IntArray:
    """(count,) indices drawn in proportion to `weight`."""
    edges = np.cumsum(weight)
    found = np.searchsorted(edges, rng.random(count) * edges[-1], side="right")
    picked: IntArray = np.minimum(found, len(weight) - 1).astype(np.int32)
    return picked


# Vendors of NVL72 racks promise 16 of the 18 nodes, so that one or two may fail or be serviced. A job that needs all 18
# in one rack can start on a good day only: it waits for repairs that nobody owes it.
PROMISED = {NODES_PER_RACK: SLICE_NODES}  # nodes of a full rack -> nodes that are promised of it
NAMED = 4  # racks that a warning names


def promise_warnings(classes: tuple[JobClass, ...], cluster: ClusterSpec) -> list[str]:
    """One line for every class with required jobs, or slices, of more nodes than a rack promises."""
    promised = PROMISED.get(int(np.bincount(cluster.node_rack).max()))
    if promised is None:
        return []
    room = Capacity(cluster)
    mix = build_mix(classes, room)
    piece = np.where(mix.slice_gpus > 0, mix.slice_gpus, mix.gpus)
    lines = []
    for k, job_class in enumerate(classes):
        if job_class.placement is not Mode.REQUIRED or room.height(job_class) > 0:
            continue
        cells = np.flatnonzero(mix.job_class == k)
        widest = cells[np.argmax(piece[cells])]
        nodes = -(-int(piece[widest]) // room.node)
        if nodes > promised:
            pod = int(mix.gpus_per_pod[widest])
            lines.append(_line(job_class.name, nodes, promised, cluster, room.pods(0, pod) * pod >= piece[widest]))
    return lines


def _line(name: str, nodes: int, promised: int, cluster: ClusterSpec, wide: np.ndarray) -> str:
    racks = [cluster.rack_names[r] for r in np.flatnonzero(wide)]
    shown = ", ".join(racks[:NAMED]) + (f" and {len(racks) - NAMED} more" if len(racks) > NAMED else "")
    return (
        f"jobs of class {name!r} ask for {nodes} nodes in one rack, but racks promise {promised}: "
        f"{len(racks)} of {cluster.racks} racks have so many when all their nodes are well ({shown})"
    )
