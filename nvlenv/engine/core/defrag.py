"""Moves that free room for one more slice in a rack, at the least cost.

Which jobs leave a rack is found by the simulator's own exact cover. What a job has there goes to one other rack
together, so that its slices stay whole; only movable jobs, whose pods do not talk to each other, may be spread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from nvlenv.common.errors import InputError
from nvlenv.engine.core.book import Book
from nvlenv.engine.core.live import Live, Row, hours_lost, swap
from nvlenv.engine.model.answers import Binding, Clearing, Move
from nvlenv.engine.model.snapshot import Pod
from nvlenv.simulator.preemption import cheapest_victims
from nvlenv.simulator.state import Scratch

TRIED = 24  # racks whose moves are worked out in each round, the cheapest to clear first
TAKEN, FREE, CLEARABLE = 0, 1, 2  # states of nodes in the cover
OPENER = "defrag"  # a job that would use the slice; everything else is below it

Moved = dict[str, tuple[Pod, ...]]  # job -> its pods where the moves so far have left them; the book has the others


def clearings(live: Live, book: Book, nodes: int, limit: int) -> tuple[Clearing, ...]:
    """At most `limit` clearings one after another. The arrays are changed; the caller has a copy."""
    largest = int(np.bincount(live.spec.node_rack).max())
    if not 1 <= nodes <= largest:
        raise InputError("defrag", "free-rack-of", nodes, f"1 to {largest}, the nodes of the largest rack")
    size = live.node_size
    opener = live.add(OPENER, [Row(nodes * size, size, priority=2**30, queue=len(live.queues) - 1, estimate=1.0)])[0]
    found: list[Clearing] = []
    moved: Moved = {}
    while len(found) < limit:
        options = []
        for rack, victims in _cheapest(live, book, opener, nodes)[:TRIED]:
            saved = live.save()
            clearing = _clear(live, book, rack, victims, nodes, dict(moved))
            live.restore(saved)
            if clearing is not None:
                options.append((-clearing.slots_per_node, clearing.cost, rack, victims, clearing))
        if not options:
            break
        *_, rack, victims, best = min(options, key=lambda option: option[:3])
        _clear(live, book, rack, victims, nodes, moved)
        found.append(best)
    return tuple(found)


def _cheapest(live: Live, book: Book, opener: int, nodes: int) -> list[tuple[int, list[int]]]:
    """Racks with the rows that have to leave them for one more slice, the fewest GPUs first."""
    sim, size = live.sim, live.node_size
    states = _states(live, book)
    sim.scratch[Scratch.STATE, : len(states)] = states
    options = []
    for rack in range(live.spec.racks):
        need = nodes - int(sim.cap[rack, size]) % nodes
        if np.count_nonzero(states[sim.racks["node0"][rack] : sim.racks["node1"][rack]] == CLEARABLE) < need:
            continue
        count = int(cheapest_victims(sim, opener, rack, need, CLEARABLE))
        victims = sim.scratch[Scratch.VICTIMS, :count].tolist()
        if victims:
            options.append((int(sim.jobs["gpus"][victims].sum()), rack, victims))
    return [(rack, victims) for _, rack, victims in sorted(options)]


def _states(live: Live, book: Book) -> NDArray[np.int64]:
    """(M,) what the cover may do with each node: pinned work makes it TAKEN.

    So does a job on an overcommitted node, of which the arrays hold less than it has.
    """
    sim, size = live.sim, live.node_size
    pinned = np.ones(len(sim.jobs) + 1, np.bool_)
    seated = np.bincount(sim.gpu_job[sim.gpu_job >= 0], minlength=len(sim.jobs))
    for name, rows in live.rows.items():
        held = book.jobs.get(name)
        pinned[rows] = held is None or not (held.job.movable or held.job.preemptible) or len(rows) > 1
    pinned[:-1] |= seated != sim.jobs["gpus"]
    pinned[-1] = False  # GPUs without a job
    on_gpu = np.where(sim.gpu_job >= 0, sim.gpu_job, len(pinned) - 1).reshape(-1, size)
    good = (sim.nodes["blocked"] == 0) & (sim.nodes["gpus"] == size) & ~pinned[on_gpu].any(axis=1)
    return np.where(good, np.where(sim.nodes["free"] == size, FREE, CLEARABLE), TAKEN)


def _clear(live: Live, book: Book, rack: int, victims: list[int], nodes: int, moved: Moved) -> Clearing | None:
    """Move these rows out of a rack; None if some of them has nowhere to go or nothing is gained."""
    before, moves = _slots(live, nodes), []
    for row in victims:
        move = _move(live, book, rack, row, nodes, moved)
        if move is None:
            return None
        moves.append(move)
    after = _slots(live, nodes)
    if after <= before:
        return None
    left = {node for move in moves for node in move.nodes}
    cost = sum(move.cost for move in moves)
    return Clearing(live.spec.rack_names[rack], tuple(moves), len(left), cost, before, after)


def _slots(live: Live, nodes: int) -> int:
    return int((live.sim.cap[: live.spec.racks, live.node_size] // nodes).sum())


def _move(live: Live, book: Book, rack: int, row: int, nodes: int, moved: Moved) -> Move | None:
    """Move what a row has in a rack, whole if it can be, and note where its pods are then."""
    held = book.jobs[live.name_of(row)]
    inside = {node: gpus for node, gpus in live.gpus_of(row).items() if live.spec.node_rack[node] == rack}
    now = moved.get(held.job.id, held.job.pods)
    going = [i for i, pod in enumerate(now) if pod.gpus and book.number(pod.node) in inside]
    pods, arrived = [now[i] for i in going], _arrived(book, moved)
    places = _together(live, book, rack, pods, nodes, arrived)
    if places is None and held.job.movable:
        places = _spread(live, book, rack, pods, nodes, arrived)
    if places is None:
        return None
    cost = float(live.sim.jobs["gpus"][row]) * float(hours_lost(live.sim, row, not held.job.preemptible))
    _carry_out(live, book, row, pods, places)
    to = {i: book.name(node) for i, node in zip(going, places, strict=True)}
    moved[held.job.id] = tuple(replace(pod, node=to.get(i, pod.node)) for i, pod in enumerate(now))
    left = tuple(book.name(node) for node in inside)
    return Move(held.job.id, sum(inside.values()), left, _bindings(live, book, pods, places), cost)


def _arrived(book: Book, moved: Moved) -> list[Pod]:
    """Pods on nodes where the book does not have them."""
    pairs = (pair for job, pods in moved.items() for pair in zip(pods, book.jobs[job].job.pods, strict=True))
    return [pod for pod, before in pairs if pod.node != before.node]


def _together(live: Live, book: Book, rack: int, pods: list[Pod], nodes: int, arrived: list[Pod]) -> list[int] | None:
    """Nodes for all pods in one other rack: the one that loses the fewest slices, then the fullest."""
    for other in _racks(live, rack, sum(pod.gpus for pod in pods), nodes, len(pods), max(pod.gpus for pod in pods)):
        places = _fit(live, book, other, pods, arrived)
        if places is not None:
            return places
    return None


def _spread(live: Live, book: Book, rack: int, pods: list[Pod], nodes: int, arrived: list[Pod]) -> list[int] | None:
    """A node for every pod, each in the rack that loses least by it."""
    places: list[int] = []
    for number, pod in enumerate(pods):
        taken = [Pod(book.name(n), p.gpus, p.cpu, p.memory) for n, p in zip(places, pods[:number], strict=True)]
        for other in _racks(live, rack, pod.gpus, nodes, 1, pod.gpus):
            found = _fit(live, book, other, [pod], [*arrived, *taken], taken)
            if found is not None:
                places += found
                break
        else:
            return None
    return places


def _racks(live: Live, rack: int, gpus: int, nodes: int, pods: int, pod_gpus: int) -> Iterator[int]:
    """Other racks with room for so many pods, in the order in which they lose least by them."""
    sim, size = live.sim, live.node_size
    cap = sim.cap[: live.spec.racks]
    whole, in_part = cap[:, size], cap[:, pod_gpus] - cap[:, size] * (size // pod_gpus)
    takes = np.ceil(np.maximum(0, pods - in_part) / (size // pod_gpus)).astype(int)
    lost = whole // nodes - np.maximum(0, whole - takes) // nodes
    fits = (cap[:, pod_gpus] >= pods) & (cap[:, 1] >= gpus) & (np.arange(live.spec.racks) != rack)
    order = np.lexsort((np.arange(live.spec.racks), cap[:, 1], takes, lost))
    return (int(other) for other in order if fits[other])


def _fit(
    live: Live, book: Book, rack: int, pods: list[Pod], arrived: list[Pod], taken: list[Pod] | None = None
) -> list[int] | None:
    """The tightest nodes of a rack for these pods, largest first as they come; `taken` is not in the arrays yet."""
    sim, places = live.sim, []
    inside = range(int(sim.racks["node0"][rack]), int(sim.racks["node1"][rack]))
    free = {node: int(sim.nodes["free"][node]) for node in inside if sim.nodes["blocked"][node] == 0}
    for pod in taken or ():
        if book.number(pod.node) in free:
            free[book.number(pod.node)] -= pod.gpus
    coming = list(arrived)
    for pod in pods:
        good = [node for node in free if free[node] >= pod.gpus and _has_room(book, node, pod, coming)]
        if not good:
            return None
        best = min(good, key=lambda node: (free[node], node))
        free[best] -= pod.gpus
        coming.append(Pod(book.name(best), pod.gpus, pod.cpu, pod.memory))
        places.append(best)
    return places


def _has_room(book: Book, node: int, pod: Pod, coming: list[Pod]) -> bool:
    if book.reserves.repels(node, [pod.node]):
        return False
    here = [pod, *(other for other in coming if other.node == book.name(node))]
    return not any(book.reserves.shortage(node, (sum(p.cpu for p in here), sum(p.memory for p in here), len(here))))


def _carry_out(live: Live, book: Book, row: int, pods: list[Pod], places: list[int]) -> None:
    for node in dict.fromkeys(pod.node for pod in pods):
        going: dict[int, int] = {}
        for pod, place in zip(pods, places, strict=True):
            if pod.node == node:
                going[place] = going.get(place, 0) + pod.gpus
        spares = np.array(list(going), np.int32)
        swap(live.sim, row, book.number(node), spares, np.array(list(going.values()), np.int32))


def _bindings(live: Live, book: Book, pods: list[Pod], places: list[int]) -> tuple[Binding, ...]:
    bindings = []
    for place in dict.fromkeys(places):
        here = [pod for pod, other in zip(pods, places, strict=True) if other == place]
        rack = live.spec.rack_names[int(live.spec.node_rack[place])]
        bindings.append(Binding("", book.name(place), rack, len(here), sum(pod.gpus for pod in here)))
    return tuple(bindings)
