"""Which format each file of a cluster has, and the reader that all of them together go to."""

from __future__ import annotations

from collections.abc import Iterable

from nvlenv.engine.importers import kubernetes, native, slurm
from nvlenv.engine.importers.document import Field, read_documents
from nvlenv.engine.importers.objects import is_object, objects_by_kind
from nvlenv.engine.importers.options import Options
from nvlenv.engine.snapshot import ClusterSnapshot
from nvlenv.errors import InputError

__all__ = ["Options", "read_cluster"]

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
