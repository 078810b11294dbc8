"""Fragmentation of a live cluster: what a snapshot says is what the metrics say, failed and starved nodes left out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from nvlenv.engine.core.fragmentation import in_words, snapshot_fragmentation
from nvlenv.engine.model.jobs import Job, Pod
from nvlenv.engine.model.snapshot import Node, NodeState, make_snapshot

LEVELS = ("rack", "host")


def nodes(racks: int = 2, each: int = 4) -> list[Node]:
    return [Node(f"r{r}-n{n}", (f"r{r}", f"r{r}-n{n}"), 4, cpu=8000) for r in range(racks) for n in range(each)]


def job(name: str, on: list[str], start: float | None = None, estimate: float | None = None) -> Job:
    return Job(name, tuple(Pod(node, 4) for node in on), start=start, estimate=estimate)


def test_slots_and_the_start_of_a_hero_follow_from_what_runs() -> None:
    jobs = [job("a", ["r0-n0", "r0-n1"], start=0.0, estimate=5.0), job("b", ["r1-n0"], start=0.0, estimate=9.0)]
    snapshot = make_snapshot("test", LEVELS, "rack", nodes(), jobs)

    found = snapshot_fragmentation(snapshot, now=3600.0, slice_nodes=4, hero_slices=2)

    assert found.free_gpus == 20 and found.free_slots[2] == 2 and found.largest_slice == 3
    assert found.hero_start == 8.0  # r0 is empty in 4 h, r1 in 8
    assert snapshot_fragmentation(snapshot, slice_nodes=4, hero_slices=2).hero_start == math.inf


def test_a_job_past_its_estimate_may_end_at_any_moment_and_one_without_never_does() -> None:
    late = make_snapshot("test", LEVELS, "rack", nodes(1), [job("a", ["r0-n0"], start=0.0, estimate=1.0)])
    endless = make_snapshot("test", LEVELS, "rack", nodes(1), [job("a", ["r0-n0"])])

    starts = [snapshot_fragmentation(each, 7200.0, 4, 1).hero_start for each in (late, endless)]

    assert starts == [0.0, math.inf]


@pytest.mark.parametrize("trouble", ["failed", "cordoned", "cpu"])
def test_idle_gpus_that_nobody_can_reach_are_counted_apart(trouble: str) -> None:
    own, jobs = nodes(1), []
    if trouble == "cpu":
        jobs = [Job("etl", (Pod("r0-n0", 0, cpu=7000),))]
    else:
        own[0] = replace(own[0], state=NodeState(trouble))

    found = snapshot_fragmentation(make_snapshot("test", LEVELS, "rack", own, jobs), slice_nodes=4, pod_cpu=2000)

    assert (found.free_gpus, found.unreachable_gpus, found.largest_slice) == (12, 4, 3)


def test_every_metric_is_said_in_one_sentence() -> None:
    found = snapshot_fragmentation(make_snapshot("test", LEVELS, "rack", nodes()), 0.0, slice_nodes=4, hero_slices=2)

    words = in_words(found, 4)

    assert all(sentence.endswith(".") for sentence in words)
    assert "a hero could start now" in words[-1]
