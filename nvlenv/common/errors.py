"""The one error that a user sees for bad input: where, what was found, what was expected."""

from __future__ import annotations

from pathlib import Path


class InputError(ValueError):
    """Bad user input, told in one line.

    Parameters
    ----------
    where : the file, command-line option or object that holds the mistake.
    field : the field (dotted path, column or line) inside it; empty if the whole of it is meant.
    found : what was read there.
    expected : what would have been accepted.
    """

    def __init__(self, where: str | Path, field: str, found: object, expected: str) -> None:
        self.where, self.field, self.found, self.expected = str(where), field, found, expected
        place = f"{where}: {field}" if field else f"{where}"
        super().__init__(f"{place}: found {found}, expected {expected}")

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, object, str]]:
        """Exceptions are pickled by their message alone, and this one must come back whole from other processes."""
        return InputError, (self.where, self.field, self.found, self.expected)


def brief(value: object, width: int = 60) -> str:
    """A value as an error quotes it: in Python's notation, on one line, at most `width` letters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= width else f"{text[: width - 3]}..."
