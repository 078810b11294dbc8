"""A node fails: its jobs go on with spares of the same rack, where every link is as fast as before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nvlenv.engine.core.book import Book, Held, names
from nvlenv.engine.core.live import Live, hours_lost, swap
from nvlenv.engine.model.answers import Binding, Eviction, Loss, NodeLoss, Replacement
from nvlenv.engine.model.snapshot import Pod
from nvlenv.simulator.events import evict


def replace_node(live: Live, book: Book, node: str) -> NodeLoss:
    """Swap or evict every job on a node that takes no pods any more; the larger jobs choose their spares first.

    Of jobs without GPUs only the pods on the node end, at once. Evicted jobs with GPUs are still in the book.
    """
    replaced, evictions = [], []
    for held in sorted(book.on(node), key=lambda held: (-held.job.gpus, held.job.id)):
        if not held.job.gpus:  # pods that need no link to each other, and no rack
            pods = book.end_pods(held, node)
            evictions.append(Eviction(held.job.id, Loss.FAILED, (node,), names(pods), 0, 0.0))
            continue
        spares = _spares(live, book, held, node)
        if spares is None:
            evictions.append(_evict(live, held))
        else:
            replaced.append(_swap(live, book, held, node, spares))
    return NodeLoss(node, tuple(replaced), tuple(evictions))


def _spares(live: Live, book: Book, held: Held, node: str) -> list[str] | None:
    """A node for each pod of the job on the failed node: the tightest of the rack that has room; None: none has."""
    rack = live.sim.racks[int(live.spec.node_rack[book.number(node)])]
    nodes = range(int(rack["node0"]), int(rack["node1"]))
    good = [n for n in nodes if live.sim.nodes["blocked"][n] == 0 and not book.reserves.repels(n, [node])]
    free = {n: int(live.sim.nodes["free"][n]) for n in good}
    taken: dict[int, list[Pod]] = {n: [] for n in free}
    spares = []
    for pod in _pods_on(held, node):
        fits = [n for n in free if free[n] >= pod.gpus and _has_room(book, n, [*taken[n], pod])]
        if not fits:
            return None
        best = min(fits, key=lambda n: (free[n], n))
        free[best] -= pod.gpus
        taken[best].append(pod)
        spares.append(book.name(best))
    return spares


def _has_room(book: Book, node: int, pods: list[Pod]) -> bool:
    need = [sum(pod.cpu for pod in pods), sum(pod.memory for pod in pods), len(pods)]
    return not any(book.reserves.shortage(node, need))


def _swap(live: Live, book: Book, held: Held, node: str, spares: list[str]) -> Replacement:
    """The arrays first, then the book."""
    number, gone = book.number(node), _pods_on(held, node)
    room = dict.fromkeys(spares, 0)
    for spare, pod in zip(spares, gone, strict=True):
        room[spare] += pod.gpus
    rack = live.spec.rack_names[int(live.spec.node_rack[number])]
    bound = tuple(Binding("", spare, rack, spares.count(spare), gpus) for spare, gpus in room.items())
    cost = 0.0
    for row in live.rows.get(held.job.id, ()):
        # Of a crowded node the row of a job that was there before may have less than its pods hold.
        here = live.gpus_of(row).get(number, 0) if held.ours else sum(room.values())
        if not here:
            continue
        cost += float(live.sim.jobs["gpus"][row]) * float(hours_lost(live.sim, row, False))
        parts = {}
        for spare in room:
            parts[spare] = min(here, room[spare])
            room[spare] -= parts[spare]
            here -= parts[spare]
        places = np.array([book.number(spare) for spare in parts], np.int32)
        swap(live.sim, row, number, places, np.array(list(parts.values()), np.int32))
    left = iter(spares)
    pods = tuple(replace(pod, node=next(left)) if pod.node == node else pod for pod in held.job.pods)
    moved = replace(held, job=replace(held.job, pods=pods), bindings=_rebind(held, node, spares, book))
    book.add(moved)
    return Replacement(held.job.id, rack, node, bound, cost)


def _rebind(held: Held, node: str, spares: list[str], book: Book) -> tuple[Binding, ...]:
    """The bindings with those on the failed node on its spares, in the order of their pod sets and nodes."""
    left, bindings = iter(spares), []
    for binding in held.bindings:
        if binding.node != node:
            bindings.append(binding)
            continue
        each = binding.gpus // binding.pods
        bindings += [replace(binding, node=next(left), pods=1, gpus=each) for _ in range(binding.pods)]
    order = list(dict.fromkeys(binding.pod_set for binding in held.bindings))
    return tuple(sorted(bindings, key=lambda binding: (order.index(binding.pod_set), book.number(binding.node))))


def _evict(live: Live, held: Held) -> Eviction:
    cost = 0.0
    for row in live.rows.get(held.job.id, ()):
        cost += float(live.sim.jobs["gpus"][row]) * float(hours_lost(live.sim, row, False))
        evict(live.sim, row)
        live.sim.jobs["evictions"][row] -= 1  # as in the simulator, failures are not counted against it
    return Eviction(held.job.id, Loss.FAILED, held.job.nodes, names(held.job.pods), held.job.gpus, cost)


def _pods_on(held: Held, node: str) -> list[Pod]:
    return [pod for pod in held.job.pods if pod.node == node]
