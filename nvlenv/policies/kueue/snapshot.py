"""A cluster as one scheduling cycle sees it: nodes, what is used on them, and pod sets placed one after another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from nvlenv.common.errors import InputError
from nvlenv.policies.kueue.placement import Ground, place
from nvlenv.policies.kueue.repair import merge, replace_node, stale_domain, truncate
from nvlenv.policies.kueue.topology import Tree
from nvlenv.policies.kueue.types import (
    PODS,
    Assignment,
    Failure,
    Gates,
    Node,
    PodSet,
    Repair,
    Resources,
    Result,
    RunningPod,
    Toleration,
    Usage,
)

_OVER = ("Succeeded", "Failed")  # phases in which a pod holds nothing any more


class Snapshot:
    """Nodes of one topology and flavor, less what runs on them.

    levels: node label keys, coarse to fine. flavor_labels: labels a node must carry. flavor_tolerations: added to those
    of every pod. running_pods: pods that no topology assignment stands for. usage: of admitted workloads; on a host
    topology that of all flavors which share the hosts. Raises InputError for levels or nodes no topology can have.
    """

    def __init__(
        self,
        levels: Sequence[str],
        nodes: Sequence[Node],
        *,
        topology: str = "default",
        flavor_labels: Mapping[str, str] | None = None,
        flavor_tolerations: Sequence[Toleration] = (),
        running_pods: Sequence[RunningPod] = (),
        usage: Sequence[Usage] = (),
    ) -> None:
        self.tree = Tree(levels, nodes, flavor_labels or {})
        self.topology = topology
        self.tolerations = tuple(flavor_tolerations)
        self.free: list[Resources] = [_sum(node.allocatable for node in leaf.nodes) for leaf in self.tree.leaves]
        for pod in running_pods:
            leaf = self.tree.leaf_by_node.get(pod.node or "")
            if leaf is not None and pod.phase not in _OVER:
                self.free[leaf.rank] = _less(self.free[leaf.rank], pod.requests, 1)
        for entry in usage:
            _charge(self.tree, self.free, entry)

    def assign(self, podsets: Sequence[PodSet], gates: Gates | None = None, repair: Repair | None = None) -> Result:
        """Place the pod sets of one workload in order, each seeing the ones before. The snapshot itself stays as it is.

        The first failure ends the run: later pod sets have no entry. With `repair` only the pods on the first
        unhealthy node are placed, and pod sets without an old assignment have no entry. Raises InputError for pod sets
        that no workload can have.
        """
        _check_podsets(podsets)
        ground = Ground(self.tree, list(self.free), self.topology, self.tolerations, gates or Gates())
        result: Result = {}
        for members in _groups(podsets):
            if repair is not None and repair.unhealthy_nodes:
                found = _repaired(ground, members, repair)
            else:
                found = _placed(ground, members)
            result.update(found)
            if any(isinstance(outcome, Failure) for outcome in found.values()):
                break
        return result


def assign(
    levels: Sequence[str],
    nodes: Sequence[Node],
    podsets: Sequence[PodSet],
    gates: Gates | None = None,
    *,
    topology: str = "default",
    flavor_labels: Mapping[str, str] | None = None,
    flavor_tolerations: Sequence[Toleration] = (),
    running_pods: Sequence[RunningPod] = (),
    usage: Sequence[Usage] = (),
    repair: Repair | None = None,
) -> Result:
    """One workload on one cluster: pod set name -> Assignment or Failure. See `Snapshot` for the arguments."""
    snapshot = Snapshot(
        levels,
        nodes,
        topology=topology,
        flavor_labels=flavor_labels,
        flavor_tolerations=flavor_tolerations,
        running_pods=running_pods,
        usage=usage,
    )
    return snapshot.assign(podsets, gates, repair)


def _placed(ground: Ground, members: Sequence[PodSet]) -> Result:
    """A pod set alone, or leader and workers: the larger one are the workers, the first on a tie."""
    workers = max(members, key=lambda podset: podset.count)
    leader = next((podset for podset in members if podset is not workers), None)
    if ground.gates.elastic and workers.previous is not None:
        found = _resized(ground, workers, leader, workers.previous)
        if found is not None:
            return found
    placed = place(ground, workers, leader)
    if isinstance(placed, Failure):
        return {podset.name: placed for podset in members}
    for podset in members:
        _charge_assignment(ground, podset, placed[podset.name])
    return {podset.name: placed[podset.name] for podset in members}


def _repaired(ground: Ground, members: Sequence[PodSet], repair: Repair) -> Result:
    result: Result = {}
    for podset in members:
        old = repair.assignments.get(podset.name)
        if old is None:
            continue
        if ground.gates.skip_pod_owned and repair.owned_by_single_pod:
            result[podset.name] = old
            continue
        found = replace_node(ground, podset, old, repair.unhealthy_nodes[0])
        if isinstance(found, Failure):
            result[podset.name] = found
            break
        result[podset.name], new = found
        _charge_assignment(ground, podset, new)
    return result


def _resized(ground: Ground, workers: PodSet, leader: PodSet | None, old: Assignment) -> Result | None:
    """An elastic workload keeps its pods: only those it grows by are placed. None if an old leaf is gone."""
    old_leader = leader.previous if leader is not None else None
    if any(stale_domain(ground.tree, assignment) for assignment in (old, old_leader) if assignment is not None):
        return None
    kept = truncate(old, workers.count)
    result: Result = {workers.name: kept}
    _charge_assignment(ground, workers, kept)
    if leader is not None and old_leader is not None:
        result[leader.name] = old_leader
        _charge_assignment(ground, leader, old_leader)
    if workers.count <= old.pods:
        return result
    newcomers = replace(workers, count=workers.count - old.pods)
    placed = place(ground, newcomers, leader if old_leader is None else None)
    if isinstance(placed, Failure):
        return {workers.name: placed}
    for podset in (newcomers, leader):
        if podset is not None and podset.name in placed:
            _charge_assignment(ground, podset, placed[podset.name])
    return {**result, **placed, workers.name: merge(ground.tree, kept, placed[workers.name])}


def _groups(podsets: Sequence[PodSet]) -> list[list[PodSet]]:
    """Pod sets of one group together, in the order of their first members."""
    first = {podset.group: index for index, podset in reversed(list(enumerate(podsets))) if podset.group is not None}
    keyed = [(index if podset.group is None else first[podset.group], podset) for index, podset in enumerate(podsets)]
    ordered = sorted(keyed, key=lambda entry: entry[0])
    return [[podset for _, podset in members] for _, members in groupby(ordered, key=lambda entry: entry[0])]


def _check_podsets(podsets: Sequence[PodSet]) -> None:
    if len({podset.name for podset in podsets}) != len(podsets):
        raise InputError("workload", "pod sets", [podset.name for podset in podsets], "a name of its own for each")
    for podset in podsets:
        if podset.count < 0:
            raise InputError("workload", f"{podset.name}.count", podset.count, "0 or more")
    for members in _groups(podsets):
        if len(members) > 2:
            raise InputError("workload", "group", [podset.name for podset in members], "a leader and its workers")


def _charge_assignment(ground: Ground, podset: PodSet, assignment: Assignment) -> None:
    for values, count in assignment.domains:
        _charge(ground.tree, ground.free, Usage(values, podset.requests, count))


def _charge(tree: Tree, free: list[Resources], usage: Usage) -> None:
    """Take what the pods use from their leaf; a leaf that is gone holds nothing."""
    leaf = tree.leaf_at(usage.values)
    if leaf is not None:
        free[leaf.rank] = _less(free[leaf.rank], usage.requests, usage.count)


def _less(free: Resources, requests: Resources, pods: int) -> Resources:
    """What `pods` pods leave; they take one unit of `pods` each, besides what they request."""
    left = dict(free)
    for name, quantity in requests.items():
        left[name] = left.get(name, 0) - quantity * pods
    left[PODS] = left.get(PODS, 0) - pods
    return left


def _sum(parts: Iterable[Resources]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, quantity in part.items():
            total[name] = total.get(name, 0) + quantity
    return total
