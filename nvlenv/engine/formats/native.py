"""The project's own JSON: a cluster or a job typed by hand, and the snapshots that `ClusterSnapshot.as_json` writes.

A cluster in the short form is a list of free GPUs for each rack, or the same with the racks' names:

    {"racks": [[4, 4, 0], [4, 2, 2]], "gpus_per_node": 4}          {"racks": {"rack-a": [4, 4, 0]}}

What is not free there belongs to work of which nothing is known, so it is neither preemptible nor movable. The long
form has a `format` and everything that a snapshot holds. A job:

    {"name": "hero", "gpus": 512, "slice_pods": 16, "priority": 4, "estimate_hours": 24, "queue": "research"}

`pods`, `gpus` and `gpus_per_pod` give each other; `mode` is required, preferred or unconstrained at `level`; every
`slice_pods` pods share a domain of `slice_level`; levels default to the NVLink domain; cpu and memory of one pod are
quantities as in Kubernetes; `leader` adds a single pod placed together with the others.

The models below are these formats: a new key is one more field of its model, and of what is built from it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, model_validator
from pydantic import Field as Is

from nvlenv.cluster.types import Mode, QueueSpec
from nvlenv.common.config import Model, Steps, validated
from nvlenv.common.errors import InputError
from nvlenv.engine.formats.document import Field, quoted
from nvlenv.engine.formats.values import QUANTITY, scaled_quantity
from nvlenv.engine.model.jobs import UNLIMITED, Job, Pod, PodSet
from nvlenv.engine.model.snapshot import FORMAT, ClusterSnapshot, Node, NodeState, make_snapshot
from nvlenv.policies.kueue.types import Layer, Taint

GPUS_PER_NODE = 4  # NVL72
GPUS_PER_POD = 4  # of a job that only says how many GPUs it wants; a whole NVL72 node


def _printable(text: str) -> str:
    if not text.isprintable():
        raise InputError("text", "", quoted(text), "a text of printable characters")
    return text


def _quantity(scale: int) -> BeforeValidator:
    """Reads a quantity of Kubernetes as `scale` times its value, rounded up."""

    def read(value: Any) -> int:
        amount = scaled_quantity(value, scale)
        if amount is None:
            raise InputError("quantity", "", quoted(value), QUANTITY)
        return amount

    return BeforeValidator(read)


Printable = Annotated[str, AfterValidator(_printable)]
Text = Annotated[Printable, Is(min_length=1)]
Whole = Annotated[int, Is(ge=-(2**63), lt=2**63)]
Amount = Annotated[int, Is(ge=0, lt=2**63)]
Size = Annotated[int, Is(ge=1, lt=2**63)]
Number = Annotated[float, Is(ge=0, lt=1e18)]
Cpu = Annotated[int, _quantity(1000)]  # milli-cores
Memory = Annotated[int, _quantity(1)]  # bytes
T = TypeVar("T")
Many = Annotated[tuple[T, ...], Is(strict=False)]  # a list
F = TypeVar("F", bound="_Form")


class _Form(Model):
    """A mapping that is strict about its keys and their types; null is the same as a missing key."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {key: value for key, value in data.items() if value is not None or key not in cls.model_fields}


# Clusters


_Rack = Annotated[list[Amount], BeforeValidator(lambda frees: [] if frees is None else frees)]  # free GPUs of each node


class _RacksForm(_Form):
    racks: list[_Rack] | dict[Printable, _Rack]
    gpus_per_node: Size = GPUS_PER_NODE


class _TaintForm(_Form):
    key: Text
    value: Text = ""
    effect: Text = "NoSchedule"


class _NodeForm(_Form):
    name: Text
    path: Many[Text] = ()
    gpus: Size
    cpu: Amount = UNLIMITED
    memory: Amount = UNLIMITED
    pods: Amount = UNLIMITED
    state: Annotated[NodeState, Is(strict=False)] = NodeState.UP
    taints: Many[_TaintForm] = ()
    labels: dict[Printable, Printable] = Is(default_factory=dict)


class _PodForm(_Form):
    node: Text
    gpus: Amount
    cpu: Amount = 0
    memory: Amount = 0
    name: Text = ""
    uid: Text = ""
    terminating: bool = False


class _JobForm(_Form):
    id: Text
    pods: Many[_PodForm] = ()
    name: Text = ""
    namespace: Text = ""
    uid: Text = ""
    queue: Text = ""
    priority: Whole = 0
    preemptible: bool = False
    movable: bool = False
    verification: bool = False
    start: Number | None = None
    estimate: Number | None = None


class _QueueForm(_Form):
    name: Text
    nominal: Amount
    cohort: Text = ""
    borrowing_limit: Annotated[int, Is(ge=-1, lt=2**63)] = -1
    strict: bool = False


class _SnapshotForm(_Form):
    format: Literal["nvlenv-cluster/1"]
    levels: Many[Text] = ()
    nvlink_level: Text
    nodes: Many[_NodeForm] = ()
    jobs: Many[_JobForm] = ()
    queues: Many[_QueueForm] = ()
    local_queues: dict[Printable, Printable] = Is(default_factory=dict)
    notes: Many[Text] = ()


def is_native_cluster(document: Field) -> bool:
    """Whether a document is a cluster of either form."""
    return isinstance(document.value, dict) and ("racks" in document.value or "format" in document.value)


