"""What a Kubernetes pod asks of a node, by the rules of kube-scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from nvlenv.engine.importers.document import Field
from nvlenv.engine.importers.quantities import read_quantity, read_whole
from nvlenv.policies.kueue.types import Toleration

GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class Demand:
    """Resources of one pod: GPUs, milli-cores, bytes."""

    gpus: int = 0
    cpu: int = 0
    memory: int = 0

    def plus(self, other: Demand) -> Demand:
        return Demand(self.gpus + other.gpus, self.cpu + other.cpu, self.memory + other.memory)

    def most(self, other: Demand) -> Demand:
        return Demand(max(self.gpus, other.gpus), max(self.cpu, other.cpu), max(self.memory, other.memory))


def pod_demand(spec: Field, gpu_resource: str = GPU) -> Demand:
    """What a pod of this spec takes from its node while it runs or starts.

    Containers and sidecars (init containers that restart always) run together; each other init container runs alone
    beside the sidecars started before it; the larger counts. Requests on the whole pod replace those of its containers,
    the overhead of the runtime class comes on top.
    """
    running, starting, sidecars = Demand(), Demand(), Demand()
    for container in spec["containers"]:
        running = running.plus(_asked(container["resources"], Demand(), gpu_resource))
    for container in spec["initContainers"]:
        demand = _asked(container["resources"], Demand(), gpu_resource)
        if container["restartPolicy"].value == "Always":
            sidecars = sidecars.plus(demand)
            demand = Demand()
        starting = starting.most(sidecars.plus(demand))
    containers = running.plus(sidecars).most(starting)
    whole = _asked(spec["resources"], containers, "") if spec["resources"].present else containers
    overhead = spec["overhead"]
    return whole.plus(_amounts(overhead, overhead, Demand(), gpu_resource)) if overhead.present else whole


def _asked(resources: Field, default: Demand, gpu_resource: str) -> Demand:
    """Requests, limits where no request is given, and the default where there is neither."""
    return _amounts(resources["requests"], resources["limits"], default, gpu_resource)


def _amounts(requests: Field, limits: Field, default: Demand, gpu_resource: str) -> Demand:
    gpus, cpu, memory = (
        requests[name] if requests[name].present else limits[name] for name in (gpu_resource, "cpu", "memory")
    )
    return Demand(
        read_whole(gpus) if gpus.present else default.gpus,
        read_quantity(cpu, 1000) if cpu.present else default.cpu,
        read_quantity(memory) if memory.present else default.memory,
    )


def read_tolerations(spec: Field) -> tuple[Toleration, ...]:
    return tuple(
        Toleration(
            key=entry["key"].text("", empty=True),
            operator=entry["operator"].text("Equal"),
            value=entry["value"].text("", empty=True),
            effect=entry["effect"].text("", empty=True),
        )
        for entry in spec["tolerations"]
    )
