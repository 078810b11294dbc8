"""From the nodes and pods of a cluster to what shall be done: which gated pods go where, and who has to leave.

A pure function of the objects. The engine is made anew for every pass, so that it sees what the API server sees: jobs
that ended have given back their nodes, and pods that were let go but do not run yet hold theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nvlenv.cluster.types import Mode
from nvlenv.common.errors import InputError
from nvlenv.engine.core.engine import PlacementEngine
from nvlenv.engine.formats.document import Field
from nvlenv.engine.formats.gangs import gang_job
from nvlenv.engine.formats.kubernetes import read_kubernetes
from nvlenv.engine.formats.load import parse_job
from nvlenv.engine.gate.gangs import (
    GatedGang,
    HostsByKind,
    Object,
    Places,
    gated_gangs,
    host_given,
    is_ready_to_go,
    kind_of,
    kind_of_pod,
    write_plan,
)
from nvlenv.engine.model.answers import Placed
from nvlenv.engine.model.snapshot import NodeState, Options
from nvlenv.policies.kueue.types import HOSTNAME
from nvlenv.simulator.decision import Policy


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
        self, nodes: Sequence[Object], pods: Sequence[Object], given: dict[int, str], policy: Policy | str | Path,
        options: Options, at: float,
    ) -> None:  # fmt: skip
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
        level = self.cluster.nvlink_level
        rack = next((n.labels.get(level, "") for n in self.cluster.nodes if n.name == self.node_of[host]), "")
        bare = {**pod, "metadata": {"name": pod["metadata"]["name"], "namespace": gang.namespace}}  # asks for no shape
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
