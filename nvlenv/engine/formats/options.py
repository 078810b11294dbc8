"""What every command line of the engine asks in the same words: the cluster's files, its topology and the policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nvlenv.common.commandline import option
from nvlenv.engine.formats.load import load_job, load_snapshot
from nvlenv.engine.model.jobs import Job
from nvlenv.engine.model.snapshot import GPU, ClusterSnapshot, Options
from nvlenv.policies import UNTUNED

LARGEST = 2**31 - 1  # of whole numbers that the engine's arrays hold


def _labels(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


@dataclass(frozen=True)
class TopologyOptions:
    """What a user can say about a cluster beside its objects or files."""

    levels: Sequence[str] = option(
        "node labels, coarse to fine, the host's last; default: Kueue's Topology, else those that are well known",
        default=(), parse=_labels, metavar="LABEL,LABEL,...", group="topology",
    )  # fmt: skip
    nvlink_level: str = option("the one that is the NVLink domain", default="", metavar="LABEL", group="topology")
    topology: str = option("which of several Kueue or Slurm topologies", default="", metavar="NAME", group="topology")
    skip_unlabelled: bool = option(
        "leave out nodes without a level label instead of refusing", default=False, group="topology"
    )
    gpu_resource: str = option("what pods ask for", default=GPU, metavar="NAME", group="topology")

    def reading(self) -> Options:
        """The same for the readers of clusters."""
        levels = tuple(self.levels)
        return Options(levels, self.nvlink_level, self.topology, self.skip_unlabelled, self.gpu_resource)


@dataclass(frozen=True)
class ClusterOptions(TopologyOptions):
    """A cluster that is described by files."""

    cluster: tuple[str, ...] = option(
        "its files, together: `kubectl get nodes,pods -A -o json` (and Kueue's objects), Slurm's topology and `sinfo` "
        "or `scontrol show node`, or own JSON; - is the standard input",
        metavar="FILE",
    )

    def load_cluster(self) -> ClusterSnapshot:
        """The cluster that the files describe. `InputError` for one that cannot be read or understood."""
        return load_snapshot(*self.cluster, **vars(self.reading()))

    def load_job(self, path: str) -> Job:
        """The one job that a file describes, by the cluster's name for GPUs. `InputError` for none, or a bad one."""
        return load_job(path, self.gpu_resource)


@dataclass(frozen=True)
class PolicyOptions:
    """Who decides."""

    policy: str = option("a heuristic by name or a policy file (.npz)", default=UNTUNED, metavar="NAME|FILE")