def read_native_cluster(document: Field) -> ClusterSnapshot:
    """The cluster of one document of either form. `InputError` names the first key that is unknown or wrong."""
    if document["racks"].present:
        return _of_racks(document)
    if document["format"].value != FORMAT:  # another version has other keys: this goes first
        raise document["format"].error(repr(FORMAT))
    form = _validated(_SnapshotForm, document)
    return make_snapshot(
        document.where,
        form.levels,
        form.nvlink_level,
        [Node(**{**dict(n), "taints": tuple(Taint(**dict(taint)) for taint in n.taints)}) for n in form.nodes],
        [Job(**{**dict(job), "pods": tuple(Pod(**dict(pod)) for pod in job.pods)}) for job in form.jobs],
        [QueueSpec(**dict(queue)) for queue in form.queues],
        form.local_queues,
        form.notes,
    )


def _of_racks(document: Field) -> ClusterSnapshot:
    form = _validated(_RacksForm, document)
    size, racks = form.gpus_per_node, form.racks
    named = racks if isinstance(racks, dict) else {f"rack-{number:03d}": frees for number, frees in enumerate(racks)}
    nodes, jobs = [], []
    for place, (rack, frees) in enumerate(named.items()):
        for number, free in enumerate(frees):
            if free > size:
                wrong = document.at(("racks", rack if isinstance(racks, dict) else place, number))
                raise wrong.error(f"at most {size} GPUs (gpus_per_node)")
            name = f"{rack}-node-{number:02d}"
            nodes.append(Node(name, (rack, name), size))
            if free < size:
                jobs.append(Job(f"{name}/used", (Pod(name, size - free),), name="used"))
    return make_snapshot(document.where, ("rack", "hostname"), "rack", nodes, jobs)


# Jobs


class _LeaderForm(_Form):
    gpus: Amount = 0
    cpu: Cpu = 0
    memory: Memory = 0


class _RequestForm(_Form):
    name: Text = "job"
    namespace: Text = "default"
    pods: Size | None = None
    gpus: Size | None = None
    gpus_per_pod: Amount | None = None
    cpu: Cpu = 0
    memory: Memory = 0
    mode: Literal["unconstrained", "preferred", "required"] = "unconstrained"
    level: Text = ""
    slice_level: Text = ""
    slice_pods: Size | None = None
    leader: _LeaderForm | None = None
    queue: Text = ""
    priority: Whole = 0
    estimate_hours: Number | None = None
    preemptible: bool = True
    movable: bool = False
    exclusive: bool = False
    comm_fraction: Annotated[float, Is(ge=0, lt=1)] | None = None
    checkpoint_hours: Number | None = None
    restart_hours: Number | None = None


def is_native_job(document: Field) -> bool:
    """Whether a document is a job: one says how many pods or GPUs it has."""
    return isinstance(document.value, dict) and ("pods" in document.value or "gpus" in document.value)


def read_native_job(document: Field) -> Job:
    """The job of one document. `InputError` names the first key that is unknown, wrong or at odds with another."""
    form = _validated(_RequestForm, document)
    pods, per_pod = _pods_and_gpus(form, document)
    if form.level and form.mode == "unconstrained":
        raise document["level"].error("mode required or preferred beside it")
    if form.slice_level and not form.slice_pods:
        raise document["slice_pods"].error("a whole number >= 1")
    slices = (Layer(form.slice_level, form.slice_pods),) if form.slice_pods else ()
    mode = Mode[form.mode.upper()]
    pod_sets = [PodSet("main", pods, per_pod, form.cpu, form.memory, mode, form.level, slices)]
    if own := form.leader:  # a single pod that asks for the same shape, and comes first
        workers = replace(pod_sets[0], group="main")
        leader = replace(workers, name="leader", pods=1, gpus_per_pod=own.gpus, cpu=own.cpu, memory=own.memory)
        pod_sets = [leader, workers]
    fields = Job.__dataclass_fields__.keys() - {"pods"}  # those of a form are a number
    same = {key: value for key, value in form if key in fields}
    return Job(pod_sets=tuple(pod_sets), estimate=form.estimate_hours, **same)


def _pods_and_gpus(form: _RequestForm, document: Field) -> tuple[int, int]:
    """Pods and GPUs of each: two of pods, gpus and gpus_per_pod give the third; a pod takes a node by default."""
    pods, gpus, per_pod = form.pods, form.gpus, form.gpus_per_pod
    if per_pod == 0 and not (pods and gpus):
        raise document["gpus_per_pod"].error("a whole number >= 1")
    if gpus is None:
        if pods is None:
            raise document["pods"].error("a whole number >= 1")
        return pods, GPUS_PER_POD if per_pod is None else per_pod
    if per_pod is None:
        per_pod = gpus // pods if pods else min(GPUS_PER_POD, gpus)
    pods = pods or gpus // per_pod
    if pods * per_pod != gpus:
        raise document["gpus"].error("pods times gpus_per_pod")
    return pods, per_pod


def _validated(form: type[F], document: Field) -> F:
    """The document as that form; an error names the place as `Field` writes it."""

    def path(_: Any, steps: Steps) -> str:
        return document.at(steps).path

    return validated(form, document.value, document.where, path)
