"""Jobs that lose their nodes: to a job of higher priority, or to a failure.

Which jobs give their GPUs is chosen by the simulator (`nvlenv.simulator.preemption`), when the policy opens a rack.
Here follow those that hold the cpu, memory or places which are missing beside free GPUs, what all of it costs, and a
failed node, whose jobs go on with spares of the same rack, where every link is as fast as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from nvlenv.engine.core.book import Book, Need, need_of
from nvlenv.engine.core.kernels import swap
from nvlenv.engine.core.live import Live
from nvlenv.engine.core.parts import Part
from nvlenv.engine.model.answers import Binding, Eviction, Loss, NodeLoss, Replacement
from nvlenv.engine.model.jobs import Job, Pod
from nvlenv.simulator.events import evict
from nvlenv.simulator.state import RUNNING, WAITING, Sim

# Victims of a job of higher priority


def gives_way(live: Live, priority: int, victim: Job) -> bool:
    """The simulator's rule, for jobs with and without GPUs: lower priority, preemptible, not evicted too often."""
    if victim.verification or not victim.preemptible or victim.priority >= priority:
        return False
    evictions, rows = live.sim.jobs["evictions"], live.rows.get(victim.id, ())
    return all(int(evictions[row]) < live.settings.max_evictions for row in rows)


def evict_job(live: Live, job: Job, reason: Loss, cost: float = 0.0) -> Eviction:
    """A whole job leaves; what still runs of it ends now. `cost` is what it has lost so far, in GPU-hours."""
    for row in live.rows.get(job.id, ()):
        if live.sim.jobs["status"][row] == RUNNING:
            cost += live.work_lost(row)
            evict(live.sim, row)
    return job.eviction(reason, cost)


def evicted_and_moved(before: Sim, live: Live) -> tuple[dict[str, float], dict[str, float]]:
    """Jobs that the simulator evicted since `before`, and jobs that it moved, with the GPU-hours that each lost."""
    old, new, n = before.jobs, live.sim.jobs, len(before.jobs)
    cost = (new["lost"][:n] - old["lost"]) * new["gpus"][:n]
    ran = old["status"] == RUNNING
    evicted = np.flatnonzero(ran & (new["status"][:n] == WAITING))
    touched = np.unique(before.gpu_job[before.gpu_job != live.sim.gpu_job])
    moved = [int(row) for row in touched if row >= 0 and ran[row] and new["status"][row] == RUNNING]

    def by_job(rows: Iterable[int]) -> dict[str, float]:
        found: dict[str, float] = {}
        for row in rows:
            name = live.name_of(row)
            found[name] = found.get(name, 0.0) + float(cost[row])
        return found

    return by_job(evicted.tolist()), by_job(moved)


