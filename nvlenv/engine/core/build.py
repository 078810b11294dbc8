"""From a snapshot to the simulator's arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from nvlenv.cluster.types import QueueSpec
from nvlenv.engine.core.book import Book
from nvlenv.engine.core.live import Live, Row, Seat
from nvlenv.engine.model.settings import Settings
from nvlenv.engine.model.snapshot import ClusterSnapshot, Job, NodeState
from nvlenv.simulator.occupancy import occupy, set_node
from nvlenv.simulator.state import NO_DEMAND, RUNNING, Sim

NO_QUEUE = ""  # the queue of jobs outside of all queues: it has no limit


def queues_of(cluster: ClusterSnapshot) -> tuple[QueueSpec, ...]:
    """The ClusterQueues, and one without a limit for jobs outside of them."""
    return (*cluster.queues, QueueSpec(NO_QUEUE, NO_DEMAND))


def live_of(cluster: ClusterSnapshot, queues: tuple[QueueSpec, ...], settings: Settings, began: float) -> Live:
    """The arrays of a cluster at the moment `began` (s since 1970) with everything that runs on it.

    Verification pods and pods without GPUs are not in them.
    """
    spec = cluster.cluster_spec(settings.nvlink, settings.network)
    names = [queue.name for queue in queues]
    number = {node.name: index for index, node in enumerate(cluster.nodes)}
    jobs = [job for job in cluster.jobs if job.gpus and not job.verification]
    rows = [(job.id, row_of(job, names, settings, spec.gpus_per_node)) for job in jobs]
    live = Live(spec, queues, settings, rows)
    for index, node in enumerate(cluster.nodes):
        if node.state == NodeState.FAILED:  # so far cordoned
            live.sim.nodes[index]["cordoned"], live.sim.nodes[index]["failed"] = 0, 1
    live.seat(list(range(len(rows))), [seat_of(job, number, began, settings) for job in jobs])
    seated = np.bincount(live.sim.gpu_job[live.sim.gpu_job >= 0], minlength=len(rows))
    held = live.sim.jobs[: len(rows)]
    held["movable"][seated < held["gpus"]] = 0  # on overcommitted nodes: its pods are not to be told apart
    return live


def crowded(cluster: ClusterSnapshot) -> frozenset[str]:
    """Nodes whose pods hold more GPUs than they have: some of these pods are about to end, or a GPU was lost."""
    held: Counter[str] = Counter()
    for job in cluster.jobs:
        held.update({} if job.verification else _gpus_on(job))
    return frozenset(node.name for node in cluster.nodes if held[node.name] > node.gpus)


def seat_rest(live: Live, book: Book, nodes: Iterable[str]) -> None:
    """Somebody left these crowded nodes: the others are now seen to hold there what they have held all along."""
    for node in nodes:
        number = book.number(node)
        for held in book.on(node):
            if held.ours or not held.job.gpus:
                continue
            row = live.rows[held.job.id][0]
            lacks = _gpus_on(held.job)[node] - live.gpus_of(row).get(number, 0)
            more = min(lacks, int(live.sim.nodes["free"][number]))
            if more > 0 and live.sim.jobs["status"][row] == RUNNING:  # not evicted at this very moment
                occupy(live.sim, row, number, more)


def _gpus_on(job: Job) -> Counter[str]:
    """GPUs of a job by node."""
    found: Counter[str] = Counter()
    for pod in job.pods:
        found[pod.node] += pod.gpus
    return found


def row_of(job: Job, queues: list[str], settings: Settings, largest: int) -> Row:
    """A running job, of which a snapshot knows where it is, not what it asked for.

    A job with pods of several sizes is not moved; nor is one with pods of more than the `largest` node has now (GPUs
    fall off nodes).
    """
    sizes = {pod.gpus for pod in job.pods if pod.gpus}
    equal = len(sizes) == 1 and all(0 < pod.gpus <= largest for pod in job.pods)
    return Row(
        gpus=job.gpus,
        pod_gpus=sizes.pop() if equal else 1,
        priority=job.priority,
        queue=queues.index(job.queue) if job.queue in queues else len(queues) - 1,
        estimate=settings.estimate_hours if job.estimate is None else job.estimate,
        checkpoint=settings.checkpoint_hours,
        restart=settings.restart_hours,
        preemptible=job.preemptible and not any(pod.terminating for pod in job.pods),
        movable=job.movable and equal,
    )


def seat_of(job: Job, number: dict[str, int], began: float, settings: Settings) -> Seat:
    """Where a running job is; `number` of each node by name."""
    start = 0.0 if job.start is None else min(0.0, (job.start - began) / 3600.0)
    estimate = settings.estimate_hours if job.estimate is None else job.estimate
    pods = [pod for pod in job.pods if pod.gpus]
    return Seat([number[pod.node] for pod in pods], [pod.gpus for pod in pods], start, start + estimate)


def set_state(sim: Sim, node: int, state: NodeState) -> None:
    """Change what keeps new pods from a node: nothing, a cordon or a failure."""
    record = sim.nodes[node]
    blocked = int(record["blocked"]) - int(record["cordoned"]) - int(record["failed"])
    record["cordoned"], record["failed"] = int(state == NodeState.CORDONED), int(state == NodeState.FAILED)
    set_node(sim, node, int(record["free"]), blocked + int(state != NodeState.UP))
