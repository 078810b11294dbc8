"""The front door of all readers: from files or texts to a cluster or to jobs, whatever format they are in.

A text is tried as each format in turn, and nothing is guessed after the first that knows it:

| | a cluster (`read_snapshot`) | a job (`parse_jobs`) | read by |
|---|---|---|---|
| 1 | Slurm's topology.conf, scontrol show node, sinfo | sbatch options, a script with #SBATCH | slurm, sbatch |
| 2 | the project's own JSON: racks, or format | the project's own JSON: pods or gpus | native |
| 3 | Kubernetes' and Kueue's objects: kind | the same | kubernetes, kueue, gangs; manifests |
| 4 | Slurm's topology.yaml: a list with topology | | slurm |

The first is plain text; the others are documents, JSON or YAML (document.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvlenv.common.commandline import option
from nvlenv.common.errors import InputError
from nvlenv.engine.formats.document import Field, read_documents, read_file
from nvlenv.engine.formats.kubernetes import is_object, objects_by_kind, read_kubernetes
from nvlenv.engine.formats.manifests import KINDS, read_manifests
from nvlenv.engine.formats.native import is_native_cluster, is_native_job, read_native_cluster, read_native_job
from nvlenv.engine.formats.options import Options
from nvlenv.engine.formats.sbatch import is_sbatch, read_sbatch
from nvlenv.engine.formats.slurm import Parts, read_slurm
from nvlenv.engine.model.jobs import Job, check_job
from nvlenv.engine.model.snapshot import GPU, ClusterSnapshot

CLUSTER_FORMATS = (
    "one of: kubectl's JSON or YAML (a List, Node, Pod, or Kueue's Topology, ResourceFlavor, ClusterQueue, LocalQueue, "
    "Workload), the project's own JSON (with racks, or format), Slurm's topology.conf (BlockName=) or topology.yaml "
    "(block), a sinfo table (with NODELIST and STATE), scontrol show node (NodeName=)"
)
JOB_FORMATS = (
    f"one of: a Kubernetes {', '.join(KINDS[:-1])} or {KINDS[-1]}, a batch script with #SBATCH lines or an sbatch "
    "option line, the project's own JSON (name, pods, gpus_per_pod, ...)"
)


@dataclass(frozen=True)
class ClusterOptions(Options):
    """A cluster that a command line describes by files."""

    cluster: tuple[str, ...] = option(
        "its files, together: `kubectl get nodes,pods -A -o json` (and Kueue's objects), Slurm's topology and `sinfo` "
        "or `scontrol show node`, or own JSON; - is the standard input",
        metavar="FILE",
    )

    def load_cluster(self) -> ClusterSnapshot:
        """The cluster that the files describe. `InputError` for one that cannot be read or understood."""
        return read_snapshot([(path, read_file(path)) for path in self.cluster], self)

    def load_job(self, path: str) -> Job:
        """The one job that a file describes, by the cluster's name for GPUs. `InputError` for none, or a bad one."""
        return load_job(path, self.gpu_resource)


def load_snapshot(*paths: str | Path, **options: Any) -> ClusterSnapshot:
    """The cluster that these files describe together, e.g. `load_snapshot("topology.conf", "sinfo.txt")`.

    `options` are those of `nvlenv.engine.formats.options.Options`: `levels`, `nvlink_level`, `skip_unlabelled`, ...
    Raises `InputError` for a file that cannot be read or understood.
    """
    return read_snapshot([(str(path), read_file(path)) for path in paths], Options(**options))


def parse_snapshot(text: str, where: str = "cluster", **options: Any) -> ClusterSnapshot:
    """The cluster that one text describes; otherwise as `load_snapshot`."""
    return read_snapshot([(where, text)], Options(**options))


def read_snapshot(texts: Iterable[tuple[str, str]], options: Options) -> ClusterSnapshot:
    """The cluster that these texts, each with the name of its file, describe together.

    `InputError` for a text of no known format (says which were tried), formats that do not go together, bad content.
    """
    texts = list(texts)
    slurm, own, objects = Parts(), list[Field](), list[Field]()
    for where, text in texts:
        if slurm.take_text(where, text):
            continue
        documents = read_documents(where, text)
        if not documents:
            raise InputError(where, "", "nothing", CLUSTER_FORMATS)
        for document in documents:
            if is_native_cluster(document):
                own.append(document)
            elif is_object(document):
                objects.append(document)
            elif not slurm.take_document(document, options):
                raise InputError(where, "", "an unknown format", CLUSTER_FORMATS)
    where = " + ".join(where for where, _ in texts)
    sources = {"the project's own JSON": own, "Kubernetes": objects, "Slurm": slurm.sources}
    found = [name for name, source in sources.items() if source]
    if len(found) != 1 or len(own) > 1:
        raise InputError(where or "cluster", "", " and ".join(found) or "no file", "one cluster from one source")
    if not objects and (options.levels or options.nvlink_level):
        given = [*options.levels, *filter(None, [options.nvlink_level])]
        raise InputError(where, "levels", given, f"none, as {found[0]} has levels of its own")
    if own:
        return read_native_cluster(own[0])
    if objects:
        by_kind = objects_by_kind(objects)
        if not by_kind:
            raise InputError(where, "", "objects of other kinds", CLUSTER_FORMATS)
        return read_kubernetes(where, by_kind, options)
    return read_slurm(where, slurm, options)


def load_job(path: str | Path, gpu_resource: str = GPU) -> Job:
    """The one job that a file describes; `-` is the standard input. `InputError` for none, several or a bad one."""
    return parse_job(read_file(path), str(path), gpu_resource)


def parse_job(text: str, where: str = "job", gpu_resource: str = GPU) -> Job:
    """The one job that a text describes; see `load_job`."""
    jobs = parse_jobs(text, where, gpu_resource)
    if len(jobs) != 1:
        raise InputError(where, "", f"{len(jobs)} jobs: {[job.name for job in jobs][:5]}", "one job")
    return jobs[0]


def parse_jobs(text: str, where: str = "job", gpu_resource: str = GPU) -> tuple[Job, ...]:
    """All jobs that a text describes, checked. `InputError` says what was tried if it is of no known format."""
    jobs = [read_sbatch(where, text)] if is_sbatch(text) else _jobs_of_documents(where, text, gpu_resource)
    for job in jobs:
        check_job(where, job)
    return tuple(jobs)


def _jobs_of_documents(where: str, text: str, gpu_resource: str) -> list[Job]:
    objects, jobs = [], []
    for document in read_documents(where, text):
        if is_object(document):
            objects.append(document)
        elif is_native_job(document):
            jobs.append(read_native_job(document))
        else:
            raise InputError(where, "", "an unknown format", JOB_FORMATS)
    jobs += read_manifests(objects_by_kind(objects), gpu_resource)
    if not jobs:
        kinds = sorted({document["kind"].text() for document in objects})
        raise InputError(where, "", f"no job in {kinds}" if kinds else "nothing", JOB_FORMATS)
    return jobs
