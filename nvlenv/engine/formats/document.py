"""JSON and YAML as values that know where they stand, so that every error names its file and its field.

Foreign formats are walked with `Field`, tolerant of whatever else is in them; the project's own are models (native.py).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from nvlenv.common.errors import InputError

SHOWN = 80  # characters of a wrong value that an error quotes


class Field:
    """A value inside a document, or its absence: JSON's null and a missing key are the same, as in Kubernetes.

    `field["spec"]["template"]` walks down and never fails on what is absent; `text`, `integer`, ... read a value and
    raise `InputError` for one of another type, naming the file and the path from the document's root.
    """

    __slots__ = ("_key", "_parent", "value", "where")

    def __init__(self, where: str, value: Any, key: str | int = "", parent: Field | None = None) -> None:
        self.where, self.value, self._key, self._parent = where, value, key, parent

    @property
    def present(self) -> bool:
        """Whether there is a value other than null."""
        return self.value is not None

    @property
    def path(self) -> str:
        """Where the value stands, e.g. `node gpu-01, status.allocatable[nvidia.com/gpu]`."""
        if self._parent is None:
            return str(self._key)
        above, key = self._parent.path, str(self._key)
        if not key.isprintable():
            key = ascii(key)  # an error stays on one line
        if isinstance(self._key, int) or "." in key or "/" in key:
            return f"{above}[{key}]"
        joint = ", " if self._parent._parent is None and above else "." if above else ""
        return f"{above}{joint}{key}"

    def named(self, name: str) -> Field:
        """The same value as a root of its own, for errors that speak of `node gpu-01` instead of `items[3]`."""
        return Field(self.where, self.value, name)

    def error(self, expected: str, found: str | None = None) -> InputError:
        """The error to raise for this value; `found` replaces the quoted value."""
        return InputError(self.where, self.path, quoted(self.value) if found is None else found, expected)

    def __getitem__(self, key: str) -> Field:
        return Field(self.where, self._all(dict, "a mapping").get(key), key, self)

    def at(self, steps: Iterable[str | int]) -> Field:
        """The value that these keys and indices lead to, absent where they lead nowhere."""
        field = self
        for step in steps:
            value = field.value
            inside = step < len(value) if isinstance(value, list) and isinstance(step, int) else step in (value or ())
            field = Field(self.where, value[step] if inside else None, step, field)
        return field

    def __iter__(self) -> Iterator[Field]:
        """The entries of a list; none if it is absent."""
        for number, value in enumerate(self._all(list, "a list")):
            yield Field(self.where, value, number, self)

    def entries(self) -> Iterator[tuple[str, Field]]:
        """The entries of a mapping; none if it is absent."""
        for key, value in self._all(dict, "a mapping").items():
            if not isinstance(key, str) or not key.isprintable():
                raise self.error("printable text as key", found=f"key {quoted(key)}")
            yield key, Field(self.where, value, key, self)

    def _all(self, kind: type[Any], expected: str) -> Any:
        """The list or mapping; an empty one if it is absent."""
        if not isinstance(self.value, kind) and self.value is not None:
            raise self.error(expected)
        return kind() if self.value is None else self.value

    def text(self, default: str | None = None, empty: bool = False) -> str:
        """A text of printable characters, not empty unless `empty`; without a default it must be there."""
        if self.value is None and default is not None:
            return default
        if not isinstance(self.value, str) or not (self.value or empty) or not self.value.isprintable():
            raise self.error("a text")
        return self.value

    def integer(self, default: int | None = None, at_least: int | None = None) -> int:
        """A whole number of 64 bits."""
        if self.value is None and default is not None:
            return default
        low = -(2**63) if at_least is None else at_least
        if not isinstance(self.value, int) or isinstance(self.value, bool) or not low <= self.value < 2**63:
            raise self.error("a whole number" if at_least is None else f"a whole number >= {at_least}")
        return self.value

    def number(self, default: float | None = None) -> float:
        """A finite number >= 0."""
        if self.value is None and default is not None:
            return default
        good = isinstance(self.value, int | float) and not isinstance(self.value, bool)
        if not good or not 0 <= self.value < 1e18:
            raise self.error("a number >= 0")
        return float(self.value)

    def flag(self, default: bool) -> bool:
        """True or false."""
        value = default if self.value is None else self.value
        if not isinstance(value, bool):
            raise self.error("true or false")
        return value

    def texts(self) -> dict[str, str]:
        """A mapping of texts, such as labels; a value may be empty."""
        return {key: entry.text(empty=True) for key, entry in self.entries()}


def quoted(value: object) -> str:
    """A value as an error quotes it: on one line, and short."""
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        kind = "mapping" if isinstance(value, dict) else "list"
        return f"a {kind} of {len(value)}" if value else f"an empty {kind}"
    text = repr(value[: SHOWN + 1] if isinstance(value, str) else value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def read_text(where: str, data: bytes) -> str:
    """The text of a UTF-8 file."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(where, f"byte {error.start}", f"0x{data[error.start]:02x}", "UTF-8 text") from None


Objects = Mapping[str, Sequence[Field]]  # Kubernetes' objects by kind


def read_documents(where: str, text: str) -> list[Field]:
    """The JSON values or YAML documents of a text, empty ones left out; `InputError` if it is neither."""
    try:
        values = _json_values(text)
    except (ValueError, RecursionError) as error:
        values = _yaml_values(where, text, str(error))
    return [Field(where, value) for value in values if value is not None]


def _json_values(text: str) -> list[Any]:
    """JSON values one after another, as two kubectl calls write them into one file."""
    decoder, values, position = json.JSONDecoder(), [], 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        value, position = decoder.raw_decode(text, position)
        values.append(value)
    return values


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML as Kubernetes reads it: a time is a text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _yaml_values(where: str, text: str, json_problem: str) -> list[Any]:
    try:
        return list(yaml.load_all(text, _Loader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        # PyYAML lets these out of its constructors for values like `!!bool maybe` or `!!int x`.
        mark, problem = None, f"{type(error).__name__} {error}".splitlines()[0]
    if text.lstrip()[:1] in ("{", "["):
        raise InputError(where, "", f"broken JSON ({json_problem})", "JSON or YAML")
    raise InputError(where, f"line {mark.line + 1}" if mark else "", f"broken YAML ({problem})", "JSON or YAML")


def read_file(path: str | Path) -> str:
    """The text of a file; `-` is the standard input."""
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else Path(path).read_bytes()
    except OSError as error:
        raise InputError(path, "", error.strerror or "an unreadable file", "a file that can be read") from None
    return read_text(str(path), data)
