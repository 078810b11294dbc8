"""Recorded placements: read a file of cases, place each, compare with what the file expects.

The file is JSON, `{"cases": [...]}`. A case holds `levels`, `nodes`, `podsets`, `expected`, and optionally
`feature_gates`, `flavor_node_labels`, `flavor_tolerations`, `running_pods`, `tas_usage`, `sibling_flavor_tas_usage`
and `workload` (an admitted one with unhealthy nodes). `expected` maps pod sets to `{levels, domains}`, `{failure}` or
`{assignment: null}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path as FilePath
from typing import Any, TypeVar

from nvlenv.common.errors import InputError
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

KIND = "find_topology_assignments"  # the only kind of case that is run here

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
    if cases and not any(_is_placement(case) for case in cases):
        raise InputError(path, f"{cases[0]['id']}.kind", repr(cases[0]["kind"]), KIND)
    return cases


def run_file(path: str | FilePath) -> int:
    """Run all cases, print each that fails, and the tally last; returns the number of failures.

    Among placements a case of another kind fails: nothing here could answer it.
    """
    cases = read_cases(path)
    failed = 0
    for case in cases:
        try:
            expected = expected_of(case)
            found = run_case(case) if _is_placement(case) else f"kind {case['kind']}, which is not run here"
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            found = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(path, str(case["id"]), found, "a case in the format of the suite") from error
        if found != expected:
            failed += 1
            print(f"{case['id']}: expected {json.dumps(expected)}, found {json.dumps(found)}")
    print(f"{len(cases) - failed} passed, {failed} failed")
    return failed


def run_case(case: Json) -> dict[str, Any]:
    """Place the pod sets of a case; the result has the shape of its `expected`."""
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


def expected_of(case: Json) -> dict[str, Any]:
    """What the case expects; a pod set with neither assignment nor reason has no entry in a result."""
    return {name: entry for name, entry in case["expected"].items() if entry != {"assignment": None}}


def _is_placement(case: Json) -> bool:
    return bool(case.get("kind", KIND) == KIND)


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
