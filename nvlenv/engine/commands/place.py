"""`python -m nvlenv.engine place`: the engine's answer as a table, as JSON, or in the form of who carries it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import nvlenv.engine
from nvlenv.common.commandline import option, parse
from nvlenv.engine.commands.common import (
    EXIT_CODES,
    SHOWN_RACKS,
    CommandOptions,
    eviction_table,
    exit_code,
    print_json,
    text_table,
)
from nvlenv.engine.formats.kueue import make_assignment, node_selectors, to_v1beta1, to_v1beta2
from nvlenv.engine.formats.options import PolicyOptions
from nvlenv.engine.formats.slurm import compress_hosts, slurm_node_list
from nvlenv.engine.model.answers import Placed, Refused
from nvlenv.engine.model.snapshot import ClusterSnapshot

FORMS = {"kueue-v1beta1": "v1beta1", "kueue-v1beta2": "v1beta2", "node-selectors": "selectors"}  # --output -> JSON key


@dataclass(frozen=True)
class PlaceOptions(PolicyOptions, CommandOptions):
    """Where a job would go, who has to leave for it, and why. The cluster itself is not touched."""

    job: str = option(
        "Kubernetes Job, JobSet, Pod or Kueue Workload in YAML, a batch script of Slurm, or own JSON", metavar="FILE"
    )
    output: str = option(
        "the placement in the words of who carries it out", default="table", choices=("table", "json", *FORMS, "slurm")
    )


def main(argv: Sequence[str]) -> int:
    """Print the answer; 0 for a placement, 3 for a refusal."""
    options = parse(PlaceOptions, argv, "python -m nvlenv.engine place", EXIT_CODES)
    cluster, job = options.load_cluster(), options.load_job(options.job)
    answer = nvlenv.engine.PlacementEngine(cluster, options.policy).place(job, dry_run=True)
    if options.json or options.output == "json":
        print_json(_with_forms(cluster, answer))
    elif isinstance(answer, Refused):
        report = cluster.unreachable_report(job.workers.cpu, job.workers.memory, job.workers.gpus_per_pod)
        print("\n\n".join([_refusal(answer), *(["\n".join(report)] if report else [])]))
    elif options.output == "table":
        print(_placement(answer))
    elif options.output == "slurm":
        print(slurm_node_list(answer.nodes))
    else:
        print_json({name: forms[FORMS[options.output]] for name, forms in _forms(cluster, answer).items()})
    return exit_code(answer)


def _with_forms(cluster: ClusterSnapshot, answer: Placed | Refused) -> dict[str, Any]:
    """The whole answer, and for a placement also Kueue's, Kubernetes' and Slurm's forms of it."""
    if isinstance(answer, Refused):
        return {"placed": False, **answer.to_dict()}
    more = {"pod_sets": _forms(cluster, answer), "slurm_node_list": slurm_node_list(answer.nodes)}
    return {"placed": True, **answer.to_dict(), **more}


def _forms(cluster: ClusterSnapshot, answer: Placed) -> dict[str, Any]:
    """By pod set: TopologyAssignment of both versions, and each pod's node selector by rank."""
    paths = {node.name: node.path for node in cluster.nodes}
    pods: dict[str, list[tuple[str, ...]]] = {}  # the path of each pod's node, by rank
    for binding in answer.bindings:
        pods.setdefault(binding.pod_set, []).extend([paths[binding.node]] * binding.pods)
    assignments = {name: make_assignment(cluster.levels, nodes) for name, nodes in pods.items()}
    return {
        name: {"v1beta1": to_v1beta1(found), "v1beta2": to_v1beta2(found), "selectors": node_selectors(found)}
        for name, found in assignments.items()
    }


def _placement(answer: Placed) -> str:
    gpus = sum(binding.gpus for binding in answer.bindings)
    head = f"placed {answer.job}: {gpus} GPUs on {len(answer.nodes)} nodes in {len(answer.racks)} racks"
    rows = []
    for rack in answer.racks:
        inside = [binding for binding in answer.bindings if binding.rack == rack]
        nodes = list(dict.fromkeys(binding.node for binding in inside))
        rows.append((rack, len(nodes), sum(binding.gpus for binding in inside), compress_hosts(nodes)))
    blocks = [head, text_table(("rack", "nodes", "GPUs", "which"), rows)]
    if answer.speed < 1:
        blocks.append(f"speed: {answer.speed:.2f} of its best shape")
    if answer.evictions:
        blocks.append(eviction_table(answer))
    return "\n\n".join([*blocks, _why(answer)])


def _refusal(answer: Refused) -> str:
    lines = [f"refused {answer.job} ({answer.cause}): {answer.reason}"]
    if answer.racks:
        shown = list(answer.racks.items())[:SHOWN_RACKS]
        lines += ["", text_table(("rack", "why not"), shown)]
        if len(answer.racks) > len(shown):
            lines.append(f"... and {len(answer.racks) - len(shown)} more racks (--json has all)")
    if answer.why.steps:
        lines += ["", _why(answer)]
    return "\n".join(lines)


def _why(answer: Placed | Refused) -> str:
    lines = [f"why: {answer.why.rule}"]
    for number, step in enumerate(answer.why.steps, 1):
        lines.append(f"  {number}. {step.action} {step.rack} ({step.pods} pods) of {step.legal} possible".rstrip())
        for candidate in step.candidates if number == 1 else ():
            score = ", ".join(f"{value:g}" for value in candidate.score)
            note = f": {candidate.note}" if candidate.note else ""
            room = f"{candidate.free_nodes} nodes, {candidate.free_gpus} GPUs free"
            lines.append(f"       {candidate.action} {candidate.rack}  [{score}]  {room}{note}")
    return "\n".join([*lines, *(f"note: {note}" for note in answer.why.notes)])
