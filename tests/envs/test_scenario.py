"""Scenarios: what ships is sound, draws are paired and reproducible, and every mistake is told in one line."""

from __future__ import annotations

import doctest
import shutil
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nvlenv.cluster.topology
import nvlenv.common.config
import nvlenv.envs.scenario
from nvlenv.cluster.collectives import MODELS
from nvlenv.cluster.types import NodeEventKind, QueueSpec
from nvlenv.common.config import find_config
from nvlenv.common.errors import InputError
from nvlenv.envs.scenario import Episode, Scenario, load_scenario, scenario_names
from nvlenv.workload.mix import DEFAULT_CLASSES

SHIPPED = ("fleet-128", "fleet-33", "hero-rush", "lab-16", "serving-heavy")
STUDIES = ("hero-blocked", "maintenance", "quota-vs-shape", "verification-incident")  # of agents.study
SMALL = ["cluster.racks=8", "episode.hours=48"]  # quick to draw


def seeds(n: int) -> list[np.random.SeedSequence]:
    return np.random.SeedSequence(2024).spawn(n)


def same_jobs(a: Episode, b: Episode) -> bool:
    return all(np.array_equal(getattr(a.workload, name), getattr(b.workload, name)) for name in a.workload.columns())


def gpu_time_share(scenario: Scenario, name: str) -> float:
    """Share of the drawn GPU-hours that jobs of a class ask for."""
    hours = np.zeros(len(scenario.class_weights()))
    for seed in seeds(20):
        jobs = scenario.draw(seed).workload
        hours += np.bincount(jobs.job_class, jobs.gpus * jobs.duration, minlength=len(hours))
    return float(hours[jobs.class_names.index(name)] / hours.sum())


# --- What ships ---------------------------------------------------------------------------------------------------


def test_the_shipped_scenarios_are_found_by_name() -> None:
    assert scenario_names() == sorted(SHIPPED + STUDIES)


@pytest.mark.parametrize("name", SHIPPED + STUDIES)
def test_a_shipped_scenario_draws_jobs_that_keep_the_rules(name: str) -> None:
    scenario = load_scenario(name)
    assert scenario.name == name
    for seed in seeds(3):
        episode = scenario.draw(seed)
        episode.workload.check(name)
        assert 0 < episode.workload.submit[-1] <= scenario.episode.hours
        assert len(episode.workload.class_names) == len(scenario.class_weights())


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_scenario_offers_four_fifths_of_the_cluster(name: str) -> None:
    scenario = load_scenario(name)
    asked = np.mean([scenario.draw(seed).workload.gpu_hours() for seed in seeds(80)])
    assert 0.75 < asked / (scenario.cluster_spec().gpus * scenario.episode.hours) < 0.85


@pytest.mark.parametrize("name", SHIPPED)
def test_every_hero_of_a_shipped_scenario_counts_as_one(name: str) -> None:
    scenario = load_scenario(name)
    least = scenario.hero_share * scenario.cluster_spec().gpus
    for job_class in scenario.workload.classes:  # type: ignore[union-attr]
        assert (min(job_class.sizes) >= least) == (job_class.name == "hero")


def test_lab_16_is_the_default_mix_on_16_racks_in_2_blocks() -> None:
    scenario = load_scenario("lab-16")
    assert scenario.workload.classes == DEFAULT_CLASSES  # type: ignore[union-attr]
    assert scenario.workload.load == 0.8
    cluster = scenario.cluster_spec()
    assert (cluster.racks, cluster.gpus, cluster.cliff) == (16, 1152, 18.0)
    assert np.bincount(cluster.rack_parents[:, 0]).tolist() == [8, 8]
    assert scenario.class_weights() == (1, 1, 1, 2, 4)


def test_half_of_serving_heavy_is_inference() -> None:
    assert gpu_time_share(load_scenario("serving-heavy"), "inference") == pytest.approx(0.5, abs=0.03)


