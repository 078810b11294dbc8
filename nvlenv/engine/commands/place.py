"""Where a job would go, who has to leave for it, and why. The cluster itself is not touched."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from nvlenv.engine.commands import common
from nvlenv.engine.formats.kueue import make_assignment, node_selectors, to_v1beta1, to_v1beta2
from nvlenv.engine.formats.load import load_job
from nvlenv.engine.formats.slurm import slurm_node_list
from nvlenv.engine.model.answers import Placed, Refused
from nvlenv.engine.model.snapshot import ClusterSnapshot

SHOWN_RACKS = 12  # reasons of a refusal, in a table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--job",
        required=True,
        metavar="FILE",
        help="Kubernetes Job, JobSet, Pod or Kueue Workload in YAML, a batch script of Slurm, or own JSON",
    )
    common.add_policy(parser)
    common.add_json(parser)
    parser.add_argument(
        "--output",
        choices=("table", "json", "kueue-v1beta1", "kueue-v1beta2", "node-selectors", "slurm"),
        default="table",
        help="the placement in the words of who carries it out; default %(default)s",
    )
    common.add_cluster(parser)


def run(arguments: argparse.Namespace) -> int:
    cluster, job = common.read_cluster(arguments), load_job(arguments.job)
    answer = common.make_engine(arguments, cluster).place(job, dry_run=True)
    output = "json" if arguments.json else arguments.output
    if output == "json":
        common.print_json(with_formats(cluster, answer))
    elif output == "table" or isinstance(answer, Refused):
        print(describe(answer))
        report = cluster.unreachable_report(job.cpu, job.memory, job.gpus_per_pod)
        if isinstance(answer, Refused) and report:
            print("\n" + "\n".join(report))
    elif output == "slurm":
        print(slurm_node_list(answer.nodes))
    else:
        kind = {"kueue-v1beta1": "v1beta1", "kueue-v1beta2": "v1beta2", "node-selectors": "selectors"}[output]
        common.print_json({name: forms[kind] for name, forms in formats(cluster, answer).items()})
    return common.REFUSED if isinstance(answer, Refused) else 0


def with_formats(cluster: ClusterSnapshot, answer: Placed | Refused) -> dict[str, Any]:
    """The whole answer, and for a placement also Kueue's, Kubernetes' and Slurm's forms of it."""
    data = {"placed": isinstance(answer, Placed), **answer.to_dict()}
    if isinstance(answer, Placed):
        data["pod_sets"] = formats(cluster, answer)
        data["slurm_node_list"] = slurm_node_list(answer.nodes)
    return data


def formats(cluster: ClusterSnapshot, answer: Placed) -> dict[str, Any]:
    """By pod set: TopologyAssignment of both versions, and each pod's node selector by rank."""
    paths = {node.name: node.path for node in cluster.nodes}
    found = {}
    for pod_set in dict.fromkeys(binding.pod_set for binding in answer.bindings):
        bindings = [binding for binding in answer.bindings if binding.pod_set == pod_set]
        assignment = make_assignment(cluster.levels, [paths[b.node] for b in bindings for _ in range(b.pods)])
        found[pod_set] = {
            "v1beta1": to_v1beta1(assignment),
            "v1beta2": to_v1beta2(assignment),
            "selectors": node_selectors(assignment),
        }
    return found


def describe(answer: Placed | Refused) -> str:
    """The answer for people."""
    return _describe_placed(answer) if isinstance(answer, Placed) else describe_refusal(answer)


def _describe_placed(answer: Placed) -> str:
    gpus = sum(binding.gpus for binding in answer.bindings)
    head = f"placed {answer.job}: {gpus} GPUs on {len(answer.nodes)} nodes in {len(answer.racks)} racks"
    rows = []
    for rack in answer.racks:
        inside = [binding for binding in answer.bindings if binding.rack == rack]
        nodes = list(dict.fromkeys(binding.node for binding in inside))
        rows.append((rack, len(nodes), sum(binding.gpus for binding in inside), _short(nodes)))
    blocks = [head, common.table(("rack", "nodes", "GPUs", "which"), rows)]
    if answer.speed < 1:
        blocks.append(f"speed: {answer.speed:.2f} of its best shape")
    if answer.evictions:
        blocks.append(describe_evictions(answer))
    return "\n\n".join([*blocks, _describe_why(answer)])


def describe_evictions(answer: Placed) -> str:
    reasons = Counter(str(eviction.reason) for eviction in answer.evictions)
    counted = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    rows = [
        (
            e.job,
            e.reason,
            len(e.nodes),
            e.gpus,
            f"{e.cost:.1f}",
            _short([b.node for b in e.moved_to] or e.nodes),
        )
        for e in answer.evictions[:SHOWN_RACKS]
    ]
    more = len(answer.evictions) - len(rows)
    lines = [
        f"evictions ({counted}), {answer.cost:.1f} GPU-hours lost",
        common.table(("job", "reason", "nodes", "GPUs", "GPU-h lost", "nodes left, or moved to"), rows),
    ]
    return "\n".join([*lines, *([f"... and {more} more (--json has all)"] if more > 0 else [])])


def _describe_why(answer: Placed | Refused) -> str:
    lines = [f"why: {answer.why.rule}"]
    for number, step in enumerate(answer.why.steps, 1):
        lines.append(f"  {number}. {step.action} {step.rack} ({step.pods} pods) of {step.legal} possible".rstrip())
        for candidate in step.candidates if number == 1 else ():
            score = ", ".join(f"{value:g}" for value in candidate.score)
            note = f": {candidate.note}" if candidate.note else ""
            room = f"{candidate.free_nodes} nodes, {candidate.free_gpus} GPUs free"
            lines.append(f"       {candidate.action} {candidate.rack}  [{score}]  {room}{note}")
    return "\n".join([*lines, *(f"note: {note}" for note in answer.why.notes)])


def describe_refusal(answer: Refused) -> str:
    lines = [f"refused {answer.job} ({answer.cause}): {answer.reason}"]
    if answer.racks:
        shown = list(answer.racks.items())[:SHOWN_RACKS]
        lines += ["", common.table(("rack", "why not"), shown)]
        if len(answer.racks) > len(shown):
            lines.append(f"... and {len(answer.racks) - len(shown)} more racks (--json has all)")
    if answer.why.steps:
        lines += ["", _describe_why(answer)]
    return "\n".join(lines)


def _short(nodes: list[str] | tuple[str, ...]) -> str:
    return slurm_node_list(nodes) if nodes else ""
