"""One episode's jobs, drawn from classes or replayed from a trace.

A trace is thinned, a window cut out of it, its sizes fitted to the cluster, its jobs given classes, and its submits
stretched until the load is reached.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nvlenv.cluster.hardware import HERO_SHARE
from nvlenv.cluster.types import ClusterSpec, FloatArray, IntArray, Workload
from nvlenv.common.errors import InputError
from nvlenv.workload.fit import Capacity, round_to_nodes
from nvlenv.workload.formats.registry import cached_trace
from nvlenv.workload.generate import build_mix, class_columns, generate, noisy
from nvlenv.workload.mix import DEFAULT_CLASSES, JobTraits, MappingRule, SyntheticWorkload, TraceWorkload
from nvlenv.workload.trace import Trace

SMALL_JOB = 8  # GPUs; up to here a smaller cluster gets fewer jobs, above it gets smaller ones


def draw_workload(
    config: SyntheticWorkload | TraceWorkload,
    cluster: ClusterSpec,
    seed: int | np.random.SeedSequence | np.random.Generator,
) -> Workload:
    """The jobs of one episode; the same seed gives the same jobs. A trace file is read once per process.

    Raises `InputError` for a trace that cannot be read and for jobs that the cluster could never run.
    """
    rng = np.random.default_rng(seed)
    if isinstance(config, SyntheticWorkload):
        return generate(config, cluster, rng)
    return to_workload(cached_trace(config.path, config.format), config, cluster, rng)


def check_config(config: SyntheticWorkload | TraceWorkload, cluster: ClusterSpec) -> None:
    """Raise `InputError` for what `draw_workload` would refuse, without drawing (a trace is read)."""
    if isinstance(config, SyntheticWorkload):
        build_mix(config.classes, Capacity(cluster))
    else:
        to_workload(cached_trace(config.path, config.format), config, cluster, np.random.default_rng(0))


def class_weights(config: SyntheticWorkload | TraceWorkload, cluster: ClusterSpec) -> dict[str, float]:
    """Cost of one waiting GPU-hour by class name, in the order of the workload's `class_names`."""
    classes = config.classes if isinstance(config, SyntheticWorkload) else mapping_rules(config, cluster)
    return {traits.name: traits.weight for traits in classes}


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
    for each in rules:
        room.check(each)
    source = config.source_gpus or trace.source_gpus
    scale = min(1.0, room.gpus / source) if config.thin and source else 1.0
    rows = _window(trace, _thin(trace, _portion(trace, config), scale, rng), config, rng)
    sizes = _sizes(trace.gpus[rows], scale, max(int(config.cap_share * room.gpus), 1), room.node)
    rule = _match(trace, rows, sizes, rules, room)
    largest = np.array([room.largest(each) for each in rules], np.int32)[rule]  # that the class could ever get
    gpus, pods, slices = room.cut(rules, rule, np.minimum(sizes, largest))
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
        **class_columns(rules, rule, room),
    )
    return workload.check(trace.source)


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
