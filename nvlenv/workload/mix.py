"""What a workload consists of, as its owner configures it: job classes, arrivals, a generator or a trace.

Every model is frozen and refuses unknown keys. Times are in hours.
"""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from nvlenv.cluster.types import FloatArray, Mode
from nvlenv.common.config import Count, Model, Name, NonNegative, Positive, Share

# Hourly and daily weights of submits: a whole research cluster over six months (Helios Venus, China local time, from
# midnight), and the usual weekend.
# fmt: off
DAY = (3.7, 2.7, 2.5, 1.6, 1.1, 0.9, 0.8, 0.9, 1.6, 3.3, 5.4, 6.1,
       4.9, 5.4, 6.5, 6.9, 7.2, 7.2, 5.3, 5.5, 5.6, 5.7, 4.8, 4.3)
# fmt: on
WEEK = (1.0, 1.0, 1.0, 1.0, 1.0, 0.8, 0.8)


class Duration(Model):
    """Run time at the ideal shape: lognormal, cut at the limits as a time limit cuts a job."""

    median_h: Positive
    sigma: NonNegative = 1.0  # of the natural logarithm
    min_h: NonNegative = 5 / 3600
    max_h: Positive = 14 * 24.0

    @model_validator(mode="after")
    def _ordered(self) -> Duration:
        if self.min_h > self.max_h:
            raise ValueError(f"min_h {self.min_h} is above max_h {self.max_h}")
        return self

    def mean(self) -> float:
        """Expected run time (h): the lognormal mean between the limits plus what lies on them."""
        low, high = self._score(self.min_h), self._score(self.max_h)
        inside = _normal_cdf(high - self.sigma) - _normal_cdf(low - self.sigma)
        body = self.median_h * math.exp(self.sigma**2 / 2) * inside
        return self.min_h * _normal_cdf(low) + body + self.max_h * _normal_cdf(-high)

    def _score(self, hours: float) -> float:
        """How many standard deviations `hours` lies above the median; with sigma 0, infinitely many."""
        distance = math.log(hours) - math.log(self.median_h) if hours > 0 else -math.inf
        return distance / self.sigma if self.sigma > 0 else math.copysign(math.inf, distance)


def _normal_cdf(score: float) -> float:
    return 0.5 * math.erfc(-score / math.sqrt(2))


class JobTraits(Model):
    """What all jobs of a class have in common, whether drawn or replayed."""

    name: Name
    mode: Literal["unconstrained", "preferred", "required"] = "unconstrained"
    level: str | None = None  # node label of the promise; None: the NVLink domain, i.e. the rack
    slice_gpus: Annotated[int, Field(ge=0)] = 0  # larger required jobs are cut into equal slices of this; 0: never
    gpus_per_pod: Count | None = None  # None: a whole node, or the whole job if it is smaller
    comm_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0  # share of a step in communication at the ideal shape
    priority: int = 1
    preemptible: bool = True
    movable: bool = False
    checkpoint_interval_h: NonNegative | None = None  # None: no checkpoints; 0: continuous
    restart_time_h: NonNegative = 0.1
    queue: Name = "default"
    weight: NonNegative = 1.0  # cost of one waiting GPU-hour

    @model_validator(mode="after")
    def _consistent(self) -> JobTraits:
        if self.mode != "unconstrained" and self.movable:
            raise ValueError(f"class {self.name!r} is movable but {self.mode}: only unconstrained jobs are moved")
        if self.mode == "unconstrained" and self.comm_fraction > 0:
            raise ValueError(f"class {self.name!r} is unconstrained: its pods do not talk, so comm_fraction must be 0")
        if self.mode != "required" and self.slice_gpus > 0:
            raise ValueError(f"class {self.name!r} is {self.mode}: only required jobs are cut into slices")
        return self

    @property
    def placement(self) -> Mode:
        """`mode` as the number that workloads hold."""
        return Mode[self.mode.upper()]


