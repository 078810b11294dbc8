"""A scenario: everything that configs/scenarios/*.yaml says about a cluster, its jobs, and what is counted.

>>> scenario = load_scenario("lab-16", ["workload.load=0.9", "cluster.racks=8"])
>>> episode = scenario.draw(np.random.SeedSequence(7))
>>> episode.cluster.racks, episode.workload.class_names[-1]
(8, 'hero')
"""

from __future__ import annotations

import hashlib
import json
import pkgutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, PrivateAttr, model_validator

from nvlenv.cluster import hardware
from nvlenv.cluster.failures import Failures, Verification, child_seeds, merge_events
from nvlenv.cluster.topology import LEVELS, levels_to_rack, uniform_cluster
from nvlenv.cluster.types import BoolArray, ClusterSpec, CohortSpec, NodeEvents, QueueSpec, Workload
from nvlenv.common.config import (
    Count,
    Model,
    Name,
    NonNegative,
    Positive,
    config_names,
    find_config,
    load_config,
    validated,
)
from nvlenv.common.errors import InputError
from nvlenv.simulator.load import Rules, load
from nvlenv.simulator.state import Dims, Sim, allocate
from nvlenv.workload.draw import check_config, class_weights, draw_workload
from nvlenv.workload.fit import Capacity
from nvlenv.workload.generate import promise_warnings
from nvlenv.workload.mix import SyntheticWorkload, TraceWorkload, WorkloadConfig

WorkloadGenerator = Callable[[ClusterSpec, np.random.Generator], Workload]
"""Jobs of one's own: the cluster and a source of randomness -> the jobs of one episode, sorted by submit time."""

RewardFunction = Callable[[Mapping[str, Any]], Any]
"""A reward of one's own: name -> cost of every term since the last decision (floats; in the vector environment arrays
of shape (N,), so it should be written with operators that both understand) -> the reward."""


@dataclass(frozen=True)
class Episode:
    """One draw of a scenario: all that a simulator is filled with."""

    cluster: ClusterSpec
    workload: Workload
    node_events: NodeEvents
    queues: tuple[QueueSpec, ...]


class ClusterConfig(Model):
    """Racks of equal nodes; racks may hold fewer nodes, or have some of them cordoned from the start."""

    racks: Count | tuple[Count, ...] = 16  # how many, or the nodes of each
    blocks: Count = 1
    nodes_per_rack: Count = hardware.NODES_PER_RACK
    gpus_per_node: Count = hardware.GPUS_PER_NODE
    levels: tuple[str, ...] = LEVELS  # node labels, coarse to fine
    nvlink_level: str | None = None  # the NVLink domain; None: the level before the last
    nvlink: Positive = hardware.NVLINK  # GB/s per GPU inside the NVLink domain
    network: Positive = hardware.NETWORK  # GB/s per GPU between racks
    cordoned: Annotated[int, Field(ge=0)] | tuple[str, ...] = 0  # the last so many nodes of every rack, or node names

    def spec(self) -> ClusterSpec:
        """The cluster itself; raises `InputError` if the numbers do not fit together."""
        if isinstance(self.racks, int):
            sizes = (self.nodes_per_rack,) * self.racks
        elif "nodes_per_rack" in self.model_fields_set:
            raise InputError("cluster", "nodes_per_rack", self.nodes_per_rack, "nothing: racks lists the nodes of each")
        else:
            sizes = self.racks
        levels, links = levels_to_rack(self.levels, self.nvlink_level), (self.nvlink, self.network)
        spec = uniform_cluster(len(sizes), self.blocks, sizes, self.gpus_per_node, levels, *links)
        return replace(spec, cordoned=self._cordoned(spec))

    def _cordoned(self, spec: ClusterSpec) -> BoolArray:
        if isinstance(self.cordoned, int):
            size = np.bincount(spec.node_rack)
            if self.cordoned >= size.min():
                expected = f"less than the {size.min()} nodes of the smallest rack"
                raise InputError("cluster", "cordoned", self.cordoned, expected)
            position = np.arange(spec.nodes) - np.searchsorted(spec.node_rack, spec.node_rack)
            return np.asarray(position >= size[spec.node_rack] - self.cordoned)
        unknown = [name for name in self.cordoned if name not in spec.node_names]
        if unknown:
            expected = f"node names like {spec.node_names[0]} ... {spec.node_names[-1]}"
            raise InputError("cluster", "cordoned", repr(unknown[0]), expected)
        return np.isin(spec.node_names, self.cordoned)


