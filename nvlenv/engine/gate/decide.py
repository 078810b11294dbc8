"""From the nodes and pods of a cluster to what shall be done: which gated pods go where, and who has to leave.

A pure function of the objects. The engine is made anew for every pass, so that it sees what the API server sees: jobs
that ended have given back their nodes, and pods that were let go but do not run yet hold theirs.

The API server is the only memory. Every pod of a gang carries the whole plan, so that whoever finds the gang half done,
or one of its pods new, goes on with the plan and makes no second one. The plan is a Kueue TopologyAssignment (v1beta2,
compressed) of host names for each kind of pod, where pods that ask for the same are of one kind.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from nvlenv.cluster.types import Mode
from nvlenv.common.errors import InputError
from nvlenv.engine.core.engine import PlacementEngine
from nvlenv.engine.formats.document import Field
from nvlenv.engine.formats.gangs import ENDED, Member, gang_job, read_member
from nvlenv.engine.formats.kubernetes import read_kubernetes
from nvlenv.engine.formats.kueue import parse_assignment, to_v1beta2
from nvlenv.engine.formats.load import parse_job
from nvlenv.engine.formats.options import Options
from nvlenv.engine.formats.values import pod_demand
from nvlenv.engine.model.answers import Placed
from nvlenv.engine.model.snapshot import NodeState
from nvlenv.policies.kueue.types import HOSTNAME, Assignment
from nvlenv.simulator.decision import Policy

GATE = "nvlenv/placement"  # name of the scheduling gate
PLAN = "nvlenv/gang-plan"  # annotation: the plan of the gang

Object = dict[str, Any]  # as the API server sends it
HostsByKind = dict[str, list[str]]  # a plan: kind of pod -> host of each of them, by rank
Places = list[tuple[Object, str]]  # pods and their hosts


@dataclass(frozen=True)
class Release:
    """A pod that may go to its host."""

    pod: Object
    host: str
    plan: str  # the annotation that it takes along


@dataclass(frozen=True)
class GangDecision:
    """What is to be done about one gang, in this order: let its pods go, then have others leave."""

    gang: str
    reason: str  # in one sentence
    releases: tuple[Release, ...] = ()
    victims: tuple[tuple[str, str], ...] = ()  # namespace and name of the pods that have to leave


@dataclass(frozen=True)
class GatedGang:
    """Pods that belong together, some of them gated."""

    name: str  # namespace/kind/name
    pods: tuple[Object, ...]  # active ones, by rank
    member: Member  # its first pod's part in it

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


def decide_gangs(
    nodes: Sequence[Object], pods: Sequence[Object], policy: Policy | str | Path, options: Options, at: float
) -> list[GangDecision]:
    """What is to be done now, for every gang that has gated pods.

    Parameters
    ----------
    nodes, pods : all Node and Pod objects of the cluster.
    policy, at : as for `PlacementEngine`.
    options : as for the importer of clusters.

    Raises
    ------
    InputError : a cluster that cannot be understood. What is wrong with one gang is the reason of its decision.
    """
    gangs, wrong = gated_gangs(pods)
    decisions = [GangDecision(name, reason) for name, reason in wrong.items()]
    known: list[tuple[GatedGang, Places | None]] = []
    for gang in gangs:
        try:
            known.append((gang, gang.places(options.gpu_resource)))
        except InputError as error:
            decisions.append(GangDecision(gang.name, str(error)))
    if known:
        given = {id(pod): host for _, places in known for pod, host in places or ()}
        look = _Look(nodes, pods, given, policy, options, at)
        decisions += [look.decision(gang, places) for gang, places in known]
    return decisions


class _Look:
    """The cluster at one moment, and the engine made from it; `given`: hosts by plan, by the `id` of the pod."""

    def __init__(
        self,
        nodes: Sequence[Object],
        pods: Sequence[Object],
        given: dict[int, str],
        policy: Policy | str | Path,
        options: Options,
        at: float,
    ) -> None:
        self.at, self.gpu_resource = at, options.gpu_resource
        self.node_of = {_host(node): str(node["metadata"]["name"]) for node in nodes}
        self.host_of = {node: host for host, node in self.node_of.items()}
        held = [_on_node(pod, self.node_of.get(given.get(id(pod)) or host_given(pod), "")) for pod in pods]
        objects = {"Node": [Field("cluster", node) for node in nodes], "Pod": [Field("cluster", pod) for pod in held]}
        self.cluster = read_kubernetes("cluster", objects, options)
        self.engine = PlacementEngine(self.cluster, policy, at=at)
        used = Counter[str]()
        for pod in (pod for job in self.cluster.jobs if not job.verification for pod in job.pods):
            used[pod.node] += pod.gpus
        up = [node for node in self.cluster.nodes if node.state == NodeState.UP]
        self.usable = {self.host_of[node.name] for node in up if used[node.name] <= node.gpus}  # hosts, not overbooked

    def decision(self, gang: GatedGang, places: Places | None) -> GangDecision:
        """What is to be done about a gang; `places` as of `GatedGang.places`."""
        try:
            return self._place(gang) if places is None else self._go_on(gang, places)
        except InputError as error:
            return GangDecision(gang.name, str(error))

    def _place(self, gang: GatedGang) -> GangDecision:
        """A gang that has no plan yet: all of it is placed, or it waits."""
        gated, size = gang.gated, gang.member.size
        if len(gated) < len(gang.pods):
            return GangDecision(gang.name, f"waits: {len(gang.pods) - len(gated)} of its pods run without a plan")
        if len(gated) != size:
            said = f"waits for its pods: {len(gated)} are there, and it says that it has {size}"
            return GangDecision(gang.name, said)
        if not all(map(is_ready_to_go, gated)):
            return GangDecision(gang.name, "waits for the other scheduling gates of its pods")
        job = parse_job(gang_job(gated, gang.member), gang.name, self.gpu_resource)
        answer = self.engine.place(job, at=self.at)
        if not isinstance(answer, Placed):
            self.engine.enqueue(job, at=self.at)  # those behind it leave it what the policy reserves
            return GangDecision(gang.name, answer.reason)
        plan: HostsByKind = {}
        for asked in job.pod_sets:
            bindings = [binding for binding in answer.bindings if binding.pod_set == asked.name]
            hosts = [self.host_of[binding.node] for binding in bindings for _ in range(binding.pods)]
            plan.setdefault(kind_of(asked.gpus_per_pod, asked.cpu, asked.memory), []).extend(hosts)
        text, left = write_plan(plan), {kind: iter(hosts) for kind, hosts in plan.items()}
        releases = tuple(Release(pod, next(left[kind_of_pod(pod, self.gpu_resource)]), text) for pod in gated)
        victims = tuple((entry.job.partition("/")[0], pod) for entry in answer.evictions for pod in entry.pods)
        return GangDecision(gang.name, f"placed on {len(answer.nodes)} nodes: {answer.why.rule}", releases, victims)

    def _go_on(self, gang: GatedGang, places: Places) -> GangDecision:
        """A gang with a plan: the pods that are still gated, or gated again, get the places that it has for them."""
        releases, lost = [], []
        plan = gang.plan() or {}
        for pod, host in ((pod, host) for pod, host in places if is_ready_to_go(pod)):
            if host in self.usable:
                releases.append(Release(pod, host, write_plan(plan)))
            elif host in self.node_of and (spare := self._spare(gang, pod, host)):
                hosts = plan[kind_of_pod(pod, self.gpu_resource)]
                hosts[hosts.index(host)] = spare
                releases.append(Release(pod, spare, write_plan(plan)))
            else:
                lost.append(host or "no place of the plan")
        reason = f"{len(releases)} pods go on with the plan of their gang"
        if lost:
            reason += f"; {len(lost)} wait, as there is no spare in the rack of {lost[0]}"
        return GangDecision(gang.name, reason, tuple(releases))

    def _spare(self, gang: GatedGang, pod: Object, host: str) -> str:
        """Another host of the same rack for one pod; empty if there is none."""
        level, namespace = self.cluster.nvlink_level, gang.name.partition("/")[0]
        rack = next((n.labels.get(level, "") for n in self.cluster.nodes if n.name == self.node_of[host]), "")
        bare = {**pod, "metadata": {"name": pod["metadata"]["name"], "namespace": namespace}}  # asks for no shape
        member = replace(gang.member, gang=f"{gang.name}/{bare['metadata']['name']}", size=1)
        alone = parse_job(gang_job([bare], member), gpu_resource=self.gpu_resource)
        wanted = {**alone.pod_sets[0].node_selector, level: rack}
        pods = replace(alone.pod_sets[0], mode=Mode.UNCONSTRAINED, level="", slices=(), node_selector=wanted)
        answer = self.engine.place(replace(alone, pod_sets=(pods,)), at=self.at) if rack else None
        return self.host_of[answer.nodes[0]] if isinstance(answer, Placed) else ""


def _host(node: Object) -> str:
    """The value of the node's host name label; its name where it has none."""
    return str((node["metadata"].get("labels") or {}).get(HOSTNAME) or node["metadata"]["name"])


def _on_node(pod: Object, node: str) -> Object:
    """The pod as if it were bound to the node, unless it is bound already or there is no node for it."""
    if not node or pod["spec"].get("nodeName"):
        return pod
    return {**pod, "spec": {**pod["spec"], "nodeName": node}}


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
