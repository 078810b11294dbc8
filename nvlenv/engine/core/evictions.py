"""Who has to leave: for a job of higher priority (`make_way`), or because a node fails (`replace_node`).

Which jobs give their GPUs is chosen by the simulator (`nvlenv.simulator.preemption`), when the policy opens a rack.
Here follow those that hold the cpu, memory or places which are missing beside free GPUs, and what all of it costs.
Jobs of a failed node go on with spares of the same rack, where every link is as fast as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from nvlenv.engine.core.book import Book, Need, need_of
from nvlenv.engine.core.live import Live, Part
from nvlenv.engine.model.answers import Binding, Eviction, Loss, NodeLoss, Replacement
from nvlenv.engine.model.jobs import Job, Pod
from nvlenv.simulator.events import evict
from nvlenv.simulator.state import RUNNING, WAITING, Sim

# For a job that comes


def make_way(
    live: Live, book: Book, job: Job, part: Part, row: int, placed: Sequence[Pod], before: Sim | None
) -> list[Eviction] | None:
    """Everybody who loses nodes to a part that has just got its own; None: they still lack cpu, memory or places.

    Parameters
    ----------
    job, part, row : who comes.
    placed : pods of the job that have their places already.
    before : the arrays before racks were opened for it, None if none was.
    """
    evicted, moved = _evicted_and_moved(before, live) if before is not None else ({}, {})
    victims, moves = _resource_victims(live, book, job, part, row, placed, evicted), []
    if victims is None:
        return None
    for name, cost in moved.items():
        loser, now = book.jobs[name], live.gpus_of(live.rows[name][0])
        size = max(1, loser.pods[0].gpus)
        for node, gpus in now.items():
            if not book.resources.takes_over(node, need_of(loser.pods[:1]) * (gpus // size), loser.nodes):
                return None
        to = tuple(book.binding(node, gpus // size, gpus) for node, gpus in now.items())
        moves.append(loser.eviction(Loss.MOVED, cost, moved_to=to))
    preempted = [evict_job(live, book.jobs[name], Loss.PREEMPTED, cost) for name, cost in evicted.items()]
    return [*preempted, *(evict_job(live, victim, Loss.RESOURCES) for victim in victims), *moves]


def evict_job(live: Live, job: Job, reason: Loss, cost: float = 0.0) -> Eviction:
    """A whole job leaves; what still runs of it ends now. `cost` is what it has lost so far, in GPU-hours."""
    for row in live.rows.get(job.id, ()):
        if live.sim.jobs["status"][row] == RUNNING:
            cost += live.work_lost(row)
            evict(live.sim, row)
    return job.eviction(reason, cost)


def _evicted_and_moved(before: Sim, live: Live) -> tuple[dict[str, float], dict[str, float]]:
    """Jobs that the simulator evicted since `before`, and jobs that it moved, with the GPU-hours that each lost."""
    old, new = before.jobs, live.sim.jobs
    ran, status = old["status"] == RUNNING, new["status"]
    touched = np.unique(before.gpu_job[before.gpu_job != live.sim.gpu_job])
    touched = touched[touched >= 0]
    cost = (new["lost"] - old["lost"]) * new["gpus"]

    def by_job(rows: NDArray[np.int64]) -> dict[str, float]:
        found: dict[str, float] = {}
        for row in rows.tolist():
            name = live.name_of(row)
            found[name] = found.get(name, 0.0) + float(cost[row])
        return found

    moved = touched[ran[touched] & (status[touched] == RUNNING)]
    return by_job(np.flatnonzero(ran & (status == WAITING))), by_job(moved)


def _resource_victims(
    live: Live, book: Book, job: Job, part: Part, row: int, placed: Sequence[Pod], leaving: Iterable[str]
) -> list[Job] | None:
    """Jobs that must leave beside those `leaving`, so that each node of a row has the cpu, memory and places it needs.

    None if not even all that may be evicted would be enough.
    """
    victims, gone = [], set(leaving)
    for node, gpus in live.gpus_of(row).items():
        name = book.names[node]
        count, here = gpus // part.gpus_per_pod, book.on(name)
        need = np.array([part.cpu, part.memory, part.fused], np.object_) * count + need_of(placed, name)
        need -= need_of([pod for other in here if other.id in gone for pod in other.pods], name)
        candidates = [other for other in here if other.id not in gone and gives_way(live, job.priority, other)]
        found = _fewest(book, node, need, candidates)
        if found is None:
            return None
        victims += found
        gone |= {victim.id for victim in found}
    return victims


def gives_way(live: Live, priority: int, victim: Job) -> bool:
    """The simulator's rule, for jobs with and without GPUs: lower priority, preemptible, not evicted too often."""
    if victim.verification or not victim.preemptible or victim.priority >= priority:
        return False
    evictions, rows = live.sim.jobs["evictions"], live.rows.get(victim.id, ())
    return all(int(evictions[row]) < live.settings.max_evictions for row in rows)


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
        if resources.has_room(node, need + need_of(job.pods, name)):
            chosen.remove(job)
            need = need + need_of(job.pods, name)
    return chosen