LATER = {
    *("cohorts", "preemption", "within_cluster_queue", "reclaim_within_cohort", "borrow_within_cohort"),
    "max_priority_threshold",
}


class QueueConfig(Model):
    """One ClusterQueue, in Kueue's words."""

    name: str = Field(min_length=1)
    nominal: Annotated[int, Field(ge=0)] | None = None  # GPUs; None: the whole cluster
    cohort: str = ""  # queues of one cohort lend each other what they do not use
    borrowing_limit: Annotated[int, Field(ge=0)] | None = None  # GPUs above nominal; None: what the cohort has
    order: Literal["StrictFIFO", "BestEffortFIFO"] = "BestEffortFIFO"
    # Whom its jobs may evict where `preemption` is `priority`: in the queue itself; in queues of the cohort that use
    # more than their own, if the job stays within nominal; and if it borrows itself, up to a priority.
    within_cluster_queue: Literal["Never", "LowerPriority", "LowerOrNewerEqualPriority"] = "LowerPriority"
    reclaim_within_cohort: Literal["Never", "LowerPriority", "Any"] = "Any"
    borrow_within_cohort: Literal["Never", "LowerPriority"] = "Never"
    max_priority_threshold: int = 2**31 - 1

    @model_validator(mode="after")
    def _borrows_from_somebody(self) -> Self:
        if self.borrowing_limit is not None and not self.cohort:
            raise InputError("queue", "borrowing_limit", self.borrowing_limit, "a cohort to borrow from")
        return self


class CohortConfig(Model):
    """A cohort that has quota beside that of its queues, or belongs to another one (Kueue's Cohort)."""

    name: Name
    nominal: Annotated[int, Field(ge=0)] = 0  # GPUs
    parent: str = ""  # a cohort
    borrowing_limit: Annotated[int, Field(ge=0)] | None = None  # GPUs above its own; None: what its parent has


class EpisodeConfig(Model):
    """The window that is simulated, from an empty cluster on."""

    hours: Positive = 336.0
    warmup_hours: NonNegative = 0.0  # at the start of those hours, left out of what evaluation counts
    sample_every_hours: Positive = 1.0  # of the time series

    @model_validator(mode="after")
    def _something_is_left(self) -> Self:
        if self.warmup_hours >= self.hours:
            raise InputError("episode", "warmup_hours", self.warmup_hours, f"less than the {self.hours:g} hours in all")
        return self


class RewardConfig(Model):
    """Weights of the cost terms; all are GPU-hours per GPU of the cluster."""

    waiting: NonNegative = 1.0  # each job's by the weight of its class
    slowdown: NonNegative = 1.0  # running jobs whose placement is worse than the ideal shape
    lost: NonNegative = 1.0  # work lost to evictions and failures
    paired: bool = True  # less the cost of the pooled cluster on the same jobs
    scale: Positive = 1.0  # of the sum


