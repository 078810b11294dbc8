"""Kueue's Topology Aware Scheduling as a policy of the simulator, under the name "kueue-tas".

What a job asks of Kueue follows from its mode (the level is that of its promise, by default the rack):

    unconstrained         podset-unconstrained-topology
    preferred             podset-preferred-topology: level
    required, one slice   podset-required-topology: level
    required, k slices    podset-slice-required-topology: level, with podset-slice-size

Gates are Kueue's defaults: BestFit for required and preferred, LeastFreeCapacity for the others. Kueue has no hold and
no reservation; it never lets a job wait that it could place, and neither does this policy. It preempts nobody: that is
`preemption_policy.py`.

Playing an episode by itself it binds every pod to the node that Kueue chooses. Asked decision by decision, it plans
the whole job when it comes up and then names the racks of that plan one after another; inside a rack the simulator
chooses the nodes. Where no action says what Kueue would do (LeastFreeCapacity scatters pods over the fullest nodes of
many racks), it takes the nearest legal one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from nvlenv.cluster.types import Mode
from nvlenv.common.kernel import kernel
from nvlenv.policies.kueue.snapshot import Snapshot
from nvlenv.policies.kueue.types import (
    HOSTNAME,
    Failure,
    KueueNode,
    Layer,
    PodSetRequest,
    TopologyMode,
    TopologyRequest,
)
from nvlenv.simulator.decision import Action, Decision
from nvlenv.simulator.events import start
from nvlenv.simulator.occupancy import occupy
from nvlenv.simulator.state import Sim
from nvlenv.simulator.step import advance, step

KUEUE = "kueue-tas"
GPU, PODS, MANY_PODS = "gpu", "pods", 1_000_000


class KueuePolicy:
    """Places whole jobs by Kueue's algorithm. One object may serve any number of simulators."""

    name = KUEUE

    def __init__(self) -> None:
        self._plans: dict[int, tuple[int, dict[int, int]]] = {}  # simulator -> the job's turn, pods still to go by rack

    def fresh(self) -> KueuePolicy:
        """The same policy without plans."""
        return KueuePolicy()

    def __call__(self, decision: Decision) -> Action:
        """The next rack of the plan for the job at hand."""
        sim, layout = decision.sim, decision.layout
        legal = np.flatnonzero(decision.mask[: layout.racks])
        if len(legal) == 0:
            return layout.hold
        where, turn = sim.clock.ctypes.data, int(sim.clock[0]["decisions"])
        planned_turn, plan = self._plans.get(where, (-1, {}))
        if turn != planned_turn or not any(decision.mask[rack] for rack in plan):
            plan = rack_counts(sim, KueueView(sim).place(sim))
            self._plans[where] = turn, plan
        racks = [rack for rack in plan if decision.mask[rack]]
        if not racks:
            return layout.fill if decision.mask[layout.fill] else int(legal[0])
        rack = max(racks, key=lambda r: (plan[r], -r))
        plan[rack] -= min(
            int(sim.clock[0]["pods_left"]), int(sim.cap[rack, sim.jobs[sim.clock[0]["current"]]["pod_gpus"]])
        )
        if plan[rack] <= 0:
            del plan[rack]
        return layout.place(rack)

    def play(self, sim: Sim) -> None:
        """Play an episode to its end, every pod on the node that Kueue chooses."""
        view, racks = KueueView(sim), len(sim.racks)
        alive = advance(sim)
        while alive:
            counts = view.place(sim) if sim.mask[:racks].any() else {}
            if counts:
                alive = _bind(sim, np.array(list(counts), np.int32), np.array(list(counts.values()), np.int32))
            else:
                alive = step(sim, 2 * racks + 1)


