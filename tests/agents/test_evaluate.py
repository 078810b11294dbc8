"""The comparison: same workloads for everybody, the same numbers every time, mistakes told in one line."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from agents import evaluate
from agents.evaluation import compare
from agents.evaluation.episodes import measure, play_workload, split_scenario, split_seeds
from agents.evaluation.tables import summary_table
from agents.learning.network import network_arrays
from nvlenv.envs.scenario import Scenario, load_scenario, prepare
from nvlenv.policies.learned import save_policy
from nvlenv.policies.resolver import baseline_name, play, resolve_policy
from nvlenv.simulator.decision import Decision
from tests.agents.decisions import perturbed

SMALL = [
    "cluster.racks=4",
    "episode.hours=48",
    "hero_share=0.5",
    "workload.classes.pre-training.sizes={64: 0.7, 128: 0.3}",
    "workload.classes.hero.sizes={128: 0.5, 192: 0.5}",
    "workload.classes.hero.share=0.03",
]
POLICIES = ["best-fit", "least-allocated", "best-fit+easy+open"]


def run(tmp_path: Path, *extra: str) -> dict[str, Any]:
    options = ["--policies", *POLICIES, "--set", *SMALL, "--episodes", "3", "--quiet", "--out", str(tmp_path)]
    assert evaluate.main([*options, *extra]) == 0
    results: dict[str, Any] = json.loads((tmp_path / "results.json").read_text("utf-8"), parse_constant=_not_json)
    return results


def _not_json(word: str) -> float:
    raise ValueError(f"{word} is no JSON")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("evaluation")
    run(path, "--shifts", "load+20")
    return path


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "results.json").read_text("utf-8"))
    return read


def test_two_runs_of_one_command_give_identical_results(folder: Path, tmp_path: Path) -> None:
    run(tmp_path, "--shifts", "load+20", "--workers", "2")

    first, second = (json.loads((each / "results.json").read_text("utf-8")) for each in (folder, tmp_path))
    assert first.pop("command") != second.pop("command")  # they name their folders
    assert first == second


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, results: Any) -> None:
    original, calls = compare.play_workload, []

    def interrupted(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return original(*arguments)

    options = ["--policies", *POLICIES, "--set", *SMALL, "--episodes", "3", "--quiet", "--out", str(tmp_path)]
    monkeypatch.setattr(compare, "play_workload", interrupted)
    assert evaluate.main([*options, "--shifts", "load+20"]) == 130
    assert not (tmp_path / "results.json").exists()
    again = run(tmp_path, "--shifts", "load+20")

    assert len(calls) == 6 + 1  # four whole workloads were kept
    assert {**again, "command": ""} == {**results, "command": ""}


def test_another_policy_is_played_alone_on_workloads_that_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, played = compare.play_workload, []

    def noted(seed: Any, scenario: Any, names: Any, *rest: Any) -> Any:
        played.append(list(names))
        return original(seed, scenario, names, *rest)

    run(tmp_path)
    monkeypatch.setattr(compare, "play_workload", noted)
    run(tmp_path, "--policies", *POLICIES, "first-fit")

    assert played == [["first-fit"]] * 3


def test_figures_are_drawn(folder: Path) -> None:
    names = ("decay.png", "frontier.png", "cost_terms.png", "waits_by_class.png", "gap_closed.png")
    for name in (*names, "lab-16-load+20/decay.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


def test_the_summary_is_the_mean_of_the_workloads(results: dict[str, Any]) -> None:
    each = results["sets"]["lab-16"]

    for name in POLICIES:
        costs = each["workloads"][name]["cost"]
        assert each["summary"]["policies"][name]["mean"]["cost"] == pytest.approx(np.mean(costs), rel=1e-6)
    assert each["summary"]["policies"]["best-fit"]["difference"]["mean"] == 0.0


def test_results_say_what_reproduces_them(results: dict[str, Any]) -> None:
    assert results["command"].startswith("python -m agents.evaluate --policies best-fit")
    assert (results["split"], results["seed"], results["episodes"]) == ("validation", 0, 3)
    assert {"nvlenv", "numpy", "numba", "python"} <= set(results["versions"])
    assert len(results["config_sha256"]) == 64
    assert results["labels"] == list(results["sets"]) == ["lab-16", "lab-16 load+20"]


def test_speed_is_kept_apart(folder: Path, results: dict[str, Any]) -> None:
    latency = json.loads((folder / "latency.json").read_text("utf-8"))

    assert set(latency["policies"]) == set(POLICIES)
    assert all(0 < entry["p50_us"] <= entry["p99_us"] for entry in latency["policies"].values())
    assert "_us" not in json.dumps(results)


def test_the_same_policy_with_true_run_times_is_a_reference(results: dict[str, Any]) -> None:
    rows = results["sets"]["lab-16"]["workloads"]

    assert rows["best-fit@true"]["cost"] == rows["best-fit"]["cost"]  # best fit looks at no estimate
    assert set(rows) == {*POLICIES, "best-fit@true", "pooled", "pooled+easy"}


def test_planted_policies_are_told_apart_in_the_table(small: Scenario) -> None:
    """Equal: the same rule under a name with its default spelled out. Worse: LeastAllocated."""
    equal = "best-fit+easy(share=0)+open"

    results = compare.compare_on_scenario(small, ["best-fit+easy+open", equal, "least-allocated"], 12, quiet=True)

    rows = results["summary"]["policies"]
    assert rows[equal]["difference"]["verdict"] == "tie"
    assert rows["least-allocated"]["difference"]["verdict"] == "higher"
    text = Console(width=200, file=io.StringIO())
    text.print(summary_table(results["summary"]))
    lines = text.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert any("least-allocated" in line and "worse" in line for line in lines)
    assert any(equal in line and "tie" in line for line in lines)


def test_training_seeds_are_reported_together(tmp_path: Path) -> None:
    for seed in range(3):
        save_policy(tmp_path / f"ppo-s{seed}" / "policy.npz", network_arrays(perturbed(seed, 8, 0.05)), {})

    results = run(tmp_path / "out", "--seeds", f"ppo={tmp_path}/ppo-s*")

    summary = results["sets"]["lab-16"]["summary"]
    group, rows = summary["seeds"]["ppo"], summary["policies"]
    assert len(group["policies"]) == 3
    assert group["mean"] == pytest.approx(np.mean([rows[name]["mean"]["cost"] for name in group["policies"]]))
    assert group["iqm"]["low"] <= group["iqm"]["mean"] <= group["iqm"]["high"]
    assert 0 <= group["probability_of_improvement"]["mean"] <= 1


def test_the_tuned_baseline_of_each_scenario_goes_by_one_name(tmp_path: Path) -> None:
    results = run(tmp_path, "--policies", "baseline", "best-fit+easy+open")

    each = results["sets"]["lab-16"]
    assert each["baseline"] == baseline_name("lab-16")
    assert {"baseline", "baseline@true"} <= set(each["summary"]["policies"])


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
    rule = resolve_policy("best-fit+fill+easy+open")

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
        (["--policies", "best-fit", "--workers", "-1"], "--workers"),
        (["--policies", "best-fit", "--seed", "-1"], "--seed"),
        (["--policies", "best-fit", "--out", __file__], "expected a folder"),
        (["--policies", "best-fit", "--shifts", "load+30"], "load+30"),
        (["--policies", "best-fit", "--traces", "nowhere.csv"], "nowhere.csv"),
        (["--policies", "best-fit", "--scenarios", "lab-16", "lab-16"], "lab-16"),
        (["--seeds", "ppo=nowhere-*"], "nowhere-*"),
        (["--release", "nowhere"], "nowhere"),
        ([], "--policies"),
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
