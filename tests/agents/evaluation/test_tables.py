"""The summary's table: every policy by its whole name, and as many columns as there is room for."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agents.evaluation.tables import COLUMNS, HEADS, short_name, summary_table

RELEASE = Path(__file__).parents[3] / "checkpoints" / "release" / "metrics.json"


@pytest.fixture
def summary() -> dict[str, Any]:
    each: dict[str, Any] = json.loads(RELEASE.read_text("utf-8"))["sets"]["lab-16"]["summary"]
    return each


@pytest.mark.parametrize("width", [70, 80, 120, 200])
def test_names_are_told_in_full_at_any_width(width: int, summary: dict[str, Any]) -> None:
    console = Console(width=width, record=True, file=StringIO())
    console.print(summary_table(summary, width=width))
    lines = console.export_text().splitlines()

    cells = "".join(line.split("│")[1].strip() for line in lines if line.startswith("│"))
    cells = cells.replace(" ", "")  # lines end at them
    assert all(short_name(name).replace(" ", "") in cells for name in summary["policies"])
    assert max(map(len, lines)) <= width


def test_the_widest_table_has_every_column_and_the_others_the_first_ones_of_interest() -> None:
    assert COLUMNS[max(COLUMNS)] == HEADS
    assert all(set(heads) < set(HEADS) and heads[:4] == HEADS[:4] for least, heads in COLUMNS.items() if least < 150)
    assert list(COLUMNS) == sorted(COLUMNS, reverse=True) and min(COLUMNS) == 0
