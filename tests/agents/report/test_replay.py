"""A recording is the episode: nothing is missing, nothing overlaps, and playing it changes no number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agents.evaluation.episodes import Case, make_case, measure, play_policy, split_seeds
from agents.report.replay import ENDS, KINDS, describe_episode, record
from nvlenv.envs.scenario import Episode

RULES = ("best-fit+easy+open", "least-allocated", "best-fit+fill+open-hero")


@pytest.fixture(scope="module")
def case(small_overrides: tuple[str, ...]) -> Case:
    return make_case("lab-16", [*small_overrides, "workload.load=1.1", "failures={node_mtbf_hours: 300}"])


@pytest.fixture(scope="module")
def episode(case: Case) -> Episode:
    return case.scenario.draw(split_seeds(0, "validation", 2)[1])


@pytest.fixture(scope="module", params=RULES)
def played(
    request: pytest.FixtureRequest, case: Case, episode: Episode
) -> tuple[str, dict[str, Any], dict[str, float]]:
    return (request.param, *record(request.param, case, episode))


def test_watching_changes_nothing(played: Any, case: Case, episode: Episode) -> None:
    name, _, metrics = played

    alone = measure(play_policy(name, case.scenario, episode), episode.workload.class_names)

    assert metrics == pytest.approx(alone, nan_ok=True, rel=1e-12)


def test_a_gpu_runs_one_job_at_a_time(played: Any) -> None:
    runs = played[1]["runs"]
    taken: dict[int, list[tuple[float, float]]] = {}
    for start, end, spans in zip(runs["start"], runs["end"], runs["gpus"], strict=True):
        for first, count in zip(spans[::2], spans[1::2], strict=True):
            for gpu in range(first, first + count):
                taken.setdefault(gpu, []).append((start, end))

    for intervals in taken.values():
        assert all(a[1] <= b[0] for a, b in zip(sorted(intervals), sorted(intervals)[1:], strict=False))


def test_every_run_has_the_gpus_of_its_job_and_an_end(played: Any, episode: Episode) -> None:
    runs = played[1]["runs"]

    assert [sum(spans[1::2]) for spans in runs["gpus"]] == episode.workload.gpus[runs["job"]].tolist()
    assert all(start <= end for start, end in zip(runs["start"], runs["end"], strict=True))
    assert set(runs["ended"]) <= set(range(len(ENDS)))


def test_evictions_moves_and_failures_are_counted_as_the_simulator_counts_them(
    played: Any, case: Case, episode: Episode
) -> None:
    name, recording, _ = played
    ended = np.bincount(recording["runs"]["ended"], minlength=len(ENDS))

    clock = play_policy(name, case.scenario, episode).clock[0]

    assert clock["failures"] == ended[ENDS.index("failed")] > 0
    assert clock["evictions"] + clock["moves"] == ended[ENDS.index("evicted")] + ended[ENDS.index("moved")]
    assert sum(recording["decisions"]["evicted"]) == clock["evictions"]


def test_decisions_are_in_order_and_place_what_runs(played: Any) -> None:
    decisions, runs = played[1]["decisions"], played[1]["runs"]

    assert decisions["time"] == sorted(decisions["time"])
    placed = {job for job, kind in zip(decisions["job"], decisions["kind"], strict=True) if KINDS[kind] != "hold"}
    assert set(runs["job"]) <= placed


def test_the_totals_end_where_the_metrics_do(played: Any, case: Case, episode: Episode) -> None:
    _, recording, metrics = played
    common, samples = describe_episode(case, episode), recording["samples"]

    total = sum(samples[name][-1] for name in ("waiting", "slowdown", "lost"))

    assert samples["time"][-1] == common["hours"]
    assert total / common["capacity"] / (common["hours"] - common["from"]) == pytest.approx(metrics["cost"], rel=1e-6)
