"""Jobs from Kubernetes manifests: Job, JobSet, Deployment, StatefulSet, Kueue's Workload, pods.

`READERS` finds the pod templates of each kind, `_template` reads one of them into a pod set, `_job` reads what is said
of the job as a whole: a new field of a pod template is one more line of `_template`, one of a job a line of `_job`.
Kueue's topology request stands in the annotations of a pod template, or in `topologyRequest` of a workload's pod set.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from nvlenv.cluster.types import Mode
from nvlenv.engine.formats.document import Field, Objects, quoted
from nvlenv.engine.formats.kueue import GROUP_NAME, GROUP_SIZE, QUEUE_LABEL
from nvlenv.engine.formats.values import pod_demand, read_tolerations
from nvlenv.engine.model.jobs import Job, PodSet
from nvlenv.policies.kueue.types import Layer

KINDS = ("Job", "JobSet", "Deployment", "StatefulSet", "Workload", "Pod")
SERVICES = ("Deployment", "StatefulSet")  # their pods can be restarted one by one
MAX_SECONDS_LABEL = "kueue.x-k8s.io/max-exec-time-seconds"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
SYSTEM_PRIORITIES = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}
Templates = list[tuple[Field, PodSet]]  # a pod template, or the pod itself, and what it asks for

PREFIX = "kueue.x-k8s.io/podset-"
# The parts of a topology request: as annotation behind the prefix, and as key of a workload's `topologyRequest`.
PARTS = {
    "required": ("required-topology", "required"),
    "preferred": ("preferred-topology", "preferred"),
    "unconstrained": ("unconstrained-topology", "unconstrained"),
    "slice_level": ("slice-required-topology", "podSetSliceRequiredTopology"),
    "slice_size": ("slice-size", "podSetSliceSize"),
    "layers": ("slice-required-topology-constraints", "podsetSliceRequiredTopologyConstraints"),
    "group": ("group-name", "podSetGroupName"),
}
MAX_LAYERS = 3
MAX_SIZE = 2**31 - 1
TRUE, FALSE = ("1", "t", "T", "true", "TRUE", "True"), ("0", "f", "F", "false", "FALSE", "False")  # Go's ParseBool

_LABEL = re.compile(
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)


class ShapeRequest(NamedTuple):
    """What a pod set asks of the topology, as `PodSet` keeps it."""

    mode: Mode = Mode.UNCONSTRAINED
    level: str = ""
    slices: tuple[Layer, ...] = ()
    group: str = ""


def read_manifests(objects: Objects, gpu_resource: str) -> list[Job]:
    """The jobs among these objects, unchecked; priority classes among them give jobs their priority."""
    jobs = []
    for kind, templates_of in READERS.items():
        for item in objects.get(kind, ()):
            named = _named(item, kind)
            for key, field in named["metadata"]["annotations"].entries():
                if key.startswith(PREFIX):  # Kueue does not look there
                    raise field.error("it on the pod template (spec.template.metadata.annotations)", "it on the job")
            jobs.append(_job(named, templates_of(named, gpu_resource), objects, kind in SERVICES))
    groups = _pod_groups(objects.get("Pod", ()))
    return jobs + [_job(group[0], _of_pods(group, gpu_resource), objects, serves=False) for group in groups]


def _named(item: Field, kind: str) -> Field:
    return item.named(f"{kind} {item['metadata']['name'].text()}")


def _of_job(job: Field, gpu_resource: str) -> Templates:
    return [_template("main", _parallel(job["spec"]), job["spec"]["template"], gpu_resource)]


def _parallel(spec: Field) -> int:
    """Pods of a batch Job that run together."""
    parallelism = spec["parallelism"].integer(1, at_least=1)
    return min(parallelism, spec["completions"].integer(parallelism, at_least=1))


def _of_job_set(job_set: Field, gpu_resource: str) -> Templates:
    templates = []
    for entry in job_set["spec"]["replicatedJobs"]:
        spec = entry["template"]["spec"]
        count = entry["replicas"].integer(1, at_least=1) * _parallel(spec)
        templates.append(_template(entry["name"].text(), count, spec["template"], gpu_resource))
    if not templates:
        raise job_set["spec"]["replicatedJobs"].error("at least one replicated job")
    return templates


def _of_service(service: Field, gpu_resource: str) -> Templates:
    replicas = service["spec"]["replicas"].integer(1, at_least=1)
    return [_template("main", replicas, service["spec"]["template"], gpu_resource)]


def _of_workload(workload: Field, gpu_resource: str) -> Templates:
    templates = []
    for entry in workload["spec"]["podSets"]:
        count, asked = entry["count"].integer(1, at_least=0), entry["topologyRequest"]
        request = _requested(asked) if asked.present else None
        if count:  # Kueue skips pod sets without pods
            templates.append(_template(entry["name"].text("main"), count, entry["template"], gpu_resource, request))
    if not templates:
        raise workload["spec"]["podSets"].error("at least one pod set with pods")
    return templates


READERS = {"Job": _of_job, "JobSet": _of_job_set, **dict.fromkeys(SERVICES, _of_service), "Workload": _of_workload}


def _pod_groups(pods: Sequence[Field]) -> list[list[Field]]:
    """Pods by themselves, or joined by Kueue's label for pod groups."""
    groups: dict[tuple[str, str, bool], list[Field]] = {}
    for item in pods:
        meta = item["metadata"]
        group = meta["labels"].texts().get(GROUP_NAME, "")
        key = meta["namespace"].text("default"), group or meta["name"].text(), bool(group)
        groups.setdefault(key, []).append(_named(item, "Pod"))
    return list(groups.values())


