"""Kueue's preemption: the suite of cases with expected victims, and what holds for any set of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvlenv.common.errors import InputError
from nvlenv.policies.kueue.cases import expected_of, read_cases, run_case
from nvlenv.policies.kueue.preemption import (
    STRATEGIES,
    AssignmentMode,
    KueueState,
    PreemptionReason,
    WorkloadInfo,
    assignment_mode,
    find_targets,
)
from nvlenv.policies.kueue.quota import (
    BorrowWithinCohort,
    ClusterQueue,
    Cohort,
    PreemptionPolicy,
    QuotaTree,
    ResourceQuota,
)
from nvlenv.policies.kueue_tas import main

SUITE = Path(__file__).parents[2] / "cases" / "kueue_preemption.json"  # its `meta` names source, commit and licence
GPUS = ("gb200", "gpu")
NEVER, ANY = PreemptionPolicy.NEVER, PreemptionPolicy.ANY
LOWER, NEWER = PreemptionPolicy.LOWER_PRIORITY, PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY

untimed = settings(deadline=None, max_examples=300)


@pytest.mark.parametrize("case", read_cases(SUITE), ids=lambda case: case["id"])
def test_the_suite_preempts_as_kueue_does(case: dict[str, Any]) -> None:
    assert run_case(case) == expected_of(case)


def test_the_front_door_runs_both_kinds_of_cases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = read_cases(SUITE)[-1:] + read_cases(SUITE.with_name("kueue_tas.json"))[:1]
    file = tmp_path / "cases.json"
    file.write_text(json.dumps({"cases": both}))

    assert main([str(file)]) == 0
    assert capsys.readouterr().out == "2 passed, 0 failed\n"


def test_another_victim_than_expected_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(SUITE.read_text())
    document["cases"][0]["expected"]["targets"] = {"w07": "InClusterQueue"}
    file = tmp_path / "cases.json"
    file.write_text(json.dumps(document))

    assert main([str(file)]) == 1
    assert "preempt-001: expected " in capsys.readouterr().out


# --- Quotas -----------------------------------------------------------------------------------------------------------


def queue(name: str, nominal: int, cohort: str | None = None, **more: Any) -> ClusterQueue:
    """A ClusterQueue for GPUs; limits go into its quota, the rest are its fields."""
    limits = {key: more.pop(key) for key in ("borrowing_limit", "lending_limit") if key in more}
    return ClusterQueue(name, {GPUS: ResourceQuota(nominal, **limits)}, cohort, **more)


def job(name: str, cluster_queue: str, gpus: int, **more: Any) -> WorkloadInfo:
    """A workload that asks for GPUs."""
    return WorkloadInfo(name, cluster_queue, {GPUS: gpus}, **more)


def test_what_is_lent_and_borrowed_has_limits() -> None:
    lender, borrower = queue("lender", 8, "lab", lending_limit=5), queue("borrower", 4, "lab", borrowing_limit=3)
    nodes = QuotaTree([lender, borrower]).cluster_queues

    assert nodes["borrower"].potential_available(GPUS) == 7
    assert nodes["lender"].potential_available(GPUS) == 12

    nodes["lender"].add(GPUS, 6)  # three of its own, three of those that it would lend

    assert nodes["borrower"].available(GPUS) == 6
    assert nodes["lender"].available(GPUS) == 6


def test_a_lending_limit_above_the_quota_keeps_nothing_back() -> None:
    nodes = QuotaTree([queue("lender", 2, "lab", lending_limit=5), queue("borrower", 4, "lab")]).cluster_queues
    nodes["lender"].add(GPUS, 1)

    assert nodes["borrower"].available(GPUS) == 5
    assert nodes["lender"].local_quota(GPUS) == 0


def test_resources_without_quota_are_used_beyond_it() -> None:
    nodes = QuotaTree([queue("a", 2), queue("b", 3, "lab"), queue("c", 4, "lab", borrowing_limit=1)]).cluster_queues
    cpus = ("gb200", "cpu")

    for name in nodes:
        assert nodes[name].available(cpus) == nodes[name].potential_available(cpus) == 0
        assert not nodes[name].exceeds(cpus) and nodes[name].exceeds(cpus, 1)
    nodes["b"].add(cpus, 2)
    assert nodes["c"].available(cpus) == -2
    assert nodes["b"].borrows([GPUS, cpus]) and not nodes["c"].borrows([GPUS, cpus])


def test_the_share_is_that_of_the_resource_borrowed_most() -> None:
    cpus = ("gb200", "cpu")
    half = {GPUS: ResourceQuota(4), cpus: ResourceQuota(10)}
    queues = [ClusterQueue("a", half, "lab", fair_weight=2.0), ClusterQueue("b", half, "lab", fair_weight=0.0)]
    nodes = QuotaTree(queues).cluster_queues

    assert nodes["a"].dominant_resource_share() == (False, 0.0)

    for name in nodes:
        nodes[name].add(GPUS, 5)  # one of eight is borrowed
        nodes[name].add(cpus, 15)  # five of twenty are
    assert nodes["a"].dominant_resource_share() == (False, 125.0)  # per mille, by a weight of two
    assert nodes["b"].dominant_resource_share() == (True, 250.0)
    assert nodes["b"].dominant_resource_share() > nodes["a"].dominant_resource_share()


def test_usage_beyond_the_local_quota_is_the_cohorts() -> None:
    nodes = QuotaTree([queue("a", 4, "lab", lending_limit=1), queue("b", 1, "lab")]).cluster_queues
    lab = nodes["a"].parent
    assert lab is not None

    used = []
    for change in (nodes["a"].add, nodes["a"].add, nodes["a"].remove, nodes["a"].remove):
        change(GPUS, 2)
        used.append(lab.usage.get(GPUS, 0))

    assert used == [0, 1, 0, 0]


def test_cohorts_in_a_circle_are_refused() -> None:
    with pytest.raises(InputError, match="cohorts that form trees"):
        QuotaTree([queue("a", 1, "x")], [Cohort("x", "y"), Cohort("y", "x")])


def test_a_workload_of_an_unknown_queue_is_refused() -> None:
    with pytest.raises(InputError, match=r"one of \['a'\]"):
        KueueState([queue("a", 1)], admitted=[job("w", "b", 1)])


def test_preemption_is_not_tried_where_it_could_not_help() -> None:
    state = KueueState([queue("a", 4, within_cluster_queue=LOWER)], admitted=[job("w", "a", 3)])

    assert assignment_mode(state, job("fits", "a", 1))[0] == AssignmentMode.FIT
    assert assignment_mode(state, job("room", "a", 2)) == (AssignmentMode.PREEMPT, {GPUS})
    assert assignment_mode(state, job("never", "a", 5))[0] == AssignmentMode.NO_FIT


def test_a_queue_above_its_nominal_quota_preempts_only_if_it_may_borrow_meanwhile() -> None:
    queues = [queue("a", 4, "lab", reclaim_within_cohort=LOWER), queue("b", 4, "lab")]
    admitted = [job("mine", "a", 3), job("theirs", "b", 5)]
    high = job("high", "a", 5, priority=1)

    assert assignment_mode(KueueState(queues, (), admitted), high)[0] == AssignmentMode.NO_FIT

    queues[0] = queue("a", 4, "lab", reclaim_within_cohort=LOWER, borrow_within_cohort=BorrowWithinCohort())
    assert assignment_mode(KueueState(queues, (), admitted), high)[0] == AssignmentMode.PREEMPT


def test_quota_of_the_own_part_of_the_hierarchy_is_reclaimed_beyond_the_nominal_one() -> None:
    cohorts = [Cohort("root"), Cohort("left", "root", {GPUS: ResourceQuota(3)})]
    queues = [queue("a", 2, "left", lending_limit=0, reclaim_within_cohort=ANY), queue("b", 0, "root")]
    state = KueueState(queues, cohorts, [job("w", "b", 3)])

    assert assignment_mode(state, job("all", "a", 5)) == (AssignmentMode.PREEMPT, {GPUS})
    assert [target.workload.name for target in find_targets(state, job("all", "a", 5), [GPUS])] == ["w"]
    assert assignment_mode(state, job("more", "a", 6))[0] == AssignmentMode.NO_FIT


def test_the_order_is_evicted_then_other_queues_then_priority_then_youth() -> None:
    queues = [
        queue("a", 8, "lab", within_cluster_queue=LOWER, reclaim_within_cohort=ANY),
        queue("b", 0, "lab"),
    ]
    admitted = [
        job("old", "a", 1, quota_reserved=1.0),
        job("young", "a", 1, quota_reserved=2.0),
        job("low", "a", 1, priority=-1),
        job("other", "b", 1, priority=9),
        job("gone", "a", 1, priority=4, evicted=True),
        job("stays", "a", 3, priority=5),
    ]
    order = ["gone", "other", "low", "young", "old"]

    for enough in range(1, 6):  # never more than are needed, and always the first ones
        targets = find_targets(KueueState(queues, (), admitted), job("new", "a", enough, priority=5), [GPUS])
        assert sorted(target.workload.name for target in targets) == sorted(order[:enough])


def victims(state: KueueState, incoming: WorkloadInfo, strategies: Sequence[Any] | None = None) -> list[str]:
    """Names of the workloads that are preempted for GPUs, sorted."""
    return sorted(target.workload.name for target in find_targets(state, incoming, [GPUS], strategies))


def test_a_workload_that_uses_other_resources_too_is_a_candidate() -> None:
    quotas = {GPUS: ResourceQuota(4), ("gb200", "cpu"): ResourceQuota(9)}
    both = WorkloadInfo("both", "a", {GPUS: 4, ("gb200", "cpu"): 9})
    cpus = WorkloadInfo("cpus", "a", {("gb200", "cpu"): 0})
    state = KueueState([ClusterQueue("a", quotas, within_cluster_queue=LOWER)], (), [both, cpus])

    assert victims(state, job("new", "a", 1, priority=1)) == ["both"]


def test_a_queue_at_its_nominal_quota_reclaims_nothing_that_it_would_have_to_borrow() -> None:
    # Quota was taken away: seven are in use of five.
    queues = [
        queue("a", 4, "lab", within_cluster_queue=LOWER, reclaim_within_cohort=LOWER),
        queue("b", 0, "lab"),
        queue("c", 1, "lab"),
    ]
    for used, found in ((4, []), (3, ["mine", "theirs"])):
        state = KueueState(queues, (), [job("mine", "a", used), job("theirs", "b", 7 - used)])
        assert victims(state, job("new", "a", 4, priority=1)) == found


@pytest.mark.parametrize(("priority", "found"), [(1, ["theirs"]), (0, [])])
def test_who_borrows_meanwhile_preempts_lower_priorities_only(priority: int, found: list[str]) -> None:
    lender = queue("c", 4, "lab")
    preemptor = queue("a", 0, "lab", reclaim_within_cohort=ANY, borrow_within_cohort=BorrowWithinCohort())
    state = KueueState([preemptor, queue("b", 0, "lab"), lender], (), [job("theirs", "b", 4)])

    assert victims(state, job("new", "a", 2, priority=priority)) == found


def test_with_fair_sharing_whoever_reclaims_may_borrow_meanwhile() -> None:
    queues = [queue("a", 0, "lab", reclaim_within_cohort=ANY), queue("b", 0, "lab"), queue("c", 4, "lab")]
    state = KueueState(queues, (), [job(f"w{k}", "b", 1) for k in range(4)])

    assert assignment_mode(state, job("new", "a", 1))[0] == AssignmentMode.NO_FIT
    assert assignment_mode(state, job("new", "a", 1), fair_sharing=True)[0] == AssignmentMode.PREEMPT


def test_fair_sharing_takes_the_evicted_first_and_tries_its_second_strategy_only_if_it_has_one() -> None:
    queues = [queue("a", 0, "lab", reclaim_within_cohort=ANY), queue("b", 0, "lab"), queue("c", 4, "lab")]
    small = [job(f"w{k}", "b", 1, evicted=k == 2) for k in range(4)]
    large = [job("w", "b", 4)]
    new = job("new", "a", 1)

    assert victims(KueueState(queues, (), small), new, STRATEGIES) == ["w2"]
    assert victims(KueueState(queues, (), large), new, STRATEGIES) == ["w"]  # by its share so far
    assert victims(KueueState(queues, (), large), new, STRATEGIES[:1]) == []  # it would be left with less
    assert victims(KueueState(queues, (), large), job("new", "a", 4), STRATEGIES) == []  # an equal share is no larger


@pytest.mark.parametrize("low", ["b", "c"])
def test_of_equal_shares_the_one_with_the_lower_priority_gives(low: str) -> None:
    queues = [queue("a", 2, "lab", reclaim_within_cohort=ANY), queue("b", 0, "lab"), queue("c", 0, "lab")]
    admitted = [job(f"of-{name}", name, 1, priority=-int(name == low)) for name in ("b", "c")]

    assert victims(KueueState(queues, (), admitted), job("new", "a", 1), STRATEGIES) == [f"of-{low}"]


def test_of_a_cohort_and_a_queue_with_equal_shares_the_cohort_gives() -> None:
    queues = [queue("a", 2, "root", reclaim_within_cohort=ANY), queue("b", 0, "root"), queue("c", 0, "inner")]
    admitted = [job("of-queue", "b", 1, priority=-1), job("of-cohort", "c", 1)]
    state = KueueState(queues, [Cohort("inner", "root")], admitted)

    assert victims(state, job("new", "a", 1), STRATEGIES) == ["of-cohort"]


def test_a_cohort_within_its_quota_is_left_alone_by_fair_sharing() -> None:
    cohorts = [Cohort("left", "root"), Cohort("right", "root", {GPUS: ResourceQuota(2)})]
    queues = [queue("a", 1, "left", reclaim_within_cohort=ANY), queue("b", 0, "right"), queue("c", 2, "root")]
    admitted, protected = [job("w", "b", 2)], [job("stays", "c", 3)]

    assert victims(KueueState(queues, cohorts, admitted, {}, protected), job("new", "a", 1), STRATEGIES) == []
    assert victims(KueueState(queues, cohorts, [*admitted, *protected]), job("new", "a", 1), STRATEGIES) == ["stays"]


# --- Properties -------------------------------------------------------------------------------------------------------

quotas = st.builds(
    ResourceQuota,
    st.integers(0, 6),
    st.none() | st.integers(0, 6),
    st.none() | st.integers(0, 6),
)
borrowing = st.none() | st.builds(BorrowWithinCohort, st.none() | st.integers(-1, 2))


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[ClusterQueue], list[Cohort], list[WorkloadInfo], WorkloadInfo]:
    """Up to four queues in up to two levels of cohorts, what is admitted, and one workload that asks."""
    cohorts = [
        Cohort("root", None, {GPUS: draw(quotas)}),
        Cohort("left", "root", {GPUS: draw(quotas)}),
        Cohort("right", "root", {}),
    ]
    names = [f"q{k}" for k in range(draw(st.integers(1, 4)))]
    queues = [
        ClusterQueue(
            name,
            {GPUS: draw(quotas)},
            draw(st.sampled_from(["root", "left", "left", "right", None])),
            draw(st.sampled_from([NEVER, LOWER, NEWER])),
            draw(st.sampled_from([NEVER, LOWER, NEWER, ANY])),
            draw(borrowing),
            draw(st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.0])),
        )
        for name in names
    ]
    workloads = [
        job(
            f"w{k}",
            draw(st.sampled_from(names)),
            draw(st.integers(1, 4)),
            priority=draw(st.integers(-1, 2)),
            created=float(draw(st.integers(0, 3))),
            quota_reserved=float(draw(st.integers(0, 3))),
            evicted=draw(st.integers(0, 9)) == 0,
        )
        for k in range(draw(st.integers(1, 10)))
    ]
    return queues, cohorts, workloads[1:], workloads[0]


def usage_of(state: KueueState) -> list[dict[Any, int]]:
    """What every queue and every cohort above it uses."""
    return [{GPUS: each.usage.get(GPUS, 0)} for node in state.queues.values() for each in (node, *node.ancestors)]


@given(situation=situations(), strategies=st.sampled_from([None, STRATEGIES[:1], STRATEGIES[1:], STRATEGIES]))
@untimed
def test_victims_are_legal_enough_and_none_too_many(
    situation: tuple[list[ClusterQueue], list[Cohort], list[WorkloadInfo], WorkloadInfo],
    strategies: Sequence[Any] | None,
) -> None:
    queues, cohorts, admitted, incoming = situation
    state = KueueState(queues, cohorts, admitted)
    if state.fits(incoming):
        return
    before = usage_of(state)

    targets = find_targets(state, incoming, [GPUS], strategies)

    assert usage_of(state) == before
    assert {name for each in state.admitted.values() for name in each} == {workload.name for workload in admitted}
    own = next(each for each in queues if each.name == incoming.cluster_queue)
    for target in targets:
        victim, inside = target.workload, target.workload.cluster_queue == own.name
        policy = own.within_cluster_queue if inside else own.reclaim_within_cohort
        equal = policy == NEWER and victim.priority == incoming.priority and victim.created > incoming.created
        assert policy == ANY or equal or (policy != NEVER and victim.priority < incoming.priority)
        assert inside == (target.reason == PreemptionReason.IN_CLUSTER_QUEUE)
        if target.reason == PreemptionReason.IN_COHORT_RECLAIM_WHILE_BORROWING:
            assert own.borrow_within_cohort is not None and victim.priority < incoming.priority
    for target in targets:
        state.remove(target.workload)
    assert not targets or state.fits(incoming)
    may_borrow = strategies is not None or not _without_borrowing(queues, cohorts, admitted, incoming)
    for target in targets:
        state.add(target.workload)
        assert not state.fits(incoming, may_borrow)
        state.remove(target.workload)


def _without_borrowing(
    queues: list[ClusterQueue], cohorts: list[Cohort], admitted: list[WorkloadInfo], incoming: WorkloadInfo
) -> bool:
    """True if the set that was found lets the queue stay within its quota: then that, too, must need every victim."""
    state = KueueState(queues, cohorts, admitted)
    for target in find_targets(state, incoming, [GPUS]):
        state.remove(target.workload)
    return not state.queue(incoming).exceeds(GPUS, incoming.requests[GPUS])
