"""What the commands have in common: exit codes, that they can print JSON, and tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nvlenv.common.commandline import DONE, option
from nvlenv.engine.formats.load import ClusterOptions

REFUSED = 3
EXIT_CODES = f"exit codes: {DONE} placed or done, {REFUSED} refused (the answer says why), 2 bad input"


@dataclass(frozen=True)
class CommandOptions(ClusterOptions):
    """A command that answers with a table, or all that it knows."""

    json: bool = option("print the whole answer as JSON", default=False)


def print_json(data: Any) -> None:
    """Print an answer for programs."""
    print(json.dumps(data, indent=1))


def text_table(
    header: Sequence[str], rows: Iterable[Sequence[object]], most: int | None = None, what: str = "more"
) -> str:
    """Columns as wide as they need to be, numbers to the right; of more than `most` rows the last line says so."""
    cells = [[str(cell) for cell in row] for row in rows]
    left, cells = len(cells[most:]) if most else 0, cells[:most]
    columns = list(zip(header, *cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [all(map(_is_number, column[1:])) and bool(cells) for column in columns]

    def line(row: Sequence[str]) -> str:
        parts = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)]
        return "  ".join(parts).rstrip()

    lines = [line(header), line(["-" * width for width in widths]), *map(line, cells)]
    return "\n".join([*lines, *([f"... and {left} {what} (--json has all)"] if left else [])])


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).replace("-", "", 1).isdecimal()