class Scenario(Model):
    """A cluster, its jobs and the rules between them; frozen, and checked as a whole when it is made."""

    name: str = Field(min_length=1)
    description: str = ""
    cluster: ClusterConfig = ClusterConfig()
    workload: WorkloadConfig = SyntheticWorkload()
    queues: tuple[QueueConfig, ...] = Field((QueueConfig(name="default"),), min_length=1)
    cohorts: tuple[CohortConfig, ...] = ()  # those that have quota of their own, or a parent
    collective: Literal["recursive-doubling", "ring", "hierarchical"] = "recursive-doubling"
    actions: tuple[Literal["open", "fill", "hold"], ...] = ("open", "fill", "hold")  # besides place
    # When racks may be opened: never; only for slices of whole nodes where enough GPUs are free in all; or for every
    # shape and also where GPUs or quota are short, as kube-scheduler, Slurm and Kueue preempt.
    preemption: Literal["never", "shape", "priority"] = "shape"
    max_evictions_per_job: int = Field(3, ge=0)
    hero_share: float = Field(hardware.HERO_SHARE, gt=0, le=1)  # a job of this share of the cluster is a hero
    slice_nodes: Count = hardware.SLICE_NODES  # the slice that metrics and reservations speak about
    episode: EpisodeConfig = EpisodeConfig()
    reward: RewardConfig = RewardConfig()
    failures: Failures | None = None  # None: nothing ever fails
    verification: Verification | None = None  # None: no verification pods
    _generator: WorkloadGenerator | None = PrivateAttr(None)
    _generated_names: tuple[str, ...] = PrivateAttr(())

    @model_validator(mode="before")
    @classmethod
    def _synthetic_unless_said(cls, data: Any) -> Any:
        workload = data.get("workload") if isinstance(data, dict) else None
        if isinstance(workload, dict) and "kind" not in workload:
            return {**data, "workload": {"kind": "synthetic", **workload}}
        return data

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        cluster = self._cluster
        names = [queue.name for queue in self.queues]
        if len(set(names)) < len(names):
            raise InputError("queues", "", names, "distinct names")
        if isinstance(self.workload, SyntheticWorkload):  # a trace is checked when it is read
            for job_class in self.workload.classes:
                if job_class.queue not in names:
                    field = f"classes.{job_class.name}.queue"
                    raise InputError("workload", field, repr(job_class.queue), f"one of the queues {names}")
            check_config(self.workload, cluster)
            for line in promise_warnings(self.workload.classes, cluster):
                warnings.warn(line, stacklevel=2)
        if self.failures is not None:
            self.failures.check(cluster)
        return self

    @cached_property
    def _cluster(self) -> ClusterSpec:
        return self.cluster.spec()

    def cluster_spec(self) -> ClusterSpec:
        """The cluster before anything has happened to it."""
        return self._cluster

    def queue_specs(self) -> tuple[QueueSpec, ...]:
        """The queues, each with its quota in GPUs."""
        return tuple(
            QueueSpec(
                name=queue.name,
                nominal=self._cluster.gpus if queue.nominal is None else queue.nominal,
                cohort=queue.cohort,
                borrowing_limit=-1 if queue.borrowing_limit is None else queue.borrowing_limit,
                strict=queue.order == "StrictFIFO",
                within=queue.within_cluster_queue,
                reclaim=queue.reclaim_within_cohort,
                borrow_within=queue.borrow_within_cohort,
                borrow_priority=queue.max_priority_threshold,
            )
            for queue in self.queues
        )

    def cohort_specs(self) -> tuple[CohortSpec, ...]:
        """The cohorts that have quota of their own, or a parent."""
        borrowed = [-1 if each.borrowing_limit is None else each.borrowing_limit for each in self.cohorts]
        pairs = zip(self.cohorts, borrowed, strict=True)
        return tuple(CohortSpec(each.name, each.nominal, each.parent, limit) for each, limit in pairs)

    def class_weights(self) -> tuple[float, ...]:
        """Cost of a waiting GPU-hour of each class, in the order of the workload's `class_names`."""
        known = class_weights(self.workload, self._cluster)
        return tuple(known.get(name, 1.0) for name in self.class_names())

    def class_names(self) -> tuple[str, ...]:
        """Names of the job classes, in the same order."""
        return self._generated_names or tuple(class_weights(self.workload, self._cluster))

    def with_generator(self, generator: WorkloadGenerator) -> Self:
        """The same scenario with jobs from a function of one's own instead of `workload`.

        Its `class_names` must be the same in every draw; classes that `workload` does not know weigh 1. Raises
        `InputError` (here for one sample, and in each `draw`) if its jobs could never run on the cluster.
        """
        scenario = self.model_copy()
        scenario._generator = generator
        scenario._generated_names = scenario._generated(np.random.SeedSequence(0)).class_names
        return scenario

    def draw(self, seed: np.random.SeedSequence) -> Episode:
        """One episode: the same seed gives the same one, and leaves the seed as it was.

        Jobs, failures and verification pods have streams of their own, so that the jobs stay the same when failures are
        turned on. Generated jobs are submitted during the whole episode, unless the workload says how many or how long.

        Raises `InputError` for a trace that cannot be read or does not fit the scenario.
        """
        job_seed, failure_seed, verification_seed = child_seeds(seed, 3)
        cluster, hours = self._cluster, self.episode.hours
        sources = (self.failures, failure_seed), (self.verification, verification_seed)
        events = [source.draw(cluster, hours, own) for source, own in sources if source is not None]
        return Episode(cluster, self._jobs(job_seed), merge_events(events), self.queue_specs())

    def _jobs(self, seed: np.random.SeedSequence) -> Workload:
        config = self.workload
        if isinstance(config, SyntheticWorkload) and config.jobs is None and config.hours is None:
            config = config.model_copy(update={"hours": self.episode.hours})
        jobs = self._generated(seed) if self._generator else draw_workload(config, self._cluster, seed)
        names = tuple(queue.name for queue in self.queues)
        for name in jobs.queue_names:
            if name not in names:
                raise InputError(jobs.source, "queue", repr(name), f"one of the scenario's queues {list(names)}")
        number = np.array([names.index(name) for name in jobs.queue_names], np.int32)
        return replace(jobs, queue=number[jobs.queue], queue_names=names)

    def _generated(self, seed: np.random.SeedSequence) -> Workload:
        """One draw of the generator, checked as drawn workloads are."""
        assert self._generator is not None
        jobs, where = self._generator(self._cluster, np.random.default_rng(seed)), _path_of(self._generator)
        if self._generated_names and jobs.class_names != self._generated_names:
            raise InputError(where, "class_names", jobs.class_names, f"{self._generated_names}, as in its other draws")
        Capacity(self._cluster).check_workload(jobs.check(where), where)
        return jobs

    def digest(self) -> str:
        """SHA-256 of all settings, defaults included: equal for files that mean the same."""
        said = self.model_dump()
        later = [(said, self), *zip(said["queues"], self.queues, strict=True)]  # settings that came later do not count
        for dumped, model in later:  # where they say what was the case before, so that recorded digests hold
            for name in LATER & dumped.keys():
                if dumped[name] == type(model).model_fields[name].default:
                    del dumped[name]
        if self._generator is not None:
            said["generator"] = _path_of(self._generator)
        canonical = json.dumps(said, sort_keys=True, separators=(",", ":"), default=str)
        return hashlib.sha256(canonical.encode()).hexdigest()