def test_heroes_come_four_times_as_often_in_hero_rush() -> None:
    count = {}
    for name in ("lab-16", "hero-rush"):
        jobs = [load_scenario(name).draw(seed).workload for seed in seeds(60)]
        count[name] = sum(np.count_nonzero(j.job_class == j.class_names.index("hero")) for j in jobs)
    assert count["hero-rush"] / count["lab-16"] == pytest.approx(4, rel=0.15)


def test_fleet_33_has_racks_with_16_and_17_nodes_and_all_kinds_of_node_events() -> None:
    episode = load_scenario("fleet-33").draw(seeds(1)[0])
    assert set(np.bincount(episode.cluster.node_rack).tolist()) == {16, 17, 18}
    assert set(episode.node_events.kind.tolist()) == set(NodeEventKind)


# --- Drawing ------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**63))
def test_a_seed_gives_the_same_episode_every_time(entropy: int) -> None:
    scenario = load_scenario("lab-16", [*SMALL, "failures={node_mtbf_hours: 50}"])
    seed = np.random.SeedSequence(entropy)
    first, second = scenario.draw(seed), scenario.draw(seed)
    assert same_jobs(first, second)
    assert np.array_equal(first.node_events.time, second.node_events.time)


def test_seeds_differ() -> None:
    first, second = (load_scenario("lab-16", SMALL).draw(seed) for seed in seeds(2))
    assert not same_jobs(first, second)


def test_turning_failures_and_verification_on_does_not_change_the_jobs() -> None:
    seed = seeds(1)[0]
    plain = load_scenario("lab-16", SMALL).draw(seed)
    broken = load_scenario("lab-16", [*SMALL, "failures={node_mtbf_hours: 50}"]).draw(seed)
    both = load_scenario("lab-16", [*SMALL, "failures={node_mtbf_hours: 50}", "verification={}"]).draw(seed)
    assert same_jobs(plain, broken)
    assert same_jobs(plain, both)
    assert len(plain.node_events.time) == 0 < len(broken.node_events.time) < len(both.node_events.time)
    failing = np.isin(both.node_events.kind, [NodeEventKind.FAIL, NodeEventKind.REPAIR])
    assert np.array_equal(both.node_events.time[failing], broken.node_events.time)


def test_all_node_events_are_one_sorted_stream() -> None:
    events = load_scenario("fleet-33").draw(seeds(1)[0]).node_events
    order = np.lexsort((events.kind, events.node, events.time))
    assert np.array_equal(order, np.arange(len(order)))


def test_a_workload_with_its_own_length_keeps_it() -> None:
    assert len(load_scenario("lab-16", ["workload.jobs=77"]).draw(seeds(1)[0]).workload) == 77
    assert load_scenario("lab-16", ["workload.hours=10"]).draw(seeds(1)[0]).workload.submit[-1] < 10


def test_jobs_are_numbered_by_the_queues_of_the_scenario() -> None:
    scenario = load_scenario(
        "lab-16",
        [
            *SMALL,
            "queues=[{name: research, nominal: 300, cohort: lab, borrowing_limit: 100, order: StrictFIFO}, "
            "{name: unused}, {name: default, nominal: 276, cohort: lab}]",
            "workload.classes.evaluation.queue=research",
        ],
    )
    episode = scenario.draw(seeds(1)[0])
    jobs = episode.workload.check()
    assert jobs.queue_names == ("research", "unused", "default")
    evaluation = jobs.job_class == jobs.class_names.index("evaluation")
    assert np.array_equal(jobs.queue, np.where(evaluation, 0, 2))
    assert episode.queues == (
        QueueSpec("research", 300, "lab", 100, strict=True),
        QueueSpec("unused", 576),
        QueueSpec("default", 276, "lab"),
    )


def trace_scenario(folder: Path, *more: str) -> Scenario:
    rows = "".join(f"{60 * i},{8 * (1 + i % 12)},{1800 + i},pretrain,u,completed\n" for i in range(60))
    trace = folder / "jobs.csv"
    trace.write_text("submit_s,gpus,duration_s,kind,user,status\n" + rows)
    settings = folder / "replay.yaml"
    settings.write_text(f"workload: {{kind: trace, path: {trace}}}\n")
    return load_scenario(settings, ["cluster.racks=4", *more])


