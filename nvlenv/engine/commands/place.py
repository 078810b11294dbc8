"""`python -m nvlenv.engine place` and `explain`: where a job would go and why, as a table, as JSON, or in the form of
who carries it out; and beside every candidate rack what other policies would do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import nvlenv.engine
from nvlenv.common.commandline import DONE, option, parse
from nvlenv.engine.commands.common import EXIT_CODES, REFUSED, CommandOptions, print_json, text_table
from nvlenv.engine.formats.kueue import make_assignment, node_selectors, to_v1beta1, to_v1beta2
from nvlenv.engine.formats.options import LARGEST, PolicyOptions
from nvlenv.engine.formats.slurm import compress_hosts, slurm_node_list
from nvlenv.engine.model.answers import Placed, Refused
from nvlenv.engine.model.snapshot import ClusterSnapshot

SHOWN = 12  # evictions, or reasons of racks, in a table
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


@dataclass(frozen=True)
class ExplainOptions(PolicyOptions, CommandOptions):
    """Why a job would go where `place` puts it: every candidate rack, and what other policies would do."""

    job: str = option("as for place", metavar="FILE")
    compare: tuple[str, ...] = option(
        "other policies", default=("least-allocated", "best-fit", "best-fit+open"), nargs="*", metavar="POLICY"
    )
    racks: int = option("candidates listed", default=20, least=1, most=LARGEST, metavar="N")


def place_command(argv: Sequence[str]) -> int:
    """Print the answer; 0 for a placement, 3 for a refusal."""
    options = parse(PlaceOptions, argv, "python -m nvlenv.engine place", EXIT_CODES)
    cluster, job = options.load_cluster(), options.load_job(options.job)
    answer = nvlenv.engine.PlacementEngine(cluster, options.policy).place(job, dry_run=True)
    if options.json or options.output == "json":
        data = {"placed": isinstance(answer, Placed), **answer.to_dict()}
        if isinstance(answer, Placed):
            data |= {"pod_sets": _forms(cluster, answer), "slurm_node_list": slurm_node_list(answer.nodes)}
        print_json(data)
    elif isinstance(answer, Refused):
        report = cluster.unreachable_report(job.workers.cpu, job.workers.memory, job.workers.gpus_per_pod)
        print("\n\n".join([_refusal(answer), *(["\n".join(report)] if report else [])]))
    elif options.output == "table":
        print(_placement(answer))
    elif options.output == "slurm":
        print(slurm_node_list(answer.nodes))
    else:
        print_json({name: forms[FORMS[options.output]] for name, forms in _forms(cluster, answer).items()})
    return REFUSED if isinstance(answer, Refused) else DONE


def explain_command(argv: Sequence[str]) -> int:
    """Print the explanation; 0 if the job would be placed, 3 if it would be refused."""
    options = parse(ExplainOptions, argv, "python -m nvlenv.engine explain", EXIT_CODES)
    cluster, job = options.load_cluster(), options.load_job(options.job)
    answer = nvlenv.engine.PlacementEngine(cluster, options.policy).explain(job)
    others = {
        name: nvlenv.engine.PlacementEngine(cluster, name).place(job, dry_run=True)
        for name in options.compare
        if name != options.policy
    }
    if options.json:
        compared = {name: {"placed": isinstance(other, Placed), **other.to_dict()} for name, other in others.items()}
        print_json({"placed": isinstance(answer, Placed), **answer.to_dict(), "others": compared})
    else:
        print(_explanation(answer, options.racks))
        rows = [(name, _in_short(other)) for name, other in {options.policy: answer, **others}.items()]
        print("\n" + text_table(("policy", "would"), rows))
    return REFUSED if isinstance(answer, Refused) else DONE


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
    gpus = sum(answer.racks.values())
    head = f"placed {answer.job}: {gpus} GPUs on {len(answer.nodes)} nodes in {len(answer.racks)} racks"
    rows = []
    for rack, inside in answer.racks.items():
        nodes = list(dict.fromkeys(binding.node for binding in answer.bindings if binding.rack == rack))
        rows.append((rack, len(nodes), inside, compress_hosts(nodes)))
    blocks = [head, text_table(("rack", "nodes", "GPUs", "which"), rows)]
    if answer.speed < 1:
        blocks.append(f"speed: {answer.speed:.2f} of its best shape")
    if answer.evictions:
        blocks.append(_evictions(answer))
    return "\n\n".join([*blocks, _why(answer)])


def _refusal(answer: Refused) -> str:
    lines = [f"refused {answer.job} ({answer.cause}): {answer.reason}"]
    if answer.racks:
        lines += ["", text_table(("rack", "why not"), answer.racks.items(), SHOWN, "more racks")]
    if answer.why.steps:
        lines += ["", _why(answer)]
    return "\n".join(lines)


def _evictions(answer: Placed) -> str:
    """Who has to leave for a job, or to move, and what that costs."""
    counted = ", ".join(f"{n} {reason}" for reason, n in Counter(str(e.reason) for e in answer.evictions).items())
    rows = []
    for e in answer.evictions:
        where = compress_hosts([binding.node for binding in e.moved_to] or e.nodes)
        rows.append((e.job, e.reason, len(e.nodes), e.gpus, f"{e.cost:.1f}", where))
    header = ("job", "reason", "nodes", "GPUs", "GPU-h lost", "nodes left, or moved to")
    return f"evictions ({counted}), {answer.cost:.1f} GPU-hours lost\n{text_table(header, rows, SHOWN)}"


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


def _explanation(answer: Placed | Refused, racks: int) -> str:
    head = "place" if isinstance(answer, Placed) else "refuse"
    lines = [f"{answer.why.policy} would {head} {answer.job}: {answer.why.rule}"]
    for number, step in enumerate(answer.why.steps, 1):
        what = f"{step.action} {step.rack}".rstrip()
        lines += ["", f"decision {number}: {what} ({step.pods} pods), {step.legal} possible: {step.rule}"]
        rows = [
            (c.rack, c.action, ", ".join(f"{v:g}" for v in c.score), c.free_nodes, c.free_gpus, c.pods, c.note)
            for c in step.candidates[:racks]
        ]
        if rows:
            lines.append(text_table(("rack", "action", "score", "free nodes", "free GPUs", "pods", "note"), rows))
    if isinstance(answer, Refused) and answer.racks:
        lines += ["", text_table(("rack", "why not"), list(answer.racks.items())[:racks])]
    if isinstance(answer, Placed) and answer.evictions:
        lines += ["", _evictions(answer)]
    return "\n".join([*lines, *(f"note: {note}" for note in answer.why.notes)])


def _in_short(answer: Placed | Refused) -> str:
    if isinstance(answer, Refused):
        return f"refuse ({answer.cause}): {answer.reason}"
    racks = ", ".join(f"{rack} ({gpus} GPUs)" for rack, gpus in list(answer.racks.items())[:4])
    more = f" and {len(answer.racks) - 4} more" if len(answer.racks) > 4 else ""
    victims = f"; {len(answer.evictions)} evictions, {answer.cost:.1f} GPU-hours lost" if answer.evictions else ""
    return f"place on {racks}{more}{victims}"
