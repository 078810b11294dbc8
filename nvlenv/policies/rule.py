"""A heuristic as data: one packing rule and any modifiers, composed by name.

    best-fit                       which rack: the packing rule
    best-fit+fill                  unconstrained jobs and spreads go to the tightest holes
    best-fit+hold                  small jobs may not break the last hero-ready racks
    best-fit+easy                  racks are reserved for the oldest waiting hero
    best-fit+open                  racks are opened for jobs that have room but no shape, cheapest first
    best-fit+open-hero             the same by the hero controller's cost rule, evicting whole racks
    best-fit+fill+easy+open        any combination

Parameters follow a name in parentheses: best-fit+hold(racks=2,hours=6).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from nvlenv.errors import InputError

PACKINGS = (
    "random",
    "first-fit",
    "least-allocated",
    "most-allocated",
    "best-fit",
    "hierarchical-best-fit",
    "anchor-loss",
    "lifetime",
    "rack-fgd",
    "slurm-block",
)
MODIFIERS = ("fill", "hold", "easy", "open", "open-hero")
NO_OPEN, OPEN_CHEAPEST, OPEN_HERO = 0, 1, 2


class Rule(NamedTuple):
    """A composed heuristic, as the kernels read it."""

    packing: int  # index into PACKINGS
    fill: int = 0  # 1: take `fill` where it is legal
    hold_racks: int = 0  # small jobs may not break a hero-ready rack when at most so many are left; 0: they may
    hold_nodes: int = 8  # what counts as small
    hold_hours: float = 12.0  # longest wait that this rule may cause
    easy: int = 0  # 1: reserve racks for the oldest waiting hero
    open: int = NO_OPEN  # NO_OPEN, OPEN_CHEAPEST or OPEN_HERO
    seed: int = 0  # of the random rule


_PART = re.compile(r"([a-z-]+)(?:\(([^)]*)\))?")
_PARAMETERS = {
    "random": {"seed": ("seed", int)},
    "hold": {"racks": ("hold_racks", int), "nodes": ("hold_nodes", int), "hours": ("hold_hours", float)},
}
_SETTINGS: dict[str, dict[str, int]] = {
    "fill": {"fill": 1},
    "hold": {"hold_racks": 2},
    "easy": {"easy": 1},
    "open": {"open": OPEN_CHEAPEST},
    "open-hero": {"open": OPEN_HERO},
}


def parse_rule(name: str) -> Rule:
    """The rule that a name such as "best-fit+hold(racks=3)+open" stands for.

    Raises `InputError` for unknown parts or parameters.
    """
    first, *rest = name.split("+")
    packing, parameters = _parse_part(name, first, PACKINGS, "packing rules")
    values: dict[str, int | float] = {"packing": PACKINGS.index(packing), **parameters}
    for part in rest:
        modifier, parameters = _parse_part(name, part, MODIFIERS, "modifiers")
        values.update(_SETTINGS[modifier])
        values.update(parameters)
    return Rule(**values)  # type: ignore[arg-type]


def _parse_part(
    name: str, part: str, known: tuple[str, ...], kind: str
) -> tuple[str, dict[str, int | float]]:
    match = _PART.fullmatch(part.strip())
    if match is None or match[1] not in known:
        raise InputError("policy", name, repr(part), f"one of the {kind} {list(known)}")
    values: dict[str, int | float] = {}
    fields = _PARAMETERS.get(match[1], {})
    for setting in filter(None, (match[2] or "").split(",")):
        key, _, text = setting.partition("=")
        if key.strip() not in fields:
            raise InputError("policy", name, repr(setting), f"parameters of {match[1]}: {list(fields) or 'none'}")
        field, kind_of = fields[key.strip()]
        try:
            values[field] = kind_of(text)
        except ValueError:
            raise InputError("policy", f"{name}, {key.strip()}", repr(text), f"a number ({kind_of.__name__})") from None
    return match[1], values
