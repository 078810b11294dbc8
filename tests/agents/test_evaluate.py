"""The comparison: same workloads for everybody, the same numbers every time, mistakes told in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from agents import evaluate
from agents.episodes import measure, play_workload, split_scenario, split_seeds
from nvlenv.loading import prepare
from nvlenv.policies import heuristic
from nvlenv.policies.play import play
from nvlenv.scenario import load_scenario
from nvlenv.types import Decision

SMALL = [
    "cluster.racks=4",
    "episode.hours=48",
    "hero_share=0.5",
    "workload.classes.pre-training.sizes={64: 0.7, 128: 0.3}",
    "workload.classes.hero.sizes={128: 0.5, 192: 0.5}",
    "workload.classes.hero.share=0.03",
]
POLICIES = ["best-fit", "least-allocated", "best-fit+easy+open"]


def run(tmp_path: Path, *extra: str) -> dict[str, object]:
    options = ["--policies", *POLICIES, "--set", *SMALL, "--episodes", "3", "--quiet", "--out", str(tmp_path)]
    assert evaluate.main([*options, *extra]) == 0
    results: dict[str, object] = json.loads((tmp_path / "results.json").read_text("utf-8"))
    return results


def test_two_runs_of_one_command_give_identical_results(tmp_path: Path) -> None:
    first, second = run(tmp_path / "a"), run(tmp_path / "b", "--workers", "2")

    first.pop("command"), second.pop("command")
    assert first == second


def test_figures_are_drawn(tmp_path: Path) -> None:
    run(tmp_path)

    for name in ("decay.png", "frontier.png", "cost_terms.png", "waits_by_class.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_the_summary_is_the_mean_of_the_workloads(tmp_path: Path) -> None:
    results = run(tmp_path)
    workloads, summary = results["workloads"], results["summary"]
    assert isinstance(workloads, list) and isinstance(summary, dict)

    for name in POLICIES:
        costs = [w[name]["cost"] for w in workloads]
        assert summary["policies"][name]["mean"]["cost"] == pytest.approx(np.mean(costs))
    assert summary["policies"]["best-fit"]["difference"]["mean"] == 0.0


def test_splits_share_no_workload() -> None:
    scenario = load_scenario("lab-16", SMALL)
    drawn = [
        scenario.draw(seed).workload.submit.tobytes()
        for split in ("train", "validation", "test")
        for seed in split_seeds(0, split, 3)
    ]

    assert len(set(drawn)) == 9


def test_splits_of_a_trace_replay_disjoint_times(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = "".join(f"{60 * k},4,600,unknown,0,COMPLETED\n" for k in range(1_000))
    trace.write_text("submit_s,gpus,duration_s,kind,user,status\n" + rows, "utf-8")
    scenario = load_scenario("lab-16", [*SMALL, f"workload={{kind: trace, path: {trace}}}"])

    portions = [split_scenario(scenario, split).workload.portion for split in ("train", "validation", "test")]

    assert all(a[1] <= b[0] for a, b in zip(portions, portions[1:], strict=False))


def test_asking_a_policy_decision_by_decision_gives_what_the_compiled_loop_gives() -> None:
    scenario = load_scenario("lab-16", SMALL)
    episode = scenario.draw(split_seeds(0, "validation", 1)[0])
    rule = heuristic("best-fit+fill+easy+open")

    def asked(decision: Decision) -> int:
        return rule(decision)

    compiled, stepped = prepare(scenario, episode), prepare(scenario, episode)
    play(rule, compiled)
    play(asked, stepped)

    names = episode.workload.class_names
    assert measure(compiled, names) == pytest.approx(measure(stepped, names), rel=1e-12, nan_ok=True)


def test_a_workload_without_heroes_has_no_hero_wait() -> None:
    scenario = load_scenario("lab-16", [*SMALL, "hero_share=1.0"])

    metrics = play_workload(split_seeds(0, "validation", 1)[0], scenario, ["best-fit"]).metrics["best-fit"]

    assert np.isnan(metrics["hero_wait"])
    assert metrics["other_wait"] >= 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policies", "best-fitt"], "'best-fitt'"),
        (["--policies", "best-fit+easyy"], "'easyy'"),
        (["--policies", "best-fit+hold(k=3)"], "'k=3'"),
        (["--policies", "best-fit+hold(racks=x)"], "'x'"),
        (["--policies", "nowhere.npz"], "nowhere.npz"),
        (["--policies", "best-fit", "--scenario", "lab-17"], "lab-17"),
        (["--policies", "best-fit", "--scenario", "missing.yaml"], "missing.yaml"),
        (["--policies", "best-fit", "--set", "workload.lod=1"], "lod"),
        (["--policies", "best-fit", "--set", "workload.load=much"], "much"),
        (["--policies", "best-fit", "--set", "cluster.racks=0"], "racks"),
        (["--policies", "best-fit", "--reference", "first-fit"], "first-fit"),
        (["--policies", "best-fit", "--episodes", "0"], "--episodes"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.main(["--quiet", *arguments]) == 2

    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ") and "\n" not in error
    assert message in error and "expected" in error


def test_a_window_shorter_than_the_warm_up_is_still_counted() -> None:
    scenario = load_scenario("lab-16", [*SMALL, "workload.hours=12", "episode.hours=480", "episode.warmup_hours=48"])

    played = play_workload(split_seeds(0, "validation", 1)[0], scenario, ["least-allocated"]).metrics

    assert 0 < played["least-allocated"]["goodput"] <= 1
    assert played["pooled"]["cost"] >= 0
