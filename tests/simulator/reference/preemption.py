"""Preemption by priority in the reference simulator: who may be evicted, and the cheapest who make room, by trying all.

What `opening` does for slices of whole nodes where enough GPUs are free, this does for every shape, and also
where GPUs or quota are short. Jobs are moved instead of evicted only for slices of whole nodes in one rack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING

from nvlenv.cluster.types import Mode
from tests.simulator.reference.opening import Survey

if TYPE_CHECKING:
    from tests.simulator.reference.jobs import Job
    from tests.simulator.reference.simulator import Domain, Reference

Cost = tuple[int, float]  # GPUs, GPU-hours


class Preemption(Survey):
    """What the job at hand may do by evicting others, at one moment."""

    def __init__(self, sim: Reference, opener: Job) -> None:
        self.sim, self.opener, self.p, self.pods = sim, opener, opener.pod_gpus, sim.pods_left
        self.fresh = not sim.placement(opener)
        self.reclaimable = {job for queue in self._borrowers() for job in self._reclaimable_from(queue)}
        super().__init__(sim, opener)
        self.evictable = [job for job in sim.of_status("running") if self.may_evict(job)]

    # --- Who ----------------------------------------------------------------------------------------------------------

    def may_evict(self, job: Job) -> bool:
        """Preemptible, not evicted too often, and behind the opener by the rules of the queues."""
        if job is self.opener or not job.preemptible or job.evictions >= self.sim.rules.max_evictions:
            return False
        if job.queue != self.opener.queue:
            return job in self.reclaimable
        newer = job.priority == self.opener.priority and job.number > self.opener.number
        within = self.sim.queues[job.queue].within
        allowed = {"Never": False, "LowerPriority": self._is_lower(job)}
        return allowed.get(within, self._is_lower(job) or newer)

    def _is_lower(self, job: Job) -> bool:
        return job.priority < self.opener.priority

    def _borrowers(self) -> list[int]:
        """Other queues of the opener's cohort tree that use more than is theirs."""
        mine, queues = self.opener.queue, self.sim.queues
        tree = self.sim.tree(self.sim.root(mine)) if queues[mine].cohort else []
        return [q for q in tree if q != mine and self.sim.used([q]) > queues[q].nominal]

    def _reclaimable_from(self, queue: int) -> Iterator[Job]:
        """Jobs of a borrowing queue that may be evicted, as far as it borrows: lowest priority, latest start first."""
        mine = self.sim.queues[self.opener.queue]
        rule = mine.borrow_within if self.sim.borrows else mine.reclaim
        over = self.sim.used([queue]) - self.sim.queues[queue].nominal
        jobs = [job for job in self.sim.of_status("running") if job.queue == queue and job.preemptible]
        for job in sorted(jobs, key=lambda job: (job.priority, -job.start, -job.number)):
            allowed = rule == "Any" or (rule == "LowerPriority" and self._is_lower(job))
            allowed = allowed and (not self.sim.borrows or job.priority <= mine.borrow_priority)
            if allowed and job.evictions < self.sim.rules.max_evictions and over > 0:
                yield job
                over -= job.gpus

    # --- Room ---------------------------------------------------------------------------------------------------------

    def could_fit(self, racks: Domain, without: Sequence[Job]) -> int:
        """Pods that these racks could take if some jobs were gone."""
        nodes = [self.sim.nodes[n] for n in self.sim.nodes_of(racks) if self.sim.is_open(n)]
        return sum(sum(slot is None or slot in without for slot in node.slots) // self.p for node in nodes)

    def room(self, racks: Domain) -> int:
        """Pods that they could take if all were gone that may be evicted."""
        return self.could_fit(racks, self.evictable)

    def now(self, racks: Domain) -> int:
        return self.sim.fits(racks, self.p)

    def height(self) -> int:
        """Of the domains one of which is to hold the present slice; -1: none could."""
        job, domains, top = self.opener, self.sim.domains, len(self.sim.domains) - 1
        if self.sim.scope is not None:
            return self.sim.reach
        if job.mode == Mode.REQUIRED:
            return min(job.height, top)
        heights = (0, top) if job.mode == Mode.UNCONSTRAINED else range(min(job.height, top), top + 1)
        return next((h for h in heights if any(self.room(d) >= self.pods for d in domains[h])), -1)

    def can_go_on(self, height: int, domain: Domain) -> bool:
        """True if, with the present slice in this domain, the rest of the job could start too."""
        if self.sim.scope is not None:
            rest = self.sim.slices_left - 1
            left = {d: self.room(d) - (self.pods if d == domain else 0) for d in self.sim.domains[height]}
            return left[domain] >= 0 and sum(max(0, room) // self.opener.slice_pods for room in left.values()) >= rest
        slices = {d: self.room(d) // self.pods for d in self.sim.domains[height]}
        more = self.now(domain) // self.pods + 1 if height == 0 and self.p == self.sim.whole else 0  # by moving others
        slices[domain] = max(slices[domain], more)
        return slices[domain] > 0 and sum(slices.values()) >= self.sim.slices_left

    # --- Victims ------------------------------------------------------------------------------------------------------

    def victims(self) -> dict[int, list[Job]]:
        """Rack -> who has to leave, largest first, so that more of the job fits there; racks where that is possible."""
        if not self.opener.preempts:
            return {}
        found: dict[int, list[Job]] = {}
        if self.fresh and self.sim.reach >= 0:  # its shape is free, what it lacks is quota
            racks = [r for kind, r in self.sim.places(self.opener) if kind == "place"]
            found = {r: [] for r in racks}
        elif (height := self.height()) >= 0:
            self.sim.open_height = height
            for domain in [self.sim.scope] if self.sim.scope else self.sim.domains[height]:
                if self.can_go_on(height, domain):
                    found |= {r: victims for r in domain if (victims := self._for_shape(r, domain, height))}
        full = {r: self._with_quota(victims) for r, victims in found.items()}
        return {r: victims for r, victims in full.items() if victims}

    def _for_shape(self, r: int, domain: Domain, height: int) -> list[Job]:
        here, one = self.now((r,)), self.opener.slice_pods
        if height == 0:
            need = one - here % one
            return self._plan_whole(r, need) if self.p == self.sim.whole else self._plan_parts(r, need)
        lacks = self.pods - self.now(domain) if self.sim.scope else one - self.now(domain) % one
        need = min(lacks, self.room((r,)) - here)
        if need <= 0:
            return []
        return self._cheapest(r, need, ("clearable",)) if self.p == self.sim.whole else self._plan_parts(r, need)

    def _plan_whole(self, r: int, need: int) -> list[Job]:
        victims = self._cheapest(r, need, ("clearable", "movable"))
        return victims if self._find_places(victims, r) else self._cheapest(r, need, ("clearable",))

    def _plan_parts(self, r: int, need: int) -> list[Job]:
        """Pods that share nodes: of each node some of its jobs; fewest GPUs, least lost work, earlier nodes."""
        if self.room((r,)) - self.now((r,)) < need:
            return []
        options = [self._options(n) for n in self.sim.nodes_of((r,))]
        best: tuple[Cost, tuple[int, ...]] | None = None
        for choice in product(*[range(len(of_node)) for of_node in options]):
            chosen = [of_node[k] for of_node, k in zip(options, choice, strict=True)]
            if sum(gain for gain, _, _ in chosen) >= need:
                cost = (sum(c[0] for _, c, _ in chosen), sum(c[1] for _, c, _ in chosen))
                if best is None or (cost, choice[::-1]) < best:
                    best = (cost, choice[::-1])
        if best is None:
            return []
        picked = [of_node[k][2] for of_node, k in zip(options, best[1][::-1], strict=True)]
        victims = sorted(dict.fromkeys(job for jobs in picked for job in jobs), key=lambda job: -job.gpus)
        for job in list(victims):
            rest = [v for v in victims if v is not job]
            if self.could_fit((r,), rest) - self.now((r,)) >= need:
                victims = rest
        return victims

    def _options(self, n: int) -> list[tuple[int, Cost, list[Job]]]:
        """(pods gained, cost, jobs) for each number of pods that node n can gain, the cheapest way; nothing first."""
        node, jobs = self.sim.nodes[n], [job for job in self.sim.nodes[n].jobs if self.may_evict(job)]
        found: list[tuple[int, Cost, list[Job]]] = [(0, (0, 0.0), [])]
        if not self.sim.is_open(n):
            return found
        subsets = [[job for k, job in enumerate(jobs) if mask >> k & 1] for mask in range(1, 2 ** len(jobs))]
        gains = {id(s): self._gain(node.slots, s) for s in subsets}
        for gain in range(1, max(gains.values(), default=0) + 1):
            enough = [s for s in subsets if gains[id(s)] >= gain]
            best = min(enough, key=self._cost_of)
            found.append((gain, self._cost_of(best), best))
        return found

    def _gain(self, slots: list[Job | None], without: list[Job]) -> int:
        free = slots.count(None)
        return (free + sum(slot in without for slot in slots if slot is not None)) // self.p - free // self.p

    def _cost_of(self, jobs: Sequence[Job]) -> Cost:
        hours = 0.0
        for job in jobs:
            hours += job.gpus * self.sim.loss(job, moved=not self.may_evict(job))
        return sum(job.gpus for job in jobs), hours

    # --- Quota --------------------------------------------------------------------------------------------------------

    def _with_quota(self, victims: list[Job]) -> list[Job]:
        """The victims and those who give back quota beside them; none if it cannot be had."""
        extra: list[Job] = []
        while self.fresh:
            lacks = [limit for limit in self.sim.limits(self.opener) if self._lack(limit, victims + extra) > 0]
            if not lacks:
                break
            lack, members = self._lack(lacks[0], victims + extra), lacks[0][1]
            able = [v for v in self.evictable if v.queue in members and v not in victims and v not in extra]
            if not able:
                return []
            covers = [v for v in able if v.gpus >= lack]
            sign = 1 if covers else -1
            extra.append(min((sign * v.gpus, self._cost_of([v])[1], v.number, v) for v in covers or able)[-1])
        for job in sorted(extra, key=lambda v: -v.gpus):
            rest = [v for v in extra if v is not job]
            if all(self._lack(limit, victims + rest) <= 0 for limit in self.sim.limits(self.opener)):
                extra = rest
        return victims + extra

    def _lack(self, limit: tuple[int, list[int]], victims: list[Job]) -> int:
        most, members = limit
        back = sum(v.gpus for v in victims if v.queue in members and self.may_evict(v))
        return self.sim.used(members) + self.opener.gpus - back - most

    # --- Doing it -----------------------------------------------------------------------------------------------------

    def costs(self) -> dict[int, Cost]:
        """Rack -> GPUs and GPU-hours that opening it costs."""
        found = {}
        for r, victims in self.victims().items():
            found[r] = (sum(v.gpus for v in victims), self._cost_of(victims)[1])
        return found

    def open(self, r: int) -> None:
        """Make room in rack r: move first, then evict."""
        self._clear(r, self.victims()[r])
