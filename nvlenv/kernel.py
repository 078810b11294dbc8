"""How the compiled functions of this package are made, and where they are kept.

`kernel` is numba's njit without reference counting. Simulator kernels pass one record of some twenty arrays around;
counting references to each of them on every call cost four fifths of the time. The price: a kernel may not make arrays
or whole-array assignments, only read and write the elements of those it is given (work space is in `Sim.scratch`).
`error_model="numpy"` leaves out Python's checks for division by zero; integer division here is by sizes that are >= 1.

`inlined` is `kernel` for the small ones on the path of every decision. Passing the record to a kernel that the compiler
did not inline costs some 40 ns, as much as the whole look at a rack.

`compiled` is plain njit, for the few outer loops that make views or arrays.

All keep their machine code in a folder named after the contents of all files with kernels. numba itself only looks at
the file of the function, and would go on using a kernel whose callee in another file has changed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import config as _config
from numba import njit

CONSTANTS = ("types.py", "policies/rule.py")  # what kernels know at compile time from files without kernels
config: Any = _config  # numba's settings are set at run time, unknown to type checkers
KEPT_DAYS = 30  # machine code of other versions of the sources is removed after so long


@cache
def cache_folder() -> Path:
    """Where the machine code of these very sources is kept; NUMBA_CACHE_DIR overrides it."""
    if config.CACHE_DIR:
        return Path(config.CACHE_DIR)
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for source in sorted(package.rglob("*.py")):
        text = source.read_bytes()
        if b"nvlenv.kernel" in text or source.relative_to(package).as_posix() in CONSTANTS:
            digest.update(source.name.encode() + b"\0" + text)
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nvlenv"
    folder = base / f"kernels-{digest.hexdigest()[:16]}"
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for other in base.glob("kernels-*"):
            if other != folder and time.time() - other.stat().st_mtime > KEPT_DAYS * 86400:
                shutil.rmtree(other, ignore_errors=True)
    return folder


def is_compiled() -> bool:
    """False if the next call of a kernel has to wait for the compiler."""
    return any(cache_folder().rglob("*.nbc"))


@cache
def tell_if_compiling() -> None:
    """Say once, on stderr, why the first call will take so long, if it will."""
    if not is_compiled():
        print("nvlenv: compiling the simulator, once after installation: a minute or two", file=sys.stderr, flush=True)


def _compile(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    def decorate(function: Callable[..., Any]) -> Any:
        before = config.CACHE_DIR
        config.CACHE_DIR = str(cache_folder())
        try:
            return njit(cache=True, error_model="numpy", **options)(function)
        finally:
            config.CACHE_DIR = before

    return decorate


kernel = _compile(_nrt=False)
inlined = _compile(_nrt=False, forceinline=True)
compiled = _compile(nogil=True)
