"""What is played: shifts change what they say and nothing else, replays begin in a filled cluster."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agents.evaluation.episodes import SHIFTS, TRACE_PORTIONS, loaded, make_case, measure, play_policy, split_seeds
from nvlenv.common.errors import InputError
from nvlenv.envs.scenario import scenario_names
from nvlenv.workload.mix import SyntheticWorkload, TraceWorkload

HEADER = "submit_s,gpus,duration_s,kind,user,status\n"


def hero_shares(workload: object) -> list[float]:
    assert isinstance(workload, SyntheticWorkload)
    return [each.share for each in workload.classes if each.name == "hero"]


def test_every_shift_makes_another_scenario_and_draws() -> None:
    plain = make_case("lab-16")
    for name in SHIFTS:
        case = make_case("lab-16", shift=name)
        episode = case.scenario.draw(split_seeds(0, "validation", 1)[0])

        assert len(episode.workload) > 0
        assert (case.scenario.digest() == plain.scenario.digest()) == (name == "estimates-0.3")  # which it has already
        assert case.label == f"lab-16 {name}" and case.base == "lab-16"


def test_loads_heroes_and_failures_are_what_the_names_say() -> None:
    plain = make_case("lab-16").scenario

    assert make_case("lab-16", shift="load+20").scenario.workload.load == pytest.approx(0.96)
    assert make_case("lab-16", ["workload.load=0.5"], shift="load-20").scenario.workload.load == pytest.approx(0.4)
    assert hero_shares(make_case("lab-16", shift="heroes-x2").scenario.workload) == [
        2 * share for share in hero_shares(plain.workload)
    ]
    assert plain.failures is None and make_case("lab-16", shift="failures").scenario.failures is not None


@pytest.mark.parametrize(("name", "racks", "blocks", "heroes"), [
    ("racks-8", 8, 1, {192: 0.5, 256: 0.5}),
    ("racks-33", 33, 4, {768: 0.5, 1024: 0.5}),
    ("racks-128", 128, 16, {3072: 0.5, 4096: 0.5}),
])  # fmt: skip
def test_another_number_of_racks_keeps_the_share_of_heroes(
    name: str, racks: int, blocks: int, heroes: dict[int, float]
) -> None:
    scenario = make_case("lab-16", shift=name).scenario

    assert (scenario.cluster_spec().racks, scenario.cluster.blocks) == (racks, blocks)
    assert isinstance(scenario.workload, SyntheticWorkload)
    assert {each.name: each.sizes for each in scenario.workload.classes}["hero"] == heroes


@pytest.mark.parametrize("source", scenario_names())
def test_every_shipped_scenario_can_be_shifted(source: str) -> None:
    for name in SHIFTS:
        assert make_case(source, shift=name).scenario.workload.kind == "synthetic"


def test_settings_reach_the_workload_of_a_replay(trace: Path) -> None:
    workload = make_case("lab-16", ["workload.load=0.95"], trace=trace).scenario.workload

    assert (workload.kind, workload.load) == ("trace", 0.95)


def test_a_shift_that_says_nothing_about_a_scenario_is_refused(trace: Path) -> None:
    with pytest.raises(InputError, match="synthetic"):
        make_case("lab-16", [f"workload={{kind: trace, path: {trace}}}"], shift="heroes-x2")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half a year of jobs, most of the work in some that run for days."""
    rng = np.random.default_rng(3)
    submit = np.sort(rng.uniform(0, 180 * 86400, 20_000))
    duration = np.where(rng.random(20_000) < 0.1, 5 * 86400, 3600)
    rows = "".join(
        f"{s:.0f},{g},{d},unknown,0,COMPLETED\n"
        for s, g, d in zip(submit, rng.choice((4, 8, 64), 20_000), duration, strict=True)
    )
    path = tmp_path_factory.mktemp("trace") / "long.csv"
    path.write_text(HEADER + rows, "utf-8")
    return path


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_replay_counts_from_a_filled_cluster_on_and_only_jobs_of_its_split(trace: Path, split: str) -> None:
    case = make_case("lab-16", split=split, trace=trace)
    submits = np.loadtxt(trace, delimiter=",", skiprows=1, usecols=0)
    inside = [share * (submits[-1] - submits[0]) for share in TRACE_PORTIONS[split]]
    workload = case.scenario.workload
    assert isinstance(workload, TraceWorkload) and workload.jobs is not None
    begin = int(np.searchsorted(submits - submits[0], workload.portion[0] * (submits[-1] - submits[0])))

    busy = []
    for seed in split_seeds(0, split, 3):
        episode = case.scenario.draw(seed)
        sim = play_policy("best-fit", case.scenario, episode, case.warm_jobs)
        busy.append(measure(sim, episode.workload.class_names)["busy"])

    assert case.warm_jobs > 200
    assert np.mean(busy) > 0.65  # of 0.8; an empty start would give a third of it
    assert begin + case.warm_jobs >= np.searchsorted(submits - submits[0], inside[0]) - 1
    assert workload.portion[1] == TRACE_PORTIONS[split][1]


def test_counting_starts_with_the_first_job_after_the_warm_up(trace: Path) -> None:
    case = make_case("lab-16", trace=trace)
    episode = case.scenario.draw(split_seeds(0, "validation", 1)[0])

    sim = loaded(case.scenario, episode, case.warm_jobs)

    assert sim.clock["measure_from"][0] == episode.workload.submit[case.warm_jobs]
