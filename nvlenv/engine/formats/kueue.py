"""Kueue's objects: topology assignments in both of their forms, queues with quota, flavors.

Kueue writes an assignment in two forms. v1beta1 lists the domains one by one. v1beta2 lists *slices* of consecutive
domains, each level by level: one value for all of them, or their common prefix and suffix and what is left of each.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from os.path import commonprefix
from typing import Any

from nvlenv.cluster.types import QueueSpec
from nvlenv.engine.formats.document import Field
from nvlenv.engine.formats.values import read_whole
from nvlenv.policies.kueue.types import HOSTNAME, Assignment, Path

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
GROUP_NAME = "kueue.x-k8s.io/pod-group-name"
GROUP_SIZE = "kueue.x-k8s.io/pod-group-total-count"

MAX_LEVELS = 16
MAX_SLICES = 1000
MAX_SLICE_DOMAINS = 100_000
MAX_READ = 1_000_000  # domains, and pods, of one assignment: what is short to write must not be long to read

Domains = Sequence[tuple[Path, int]]  # (label values, pods)
Selector = dict[str, str]


def make_assignment(levels: Sequence[str], pods: Iterable[Path]) -> Assignment:
    """The assignment of pods whose nodes have these label values, one path per pod.

    Domains come in the order of their paths. Where the last level is the host name it says all, and stands alone.
    """
    counts = sorted(Counter(pods).items())
    if levels[-1] == HOSTNAME:
        return Assignment((HOSTNAME,), tuple((path[-1:], count) for path, count in counts))
    return Assignment(tuple(levels), tuple(counts))


def to_v1beta1(assignment: Assignment) -> dict[str, Any]:
    """`{levels, domains: [{values, count}]}`."""
    domains = [{"values": list(values), "count": count} for values, count in assignment.domains]
    return {"levels": list(assignment.levels), "domains": domains}


def to_v1beta2(assignment: Assignment, by_prefix: bool = True) -> dict[str, Any]:
    """`{levels, slices}`, encoded as Kueue does.

    With `by_prefix` (Kueue's gate TASAssignmentsEncodingByHostnamePrefix, on by default) hosts that share a prefix form
    slices of their own, unless a single slice is shorter as JSON.
    """
    levels, domains = assignment.levels, assignment.domains
    single = [_slice(domains)] if domains else []
    if not by_prefix:
        return {"levels": list(levels), "slices": single}
    split = [_slice(chunk) for run in _runs(levels, domains) for chunk in _chunks(run)]
    if len(split) > 1 and len(domains) <= MAX_SLICE_DOMAINS:
        split = min(split, single, key=lambda slices: len(json.dumps(slices, separators=(",", ":"))))
    return {"levels": list(levels), "slices": split}


def _slice(domains: Domains) -> dict[str, Any]:
    """One slice, as compact as it can be."""
    counts = [count for _, count in domains]
    return {
        "domainCount": len(domains),
        "valuesPerLevel": [_level(values) for values in zip(*(path for path, _ in domains), strict=True)],
        "podCounts": {"universal": counts[0]} if len(set(counts)) == 1 else {"individual": counts},
    }


def _level(values: Sequence[str]) -> dict[str, Any]:
    """The values of one level; where prefix and suffix overlap in the shortest value, the prefix gives way."""
    if len(set(values)) == 1:
        return {"universal": values[0]}
    suffix = commonprefix([value[::-1] for value in values])[::-1]  # noqa: RUF071 - of letters, these are no paths
    prefix = commonprefix(values)[: min(map(len, values)) - len(suffix)]  # noqa: RUF071
    roots = [value[len(prefix) : len(value) - len(suffix)] for value in values]
    ends = {"prefix": prefix, "suffix": suffix}
    return {"individual": {**{name: end for name, end in ends.items() if end}, "roots": roots}}


def _runs(levels: Sequence[str], domains: Domains) -> list[Domains]:
    """Consecutive domains whose hosts share their longest common prefix; all in one run if they are no hosts."""
    if levels[-1] != HOSTNAME or len(domains) < 2:
        return [domains] if domains else []
    prefixes = [_prefixes(path[-1]) for path, _ in domains]
    shared = Counter(prefix for own in prefixes for prefix in own)
    for depth in range(max(map(len, prefixes)), 0, -1):
        keys = [next((p for p in reversed(own[:depth]) if shared[p] > 1), "") for own in prefixes]
        numbered = groupby(range(len(domains)), key=keys.__getitem__)
        runs = [[domains[number] for number in group] for _, group in numbered]
        if sum(1 for run in runs for _ in _chunks(run)) <= MAX_SLICES:
            return list(runs)
    return [domains]


def _prefixes(host: str) -> list[str]:
    """What a host name starts with, up to each "-" that does not end it."""
    return [host[: end + 1] for end, letter in enumerate(host[:-1]) if letter == "-"]


def _chunks(run: Domains) -> Iterator[Domains]:
    for start in range(0, len(run), MAX_SLICE_DOMAINS):
        yield run[start : start + MAX_SLICE_DOMAINS]


def parse_assignment(data: Any, where: str = "topologyAssignment") -> Assignment:
    """The assignment that a v1beta1 or v1beta2 object holds, or `InputError`."""
    return read_assignment(Field(where, data))


def read_assignment(field: Field) -> Assignment:
    """As `parse_assignment`, from inside a document."""
    levels = tuple(level.text() for level in field["levels"])
    if not 1 <= len(levels) <= MAX_LEVELS:
        raise field["levels"].error(f"1 to {MAX_LEVELS} node labels")
    if field["domains"].present == field["slices"].present:
        raise field.error("either domains (v1beta1) or slices (v1beta2)")
    read = _read_domains if field["domains"].present else _read_slices
    assignment = Assignment(levels, tuple(read(field, len(levels))))
    if assignment.pods > MAX_READ:
        raise field.error(f"at most {MAX_READ} pods", found=f"{assignment.pods} pods")
    return assignment


def _read_domains(field: Field, levels: int) -> Iterator[tuple[Path, int]]:
    for domain in field["domains"]:
        values = tuple(value.text() for value in domain["values"])
        if len(values) != levels:
            raise domain["values"].error(f"{levels} values, one per level")
        yield values, domain["count"].integer(at_least=1)


def _read_slices(field: Field, levels: int) -> Iterator[tuple[Path, int]]:
    slices = list(field["slices"])
    if len(slices) > MAX_SLICES:
        raise field["slices"].error(f"at most {MAX_SLICES} slices")
    left = MAX_READ
    for entry in slices:
        count = entry["domainCount"].integer(at_least=1)
        columns = list(entry["valuesPerLevel"])
        if len(columns) != levels:
            raise entry["valuesPerLevel"].error(f"{levels} entries, one per level")
        left -= count
        if count > MAX_SLICE_DOMAINS or left < 0:
            raise entry["domainCount"].error(f"at most {MAX_SLICE_DOMAINS} domains a slice, {MAX_READ} in all")
        yield from zip(
            zip(*(_read_level(column, count) for column in columns), strict=True),
            _read_counts(entry["podCounts"], count),
            strict=True,
        )


def _read_level(column: Field, count: int) -> list[str]:
    """The values of one level, one for each domain of the slice."""
    if _universal(column):
        return [column["universal"].text()] * count
    individual = column["individual"]
    prefix, suffix = individual["prefix"].text(""), individual["suffix"].text("")
    roots = list(individual["roots"])
    if len(roots) != count:
        raise individual["roots"].error(f"{count} texts, one per domain")
    ends = bool(prefix or suffix)  # a root may be empty, a value may not
    return [prefix + root.text(empty=ends) + suffix for root in roots]


def _read_counts(counts: Field, count: int) -> list[int]:
    """Pods of each domain of the slice."""
    if _universal(counts):
        return [counts["universal"].integer(at_least=1)] * count
    pods = [entry.integer(at_least=1) for entry in counts["individual"]]
    if len(pods) != count:
        raise counts["individual"].error(f"{count} numbers, one per domain")
    return pods


def _universal(field: Field) -> bool:
    if field["universal"].present == field["individual"].present:
        raise field.error("either universal or individual")
    return field["universal"].present


def node_selectors(assignment: Assignment) -> list[Selector]:
    """The node selector of each pod of the assignment, by rank: each domain's for as many pods as it has."""
    named = ((dict(zip(assignment.levels, values, strict=True)), count) for values, count in assignment.domains)
    return [dict(selector) for selector, count in named for _ in range(count)]


def read_queue(queue: Field, gpu_resource: str, flavors: frozenset[str] | None) -> QueueSpec:
    """A ClusterQueue's GPU quota, summed over its flavors (over those named, if any are)."""
    spec = queue["spec"]
    quotas = (
        resource
        for group in spec["resourceGroups"]
        for flavor in group["flavors"]
        if flavors is None or flavor["name"].text() in flavors
        for resource in flavor["resources"]
        if resource["name"].text() == gpu_resource
    )
    nominal, limit = 0, 0
    for resource in quotas:
        nominal += read_whole(resource["nominalQuota"])
        borrowing = resource["borrowingLimit"]
        limit = limit + read_whole(borrowing) if borrowing.present and limit >= 0 else -1
    strategy = spec["queueingStrategy"].text("BestEffortFIFO")
    if strategy not in ("BestEffortFIFO", "StrictFIFO"):
        raise spec["queueingStrategy"].error("BestEffortFIFO or StrictFIFO")
    cohort = spec["cohortName"] if spec["cohortName"].present else spec["cohort"]  # v1beta2, v1beta1
    name, strict = queue["metadata"]["name"].text(), strategy == "StrictFIFO"
    return QueueSpec(name, nominal, cohort.text("", empty=True), limit, strict)


def read_local_queues(queues: Iterable[Field]) -> dict[str, str]:
    """The ClusterQueue of each LocalQueue, which goes by "namespace/name"."""
    named = ((queue["metadata"], queue["spec"]["clusterQueue"]) for queue in queues)
    return {f"{meta['namespace'].text('default')}/{meta['name'].text()}": to.text() for meta, to in named}


def topology_flavors(flavors: Sequence[Field], topology: Field) -> dict[str, dict[str, str]]:
    """Name and node labels of the ResourceFlavors that belong to a Topology."""
    name = topology["metadata"]["name"].text()
    return {
        flavor["metadata"]["name"].text(): flavor["spec"]["nodeLabels"].texts()
        for flavor in flavors
        if flavor["spec"]["topologyName"].value == name
    }
