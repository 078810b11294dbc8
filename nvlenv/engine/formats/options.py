"""What every command line of the engine asks in the same words: the topology of a cluster, and the policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nvlenv.common.commandline import option
from nvlenv.engine.model.snapshot import GPU
from nvlenv.policies import UNTUNED

LARGEST = 2**31 - 1  # of whole numbers that the engine's arrays hold


def _labels(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


@dataclass(frozen=True)
class Options:
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


@dataclass(frozen=True)
class PolicyOptions:
    """Who decides."""

    policy: str = option("a heuristic by name or a policy file (.npz)", default=UNTUNED, metavar="NAME|FILE")