def test_a_trace_is_replayed_like_any_workload(tmp_path: Path) -> None:
    scenario = trace_scenario(tmp_path)
    jobs = scenario.draw(seeds(1)[0]).workload.check()
    assert (scenario.name, len(jobs)) == ("replay", 60)
    assert len(scenario.class_weights()) == len(jobs.class_names)
    assert scenario.class_weights()[jobs.class_names.index("hero")] == 4


def test_a_trace_whose_queue_the_scenario_lacks_is_refused(tmp_path: Path) -> None:
    scenario = trace_scenario(tmp_path, "queues=[{name: research}]")
    with pytest.raises(InputError, match=r"queue: found 'default', expected one of the scenario's queues"):
        scenario.draw(seeds(1)[0])


# --- The cluster --------------------------------------------------------------------------------------------------


def test_a_number_of_cordoned_nodes_is_per_rack() -> None:
    cluster = load_scenario("lab-16", ["cluster.cordoned=2"]).cluster_spec()
    assert np.bincount(cluster.node_rack[cluster.cordoned]).tolist() == [2] * 16
    assert cluster.node_names[int(np.argmax(cluster.cordoned))] == "rack-000-node-16"


def test_cordoned_nodes_may_be_named() -> None:
    cluster = load_scenario("lab-16", ["cluster.cordoned=[rack-003-node-05]"]).cluster_spec()
    assert [cluster.node_names[i] for i in np.flatnonzero(cluster.cordoned)] == ["rack-003-node-05"]


def test_as_many_racks_as_nodes_in_each_is_no_list_of_sizes() -> None:
    cluster = load_scenario("lab-16", ["cluster.racks=18", "cluster.nodes_per_rack=18"]).cluster_spec()
    assert np.bincount(cluster.node_rack).tolist() == [18] * 18


def test_an_empty_list_of_cordoned_nodes_cordons_none() -> None:
    assert not load_scenario("lab-16", ["cluster.cordoned=[]"]).cluster_spec().cordoned.any()


def test_a_cluster_may_have_no_level_above_the_rack_or_one_below() -> None:
    flat = load_scenario("lab-16", ["cluster.levels=[rack, hostname]", "cluster.blocks=1"]).cluster_spec()
    assert flat.rack_parents.shape == (16, 0)
    fine = load_scenario("lab-16", ["cluster.levels=[block, rack, tray, hostname]", "cluster.nvlink_level=rack"])
    assert fine.cluster_spec().levels == ("block", "rack", "hostname")


# --- Files --------------------------------------------------------------------------------------------------------


def test_a_file_may_be_almost_empty_and_is_named_after_itself(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text("cluster: {racks: 9}\n")
    scenario = load_scenario(path)
    assert (scenario.name, scenario.cluster_spec().racks) == ("tiny", 9)
    assert scenario.queue_specs() == (QueueSpec("default", 648),)


def test_the_digest_tells_settings_apart_and_defaults_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "copy.yaml"
    shutil.copy(find_config("scenarios", "lab-16"), path)
    lab = load_scenario("lab-16")
    assert load_scenario(path).digest() == lab.digest()
    assert load_scenario("lab-16", ["slice_nodes=16"]).digest() == lab.digest()
    assert load_scenario("lab-16", ["slice_nodes=8"]).digest() != lab.digest()
    assert len(lab.digest()) == 64


def test_the_collective_models_of_a_scenario_are_those_that_exist() -> None:
    assert set(get_args(Scenario.model_fields["collective"].annotation)) == set(MODELS)


@pytest.mark.parametrize("module", [nvlenv.envs.scenario, nvlenv.cluster.topology])
def test_examples_in_docstrings_are_true(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted > 0
    assert result.failed == 0
