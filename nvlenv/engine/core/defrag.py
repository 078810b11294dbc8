"""Moves that free room for one more slice in a rack, at the least cost.

Which jobs leave a rack is found by the simulator's own search for the cheapest victims. What a job has there goes to
one other rack together, so that its slices stay whole; only movable jobs, whose pods do not talk to each other, may be
spread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from nvlenv.common.errors import InputError
from nvlenv.engine.core.book import Book
from nvlenv.engine.core.evictions import fit_in_rack
from nvlenv.engine.core.live import Live, Part
from nvlenv.engine.model.answers import Clearing, Move
from nvlenv.engine.model.jobs import Pod
from nvlenv.simulator.preemption import CLEARABLE, FREE, TAKEN, cheapest_victims
from nvlenv.simulator.state import Scratch

TRIED = 24  # racks whose moves are worked out in each round, the cheapest to clear first
OPENER = "defrag"  # a job that would use the slice; everything else is below it


class Defragmentation:
    """The search for slices of so many `nodes`. It changes the arrays, not the book; the caller has a copy."""

    def __init__(self, live: Live, book: Book, nodes: int) -> None:
        """`InputError` for more nodes than any rack has."""
        largest = int(np.bincount(live.spec.node_rack).max())
        if not 1 <= nodes <= largest:
            raise InputError("defrag", "free-rack-of", nodes, f"1 to {largest}, the nodes of the largest rack")
        self._live, self._book, self._nodes, self._size = live, book, nodes, live.node_size
        self._moved: dict[str, tuple[Pod, ...]] = {}  # job -> its pods where the moves so far have left them
        opener = Part(nodes * self._size, self._size, priority=2**30, queue=len(live.queues) - 1, estimate=1.0)
        self._opener = live.add(OPENER, [opener])[0]

    def clearings(self, limit: int) -> Iterator[Clearing]:
        """At most so many clearings, one after another: most slices per node moved first, then the least cost."""
        for _ in range(limit):
            options = []
            for rack, victims in self._cheapest()[:TRIED]:
                saved, moved = self._live.save(), dict(self._moved)
                clearing = self._clear(rack, victims)
                self._live.restore(saved)
                self._moved = moved
                if clearing is not None:
                    options.append((-clearing.slots_per_node, clearing.cost, rack, victims, clearing))
            if not options:
                return
            *_, rack, victims, best = min(options)  # a rack comes once
            self._clear(rack, victims)
            yield best

    def _cheapest(self) -> list[tuple[int, list[int]]]:
        """Racks with the rows that have to leave them for one more slice, the fewest GPUs first."""
        sim, states = self._live.sim, self._states()
        sim.scratch[Scratch.STATE, : len(states)] = states
        options = []
        for rack in range(self._live.spec.racks):
            need = self._nodes - int(sim.cap[rack, self._size]) % self._nodes
            if np.count_nonzero(states[sim.racks["node0"][rack] : sim.racks["node1"][rack]] == CLEARABLE) < need:
                continue
            count = int(cheapest_victims(sim, self._opener, rack, need, CLEARABLE))
            victims = sim.scratch[Scratch.VICTIMS, :count].tolist()
            if victims:
                options.append((int(sim.jobs["gpus"][victims].sum()), rack, victims))
        return [(rack, victims) for _, rack, victims in sorted(options)]

    def _states(self) -> NDArray[np.int64]:
        """(M,) what may be done with each node: pinned work makes it TAKEN.

        So does a job on an overcommitted node, of which the arrays hold less than it has.
        """
        sim = self._live.sim
        pinned = np.ones(len(sim.jobs) + 1, np.bool_)
        holds = np.bincount(sim.gpu_job[sim.gpu_job >= 0], minlength=len(sim.jobs))
        for name, rows in self._live.rows.items():
            job = self._book.jobs.get(name)
            pinned[rows] = job is None or not (job.movable or job.preemptible) or len(rows) > 1
        pinned[:-1] |= holds != sim.jobs["gpus"]
        pinned[-1] = False  # GPUs without a job
        on_gpu = np.where(sim.gpu_job >= 0, sim.gpu_job, len(pinned) - 1).reshape(-1, self._size)
        good = (sim.nodes["blocked"] == 0) & (sim.nodes["gpus"] == self._size) & ~pinned[on_gpu].any(axis=1)
        return np.where(good, np.where(sim.nodes["free"] == self._size, FREE, CLEARABLE), TAKEN)

    def _clear(self, rack: int, victims: list[int]) -> Clearing | None:
        """Move these rows out of a rack; None if some of them has nowhere to go or nothing is gained."""
        before, moves = self._slots(), []
        for row in victims:
            move = self._move(rack, row)
            if move is None:
                return None
            moves.append(move)
        after = self._slots()
        if after <= before:
            return None
        left = {node for move in moves for node in move.nodes}
        cost = sum(move.cost for move in moves)
        return Clearing(self._live.spec.rack_names[rack], tuple(moves), len(left), cost, before, after)

    def _slots(self) -> int:
        return int((self._live.sim.cap[: self._live.spec.racks, self._size] // self._nodes).sum())

    def _move(self, rack: int, row: int) -> Move | None:
        """Move what a row has in a rack, whole if it can be, and note where its pods are then."""
        live, book = self._live, self._book
        job = book.jobs[live.name_of(row)]
        inside = {node: gpus for node, gpus in live.gpus_of(row).items() if live.spec.node_rack[node] == rack}
        now = self._moved.get(job.id, job.pods)
        going = [i for i, pod in enumerate(now) if pod.gpus and book.number[pod.node] in inside]
        pods = [now[i] for i in going]
        places = self._together(rack, pods)
        if places is None and job.movable:
            places = self._spread(rack, pods)
        if places is None:
            return None
        cost = live.work_lost(row, keeps_progress=not job.preemptible)
        to: Counter[int] = Counter()
        for pod, place in zip(pods, places, strict=True):
            to[place] += pod.gpus
        live.move(row, inside, to)
        target = {i: book.names[node] for i, node in zip(going, places, strict=True)}
        self._moved[job.id] = tuple(replace(pod, node=target.get(i, pod.node)) for i, pod in enumerate(now))
        left = tuple(book.names[node] for node in inside)
        return Move(job.id, sum(inside.values()), left, book.bindings(pods, places), cost)

    def _together(self, rack: int, pods: Sequence[Pod], taken: Sequence[Pod] = ()) -> list[int] | None:
        """Nodes for all pods in one other rack; `taken` are pods that go elsewhere, but are not in the arrays yet."""
        moved = self._moved.items()
        pairs = (pair for job, now in moved for pair in zip(now, self._book.jobs[job].pods, strict=True))
        arrived = [pod for pod, before in pairs if pod.node != before.node]
        for other in self._racks(rack, pods):
            places = fit_in_rack(self._live, self._book, other, pods, arrived, taken)
            if places is not None:
                return places
        return None

    def _spread(self, rack: int, pods: Sequence[Pod]) -> list[int] | None:
        """A node for every pod, each in the rack that loses least by it."""
        taken: list[Pod] = []
        for pod in pods:
            place = self._together(rack, [pod], taken)
            if place is None:
                return None
            taken.append(replace(pod, node=self._book.names[place[0]]))
        return [self._book.number[pod.node] for pod in taken]

    def _racks(self, rack: int, pods: Sequence[Pod]) -> Iterator[int]:
        """Other racks with room for these pods: those that lose the fewest slices by them, then the fullest."""
        count, most, gpus = len(pods), max(pod.gpus for pod in pods), sum(pod.gpus for pod in pods)
        racks, per_node = np.arange(self._live.spec.racks), self._size // most
        cap = self._live.sim.cap[: len(racks)]
        whole, in_part = cap[:, self._size], cap[:, most] - cap[:, self._size] * per_node
        takes = np.ceil(np.maximum(0, count - in_part) / per_node).astype(int)
        lost = whole // self._nodes - np.maximum(0, whole - takes) // self._nodes
        fits = (cap[:, most] >= count) & (cap[:, 1] >= gpus) & (racks != rack)
        return (int(other) for other in np.lexsort((racks, cap[:, 1], takes, lost)) if fits[other])
