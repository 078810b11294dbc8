"""The studies: each makes its point on a few workloads, and the pages hold what was found."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.learning.network import PlacementNetwork, export_policy
from agents.study import drains, hero, incident, shape
from agents.study.__main__ import main
from agents.study.study import Study, StudySettings, at, branch, play_until, study_page, with_one_hero
from nvlenv.cluster.types import Mode
from nvlenv.envs.scenario import load_scenario, prepare
from nvlenv.policies.resolver import resolve_policy
from tests.cluster.ratio import communication_ratio

FEW = StudySettings(episodes=2)
SAID = {drains.WORN: r"cost (\d+) GPU-hours", drains.BARE: r"no checkpoints, (\d+)\."}


def column(study: Study, head: str) -> dict[str, float]:
    """One column of a study's table as numbers, by variant."""
    k = study.heads.index(head)
    return {row[0]: float(row[k].split()[0].removesuffix("x")) for row in study.rows}


@given(st.lists(st.integers(1, 72), min_size=1, max_size=12).filter(lambda shares: sum(shares) > 1))
def test_the_rounds_are_those_of_the_cliff(shares: list[int]) -> None:
    times = shape.round_times(shares, 18.0)

    assert times.mean() == pytest.approx(communication_ratio(shares), rel=1e-12)


def test_a_misplaced_gpu_takes_every_round_off_nvlink() -> None:
    assert shape.round_times([16], 18.0).tolist() == [1, 1, 1, 1]
    assert shape.round_times([8, 8], 18.0).tolist() == [1, 1, 1, 18]
    assert shape.round_times([15, 1], 18.0).tolist() == [18, 18, 18, 18]


def test_counted_tests_block_customers_and_uncounted_ones_do_not() -> None:
    study = incident.study(FEW)

    waits, idle, evicted = (column(study, head) for head in ("hero waits", "GPUs without job", "evicted tests"))
    assert waits["counted"] > 5 * waits["not counted"]
    assert idle["counted"] > 50
    assert evicted["counted"] == 0 and evicted["not counted"] > 50


def test_the_same_quota_gives_two_machines() -> None:
    study = shape.study(FEW)

    assert {row[0]: row[1] for row in study.rows} == {"unconstrained": "2 of 2", "required": "2 of 2"}
    assert column(study, "speed")["required"] == 1.0 > column(study, "speed")["unconstrained"] + 0.1
    assert column(study, "racks")["required"] == 8
    assert column(study, "done after")["required"] < column(study, "done after")["unconstrained"]


def test_the_sentence_says_what_the_table_says() -> None:
    """Of two workloads of which the first makes the job wait longer."""
    study = shape.study(FEW)

    waits, done = column(study, "wait"), column(study, "done after")
    for mode in ("unconstrained", "required"):
        assert f"waits {waits[mode]:.1f} h" in study.point and f"done after {done[mode]:.1f} h" in study.point
    assert f"starts on {column(study, 'racks')['unconstrained']:.1f} racks" in study.point
    assert "nan" not in study.point


def test_a_scenario_refuses_what_the_study_shows() -> None:
    """A job that talks and is unconstrained is a mistake; only the study may make it."""
    job_class = "workload.classes.hero"
    with pytest.raises(ValueError, match="comm_fraction must be 0"):
        load_scenario("quota-vs-shape", [f"{job_class}.mode=unconstrained", f"{job_class}.slice_gpus=0"])


def test_opening_racks_starts_the_hero_and_incremental_eviction_loses_less() -> None:
    study = hero.study(FEW)

    waits, lost = column(study, "hero waits"), column(study, "GPU-h lost")
    assert waits[hero.NOTHING] > 20 > waits[hero.FEW]
    assert lost[hero.NOTHING] == 0 < lost[hero.FEW] < lost[hero.EVERY]


