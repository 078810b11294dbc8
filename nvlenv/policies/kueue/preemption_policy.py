"""Kueue's placement and its preemption as a policy of the simulator, under the name "kueue-tas+preemption".

It places as `policy.py` does. Where a job lacks quota or a place, it evicts the very jobs that Kueue would, and starts
in their stead at the same instant (Kueue waits until they are gone). What differs from a cluster:

- A job that the simulator protects (not preemptible, or evicted too often already) is no candidate.
- Every ClusterQueue preempts by the same two policies, by default lower priorities only, its own and its cohort's.

Playing an episode by itself it also preempts for jobs that `open` has no answer for: lacking GPUs or quota, spreading
over racks, smaller than a node. Asked decision by decision it names the rack to open in which most of the job would go,
and the simulator chooses the victims there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nvlenv.common.kernel import kernel
from nvlenv.policies.kueue.policy import GPU, KUEUE, KueuePolicy, KueueView, rack_counts
from nvlenv.policies.kueue.preemption import AssignmentMode, KueueState, WorkloadInfo, assignment_mode, find_targets
from nvlenv.policies.kueue.quota import ClusterQueue, PreemptionPolicy, ResourceQuota
from nvlenv.policies.kueue.types import Usage
from nvlenv.simulator.decision import Action, Decision
from nvlenv.simulator.events import evict, start
from nvlenv.simulator.feasibility import consider
from nvlenv.simulator.occupancy import occupy
from nvlenv.simulator.queues import is_blocked, stays_waiting
from nvlenv.simulator.state import RUNNING, Sim
from nvlenv.simulator.step import look_again, next_event

KUEUE_PREEMPTION = f"{KUEUE}+preemption"
FLAVOR = "gpus"  # the only one
WHAT = (FLAVOR, GPU)


class KueuePreemptionPolicy(KueuePolicy):
    """Places whole jobs by Kueue's algorithm and makes room for them by its preemption.

    within, reclaim: `withinClusterQueue` and `reclaimWithinCohort` of every ClusterQueue.
    """

    name = KUEUE_PREEMPTION

    def __init__(
        self,
        within: PreemptionPolicy = PreemptionPolicy.LOWER_PRIORITY,
        reclaim: PreemptionPolicy = PreemptionPolicy.LOWER_PRIORITY,
    ) -> None:
        super().__init__()
        self._policies = within, reclaim

    def fresh(self) -> KueuePreemptionPolicy:
        """The same policy without plans."""
        return KueuePreemptionPolicy(*self._policies)

    def __call__(self, decision: Decision) -> Action:
        """The next rack of the plan for the job at hand; if nothing fits, a rack to open or `hold`."""
        sim, layout = decision.sim, decision.layout
        opens = decision.mask[layout.racks : 2 * layout.racks]
        if decision.mask[: layout.racks].any() or not opens.any():
            return super().__call__(decision)
        view = KueueView(sim)
        victims = self.victims(sim, view)
        racks = rack_counts(sim, view.place(sim, without=victims)) if victims else {}
        legal = [rack for rack in racks if opens[rack]]
        return layout.open(max(legal, key=lambda rack: (racks[rack], -rack))) if legal else layout.hold

    def play(self, sim: Sim) -> None:
        """Play an episode to its end: every waiting job has its turn whenever something was given back."""
        view, racks = KueueView(sim), len(sim.racks)
        while _next_turn(sim):
            fits = sim.mask[:racks].any()
            victims = [] if fits else self.victims(sim, view)
            counts = view.place(sim, without=victims) if fits or victims else {}
            if counts:
                _preempt_and_bind(sim, *(np.array(list(each), np.int32) for each in (victims, counts, counts.values())))
            else:
                _pass_over(sim)

    def victims(self, sim: Sim, view: KueueView) -> list[int]:
        """The running jobs that Kueue preempts for the job at hand, which does not fit; empty: it waits."""
        may_go = _preemptible(sim)
        job = sim.jobs[sim.clock[0]["current"]]
        if set(self._policies) <= {PreemptionPolicy.NEVER, PreemptionPolicy.LOWER_PRIORITY}:
            may_go &= sim.jobs["priority"] < job["priority"]
        if sim.jobs["gpus"][may_go].sum() + int(sim.cap[-1, 1]) < view.pods_left(sim) * job["pod_gpus"]:
            return []
        if not view.place(sim, without=np.flatnonzero(may_go)):  # all of them gone are not enough: no search is needed
            return []
        state, incoming = self._state(sim, view, may_go)
        mode, needs = assignment_mode(state, incoming)
        if mode != AssignmentMode.PREEMPT:
            return []
        return [int(target.workload.name) for target in find_targets(state, incoming, needs)]

    def _state(self, sim: Sim, view: KueueView, may_go: np.ndarray) -> tuple[KueueState, WorkloadInfo]:
        """All that Kueue knows: queues, running jobs, nodes; and the job at hand as it asks."""
        admitted: list[WorkloadInfo] = []
        protected: list[WorkloadInfo] = []
        verified = sim.queues["used"].copy()  # usage that no running job explains: nodes that are being verified
        for j, usage in _usage_by_job(sim, view).items():
            runs = sim.jobs[j]["status"] == RUNNING
            info = _workload(sim, j, usage, int(sim.jobs[j]["gpus"]) if runs else 0)
            (admitted if may_go[j] else protected).append(info)
            if runs:
                verified[sim.jobs[j]["queue"]] -= sim.jobs[j]["gpus"]
        for q, gpus in enumerate(verified):
            protected.append(WorkloadInfo(f"verification-{q}", f"{q}", {WHAT: int(gpus)}))
        current = int(sim.clock[0]["current"])
        asks = _workload(sim, current, (), int(view.pods_left(sim) * sim.jobs[current]["pod_gpus"]))
        incoming = replace(asks, podsets={FLAVOR: [view.podset(sim)]})
        topologies = {FLAVOR: view.empty(sim)}
        return KueueState(_queues(sim, *self._policies), (), admitted, topologies, protected), incoming


def _preemptible(sim: Sim) -> np.ndarray:
    """(J,) bool: running jobs that the simulator lets anybody evict."""
    jobs = sim.jobs
    not_too_often = jobs["evictions"] < sim.clock[0]["max_evictions"]
    in_use = np.arange(len(jobs)) < sim.clock[0]["n_jobs"]
    return in_use & (jobs["status"] == RUNNING) & (jobs["preemptible"] == 1) & not_too_often


def _usage_by_job(sim: Sim, view: KueueView) -> dict[int, list[Usage]]:
    """Pods of every job with GPUs, by node; those on blocked nodes, which Kueue has left out, are no usage."""
    per_node = sim.gpu_job.reshape(len(sim.nodes), -1)
    held = Counter(zip(per_node[per_node >= 0].tolist(), np.nonzero(per_node >= 0)[0].tolist(), strict=True))
    usage: dict[int, list[Usage]] = {}
    for (j, node), gpus in held.items():
        entries, pod_gpus = usage.setdefault(j, []), int(sim.jobs[j]["pod_gpus"])
        if sim.nodes[node]["blocked"] == 0:
            entries.append(Usage((view.name_of(node),), {GPU: pod_gpus}, gpus // pod_gpus))
    return usage


def _workload(sim: Sim, j: int, usage: Sequence[Usage], gpus: int) -> WorkloadInfo:
    job = sim.jobs[j]
    return WorkloadInfo(
        name=f"{j:07d}",
        cluster_queue=str(job["queue"]),
        requests={WHAT: gpus},
        priority=int(job["priority"]),
        created=float(job["submit"]),
        quota_reserved=float(job["start"]),
        usage={FLAVOR: usage},
    )


def _queues(sim: Sim, within: PreemptionPolicy, reclaim: PreemptionPolicy) -> list[ClusterQueue]:
    return [
        ClusterQueue(
            name=str(q),
            quotas={WHAT: ResourceQuota(int(queue["nominal"]), int(queue["limit"] - queue["nominal"]))},
            cohort=f"cohort-{queue['cohort']}",
            within_cluster_queue=within,
            reclaim_within_cohort=reclaim,
        )
        for q, queue in enumerate(sim.queues)
    ]


@kernel
def _next_turn(sim):
    """Bring up the next waiting job that has not had its turn, with its mask; False: the window ended.

    Other than for `advance` a job's turn comes although nothing is legal for it; that counts as no decision.
    """
    c = sim.clock[0]
    while True:
        while c.unseen > 0 and c.cursor < c.n_waiting:
            j = sim.waiting[c.cursor]
            if sim.jobs[j].seen != c.epoch:
                sim.jobs[j].seen = c.epoch
                c.unseen -= 1
                if not is_blocked(sim, j):
                    if consider(sim, j):
                        c.decisions += 1
                    else:
                        for a in range(len(sim.mask)):
                            sim.mask[a] = False
                    c.slices_left, c.pods_left, c.scope = sim.jobs[j].slices, sim.jobs[j].slice_pods, -1
                    c.current = j
                    return True
                stays_waiting(sim, j)
            c.cursor += 1
        if not next_event(sim):
            return False


@kernel
def _pass_over(sim):
    """The job at hand waits."""
    c = sim.clock[0]
    stays_waiting(sim, c.current)
    c.current = -1
    c.cursor += 1


@kernel
def _preempt_and_bind(sim, victims, nodes, pods):
    """Evict, then start the job at hand with so many pods on each of these nodes."""
    j = sim.clock[0].current
    for k in range(len(victims)):
        evict(sim, victims[k])
    for k in range(len(nodes)):
        occupy(sim, j, nodes[k], pods[k] * sim.jobs[j].pod_gpus)
    start(sim, j)
    sim.clock[0].current = -1
    if len(victims) > 0:
        look_again(sim)
