"""What the gate writes on pods and reads back: the gate's own name, each pod's node, the plan of its gang.

The API server is the only memory. Every pod of a gang carries the whole plan, so that whoever finds the gang half done,
or one of its pods new, goes on with the plan and makes no second one. The plan is a Kueue TopologyAssignment (v1beta2,
compressed) of host names for each kind of pod, where pods that ask for the same are of one kind.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from nvlenv.common.errors import InputError
from nvlenv.engine.formats.kueue import parse_assignment, to_v1beta2
from nvlenv.policies.kueue.types import HOSTNAME, Assignment

GATE = "nvlenv/placement"  # name of the scheduling gate
PLAN = "nvlenv/gang-plan"  # annotation: the plan of the gang
ENDED = ("Succeeded", "Failed")

PodObject = dict[str, Any]
HostsByKind = dict[str, list[str]]  # a plan: kind of pod -> host of each of them, by rank


def gates_of(pod: PodObject) -> list[str]:
    """Names of the scheduling gates that still hold the pod."""
    return [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]


def is_active(pod: PodObject) -> bool:
    """Neither ended nor being deleted."""
    return pod.get("status", {}).get("phase") not in ENDED and not pod["metadata"].get("deletionTimestamp")


def is_ready_to_go(pod: PodObject) -> bool:
    """Held by this gate alone: Kueue's own gate, for example, says that there is no quota yet."""
    return gates_of(pod) == [GATE]


def host_given(pod: PodObject) -> str:
    """The host that the gate gave the pod; empty if it has not."""
    if GATE in gates_of(pod) or PLAN not in (pod["metadata"].get("annotations") or {}):
        return ""
    return str((pod["spec"].get("nodeSelector") or {}).get(HOSTNAME, ""))


def kind_of(gpus: int, cpu: int, memory: int) -> str:
    """The kind of a pod that asks for so much: GPUs, milli-cores, bytes."""
    return f"{gpus}/{cpu}m/{memory}"


def write_plan(plan: HostsByKind) -> str:
    """The plan as the text of an annotation."""
    assignments = {}
    for kind, hosts in plan.items():
        runs = tuple(((host,), sum(1 for _ in run)) for host, run in groupby(hosts))
        assignments[kind] = to_v1beta2(Assignment((HOSTNAME,), runs))
    return json.dumps(assignments, separators=(",", ":"))


def read_plan(text: str, where: str) -> HostsByKind:
    """The plan in an annotation; `InputError` if somebody has changed it into something else."""
    try:
        assignments = json.loads(text)
    except (ValueError, RecursionError):
        assignments = None
    if not isinstance(assignments, dict):
        raise InputError(where, PLAN, text[:80], "the plan that the gate wrote")
    plan: HostsByKind = {}
    for kind, data in assignments.items():
        domains = parse_assignment(data, f"{where}, {PLAN}").domains
        plan[kind] = [path[-1] for path, count in domains for _ in range(count)]
    return plan


def plan_of(pods: Iterable[PodObject]) -> HostsByKind | None:
    """The plan of a gang, by the youngest of its pods that carries one: it knows of replaced nodes."""
    with_plan = [pod for pod in pods if PLAN in (pod["metadata"].get("annotations") or {})]
    if not with_plan:
        return None
    youngest = max(with_plan, key=lambda pod: (str(pod["metadata"].get("creationTimestamp")), pod["metadata"]["name"]))
    name = f"pod {youngest['metadata'].get('namespace', 'default')}/{youngest['metadata']['name']}"
    return read_plan(youngest["metadata"]["annotations"][PLAN], name)


def patch_of(pod: PodObject, host: str, plan: str) -> dict[str, Any]:
    """The one merge patch that lets the pod go to its host.

    It holds for this version of the pod only: a second controller, or a change in between, is answered with a conflict.
    """
    return {
        "metadata": {"resourceVersion": pod["metadata"]["resourceVersion"], "annotations": {PLAN: plan}},
        "spec": {"nodeSelector": {HOSTNAME: host}, "schedulingGates": None},
    }
