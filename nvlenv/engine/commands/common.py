"""What the commands have in common: that they can print JSON, tables, and who has to leave for a job."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nvlenv.common.commandline import DONE, option
from nvlenv.engine.formats.options import ClusterOptions
from nvlenv.engine.formats.slurm import compress_hosts
from nvlenv.engine.model.answers import Placed, Refused

REFUSED = 3
EXIT_CODES = f"exit codes: {DONE} placed or done, {REFUSED} refused (the answer says why), 2 bad input"
SHOWN_RACKS = 12  # of evictions and of reasons, in a table


@dataclass(frozen=True)
class CommandOptions(ClusterOptions):
    """A command that answers with a table, or all that it knows."""

    json: bool = option("print the whole answer as JSON", default=False)


def exit_code(answer: Placed | Refused) -> int:
    """What a shell is told of an answer."""
    return REFUSED if isinstance(answer, Refused) else DONE


def print_json(data: Any) -> None:
    """Print an answer for programs."""
    print(json.dumps(data, indent=1))


def text_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns as wide as they need to be; numbers to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    right = [all(_is_number(row[i]) for row in cells) and bool(cells) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        parts = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)]
        return "  ".join(parts).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, cells)])


def eviction_table(answer: Placed) -> str:
    """Who has to leave for a job, or to move, and what that costs."""
    reasons = Counter(str(eviction.reason) for eviction in answer.evictions)
    counted = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    shown = answer.evictions[:SHOWN_RACKS]
    rows = [
        (
            e.job,
            e.reason,
            len(e.nodes),
            e.gpus,
            f"{e.cost:.1f}",
            compress_hosts([b.node for b in e.moved_to] or e.nodes),
        )
        for e in shown
    ]
    lines = [
        f"evictions ({counted}), {answer.cost:.1f} GPU-hours lost",
        text_table(("job", "reason", "nodes", "GPUs", "GPU-h lost", "nodes left, or moved to"), rows),
    ]
    if len(answer.evictions) > len(shown):
        lines.append(f"... and {len(answer.evictions) - len(shown)} more (--json has all)")
    return "\n".join(lines)


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).replace("-", "", 1).isdecimal()
