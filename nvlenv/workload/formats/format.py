"""What a trace format is: a name, how it is recognised, and a reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nvlenv.workload.trace import Entry


@dataclass(frozen=True)
class Format:
    """One public format; a file is of it if its header holds `columns`, or if `matches` says so of its first line."""

    name: str
    title: str
    read: Callable[[Path], Iterator[Entry]]
    columns: tuple[str, ...] = ()
    matches: Callable[[str], bool] | None = None  # for files without a header
    source_gpus: int | None = None  # GPUs of the cluster it was recorded on
    note: str = ""

    def recognises(self, line: str, header: frozenset[str]) -> bool:
        """Whether a file with this first line, whose comma separated cells are `header`, is of this format."""
        if self.columns and header.issuperset(self.columns):
            return True
        return self.matches is not None and self.matches(line)
