"""`python -m nvlenv.engine defrag`: which jobs to move so that one more large slice fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import nvlenv.engine
from nvlenv.common.commandline import DONE, option, parse
from nvlenv.engine.commands.common import EXIT_CODES, REFUSED, CommandOptions, print_json, text_table
from nvlenv.engine.formats.options import LARGEST
from nvlenv.engine.formats.slurm import compress_hosts
from nvlenv.engine.model.answers import Clearing


@dataclass(frozen=True)
class DefragOptions(CommandOptions):
    """Moves that free room for more slices of a size, ranked: most slices freed per node moved first, then least cost.

    Each line follows from the ones above it. Work that is neither movable nor preemptible is never moved.
    """

    free_rack_of: int = option(
        "nodes of one rack that are to be free together; 16, for example", least=1, most=LARGEST, metavar="NODES"
    )
    limit: int = option("slices to free", default=5, least=1, most=LARGEST, metavar="N")


def main(argv: Sequence[str]) -> int:
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


def _moves(found: Sequence[Clearing], nodes: int) -> str:
    rows = [
        (n, c.rack, len(c.moves), c.nodes_moved, f"{c.cost:.1f}", f"{c.slots_before} -> {c.slots_after}",
         f"{c.slots_per_node:.2f}")
        for n, c in enumerate(found, 1)
    ]  # fmt: skip
    header = ("", "rack", "jobs moved", "nodes moved", "GPU-h lost", f"slots of {nodes}", "slots per node moved")
    lines = [text_table(header, rows)]
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
        lines += ["", f"{number}. {clearing.rack}", text_table(("job", "GPUs", "from", "to", "GPU-h lost"), moves)]
    return "\n".join(lines)
