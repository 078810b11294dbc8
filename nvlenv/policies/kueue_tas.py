"""Kueue's Topology Aware Scheduling: where the pods of a workload go, decision for decision.

Source of the behaviour: github.com/kubernetes-sigs/kueue at commit ff69552e (between 0.19 and 0.20), written anew.

A placement runs in four steps, one file each in `nvlenv.policies.kueue`:

    demand.py    what the pod set asks for: level, slices, leader; or why that is impossible here
    rooms.py     how many pods and slices fit in every domain, from the leaves upward
    search.py    on which level, and in which of its domains, the pods go (orders.py: in which order)
    descent.py   from those domains down to the leaves

balanced.py is the even alternative to the search, repair.py replaces lost nodes, snapshot.py places the pod sets of a
workload one after another, cases.py runs recorded cases:

    python -m nvlenv.policies.kueue_tas CASES.json

prints every case that fails, with what was expected and found, and last `N passed, N failed`. The exit code is 0 if
none failed, 1 if some did, 2 with one line of explanation for a file that cannot be read or is no file of cases.

From Python, one workload on one cluster is one call:

    >>> nodes = [Node(f"h{i}", {"rack": f"r{i // 2}", HOSTNAME: f"h{i}"}, {"gpu": 4, "pods": 10}) for i in range(4)]
    >>> job = PodSet("job", 2, {"gpu": 4}, TopologyRequest(Mode.REQUIRED, "rack"))
    >>> assign(["rack", HOSTNAME], nodes, [job])["job"].domains
    ((('h0',), 1), (('h1',), 1))
    >>> assign(["rack", HOSTNAME], nodes, [PodSet("job", 3, {"gpu": 4}, TopologyRequest(Mode.REQUIRED, "rack"))])["job"]
    Failure(reason='topology "default" allows to fit only 2 out of 3 pod(s)')

Many workloads on one cluster share a `Snapshot`, which reads the nodes once.
"""

from __future__ import annotations

import sys

from nvlenv.common.commandline import command
from nvlenv.common.errors import InputError
from nvlenv.policies.kueue.cases import run_file
from nvlenv.policies.kueue.snapshot import Snapshot, assign
from nvlenv.policies.kueue.types import (
    HOSTNAME,
    Assignment,
    Expression,
    Failure,
    Gates,
    Layer,
    Mode,
    Node,
    NodeAffinity,
    PodSet,
    Repair,
    Result,
    RunningPod,
    Taint,
    Term,
    Toleration,
    TopologyRequest,
    Usage,
)

__all__ = [
    "HOSTNAME",
    "Assignment",
    "Expression",
    "Failure",
    "Gates",
    "Layer",
    "Mode",
    "Node",
    "NodeAffinity",
    "PodSet",
    "Repair",
    "Result",
    "RunningPod",
    "Snapshot",
    "Taint",
    "Term",
    "Toleration",
    "TopologyRequest",
    "Usage",
    "assign",
    "main",
]


@command
def main(argv: list[str]) -> int:
    import argparse  # here, because most who import this module only place

    parser = argparse.ArgumentParser(prog="python -m nvlenv.policies.kueue_tas", description=__doc__)
    parser.usage, parser.formatter_class = "%(prog)s [-h] CASES.json", argparse.RawDescriptionHelpFormatter
    parser.add_argument("files", nargs="*", metavar="CASES.json", help="cases and what Kueue does in each of them")
    files = parser.parse_args(argv).files
    if len(files) != 1:
        raise InputError("kueue_tas", "arguments", files, "one file of cases")
    return 1 if run_file(files[0]) else 0


if __name__ == "__main__":
    sys.exit(main())
