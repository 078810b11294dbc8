"""`python -m nvlenv.engine explain`: every candidate rack of each decision with its scores, and the alternatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import nvlenv.engine
from nvlenv.common.commandline import option, parse
from nvlenv.engine.commands.common import (
    EXIT_CODES,
    CommandOptions,
    eviction_table,
    exit_code,
    print_json,
    text_table,
)
from nvlenv.engine.formats.options import LARGEST, PolicyOptions
from nvlenv.engine.model.answers import Placed, Refused


@dataclass(frozen=True)
class ExplainOptions(PolicyOptions, CommandOptions):
    """Why a job would go where `place` puts it: every candidate rack, and what other policies would do."""

    job: str = option("as for place", metavar="FILE")
    compare: tuple[str, ...] = option(
        "other policies", default=("least-allocated", "best-fit", "best-fit+open"), nargs="*", metavar="POLICY"
    )
    racks: int = option("candidates listed", default=20, least=1, most=LARGEST, metavar="N")


def main(argv: Sequence[str]) -> int:
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
    return exit_code(answer)


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
        lines += ["", eviction_table(answer)]
    return "\n".join([*lines, *(f"note: {note}" for note in answer.why.notes)])


def _in_short(answer: Placed | Refused) -> str:
    if isinstance(answer, Refused):
        return f"refuse ({answer.cause}): {answer.reason}"
    racks = ", ".join(f"{rack} ({gpus} GPUs)" for rack, gpus in list(answer.racks.items())[:4])
    more = f" and {len(answer.racks) - 4} more" if len(answer.racks) > 4 else ""
    victims = f"; {len(answer.evictions)} evictions, {answer.cost:.1f} GPU-hours lost" if answer.evictions else ""
    return f"place on {racks}{more}{victims}"
