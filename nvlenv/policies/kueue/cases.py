"""Recorded decisions of Kueue: read a file of cases, decide each, compare with what the file expects.

The file is JSON, `{"cases": [...]}`; the `kind` of a case says what is decided.

`find_topology_assignments` (the default): where the pods go. The case holds `levels`, `nodes`, `podsets`, `expected`,
and optionally `feature_gates`, `flavor_node_labels`, `flavor_tolerations`, `running_pods`, `tas_usage`,
`sibling_flavor_tas_usage` and `workload` (an admitted one with unhealthy nodes). `expected` maps pod sets to
`{levels, domains}`, `{failure}` or `{assignment: null}`.

`find_preemption_targets`: who is preempted. The case holds `cluster_queues`, `admitted`, `incoming`, `expected`, and
optionally `cohorts`, `topologies` (nodes by flavor), `needs_preemption` (else it follows from quota and topology) and
`fair_sharing` (a list of strategies; else preemption is classical). `expected` maps victims to reasons in `targets`,
and names the `mode` of the assignment where that is decided too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path as FilePath
from typing import Any, TypeVar

from nvlenv.common.errors import InputError
from nvlenv.policies.kueue.preemption import (
    FairSharingStrategy,
    KueueState,
    WorkloadInfo,
    assignment_mode,
    find_targets,
)
from nvlenv.policies.kueue.quota import (
    BorrowWithinCohort,
    ClusterQueue,
    Cohort,
    FlavorResource,
    PreemptionPolicy,
    ResourceQuota,
)
from nvlenv.policies.kueue.snapshot import Snapshot
from nvlenv.policies.kueue.types import (
    HOSTNAME,
    Assignment,
    Expression,
    Failure,
    Gates,
    KueueNode,
    Layer,
    NodeAffinity,
    PodSetRequest,
    Repair,
    Result,
    RunningPod,
    Taint,
    Term,
    Toleration,
    TopologyMode,
    TopologyRequest,
    Usage,
)

PLACEMENT, PREEMPTION = "find_topology_assignments", "find_preemption_targets"  # the kinds of cases that are run here

Json = Mapping[str, Any]
T = TypeVar("T")

_GATES = {
    "TASProfileMixed": "mixed_profile",
    "TASBalancedPlacement": "balanced_placement",
    "TASRespectNodeAffinityPreferred": "respect_preferred_affinity",
    "TASMultiLayerTopology": "multi_layer",
    "SkipReassignmentForPodOwnedWorkloads": "skip_pod_owned",
    "ElasticJobsViaWorkloadSlicesWithTAS": "elastic",
}


def read_cases(path: str | FilePath) -> list[Json]:
    """The cases of a file. Raises InputError if it cannot be read or is no file of cases."""
    try:
        document = json.loads(FilePath(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(path, "", str(error).splitlines()[0], "a readable JSON file of cases") from error
    cases = document.get("cases") if isinstance(document, dict) else None
    if not isinstance(cases, list) or not all(isinstance(case, dict) and "id" in case for case in cases):
        raise InputError(path, "cases", type(cases).__name__, "a list of cases, each an object with an id")
    if cases and not any(_kind(case) in (PLACEMENT, PREEMPTION) for case in cases):
        raise InputError(path, f"{cases[0]['id']}.kind", repr(cases[0]["kind"]), f"{PLACEMENT} or {PREEMPTION}")
    return cases


def run_file(path: str | FilePath) -> int:
    """Run all cases, print each that fails, and the tally last; returns the number of failures.

    A case of an unknown kind among others fails: nothing here could answer it.
    """
    cases = read_cases(path)
    failed = 0
    for case in cases:
        try:
            expected = expected_of(case)
            known = _kind(case) in (PLACEMENT, PREEMPTION)
            found = run_case(case) if known else f"kind {case['kind']}, which is not run here"
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            found = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(path, str(case["id"]), found, "a case in the format of the suite") from error
        if found != expected:
            failed += 1
            print(f"{case['id']}: expected {json.dumps(expected)}, found {json.dumps(found)}")
    print(f"{len(cases) - failed} passed, {failed} failed")
    return failed


def run_case(case: Json) -> dict[str, Any]:
    """What is decided for a case; the result has the shape of its `expected`."""
    return _run_preemption(case) if _kind(case) == PREEMPTION else _run_placement(case)


def expected_of(case: Json) -> dict[str, Any]:
    """What the case expects; a pod set with neither assignment nor reason has no entry in a result."""
    return {name: entry for name, entry in case["expected"].items() if entry != {"assignment": None}}


def _kind(case: Json) -> str:
    return str(case.get("kind", PLACEMENT))


def _run_placement(case: Json) -> dict[str, Any]:
    gates = case.get("feature_gates") or {}
    pooled = gates.get("TASHandleOverlappingFlavors", True) and case["levels"][-1] == HOSTNAME
    outside = [pod for pod in case.get("running_pods") or () if not (pod.get("kind") or "").startswith("tas")]
    snapshot = Snapshot(
        case["levels"],
        [_node(node) for node in case["nodes"]],
        gates=Gates(**{field: gates[gate] for gate, field in _GATES.items() if gate in gates}),
        topology=case.get("topology", "default"),
        flavor_labels=case.get("flavor_node_labels"),
        flavor_tolerations=[_made(Toleration, toleration) for toleration in case.get("flavor_tolerations") or ()],
        running_pods=[_made(RunningPod, pod, node=pod.get("node")) for pod in outside],
        # Pooled usage stands for that of the flavor itself too: the suite then takes its siblings' in place of its own.
        usage=[_usage(entry) for entry in case.get("sibling_flavor_tas_usage" if pooled else "tas_usage") or ()],
    )
    repair = _repair(case["workload"]) if case.get("workload") else None
    return _as_json(snapshot.assign([_podset(podset) for podset in case["podsets"]], repair))


def _as_json(result: Result) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, outcome in result.items():
        if isinstance(outcome, Failure):
            shown[name] = {"failure": outcome.reason}
        else:
            domains = [{"values": list(values), "count": count} for values, count in outcome.domains]
            shown[name] = {"levels": list(outcome.levels), "domains": domains}
    return shown


def _made(kind: type[T], entry: Json, **rest: Any) -> T:
    """A dataclass from the keys of an entry that are named like its fields; a null is as good as no key."""
    for field in fields(kind):  # type: ignore[arg-type]
        required = field.default is MISSING and field.default_factory is MISSING
        if field.name not in rest and (required or entry.get(field.name) is not None):
            rest[field.name] = entry[field.name]
    return kind(**rest)


def _node(node: Json) -> KueueNode:
    taints = tuple(_made(Taint, taint, effect=taint["effect"]) for taint in node.get("taints") or ())
    return _made(KueueNode, node, taints=taints)


def _podset(podset: Json) -> PodSetRequest:
    previous = podset.get("previous_assignment")
    return PodSetRequest(
        name=podset["name"],
        count=podset["count"],
        requests=podset["requests_per_pod"],
        topology=TopologyRequest(TopologyMode(podset["mode"]), podset.get("level"), _slices(podset)),
        node_selector=podset.get("node_selector") or {},
        tolerations=tuple(_made(Toleration, toleration) for toleration in podset.get("tolerations") or ()),
        affinity=_affinity(podset.get("node_affinity") or {}),
        group=podset.get("group"),
        previous=_assignment(previous) if previous else None,
    )


def _slices(podset: Json) -> tuple[Layer, ...]:
    """Slice layers in either spelling. A size without a level asks for nothing."""
    if podset.get("slice_layers"):
        return tuple(Layer(layer["level"], layer["size"]) for layer in podset["slice_layers"])
    return (Layer(podset["slice_level"], podset.get("slice_size") or 0),) if podset.get("slice_level") else ()


def _affinity(affinity: Json) -> NodeAffinity:
    required = affinity.get("required")
    return NodeAffinity(
        required=None if required is None else tuple(_term(term) for term in required),
        preferred=tuple((term["weight"], _term(term)) for term in affinity.get("preferred") or ()),
    )


def _term(term: Json) -> Term:
    def read(key: str) -> tuple[Expression, ...]:
        return tuple(_made(Expression, e, values=tuple(e.get("values") or ())) for e in term.get(key) or ())

    return Term(read("match_expressions"), read("match_fields"))


def _usage(entry: Json) -> Usage:
    return Usage(tuple(entry["values"]), entry["requests_per_pod"], entry["count"])


def _assignment(assignment: Json) -> Assignment:
    domains = tuple((tuple(domain["values"]), domain["count"]) for domain in assignment["domains"])
    return Assignment(tuple(assignment["levels"]), domains)


def _repair(workload: Json) -> Repair:
    admission = (workload.get("admission") or {}).items()
    return Repair(
        unhealthy_nodes=tuple(workload.get("unhealthy_nodes") or ()),
        assignments={name: _assignment(entry["assignment"]) for name, entry in admission if entry.get("assignment")},
        owned_by_single_pod=workload.get("owners") == ["Pod"] and not workload.get("pod_group", False),
    )


def _run_preemption(case: Json) -> dict[str, Any]:
    strategies = [FairSharingStrategy(name) for name in case["fair_sharing"]] if case.get("fair_sharing") else None
    state = KueueState(
        [_cluster_queue(queue) for queue in case["cluster_queues"]],
        [_made(Cohort, cohort, quotas=_quotas(cohort)) for cohort in case.get("cohorts") or ()],
        [_workload(workload) for workload in case["admitted"]],
        {flavor: _empty_snapshot(entry) for flavor, entry in (case.get("topologies") or {}).items()},
    )
    incoming, mode = _workload(case["incoming"]), None
    needs = [(flavor, resource) for flavor, resource in case.get("needs_preemption") or ()]
    if not needs:
        mode, found = assignment_mode(state, incoming, strategies is not None)
        needs = list(found)
    targets = find_targets(state, incoming, needs, strategies) if needs else []
    shown: dict[str, Any] = {"targets": {target.workload.name: str(target.reason) for target in targets}}
    return shown if mode is None else {"mode": mode.name, **shown}


def _cluster_queue(queue: Json) -> ClusterQueue:
    preemption = queue.get("preemption") or {}
    never, borrow = PreemptionPolicy.NEVER, preemption.get("borrow_within_cohort")
    return _made(
        ClusterQueue,
        queue,
        quotas=_quotas(queue),
        within_cluster_queue=PreemptionPolicy(preemption.get("within_cluster_queue", never)),
        reclaim_within_cohort=PreemptionPolicy(preemption.get("reclaim_within_cohort", never)),
        borrow_within_cohort=None if borrow is None else _made(BorrowWithinCohort, borrow),
    )


def _quotas(node: Json) -> dict[FlavorResource, ResourceQuota]:
    quotas = _by_flavor_resource(node.get("quotas") or {})
    return {what: _made(ResourceQuota, quota) for what, quota in quotas.items()}


def _by_flavor_resource(entry: Json) -> dict[FlavorResource, Any]:
    return {(flavor, resource): value for flavor, values in entry.items() for resource, value in values.items()}


def _workload(workload: Json) -> WorkloadInfo:
    usage: dict[str, list[Usage]] = {}
    for entry in workload.get("tas_usage") or ():
        usage.setdefault(entry["flavor"], []).append(_usage(entry))
    podsets = {flavor: [_podset(podset) for podset in each] for flavor, each in (workload.get("podsets") or {}).items()}
    requests = _by_flavor_resource(workload["requests"])
    return _made(WorkloadInfo, workload, requests=requests, podsets=podsets, usage=usage)


def _empty_snapshot(entry: Json) -> Snapshot:
    return Snapshot(
        entry["levels"],
        [_node(node) for node in entry["nodes"]],
        flavor_labels=entry.get("flavor_node_labels"),
        running_pods=[_made(RunningPod, pod, node=pod.get("node")) for pod in entry.get("running_pods") or ()],
    )
