"""Values as the sources write them: quantities of Kubernetes, times, spans of Slurm, and what a pod asks of its node.

Quantities are read by hand: no library of ours has Kubernetes' rounding, suffixes and bounds exactly.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from nvlenv.engine.formats.document import Field
from nvlenv.engine.model.snapshot import GPU
from nvlenv.policies.kueue.types import Toleration

QUANTITY = "a quantity >= 0 such as 500m, 4, 1.5Gi or 2e3"
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
    amount = scaled_quantity(field.value, scale)
    if amount is None:
        raise field.error(QUANTITY)
    return amount


def scaled_quantity(value: object, scale: int) -> int | None:
    """As `read_quantity`, of a bare value; None if it is no quantity >= 0 that 64 bits hold."""
    good = isinstance(value, str | int | float) and not isinstance(value, bool)
    return _scaled(str(value), scale) if good and len(str(value)) < 100 else None


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


class PodDemand(NamedTuple):
    """Resources of one pod: GPUs, milli-cores, bytes."""

    gpus: int = 0
    cpu: int = 0
    memory: int = 0

    def plus(self, other: PodDemand) -> PodDemand:
        """What both take together."""
        return PodDemand(self.gpus + other.gpus, self.cpu + other.cpu, self.memory + other.memory)

    def most(self, other: PodDemand) -> PodDemand:
        """What is enough for either, resource by resource."""
        return PodDemand(*map(max, self, other))


def pod_demand(spec: Field, gpu_resource: str = GPU) -> PodDemand:
    """What a pod of this spec takes from its node while it runs or starts.

    Containers and sidecars (init containers that restart always) run together; each other init container runs alone
    beside the sidecars started before it; the larger counts. Requests on the whole pod replace those of its containers,
    the overhead of the runtime class comes on top.
    """
    running, starting, sidecars = PodDemand(), PodDemand(), PodDemand()
    for container in spec["containers"]:
        running = running.plus(_asked(container["resources"], PodDemand(), gpu_resource))
    for container in spec["initContainers"]:
        demand = _asked(container["resources"], PodDemand(), gpu_resource)
        if container["restartPolicy"].value == "Always":
            sidecars = sidecars.plus(demand)
            demand = PodDemand()
        starting = starting.most(sidecars.plus(demand))
    containers = running.plus(sidecars).most(starting)
    whole, overhead = _asked(spec["resources"], containers, ""), spec["overhead"]
    return whole.plus(_amounts(overhead, overhead, PodDemand(), gpu_resource))


def _asked(resources: Field, default: PodDemand, gpu_resource: str) -> PodDemand:
    """Requests, limits where no request is given, and the default where there is neither."""
    return _amounts(resources["requests"], resources["limits"], default, gpu_resource)


def _amounts(requests: Field, limits: Field, default: PodDemand, gpu_resource: str) -> PodDemand:
    gpus, cpu, memory = (
        requests[name] if requests[name].present else limits[name] for name in (gpu_resource, "cpu", "memory")
    )
    return PodDemand(
        read_whole(gpus) if gpus.present else default.gpus,
        read_quantity(cpu, 1000) if cpu.present else default.cpu,
        read_quantity(memory) if memory.present else default.memory,
    )


def read_tolerations(spec: Field) -> tuple[Toleration, ...]:
    """The tolerations of a pod's spec."""
    return tuple(
        Toleration(
            key=entry["key"].text("", empty=True),
            operator=entry["operator"].text("Equal"),
            value=entry["value"].text("", empty=True),
            effect=entry["effect"].text("", empty=True),
        )
        for entry in spec["tolerations"]
    )
