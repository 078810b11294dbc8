"""How every command line of the project ends: exit codes, and mistakes told in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Protocol

from nvlenv.errors import InputError

DONE, BAD_INPUT, INTERRUPTED = 0, 2, 130  # the last as shells say it


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
