"""Kueue's Topology Aware Scheduling and preemption: where pods go and who makes room, decision for decision.

Source of the behaviour: github.com/kubernetes-sigs/kueue at commit ff69552e (between 0.19 and 0.20), written anew in
`nvlenv.policies.kueue`; its files in the order in which a placement uses them:

    types.py     what goes in and what comes out, in Kueue's words
    topology.py  the tree of domains over the nodes that take part
    snapshot.py  what is free; pod sets one after another; lost nodes and elastic workloads
    counting.py  what the pod set asks for: level, slices, leader; how many pods and slices fit in every domain
    search.py    on which level, and in which of its domains, the pods go; from those domains down to the leaves
    quota.py     the tree of ClusterQueues and Cohorts: who may use how much
    preemption.py    who is preempted for a workload that lacks quota or a place
    policy.py, preemption_policy.py    all that as policies of the simulator; cases.py runs recorded cases

From Python:

    >>> from nvlenv.policies.kueue.snapshot import Snapshot
    >>> from nvlenv.policies.kueue.types import HOSTNAME, KueueNode, PodSetRequest, TopologyMode, TopologyRequest
    >>> gpus = {"gpu": 4, "pods": 10}
    >>> nodes = [KueueNode(f"h{i}", {"rack": f"r{i // 2}", HOSTNAME: f"h{i}"}, gpus) for i in range(4)]
    >>> cluster, one_rack = Snapshot(["rack", HOSTNAME], nodes), TopologyRequest(TopologyMode.REQUIRED, "rack")
    >>> cluster.assign([PodSetRequest("job", 2, {"gpu": 4}, one_rack)])["job"].domains
    ((('h0',), 1), (('h1',), 1))
    >>> cluster.assign([PodSetRequest("job", 3, {"gpu": 4}, one_rack)])["job"]
    Failure(reason='topology "default" allows to fit only 2 out of 3 pod(s)')
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from nvlenv.common.commandline import command, option, parse
from nvlenv.policies.kueue.cases import run_file


@dataclass(frozen=True)
class CasesOptions:
    """Decide recorded cases, placements and preemptions, as Kueue does, and compare.

    Prints every case that fails, with what was expected and found, and last `N passed, N failed`. The exit code is 0 if
    none failed, 1 if some did, 2 with one line of explanation for a file that cannot be read or is no file of cases.
    """

    file: Path = option("cases and what Kueue does in each of them", positional=True, metavar="CASES.json")


@command
def main(argv: list[str]) -> int:
    """Run the cases of a file."""
    return 1 if run_file(parse(CasesOptions, argv, "python -m nvlenv.policies.kueue_tas").file) else 0


if __name__ == "__main__":
    sys.exit(main())