class KueueView:
    """The nodes of a simulator as Kueue sees them. Names are zero-padded, so that their order is that of numbers.

    Kueue leaves out blocked nodes; here they stay with nothing free, which is the same to every placement.
    """

    def __init__(self, sim: Sim) -> None:
        heights = sim.ancestors.shape[1] - 1  # the topmost domain is the whole cluster, for which Kueue has no level
        self.levels = tuple(_level(height) for height in reversed(range(heights)))
        nodes = [node for rack in sim.racks for node in range(int(rack["node0"]), int(rack["node1"]))]
        self._snapshot = Snapshot((*self.levels, HOSTNAME), [self._node(sim, node) for node in nodes])
        self._nodes = [int(leaf.path[-1]) for leaf in self._snapshot.tree.leaves]  # in Kueue's order

    def place(self, sim: Sim, without: Sequence[int] | np.ndarray = ()) -> dict[int, int]:
        """Pods of the rest of the job at hand by node; empty if Kueue would let it wait.

        without: running jobs to be thought away.
        """
        freed = np.isin(sim.gpu_job, without).reshape(len(sim.nodes), -1).sum(axis=1) if len(without) else 0
        self._set_free(sim, sim.nodes["free"] + freed)
        placed = self._snapshot.assign([self.podset(sim)])["job"]
        if isinstance(placed, Failure):
            return {}
        return {int(path[-1]): pods for path, pods in placed.domains}

    def empty(self, sim: Sim) -> Snapshot:
        """The nodes as if no job ran; valid until the view is used again."""
        self._set_free(sim, sim.nodes["gpus"])
        return self._snapshot

    def podset(self, sim: Sim) -> PodSetRequest:
        """What the rest of the job at hand asks for."""
        job = sim.jobs[sim.clock[0]["current"]]
        request = request_of(job, len(self.levels))
        return PodSetRequest("job", self.pods_left(sim), {GPU: int(job["pod_gpus"])}, request)

    def pods_left(self, sim: Sim) -> int:
        """Pods of the job at hand that are not yet placed."""
        c = sim.clock[0]
        return int(c["slices_left"] - 1) * int(sim.jobs[c["current"]]["slice_pods"]) + int(c["pods_left"])

    def name_of(self, node: int) -> str:
        """The name of a node, its last label value."""
        return f"{node:07d}"

    def _set_free(self, sim: Sim, gpus: np.ndarray) -> None:
        free = np.where(sim.nodes["blocked"] == 0, gpus, 0)[self._nodes].tolist()
        self._snapshot.free = [{GPU: gpus, PODS: MANY_PODS} for gpus in free]

    def _node(self, sim: Sim, node: int) -> KueueNode:
        name, domains = self.name_of(node), sim.ancestors[sim.nodes["rack"][node]]
        labels = {level: f"{domain:07d}" for level, domain in zip(reversed(self.levels), domains, strict=False)}
        return KueueNode(name, {**labels, HOSTNAME: name}, {})


def request_of(job: np.void, levels: int) -> TopologyRequest:
    """The topology request of a job (a row of `Sim.jobs`) on so many levels above the node.

    A promise of the whole cluster, which has no level of its own, is none.
    """
    level = _level(int(job["height"]))
    if job["mode"] == Mode.UNCONSTRAINED or job["height"] >= levels:
        return TopologyRequest(TopologyMode.UNCONSTRAINED)
    if job["mode"] == Mode.PREFERRED:
        return TopologyRequest(TopologyMode.PREFERRED, level)
    if job["slices"] > 1:
        return TopologyRequest(TopologyMode.SLICE_ONLY, slices=(Layer(level, int(job["slice_pods"])),))
    return TopologyRequest(TopologyMode.REQUIRED, level)


def rack_counts(sim: Sim, counts: dict[int, int]) -> dict[int, int]:
    """Pods by rack from pods by node."""
    racks: Counter[int] = Counter()
    for node, pods in counts.items():
        racks[int(sim.nodes[node]["rack"])] += pods
    return racks


def _level(height: int) -> str:
    return f"level-{height}"


@kernel
def _bind(sim, nodes, pods):
    """Start the job at hand with so many pods on each of these nodes. Returns False if no decision follows."""
    j = sim.clock[0].current
    for k in range(len(nodes)):
        occupy(sim, j, nodes[k], pods[k] * sim.jobs[j].pod_gpus)
    start(sim, j)
    sim.clock[0].current = -1
    return advance(sim)
