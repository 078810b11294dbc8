"""Free slots by slice size, as the policy sees them, and the idle GPUs that no pod can get."""

from __future__ import annotations

import argparse

from nvlenv.engine.commands import common
from nvlenv.engine.formats.document import Field
from nvlenv.engine.formats.values import read_quantity
from nvlenv.engine.model.answers import Slots
from nvlenv.engine.model.snapshot import ClusterSnapshot

SHOWN_RACKS = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sizes",
        type=common.positive,
        nargs="+",
        default=(1, 2, 4, 8, 16, 18),
        metavar="NODES",
        help="slice sizes; default 1 2 4 8 16 18",
    )
    parser.add_argument("--pod-cpu", default="0", metavar="CORES", help="what a GPU pod asks for, as in Kubernetes")
    parser.add_argument("--pod-memory", default="0", metavar="BYTES", help="the same; 900Gi, for example")
    parser.add_argument("--pod-gpus", type=common.positive, metavar="N", help="GPUs of one pod; default: all of a node")
    common.add_json(parser)
    common.add_cluster(parser)


def run(arguments: argparse.Namespace) -> int:
    cluster = common.read_cluster(arguments)
    slots = common.make_engine(arguments, cluster, common.DEFAULT_POLICY).slots(arguments.sizes)
    cpu = read_quantity(Field("--pod-cpu", arguments.pod_cpu), 1000)
    memory = read_quantity(Field("--pod-memory", arguments.pod_memory))
    report = cluster.unreachable_report(cpu, memory, arguments.pod_gpus)
    if arguments.json:
        common.print_json({**slots.to_dict(), "unreachable": list(report)})
    else:
        print(describe(cluster, slots, report))
    return 0


def describe(cluster: ClusterSnapshot, slots: Slots, report: tuple[str, ...]) -> str:
    tests = sum(job.verification for job in cluster.jobs)
    lines = [
        f"{slots.gpus} GPUs: {slots.free_gpus} free, {slots.unreachable_gpus} idle on failed or cordoned nodes",
        f"whole racks free: {slots.whole_racks}; largest slice: {slots.largest_slice} nodes",
        "",
        common.table(("slice (nodes)", "free slots"), slots.free.items()),
        "",
        common.table(("rack", "free nodes"), sorted(slots.racks.items(), key=lambda entry: -entry[1])[:SHOWN_RACKS]),
    ]
    if len(slots.racks) > SHOWN_RACKS:
        lines.append(f"... and {len(slots.racks) - SHOWN_RACKS} more racks (--json has all)")
    notes = [*report, *cluster.notes]
    if tests:
        notes.append(f"{tests} verification jobs run on idle nodes: not counted, they give way to any job")
    return "\n".join([*lines, *(["", *notes] if notes else [])])
