"""Kueue's topology request: the annotations of a pod template, or `topologyRequest` of a workload's pod set."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from nvlenv.engine.importers.document import Field, shown
from nvlenv.policies.kueue.types import Layer
from nvlenv.types import Mode

PREFIX = "kueue.x-k8s.io/podset-"
MAX_LAYERS = 3
MAX_SIZE = 2**31 - 1
TRUE, FALSE = ("1", "t", "T", "true", "TRUE", "True"), ("0", "f", "F", "false", "FALSE", "False")  # Go's ParseBool

_LABEL = re.compile(
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)


@dataclass(frozen=True)
class Request:
    mode: Mode = Mode.UNCONSTRAINED
    level: str = ""
    slices: tuple[Layer, ...] = ()
    group: str = ""


def annotated(meta: Field) -> Request:
    """The request of a pod template's metadata, or of a pod's."""
    notes = meta["annotations"]
    given = {key.removeprefix(PREFIX): field for key, field in notes.entries() if key.startswith(PREFIX)}
    absent = Field(notes.where, None)
    unconstrained = given.get("unconstrained-topology", absent)
    if unconstrained.present and unconstrained.value not in TRUE:
        expected = '"true", or no such annotation' if unconstrained.value in FALSE else '"true"'
        raise unconstrained.error(expected)
    layers = given.get("slice-required-topology-constraints", absent)
    return _request(
        notes,
        required=given.get("required-topology", absent),
        preferred=given.get("preferred-topology", absent),
        unconstrained=unconstrained,
        slice_level=given.get("slice-required-topology", absent),
        slice_size=given.get("slice-size", absent),
        layers=_from_json(layers),
        group=given.get("group-name", absent),
    )


def requested(field: Field) -> Request:
    """The request of a workload's `topologyRequest`."""
    unconstrained = field["unconstrained"]
    return _request(
        field,
        required=field["required"],
        preferred=field["preferred"],
        unconstrained=unconstrained if unconstrained.flag(False) else Field(field.where, None),
        slice_level=field["podSetSliceRequiredTopology"],
        slice_size=field["podSetSliceSize"],
        layers=field["podsetSliceRequiredTopologyConstraints"],
        group=field["podSetGroupName"],
    )


def misplaced(meta: Field) -> None:
    """Raise for a topology annotation on the job itself, where Kueue does not look."""
    for key, field in meta["annotations"].entries():
        if key.startswith(PREFIX):
            raise field.error("it on the pod template (spec.template.metadata.annotations)", found="it on the job")


def _request(
    whole: Field,
    *,
    required: Field,
    preferred: Field,
    unconstrained: Field,
    slice_level: Field,
    slice_size: Field,
    layers: Field,
    group: Field,
) -> Request:
    """The request, by the rules of Kueue's validation."""
    chosen = [field for field in (required, preferred, unconstrained) if field.present]
    if len(chosen) > 1:
        raise chosen[1].error("one of required, preferred and unconstrained", found="a second topology request")
    mode = Mode.REQUIRED if required.present else Mode.PREFERRED if preferred.present else Mode.UNCONSTRAINED
    level = _label(chosen[0]) if chosen and mode != Mode.UNCONSTRAINED else ""
    if slice_level.present != slice_size.present:
        one = slice_level if slice_level.present else slice_size
        raise one.error("slice-required-topology and slice-size together", found="one without the other")
    if layers.present and slice_level.present:
        raise layers.error("either slice-required-topology and slice-size, or the constraints", found="both")
    slices = tuple(_layers(layers))
    if slice_level.present:
        slices = (Layer(_label(slice_level), _size(slice_size)),)
    if not group.present:
        return Request(mode, level, slices)
    if re.fullmatch(r"[0-9]+", group.text()):
        raise group.error("a name that is not a number")
    return Request(mode, level, slices, group.text())


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
    if isinstance(field.value, str) and re.fullmatch(r"\+?[0-9]{1,12}", field.value):
        return _bounded(field, int(field.value))
    if isinstance(field.value, str):
        raise field.error("a whole number >= 1")
    return _bounded(field, field.integer(at_least=1))


def _bounded(field: Field, size: int) -> int:
    if not 1 <= size <= MAX_SIZE:
        raise field.error(f"a whole number from 1 to {MAX_SIZE}", found=shown(size))
    return size


def _label(field: Field) -> str:
    text = field.text()
    if len(text) > 317 or not _LABEL.fullmatch(text):
        raise field.error("a node label such as cloud.provider.com/topology-rack")
    return text
