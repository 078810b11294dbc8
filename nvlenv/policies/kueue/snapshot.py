"""A cluster as one scheduling cycle sees it, and the placement of a workload's pod sets on it.

Kueue's `TASFlavorSnapshot`: what is free on each leaf; pod sets placed one after another, a leader together with its
workers; lost nodes replaced; elastic workloads resized.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace

from nvlenv.common.errors import InputError
from nvlenv.policies.kueue.counting import AssignmentParameters, Levels, fill_in_counts, less
from nvlenv.policies.kueue.search import Shortfall, assign_to_leaves
from nvlenv.policies.kueue.topology import Domain, TopologyTree
from nvlenv.policies.kueue.types import (
    Assignment,
    Failure,
    Gates,
    KueueNode,
    Layer,
    Path,
    PodSetRequest,
    Repair,
    Resources,
    Result,
    RunningPod,
    Toleration,
    TopologyMode,
    Usage,
)

_OVER = ("Succeeded", "Failed")  # phases in which a pod holds nothing any more


class Snapshot:
    """Nodes of one topology and flavor, less what runs on them.

    levels: node label keys, coarse to fine. topology: its name, for failure messages. flavor_labels: labels a node must
    carry. flavor_tolerations: added to those of every pod. running_pods: pods that no topology assignment stands for.
    usage: of admitted workloads; on a host topology that of all flavors which share the hosts. Raises InputError for
    levels or nodes no topology can have.
    """

    def __init__(
        self,
        levels: Sequence[str],
        nodes: Sequence[KueueNode],
        *,
        gates: Gates | None = None,
        topology: str = "default",
        flavor_labels: Mapping[str, str] | None = None,
        flavor_tolerations: Sequence[Toleration] = (),
        running_pods: Sequence[RunningPod] = (),
        usage: Sequence[Usage] = (),
    ) -> None:
        self.tree = TopologyTree(levels, nodes, flavor_labels or {})
        self.gates = gates or Gates()
        self.free: list[Resources] = [
            sum((Counter(node.allocatable) for node in leaf.nodes), Counter()) for leaf in self.tree.leaves
        ]
        self._topology, self._tolerations = topology, tuple(flavor_tolerations)
        for pod in running_pods:
            leaf = self.tree.leaf_by_node.get(pod.node or "")
            if leaf is not None and pod.phase not in _OVER:
                self.free[leaf.rank] = less(self.free[leaf.rank], pod.requests)
        for entry in usage:
            self.charge(entry)

    def charge(self, usage: Usage) -> None:
        """Take what the pods use from their leaf; a leaf that is gone holds nothing."""
        leaf = self.tree.leaf_at(usage.values)
        if leaf is not None:
            self.free[leaf.rank] = less(self.free[leaf.rank], usage.requests, usage.count)

    def assign(self, podsets: Sequence[PodSetRequest], repair: Repair | None = None) -> Result:
        """Place the pod sets of one workload in order, each seeing the ones before. The snapshot itself stays as it is.

        The first failure ends the run: later pod sets have no entry. With `repair` only the pods on the first
        unhealthy node are placed, and pod sets without an old assignment have no entry. Raises InputError for pod sets
        that no workload can have.
        """
        trial = copy(self)
        trial.free = list(self.free)
        result: Result = {}
        for members in _groups(podsets):
            if repair is not None and repair.unhealthy_nodes:
                found = trial._repair(members, repair)
            else:
                found = trial._place_group(members)
            result.update(found)
            if any(isinstance(outcome, Failure) for outcome in found.values()):
                break
        return result

    # One pod set, or a leader and its workers

    def _place_group(self, members: Sequence[PodSetRequest]) -> Result:
        """The larger of two are the workers, the first on a tie."""
        workers = max(members, key=lambda podset: podset.count)
        leader = next((podset for podset in members if podset is not workers), None)
        resized = self._resize(workers, leader) if self.gates.elastic else None
        if resized is not None:
            return resized
        placed = self._place(workers, leader)
        return {podset.name: placed if isinstance(placed, Failure) else placed[podset.name] for podset in members}

    def _place(
        self, workers: PodSetRequest, leader: PodSetRequest | None = None, within: Path = ()
    ) -> dict[str, Assignment] | Failure:
        """Assignments by pod set, charged. within: path of the domain in which the pods must stay."""
        parameters = AssignmentParameters.of(self.tree.levels, workers, leader, self.gates)
        if isinstance(parameters, Failure):
            return parameters
        if not self.tree.leaves:
            return Failure(f"no topology domains at level: {self.tree.levels[parameters.level]}")
        tolerations = (*workers.tolerations, *self._tolerations)
        levels, excluded = fill_in_counts(self.tree, self.free, parameters, tolerations, within)
        assigned = assign_to_leaves(levels, parameters)
        if isinstance(assigned, Shortfall):
            return Failure(self._not_fit(levels, parameters, assigned, excluded))
        placed = {workers.name: self._charged(workers, [(entry.state.domain, entry.pod_count) for entry in assigned])}
        if leader is not None:
            given = [(entry.state.domain, entry.leader_count) for entry in assigned]
            placed[leader.name] = self._charged(leader, given)
        return placed

    def _charged(self, podset: PodSetRequest, given: Sequence[tuple[Domain, int]]) -> Assignment:
        """The assignment of so many pods to each of some leaves, which are charged for them."""
        first = len(self.tree.levels) - 1 if self.tree.by_host else 0
        ordered = sorted(given, key=lambda entry: entry[0].rank)
        domains = tuple((leaf.path[first:], count) for leaf, count in ordered if count > 0)
        assignment = Assignment(self.tree.levels[first:], domains)
        self._charge_all(podset, assignment)
        return assignment

    def _charge_all(self, podset: PodSetRequest, assignment: Assignment) -> None:
        for values, count in assignment.domains:
            self.charge(Usage(values, podset.requests, count))

    def _not_fit(self, levels: Levels, parameters: AssignmentParameters, short: Shortfall, excluded: str) -> str:
        kind = "slice" if parameters.slice_size > 1 else "pod"
        if parameters.layers:
            said = f"doesn't allow to fit; {self._layers_fit(levels, parameters, short.level)}"
        elif short.fitting == 0:
            said = f"doesn't allow to fit any of {parameters.slice_count} {kind}(s)"
        else:
            said = f"allows to fit only {short.fitting} out of {parameters.slice_count} {kind}(s)"
        return f'topology "{self._topology}" {said}{excluded}'

    def _layers_fit(self, levels: Levels, parameters: AssignmentParameters, level: int) -> str:
        """For every layer, how many of its slices fit into the best domain of the searched level."""
        best = min(levels[level], key=lambda state: (-state.slice_count, self.tree.id_of(state.domain.path)))
        said = []
        for layer in parameters.layers:
            inside = [best]
            for _ in range(self.tree.levels.index(layer.level) - level):
                inside = [child for state in inside for child in state.children]
            fitting = sum(state.pod_count // layer.size for state in inside)
            wanted = parameters.workers.count // layer.size
            said.append(f"{fitting}/{wanted} slice(s) fit on level {layer.level}")
        return "; ".join(said)

    # Workloads that keep most of their pods: a lost node is replaced, an elastic workload grows or shrinks

    def _repair(self, members: Sequence[PodSetRequest], repair: Repair) -> Result:
        result: Result = {}
        for podset in members:
            old = repair.assignments.get(podset.name)
            if old is None:
                continue
            stays = self.gates.skip_pod_owned and repair.owned_by_single_pod
            result[podset.name] = found = old if stays else self._replace_node(podset, old, repair.unhealthy_nodes[0])
            if isinstance(found, Failure):
                break
        return result

    def _replace_node(self, podset: PodSetRequest, old: Assignment, node: str) -> Assignment | Failure:
        """The repaired assignment, of which only what is new is charged. The surviving pods never move.

        Where a single host is the domain to stay in (which no assignment that Kueue made asks for), the pods stay
        there; Kueue itself then finds no node, because it takes the host's name for a whole path.
        """
        missing = sum(count for values, count in old.domains if values[-1] == node)
        kept = Assignment(old.levels, tuple(entry for entry in old.domains if entry[0][-1] != node))
        stale = self._stale_domain(kept)
        if stale is not None:
            return Failure(
                "Cannot replace the node, because the existing topologyAssignment is invalid, "
                f"as it contains the stale domain {stale}"
            )
        request = podset.topology
        layers = request.slices if self.gates.multi_layer else request.slices[:1]
        within: Path | None
        if kept.domains and layers and all(layer.size > 0 for layer in layers) and missing % layers[0].size != 0:
            within = self._incomplete_domain(kept, layers, missing)
            if within is not None:  # the finest layer whose slices the missing pods fill is the only one; or none
                filled = [layer for layer in layers if missing % layer.size == 0]
                request = replace(request, slices=tuple(filled[-1:]))
        else:
            within = self._required_domain(kept, podset)
        placed = self._place(replace(podset, count=missing, topology=request), within=within or ())
        if isinstance(placed, Failure):
            return placed
        if not placed[podset.name].domains:
            return Failure(f"cannot find replacement assignment for unhealthy node: {node}")
        return self._merge(kept, placed[podset.name])

    def _stale_domain(self, assignment: Assignment) -> str | None:
        """The first leaf of the assignment that is gone, by its first value."""
        return next((values[0] for values, _ in assignment.domains if self.tree.leaf_at(values) is None), None)

    def _required_domain(self, kept: Assignment, podset: PodSetRequest) -> Path | None:
        """Where a required placement already stands: the domain of its first remaining leaf."""
        mode, level = podset.topology.mode, podset.topology.level
        if mode != TopologyMode.REQUIRED or not kept.domains or level not in self.tree.levels:
            return None
        return self._leaf_path(kept.domains[0][0])[: self.tree.levels.index(level) + 1]

    def _incomplete_domain(self, kept: Assignment, layers: Sequence[Layer], missing: int) -> Path | None:
        """The domain whose slice lost its pods: with the missing pods it holds whole slices again.

        The finest layer that the missing pods do not fill by themselves decides.
        """
        layer = next(layer for layer in reversed(layers) if missing % layer.size != 0)
        if layer.level not in self.tree.levels:
            return None
        depth = self.tree.levels.index(layer.level) + 1
        counts: Counter[Path] = Counter()
        for values, count in kept.domains:
            counts[self._leaf_path(values)[:depth]] += count
        return min((path for path, count in counts.items() if (count + missing) % layer.size == 0), default=None)

    def _resize(self, workers: PodSetRequest, leader: PodSetRequest | None) -> Result | None:
        """An elastic workload keeps its pods: only those it grows by are placed. It shrinks from its last leaf.

        None if it has no old assignment, or one with a leaf that is gone.
        """
        old = workers.previous
        old_leader = leader.previous if leader is not None else None
        if old is None or any(self._stale_domain(one) for one in (old, old_leader) if one is not None):
            return None
        domains, left = [], workers.count
        for values, pods in old.domains:
            if left > 0:
                domains.append((values, min(pods, left)))
            left -= pods
        kept = Assignment(old.levels, tuple(domains))
        result: Result = {workers.name: kept}
        self._charge_all(workers, kept)
        if leader is not None and old_leader is not None:
            result[leader.name] = old_leader
            self._charge_all(leader, old_leader)
        if left <= 0:
            return result
        placed = self._place(replace(workers, count=left), leader if old_leader is None else None)
        if isinstance(placed, Failure):
            return {workers.name: placed}
        return {**result, **placed, workers.name: self._merge(kept, placed[workers.name])}

    def _merge(self, one: Assignment, other: Assignment) -> Assignment:
        """Both assignments in one, in ascending order of the leaves; they must not be stale."""
        counts: Counter[Path] = Counter()
        for values, count in (*one.domains, *other.domains):
            counts[values] += count
        ordered = sorted(counts.items(), key=lambda entry: self._leaf_path(entry[0]))
        return Assignment(other.levels, tuple(ordered))

    def _leaf_path(self, values: Path) -> Path:
        leaf = self.tree.leaf_at(values)
        assert leaf is not None, "checked by _stale_domain"
        return leaf.path


def _groups(podsets: Sequence[PodSetRequest]) -> list[list[PodSetRequest]]:
    """Pod sets of one group together, in the order of their first members. Raises InputError for odd ones."""
    if len({podset.name for podset in podsets}) != len(podsets):
        raise InputError("workload", "pod sets", [podset.name for podset in podsets], "a name of its own for each")
    groups: dict[object, list[PodSetRequest]] = {}
    for index, podset in enumerate(podsets):
        if podset.count < 0:
            raise InputError("workload", f"{podset.name}.count", podset.count, "0 or more")
        groups.setdefault(index if podset.group is None else podset.group, []).append(podset)
    for members in groups.values():
        if len(members) > 2:
            raise InputError("workload", "group", [podset.name for podset in members], "a leader and its workers")
    return list(groups.values())
