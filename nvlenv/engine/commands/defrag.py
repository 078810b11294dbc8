"""Moves that free room for more slices of a size, ranked: most slices freed per node moved first, then least cost.

Each line follows from the ones above it. Work that is neither movable nor preemptible is never moved.
"""

from __future__ import annotations

import argparse

from nvlenv.engine.commands import common
from nvlenv.engine.formats.slurm import compress_hosts
from nvlenv.engine.model.answers import Clearing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--free-rack-of",
        type=common.positive,
        required=True,
        metavar="NODES",
        help="nodes of one rack that are to be free together; 16, for example",
    )
    parser.add_argument("--limit", type=common.positive, default=5, metavar="N", help="slices to free; default 5")
    common.add_json(parser)
    common.add_cluster(parser)


def run(arguments: argparse.Namespace) -> int:
    cluster = common.read_cluster(arguments)
    engine = common.make_engine(arguments, cluster, common.DEFAULT_POLICY)
    found = engine.defrag(arguments.free_rack_of, arguments.limit)
    if arguments.json:
        common.print_json({"clearings": [clearing.to_dict() for clearing in found]})
    else:
        print(describe(found, arguments.free_rack_of))
    return 0 if found else common.REFUSED


def describe(found: tuple[Clearing, ...], nodes: int) -> str:
    if not found:
        return f"refused: no moves free {nodes} more nodes of one rack, or what would have to move is pinned"
    rows = [
        (n, c.rack, len(c.moves), c.nodes_moved, f"{c.cost:.1f}", f"{c.slots_before} -> {c.slots_after}",
         f"{c.slots_per_node:.2f}")
        for n, c in enumerate(found, 1)
    ]  # fmt: skip
    header = ("", "rack", "jobs moved", "nodes moved", "GPU-h lost", f"slots of {nodes}", "slots per node moved")
    lines = [common.table(header, rows)]
    for number, clearing in enumerate(found, 1):
        moves = [
            (
                move.job,
                move.gpus,
                compress_hosts(move.nodes),
                compress_hosts([b.node for b in move.to]),
                f"{move.cost:.1f}",
            )
            for move in clearing.moves
        ]
        table = common.table(("job", "GPUs", "from", "to", "GPU-h lost"), moves)
        lines += ["", f"{number}. {clearing.rack}", table]
    return "\n".join(lines)