class JobClass(JobTraits):
    """A class of generated jobs."""

    share: Positive  # of the jobs, relative to the other classes
    sizes: dict[Count, Positive]  # GPUs -> probability
    duration: Duration
    batched: bool = False  # submitted in sweeps, if the arrivals are bursty

    @model_validator(mode="after")
    def _normalised(self) -> JobClass:
        total = sum(self.sizes.values())
        if abs(total - 1) > 0.02:  # published tables are rounded
            raise ValueError(f"class {self.name!r}: the probabilities of its sizes sum to {total:g}, not 1")
        return self


# The mix of the lab-16 scenario: a large language model lab by number of jobs. Training saves its state every half hour
# to hour and needs 12 minutes to be placed, loaded and warm again (operators tell of 15-60 and 10-20 minutes); a hero
# saves more often, because the more GPUs, the more often one fails. An evaluation starts over, a replica of a service
# has nothing to lose but the time to load its weights.
# fmt: off
DEFAULT_CLASSES = (
    JobClass(
        name="inference", share=0.31, priority=3, preemptible=False, movable=True, checkpoint_interval_h=0,
        sizes={1: 0.30, 2: 0.30, 4: 0.25, 8: 0.15}, duration=Duration(median_h=8, sigma=0.8),
    ),
    JobClass(
        name="evaluation", share=0.31, batched=True,
        sizes={1: 0.30, 2: 0.20, 4: 0.30, 8: 0.20}, duration=Duration(median_h=0.4, sigma=1.0),
    ),
    JobClass(
        name="post-training", share=0.31, batched=True, priority=2, mode="preferred", comm_fraction=0.10,
        sizes={8: 0.35, 16: 0.30, 32: 0.20, 64: 0.15}, duration=Duration(median_h=3, sigma=0.9),
        checkpoint_interval_h=1, restart_time_h=0.2,
    ),
    JobClass(
        name="pre-training", share=0.062, priority=3, weight=2, mode="required", slice_gpus=64, comm_fraction=0.20,
        sizes={64: 0.6, 128: 0.3, 256: 0.1}, duration=Duration(median_h=10, sigma=0.7),
        checkpoint_interval_h=1, restart_time_h=0.2,
    ),
    JobClass(
        name="hero", share=0.005, priority=4, weight=4, mode="required", slice_gpus=64, comm_fraction=0.30,
        sizes={384: 0.5, 512: 0.5}, duration=Duration(median_h=24, sigma=0.4), preemptible=False,
        checkpoint_interval_h=0.5, restart_time_h=0.2,
    ),
)
# fmt: on


class Poisson(Model):
    """Jobs come independently at a constant rate: the calmest possible day."""

    process: Literal["poisson"] = "poisson"


class _Rhythm(Model):
    """A rate that follows the hour and the weekday; every episode starts at a random hour of the week."""

    day: Annotated[tuple[NonNegative, ...], Field(min_length=24, max_length=24)] = DAY  # relative rate of each hour
    week: Annotated[tuple[NonNegative, ...], Field(min_length=7, max_length=7)] = WEEK  # of each day, from Monday

    @model_validator(mode="after")
    def _positive(self) -> Self:
        if sum(self.day) == 0 or sum(self.week) == 0:
            raise ValueError("day and week need at least one rate above 0")
        return self


class Daily(_Rhythm):
    """Jobs come independently at a rate that follows the hour and the weekday."""

    process: Literal["daily"] = "daily"


class Bursty(_Rhythm):
    """Daily arrivals whose rate also wanders from hour to hour, and whose batched classes come in sweeps.

    The defaults are those of research clusters, whose gaps have a coefficient of variation of 11-15, a third of them
    within the second. `wander` 0.5 makes a calm one.
    """

    process: Literal["bursty"] = "bursty"
    wander: Annotated[float, Field(ge=0, le=3)] = 1.35  # standard deviation of the logarithm of the hourly rate
    memory: Annotated[float, Field(ge=0, lt=1)] = 0.97  # correlation from one hour to the next
    batch_log_mean: float = 2.4  # jobs of a batch: rounded lognormal, at least 1
    batch_sigma: Positive = 1.35
    batch_max: Count = 800
    same_second: Share = 0.3  # of the followers in a batch
    gap_s: NonNegative = 5.0  # mean gap to the other followers

    @cached_property
    def batch_at_least(self) -> FloatArray:
        """(batch_max,) probability that a batch has at least 1, 2, ... jobs; the sum is the mean batch."""
        cuts = (math.log(k - 0.5) for k in range(2, self.batch_max + 1))
        return np.array([1.0, *(_normal_cdf((self.batch_log_mean - cut) / self.batch_sigma) for cut in cuts)])