def _of_pods(members: list[Field], gpu_resource: str) -> Templates:
    """The pod sets of a group: equal pods make one. If all that there are are equal, those still to come are too."""
    roles: list[tuple[PodSet, list[Field]]] = []
    for pod in members:
        _, own = _template("main", 1, pod, gpu_resource)
        equal = next((pods for known, pods in roles if known == own), None)
        if equal is None:
            roles.append((own, [pod]))
        else:
            equal.append(pod)
    size = members[0]["metadata"]["annotations"][GROUP_SIZE]
    total = _count(size) if size.present else len(members)
    if len(members) > total or (len(roles) > 1 and len(members) < total):
        raise size.error(f"the number of pods given, {len(members)}")
    if len(roles) == 1:
        return [(members[0], replace(roles[0][0], pods=total))]
    return [(pods[0], replace(own, name=f"main-{n}", pods=len(pods))) for n, (own, pods) in enumerate(roles)]


def _template(
    name: str, count: int, template: Field, gpu_resource: str, request: ShapeRequest | None = None
) -> tuple[Field, PodSet]:
    """A pod template and its pod set; without a given request, the annotations say what it asks for."""
    asked, spec = request or _annotated(template["metadata"]), template["spec"]
    gpus, cpu, memory = pod_demand(spec, gpu_resource)
    selector, tolerations = spec["nodeSelector"].texts(), read_tolerations(spec)
    return template, PodSet(name, count, gpus, cpu, memory, *asked, selector, tolerations)


def _job(item: Field, templates: Templates, objects: Objects, serves: bool) -> Job:
    meta, spec, first = item["metadata"], item["spec"], templates[0][0]
    labels = meta["labels"].texts()
    priority, notes = _priority(item, first["spec"], objects)
    limits = (spec["activeDeadlineSeconds"], spec["maximumExecutionTimeSeconds"], meta["labels"][MAX_SECONDS_LABEL])
    limit = next((limit for limit in (*limits, first["spec"]["activeDeadlineSeconds"]) if limit.present), None)
    return Job(
        name=labels.get(GROUP_NAME) or meta["name"].text(),
        pod_sets=tuple(pods for _, pods in templates),
        namespace=meta["namespace"].text("default"),
        uid=meta["uid"].text(""),
        gang=labels.get(GROUP_NAME, ""),
        queue=spec["queueName"].text(labels.get(QUEUE_LABEL, ""), empty=True),
        priority=priority,
        estimate=None if limit is None else _count(limit) / 3600,
        preemptible=not serves,
        movable=serves and all(pods.mode == Mode.UNCONSTRAINED and not pods.slices for _, pods in templates),
        notes=notes,
    )


def _count(field: Field) -> int:
    """A whole number >= 1, also as the text that labels and annotations hold."""
    if isinstance(field.value, str) and field.value.isascii() and field.value.isdigit() and len(field.value) < 10:
        return Field(field.where, int(field.value), field.path).integer(at_least=1)
    return field.integer(at_least=1)


