"""How the compiled functions of this package are made, and where they are kept.

`kernel` is numba's njit without reference counting. Simulator kernels pass one record of some twenty arrays around;
counting references to each of them on every call cost four fifths of the time. The price: a kernel may not make arrays
or whole-array assignments, only read and write the elements of those it is given (work space is in `Sim.scratch`).
`error_model="numpy"` leaves out Python's checks for division by zero; integer division here is by sizes that are >= 1.

`inlined` is `kernel` for the small ones on the path of every decision. Passing the record to a kernel that the compiler
did not inline costs some 40 ns, as much as the whole look at a rack.

`compiled` is plain njit, for the few outer loops that make views or arrays.

All keep their machine code in a folder named after the contents of the function's file and of all files that it
imports, directly or not. numba itself only looks at the file of the function, and would go on using a kernel whose
callee in another file has changed; it also names the folder after the place of the file, so that two checkouts, or a
checkout and an installed wheel, would each compile what they share.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import config as _config
from numba import njit
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator

CONSTANTS = (
    "nvlenv.cluster.types",
    "nvlenv.policies.heuristics.rule",
)  # what kernels know at compile time from elsewhere
FIRST = "nvlenv.simulator.step"  # the file whose kernels everything needs
KEPT_DAYS = 30  # machine code of other versions of the sources is removed after so long
TOP = Path(__file__).parents[2]  # where the packages lie

config: Any = _config  # numba's settings are set at run time, unknown to type checkers
_IMPORT = re.compile(rb"^\s*from ((?:nvlenv|agents)[\w.]*) import ([\w ,]+|\([^)]*\))", re.M)


def is_compiled() -> bool:
    """False if the next call of a kernel has to wait for the compiler."""
    return any(cache_folder(FIRST, _file_of(FIRST)).rglob("*.nbc"))


@cache
def cache_folder(module: str, file: Path) -> Path:
    """Where the machine code of one module with kernels is kept, in NUMBA_CACHE_DIR or else in the user's cache."""
    base = Path(config.CACHE_DIR or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nvlenv")
    text = file.read_bytes()
    digest = hashlib.sha256(text)
    for name in _imported_by(text):
        text = _source(name)
        if b"nvlenv.common.kernel" in text or name in CONSTANTS:
            digest.update(name.encode() + b"\0" + text)
    folder = base / "kernels" / f"{module}-{digest.hexdigest()[:16]}"
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for other in folder.parent.glob(f"{module}-*"):
            if other != folder and time.time() - other.stat().st_mtime > KEPT_DAYS * 86400:
                shutil.rmtree(other, ignore_errors=True)
    return folder


def _imported_by(text: bytes) -> list[str]:
    """All modules of this project that a source imports, directly or not, sorted."""
    found: set[str] = set()
    ahead = set(_imports(text))
    while ahead:
        name = ahead.pop()
        found.add(name)
        ahead |= _imports(_source(name)) - found
    return sorted(found)


@cache
def _imports(text: bytes) -> frozenset[str]:
    """The modules of this project that a source names in its imports."""
    found = set()
    for package, names in _IMPORT.findall(text):
        parts = re.findall(rb"(\w+)(?: as \w+)?\s*(?:,|$|\))", names)
        found |= {package, *(package + b"." + part for part in parts)}
    return frozenset(name.decode() for name in found if _source(name.decode()))


@cache
def _source(module: str) -> bytes:
    """The text of a module; empty for a name that is none."""
    file = _file_of(module)
    return file.read_bytes() if file.is_file() else b""


def _file_of(module: str) -> Path:
    path = TOP.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def tell_if_compiling() -> None:
    """Say once, on stderr, why the first call will take so long, if it will."""
    if not is_compiled():
        print("nvlenv: compiling the simulator, once after installation: a minute or two", file=sys.stderr, flush=True)


class _ByContents(_CacheLocator):  # type: ignore[misc]
    """numba's question where to keep a function, answered by `cache_folder`."""

    def __init__(self, module: str, file: str) -> None:
        self._folder = cache_folder(module, Path(file))

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return self._folder.name

    def get_disambiguator(self) -> str:
        return ""

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _ByContents:
        return cls(py_func.__module__, py_file)


class _Impl(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = [_ByContents]  # type: ignore[assignment]  # noqa: RUF012


class _Cache(FunctionCache):  # type: ignore[misc]
    _impl_class = _Impl


def _compile(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = njit(error_model="numpy", **options)(function)
        dispatcher._cache = _Cache(function)
        return dispatcher

    return decorate


kernel = _compile(_nrt=False)
inlined = _compile(_nrt=False, forceinline=True)
compiled = _compile(nogil=True)
