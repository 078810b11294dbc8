"""Files are written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nvlenv.common.errors import InputError


def make_folder(path: str | Path) -> None:
    """Make a folder and those above it, where they are missing. Raises `InputError` if there can be none."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _no_place(path, error, "a folder, or a place where one can be made") from None


@contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; it takes the place of `path` only if the block succeeds.

    Raises `InputError` where no file can be written, such as at a folder or below a file.
    """
    target = Path(path)
    if target.is_dir():
        raise InputError(path, "", "a folder", "a place to write the file")
    make_folder(target.parent)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(target)
    except OSError as error:
        if error.filename not in (None, str(part)):  # about another file; of a full disk there is no name
            raise
        raise _no_place(path, error, "a place to write the file") from None
    finally:
        part.unlink(missing_ok=True)


def _no_place(path: str | Path, error: OSError, expected: str) -> InputError:
    return InputError(path, "", (error.strerror or str(error)).lower(), expected)


def write_text(path: str | Path, text: str) -> None:
    """Write a UTF-8 text file, whole or not at all."""
    with written_whole(path) as part:
        part.write_text(text, "utf-8")


def write_json(path: str | Path, data: Any) -> None:
    """Write JSON with sorted keys, so that equal data give equal bytes."""
    write_text(path, json.dumps(data, indent=1, sort_keys=True) + "\n")
