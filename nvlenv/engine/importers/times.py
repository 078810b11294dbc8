"""Points in time and spans as the sources write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from nvlenv.engine.importers.document import Field

_SPAN = re.compile(r"(?:(?P<days>[0-9]{1,6})-)?(?P<rest>[0-9]{1,9}(?::[0-9]{1,9}){0,2})")


def read_time(field: Field) -> float | None:
    """Seconds since 1970 of an RFC 3339 time such as 2026-01-31T08:00:00Z; None if absent."""
    if not field.present:
        return None
    try:
        moment = datetime.fromisoformat(field.text())
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        seconds = -1.0
    if seconds < 0:
        raise field.error("a time since 1970 such as 2026-01-31T08:00:00Z")
    return seconds


def parse_span(text: str) -> float | None:
    """Hours of a Slurm time limit: minutes, m:s, h:m:s, d-h, d-h:m or d-h:m:s; None if it is not one.

    >>> parse_span("90"), parse_span("2:00:00"), parse_span("1-12")
    (1.5, 2.0, 36.0)
    """
    match = _SPAN.fullmatch(text)
    if match is None:
        return None
    parts = [int(part) for part in match["rest"].split(":")]
    if match["days"]:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
        return 24 * int(match["days"]) + hours + minutes / 60 + seconds / 3600
    hours, minutes, seconds = {1: (0, *parts, 0), 2: (0, *parts), 3: tuple(parts)}[len(parts)]
    return hours + minutes / 60 + seconds / 3600
