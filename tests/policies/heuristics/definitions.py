"""What each packing rule says, from a look at every node; slow and obvious."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from nvlenv.cluster.types import Mode
from nvlenv.simulator.state import RUNNING, Sim

Nodes = list[int]  # free GPUs of each usable node


def nodes_of(sim: Sim, r: int) -> Nodes:
    nodes = sim.nodes[sim.racks[r]["node0"] : sim.racks[r]["node1"]]
    return [int(n["free"]) for n in nodes if n["blocked"] == 0]


def racks_under(sim: Sim, domain: int) -> list[int]:
    real = [r for r in range(len(sim.racks)) if sim.racks[r]["node1"] > sim.racks[r]["node0"]]
    return [r for r in real if domain in sim.ancestors[r]]


def room(nodes: Nodes, pod_gpus: int) -> int:
    """Pods that fit."""
    return sum(free // pod_gpus for free in nodes)


def after(nodes: Nodes, pod_gpus: int, pods: int) -> Nodes:
    """What is left once so many pods are placed, each on the tightest node that fits."""
    left = list(nodes)
    for _ in range(pods):
        tightest = min((free, n) for n, free in enumerate(left) if free >= pod_gpus)[1]
        left[tightest] -= pod_gpus
    return left


def current(sim: Sim) -> Any:
    return sim.jobs[sim.clock[0]["current"]]


def part(sim: Sim, r: int) -> int:
    """Pods of the present slice that rack r takes."""
    return min(int(sim.clock[0]["pods_left"]), room(nodes_of(sim, r), int(current(sim)["pod_gpus"])))


def left_after(sim: Sim, r: int) -> Nodes:
    return after(nodes_of(sim, r), int(current(sim)["pod_gpus"]), part(sim, r))


def whole(nodes: Nodes, node_gpus: int) -> int:
    return sum(free == node_gpus for free in nodes)


def node_gpus(sim: Sim) -> int:
    return sim.cap.shape[1] - 1


# --- The rules: the legal rack with the smallest key wins -------------------------------------------------------------


def first_fit(sim: Sim, r: int) -> tuple[Any, ...]:
    return ()


def least_allocated(sim: Sim, r: int) -> tuple[Any, ...]:
    return (-sum(nodes_of(sim, r)),)


def most_allocated(sim: Sim, r: int) -> tuple[Any, ...]:
    return (sum(nodes_of(sim, r)) / int((sim.racks["node1"] - sim.racks["node0"])[r]),)


def best_fit(sim: Sim, r: int) -> tuple[Any, ...]:
    return sum(nodes_of(sim, r)), whole(nodes_of(sim, r), node_gpus(sim))


def hierarchical_best_fit(sim: Sim, r: int) -> tuple[Any, ...]:
    p = int(current(sim)["pod_gpus"])
    return tuple(sum(room(nodes_of(sim, s), p) for s in racks_under(sim, domain)) for domain in sim.ancestors[r])


def anchor_loss(sim: Sim, r: int) -> tuple[Any, ...]:
    g = node_gpus(sim)
    before, left = whole(nodes_of(sim, r), g), whole(left_after(sim, r), g)
    return (*(before // size - left // size for size in (16, 8, 4)), sum(nodes_of(sim, r)))


def lifetime(sim: Sim, r: int) -> tuple[Any, ...]:
    now, g = float(sim.clock[0]["now"]), node_gpus(sim)
    slots = sim.gpu_job[sim.racks[r]["node0"] * g : sim.racks[r]["node1"] * g]
    blocked = np.repeat(sim.nodes["blocked"][sim.racks[r]["node0"] : sim.racks[r]["node1"]] > 0, g)
    unsure = {int(n) for n in np.flatnonzero((slots >= 0) & (sim.jobs["status"][slots] != RUNNING)) // g}
    known = [k for k in range(len(slots)) if slots[k] >= 0 and not blocked[k] and k // g not in unsure]
    ends = [predicted_end(sim, sim.jobs[slots[k]]) for k in known]
    stays = float(current(sim)["estimate_error"] * current(sim)["work"])
    return max(0.0, stays - max([0.0, *(end - now for end in ends)])), sum(nodes_of(sim, r))


def predicted_end(sim: Sim, job: Any) -> float:
    """By the estimate; each time the job outlives it, half as long again (at least a minute)."""
    run = float(job["predicted"] - job["start"])
    while job["start"] + run <= sim.clock[0]["now"]:
        run = max(1 / 60, 1.5 * run)
    return float(job["start"] + run)


def mix_of(sim: Sim) -> list[tuple[int, int, float]]:
    """The shapes of all jobs of the workload: pods that want to share a rack, GPUs per pod, share of the jobs."""
    jobs = sim.jobs[: sim.clock[0]["n_jobs"]]
    shapes = Counter(
        (int(j["slice_pods"]) if j["mode"] != Mode.UNCONSTRAINED and j["height"] == 0 else 1, int(j["pod_gpus"]))
        for j in jobs
    )
    return [(pods, gpus, count / len(jobs)) for (pods, gpus), count in shapes.items()]


def stranded(nodes: Nodes, pods: int, pod_gpus: int) -> int:
    """Free GPUs of a rack that such a job cannot use: all if it does not fit, else those of too small nodes."""
    fits = room(nodes, pod_gpus) >= pods
    return sum(free for free in nodes if not fits or free < pod_gpus)


def expected_stranded(nodes: Nodes, mix: list[tuple[int, int, float]]) -> float:
    """The fragmentation measure of Weng et al. (USENIX ATC '23), taken from the node to the rack."""
    return sum(share * stranded(nodes, pods, pod_gpus) for pods, pod_gpus, share in mix)


def fgd(sim: Sim, r: int) -> tuple[Any, ...]:
    mix, before, left = mix_of(sim), nodes_of(sim, r), left_after(sim, r)
    rise = expected_stranded(left, mix) - expected_stranded(before, mix)
    return round(rise, 7), sum(before)


def slurm_block(sim: Sim, r: int) -> tuple[Any, ...]:
    height, block = slurm_domain(sim)
    p = int(current(sim)["pod_gpus"])
    return int(sim.ancestors[r, height]) != block, room(nodes_of(sim, r), p)


def slurm_domain(sim: Sim) -> tuple[int, int]:
    """The lowest level with a domain for all that is left of the job, and of those domains the one with least room."""
    c, job = sim.clock[0], current(sim)
    if c["scope"] >= 0:
        return int(c["reach"]), int(c["scope"])
    p = int(job["pod_gpus"])

    def pods(domain: int) -> int:
        return sum(room(nodes_of(sim, r), p) for r in racks_under(sim, domain))

    def segments(domain: int, height: int) -> int:
        inner = min(int(job["height"]), height) if job["mode"] == Mode.REQUIRED else height
        return sum(
            pods(d) // int(c["pods_left"]) for d in {int(sim.ancestors[r, inner]) for r in racks_under(sim, domain)}
        )

    for height in range(sim.ancestors.shape[1] - 1):
        domains = sorted({int(sim.ancestors[r, height]) for r in range(len(sim.racks))})
        fitting = [d for d in domains if segments(d, height) >= c["slices_left"]]
        if fitting:
            return height, min(fitting, key=pods)
    return sim.ancestors.shape[1] - 1, len(sim.cap) - 1


DEFINITIONS: dict[str, Callable[[Sim, int], tuple[Any, ...]]] = {
    "first-fit": first_fit,
    "least-allocated": least_allocated,
    "most-allocated": most_allocated,
    "best-fit": best_fit,
    "hierarchical-best-fit": hierarchical_best_fit,
    "anchor-loss": anchor_loss,
    "lifetime": lifetime,
    "rack-fgd": fgd,
    "slurm-block": slurm_block,
}


def best_rack(sim: Sim, rule: str, allowed: list[int]) -> int:
    """Of the allowed racks the one with the largest part of the slice, then the smallest key, then the lowest index."""
    return min(allowed, key=lambda r: (-part(sim, r), DEFINITIONS[rule](sim, r), r))
