"""The front door of all readers: from files or texts to a cluster or jobs, whatever format they are in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nvlenv.common.errors import InputError
from nvlenv.engine.formats import kubernetes, native, slurm
from nvlenv.engine.formats.document import Field, read_documents, read_file
from nvlenv.engine.formats.kubernetes import is_object, objects_by_kind
from nvlenv.engine.formats.manifests import read_jobs
from nvlenv.engine.model.jobs import Job, check_job
from nvlenv.engine.model.snapshot import ClusterSnapshot, Options

TRIED = (
    "kubectl's JSON or YAML (a List, Node, Pod, or Kueue's Topology, ResourceFlavor, ClusterQueue, LocalQueue, "
    "Workload), "
    "the project's own JSON (with racks, or format), Slurm's topology.conf (BlockName=) or topology.yaml (block), "
    "a sinfo table (with NODELIST and STATE), scontrol show node (NodeName=)"
)


def read_cluster(texts: Iterable[tuple[str, str]], options: Options) -> ClusterSnapshot:
    """The cluster that these texts, each with the name of its file, describe together.

    Raises
    ------
    InputError : a text of no known format (says which were tried), formats that do not go together, bad content.
    """
    parts = slurm.Parts()
    objects: list[Field] = []
    own: list[Field] = []
    names = []
    for where, text in texts:
        names.append(where)
        if parts.take_text(where, text):
            continue
        documents = read_documents(where, text)
        for document in documents:
            if native.is_native(document):
                own.append(document)
            elif is_object(document):
                objects.append(document)
            elif not parts.take_document(document, options):
                raise InputError(where, "", "an unknown format", f"one of: {TRIED}")
        if not documents:
            raise InputError(where, "", "nothing", f"one of: {TRIED}")
    sources = {"the project's own JSON": own, "Kubernetes": objects, "Slurm": parts.sources}
    found = [name for name, source in sources.items() if source]
    where = " + ".join(names)
    if len(found) != 1 or len(own) > 1:
        raise InputError(where or "cluster", "", " and ".join(found) or "no file", "one cluster from one source")
    if not objects and (options.levels or options.nvlink_level):
        given = [*options.levels, *filter(None, [options.nvlink_level])]
        raise InputError(where, "levels", given, f"none, as {found[0]} has levels of its own")
    if own:
        return native.read_native(own[0])
    if parts.sources:
        return slurm.read_slurm(where, parts, options)
    by_kind = objects_by_kind(objects)
    if not by_kind:
        raise InputError(where, "", "objects of other kinds", f"one of: {TRIED}")
    return kubernetes.read_cluster(where, by_kind, options)


def load_snapshot(*paths: str | Path, **options: Any) -> ClusterSnapshot:
    """The cluster that these files describe together, e.g. `load_snapshot("topology.conf", "sinfo.txt")`.

    `options` are those of `nvlenv.engine.formats.load.Options`: `levels`, `nvlink_level`, `skip_unlabelled`, ...
    Raises `InputError` for a file that cannot be read or understood.
    """
    return _read([(str(path), read_file(path)) for path in paths], options)


def parse_snapshot(text: str, where: str = "cluster", **options: Any) -> ClusterSnapshot:
    """The cluster that one text describes; otherwise as `load_snapshot`."""
    return _read([(where, text)], options)


def _read(texts: list[tuple[str, str]], options: Mapping[str, Any]) -> ClusterSnapshot:
    return read_cluster(texts, Options(**options))


def load_job(path: str | Path, gpu_resource: str = "nvidia.com/gpu") -> Job:
    """The one job that a file describes; `-` is the standard input. `InputError` for none, several or a bad one."""
    return parse_job(read_file(path), str(path), gpu_resource)


def parse_job(text: str, where: str = "job", gpu_resource: str = "nvidia.com/gpu") -> Job:
    """The one job that a text describes; see `load_job`."""
    jobs = parse_jobs(text, where, gpu_resource)
    if len(jobs) != 1:
        raise InputError(where, "", f"{len(jobs)} jobs: {[job.name for job in jobs][:5]}", "one job")
    return jobs[0]


def parse_jobs(text: str, where: str = "job", gpu_resource: str = "nvidia.com/gpu") -> tuple[Job, ...]:
    """All jobs that a text describes, checked."""
    jobs = read_jobs(where, text, gpu_resource)
    for job in jobs:
        check_job(where, job)
    return tuple(jobs)