def test_a_learned_policy_stands_beside_the_heuristics(tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    export_policy(PlacementNetwork(), file, {})  # untrained: its prior reserves and opens
    study = hero.study(StudySettings(episodes=1, policy=str(file)))

    waits = column(study, "hero waits")
    assert list(waits) == [*hero.POLICIES, "learned (mine)"]
    assert waits["learned (mine)"] < 0.5 * waits[hero.NOTHING]


def test_the_hero_finds_a_third_of_the_cluster_empty_and_no_rack_open() -> None:
    scenario = load_scenario(hero.NAME)
    free, slots = [], []
    for seed in StudySettings(episodes=6).seeds():
        episode, _ = with_one_hero(scenario, seed, hero.ARRIVAL)
        sim = prepare(scenario, episode)
        play_until(sim, resolve_policy(hero.HISTORY), at(hero.ARRIVAL))
        free.append(sim.cap[-1, 1] / 1152)
        slots.append((sim.cap[:16, 4] // 16).sum())

    assert 0.28 < np.mean(free) < 0.45
    assert np.mean(slots) < 0.5


def test_checkpoints_and_spare_nodes_pay() -> None:
    study = drains.study(FEW)

    lost, ended = column(study, "GPU-h lost"), column(study, "runs ended")
    assert ended[drains.CALM] == 0 < ended["failures only"] < ended[drains.WORN]
    assert lost[drains.CALM] < lost[drains.WORN] < 0.5 * lost[drains.BARE]
    for label in (drains.WORN, drains.BARE):  # the sentence: what is lost beyond what is lost when nothing fails
        more = float(re.search(SAID[label], study.point)[1])  # type: ignore[index]
        assert more + lost[drains.CALM] == pytest.approx(lost[label], abs=1.5)
    assert f"more than the {lost[drains.CALM]:.0f} that are lost when nothing fails" in study.point
    assert column(study, "hero waits")[drains.CALM] < column(study, "hero waits")[drains.NARROW]


def test_down_nodes_are_those_that_a_drain_and_failures_take() -> None:
    scenario = load_scenario(
        drains.NAME,
        ["failures={node_mtbf_hours: .inf, rack_mtbf_hours: .inf, "
         "maintenance: [{start: 10, hours: 5, grace_hours: 2, racks: [3]}]}"],
    )  # fmt: skip
    down = drains.down_nodes(scenario.draw(np.random.SeedSequence(0)), np.arange(20.0))

    assert down[3].tolist() == [0] * 10 + [18] * 5 + [0] * 5
    assert down.sum() == down[3].sum()


def test_one_hero_remains_and_comes_when_it_is_told_to() -> None:
    scenario = load_scenario(hero.NAME)
    drawn = scenario.draw(np.random.SeedSequence(1))
    episode, number = with_one_hero(scenario, np.random.SeedSequence(1), 30.0)
    jobs = episode.workload.check()

    assert np.flatnonzero(jobs.gpus >= 288).tolist() == [number]
    assert jobs.submit[number] == 30.0 and jobs.mode[number] == Mode.REQUIRED
    assert len(jobs) == np.sum(drawn.workload.gpus < 288) + 1


def test_a_branch_leaves_the_simulator_where_it_was() -> None:
    scenario = load_scenario(hero.NAME)
    episode, _ = with_one_hero(scenario, np.random.SeedSequence(1), 20.0)
    sim = prepare(scenario, episode)
    play_until(sim, resolve_policy("best-fit"), at(20.0))
    before = sim.clock.tobytes()

    twin = branch(sim, scenario, episode)
    assert not play_until(twin, resolve_policy("best-fit"), at(1000.0))

    assert twin.clock["now"] > sim.clock["now"] and sim.clock.tobytes() == before


def test_a_page_holds_the_table_and_escapes_its_text() -> None:
    study = Study("a<b", "x & y", ("what", "n"), (("one", "1"), ("<two>", "2")), plt.figure(), "said")

    html = study_page(study, "html", "python")
    assert "<td>&lt;two&gt;</td><td>2</td>" in html and "a<b" not in html
    assert "| what | n |\n|---|---:|\n| one | 1 |\n| <two> | 2 |" in study_page(study, "md", "python")
    plt.close(study.figure)


def test_one_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quota-vs-shape", "--episodes", "1", "--out", str(tmp_path)]) == 0

    assert {path.name for path in tmp_path.iterdir()} == {"study.html", "study.md", "study.png"}
    page = (tmp_path / "study.html").read_text("utf-8")
    assert "python -m agents.study quota-vs-shape --episodes 1" in page and "study.png" in page
    assert "within quota" in capsys.readouterr().out


def test_the_page_is_written_even_if_nobody_reads_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `| head -1` does: the reader of stdout is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(sys, "stderr", io.StringIO())  # which the command closes
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)

        assert main(["quota-vs-shape", "--episodes", "1", "--out", str(tmp_path)]) == 0

    assert {path.name for path in tmp_path.iterdir()} == {"study.html", "study.md", "study.png"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["maintenance", "--episodes", "0"], "error: --episodes: found '0', expected a whole number of at least 1"),
        (["maintenance", "--seed", "-1"], "error: --seed: found '-1', expected a whole number of at least 0"),
        (["maintenance", "--policy", "x"], "error: --policy: found 'x', expected a policy only with hero-blocked"),
        (["hero-blocked", "--policy", "nobody.npz"], "error: nobody.npz"),
        (["hero-blocked", "--set", "workload.load=0.0001"], "error: synthetic: jobs: found no hero"),
    ],
)
def test_bad_input_is_told_in_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2

    error = capsys.readouterr().err
    assert error.startswith(said) and error.count("\n") == 1
