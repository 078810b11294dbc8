"""Workloads: drawn from job classes, or replayed from public traces, as one struct of arrays either way."""

from __future__ import annotations

import numpy as np

from nvlenv.types import ClusterSpec, Workload
from nvlenv.workload.csv_format import write_csv
from nvlenv.workload.mapping import default_rules, rules_of, to_workload
from nvlenv.workload.mix import (
    DEFAULT_CLASSES,
    Arrivals,
    Bursty,
    Daily,
    Duration,
    JobClass,
    JobTraits,
    MappingRule,
    Poisson,
    SyntheticWorkload,
    TraceWorkload,
    WorkloadConfig,
    lab_classes,
)
from nvlenv.workload.shape import Room
from nvlenv.workload.synthetic import build_mix, generate
from nvlenv.workload.traces import Trace, TraceReport, cached_trace, format_names, read_trace

__all__ = [
    "DEFAULT_CLASSES",
    "Arrivals",
    "Bursty",
    "Daily",
    "Duration",
    "JobClass",
    "JobTraits",
    "MappingRule",
    "Poisson",
    "SyntheticWorkload",
    "Trace",
    "TraceReport",
    "TraceWorkload",
    "WorkloadConfig",
    "cached_trace",
    "check_config",
    "class_weights",
    "default_rules",
    "draw_workload",
    "format_names",
    "generate",
    "lab_classes",
    "read_trace",
    "to_workload",
    "write_csv",
]


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
        build_mix(config.classes, Room(cluster))
    else:
        to_workload(cached_trace(config.path, config.format), config, cluster, np.random.default_rng(0))


def class_weights(config: SyntheticWorkload | TraceWorkload, cluster: ClusterSpec) -> dict[str, float]:
    """Cost of one waiting GPU-hour by class name, in the order of the workload's `class_names`."""
    classes = config.classes if isinstance(config, SyntheticWorkload) else rules_of(config, cluster)
    return {traits.name: traits.weight for traits in classes}