def _priority(item: Field, pod: Field, objects: Objects) -> tuple[int, tuple[str, ...]]:
    """The priority, and a note if only the name of an unknown class is there.

    Kueue's own class on the job goes before the pods' class. Numbers are in the file only where an admission
    controller has put them, or if the class itself is.
    """
    spec = item["spec"]
    if spec["priority"].present:  # of a workload, or of a pod
        return spec["priority"].integer(), ()
    own = item["metadata"]["labels"].texts().get(PRIORITY_LABEL, "") or spec["priorityClassRef"]["name"].text("")
    name = own or spec["priorityClassName"].text("", empty=True) or pod["priorityClassName"].text("", empty=True)
    kinds = ("WorkloadPriorityClass",) if own else ("PriorityClass", "WorkloadPriorityClass")
    if pod["priority"].present and not own:
        return pod["priority"].integer(), ()
    for known in (known for kind in kinds for known in objects.get(kind, ())):
        if known["metadata"]["name"].value == name:
            return known["value"].integer(), ()
    if name and name not in SYSTEM_PRIORITIES:
        return 0, (f"priority class {name} is not in the file: priority 0",)
    return SYSTEM_PRIORITIES.get(name, 0), ()


def _annotated(meta: Field) -> ShapeRequest:
    """The request of a pod template's metadata, or of a pod's."""
    notes, absent = dict(meta["annotations"].entries()), Field(meta.where, None)
    parts = {part: notes.get(PREFIX + name, absent) for part, (name, _) in PARTS.items()}
    chosen = parts["unconstrained"]
    if chosen.present and chosen.value not in TRUE:
        raise chosen.error('"true", or no such annotation' if chosen.value in FALSE else '"true"')
    return _checked({**parts, "layers": _from_json(parts["layers"])})


def _requested(field: Field) -> ShapeRequest:
    """The request of a workload's `topologyRequest`."""
    parts = {part: field[name] for part, (_, name) in PARTS.items()}
    if not parts["unconstrained"].flag(False):
        parts["unconstrained"] = Field(field.where, None)
    return _checked(parts)


def _checked(parts: Mapping[str, Field]) -> ShapeRequest:
    """The request, by the rules of Kueue's validation."""
    modes = {"required": Mode.REQUIRED, "preferred": Mode.PREFERRED, "unconstrained": Mode.UNCONSTRAINED}
    chosen = [(parts[name], mode) for name, mode in modes.items() if parts[name].present]
    if len(chosen) > 1:
        raise chosen[1][0].error("one of required, preferred and unconstrained", found="a second topology request")
    asked, mode = chosen[0] if chosen else (parts["unconstrained"], Mode.UNCONSTRAINED)
    level = _label(asked) if mode != Mode.UNCONSTRAINED else ""
    slice_level, slice_size, layers, group = (parts[name] for name in ("slice_level", "slice_size", "layers", "group"))
    if slice_level.present != slice_size.present:
        one = slice_level if slice_level.present else slice_size
        raise one.error("slice-required-topology and slice-size together", found="one without the other")
    if layers.present and slice_level.present:
        raise layers.error("either slice-required-topology and slice-size, or the constraints", found="both")
    pair = slice_level.present
    slices = (Layer(_label(slice_level), _size(slice_size)),) if pair else tuple(_layers(layers))
    if group.present and re.fullmatch(r"[0-9]+", group.text()):
        raise group.error("a name that is not a number")
    return ShapeRequest(mode, level, slices, group.text(""))


def _from_json(annotation: Field) -> Field:
    """The list inside the constraints annotation."""
    if not annotation.present:
        return annotation
    try:
        value = json.loads(annotation.value)
    except (ValueError, TypeError, RecursionError):
        value = None
    if not isinstance(value, list):
        raise annotation.error("a JSON list of {topology, size}")
    return Field(annotation.where, value, annotation.path)


def _layers(layers: Field) -> Iterator[Layer]:
    entries = list(layers)
    if layers.present and not 1 <= len(entries) <= MAX_LAYERS:
        raise layers.error(f"1 to {MAX_LAYERS} layers")
    seen: set[str] = set()
    for entry in entries:
        level = _label(entry["topology"])
        if level in seen:
            raise entry["topology"].error("every level once")
        seen.add(level)
        yield Layer(level, _bounded(entry["size"], entry["size"].integer(at_least=1)))


def _size(field: Field) -> int:
    """The slice size: a text in an annotation, a number in a workload."""
    if not isinstance(field.value, str):
        return _bounded(field, field.integer(at_least=1))
    if not re.fullmatch(r"\+?[0-9]{1,12}", field.value):
        raise field.error("a whole number >= 1")
    return _bounded(field, int(field.value))


def _bounded(field: Field, size: int) -> int:
    if not 1 <= size <= MAX_SIZE:
        raise field.error(f"a whole number from 1 to {MAX_SIZE}", found=quoted(size))
    return size


def _label(field: Field) -> str:
    text = field.text()
    if len(text) > 317 or not _LABEL.fullmatch(text):
        raise field.error("a node label such as cloud.provider.com/topology-rack")
    return text
