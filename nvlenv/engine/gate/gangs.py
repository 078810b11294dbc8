"""The gangs that have gated pods, and what the gate writes on pods and reads back: each pod's node, its gang's plan.

The API server is the only memory. Every pod of a gang carries the whole plan, so that whoever finds the gang half done,
or one of its pods new, goes on with the plan and makes no second one. The plan is a Kueue TopologyAssignment (v1beta2,
compressed) of host names for each kind of pod, where pods that ask for the same are of one kind.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from nvlenv.common.errors import InputError
from nvlenv.engine.formats.document import Field
from nvlenv.engine.formats.gangs import ENDED, Member, read_member
from nvlenv.engine.formats.kueue import parse_assignment, to_v1beta2
from nvlenv.engine.formats.values import pod_demand
from nvlenv.policies.kueue.types import HOSTNAME, Assignment

GATE = "nvlenv/placement"  # name of the scheduling gate
PLAN = "nvlenv/gang-plan"  # annotation: the plan of the gang

Object = dict[str, Any]  # as the API server sends it
HostsByKind = dict[str, list[str]]  # a plan: kind of pod -> host of each of them, by rank
Places = list[tuple[Object, str]]  # pods and their hosts


@dataclass(frozen=True)
class GatedGang:
    """Pods that belong together, some of them gated."""

    name: str  # namespace/kind/name
    pods: tuple[Object, ...]  # active ones, by rank
    member: Member  # its first pod's part in it

    @property
    def namespace(self) -> str:
        """Of all its pods."""
        return self.name.partition("/")[0]

    @property
    def gated(self) -> list[Object]:
        """Its pods that wait for the gate, by rank."""
        return [pod for pod in self.pods if GATE in gates_of(pod)]

    @property
    def turn(self) -> tuple[int, str, str]:
        """Higher priority first, then older ones."""
        first = min(str(pod["metadata"].get("creationTimestamp")) for pod in self.pods)
        return -max(int(pod["spec"].get("priority") or 0) for pod in self.pods), first, self.name

    def plan(self) -> HostsByKind | None:
        """By the youngest of its pods that carries one: it knows of replaced nodes. `InputError` as in `read_plan`."""
        carriers = [pod for pod in self.pods if _carries_plan(pod)]
        if not carriers:
            return None
        meta = max((pod["metadata"] for pod in carriers), key=lambda m: (str(m.get("creationTimestamp")), m["name"]))
        return read_plan(meta["annotations"][PLAN], f"pod {meta.get('namespace', 'default')}/{meta['name']}")

    def places(self, gpu_resource: str) -> Places | None:
        """The host of each gated pod by the plan of the gang, "" where none is left; None without a plan.

        Places and pods are both in order of rank, so whoever is left gets what it was given in the first place.
        """
        plan = self.plan()
        if plan is None:
            return None
        kinds = {id(pod): kind_of_pod(pod, gpu_resource) for pod in self.pods}
        taken = Counter((kinds[id(pod)], host_given(pod)) for pod in self.pods)
        free: dict[str, list[str]] = {}
        for place in ((kind, host) for kind, hosts in plan.items() for host in hosts):
            if taken[place]:
                taken[place] -= 1
            else:
                free.setdefault(place[0], []).append(place[1])
        left = {kind: iter(hosts) for kind, hosts in free.items()}
        return [(pod, next(left.get(kinds[id(pod)], iter(())), "")) for pod in self.gated]


def gated_gangs(pods: Sequence[Object]) -> tuple[list[GatedGang], dict[str, str]]:
    """The gangs with gated pods, by turn, and what is wrong with gated pods that belong to none."""
    members: dict[str, list[tuple[Member, Object]]] = {}
    wrong: dict[str, str] = {}
    if not any(GATE in gates_of(pod) for pod in pods):  # by far the most passes
        return [], {}
    for pod in pods:
        if pod.get("status", {}).get("phase") in ENDED or pod["metadata"].get("deletionTimestamp"):
            continue
        try:
            member = read_member(Field("cluster", pod))
            members.setdefault(member.gang, []).append((member, pod))
        except InputError as error:
            if GATE in gates_of(pod):
                wrong[f"{pod['metadata'].get('namespace', 'default')}/pod/{pod['metadata']['name']}"] = str(error)
    gangs = []
    for name, entries in members.items():
        entries.sort(key=lambda entry: (entry[0].rank, entry[0].name))
        gangs.append(GatedGang(name, tuple(pod for _, pod in entries), entries[0][0]))
    return sorted((gang for gang in gangs if gang.gated), key=lambda gang: gang.turn), wrong


def gates_of(pod: Object) -> list[str]:
    """Names of the scheduling gates that still hold the pod."""
    return [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]


def is_ready_to_go(pod: Object) -> bool:
    """Held by this gate alone: Kueue's own gate, for example, says that there is no quota yet."""
    return gates_of(pod) == [GATE]


def host_given(pod: Object) -> str:
    """The host that the gate gave the pod; empty if it has not."""
    if GATE in gates_of(pod) or not _carries_plan(pod):
        return ""
    return str((pod["spec"].get("nodeSelector") or {}).get(HOSTNAME, ""))


def kind_of(gpus: int, cpu: int, memory: int) -> str:
    """The kind of a pod that asks for so much: GPUs, milli-cores, bytes."""
    return f"{gpus}/{cpu}m/{memory}"


def kind_of_pod(pod: Object, gpu_resource: str) -> str:
    """The kind of a pod, by what its containers ask for."""
    demand = pod_demand(Field("cluster", pod)["spec"], gpu_resource)
    return kind_of(demand.gpus, demand.cpu, demand.memory)


def write_plan(plan: HostsByKind) -> str:
    """The plan as the text of an annotation."""
    assignments = {}
    for kind, hosts in plan.items():
        runs = tuple(((host,), len(list(run))) for host, run in groupby(hosts))
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


def patch_of(pod: Object, host: str, plan: str) -> dict[str, Any]:
    """The one merge patch that lets the pod go to its host.

    It holds for this version of the pod only: a second controller, or a change in between, is answered with a conflict.
    """
    return {
        "metadata": {"resourceVersion": pod["metadata"]["resourceVersion"], "annotations": {PLAN: plan}},
        "spec": {"nodeSelector": {HOSTNAME: host}, "schedulingGates": None},
    }


def _carries_plan(pod: Object) -> bool:
    return PLAN in (pod["metadata"].get("annotations") or {})