def load_scenario(path_or_name: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """Read a scenario: a shipped one by its name ("lab-16"), or a YAML file by its path.

    `overrides` such as "workload.load=0.9" or "workload.classes.hero.weight=8" have values in YAML.
    Raises `InputError` for the first mistake: file, field, what was found, what was expected.
    """
    path = find_config("scenarios", path_or_name)
    return load_config(Scenario, path, overrides, defaults={"name": path.stem})


def assemble_scenario(
    scenario: str | Path | Scenario,
    overrides: Sequence[str] = (),
    workload: WorkloadConfig | WorkloadGenerator | str | None = None,
    reward: RewardConfig | Mapping[str, Any] | RewardFunction | str | None = None,
) -> tuple[Scenario, RewardFunction | None]:
    """What the environments are made of: a scenario with the given parts in place of its own, and a reward function.

    The function is None for a reward by weights, which the compiled step knows how to count. A string means a function
    by its place, "package.module:name". Raises `InputError` for parts that do not exist or do not fit the cluster.
    """
    made = scenario if isinstance(scenario, Scenario) else load_scenario(scenario, overrides)
    if isinstance(workload, SyntheticWorkload | TraceWorkload):
        made = validated(Scenario, dict(made) | {"workload": workload}, made.name)
    elif workload is not None:
        made = made.with_generator(_function_at(workload, "workload") if isinstance(workload, str) else workload)
    if isinstance(reward, Mapping):
        reward = validated(RewardConfig, reward, "reward")
    if isinstance(reward, RewardConfig):
        return made.model_copy(update={"reward": reward}), None
    return made, _function_at(reward, "reward") if isinstance(reward, str) else reward


def _function_at(place: str, what: str) -> Callable[..., Any]:
    """The function at "package.module:name"."""
    try:
        found: Callable[..., Any] | None = pkgutil.resolve_name(place) if ":" in place else None
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(what, "", f"{place!r} ({error})", "a function as package.module:name") from None
    if found is None or not callable(found):
        raise InputError(what, "", repr(place), "a function as package.module:name")
    return found


def _path_of(function: Callable[..., Any]) -> str:
    """Where a function is defined, in the form that `_function_at` takes."""
    kind = function if hasattr(function, "__qualname__") else type(function)
    return f"{kind.__module__}:{kind.__qualname__}"


def scenario_names() -> list[str]:
    """Names of the shipped scenarios."""
    return config_names("scenarios")


MOSTLY_FILLED = 0.9  # a workload whose submits reach so far into the window fills it


def simulator_rules(scenario: Scenario, episode: Episode) -> Rules:
    """The simulator's settings that a scenario asks for.

    The window ends after the scenario's hours, or with the last submit of a much shorter trace; the warm-up is then the
    same share of it.
    """
    window, last = scenario.episode, float(episode.workload.submit[-1]) if len(episode.workload) else 0.0
    horizon = last if 0 < last < MOSTLY_FILLED * window.hours else window.hours
    return Rules(
        horizon=horizon,
        measure_from=window.warmup_hours * horizon / window.hours,
        sample_every=window.sample_every_hours,
        collective=scenario.collective,
        slice_nodes=scenario.slice_nodes,
        hero_share=scenario.hero_share,
        max_evictions=scenario.max_evictions_per_job,
        allow_open="open" in scenario.actions,
        preemption=scenario.preemption,
        allow_fill="fill" in scenario.actions,
        allow_hold="hold" in scenario.actions,
        verify_counted=scenario.verification is not None and scenario.verification.counted,
    )


def dims_of(scenario: Scenario, episode: Episode, samples: int = 0) -> Dims:
    """The arrays that one episode needs."""
    jobs, classes = len(episode.workload), len(episode.workload.class_names)
    cohorts = 2 * len(scenario.cohorts)  # each may name a parent that is not described
    events = len(episode.node_events.time)
    return Dims.of(episode.cluster, jobs, len(episode.queues), classes, events, samples, cohorts)


def load_episode(sim: Sim, scenario: Scenario, episode: Episode) -> None:
    """Fill one simulator (a view) with an episode, the clock at 0."""
    rules, weights = simulator_rules(scenario, episode), scenario.class_weights()
    queues, cohorts = episode.queues, scenario.cohort_specs()
    load(sim, episode.cluster, episode.workload, rules, weights, queues, episode.node_events, cohorts)


def prepare(scenario: Scenario, episode: Episode, sample: bool = True) -> Sim:
    """A simulator filled with an episode; with `sample`, the time series of the whole window are kept."""
    rows = int(scenario.episode.hours / scenario.episode.sample_every_hours) + 1 if sample else 0
    sim = Sim(*(array[0] for array in allocate(1, dims_of(scenario, episode, rows))))
    load_episode(sim, scenario, episode)
    return sim
