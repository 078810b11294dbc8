"""From a trace to a workload: thin, cut a window, fit the sizes to the cluster, name the classes, reach the load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nvlenv.cluster.hardware import HERO_SHARE
from nvlenv.cluster.types import ClusterSpec, FloatArray, IntArray, Workload
from nvlenv.common.errors import InputError
from nvlenv.workload.fit import Capacity, cut_slices, pod_of, round_to_nodes
from nvlenv.workload.generate import ClassColumns, noisy
from nvlenv.workload.mix import DEFAULT_CLASSES, JobTraits, MappingRule, TraceWorkload
from nvlenv.workload.trace import Trace

SMALL_JOB = 8  # GPUs; up to here a smaller cluster gets fewer jobs, above it gets smaller ones


def default_rules(cluster: ClusterSpec) -> tuple[MappingRule, ...]:
    """Classes for any trace, with the traits of the lab's.

    Where a trace names no kinds, the size decides: jobs of one node never talk across nodes, whole slices are
    pre-training, what lies between is post-training. Slices are the largest power of two that a rack holds.
    """
    room = Capacity(cluster)
    rack = int(room.pods(0, room.node).max()) * room.node
    piece = max((1 << (rack.bit_length() - 1)) // room.node, 1) * room.node
    traits = {lab.name: lab.model_dump(include=set(JobTraits.model_fields)) for lab in DEFAULT_CLASSES}

    def rule(like: str, **changes: Any) -> MappingRule:
        return MappingRule.model_validate(traits[like] | changes)

    return (
        rule("inference", kinds=("inference",)),
        rule("evaluation", kinds=("eval", "evaluation")),
        rule("evaluation", kinds=("debug",), max_gpus=SMALL_JOB),
        rule("post-training", name="debug", kinds=("debug",), priority=1, checkpoint_interval_h=None),
        rule("post-training", name="spot", kinds=("spot",), priority=1),
        rule("post-training", kinds=("finetune", "post-training")),
        rule("hero", min_share=HERO_SHARE, slice_gpus=piece),
        rule("pre-training", kinds=("pretrain", "pre-training", "hero"), slice_gpus=piece),
        rule("evaluation", name="single-node", max_gpus=room.node, checkpoint_interval_h=1.0, restart_time_h=0.2),
        rule("post-training", max_gpus=max(piece - 1, 1)),
        rule("pre-training", slice_gpus=piece),
    )


def mapping_rules(config: TraceWorkload, cluster: ClusterSpec) -> tuple[MappingRule, ...]:
    """The rules of the config, or the defaults."""
    return config.mapping or default_rules(cluster)


def to_workload(trace: Trace, config: TraceWorkload, cluster: ClusterSpec, rng: np.random.Generator) -> Workload:
    """One episode's jobs from a trace, submits from 0 on.

    Sizes above `SMALL_JOB` shrink with the cluster, smaller jobs are thinned batch by batch instead: halving the
    giants' number would lose most of the GPU-time, halving the size of a 1-GPU job is not possible.

    Raises `InputError` if the window holds no job, or a job matches no rule.
    """
    room, rules = Capacity(cluster), mapping_rules(config, cluster)
    columns = ClassColumns(rules, room)
    scale = _scale(trace, config, room)
    rows = _window(trace, _thin(trace, _portion(trace, config), scale, rng), config, rng)
    sizes = _sizes(trace.gpus[rows], scale, max(int(config.cap_share * room.gpus), 1), room.node)
    rule = _match(trace, rows, sizes, rules, room)
    gpus, pods, slices = _fit(sizes, rule, rules, room)
    duration = trace.duration_s[rows] / 3600 / config.speedup
    submit = (trace.submit_s[rows] - trace.submit_s[rows[0]]) / 3600
    if config.load is not None and submit[-1] > 0:
        submit *= float(np.dot(gpus, duration)) / (room.gpus * submit[-1]) / config.load
    workload = Workload(
        submit=submit,
        gpus=gpus,
        gpus_per_pod=pods,
        slice_gpus=slices,
        duration=duration,
        estimate=noisy(duration, config.estimate_sigma, rng),
        source=trace.source,
        **columns.take(rule),
    )
    return workload.check(trace.source)


def _scale(trace: Trace, config: TraceWorkload, room: Capacity) -> float:
    source = config.source_gpus or trace.source_gpus
    return min(1.0, room.gpus / source) if config.thin and source else 1.0


def _portion(trace: Trace, config: TraceWorkload) -> IntArray:
    start, end = (share * trace.span_s for share in config.portion)
    last = len(trace) if config.portion[1] == 1 else int(np.searchsorted(trace.submit_s, end))
    first = int(np.searchsorted(trace.submit_s, start))
    if first >= last:
        raise InputError(config.path, "portion", f"no job between {start / 3600:.1f} and {end / 3600:.1f} h", "a job")
    return np.arange(first, last, dtype=np.int32)


def _thin(trace: Trace, rows: IntArray, scale: float, rng: np.random.Generator) -> IntArray:
    """Keep large jobs, and the batches of small jobs with probability `scale`; never nothing."""
    if scale == 1:
        return rows
    lucky = rng.random(int(trace.batch.max()) + 1) < scale
    kept = rows[lucky[trace.batch[rows]] | (trace.gpus[rows] > SMALL_JOB)]
    return kept if len(kept) else rows[:1]


def _window(trace: Trace, rows: IntArray, config: TraceWorkload, rng: np.random.Generator) -> IntArray:
    """Cut the episode out of the rows; it starts at `start_h`, or at a job drawn so that its length fits."""
    hours = trace.submit_s[rows] / 3600
    first = 0
    if config.start_h is not None:
        first = int(np.searchsorted(hours, trace.span_s / 3600 * config.portion[0] + config.start_h))
    elif config.jobs is not None:
        first = int(rng.integers(max(len(rows) - config.jobs, 0) + 1))
    elif config.hours is not None:
        latest = int(np.searchsorted(hours, hours[-1] - config.hours, side="right"))
        first = int(rng.integers(max(latest, 1)))
    if first >= len(rows):
        expected = f"less than the {hours[-1] - hours[0]:.1f} h of the portion"
        raise InputError(config.path, "start_h", config.start_h, expected)
    last = len(rows)
    if config.jobs is not None:
        last = first + config.jobs
    elif config.hours is not None:
        last = int(np.searchsorted(hours, hours[first] + config.hours))
    return rows[first:last]


def _sizes(gpus: FloatArray, scale: float, cap: int, node: int) -> IntArray:
    """Sizes on this cluster: large ones scaled to the nearest whole nodes, at most `cap`, all rounded to nodes."""
    scaled = np.where(gpus > SMALL_JOB, np.maximum(np.rint(gpus * scale / node), 1) * node, gpus)
    whole_cap = cap // node * node if cap >= node else cap
    return round_to_nodes(np.minimum(scaled if scale < 1 else gpus, whole_cap), node)


def _match(trace: Trace, rows: IntArray, gpus: IntArray, rules: Sequence[MappingRule], room: Capacity) -> IntArray:
    """(n,) the first rule that fits each job."""
    kind = trace.kind[rows]
    fits = np.empty((len(rules), len(rows)), np.bool_)
    for index, rule in enumerate(rules):
        kinds = {name.lower() for name in rule.kinds}
        named = np.array([not kinds or name in kinds for name in trace.kind_names])
        least = max(rule.min_gpus, rule.min_share * room.gpus)
        fits[index] = named[kind] & (gpus >= least) & (gpus <= (rule.max_gpus or math.inf))
    unmatched = ~fits.any(axis=0)
    if unmatched.any():
        job = int(np.argmax(unmatched))
        found = f"no rule for kind {trace.kind_names[kind[job]]!r} with {gpus[job]} GPUs"
        raise InputError("workload", "mapping", found, "a last rule without kinds and sizes")
    first: IntArray = np.argmax(fits, axis=0).astype(np.int32)
    return first


def _fit(
    sizes: IntArray, rule: IntArray, rules: Sequence[MappingRule], room: Capacity
) -> tuple[IntArray, IntArray, IntArray]:
    """(n,) GPUs, GPUs per pod and GPUs per slice: never more than the class could ever get, in whole pods."""
    largest = np.array([room.largest(each) for each in rules], np.int32)[rule]
    limits = np.array([each.slice_gpus for each in rules], np.int32)[rule]
    sizes = np.minimum(sizes, largest)
    pods = np.empty_like(sizes)
    for index, each in enumerate(rules):
        mine = rule == index
        pods[mine] = pod_of(each, sizes[mine], room.node)
    gpus, slices = cut_slices(sizes, limits, pods)
    return gpus, pods, slices
