"""Job classes: what is refused, and the mean run time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from nvlenv.workload.mix import DEFAULT_CLASSES, Duration, JobClass, SyntheticWorkload, TraceWorkload, WorkloadConfig

PLAIN: dict[str, Any] = {"name": "a", "share": 1, "sizes": {4: 1.0}, "duration": {"median_h": 1}}


@given(
    median=st.floats(0.01, 50),
    sigma=st.floats(0, 2.5),
    low=st.floats(0, 1),
    high=st.floats(1, 400),
)
@settings(max_examples=40, deadline=None)
def test_the_mean_run_time_is_the_integral_over_the_clipped_density(
    median: float, sigma: float, low: float, high: float
) -> None:
    score = np.linspace(-10, 10, 40_001)
    density = np.exp(-(score**2) / 2)
    clipped = np.clip(median * np.exp(sigma * score), low, high)
    expected = np.dot(clipped, density) / density.sum()
    assert Duration(median_h=median, sigma=sigma, min_h=low, max_h=high).mean() == pytest.approx(expected, rel=1e-3)


def test_without_limits_the_mean_run_time_is_the_lognormal_mean() -> None:
    duration = Duration(median_h=2, sigma=0.5, min_h=0, max_h=1e9)
    assert duration.mean() == pytest.approx(2 * math.exp(0.125))


def test_lab_classes_have_the_ranks_and_weights_of_the_scenario() -> None:
    traits = {c.name: (c.priority, c.weight, c.preemptible, c.movable, c.mode) for c in DEFAULT_CLASSES}
    assert traits == {
        "inference": (3, 1, False, True, "unconstrained"),
        "evaluation": (1, 1, True, False, "unconstrained"),
        "post-training": (2, 1, True, False, "preferred"),
        "pre-training": (3, 2, True, False, "required"),
        "hero": (4, 4, False, False, "required"),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sizes": {4: 0.5, 8: 0.1}}, "sum to 0.6"),
        ({"sizes": {}}, "sum to 0"),
        ({"sizes": {0: 1.0}}, "sizes"),
        ({"mode": "preferred", "movable": True}, "only unconstrained jobs are moved"),
        ({"comm_fraction": 0.1}, "comm_fraction must be 0"),
        ({"slice_gpus": 64}, "only required jobs are cut"),
        ({"mode": "sometimes"}, "mode"),
        ({"comm_fraction": 1.0, "mode": "required"}, "comm_fraction"),
        ({"duration": {"median_h": 0}}, "median_h"),
        ({"duration": {"median_h": 1, "min_h": 5, "max_h": 2}}, "min_h 5.0 is above max_h 2.0"),
        ({"duration": {"median_h": float("inf")}}, "median_h"),
        ({"checkpoint_interval_h": -1}, "checkpoint_interval_h"),
        ({"colour": "blue"}, "colour"),
        ({"name": ""}, "name"),
        ({"share": 0}, "share"),
    ],
)
def test_a_class_that_makes_no_sense_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        JobClass.model_validate(PLAIN | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"jobs": 10, "hours": 5}, "both given"),
        ({"classes": [PLAIN, PLAIN]}, "same name"),
        ({"classes": []}, "classes"),
        ({"load": 0}, "load"),
        ({"arrivals": {"process": "sudden"}}, "sudden"),
        ({"arrivals": {"process": "daily", "day": [1.0]}}, "day"),
        ({"arrivals": {"process": "daily", "week": [0, 0, 0, 0, 0, 0, 0]}}, "above 0"),
        ({"arrivals": {"process": "bursty", "memory": 1}}, "memory"),
        ({"arrivals": {"process": "bursty", "wander": 4}}, "wander"),
    ],
)
def test_a_synthetic_workload_that_makes_no_sense_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SyntheticWorkload.model_validate(change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"jobs": 10, "hours": 5}, "both given"),
        ({"portion": [0.5, 0.5]}, "empty"),
        ({"cap_share": 0}, "cap_share"),
        ({"speedup": 0}, "speedup"),
        ({"mapping": [{"name": "a"}, {"name": "a", "weight": 2}]}, "different weights"),
    ],
)
def test_a_trace_workload_that_makes_no_sense_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TraceWorkload.model_validate({"path": "trace.csv"} | change)


def test_kind_tells_the_two_workloads_apart() -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(WorkloadConfig)
    assert isinstance(adapter.validate_python({"kind": "synthetic"}), SyntheticWorkload)
    assert isinstance(adapter.validate_python({"kind": "trace", "path": "x"}), TraceWorkload)
    with pytest.raises(ValidationError, match="kind"):
        adapter.validate_python({"kind": "dream"})
