"""The generator: jobs drawn from classes at a target offered load, in one vectorised pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvlenv.types import BoolArray, ClusterSpec, FloatArray, IntArray, Workload
from nvlenv.workload.arrivals import arrival_times, batch_sizes, rest_of_batch, spread_batches
from nvlenv.workload.columns import ClassColumns, noisy
from nvlenv.workload.mix import Bursty, JobClass, SyntheticWorkload
from nvlenv.workload.shape import Room, cut_slices, pod_of

DEFAULT_JOBS = 3000


@dataclass(frozen=True)
class Mix:
    """Every size of every class, K in all, as arrays (K,): what one draw picks from."""

    columns: ClassColumns
    share: FloatArray  # of the jobs, sums to 1
    job_class: IntArray  # index of the class
    gpus: IntArray
    gpus_per_pod: IntArray
    slice_gpus: IntArray
    batched: BoolArray
    log_median: FloatArray  # (C,) of the run time in h, per class
    sigma: FloatArray  # (C,)
    min_h: FloatArray  # (C,)
    max_h: FloatArray  # (C,)
    gpu_hours: float  # expected, of one job


def build_mix(classes: tuple[JobClass, ...], room: Room) -> Mix:
    """Check the classes against the cluster; raises `InputError` for a job that could never run."""
    columns = ClassColumns(classes, room)
    number = np.repeat(np.arange(len(classes), dtype=np.int32), [len(c.sizes) for c in classes])
    asked = np.array([size for c in classes for size in c.sizes], np.int32)
    pods = np.concatenate([pod_of(c, np.array(list(c.sizes), np.int32), room.node) for c in classes])
    limits = np.array([c.slice_gpus for c in classes], np.int32)[number]
    gpus, slices = cut_slices(asked, limits, pods)
    for cell, k in enumerate(number.tolist()):
        room.check_size(classes[k], int(asked[cell]), int(gpus[cell]), int(pods[cell]), int(slices[cell]))
    share = np.concatenate([c.share * np.array(list(c.sizes.values())) / sum(c.sizes.values()) for c in classes])
    share /= share.sum()
    means = np.array([c.duration.mean() for c in classes])
    return Mix(
        columns=columns,
        share=share,
        job_class=number,
        gpus=gpus,
        gpus_per_pod=pods,
        slice_gpus=slices,
        batched=np.array([c.batched for c in classes])[number],
        log_median=np.log([c.duration.median_h for c in classes]),
        sigma=np.array([c.duration.sigma for c in classes]),
        min_h=np.array([c.duration.min_h for c in classes]),
        max_h=np.array([c.duration.max_h for c in classes]),
        gpu_hours=float(np.dot(share, gpus * means[number])),
    )


def generate(config: SyntheticWorkload, cluster: ClusterSpec, rng: np.random.Generator) -> Workload:
    """Draw one episode's jobs, sorted by submit time.

    The arrival rate is load * GPUs / E[GPU-hours of a job], so that the offered load equals `config.load` in
    expectation and differs between draws as it does in life. Cordoned nodes do not count as GPUs of the cluster.

    Raises `InputError` if a class has jobs that could never run on this cluster. Same generator state, same jobs.
    """
    room = Room(cluster)
    mix = build_mix(config.classes, room)
    submit, cell = _arrive(config, mix, config.load * room.gpus / mix.gpu_hours, rng)
    job_class = mix.job_class[cell]
    score = rng.standard_normal(len(cell))
    drawn = np.exp(mix.log_median[job_class] + mix.sigma[job_class] * score)
    duration = np.clip(drawn, mix.min_h[job_class], mix.max_h[job_class])
    return Workload(
        submit=submit,
        gpus=mix.gpus[cell],
        gpus_per_pod=mix.gpus_per_pod[cell],
        slice_gpus=mix.slice_gpus[cell],
        duration=duration,
        estimate=noisy(duration, config.estimate_sigma, rng),
        source="synthetic",
        **mix.columns.take(job_class),
    )


def _arrive(config: SyntheticWorkload, mix: Mix, rate: float, rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    """Submit times (n,) in h and the cell of the mix of each job; `rate` is jobs per hour."""
    jobs = DEFAULT_JOBS if config.jobs is None and config.hours is None else config.jobs
    if isinstance(config.arrivals, Bursty):
        return _arrive_in_batches(config.arrivals, mix, rate, jobs, config.hours, rng)
    submit = arrival_times(config.arrivals, rate, jobs, config.hours, rng)
    return submit, _pick(mix.share, len(submit), rng)


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
