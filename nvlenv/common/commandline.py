"""How every command line of the project is declared, read and ended.

What a command takes is a frozen dataclass of `option`s, so that its code sees typed fields; its docstring is the text
of --help:

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Options:
...     '''Draw a cluster.'''
...
...     files: tuple[str, ...] = option("what to draw", positional=True)
...     racks: int = option("of 18 nodes", default=16, least=1)
>>> parse(Options, ["a.json", "--racks", "8"], "python -m drawing")
Options(files=('a.json',), racks=8)
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, field, fields
from functools import partial, wraps
from inspect import cleandoc
from types import NoneType
from typing import Any, NoReturn, Protocol, TypeVar, get_args, get_origin, get_type_hints

from nvlenv.common.errors import InputError

DONE, BAD_INPUT, INTERRUPTED = 0, 2, 130  # the last as shells say it
EMPTY = (None, "", (), False)  # defaults that say nothing

T = TypeVar("T")


def option(
    help: str,
    *,
    default: Any = MISSING,
    metavar: str | None = None,
    flags: Sequence[str] = (),
    positional: bool = False,
    choices: Sequence[str] | None = None,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    parse: Callable[[str], Any] | None = None,
    nargs: str | int | None = None,
    const: Any = None,
    append: bool = False,
    group: str | None = None,
) -> Any:
    """One field of a dataclass of options: `--its-name`, of the field's type.

    Parameters
    ----------
    help : what it is; the default is told by itself.
    default : without one, the option has to be given.
    flags : other names than that of the field, such as ("--scenarios", "--scenario").
    positional : an argument without a name.
    least, most, above : bounds of a number.
    parse : from the text to the value, for other types than str, int, float and Path; raises ValueError with a message
        that says what was expected.
    nargs, const : as in argparse; a field of type tuple takes one or more values unless this says otherwise.
    append : of a tuple: one value each time that the option is given.
    group : heading in the help under which it stands.
    """
    given = {name: value for name, value in locals().items() if name != "default"}
    return field(default=default, metadata=given, kw_only=True)


def whole(text: str, least: float | None = None, most: float | None = None) -> int:
    """A whole number within bounds. Raises ValueError that says what was expected."""
    if not re.fullmatch("-?[0-9]{1,19}", text) or not _within(int(text), least, most):
        raise ValueError(f"found {text!r}, expected a whole number{_bounds(least, most)}")
    return int(text)


def number(text: str, least: float | None = None, most: float | None = None, above: float | None = None) -> float:
    """A finite number within bounds. Raises ValueError that says what was expected."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or not _within(value, least, most, above):
        raise ValueError(f"found {text!r}, expected a number{_bounds(least, most, above)}")
    return value


def _within(value: float, least: float | None, most: float | None, above: float | None = None) -> bool:
    low = least is None or value >= least
    return low and (most is None or value <= most) and (above is None or value > above)


def _bounds(least: float | None, most: float | None, above: float | None = None) -> str:
    if least is not None and most is not None:
        return f" from {least:.10g} to {most:.10g}"
    said = {"of at least": least, "above": above, "at most": most}
    words = " and ".join(f"{word} {bound:.10g}" for word, bound in said.items() if bound is not None)
    return f" {words}" if words else ""


def parse(kind: type[T], argv: Sequence[str], program: str, epilog: str = "") -> T:
    """The options that a command line gives. Raises `UsageError` for a mistake in them."""
    parser = _Parser(prog=program, description=cleandoc(kind.__doc__ or ""), epilog=epilog)
    _declare(parser, kind)
    return _made(kind, parser.parse_intermixed_args(list(argv)))  # arguments may stand before and after options


def parse_command(kinds: Mapping[str, type[Any]], argv: Sequence[str], program: str, description: str) -> Any:
    """The options of one of several commands, by name; an instance of the dataclass of the command that was given."""
    parser = _Parser(prog=program, description=description)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, kind in kinds.items():
        text = cleandoc(kind.__doc__ or "")
        _declare(commands.add_parser(name, help=text.split("\n")[0].rstrip("."), description=text), kind)
    found = parser.parse_args(list(argv))
    return _made(kinds[vars(found).pop("command")], found)


