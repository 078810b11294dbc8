"""Why a job would go where `place` puts it: every candidate rack, and what other policies would do."""

from __future__ import annotations

import argparse

from nvlenv.engine.commands import common
from nvlenv.engine.commands.place import describe_evictions
from nvlenv.engine.formats.load import load_job
from nvlenv.engine.model.answers import Placed, Refused
from nvlenv.engine.model.jobs import Job
from nvlenv.engine.model.snapshot import ClusterSnapshot

OTHERS = ("least-allocated", "best-fit", "best-fit+open")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--job", required=True, metavar="FILE", help="as for place")
    common.add_policy(parser)
    parser.add_argument(
        "--compare", nargs="*", default=OTHERS, metavar="POLICY", help=f"other policies; default {' '.join(OTHERS)}"
    )
    parser.add_argument("--racks", type=common.positive, default=20, metavar="N", help="candidates listed; default 20")
    common.add_json(parser)
    common.add_cluster(parser)


def run(arguments: argparse.Namespace) -> int:
    cluster, job = common.read_cluster(arguments), load_job(arguments.job)
    answer = common.make_engine(arguments, cluster).explain(job)
    others = {name: _other(arguments, cluster, job, name) for name in arguments.compare if name != arguments.policy}
    if arguments.json:
        compared = {name: {"placed": isinstance(other, Placed), **other.to_dict()} for name, other in others.items()}
        common.print_json({"placed": isinstance(answer, Placed), **answer.to_dict(), "others": compared})
    else:
        print(describe(answer, arguments.racks))
        rows = [(name, _in_short(other)) for name, other in {arguments.policy: answer, **others}.items()]
        print("\n" + common.table(("policy", "would"), rows))
    return common.REFUSED if isinstance(answer, Refused) else 0


def _other(arguments: argparse.Namespace, cluster: ClusterSnapshot, job: Job, policy: str) -> Placed | Refused:
    return common.make_engine(arguments, cluster, policy).place(job, dry_run=True)


def describe(answer: Placed | Refused, racks: int) -> str:
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
            lines.append(common.table(("rack", "action", "score", "free nodes", "free GPUs", "pods", "note"), rows))
    if isinstance(answer, Refused) and answer.racks:
        lines += ["", common.table(("rack", "why not"), list(answer.racks.items())[:racks])]
    if isinstance(answer, Placed) and answer.evictions:
        lines += ["", describe_evictions(answer)]
    return "\n".join([*lines, *(f"note: {note}" for note in answer.why.notes)])


def _in_short(answer: Placed | Refused) -> str:
    if isinstance(answer, Refused):
        return f"refuse ({answer.cause}): {answer.reason}"
    racks = ", ".join(f"{rack} ({gpus} GPUs)" for rack, gpus in list(answer.racks.items())[:4])
    more = f" and {len(answer.racks) - 4} more" if len(answer.racks) > 4 else ""
    victims = f"; {len(answer.evictions)} evictions, {answer.cost:.1f} GPU-hours lost" if answer.evictions else ""
    return f"place on {racks}{more}{victims}"
