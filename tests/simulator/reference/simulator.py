"""A second simulator, to hold the kernel to: plain Python, slow, and as close to the rules' wording as it gets.

Its only state is who is on which GPU, what became of each job, and what keeps a node from taking pods. Everything else
(what fits where, who waits, who blocks whom, who stalls, what is lost per hour) is worked out anew each time it is
asked for. It shares no code with `nvlenv.simulator`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from nvlenv.cluster.types import ClusterSpec, CohortSpec, Mode, NodeEventKind, NodeEvents, QueueSpec, Workload
from tests.simulator.reference.jobs import INF, Job, Node, speed
from tests.simulator.reference.opening import Survey
from tests.simulator.reference.preemption import Preemption

SLOT_SIZES = (1, 2, 4, 8, 16, 18)

Action = tuple[str, int]  # ("place", rack), ("open", rack), ("fill", -1) or ("hold", -1)
Domain = tuple[int, ...]  # its racks


class Reference:
    """`advance` to a decision, read `current` and `legal`, `apply` an action, and so on until `advance` says False."""

    def __init__(
        self,
        cluster: ClusterSpec,
        workload: Workload,
        rules: Any,  # nvlenv.simulator.state.Rules, which is only settings
        weights: Sequence[float],
        queues: Sequence[QueueSpec] = (),
        events: NodeEvents | None = None,
        cohorts: Sequence[CohortSpec] = (),
    ) -> None:
        self.cluster, self.rules, self.weights = cluster, rules, weights
        self.nodes = [
            Node(*of) for of in zip(cluster.node_rack, map(int, cluster.node_gpus), cluster.cordoned, strict=True)
        ]
        self.whole = max(len(node.slots) for node in self.nodes)  # GPUs of the largest node
        self.jobs = [Job(workload, number) for number in range(len(workload))]
        self.queues = list(queues) or [QueueSpec(name, cluster.gpus) for name in workload.queue_names]
        self.cohorts = list(cohorts)
        columns = (events.time, events.node, events.kind) if events is not None else ((), (), ())
        self.events = [(float(t), int(n), NodeEventKind(k)) for t, n, k in zip(*columns, strict=True)]
        self.domains: list[list[Domain]] = [
            [(r,) for r in range(cluster.racks)],
            *self._coarser(),
            [tuple(range(cluster.racks))],
        ]
        self.now, self.ended, self.sample_due = 0.0, False, 0.0
        self.samples: list[list[float]] = []
        self.held: set[Job] = set()  # since capacity last grew
        self.unseen: set[Job] = set()  # waiting jobs that the scan has still to look at
        self.shapeless: list[Job] = []  # looked at since: quota and GPUs, but no shape
        self.current: Job | None = None
        self.legal: dict[Action, tuple[int, float]] = {}  # with what an `open` costs: GPUs and GPU-hours
        self.slices_left, self.pods_left, self.reach = 0, 0, -1
        self.scope: Domain | None = None
        self.borrows, self.open_height = (
            False,
            -1,
        )  # with the job at hand, its queue uses more than its own
        self.opened: set[int] = set()  # racks opened for the job at hand
        self.totals = dict.fromkeys(("waiting", "slowdown", "lost", "stall", "busy", "unreachable"), 0.0)
        self.counts = dict.fromkeys(("evictions", "moves", "failures", "verify_evictions", "illegal"), 0)
        self.class_hours, self.slot_hours = [0.0] * len(weights), [0.0] * len(SLOT_SIZES)

    def _coarser(self) -> list[list[Domain]]:
        """The domains of each level above the rack, fine to coarse."""
        levels = []
        for parents in self.cluster.rack_parents.T[::-1]:
            domains = [tuple(r for r, q in enumerate(parents) if q == p) for p in range(max(parents) + 1)]
            levels.append(domains)
        return levels

    # --- What is where ------------------------------------------------------------------------------------------------

    def is_open(self, n: int) -> bool:
        """True if nothing keeps new pods away from node n."""
        node = self.nodes[n]
        return not (node.cordons or node.failures or (node.verified and self.rules.verify_counted))

    def usable(self, n: int) -> int:
        """GPUs of node n that a new pod may take."""
        return self.nodes[n].free if self.is_open(n) else 0

    def nodes_of(self, racks: Domain) -> list[int]:
        return [n for n, node in enumerate(self.nodes) if node.rack in racks]

    def fits(self, racks: Domain, p: int) -> int:
        """Pods of p GPUs that these racks can take now."""
        return sum(self.usable(n) // p for n in self.nodes_of(racks))

    def everywhere(self) -> Domain:
        return self.domains[-1][0]

    def put(self, job: Job, n: int) -> None:
        """One pod of the job on node n, on its first free GPUs. A verification pod there is evicted."""
        node = self.nodes[n]
        for _ in range(job.pod_gpus):
            node.slots[node.slots.index(None)] = job
        self.counts["verify_evictions"] += node.verified
        node.verified = False

    def put_into(self, job: Job, racks: Domain, pods: int) -> None:
        """Pods go into the tightest holes: the rack with the fewest free GPUs, there the node with the fewest."""
        for _ in range(pods):
            rack = min((r for r in racks if self.fits((r,), job.pod_gpus)), key=lambda r: self.fits((r,), 1))
            nodes = [n for n in self.nodes_of((rack,)) if self.usable(n) >= job.pod_gpus]
            self.put(job, min(nodes, key=self.usable))

    def remove(self, job: Job) -> None:
        for node in self.nodes:
            node.slots = [None if slot is job else slot for slot in node.slots]

    def placement(self, job: Job) -> dict[int, int]:
        """GPUs of the job on each node it touches."""
        return {n: node.slots.count(job) for n, node in enumerate(self.nodes) if job in node.slots}

    # --- Queues -------------------------------------------------------------------------------------------------------

    def of_status(self, status: str) -> list[Job]:
        return [job for job in self.jobs if job.status == status]

    def waiting(self) -> list[Job]:
        """In the order in which they are looked at."""
        return sorted(self.of_status("waiting"), key=lambda job: (-job.priority, job.number))

    def used(self, members: Sequence[int]) -> int:
        """GPUs charged to these queues. Counted verification pods are charged to the first queue."""
        jobs = sum(job.gpus for job in self.of_status("running") if job.queue in members)
        tests = sum(len(node.slots) for node in self.nodes if node.verified and self.rules.verify_counted)
        return jobs + (tests if 0 in members else 0)

    def has_quota(self, job: Job) -> bool:
        return all(self.used(members) + job.gpus <= most for most, members in self.limits(job))

    def limits(self, job: Job) -> list[tuple[int, list[int]]]:
        """(GPUs, queues that may use so many together): the job's queue and each cohort above it, fine to coarse."""
        queue, found = self.queues[job.queue], []
        if queue.borrowing_limit >= 0:
            found.append((queue.nominal + queue.borrowing_limit, [job.queue]))
        if not queue.cohort:
            return [*found, (queue.nominal, [job.queue])]
        for name in self.above(queue.cohort):
            members, limit = self.tree(name), self.cohort(name).borrowing_limit
            own = sum(self.queues[q].nominal for q in members) + sum(
                c.nominal for c in self.cohorts if name in self.above(c.name)
            )
            if name == self.root(job.queue) or limit >= 0:
                found.append((own + (limit if name != self.root(job.queue) else 0), members))
        return found

    def cohort(self, name: str) -> CohortSpec:
        return next((c for c in self.cohorts if c.name == name), CohortSpec(name))

    def above(self, name: str) -> list[str]:
        """The cohort and all above it, the root last."""
        parent = self.cohort(name).parent
        return [name, *(self.above(parent) if parent else [])]

    def root(self, queue: int) -> str:
        return self.above(self.queues[queue].cohort)[-1]

    def tree(self, name: str) -> list[int]:
        """The queues of a cohort and of those below it."""
        return [q for q, queue in enumerate(self.queues) if queue.cohort and name in self.above(queue.cohort)]

    def is_blocked(self, job: Job) -> bool:
        """True if the job's StrictFIFO queue has an earlier job that was looked at and stays waiting."""
        before = self.waiting()[: self.waiting().index(job)]
        return self.queues[job.queue].strict and any(k.queue == job.queue and k not in self.unseen for k in before)

    # --- Time ---------------------------------------------------------------------------------------------------------

    def advance(self) -> bool:
        """Run to the next decision; False: the window ended."""
        while not self._scan():
            if not self._next_instant():
                return False
        return True

    def _next_instant(self) -> bool:
        """All that happens at the next instant: completions by job number, node events in order, arrivals."""
        times = [job.end for job in self.of_status("running")] + [job.submit for job in self.of_status("pending")]
        now = min([*times, *(event[0] for event in self.events[:1])], default=INF)
        if now >= self.rules.horizon:
            self._pass_time(self.rules.horizon)
            self.ended = True
            return False
        self._pass_time(now)
        done = [job for job in self.of_status("running") if job.end <= now]
        for job in done:
            self.stop(job)
            job.status, job.finish, job.work = "done", now, 0.0
        grew = bool(done)
        while self.events and self.events[0][0] <= now:
            grew |= self._node_event(*self.events.pop(0)[1:])
        arrived = [job for job in self.of_status("pending") if job.submit <= now]
        for job in arrived:
            self.wait(job)
        if grew:
            self.held.clear()
            self._look_at_everybody()
        return True

    def _pass_time(self, now: float) -> None:
        """Every rate is constant until `now`."""
        waiting, running = self.waiting(), self.of_status("running")
        by_class = [sum(job.gpus for job in waiting if job.klass == k) for k in range(len(self.weights))]
        free, usable = sum(node.free for node in self.nodes), self.fits(self.everywhere(), 1)
        slots = [sum(self.whole_nodes(r) // size for r in self.everywhere()) for size in SLOT_SIZES]
        busy = self.cluster.gpus - free
        stalled = any(job.gpus <= usable for job in self.shapeless)
        while self.sample_due <= now:
            whole = sum(self.whole_nodes(r) == len(self.nodes_of((r,))) > 0 for r in self.everywhere())
            heroes = sum(job.gpus for job in waiting if job.gpus >= self.hero_gpus())
            row = [self.sample_due, usable, whole, sum(by_class), heroes, stalled, busy, *slots]
            self.samples.append([float(value) for value in row])
            self.sample_due += self.rules.sample_every
        hours = max(0.0, now - max(self.now, self.rules.measure_from))
        self.class_hours = [total + gpus * hours for total, gpus in zip(self.class_hours, by_class, strict=True)]
        self.slot_hours = [total + count * hours for total, count in zip(self.slot_hours, slots, strict=True)]
        self.totals["waiting"] += hours * sum(w * gpus for w, gpus in zip(self.weights, by_class, strict=True))
        self.totals["slowdown"] += hours * sum(job.gpus * (1 - job.speed) for job in running)
        self.totals["stall"] += hours * stalled
        self.totals["busy"] += hours * busy
        self.totals["unreachable"] += hours * (free - usable)
        self.now = now

    def whole_nodes(self, r: int) -> int:
        """Free nodes of rack r that are as large as the cluster's largest."""
        return sum(self.usable(n) == self.whole for n in self.nodes_of((r,)))

    def hero_gpus(self) -> int:
        return max(1, math.ceil(self.rules.hero_share * self.cluster.gpus))

    # --- What happens to jobs and nodes -------------------------------------------------------------------------------

    def wait(self, job: Job) -> None:
        job.status, job.queued = "waiting", self.now
        self.unseen.add(job)

    def start(self, job: Job) -> None:
        job.waited += self.now - job.queued
        self.run(job)

    def run(self, job: Job) -> None:
        shares = Counter(node.rack for node in self.nodes for slot in node.slots if slot is job)
        largest = max(sum(len(self.nodes[n].slots) for n in self.nodes_of((r,))) for r in self.everywhere())
        job.speed = speed(job, list(shares.values()), largest, self.rules.collective, self.cluster.cliff)
        job.status, job.start = "running", self.now
        job.end = self.now + job.work / job.speed
        job.first_start = min(job.first_start, self.now)

    def stop(self, job: Job) -> None:
        self.remove(job)
        job.status = "stopped"

    def loss(self, job: Job, moved: bool) -> float:
        """Hours of work that stopping the job now costs: since its last checkpoint (unless moved), and the restart."""
        done, since = (self.now - job.start) * job.speed, 0.0
        if not moved and job.checkpoint == INF:
            since = done
        elif not moved and job.checkpoint > 0:
            since = done - job.checkpoint * math.floor(done / job.checkpoint)
        return since + job.restart

    def interrupt(self, job: Job, moved: bool = False) -> None:
        """Stop a running job before its end."""
        loss = self.loss(job, moved)
        job.work += loss - (self.now - job.start) * job.speed
        job.lost += loss
        if self.now >= self.rules.measure_from:
            self.totals["lost"] += job.gpus * loss
        self.stop(job)

    def evict(self, job: Job) -> None:
        self.interrupt(job)
        self.wait(job)
        job.evictions += 1
        self.counts["evictions"] += 1

    def _node_event(self, n: int, kind: NodeEventKind) -> bool:
        """True if capacity or quota grew."""
        node, counted = self.nodes[n], self.rules.verify_counted
        if kind == NodeEventKind.VERIFY:
            node.verified = node.verified or self.usable(n) == len(node.slots)
            return False
        if kind == NodeEventKind.VERIFY_END:
            ended, node.verified = node.verified, False
            return ended and counted
        if kind == NodeEventKind.CORDON:
            node.cordons += 1
            return False
        if kind == NodeEventKind.FAIL:
            grew = bool(node.jobs) or (node.verified and counted)
            node.verified = False
            for job in node.jobs:
                self.interrupt(job)
                self.wait(job)
                self.counts["failures"] += 1
            node.failures += 1
            return grew
        unblocks = node.failures > 0 if kind == NodeEventKind.REPAIR else node.cordons > 0
        if kind == NodeEventKind.REPAIR:
            node.failures -= unblocks
        else:
            node.cordons -= unblocks
        return unblocks and self.is_open(n)

    # --- Decisions ----------------------------------------------------------------------------------------------------

    def _look_at_everybody(self) -> None:
        self.unseen, self.shapeless = set(self.waiting()), []

    def _scan(self) -> bool:
        """Make the first waiting job with something to decide current."""
        for job in [job for job in self.waiting() if job in self.unseen]:
            self.unseen.remove(job)
            if job not in self.held and not self.is_blocked(job) and self._consider_new(job):
                self.current, self.opened = job, set()
                return True
        return False

    def _consider_new(self, job: Job) -> bool:
        self.slices_left, self.pods_left, self.scope, self.opened = job.slices, job.slice_pods, None, set()
        self.reach, by_priority = self._reach(job), self.rules.preemption == "priority"
        quota, enough = self.has_quota(job), job.gpus <= self.fits(self.everywhere(), 1)
        self.borrows = self.used([job.queue]) + job.gpus > self.queues[job.queue].nominal
        if quota and self.reach < 0 and enough:
            self.shapeless.append(job)
        if not by_priority and (not quota or (self.reach < 0 and not enough)):
            return False
        return self._find_legal(job, quota)

    def _reach(self, job: Job) -> int:
        """The height of the domains that are to hold the next slice; -1: the rest of the job does not fit."""
        p, pods, top = job.pod_gpus, self.pods_left, len(self.domains) - 1
        if self.fits(self.everywhere(), p) < self.slices_left * pods:
            return -1
        if job.mode == Mode.REQUIRED:
            height = min(job.height, top)
            return height if sum(self.fits(d, p) // pods for d in self.domains[height]) >= self.slices_left else -1
        if job.mode == Mode.UNCONSTRAINED:
            return 0 if any(self.fits(d, p) >= pods for d in self.domains[0]) else top
        heights = range(min(job.height, top), top + 1)
        return next(h for h in heights if any(self.fits(d, p) >= pods for d in self.domains[h]))

    def _find_legal(self, job: Job, quota: bool = True) -> bool:
        """Fill `legal`. True if there is anything but `hold`."""
        fits = self.scope is None or self.fits(self.scope, job.pod_gpus) >= self.pods_left
        self.legal = self.places(job) if self.reach >= 0 and quota and fits else self._openings(job)
        found = len(self.legal) > 0
        if self.rules.allow_hold:
            self.legal["hold", -1] = (0, 0.0)
        return found

    def places(self, job: Job) -> dict[Action, tuple[int, float]]:
        legal: dict[Action, tuple[int, float]] = {}
        part = self.pods_left if self.reach == 0 else 1
        for domain in self.domains[self.reach]:
            holds = domain == self.scope if self.scope else self.fits(domain, job.pod_gpus) >= self.pods_left
            legal |= {("place", r): (0, 0.0) for r in domain if holds and self.fits((r,), job.pod_gpus) >= part}
        spreads = job.mode == Mode.UNCONSTRAINED or (job.mode == Mode.PREFERRED and self.reach > 0)
        if self.rules.allow_fill and spreads and self.pods_left > 1:
            legal["fill", -1] = (0, 0.0)
        return legal

    def _openings(self, job: Job) -> dict[Action, tuple[int, float]]:
        if not self.rules.allow_open or self.rules.preemption == "never":
            return {}
        if self.rules.preemption == "priority":
            return {("open", r): cost for r, cost in Preemption(self, job).costs().items()}
        if job.mode != Mode.REQUIRED or job.height > 0 or job.pod_gpus < self.whole:
            return {}
        return {("open", r): cost for r, cost in Survey(self, job).openings(self.slices_left).items()}

    def apply(self, action: Action) -> bool:
        """True if the same job is up again."""
        job = self.current
        assert job is not None
        if action not in self.legal:
            self.counts["illegal"] += 1
            action = ("hold", -1)
        kind, rack = action
        if kind == "hold":
            self.remove(job)
            self.held.add(job)
            self.current = None
        elif kind == "fill":
            self._place(job, self._fill_domain(job), self.pods_left)
        else:
            if kind == "open" and self.rules.preemption == "priority":
                Preemption(self, job).open(rack)
                self.reach = self.open_height if self.reach < 0 else self.reach
            elif kind == "open":
                Survey(self, job).open(rack)
            self.scope = self.scope or next(d for d in self.domains[max(0, self.reach)] if rack in d)
            self._place(job, (rack,), min(self.pods_left, self.fits((rack,), job.pod_gpus)))
        if self.current is None and self.opened:
            self._look_at_everybody()
        if self.current is None:
            return False
        if self.scope is None:
            self.reach = self._reach(job)
        assert self._find_legal(job), "a job that was offered a first step can always go on"
        return True

    def _place(self, job: Job, racks: Domain, pods: int) -> None:
        """Some pods of the present slice; the job starts with the last one."""
        self.put_into(job, racks, pods)
        self.pods_left -= pods
        if self.pods_left == 0:
            self.slices_left, self.pods_left, self.scope = self.slices_left - 1, job.slice_pods, None
        if self.slices_left == 0:
            self.start(job)
            self.current = None

    def _fill_domain(self, job: Job) -> Domain:
        if self.scope:
            return self.scope
        if job.mode == Mode.UNCONSTRAINED:
            return self.everywhere()
        holding = [d for d in self.domains[self.reach] if self.fits(d, job.pod_gpus) >= self.pods_left]
        return min(holding, key=lambda d: self.fits(d, 1))

    def step(self, action: Action) -> bool:
        return self.apply(action) or self.advance()
