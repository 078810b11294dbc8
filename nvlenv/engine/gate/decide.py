"""From the nodes and pods of a cluster to what shall be done: which gated pods go where, and who has to leave.

A pure function of the objects. The engine is made anew for every pass, so that it sees what the API server sees: jobs
that ended have given back their nodes, and pods that were let go but do not run yet hold theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nvlenv.cluster.types import Mode
from nvlenv.common.errors import InputError
from nvlenv.engine.core.engine import PlacementEngine
from nvlenv.engine.formats.document import Field
from nvlenv.engine.formats.gangs import gang_job
from nvlenv.engine.formats.kubernetes import read_kubernetes
from nvlenv.engine.formats.load import parse_job
from nvlenv.engine.gate.marks import HostsByKind, PodObject, host_given, is_ready_to_go, kind_of, plan_of, write_plan
from nvlenv.engine.gate.roster import GatedGang, gated_gangs, kind_of_pod
from nvlenv.engine.model.answers import Placed
from nvlenv.engine.model.jobs import Job
from nvlenv.engine.model.snapshot import NodeState, Options
from nvlenv.policies.kueue.types import HOSTNAME
from nvlenv.simulator.decision import Policy

Places = list[tuple[PodObject, str]]  # pods and their hosts


@dataclass(frozen=True)
class Release:
    """A pod that may go to its host."""

    pod: PodObject
    host: str
    plan: str  # the annotation that it takes along


@dataclass(frozen=True)
class GangDecision:
    """What is to be done about one gang, in this order: let its pods go, then have others leave."""

    gang: str
    reason: str  # in one sentence
    releases: tuple[Release, ...] = ()
    victims: tuple[tuple[str, str], ...] = ()  # namespace and name of the pods that have to leave


def decide_gangs(
    nodes: Sequence[dict[str, Any]], pods: Sequence[PodObject], policy: Policy | str | Path, options: Options, at: float
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
        look = _Look(nodes, pods, [place for _, places in known for place in places or ()], policy, options, at)
        decisions += [look.decision(gang, places) for gang, places in known]
    return decisions


class _Look:
    """The cluster at one moment, and the engine made from it."""

    def __init__(
        self,
        nodes: Sequence[dict[str, Any]],
        pods: Iterable[PodObject],
        places: Places,
        policy: Policy | str | Path,
        options: Options,
        at: float,
    ) -> None:
        self.at, self.gpu_resource = at, options.gpu_resource
        self.node_of = {_host(node): str(node["metadata"]["name"]) for node in nodes}
        self.host_of = {node: host for host, node in self.node_of.items()}
        given = {id(pod): host for pod, host in places}
        held = [_on_node(pod, self.node_of.get(given.get(id(pod)) or host_given(pod), "")) for pod in pods]
        objects = {"Node": [Field("cluster", node) for node in nodes], "Pod": [Field("cluster", pod) for pod in held]}
        self.cluster = read_kubernetes("cluster", objects, options)
        self.engine = PlacementEngine(self.cluster, policy, at=at)
        self.usable = self._usable()

    def _usable(self) -> set[str]:
        """Hosts of nodes that are up and not overbooked."""
        used: dict[str, int] = {}
        for pod in (pod for job in self.cluster.jobs if not job.verification for pod in job.pods):
            used[pod.node] = used.get(pod.node, 0) + pod.gpus
        up = [node for node in self.cluster.nodes if node.state == NodeState.UP]
        return {self.host_of[node.name] for node in up if used.get(node.name, 0) <= node.gpus}

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
            return GangDecision(
                gang.name, f"waits for its pods: {len(gated)} are there, and it says that it has {size}"
            )
        if not all(map(is_ready_to_go, gated)):
            return GangDecision(gang.name, "waits for the other scheduling gates of its pods")
        job = parse_job(gang_job(gated, gang.member), gang.name, self.gpu_resource)
        answer = self.engine.place(job, at=self.at)
        if not isinstance(answer, Placed):
            self.engine.enqueue(job, at=self.at)  # those behind it leave it what the policy reserves
            return GangDecision(gang.name, answer.reason)
        plan = self._plan(job, answer)
        text, left = write_plan(plan), {kind: iter(hosts) for kind, hosts in plan.items()}
        hosts = [next(left[kind_of_pod(pod, self.gpu_resource)]) for pod in gated]
        releases = tuple(Release(pod, host, text) for pod, host in zip(gated, hosts, strict=True))
        victims = tuple((entry.job.partition("/")[0], pod) for entry in answer.evictions for pod in entry.pods)
        return GangDecision(gang.name, f"placed on {len(answer.nodes)} nodes: {answer.why.rule}", releases, victims)

    def _plan(self, job: Job, answer: Placed) -> HostsByKind:
        plan: HostsByKind = {}
        for pods in job.pod_sets:
            bindings = [binding for binding in answer.bindings if binding.pod_set == pods.name]
            hosts = [self.host_of[binding.node] for binding in bindings for _ in range(binding.pods)]
            plan.setdefault(kind_of(pods.gpus_per_pod, pods.cpu, pods.memory), []).extend(hosts)
        return plan

    def _go_on(self, gang: GatedGang, places: Places) -> GangDecision:
        """A gang with a plan: the pods that are still gated, or gated again, get the places that it has for them."""
        releases, lost = [], []
        plan = plan_of(gang.pods) or {}
        for pod, host in ((pod, host) for pod, host in places if is_ready_to_go(pod)):
            if host in self.usable:
                releases.append(Release(pod, host, write_plan(plan)))
                continue
            spare = self._spare(gang, pod, host) if host in self.node_of else ""
            if not spare:
                lost.append(host or "no place of the plan")
                continue
            hosts = plan[kind_of_pod(pod, self.gpu_resource)]
            hosts[hosts.index(host)] = spare
            releases.append(Release(pod, spare, write_plan(plan)))
        reason = f"{len(releases)} pods go on with the plan of their gang"
        if lost:
            reason += f"; {len(lost)} wait, as there is no spare in the rack of {lost[0]}"
        return GangDecision(gang.name, reason, tuple(releases))

    def _spare(self, gang: GatedGang, pod: PodObject, host: str) -> str:
        """Another host of the same rack for one pod; empty if there is none."""
        level = self.cluster.nvlink_level
        rack = next((n.labels.get(level, "") for n in self.cluster.nodes if n.name == self.node_of[host]), "")
        bare = {**pod, "metadata": {"name": pod["metadata"]["name"], "namespace": gang.namespace}}  # asks for no shape
        member = replace(gang.member, gang=f"{gang.name}/{bare['metadata']['name']}", size=1)
        alone = parse_job(gang_job([bare], member), gpu_resource=self.gpu_resource)
        wanted = {**alone.pod_sets[0].node_selector, level: rack}
        pods = replace(alone.pod_sets[0], mode=Mode.UNCONSTRAINED, level="", slices=(), node_selector=wanted)
        answer = self.engine.place(replace(alone, pod_sets=(pods,)), at=self.at) if rack else None
        return self.host_of[answer.nodes[0]] if isinstance(answer, Placed) else ""


def _host(node: dict[str, Any]) -> str:
    """The value of the node's host name label; its name where it has none."""
    return str((node["metadata"].get("labels") or {}).get(HOSTNAME) or node["metadata"]["name"])


def _on_node(pod: PodObject, node: str) -> PodObject:
    """The pod as if it were bound to the node, unless it is bound already or there is no node for it."""
    if not node or pod["spec"].get("nodeName"):
        return pod
    return {**pod, "spec": {**pod["spec"], "nodeName": node}}
