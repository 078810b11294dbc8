"""The reference simulator's jobs and nodes, and how fast a job runs where it is."""

from __future__ import annotations

import math

from nvlenv.cluster.types import Mode, Workload

INF = math.inf


class Job:
    """What the workload says about a job, and what has become of it."""

    def __init__(self, w: Workload, number: int) -> None:
        self.number, self.queue, self.klass = number, int(w.queue[number]), int(w.job_class[number])
        self.submit, self.duration = float(w.submit[number]), float(w.duration[number])
        self.gpus, self.pod_gpus = int(w.gpus[number]), int(w.gpus_per_pod[number])
        self.mode, self.height, self.comm = Mode(w.mode[number]), int(w.height[number]), float(w.comm_fraction[number])
        self.slice_gpus = int(w.slice_gpus[number])
        self.priority, self.preemptible = int(w.priority[number]), bool(w.preemptible[number])
        self.movable, self.preempts = bool(w.movable[number]), bool(w.preempts[number])
        self.checkpoint, self.restart = float(w.checkpoint_interval[number]), float(w.restart_time[number])
        sliced = self.mode == Mode.REQUIRED and self.slice_gpus > 0
        self.slices = self.gpus // self.slice_gpus if sliced else 1
        self.slice_pods = self.gpus // self.slices // self.pod_gpus
        self.status = "pending"  # then waiting, running, done
        self.work, self.speed, self.start, self.end, self.queued = self.duration, 0.0, 0.0, 0.0, 0.0
        self.first_start, self.finish, self.waited, self.lost, self.evictions = INF, INF, 0.0, 0.0, 0


class Node:
    """One node: who is on each of its GPUs, and what keeps new pods away."""

    def __init__(self, rack: int, gpus: int, cordoned: bool) -> None:
        self.rack = rack
        self.slots: list[Job | None] = [None] * gpus
        self.cordons, self.failures, self.verified = int(cordoned), 0, False

    @property
    def free(self) -> int:
        return self.slots.count(None)

    @property
    def jobs(self) -> list[Job]:
        """The jobs with a pod here, in the order of the GPUs."""
        return list(dict.fromkeys(job for job in self.slots if job is not None))


def speed(job: Job, shares: list[int], rack: int, model: str, cliff: float) -> float:
    """Progress per hour with these GPUs in each rack, relative to the best shape for the job's size and slice.

    The best shape fills racks (the largest has `rack` GPUs) with as many slices as they hold; without slices, with the
    whole job or, if no rack holds it, with the largest power of two that one does.
    """
    if job.comm == 0:
        return 1.0
    chunk = job.slice_gpus or job.gpus
    if chunk > rack:
        chunk = 2 ** int(math.log2(rack))
    share = rack // chunk * chunk
    best = [share] * (job.gpus // share) + [job.gpus % share] * (job.gpus % share > 0)
    ratio, ideal = (relative_time(model, shape, cliff) for shape in (shares, best))
    return min(1.0, 1.0 / ((1.0 - job.comm) + job.comm * ratio / ideal))


def relative_time(model: str, shares: list[int], cliff: float) -> float:
    """Communication time, relative to all ranks in one rack, of ranks numbered rack by rack, larger share first.

    Recursive doubling plays the rounds, pair by pair, with ranks made up to a power of two in the last rack. A ring is
    as slow as its slowest link.
    """
    if model == "ring":
        return cliff if len(shares) > 1 else 1.0
    racks = [rack for rack, gpus in enumerate(sorted(shares, reverse=True)) for _ in range(gpus)]
    while len(racks) & (len(racks) - 1):
        racks.append(racks[-1])
    distances = [2**k for k in range(len(racks).bit_length() - 1)]
    times = [1.0 if all(racks[i] == racks[i ^ d] for i in range(len(racks))) else cliff for d in distances]
    return sum(times) / len(times) if times else 1.0
