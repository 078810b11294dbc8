"""What a user can say about a cluster beside its files."""

from __future__ import annotations

from dataclasses import dataclass

from nvlenv.engine.importers.pods import GPU


@dataclass(frozen=True)
class Options:
    levels: tuple[str, ...] = ()  # node labels, coarse to fine; empty: Kueue's Topology, else those that are well known
    nvlink_level: str = ""  # the label of the NVLink domain; empty: the best known one, else the one above the node
    topology: str = ""  # name of the Kueue or Slurm topology, where there are several
    skip_unlabelled: bool = False  # leave out nodes without a level label instead of refusing the cluster
    gpu_resource: str = GPU