class UsageError(InputError):
    """A mistake in the arguments of a program, told in one line."""

    def __init__(self, program: str, message: str) -> None:
        super().__init__(program, "", message, "")
        hint = "" if "expected" in message else f" (see {program} --help)"
        self.args = (message + hint,)

    def __reduce__(self) -> tuple[type[UsageError], tuple[str, object]]:  # type: ignore[override]
        return UsageError, (self.where, self.found)


class _Parser(argparse.ArgumentParser):
    """argparse whose mistakes are one line, as all other mistakes are."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        raise UsageError(self.prog, message.removeprefix("argument "))


def _declare(parser: argparse.ArgumentParser, kind: type[Any]) -> None:
    hints = get_type_hints(kind)
    groups: dict[str, Any] = {}
    for one in fields(kind):
        title = one.metadata["group"]
        if title and title not in groups:
            groups[title] = parser.add_argument_group(title)
        names, rest = _argument(one.name, hints[one.name], one.default, one.metadata)
        groups.get(title, parser).add_argument(*names, **rest)


def _argument(name: str, hint: Any, default: Any, said: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Names and settings of one argument, as argparse takes them."""
    several = get_origin(hint) is tuple
    inner = get_args(hint)[0] if several else next(a for a in (*get_args(hint), hint) if a is not NoneType)
    rest: dict[str, Any] = {"help": said["help"].replace("%", "%%")}
    if default is not MISSING:
        rest["default"] = default
        if (default not in EMPTY or type(default) is int) and not said["append"]:
            shown = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
            rest["help"] += f" (default {shown})".replace("%", "%%")
    if inner is bool:
        rest["action"] = "store_true"
    else:
        rest["type"] = _converter(inner, said)
        rest["metavar"] = said["metavar"] or (None if said["choices"] else name.upper() if said["positional"] else None)
        rest["choices"] = said["choices"]
        rest["nargs"] = said["nargs"] or ("+" if several and not said["append"] else None)
        if said["append"]:
            rest.update(action="append", default=[])
        if said["const"] is not None:
            rest["const"] = said["const"]
    if said["positional"]:
        return [name], rest
    rest["dest"] = name
    if default is MISSING:
        rest["required"] = True
    return list(said["flags"]) or ["--" + name.replace("_", "-")], rest


def _converter(kind: type[Any], said: Mapping[str, Any]) -> Callable[[str], Any]:
    bounds = {name: said[name] for name in ("least", "most", "above") if said[name] is not None}
    known: dict[type[Any], Callable[[str], Any]] = {int: partial(whole, **bounds), float: partial(number, **bounds)}
    convert = said["parse"] or known.get(kind, kind)

    def converted(text: str) -> Any:
        try:
            return convert(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(f"found {error.found}, expected {error.expected}") from None
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return converted


def _made(kind: type[T], found: argparse.Namespace) -> T:
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in vars(found).items()})


class Entry(Protocol):
    """A command line; without arguments, those of the process."""

    def __call__(self, argv: Sequence[str] | None = None, /) -> int: ...


def command(main: Callable[[list[str]], int | None]) -> Entry:
    """Make a command line of `main`, which takes arguments and returns an exit code or None (done).

    The exit code is 2 for an `InputError`, whose one line goes to stderr, 130 for an interruption, with what the
    `KeyboardInterrupt` says of it, and 0 if nobody wants to read any more, such as `head`.
    """

    @wraps(main)
    def entry(argv: Sequence[str] | None = None, /) -> int:
        try:
            code = main(list(sys.argv[1:] if argv is None else argv)) or DONE
            sys.stdout.flush()  # a reader that is gone is found out here, not by the interpreter at its end
            return code
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            return BAD_INPUT
        except KeyboardInterrupt as interrupt:
            how = f"; {interrupt}" if str(interrupt) else ""
            print(f"\ninterrupted{how}", file=sys.stderr)
            return INTERRUPTED
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still to be flushed
            return DONE

    return entry
