"""From a trace to a workload: thinning, windows, sizes, classes, load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvlenv.cluster.types import ClusterSpec, Mode, Workload
from nvlenv.common.errors import InputError
from nvlenv.workload.draw import check_config, class_weights, default_rules, draw_workload, to_workload
from nvlenv.workload.formats.common import write_csv
from nvlenv.workload.formats.registry import read_trace
from nvlenv.workload.generate import generate
from nvlenv.workload.mix import MappingRule, SyntheticWorkload, TraceWorkload
from nvlenv.workload.trace import Format, Trace, TraceJob, collect

Clusters = Callable[..., ClusterSpec]
NO_CHANGE: dict[str, Any] = {"path": "trace", "load": None, "thin": False, "cap_share": 1.0}


def trace_of(jobs: Sequence[TraceJob], source_gpus: int | None = None) -> Trace:
    return collect(Path("trace"), Format("test", "a list", lambda _: iter(jobs), source_gpus=source_gpus))


def replay(trace: Trace, cluster: ClusterSpec, seed: int = 0, **options: Any) -> Workload:
    config = TraceWorkload.model_validate(NO_CHANGE | options)
    return to_workload(trace, config, cluster, np.random.default_rng(seed))


def steady(count: int, gpus: float = 4, gap_s: float = 3600, **fields: Any) -> list[TraceJob]:
    return [TraceJob(index * gap_s, gpus, 7200, **fields) for index in range(count)]


def test_run_times_and_submits_are_kept_in_hours(lab16: ClusterSpec) -> None:
    jobs = replay(trace_of([TraceJob(1000, 4, 5400), TraceJob(4600, 8, 60)]), lab16)
    np.testing.assert_allclose(jobs.submit, [0, 1])
    np.testing.assert_allclose(jobs.duration, [1.5, 1 / 60])
    np.testing.assert_array_equal(jobs.gpus, [4, 8])
    np.testing.assert_array_equal(jobs.gpus_per_pod, [4, 4])


def test_sizes_become_whole_nodes_and_equal_slices(lab16: ClusterSpec) -> None:
    sizes = [0.3, 1, 2, 3, 6, 13, 64, 96, 500, 2000]
    jobs = replay(trace_of([TraceJob(i, size, 60, "pretrain") for i, size in enumerate(sizes)]), lab16)
    np.testing.assert_array_equal(jobs.gpus, [1, 1, 2, 4, 8, 16, 64, 96, 512, 1024])  # 1,152 GPUs hold 16 slices of 64
    np.testing.assert_array_equal(jobs.slice_gpus, [0, 0, 0, 0, 0, 0, 0, 48, 64, 64])


def test_no_job_is_larger_than_the_cap(lab16: ClusterSpec) -> None:
    jobs = replay(trace_of([TraceJob(0, 900, 60), TraceJob(1, 100, 60)]), lab16, cap_share=0.5)
    np.testing.assert_array_equal(jobs.gpus, [576, 104])


def test_the_load_is_reached_by_stretching_the_submits_alone(lab16: ClusterSpec) -> None:
    trace = trace_of(steady(50, gpus=32))
    jobs = replay(trace, lab16, load=0.9)
    assert jobs.offered_load(lab16.gpus) == pytest.approx(0.9)
    np.testing.assert_allclose(jobs.duration, 2.0)
    np.testing.assert_allclose(np.diff(jobs.submit), jobs.submit[-1] / 49)


def test_faster_gpus_shorten_the_runs(lab16: ClusterSpec) -> None:
    np.testing.assert_allclose(replay(trace_of(steady(3)), lab16, speedup=4).duration, 0.5)


def test_a_smaller_cluster_gets_fewer_small_jobs_and_smaller_large_ones(lab16: ClusterSpec) -> None:
    trace = trace_of([*steady(4000, gpus=1), *(TraceJob(index, 512, 60) for index in range(50))], source_gpus=2304)
    jobs = replay(trace, lab16, thin=True)
    assert np.sum(jobs.gpus == 1) == pytest.approx(2000, abs=150)
    assert np.sum(jobs.gpus == 256) == 50
    assert len(replay(trace, lab16, thin=False)) == 4050


def test_batches_are_kept_or_left_out_as_a_whole(lab16: ClusterSpec) -> None:
    sweeps = [TraceJob(sweep * 7200 + member, 1, 60, user="ann") for sweep in range(300) for member in range(7)]
    trace = trace_of(sweeps, source_gpus=2304)
    jobs = replay(trace, lab16, thin=True)
    sizes = np.unique(jobs.submit // 2, return_counts=True)[1]
    assert (sizes == 7).all() and len(sizes) == pytest.approx(150, abs=40)


def test_without_users_only_the_same_second_makes_a_batch() -> None:
    known = trace_of(
        [
            TraceJob(0, 1, 9, user="a"),
            TraceJob(0, 1, 9, user="a"),
            TraceJob(30, 1, 9, user="a"),
            TraceJob(200, 1, 9, user="a"),
        ]
    )
    unknown = trace_of([TraceJob(0, 1, 9), TraceJob(0, 1, 9), TraceJob(30, 1, 9), TraceJob(200, 1, 9)])
    assert [known.batch[i] == known.batch[0] for i in range(4)] == [True, True, True, False]
    assert [unknown.batch[i] == unknown.batch[0] for i in range(4)] == [True, True, False, False]


def test_a_batch_has_one_user_one_kind_and_one_size() -> None:
    jobs = [
        TraceJob(0, 1, 9, "eval", "a"),
        TraceJob(1, 1, 9, "eval", "b"),
        TraceJob(2, 2, 9, "eval", "a"),
        TraceJob(3, 1, 9, "debug", "a"),
    ]
    assert len(set(trace_of(jobs).batch.tolist())) == 4
    assert len(set(trace_of([*jobs, TraceJob(4, 1, 9, "eval", "a")]).batch.tolist())) == 4


def test_scaled_sizes_go_to_the_nearest_whole_nodes(lab16: ClusterSpec) -> None:
    trace = trace_of([TraceJob(i, size, 60) for i, size in enumerate([9, 20, 44, 100, 2000])], source_gpus=2304)
    np.testing.assert_array_equal(replay(trace, lab16, thin=True).gpus, [4, 8, 24, 48, 1024])


def test_thinning_never_leaves_an_empty_episode(lab16: ClusterSpec) -> None:
    trace = trace_of([TraceJob(0, 1, 60)], source_gpus=1_000_000)
    assert all(len(replay(trace, lab16, seed=seed, thin=True)) == 1 for seed in range(5))


# --------------------------------------------------------------------------------------------------------------------
# Windows
# --------------------------------------------------------------------------------------------------------------------


def _numbered(count: int) -> Trace:
    """Jobs one an hour that last their own number of minutes, so that a workload tells which ones it has."""
    return trace_of([TraceJob(index * 3600, 4, (index + 1) * 60) for index in range(count)])


def _numbers(jobs: Workload) -> list[int]:
    return [round(hours * 60) - 1 for hours in jobs.duration]


def test_every_seed_replays_another_window_of_the_same_length(lab16: ClusterSpec) -> None:
    trace = _numbered(1000)
    windows = [_numbers(replay(trace, lab16, seed, jobs=50)) for seed in range(20)]
    assert all(window == list(range(window[0], window[0] + 50)) for window in windows)
    assert len({window[0] for window in windows}) > 15
    assert windows[3] == _numbers(replay(trace, lab16, 3, jobs=50))


def test_portions_give_disjoint_episodes(lab16: ClusterSpec) -> None:
    trace = _numbered(1000)
    train = {n for seed in range(30) for n in _numbers(replay(trace, lab16, seed, jobs=50, portion=(0, 0.6)))}
    test = {n for seed in range(30) for n in _numbers(replay(trace, lab16, seed, jobs=50, portion=(0.6, 1)))}
    assert max(train) < 600 <= min(test) and max(test) <= 999


def test_portions_cover_the_trace(lab16: ClusterSpec) -> None:
    trace = _numbered(100)
    parts = [_numbers(replay(trace, lab16, portion=part)) for part in ((0, 0.3), (0.3, 0.8), (0.8, 1))]
    assert [number for part in parts for number in part] == list(range(100))


def test_a_window_in_hours_starts_at_a_job_and_fits(lab16: ClusterSpec) -> None:
    trace = _numbered(200)
    windows = [_numbers(replay(trace, lab16, seed, hours=24)) for seed in range(20)]
    assert {len(window) for window in windows} == {24}
    assert len({window[0] for window in windows}) > 10


def test_a_window_can_start_at_a_given_hour_of_the_portion(lab16: ClusterSpec) -> None:
    assert _numbers(replay(_numbered(100), lab16, start_h=10, hours=5)) == [10, 11, 12, 13, 14]
    assert _numbers(replay(_numbered(101), lab16, portion=(0.5, 1), start_h=10, jobs=2)) == [60, 61]


def test_a_window_longer_than_the_trace_is_the_trace(lab16: ClusterSpec) -> None:
    assert len(replay(_numbered(10), lab16, jobs=50)) == 10
    assert len(replay(_numbered(10), lab16, hours=50)) == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [({"start_h": 1000}, "start_h: found 1000.0"), ({"portion": (0.401, 0.402)}, "portion: found no job")],
)
def test_a_window_without_jobs_is_refused(lab16: ClusterSpec, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replay(_numbered(100), lab16, **options)


# --------------------------------------------------------------------------------------------------------------------
# Classes
# --------------------------------------------------------------------------------------------------------------------


def _classes(jobs: Workload) -> list[str]:
    return [jobs.class_names[number] for number in jobs.job_class]


def test_default_rules_go_by_kind_where_there_is_one(lab16: ClusterSpec) -> None:
    kinds = [
        ("inference", 8),
        ("eval", 8),
        ("debug", 4),
        ("debug", 64),
        ("finetune", 16),
        ("pretrain", 8),
        ("pretrain", 512),
    ]
    jobs = replay(trace_of([TraceJob(i, size, 60, kind) for i, (kind, size) in enumerate(kinds)]), lab16)
    assert _classes(jobs) == [
        *("inference", "evaluation", "evaluation", "debug", "post-training", "pre-training", "hero"),
    ]
    assert jobs.movable.tolist() == [True, *[False] * 6]


def test_default_rules_go_by_size_where_there_is_no_kind(lab16: ClusterSpec) -> None:
    jobs = replay(trace_of([TraceJob(i, size, 60) for i, size in enumerate([1, 4, 8, 60, 64, 284, 288])]), lab16)
    assert _classes(jobs) == [
        *("single-node", "single-node", "post-training", "post-training", "pre-training", "pre-training", "hero")
    ]
    assert jobs.mode.tolist() == [0, 0, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("racks", "nodes", "gpus"), [(1, 1, 1), (1, 18, 4), (2, 4, 8), (4, 6, 6), (3, 5, 3), (16, 16, 8)]
)
def test_default_rules_suit_any_cluster(make_cluster: Clusters, cases: Path, racks: int, nodes: int, gpus: int) -> None:
    cluster = make_cluster(racks, nodes, gpus, blocks=1)
    config = TraceWorkload(path=cases / "kalos_reconstructed_3000.csv.gz")
    jobs = draw_workload(config, cluster, 0)
    assert jobs.gpus.max() <= cluster.gpus and jobs.offered_load(cluster.gpus) == pytest.approx(0.8)


def test_the_first_rule_that_fits_counts(lab16: ClusterSpec) -> None:
    rules = [
        {"name": "big", "min_share": 0.5},
        {"name": "Eval only", "kinds": ["EVAL"], "max_gpus": 4, "queue": "q"},
        {"name": "rest", "mode": "required", "level": "block", "gpus_per_pod": 2},
    ]
    jobs = replay(
        trace_of([TraceJob(0, 4, 60, "eval"), TraceJob(1, 8, 60, "Eval"), TraceJob(2, 600, 60)]), lab16, mapping=rules
    )
    assert _classes(jobs) == ["Eval only", "rest", "big"]
    assert [jobs.queue_names[number] for number in jobs.queue] == ["q", "default", "default"]
    assert jobs.height.tolist() == [0, 1, 0] and jobs.gpus_per_pod.tolist() == [4, 2, 4]


def test_a_job_without_a_rule_is_told(lab16: ClusterSpec) -> None:
    with pytest.raises(InputError, match="no rule for kind 'eval' with 16 GPUs, expected a last rule without kinds"):
        replay(trace_of([TraceJob(0, 16, 60, "eval")]), lab16, mapping=[{"name": "small", "max_gpus": 8}])


def test_required_jobs_shrink_to_their_domain(lab16: ClusterSpec) -> None:
    rule = {"name": "rack", "mode": "required"}
    assert replay(trace_of([TraceJob(0, 300, 60)]), lab16, mapping=[rule]).gpus[0] == 72
    assert replay(trace_of([TraceJob(0, 700, 60)]), lab16, mapping=[rule | {"level": "block"}]).gpus[0] == 576


def test_a_rule_that_no_rack_can_hold_is_refused(lab16: ClusterSpec) -> None:
    with pytest.raises(InputError, match="slice_gpus: found 128, expected at most 72"):
        replay(trace_of([TraceJob(0, 4, 60)]), lab16, mapping=[{"name": "a", "mode": "required", "slice_gpus": 128}])


def test_weights_are_those_of_the_rules(lab16: ClusterSpec) -> None:
    config = TraceWorkload(path=Path("x"), mapping=(MappingRule(name="a", weight=3), MappingRule(name="b")))
    assert class_weights(config, lab16) == {"a": 3, "b": 1}
    assert class_weights(TraceWorkload(path=Path("x")), lab16)["hero"] == 4


def test_a_synthetic_workload_survives_the_detour_over_a_file(lab16: ClusterSpec, tmp_path: Path) -> None:
    drawn = generate(SyntheticWorkload(jobs=400), lab16, np.random.default_rng(0))
    write_csv(drawn, tmp_path / "jobs.csv.gz")
    config = TraceWorkload.model_validate(NO_CHANGE | {"path": tmp_path / "jobs.csv.gz"})
    replayed = draw_workload(config, lab16, 0)
    assert _classes(replayed) == _classes(drawn)
    for column in ("gpus", "gpus_per_pod", "slice_gpus", "mode", "priority", "comm_fraction", "checkpoint_interval"):
        np.testing.assert_array_equal(getattr(replayed, column), getattr(drawn, column), column)
    np.testing.assert_allclose(replayed.submit, drawn.submit - drawn.submit[0], atol=1e-12)
    np.testing.assert_allclose(replayed.duration, drawn.duration)


def test_a_file_is_read_once_until_it_changes(lab16: ClusterSpec, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("submit_s,gpus,duration_s\n0,1,60\n")
    config = TraceWorkload(path=path)
    assert len(draw_workload(config, lab16, 0)) == 1
    path.write_text("submit_s,gpus,duration_s\n0,1,60\n5,1,60\n")
    assert len(draw_workload(config, lab16, 0)) == 2
    path.unlink()
    with pytest.raises(InputError, match="no such file"):
        check_config(config, lab16)


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_every_replay_is_a_valid_workload_that_fits(make_cluster: Clusters, data: st.DataObject) -> None:
    cluster = make_cluster(
        data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6)), data.draw(st.sampled_from([1, 4, 6, 8]))
    )
    job = st.builds(
        TraceJob,
        submit_s=st.floats(0, 1e6),
        gpus=st.floats(0.01, 3000),
        duration_s=st.floats(1, 1e6),
        kind=st.sampled_from(["unknown", "eval", "pretrain", "finetune", "debug", "inference", "spot", "hp"]),
        user=st.sampled_from(["-1", "a", "b"]),
    )
    trace = trace_of(data.draw(st.lists(job, min_size=1, max_size=30)), data.draw(st.sampled_from([None, 64, 5000])))
    options = data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                "load": st.floats(0.1, 2),
                "thin": st.just(True),
                "cap_share": st.floats(0.01, 1),
                "jobs": st.integers(1, 40),
                "speedup": st.floats(0.5, 4),
            },
        )
    )
    jobs = replay(trace, cluster, **options)
    slices = np.where(jobs.slice_gpus > 0, jobs.slice_gpus, jobs.gpus)
    rack = int(cluster.node_gpus[cluster.node_rack == 0].sum())
    assert (jobs.gpus % slices == 0).all() and (slices % jobs.gpus_per_pod == 0).all()
    assert jobs.gpus.max() <= cluster.gpus
    assert (slices[jobs.mode == Mode.REQUIRED] <= rack).all()
    if "load" in options and jobs.submit[-1] > 0:
        assert jobs.offered_load(cluster.gpus) == pytest.approx(options["load"])


def test_default_rules_end_with_one_for_anything(lab16: ClusterSpec) -> None:
    last = default_rules(lab16)[-1]
    assert not last.kinds and last.min_gpus == 0 and last.max_gpus is None and last.min_share == 0


def test_replays_repeat_with_their_seed(lab16: ClusterSpec, cases: Path) -> None:
    trace = read_trace(cases / "philly/philly_2017oct_3000.csv.gz")
    options: dict[str, Any] = {"jobs": 100, "thin": True, "source_gpus": 2490}
    first, again, other = (replay(trace, lab16, seed, **options) for seed in (1, 1, 2))
    assert first.estimate.tobytes() == again.estimate.tobytes() and first.submit.tobytes() == again.submit.tobytes()
    assert first.estimate.tobytes() != other.estimate.tobytes()
