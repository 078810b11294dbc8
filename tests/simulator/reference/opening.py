"""Opening racks in the reference simulator: whom to clear away, by trying all subsets, and where moved pods go."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulator.reference.jobs import Job
    from tests.simulator.reference.simulator import Reference


class Survey:
    """What one opening job may hope for, at one moment, on every node and in every rack."""

    def __init__(self, sim: Reference, opener: Job) -> None:
        self.sim, self.opener, self.need_per_slice = sim, opener, opener.slice_pods
        self.racks = range(sim.cluster.racks)
        self.state = [self._state(n) for n in range(len(sim.nodes))]
        self.part_used = {n for n, state in enumerate(self.state) if state != "clearable" and self._is_part_used(n)}
        self.spare = {r: self._spare(r) for r in self.racks}

    def may_evict(self, job: Job) -> bool:
        fresh = job.evictions < self.sim.rules.max_evictions
        return job.preemptible and fresh and job.priority < self.opener.priority

    def _state(self, n: int) -> str:
        node = self.sim.nodes[n]
        if len(node.slots) < self.sim.whole or not self.sim.is_open(n):
            return "taken"
        if not node.jobs:
            return "free"
        if all(self.may_evict(job) for job in node.jobs):
            return "clearable"
        return "movable" if all(self.may_evict(job) or job.movable for job in node.jobs) else "taken"

    def _is_part_used(self, n: int) -> bool:
        return 0 < self.sim.usable(n) < len(self.sim.nodes[n].slots)

    def _count(self, r: int, state: str) -> int:
        return sum(self.state[n] == state for n in self.sim.nodes_of((r,)))

    def slots(self, r: int) -> int:
        """Slices that rack r can take now."""
        return self._count(r, "free") // self.need_per_slice

    def potential(self, r: int) -> int:
        """Slices that it could take if everything were evicted that may be."""
        return (self._count(r, "free") + self._count(r, "clearable")) // self.need_per_slice

    def _spare(self, r: int) -> int:
        """Whole nodes of rack r that moved pods may take without a slice less, now or after all evictions."""
        free, clear = self._count(r, "free"), self._count(r, "clearable")
        return min(free % self.need_per_slice, (free + clear) % self.need_per_slice)

    # --- Which racks may be opened ------------------------------------------------------------------------------------

    def openings(self, slices: int) -> dict[int, tuple[int, float]]:
        """Rack -> GPUs and GPU-hours that clearing one more slice in it costs, if so many slices can still start."""
        found = {}
        for r in self.racks:
            others = sum(self.potential(q) for q in self.racks if q != r)
            victims = self._plan(r) if others + max(self.potential(r), self.slots(r) + 1) >= slices else []
            if victims:
                hours = sum(v.gpus * self.sim.loss(v, moved=not self.may_evict(v)) for v in victims)
                found[r] = (sum(v.gpus for v in victims), hours)
        return found

    def _plan(self, r: int) -> list[Job]:
        """The victims for one more slice in rack r, largest first; none: it cannot be done.

        The cheapest, be they evicted or moved; if those to be moved find no place, the cheapest that are evicted.
        """
        need = self.need_per_slice - self._count(r, "free") % self.need_per_slice
        victims = self._cheapest(r, need, ("clearable", "movable"))
        return victims if self._find_places(victims, r) else self._cheapest(r, need, ("clearable",))

    def _cheapest(self, r: int, need: int, states: tuple[str, ...]) -> list[Job]:
        """Groups of nodes that share jobs, all subsets of them: fewest GPUs, least lost work, earlier groups."""
        candidates = [n for n in self.sim.nodes_of((r,)) if self.state[n] in states]
        groups = self._groups(candidates)
        numbers = range(len(groups))
        subsets = [s for size in range(1, len(groups) + 1) for s in combinations(numbers, size)]
        enough = [s for s in subsets if sum(len(groups[k]) for k in s) >= need]
        if not enough:
            return []
        costs = [self._cost(group) for group in groups]
        best = min(enough, key=lambda s: (*(sum(costs[k][i] for k in s) for i in (0, 1)), sum(2**k for k in s)))
        nodes = sorted(n for k in best for n in groups[k])
        victims = list(dict.fromkeys(job for n in nodes for job in self.sim.nodes[n].jobs))
        victims.sort(key=lambda job: -job.gpus)
        for job in list(victims):
            rest = [v for v in victims if v is not job]
            if sum(all(k in rest for k in self.sim.nodes[n].jobs) for n in candidates) >= need:
                victims = rest
        return victims

    def _groups(self, nodes: list[int]) -> list[list[int]]:
        """Nodes that share a job, directly or through others, are in one group."""
        groups: list[list[int]] = []
        for n in nodes:
            jobs = set(self.sim.nodes[n].jobs)
            linked = [group for group in groups if any(jobs & set(self.sim.nodes[m].jobs) for m in group)]
            groups = [group for group in groups if group not in linked]
            groups.append(sorted([n, *(m for group in linked for m in group)]))
        return sorted(groups)

    def _cost(self, group: list[int]) -> tuple[int, float]:
        """GPUs and GPU-hours, added up node by node so that groups alike cost the same to the last bit."""
        seen: list[Job] = []
        gpus, hours = 0, 0.0
        for n in group:
            new = [job for job in self.sim.nodes[n].jobs if job not in seen]
            gpus += sum(job.gpus for job in new)
            hours += sum(job.gpus * self.sim.loss(job, moved=not self.may_evict(job)) for job in new)
            seen += new
        return gpus, hours

    def _find_places(self, victims: list[Job], r: int) -> bool:
        """True if the pods of all victims that are to be moved fit, best fit, into what other racks offer."""
        racks = [q for q in self.racks if q != r and q not in self.sim.opened]
        room = [self.sim.usable(n) for n in self.part_used if self.sim.nodes[n].rack in racks]
        room += [self.sim.whole for q in racks for _ in range(self.spare[q])]
        for v in victims:
            for _ in range(0 if self.may_evict(v) else v.gpus // v.pod_gpus):
                fitting = [free for free in room if free >= v.pod_gpus]
                if not fitting:
                    return False
                room.remove(min(fitting))
                room.append(min(fitting) - v.pod_gpus)
        return True

    # --- Opening one --------------------------------------------------------------------------------------------------

    def open(self, r: int) -> None:
        """Clear one more slice in rack r: move first, then evict."""
        self._clear(r, self._plan(r))

    def _clear(self, r: int, victims: list[Job]) -> None:
        self.sim.opened.add(r)
        moved = [v for v in victims if not self.may_evict(v)]
        for v in moved:
            self._move(v)
        rest = [job for n in self.sim.nodes_of((r,)) for job in self.sim.nodes[n].jobs if self.may_evict(job)]
        for v in victims + rest * self.sim.rules.evict_whole_rack:
            if v not in moved and v.status == "running":
                self.sim.evict(v)

    def _move(self, job: Job) -> None:
        """Restart a job elsewhere; back to the waiting list should its last pod find no place after all."""
        self.sim.interrupt(job, moved=True)
        self.sim.counts["moves"] += 1
        for _ in range(job.gpus // job.pod_gpus):
            offers = [n for n in range(len(self.sim.nodes)) if self._is_offered(n, job.pod_gpus)]
            if not offers:
                self.sim.remove(job)
                self.sim.wait(job)
                return
            n = min(offers, key=lambda n: (self.sim.nodes[n].free, n))
            if n not in self.part_used:
                self.spare[self.sim.nodes[n].rack] -= 1
                self.part_used.add(n)
            self.sim.put(job, n)
        self.sim.run(job)

    def _is_offered(self, n: int, p: int) -> bool:
        node = self.sim.nodes[n]
        offered = n in self.part_used or (self.state[n] == "free" and self.spare[node.rack] > 0)
        return offered and node.rack not in self.sim.opened and node.free >= p