def tests_end(book: Book, nodes: Iterable[str]) -> list[Eviction]:
    """Verification pods leave these nodes, one node at a time: they give way to any real job, whatever its priority."""
    pairs = ((node, test) for node in dict.fromkeys(nodes) for test in book.on(node, verification=True))
    return [test.eviction(Loss.VERIFICATION, node=node) for node, test in pairs]


# A node fails


def replace_node(live: Live, book: Book, node: str) -> NodeLoss:
    """Swap or evict every job on a node that takes no pods any more; the larger jobs choose their spares first.

    Of tests and of jobs without GPUs only the pods on the node end, at once. Evicted jobs are still in the book.
    """
    rack = int(live.spec.node_rack[book.number[node]])
    replaced, evictions = [], tests_end(book, [node])
    for test in evictions:
        book.end_pods(book.jobs[test.job], node)
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
        live.move(row, [number], gpus)
    spares = [book.names[place] for place in places]
    left = iter(spares)
    pods = tuple(replace(pod, node=next(left)) if pod.node == node else pod for pod in job.pods)
    book.add(replace(job, pods=pods, bindings=_rebound(job, node, spares, book)))
    return Replacement(job.id, book.racks[number], node, book.bindings(gone, places), cost)


def _rebound(job: Job, node: str, spares: list[str], book: Book) -> tuple[Binding, ...]:
    """The bindings with those on the failed node on its spares, in the order of their pod sets and nodes."""
    left, bindings = iter(spares), []
    for binding in job.bindings:
        if binding.node == node:
            one = replace(binding, pods=1, gpus=binding.gpus // binding.pods)
            bindings += [replace(one, node=next(left)) for _ in range(binding.pods)]
        else:
            bindings.append(binding)
    order = list(dict.fromkeys(binding.pod_set for binding in job.bindings))
    return tuple(sorted(bindings, key=lambda binding: (order.index(binding.pod_set), book.number[binding.node])))


# Pods that go elsewhere


def fit_in_rack(
    live: Live, book: Book, rack: int, pods: Sequence[Pod], arrived: Sequence[Pod] = (), taken: Sequence[Pod] = ()
) -> list[int] | None:
    """The tightest nodes of a rack for these pods, as they come; None: some pod finds none.

    Other pods, which the book does not have on their nodes: `arrived`, which the arrays have there, and `taken`.
    """
    sim, places, coming = live.sim, [], [*arrived, *taken]
    inside = range(int(sim.racks["node0"][rack]), int(sim.racks["node1"][rack]))
    free = {node: int(sim.nodes["free"][node]) for node in inside if sim.nodes["blocked"][node] == 0}
    for pod in taken:
        if book.number[pod.node] in free:
            free[book.number[pod.node]] -= pod.gpus
    for pod in pods:
        for node in sorted(free, key=lambda node: (free[node], node)):
            need = need_of([pod]) + need_of(coming, book.names[node])
            if free[node] >= pod.gpus and book.resources.takes_over(node, need, [pod.node]):
                break
        else:
            return None
        free[node] -= pod.gpus
        coming.append(replace(pod, node=book.names[node]))
        places.append(node)
    return places
