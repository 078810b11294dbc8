"""The running jobs of an engine by name: their pods, what these hold of each node, and those that only test nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from nvlenv.engine.answers import Binding
from nvlenv.engine.reserves import Reserves
from nvlenv.engine.snapshot import ClusterSnapshot, Job, NodeState, Pod


@dataclass(frozen=True)
class Held:
    """A job with nodes."""

    job: Job
    bindings: tuple[Binding, ...] = ()  # of a job that this engine placed
    speed: float = 1.0

    @property
    def ours(self) -> bool:
        """True if this engine placed it, so that it can be placed again."""
        return bool(self.bindings)


class Book:
    """Verification pods hold nothing; everything else holds cpu, memory and a place among the pods of its node."""

    def __init__(self, cluster: ClusterSnapshot) -> None:
        self._cluster = cluster
        self._state = {node.name: node.state for node in cluster.nodes}
        self.reserves = Reserves(cluster.nodes)
        self.jobs: dict[str, Held] = {}
        self._on: dict[str, dict[str, None]] = {}  # node -> jobs with pods there, in the order in which they came
        for job in cluster.jobs:
            self.add(Held(job))

    def name(self, number: int) -> str:
        return self._cluster.nodes[number].name

    def number(self, name: str) -> int:
        return self.reserves.index[name]

    def state(self, node: str) -> NodeState:
        return self._state[node]

    def set_state(self, node: str, state: NodeState) -> None:
        self._state[node] = state

    def add(self, held: Held) -> None:
        """A job that runs. One of its id takes the place of the other."""
        self.remove(held.job.id)
        self.jobs[held.job.id] = held
        if not held.job.verification:
            self.reserves.take(held.job)
        for pod in held.job.pods:
            self._on.setdefault(pod.node, {})[held.job.id] = None

    def remove(self, job: str) -> Held | None:
        held = self.jobs.pop(job, None)
        if held is None:
            return None
        if not held.job.verification:
            self.reserves.give_back(held.job)
        for node in held.job.nodes:
            self._on[node].pop(job, None)
        return held

    def on(self, node: str, verification: bool = False) -> list[Held]:
        """The jobs with pods on a node; with `verification`, only those that test it, else only the others."""
        found = (self.jobs[job] for job in self._on.get(node, ()))
        return [held for held in found if held.job.verification == verification]

    def stop_verification(self, node: str) -> list[tuple[str, tuple[Pod, ...]]]:
        """End the pods that test a node. Returns their jobs, and of each its pods there."""
        return [(held.job.id, self.end_pods(held, node)) for held in self.on(node, verification=True)]

    def end_pods(self, held: Held, node: str) -> tuple[Pod, ...]:
        """End the pods of a job on one node, not those on others. Returns them."""
        rest = tuple(pod for pod in held.job.pods if pod.node != node)
        self.remove(held.job.id)
        if rest:
            self.add(replace(held, job=replace(held.job, pods=rest)))
        return tuple(pod for pod in held.job.pods if pod.node == node)

    def snapshot(self) -> ClusterSnapshot:
        """The cluster with the jobs and node states of now."""
        nodes = tuple(
            node if node.state == self._state[node.name] else replace(node, state=self._state[node.name])
            for node in self._cluster.nodes
        )
        jobs = tuple(self.jobs[job].job for job in sorted(self.jobs))
        return replace(self._cluster, nodes=nodes, jobs=jobs)


def names(pods: Iterable[Pod]) -> tuple[str, ...]:
    """Names of the pods that have one."""
    return tuple(pod.name for pod in pods if pod.name)
