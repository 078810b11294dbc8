"""Kubernetes resource quantities ("500m", "1.5Gi", "2e3", "12E"), read exactly."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from math import ceil

from nvlenv.engine.importers.document import Field

LARGEST = 2**63 - 1  # a quantity is a 64-bit number
DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}

# "E" alone is the suffix exa, "E" before digits an exponent. Lengths are bounded so that no number explodes.
_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]{0,40})(?:\.(?P<part>[0-9]{0,40}))?"
    r"(?:[eE](?P<exponent>[+-]?[0-9]{1,3})|(?P<suffix>Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]?))"
)


@lru_cache(maxsize=4096)
def parse_quantity(text: str) -> Fraction | None:
    """The exact number that a quantity stands for; None if it is not one.

    >>> parse_quantity("1500m"), parse_quantity("1.5Gi"), parse_quantity("2E"), parse_quantity("2E3")
    (Fraction(3, 2), Fraction(1610612736, 1), Fraction(2000000000000000000, 1), Fraction(2000, 1))
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or not (match["whole"] or match["part"]):
        return None
    part = match["part"] or ""
    number = Fraction(int((match["whole"] or "0") + part), 10 ** len(part))
    if match["suffix"] in BINARY:
        number *= 2 ** BINARY[match["suffix"]]
    else:
        exponent = int(match["exponent"]) if match["exponent"] else DECIMAL[match["suffix"] or ""]
        number *= Fraction(10) ** exponent
    return -number if match["sign"] == "-" else number


def read_quantity(field: Field, scale: int = 1) -> int:
    """`scale` times the quantity, rounded up as Kubernetes does; 0 if absent.

    Use scale 1000 for cpu in milli-cores, 1 for memory in bytes and for things counted in pieces.
    """
    if not field.present:
        return 0
    written = field.value
    good = isinstance(written, str | int | float) and not isinstance(written, bool)
    amount = _scaled(str(written), scale) if good and len(str(written)) < 100 else None
    if amount is None:
        raise field.error("a quantity >= 0 such as 500m, 4, 1.5Gi or 2e3")
    return amount


def read_whole(field: Field) -> int:
    """A quantity of indivisible things, such as GPUs or pods."""
    count = read_quantity(field)
    if field.present and parse_quantity(str(field.value)) != count:
        raise field.error("a whole number >= 0")
    return count


@lru_cache(maxsize=4096)  # a cluster has thousands of pods and a few dozen different amounts
def _scaled(text: str, scale: int) -> int | None:
    number = parse_quantity(text)
    return None if number is None or not 0 <= number * scale <= LARGEST else ceil(number * scale)
