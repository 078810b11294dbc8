"""The generator: its load, its shares, what it never draws."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvlenv.cluster.types import ClusterSpec, Mode, Workload
from nvlenv.common.errors import InputError
from nvlenv.workload.draw import check_config, class_weights, draw_workload
from nvlenv.workload.fit import Capacity
from nvlenv.workload.generate import build_mix, generate
from nvlenv.workload.mix import Bursty, Daily, JobClass, Poisson, SyntheticWorkload

Clusters = Callable[..., ClusterSpec]


def _bytes(workload: Workload) -> bytes:
    return b"".join(getattr(workload, name).tobytes() for name in workload.columns())


@pytest.mark.parametrize("arrivals", [Poisson(), Daily(), Bursty(wander=0.5)], ids=lambda a: a.process)
@pytest.mark.parametrize("length", [{"jobs": 2000}, {"hours": 300.0}], ids=["jobs", "hours"])
def test_the_offered_load_is_the_target_on_average(
    lab16: ClusterSpec, arrivals: Poisson | Daily | Bursty, length: dict[str, Any]
) -> None:
    config = SyntheticWorkload(load=0.7, arrivals=arrivals, **length)
    rng = np.random.default_rng(11)
    draws = [generate(config, lab16, rng) for _ in range(300)]
    work = np.array([draw.gpu_hours() for draw in draws])
    span = np.array([length.get("hours") or draw.submit[-1] for draw in draws])
    load = work.sum() / (lab16.gpus * span.sum())
    error = np.std(work / lab16.gpus - load * span) / span.mean() / np.sqrt(len(draws))
    assert load == pytest.approx(0.7, abs=3.5 * error)
    assert error < 0.02  # so that the line above says something
    assert np.std(work / span) / np.mean(work / span) > 0.02  # draws differ, as weeks do


def test_an_episode_of_few_jobs_may_start_inside_a_batch(lab16: ClusterSpec) -> None:
    arrivals = Bursty(wander=0, day=(1,) * 24, week=(1,) * 7, batch_max=60)
    classes = tuple(each.model_copy(update={"batched": True}) for each in SyntheticWorkload().classes)
    config = SyntheticWorkload(classes=classes, arrivals=arrivals, jobs=20)
    rate = config.load * lab16.gpus / build_mix(classes, Capacity(lab16)).gpu_hours
    rng = np.random.default_rng(12)
    ends = [generate(config, lab16, rng).submit[-1] for _ in range(2000)]
    assert np.mean(ends) == pytest.approx(20 / rate, rel=0.1)


def test_batches_are_cut_at_the_ends_of_the_episode(lab16: ClusterSpec) -> None:
    slow = Bursty(gap_s=36_000, same_second=0)
    for seed in range(5):
        jobs = generate(SyntheticWorkload(arrivals=slow, hours=50), lab16, np.random.default_rng(seed))
        assert 40 < jobs.submit[-1] < 50
    jobs = generate(SyntheticWorkload(arrivals=slow, jobs=50), lab16, np.random.default_rng(13))
    assert len(jobs) == 50 and jobs.submit[0] > 0  # the job at 0 came before the episode


def test_cordoned_nodes_do_not_count_as_capacity(make_cluster: Clusters) -> None:
    config = SyntheticWorkload(jobs=20_000)
    half = make_cluster(cordoned=[node for node in range(288) if node % 18 >= 17])
    whole = generate(config, make_cluster(), np.random.default_rng(0))
    fewer = generate(config, half, np.random.default_rng(0))
    assert fewer.submit[-1] == pytest.approx(whole.submit[-1] * 18 / 17)


def test_classes_and_sizes_come_in_their_shares(lab16: ClusterSpec) -> None:
    config = SyntheticWorkload(jobs=60_000)
    jobs = generate(config, lab16, np.random.default_rng(1))
    total = sum(each.share for each in config.classes)
    for number, each in enumerate(config.classes):
        mine = jobs.job_class == number
        assert mine.mean() == pytest.approx(each.share / total, rel=0.05 if each.share > 0.01 else 0.2)
        for size, probability in each.sizes.items():
            assert np.mean(jobs.gpus[mine] == size) == pytest.approx(
                probability, abs=0.1 if each.share < 0.01 else 0.03
            )
        assert np.median(jobs.duration[mine]) == pytest.approx(each.duration.median_h, rel=0.15)


def test_bursty_arrivals_keep_the_shares_of_the_classes(lab16: ClusterSpec) -> None:
    config = SyntheticWorkload(jobs=2000, arrivals=Bursty(batch_max=50))
    rng = np.random.default_rng(2)
    counts = sum(np.bincount(generate(config, lab16, rng).job_class, minlength=5) for _ in range(150))
    shares = np.array([each.share for each in config.classes])
    np.testing.assert_allclose(counts / counts.sum(), shares / shares.sum(), atol=0.02)


def test_bursty_arrivals_are_as_bursty_as_research_clusters(lab16: ClusterSpec) -> None:
    config = SyntheticWorkload(jobs=40_000, arrivals=Bursty())
    gaps = [np.diff(generate(config, lab16, np.random.default_rng(seed)).submit) for seed in range(5)]
    variations = [gap.std() / gap.mean() for gap in gaps]
    assert 4 < np.median(variations) < 20
    assert all(0.1 < np.mean(gap < 1e-9) < 0.4 for gap in gaps)


def test_estimates_are_right_in_the_median_and_noisy(lab16: ClusterSpec) -> None:
    jobs = generate(SyntheticWorkload(jobs=20_000, estimate_sigma=0.3), lab16, np.random.default_rng(3))
    error = np.log(jobs.estimate / jobs.duration)
    assert np.median(error) == pytest.approx(0, abs=0.02) and error.std() == pytest.approx(0.3, rel=0.03)


def test_exact_estimates_are_the_durations(lab16: ClusterSpec) -> None:
    jobs = generate(SyntheticWorkload(jobs=100, estimate_sigma=0), lab16, np.random.default_rng(3))
    np.testing.assert_array_equal(jobs.estimate, jobs.duration)


@pytest.mark.parametrize("arrivals", [Poisson(), Daily(), Bursty()], ids=lambda a: a.process)
def test_the_same_seed_draws_the_same_bytes(lab16: ClusterSpec, arrivals: Poisson | Daily | Bursty) -> None:
    config = SyntheticWorkload(jobs=500, arrivals=arrivals)
    first, again = (draw_workload(config, lab16, np.random.SeedSequence(5)) for _ in range(2))
    assert _bytes(first) == _bytes(again)
    assert _bytes(first) != _bytes(draw_workload(config, lab16, np.random.SeedSequence(6)))


def test_large_jobs_come_in_slices_of_a_rack(lab16: ClusterSpec) -> None:
    jobs = generate(SyntheticWorkload(jobs=5000), lab16, np.random.default_rng(4))
    hero = jobs.job_class == jobs.class_names.index("hero")
    assert (jobs.slice_gpus[hero] == 64).all() and (jobs.mode[hero] == Mode.REQUIRED).all()
    assert (jobs.slice_gpus[jobs.gpus <= 64] == 0).all()
    assert np.isinf(jobs.checkpoint_interval[jobs.job_class == jobs.class_names.index("evaluation")]).all()


def test_a_draw_of_three_thousand_jobs_takes_milliseconds(lab16: ClusterSpec) -> None:
    rng = np.random.default_rng(0)
    took = []
    for _ in range(20):
        start = time.perf_counter()
        generate(SyntheticWorkload(), lab16, rng)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.01


def test_jobs_have_the_traits_of_their_class(lab16: ClusterSpec) -> None:
    config = SyntheticWorkload(jobs=3000)
    jobs = generate(config, lab16, np.random.default_rng(5))
    for number, each in enumerate(config.classes):
        first = int(np.argmax(jobs.job_class == number))
        expected = {
            "mode": each.placement,
            "height": 0,
            "comm_fraction": each.comm_fraction,
            "priority": each.priority,
            "preemptible": each.preemptible,
            "movable": each.movable,
            "restart_time": each.restart_time_h,
            "checkpoint_interval": np.inf if each.checkpoint_interval_h is None else each.checkpoint_interval_h,
        }
        assert {name: getattr(jobs, name)[first] for name in expected} == expected


def test_weights_are_listed_by_class(lab16: ClusterSpec) -> None:
    assert class_weights(SyntheticWorkload(), lab16) == {
        "inference": 1,
        "evaluation": 1,
        "post-training": 1,
        "pre-training": 2,
        "hero": 4,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sizes": {6: 1.0}}, "a: .*sizes|a.sizes: found 6 GPUs, expected a multiple of the pods of 4 GPUs"),
        ({"sizes": {1156: 1.0}}, "found 1156 GPUs, expected at most 1152, what the cluster could ever hold"),
        ({"sizes": {76: 1.0}, "mode": "required"}, "expected at most 72, what one domain could ever hold"),
        ({"sizes": {1088: 1.0}, "mode": "required", "slice_gpus": 64}, "found 1088 GPUs, expected at most 1024"),
        ({"mode": "required", "slice_gpus": 80}, "a.slice_gpus: found 80, expected at most 72"),
        ({"mode": "required", "level": "row"}, "row"),
        ({"gpus_per_pod": 8}, "a.gpus_per_pod: found 8, expected at most 4"),
    ],
)
def test_jobs_that_can_never_run_are_refused_before_drawing(
    lab16: ClusterSpec, change: dict[str, Any], message: str
) -> None:
    plain: dict[str, Any] = {"name": "a", "share": 1, "sizes": {4: 1.0}, "duration": {"median_h": 1}}
    config = SyntheticWorkload(classes=(JobClass.model_validate(plain | change),))
    with pytest.raises(InputError, match=message):
        check_config(config, lab16)


# --------------------------------------------------------------------------------------------------------------------
# Properties over random clusters and mixes
# --------------------------------------------------------------------------------------------------------------------


@st.composite
def job_classes(draw: st.DrawFn, name: str) -> JobClass:
    mode = draw(st.sampled_from(["unconstrained", "preferred", "required"]))
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64]), min_size=1, max_size=3, unique=True))
    return JobClass.model_validate(
        {
            "name": name,
            "mode": mode,
            "share": draw(st.floats(0.01, 1)),
            "sizes": {size: 1 / len(sizes) for size in sizes},
            "duration": {"median_h": draw(st.floats(0.1, 20)), "sigma": draw(st.floats(0, 2))},
            "slice_gpus": draw(st.sampled_from([0, 4, 8, 16, 32])) if mode == "required" else 0,
            "level": draw(st.sampled_from([None, "rack", "block"])),
            "gpus_per_pod": draw(st.sampled_from([None, 1, 2])),
            "movable": mode == "unconstrained" and draw(st.booleans()),
            "queue": draw(st.sampled_from(["a", "b"])),
        }
    )


def _fits_an_empty_cluster(cluster: ClusterSpec, mode: int, height: int, gpus: int, pod: int, slice_gpus: int) -> bool:
    """Place slice by slice into the domain with the most pods left; obvious and slow."""
    piece = slice_gpus or gpus
    left: dict[int, int] = {}
    for rack, node_gpus, off in zip(cluster.node_rack, cluster.node_gpus, cluster.cordoned, strict=True):
        domain = int(rack) if height == 0 else int(cluster.rack_parents[rack, -1])
        domain = 0 if mode != Mode.REQUIRED else domain
        left[domain] = left.get(domain, 0) + (0 if off else int(node_gpus) // pod)
    for _ in range(gpus // piece):
        best = max(left, key=lambda domain: left[domain])
        if left[best] < piece // pod:
            return False
        left[best] -= piece // pod
    return True


@st.composite
def clusters(draw: st.DrawFn, make_cluster: Clusters) -> ClusterSpec:
    racks, nodes = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    off = draw(st.sets(st.integers(0, racks * nodes - 1), max_size=3))
    return make_cluster(racks, nodes, draw(st.sampled_from([1, 2, 4, 8])), blocks=2, cordoned=sorted(off))


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_every_draw_is_valid(make_cluster: Clusters, data: st.DataObject) -> None:
    cluster = data.draw(clusters(make_cluster))
    arrivals = data.draw(st.sampled_from([Poisson(), Daily(), Bursty(batch_max=20)]))
    classes = tuple(data.draw(job_classes(name)) for name in ("one", "two"))
    length = data.draw(st.sampled_from([{"jobs": 40}, {"hours": 20.0}]))
    config = SyntheticWorkload(classes=classes, arrivals=arrivals, **length)
    try:
        jobs = generate(config, cluster, np.random.default_rng(0)).check()
    except InputError as refusal:
        assert refusal.where == "workload" or "no node that takes pods" in str(refusal)
        return
    assert len(jobs) == 40 if "jobs" in length else (jobs.submit < 20).all()
    assert jobs.gpus.max(initial=0) <= cluster.gpus
    assert jobs.class_names == ("one", "two") and set(jobs.queue_names) <= {"a", "b"}


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_a_size_is_refused_exactly_if_it_could_never_run(make_cluster: Clusters, data: st.DataObject) -> None:
    cluster, job_class = data.draw(clusters(make_cluster)), data.draw(job_classes("one"))
    only = min(job_class.sizes)
    config = SyntheticWorkload(classes=(job_class.model_copy(update={"sizes": {only: 1.0}}),), jobs=1)
    try:
        jobs = generate(config, cluster, np.random.default_rng(0))
        refused = False
        gpus, pod, piece = int(jobs.gpus[0]), int(jobs.gpus_per_pod[0]), int(jobs.slice_gpus[0])
    except InputError as refusal:
        if "could ever hold" not in str(refusal):
            return  # refused for another reason
        refused = True
        pod = min(job_class.gpus_per_pod or int(cluster.node_gpus[~cluster.cordoned].max()), only)
        count = -(-only // job_class.slice_gpus) if job_class.slice_gpus else 1
        piece = -(-only // (count * pod)) * pod
        gpus = count * piece
    height = 1 if job_class.level == "block" else 0
    assert refused != _fits_an_empty_cluster(cluster, job_class.placement, height, gpus, pod, piece)
