"""`python -m nvlenv.engine slots` and `defrag`: how many slices of each size still fit, what keeps GPUs out of reach,
and which jobs to move so that one more large slice fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import nvlenv.engine
from nvlenv.common.commandline import DONE, option, parse
from nvlenv.engine.commands.common import EXIT_CODES, REFUSED, CommandOptions, print_json, text_table
from nvlenv.engine.formats.document import Field
from nvlenv.engine.formats.options import LARGEST
from nvlenv.engine.formats.slurm import compress_hosts
from nvlenv.engine.formats.values import read_quantity
from nvlenv.engine.model.answers import Clearing, Slots
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


@dataclass(frozen=True)
class DefragOptions(CommandOptions):
    """Moves that free room for more slices of a size, ranked: most slices freed per node moved first, then least cost.

    Each line follows from the ones above it. Work that is neither movable nor preemptible is never moved.
    """

    free_rack_of: int = option(
        "nodes of one rack that are to be free together; 16, for example", least=1, most=LARGEST, metavar="NODES"
    )
    limit: int = option("slices to free", default=5, least=1, most=LARGEST, metavar="N")


def slots_command(argv: Sequence[str]) -> int:
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


def defrag_command(argv: Sequence[str]) -> int:
    """Print the moves; 3 if there are none."""
    options = parse(DefragOptions, argv, "python -m nvlenv.engine defrag", EXIT_CODES)
    found = nvlenv.engine.PlacementEngine(options.load_cluster()).defrag(options.free_rack_of, options.limit)
    if options.json:
        print_json({"clearings": [clearing.to_dict() for clearing in found]})
    elif found:
        print(_moves(found, options.free_rack_of))
    else:
        what = f"no moves free {options.free_rack_of} more nodes of one rack"
        print(f"refused: {what}, or what would have to move is pinned")
    return DONE if found else REFUSED


def _free(cluster: ClusterSnapshot, slots: Slots, report: Sequence[str]) -> str:
    fullest_last = sorted(slots.racks.items(), key=lambda entry: -entry[1])
    lines = [
        f"{slots.gpus} GPUs: {slots.free_gpus} free, {slots.unreachable_gpus} idle on failed or cordoned nodes",
        f"whole racks free: {slots.whole_racks}; largest slice: {slots.largest_slice} nodes",
        "",
        text_table(("slice (nodes)", "free slots"), slots.free.items()),
        "",
        text_table(("rack", "free nodes"), fullest_last, SHOWN_RACKS, "more racks"),
    ]
    notes = [*report, *cluster.notes]
    if tests := sum(job.verification for job in cluster.jobs):
        notes.append(f"{tests} verification jobs run on idle nodes: not counted, they give way to any job")
    return "\n".join([*lines, *(["", *notes] if notes else [])])


def _moves(found: Sequence[Clearing], nodes: int) -> str:
    rows = [
        (n, c.rack, len(c.moves), c.nodes_moved, f"{c.cost:.1f}", f"{c.slots_before} -> {c.slots_after}",
         f"{c.slots_per_node:.2f}")
        for n, c in enumerate(found, 1)
    ]  # fmt: skip
    header = ("", "rack", "jobs moved", "nodes moved", "GPU-h lost", f"slots of {nodes}", "slots per node moved")
    lines = [text_table(header, rows)]
    for number, clearing in enumerate(found, 1):
        moves = []
        for move in clearing.moves:
            to = compress_hosts([binding.node for binding in move.to])
            moves.append((move.job, move.gpus, compress_hosts(move.nodes), to, f"{move.cost:.1f}"))
        lines += ["", f"{number}. {clearing.rack}", text_table(("job", "GPUs", "from", "to", "GPU-h lost"), moves)]
    return "\n".join(lines)
