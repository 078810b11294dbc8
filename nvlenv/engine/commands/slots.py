"""`python -m nvlenv.engine slots`: how many slices of each size still fit, and what keeps GPUs out of reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import nvlenv.engine
from nvlenv.common.commandline import DONE, option, parse
from nvlenv.engine.commands.common import EXIT_CODES, CommandOptions, print_json, text_table
from nvlenv.engine.formats.document import Field
from nvlenv.engine.formats.options import LARGEST
from nvlenv.engine.formats.values import read_quantity
from nvlenv.engine.model.answers import Slots
from nvlenv.engine.model.snapshot import ClusterSnapshot

SIZES = (1, 2, 4, 8, 16, 18)  # nodes; the simulator's SLOT_SIZES, which help is not to load
SHOWN_RACKS = 40


@dataclass(frozen=True)
class SlotsOptions(CommandOptions):
    """Free slots by slice size, as the policy sees them, and the idle GPUs that no pod can get."""

    sizes: tuple[int, ...] = option("slice sizes", default=SIZES, least=1, most=LARGEST, metavar="NODES")
    pod_cpu: str = option("what a GPU pod asks for, as in Kubernetes", default="0", metavar="CORES")
    pod_memory: str = option("the same; 900Gi, for example", default="0", metavar="BYTES")
    pod_gpus: int | None = option(
        "GPUs of one pod; default: all of a node", default=None, least=1, most=LARGEST, metavar="N"
    )


def main(argv: Sequence[str]) -> int:
    """Print what is free."""
    options = parse(SlotsOptions, argv, "python -m nvlenv.engine slots", EXIT_CODES)
    cluster = options.load_cluster()
    slots = nvlenv.engine.PlacementEngine(cluster).slots(options.sizes)
    cpu = read_quantity(Field("--pod-cpu", options.pod_cpu), 1000)
    memory = read_quantity(Field("--pod-memory", options.pod_memory))
    report = cluster.unreachable_report(cpu, memory, options.pod_gpus)
    if options.json:
        print_json({**slots.to_dict(), "unreachable": list(report)})
    else:
        print(_free(cluster, slots, report))
    return DONE


def _free(cluster: ClusterSnapshot, slots: Slots, report: Sequence[str]) -> str:
    tests = sum(job.verification for job in cluster.jobs)
    lines = [
        f"{slots.gpus} GPUs: {slots.free_gpus} free, {slots.unreachable_gpus} idle on failed or cordoned nodes",
        f"whole racks free: {slots.whole_racks}; largest slice: {slots.largest_slice} nodes",
        "",
        text_table(("slice (nodes)", "free slots"), slots.free.items()),
        "",
        text_table(("rack", "free nodes"), sorted(slots.racks.items(), key=lambda entry: -entry[1])[:SHOWN_RACKS]),
    ]
    if len(slots.racks) > SHOWN_RACKS:
        lines.append(f"... and {len(slots.racks) - SHOWN_RACKS} more racks (--json has all)")
    notes = [*report, *cluster.notes]
    if tests:
        notes.append(f"{tests} verification jobs run on idle nodes: not counted, they give way to any job")
    return "\n".join([*lines, *(["", *notes] if notes else [])])
