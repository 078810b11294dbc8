"""A heuristic as data: one packing rule and any modifiers, composed by name.

    best-fit                       which rack: the packing rule
    best-fit+fill                  unconstrained jobs and spreads go to the tightest holes
    best-fit+tight                 a slice that must span racks takes the fewest that hold it, with the least left over
    best-fit+delay                 preferred jobs wait a while for one domain before they spread
    best-fit+hold                  small jobs may not break the last hero-ready racks
    best-fit+easy                  racks are reserved for the oldest waiting hero, the target
    best-fit+easy(slices=1,patience=20)  for the most urgent waiting job of at least one slice
    best-fit+easy+drain            and no sizeable job starts, wherever, that keeps its GPUs from that job for long
    best-fit+open                  racks are opened for jobs that have room but no shape, cheapest first
    best-fit+open-hero             the same by the hero controller's cost rule, evicting whole racks
    best-fit+open(urgency=0.7)     only victims with at most so many times the opener's weight per remaining hour
    best-fit+preempt-priority      as kube-scheduler and Slurm do: always, and victims of the lowest priority first
    best-fit+fill+easy+open        any combination

Parameters follow a name in parentheses: best-fit+hold(racks=2,hours=6). See `Rule` for what they mean.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from nvlenv.common.errors import InputError
from nvlenv.policies.heuristics.packing import PACKINGS

NO_OPEN, OPEN_CHEAPEST, OPEN_HERO, OPEN_LOWEST = 0, 1, 2, 3
LARGEST = 2**31  # of a parameter


class Rule(NamedTuple):
    """A composed heuristic, as the kernels read it. `easy_slices` is the parameter `slices` of the part `easy`."""

    packing: int  # index into PACKINGS
    random_seed: int = 0
    fill: int = 0  # 1: take `fill` where it is legal and takes nothing that is kept for others
    tight: int = 0  # 1: spread over the fewest racks with the least left over, not over the largest rooms
    delay_hours: float = 0.0  # how long a preferred job waits for one domain of its level
    hold_racks: int = 0  # small jobs may not break a hero-ready rack when at most so many are left; 0: they may
    hold_nodes: int = 8  # what counts as small
    hold_hours: float = 12.0  # longest wait that this rule may cause
    easy: int = 0  # 1: reserve racks for the oldest waiting hero
    easy_share: float = 0.0  # or for the oldest job that asks for this share of the cluster; 0: heroes only
    easy_slices: int = 0  # or that asks for so many standard slices
    easy_patience: float = 0.0  # h: for the most urgent of them (forecast.urgency), not the oldest; 0: the oldest
    easy_spare: int = 0  # 1: others may use the nodes of reserved racks that the hero will not need
    drain: int = 0  # 1: a job of a quarter slice or more waits if it would outlast the reserved job's pooled start
    drain_hours: float = 4.0  # by more than so long
    open: int = NO_OPEN  # NO_OPEN, OPEN_CHEAPEST, OPEN_HERO or OPEN_LOWEST
    open_urgency: float = 0.0  # of a victim, in times the opener's weight per remaining hour, at most; 0: any


_PART = re.compile(r"([a-z-]+)(?:\(([^)]*)\))?")
# What each modifier sets.
_SETTINGS: dict[str, dict[str, int | float]] = {
    "fill": {"fill": 1},
    "tight": {"tight": 1},
    "delay": {"delay_hours": 4.0},
    "hold": {"hold_racks": 2},
    "easy": {"easy": 1},
    "drain": {"drain": 1},
    "open": {"open": OPEN_CHEAPEST},
    "open-hero": {"open": OPEN_HERO},
    "preempt-priority": {"open": OPEN_LOWEST},
}
MODIFIERS = tuple(_SETTINGS)


def parse_rule(name: str) -> Rule:
    """The rule that a name such as "best-fit+hold(racks=3)+open" stands for.

    Raises `InputError` for unknown or repeated parts, and for parameters that are unknown, negative or no numbers.
    """
    first, *rest = name.split("+")
    packing, parameters = _parse_part(name, first, PACKINGS, "packing rules")
    values: dict[str, int | float] = {"packing": PACKINGS.index(packing), **parameters}
    for part in rest:
        modifier, parameters = _parse_part(name, part, MODIFIERS, "modifiers")
        if values.keys() & _SETTINGS[modifier].keys():
            raise InputError("policy", name, repr(part), "every modifier once, and only one way to open racks")
        values.update(_SETTINGS[modifier])
        values.update(parameters)
    return Rule(**values)  # type: ignore[arg-type]


def _parse_part(name: str, part: str, known: tuple[str, ...], kind: str) -> tuple[str, dict[str, int | float]]:
    match = _PART.fullmatch(part.strip())
    if match is None or match[1] not in known:
        raise InputError("policy", name, repr(part), f"one of the {kind} {list(known)}")
    prefix = f"{match[1]}_"
    fields = {field.removeprefix(prefix): field for field in Rule._fields if field.startswith(prefix)}
    values: dict[str, int | float] = {}
    for setting in filter(None, (match[2] or "").split(",")):
        key, _, text = setting.partition("=")
        if key.strip() not in fields:
            raise InputError("policy", name, repr(setting), f"parameters of {match[1]}: {list(fields) or 'none'}")
        field = fields[key.strip()]
        number = type(Rule._field_defaults[field])
        try:
            values[field] = number(text)
        except ValueError:
            values[field] = -1
        if not 0 <= values[field] < LARGEST:  # nan included
            expected = f"a number of at least 0, below 2^31 ({number.__name__})"
            raise InputError("policy", f"{name}, {key.strip()}", repr(text), expected)
    return match[1], values
