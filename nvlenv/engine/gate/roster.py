"""The gangs that have gated pods, and the places that the plans of half-done ones still have for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from nvlenv.common.errors import InputError
from nvlenv.engine.formats.document import Field
from nvlenv.engine.formats.gangs import Member, read_member
from nvlenv.engine.formats.values import pod_demand
from nvlenv.engine.gate.marks import GATE, PodObject, gates_of, host_given, is_active, kind_of, plan_of


@dataclass(frozen=True)
class GatedGang:
    """Pods that belong together, some of them gated."""

    name: str  # namespace/kind/name
    pods: tuple[PodObject, ...]  # active ones, by rank
    member: Member  # its first pod's part in it

    @property
    def namespace(self) -> str:
        """Of all its pods."""
        return self.name.partition("/")[0]

    @property
    def gated(self) -> list[PodObject]:
        """Its pods that wait for the gate, by rank."""
        return [pod for pod in self.pods if GATE in gates_of(pod)]

    @property
    def turn(self) -> tuple[int, str, str]:
        """Higher priority first, then older ones."""
        first = min(str(pod["metadata"].get("creationTimestamp")) for pod in self.pods)
        return -max(int(pod["spec"].get("priority") or 0) for pod in self.pods), first, self.name

    def places(self, gpu_resource: str) -> list[tuple[PodObject, str]] | None:
        """The host of each gated pod by the plan of the gang, "" where none is left; None without a plan.

        Places and pods are both in order of rank, so whoever is left gets what it was given in the first place.
        """
        plan = plan_of(self.pods)
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


def gated_gangs(pods: Sequence[PodObject]) -> tuple[list[GatedGang], dict[str, str]]:
    """The gangs with gated pods, by turn, and what is wrong with gated pods that belong to none."""
    members: dict[str, list[tuple[Member, PodObject]]] = {}
    wrong: dict[str, str] = {}
    if not any(GATE in gates_of(pod) for pod in pods):  # by far the most passes
        return [], {}
    for pod in filter(is_active, pods):
        try:
            member = read_member(Field("cluster", pod))
        except InputError as error:
            if GATE in gates_of(pod):
                wrong[f"{pod['metadata'].get('namespace', 'default')}/pod/{pod['metadata']['name']}"] = str(error)
            continue
        members.setdefault(member.gang, []).append((member, pod))
    gangs = []
    for name, entries in members.items():
        entries.sort(key=lambda entry: (entry[0].rank, entry[0].name))
        gangs.append(GatedGang(name, tuple(pod for _, pod in entries), entries[0][0]))
    return sorted((gang for gang in gangs if gang.gated), key=lambda gang: gang.turn), wrong


def kind_of_pod(pod: PodObject, gpu_resource: str) -> str:
    """The kind of a pod, by what its containers ask for."""
    demand = pod_demand(Field("cluster", pod)["spec"], gpu_resource)
    return kind_of(demand.gpus, demand.cpu, demand.memory)
