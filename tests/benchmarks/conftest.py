"""Benchmarks report to one table, printed when all have run.

Times are CPU time (`time.process_time`), which a busy machine disturbs least; where processes work for each other, of
all of them together.
"""

from __future__ import annotations

import time

import pytest

from tests.benchmarks.support.figures import Figure, as_table

FIGURES = pytest.StashKey[list[Figure]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash.setdefault(FIGURES, [])


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> list[Figure]:
    """Where a benchmark writes what it found."""
    return request.config.stash.setdefault(FIGURES, [])


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    found = config.stash.get(FIGURES, [])
    if found:
        terminalreporter.section(f"speed, {time.strftime('%Y-%m-%d')}: CPU time, one thread")
        terminalreporter.write_line(as_table(found))