Arrivals = Annotated[Poisson | Daily | Bursty, Field(discriminator="process")]


class SyntheticWorkload(Model):
    """Jobs drawn from classes at a target offered load."""

    kind: Literal["synthetic"] = "synthetic"
    classes: Annotated[tuple[JobClass, ...], Field(min_length=1)] = DEFAULT_CLASSES
    jobs: Count | None = None  # length of an episode in jobs, 3,000 if `hours` is not given either
    hours: Positive | None = None  # or in hours of submits
    load: Positive = 0.8  # expected GPU-hours submitted per GPU-hour of the cluster
    estimate_sigma: NonNegative = 0.3  # estimate = duration * lognormal(0, this)
    arrivals: Arrivals = Poisson()

    @model_validator(mode="after")
    def _consistent(self) -> SyntheticWorkload:
        if self.jobs is not None and self.hours is not None:
            raise ValueError("jobs and hours are both given: an episode ends with one of them")
        names = [job_class.name for job_class in self.classes]
        if len(set(names)) < len(names):
            raise ValueError(f"classes of the same name: {names}")
        return self


class MappingRule(JobTraits):
    """Which jobs of a trace become which class. The first rule that fits a job counts."""

    kinds: tuple[str, ...] = ()  # kinds of the trace; empty: any
    min_gpus: Annotated[int, Field(ge=0)] = 0  # of the job after rescaling
    max_gpus: Count | None = None
    min_share: Share = 0.0  # of the cluster


class TraceWorkload(Model):
    """A public trace, rescaled to the cluster and replayed.

    Jobs are thinned if the cluster is smaller than the trace's, mapped to classes, and their submits stretched to the
    target load; run times are kept. With `jobs` or `hours`, every seed replays another window of the `portion`, so that
    disjoint portions of one trace give training, validation and test episodes.
    """

    kind: Literal["trace"] = "trace"
    path: Path
    format: str = "auto"
    mapping: tuple[MappingRule, ...] = ()  # empty: `nvlenv.workload.draw.default_rules`
    source_gpus: Count | None = None  # GPUs of the trace's own cluster; None: as known for its format
    thin: bool = True  # False: replay all jobs at full size
    cap_share: Annotated[float, Field(gt=0, le=1)] = 0.5  # largest job as a share of the cluster
    load: Positive | None = 0.8  # offered load of the window; None: submit times as recorded
    speedup: Positive = 1.0  # how many times faster our GPUs finish the same job
    portion: tuple[Share, Share] = (0.0, 1.0)  # part of the trace's time that may be replayed
    start_h: NonNegative | None = None  # where in the portion the window starts; None: drawn, if it has a length
    jobs: Count | None = None  # length of the window in jobs
    hours: Positive | None = None  # or in hours of the trace; neither: to the end of the portion
    estimate_sigma: NonNegative = 0.3

    @model_validator(mode="after")
    def _consistent(self) -> TraceWorkload:
        if self.jobs is not None and self.hours is not None:
            raise ValueError("jobs and hours are both given: a window ends with one of them")
        if self.portion[0] >= self.portion[1]:
            raise ValueError(f"portion {self.portion} is empty")
        weights: dict[str, float] = {}
        for rule in self.mapping:
            if weights.setdefault(rule.name, rule.weight) != rule.weight:
                raise ValueError(f"rules of class {rule.name!r} have different weights")
        return self


WorkloadConfig = Annotated[SyntheticWorkload | TraceWorkload, Field(discriminator="kind")]
