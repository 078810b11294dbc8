"""Slurm host lists: "rack01-node[001-018,020]" for nineteen names, and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product
from math import prod

from nvlenv.common.errors import InputError

LARGEST = 65536  # names in one list; a mistyped range must not fill the memory
EXPECTED = "a host list like rack01-node[001-018,020]"

_ENDING = re.compile(r"(.*?)([0-9]{1,18})")


def expand(text: str, where: str = "host list", field: str = "") -> tuple[str, ...]:
    """The names of a host list, in its order.

    >>> expand("rack[1-2]-node[08-10],login")[2:]
    ('rack1-node10', 'rack2-node08', 'rack2-node09', 'rack2-node10', 'login')
    """
    names: list[str] = []
    for entry in _split(text, where, field):
        pieces = [_choices(piece, text, where, field) for piece in re.split(r"(\[[^\[\]]*\])", entry) if piece]
        if len(names) + prod(len(choices) for choices in pieces) > LARGEST:
            raise InputError(where, field, repr(text[:60]), f"at most {LARGEST} hosts")
        names.extend("".join(combination) for combination in product(*pieces))
    return tuple(names)


def compress(names: Iterable[str]) -> str:
    """The shortest usual host list of these names, sorted by name and number, doubles dropped.

    >>> compress(["rack01-node010", "rack01-node008", "rack01-node009", "login"])
    'login,rack01-node[008-010]'
    """
    ranges: dict[str, list[tuple[str, str]]] = {}
    for prefix, digits in sorted({_ending(name) for name in names}, key=_order):
        found = ranges.setdefault(prefix, [])
        if found and found[-1][1] and digits == f"{int(found[-1][1]) + 1:0{len(found[-1][0])}d}":
            found[-1] = (found[-1][0], digits)
        else:
            found.append((digits, digits))
    return ",".join(entry for prefix, found in ranges.items() for entry in _entries(prefix, found))


def _split(text: str, where: str, field: str) -> Iterator[str]:
    """The entries between the commas that are outside brackets."""
    for entry in re.split(r",(?![^\[\]]*\])", text.strip()):
        if not entry.isprintable() or not entry or " " in entry:
            raise InputError(where, field, repr(text[:60]), EXPECTED)
        yield entry


def _choices(piece: str, text: str, where: str, field: str) -> tuple[str, ...]:
    """The texts that one piece of an entry stands for: itself, or the numbers in brackets."""
    if "[" not in piece and "]" not in piece:
        return (piece,)
    numbers: list[str] = []
    for part in piece[1:-1].split(","):
        match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", part)
        if match is None or piece[0] != "[" or piece[-1] != "]" or int(match[2] or match[1]) < int(match[1]):
            raise InputError(where, field, repr(text[:60]), EXPECTED)
        first, last = int(match[1]), int(match[2] or match[1])
        if len(numbers) + last - first >= LARGEST:
            raise InputError(where, field, repr(text[:60]), f"at most {LARGEST} hosts")
        numbers.extend(f"{number:0{len(match[1])}d}" for number in range(first, last + 1))
    return tuple(numbers)


def _ending(name: str) -> tuple[str, str]:
    """A name as what comes before its last digits, and those."""
    if not name or re.search(r"[\[\],\s]", name):
        raise InputError("host list", "name", repr(name), "a host name without brackets, commas and blanks")
    match = _ENDING.fullmatch(name)
    return (match[1], match[2]) if match else (name, "")


def _order(ending: tuple[str, str]) -> tuple[str, bool, int, int]:
    prefix, digits = ending
    return prefix, bool(digits), int(digits or "0"), len(digits)


def _entries(prefix: str, ranges: list[tuple[str, str]]) -> Iterator[str]:
    """One bracket for all numbered names of a prefix; a name without a number stands for itself."""
    if not ranges[0][0]:
        yield prefix
        ranges = ranges[1:]
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        yield prefix + ranges[0][0]
    elif ranges:
        inside = ",".join(first if first == last else f"{first}-{last}" for first, last in ranges)
        yield f"{prefix}[{inside}]"
