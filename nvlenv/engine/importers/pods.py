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
    running = Demand()
    for container in spec["containers"]:
        running = running.plus(_container(container, gpu_resource))
    starting, sidecars = Demand(), Demand()
    for container in spec["initContainers"]:
        demand = _container(container, gpu_resource)
        if container["restartPolicy"].value == "Always":
            sidecars = sidecars.plus(demand)
        starting = starting.most(sidecars if container["restartPolicy"].value == "Always" else sidecars.plus(demand))
    return _whole_pod(spec, running.plus(sidecars).most(starting)).plus(_resources(spec["overhead"], gpu_resource))


def _whole_pod(spec: Field, containers: Demand) -> Demand:
    """Pod-level requests, which exist for cpu and memory only."""
    requests, limits = spec["resources"]["requests"], spec["resources"]["limits"]
    cpu = requests["cpu"] if requests["cpu"].present else limits["cpu"]
    memory = requests["memory"] if requests["memory"].present else limits["memory"]
    return Demand(
        containers.gpus,
        read_quantity(cpu, 1000) if cpu.present else containers.cpu,
        read_quantity(memory) if memory.present else containers.memory,
    )


def _container(container: Field, gpu_resource: str) -> Demand:
    """Requests, or limits where no request is given."""
    requests, limits = container["resources"]["requests"], container["resources"]["limits"]
    asked, limit = _resources(requests, gpu_resource), _resources(limits, gpu_resource)
    return Demand(
        asked.gpus if requests[gpu_resource].present else limit.gpus,
        asked.cpu if requests["cpu"].present else limit.cpu,
        asked.memory if requests["memory"].present else limit.memory,
    )


def _resources(resources: Field, gpu_resource: str) -> Demand:
    return Demand(
        gpus=read_whole(resources[gpu_resource]),
        cpu=read_quantity(resources["cpu"], 1000),
        memory=read_quantity(resources["memory"]),
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