def moved_have_room(live: Live, book: Book, moved: Iterable[str]) -> bool:
    """True if the nodes to which jobs were moved let them in and have the cpu, memory and places for them."""
    for name in moved:
        job = book.jobs[name]
        pod = job.pods[0]
        for node, gpus in live.gpus_of(live.rows[name][0]).items():
            need = need_of([pod]) * (gpus // max(1, pod.gpus))
            if book.resources.repels(node, job.nodes) or not book.resources.has_room(node, need):
                return False
    return True


def resource_victims(
    live: Live, book: Book, job: Job, part: Part, pods: Mapping[int, int], leaving: Iterable[str], placed: list[Pod]
) -> list[Job] | None:
    """Jobs that must leave beside those already leaving, so that nodes have the cpu, memory and places that it needs.

    Parameters
    ----------
    part, pods : of the job that comes: how many pods of this part would go to each node.
    leaving : ids of the jobs that leave anyway.
    placed : pods of the job that have their places already.

    Returns None if not even all that it may evict would be enough.
    """
    victims: dict[str, Job] = {}
    leaving = set(leaving)
    for node, count in pods.items():
        name = book.names[node]
        here = book.on(name)
        gone = [pod for other in here if other.id in leaving or other.id in victims for pod in other.pods]
        need = np.array([part.cpu, part.memory, part.fused], np.object_) * count + need_of(placed, name)
        stay = [other for other in here if other.id not in leaving and other.id not in victims]
        candidates = [other for other in stay if gives_way(live, job.priority, other)]
        found = _fewest(book, node, need - need_of(gone, name), candidates)
        if found is None:
            return None
        victims.update({victim.id: victim for victim in found})
    return list(victims.values())


def _fewest(book: Book, node: int, need: Need, candidates: list[Job]) -> list[Job] | None:
    """Of these jobs as few and as cheap as possible, so that a node has what is needed; None: all are too few.

    The lowest priority goes first, then the smallest; whoever turns out not to be needed stays.
    """
    resources, name, chosen = book.resources, book.names[node], []
    for job in sorted(candidates, key=lambda job: (job.priority, job.gpus, job.id)):
        gives = need_of(job.pods, name)
        if any(lack and gift for lack, gift in zip(resources.shortage(node, need), gives, strict=True)):
            chosen.append(job)
            need = need - gives
    if not resources.has_room(node, need):
        return None
    for job in list(chosen):
        without = need + need_of(job.pods, name)
        if resources.has_room(node, without):
            chosen.remove(job)
            need = without
    return chosen


# A node fails


def replace_node(live: Live, book: Book, node: str) -> NodeLoss:
    """Swap or evict every job on a node that takes no pods any more; the larger jobs choose their spares first.

    Of jobs without GPUs only the pods on the node end, at once. Evicted jobs with GPUs are still in the book.
    """
    rack = int(live.spec.node_rack[book.number[node]])
    replaced, evictions = [], []
    for job in sorted(book.on(node), key=lambda job: (-job.gpus, job.id)):
        if not job.gpus:  # pods that need no link to each other, and no rack
            book.end_pods(job, node)
            evictions.append(job.eviction(Loss.FAILED, node=node))
            continue
        spares = fit_in_rack(live, book, rack, job.pods_on(node))
        if spares is not None:
            replaced.append(_swap(live, book, job, node, spares))
            continue
        evictions.append(evict_job(live, job, Loss.FAILED))
        for row in live.rows.get(job.id, ()):
            live.sim.jobs["evictions"][row] -= 1  # as in the simulator, failures are not counted against it
    return NodeLoss(node, tuple(replaced), tuple(evictions))


def _swap(live: Live, book: Book, job: Job, node: str, places: list[int]) -> Replacement:
    """The job's pods on a node go to these places, first in the arrays, then in the book."""
    number, gone = book.number[node], job.pods_on(node)
    room = dict.fromkeys(places, 0)
    for place, pod in zip(places, gone, strict=True):
        room[place] += pod.gpus
    cost = 0.0
    for row in live.rows.get(job.id, ()):
        # Of a crowded node the row of a job that was there before may have less than its pods hold.
        here = live.gpus_of(row).get(number, 0) if job.ours else sum(room.values())
        if not here:
            continue
        cost += live.work_lost(row)
        gpus = {}
        for place in room:
            gpus[place] = min(here, room[place])
            room[place] -= gpus[place]
            here -= gpus[place]
        move_gpus(live, row, number, gpus)
    spares = [book.names[place] for place in places]
    left = iter(spares)
    pods = tuple(replace(pod, node=next(left)) if pod.node == node else pod for pod in job.pods)
    book.add(replace(job, pods=pods, bindings=_rebound(job, node, spares, book)))
    return Replacement(job.id, live.rack_of(number), node, bindings_of(live, book, gone, places), cost)


def _rebound(job: Job, node: str, spares: list[str], book: Book) -> tuple[Binding, ...]:
    """The bindings with those on the failed node on its spares, in the order of their pod sets and nodes."""
    left, bindings = iter(spares), []
    for binding in job.bindings:
        if binding.node != node:
            bindings.append(binding)
            continue
        each = binding.gpus // binding.pods
        bindings += [replace(binding, node=next(left), pods=1, gpus=each) for _ in range(binding.pods)]
    order = list(dict.fromkeys(binding.pod_set for binding in job.bindings))
    return tuple(sorted(bindings, key=lambda binding: (order.index(binding.pod_set), book.number[binding.node])))


# Pods that go elsewhere


def fit_in_rack(
    live: Live, book: Book, rack: int, pods: Sequence[Pod], coming: Sequence[Pod] = (), taken: Sequence[Pod] = ()
) -> list[int] | None:
    """The tightest nodes of a rack for these pods, as they come; None: some pod finds none.

    `coming` are other pods that go to nodes where the book does not have them yet, and `taken` those of them that the
    arrays do not have there either.
    """
    sim, places = live.sim, []
    inside = range(int(sim.racks["node0"][rack]), int(sim.racks["node1"][rack]))
    free = {node: int(sim.nodes["free"][node]) for node in inside if sim.nodes["blocked"][node] == 0}
    for pod in taken:
        if book.number[pod.node] in free:
            free[book.number[pod.node]] -= pod.gpus
    coming = list(coming)
    for pod in pods:
        good = [node for node in free if free[node] >= pod.gpus and _lets_in(book, node, pod, coming)]
        if not good:
            return None
        best = min(good, key=lambda node: (free[node], node))
        free[best] -= pod.gpus
        coming.append(replace(pod, node=book.names[best]))
        places.append(best)
    return places


def _lets_in(book: Book, node: int, pod: Pod, coming: Sequence[Pod]) -> bool:
    """True if a node has the cpu, memory and place for a pod beside those that come, and no taint new to it."""
    need = need_of([pod]) + need_of(coming, book.names[node])
    return not book.resources.repels(node, [pod.node]) and book.resources.has_room(node, need)


def move_gpus(live: Live, row: int, node: int, to: Mapping[int, int]) -> None:
    """What a row holds on a node goes to other nodes: so many GPUs to each."""
    swap(live.sim, row, node, np.array(list(to), np.int32), np.array(list(to.values()), np.int32))


def bindings_of(live: Live, book: Book, pods: Sequence[Pod], places: Sequence[int]) -> tuple[Binding, ...]:
    """Pods and their nodes, of no pod set that is known, as bindings node by node."""
    bindings = []
    for place in dict.fromkeys(places):
        here = [pod for pod, other in zip(pods, places, strict=True) if other == place]
        bindings.append(Binding("", book.names[place], live.rack_of(place), len(here), sum(pod.gpus for pod in here)))
    return tuple(bindings)
