"""A measured figure beside its target and its rival, and the table of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

HEAD = ("figure", "measured", "target", "met", "rival, on the same work", "rival's", "times better")


@dataclass(frozen=True)
class Figure:
    """`target` None: only measured. `rival_value` None: the rival did not run, and `rival` says why."""

    name: str
    value: float
    unit: str
    target: float | None = None
    better: Literal["more", "less"] = "more"
    rival: str = ""
    rival_value: float | None = None

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value >= self.target if self.better == "more" else self.value <= self.target

    @property
    def ratio(self) -> float | None:
        """How many times better than the rival."""
        if self.rival_value is None:
            return None
        return self.value / self.rival_value if self.better == "more" else self.rival_value / self.value

    def cells(self) -> tuple[str, ...]:
        sign = ">=" if self.better == "more" else "<="
        target = "" if self.target is None else f"{sign} {shown(self.target)}"
        met = {None: "", True: "yes", False: "NO"}[self.met]
        rival = "" if self.rival_value is None else shown(self.rival_value)
        ratio = "" if self.ratio is None else f"{self.ratio:,.1f}"
        return self.name, f"{shown(self.value)} {self.unit}", target, met, self.rival, rival, ratio


def shown(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def as_table(figures: Sequence[Figure]) -> str:
    """Markdown, so that it can be kept as it is."""
    rows = [HEAD, *(figure.cells() for figure in figures)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(HEAD))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    rule = "|".join("-" * (width + 2) for width in widths)
    return "\n".join([f"| {lines[0]} |", f"|{rule}|", *(f"| {line} |" for line in lines[1:])])


def fastest(benchmark: Any) -> float:
    """Seconds of the fastest round: for rounds that all do the same work."""
    return float(benchmark.stats.stats.min)


def typical(benchmark: Any) -> float:
    """Mean seconds of a round: for rounds whose work differs."""
    return float(benchmark.stats.stats.mean)
