"""Text files as traces come: plain or gzip, tables with or without a header, and what is told when they are broken."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from nvlenv.common.errors import InputError, brief

HEAD = 65536  # characters looked at to recognise a file
MISSING = frozenset({"", "nan", "NaN", "NaT", "None", "none", "null", "NULL", "N/A", "\\N"})


def _refuse_binary(path: Path, head: bytes) -> None:
    if not head:
        raise InputError(path, "", "an empty file", "a job trace")
    archive = "tar" if head[257:262] == b"ustar" else "zip" if head[:4] == b"PK\x03\x04" else ""
    if archive:
        raise InputError(path, "", f"a {archive} archive", "the table inside it: unpack the archive first")
    if b"\0" in head:
        raise InputError(path, "", "binary data", "a text file, plain or gzip")


@contextmanager
def _open(path: Path, place: Callable[[], str] = str) -> Iterator[io.TextIOWrapper]:
    """The file as UTF-8 text, unpacked if it is gzip; what goes wrong is told with the `place` that was reached."""
    try:
        with path.open("rb") as raw:
            stream = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == b"\x1f\x8b" else raw
            _refuse_binary(path, stream.peek(512))
            yield io.TextIOWrapper(cast("io.BufferedReader", stream), "utf-8-sig", newline="")
    except EOFError:
        raise InputError(path, place(), "gzip data that ends early", "a complete file") from None
    except UnicodeDecodeError:
        raise InputError(path, place(), "bytes that are not UTF-8", "a text file in UTF-8") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(path, place(), f"damaged gzip data ({error})", "a complete file") from None
    except OSError as error:
        raise InputError(path, place(), (error.strerror or str(error)).lower(), "a readable file") from None


def read_head(path: Path) -> str:
    """The first `HEAD` characters of the file."""
    with _open(path) as stream:
        return stream.read(HEAD)


def read_lines(path: Path) -> Iterator[str]:
    """The lines of the file with their ends."""
    number = 1
    with _open(path, lambda: f"line {number}") as stream:
        for text in stream:
            yield text
            number += 1


def read_chunks(path: Path, size: int = 1 << 16) -> Iterator[str]:
    """The text of the file in pieces of `size` characters."""
    done = 0
    with _open(path, lambda: f"after character {done}") as stream:
        while chunk := stream.read(size):
            yield chunk
            done += len(chunk)


class TableRow:
    """One row of a table, read by column name."""

    __slots__ = ("_cells", "_columns", "line", "path")

    def __init__(self, path: Path, line: int, columns: Mapping[str, int], cells: Sequence[str]) -> None:
        self.path, self.line, self._columns, self._cells = path, line, columns, cells

    def has(self, column: str) -> bool:
        """Whether the table has the column."""
        return column in self._columns

    def text(self, column: str, default: str = "") -> str:
        """The cell without surrounding blanks; `default` if the table lacks the column or the cell says nothing."""
        index = self._columns.get(column)
        if index is None:
            return default
        cell = self._cells[index].strip()
        return default if cell in MISSING else cell

    def number(self, column: str) -> float:
        """The cell as a number, NaN if it is empty."""
        cell = self.text(column)
        try:
            return float(cell) if cell else math.nan
        except ValueError:
            raise self.error(column, "a number") from None

    def time(self, column: str) -> float:
        """The cell `2023-05-17 11:00:58[+08:00]` or `2023/7/15 02:19` in s since 1970, NaN if empty; no zone is UTC."""
        cell = self.text(column)
        if not cell:
            return math.nan
        try:
            return timestamp(cell)
        except ValueError:
            raise self.error(column, "a time like 2023-05-17 11:00:58+08:00") from None

    def error(self, column: str, expected: str) -> InputError:
        """What to raise for a cell that is not what was expected."""
        found = brief(self._cells[self._columns[column]])
        return InputError(self.path, f"line {self.line}, column {column!r}", found, expected)


def timestamp(text: str) -> float:
    """Seconds since 1970 of a date and time; its offset is honoured, and no offset is read as UTC."""
    if "/" in text:  # Lingjun writes months, days and hours without leading zeros
        date, _, clock = text.partition(" ")
        year, month, day = map(int, date.split("/"))
        hour, minute, second = map(int, [*clock.split(":"), "0"][:3])
        moment = datetime(year, month, day, hour, minute, second)
    else:
        moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def read_table(path: Path, required: Sequence[str], names: Sequence[str] | None = None) -> Iterator[TableRow]:
    """The rows of a comma separated table.

    Parameters
    ----------
    required : columns that must be there.
    names : the columns of a table that comes without a header; a header that is there all the same is skipped.

    Raises
    ------
    InputError : a column is missing, or a row has fewer cells than the header.
    """
    reader = csv.reader(read_lines(path))
    columns = _columns(path, names, required) if names else None
    try:
        for cells in reader:
            if not cells or (len(cells) == 1 and not cells[0].strip()):
                continue
            if columns is None:
                columns = _columns(path, cells, required)
            elif len(cells) < len(columns):
                found, expected = f"{len(cells)} cells in {brief(','.join(cells))}", f"{len(columns)} as in the header"
                raise InputError(path, f"line {reader.line_num}", found, expected)
            elif list(names or ()) != cells:
                yield TableRow(path, reader.line_num, columns, cells)
    except csv.Error as error:
        raise InputError(path, f"line {reader.line_num}", str(error), "comma separated values") from None


def _columns(path: Path, header: Sequence[str], required: Sequence[str]) -> dict[str, int]:
    columns = {name.strip(): index for index, name in enumerate(header)}
    missing = [name for name in required if name not in columns]
    if missing:
        raise InputError(path, "line 1", f"columns {brief(','.join(header), 200)}", f"also {', '.join(missing)}")
    return columns


def table_beside(path: Path, name: str) -> Path | None:
    """The file of that name, plain or gzip, in the folder of another one."""
    plain = path.with_name(name.removesuffix(".gz"))
    candidates = (plain, plain.with_name(f"{plain.name}.gz"))
    return next((found for found in candidates if found != path and found.is_file()), None)
