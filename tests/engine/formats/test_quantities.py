"""Kubernetes quantities, times and spans, exactly."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvlenv.common.errors import InputError
from nvlenv.engine.formats.document import Field
from nvlenv.engine.formats.values import (
    BINARY,
    DECIMAL,
    parse_quantity,
    parse_span,
    read_quantity,
    read_time,
    read_whole,
)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("4", 4),
        ("500m", Fraction(1, 2)),
        ("100u", Fraction(1, 10**4)),
        ("1n", Fraction(1, 10**9)),
        ("1.5", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("1k", 1000),
        ("2M", 2 * 10**6),
        ("1Ki", 1024),
        ("1.5Gi", 3 * 2**29),
        ("1Ti", 2**40),
        ("1Pi", 2**50),
        ("1E", 10**18),
        ("1Ei", 2**60),
        ("1E3", 1000),
        ("1e3", 1000),
        ("12e-1", Fraction(6, 5)),
        ("1E+2", 100),
        ("+3", 3),
        ("-1", -1),
        ("0.1", Fraction(1, 10)),  # not the nearest binary number
        ("123456789012345678", 123456789012345678),
    ],
)
def test_what_quantities_mean(text: str, number: Fraction | int) -> None:
    assert parse_quantity(text) == number


@pytest.mark.parametrize(
    "text", ["", ".", "m", "1K", "1ki", "1 Gi", "1.2.3", "1e", "e3", "0x10", "1mi", "1e3k", "--1", "٣", "1_0"]
)
def test_what_is_no_quantity(text: str) -> None:
    assert parse_quantity(text) is None


@given(st.integers(0, 10**6), st.integers(0, 999), st.sampled_from([*DECIMAL, *BINARY]))
def test_suffixes_scale_exactly(whole: int, part: int, suffix: str) -> None:
    unit = Fraction(2) ** BINARY[suffix] if suffix in BINARY else Fraction(10) ** DECIMAL[suffix]

    assert parse_quantity(f"{whole}.{part:03d}{suffix}") == Fraction(1000 * whole + part, 1000) * unit


@pytest.mark.parametrize(
    ("value", "scale", "number"),
    [
        ("250m", 1000, 250),
        ("0.1m", 1000, 1),
        ("100u", 1000, 1),
        (2, 1000, 2000),
        (0.5, 1000, 500),
        ("1.1", 1, 2),
        (None, 1, 0),
    ],
)
def test_amounts_round_up_as_in_kubernetes(value: object, scale: int, number: int) -> None:
    assert read_quantity(Field("f", value), scale) == number


@pytest.mark.parametrize("value", ["-1", -1, True, "1e30", "9Ei", "1e999", "9" * 200, float("nan"), [], {}])
def test_amounts_nobody_has(value: object) -> None:
    with pytest.raises(InputError, match=r"f: resources\.cpu: found .* expected a quantity"):
        read_quantity(Field("f", {"resources": {"cpu": value}})["resources"]["cpu"])


@pytest.mark.parametrize("value", ["0.5", "500m", "1.0001"])
def test_gpus_are_whole(value: str) -> None:
    with pytest.raises(InputError, match="a whole number"):
        read_whole(Field("f", value, "gpus"))
    assert read_whole(Field("f", "4000m")) == 4


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("60", 1),
        ("90:00", 1.5),
        ("1:30:00", 1.5),
        ("2-0", 48),
        ("1-12", 36),
        ("0-0:30", 0.5),
        ("1-0:0:36", 24.01),
        ("0", 0),
    ],
)
def test_spans_of_slurm(text: str, hours: float) -> None:
    assert parse_span(text) == pytest.approx(hours)


@pytest.mark.parametrize("text", ["", "x", "1:2:3:4", "-5", "1-", "1d", "1.5", "1-2-3"])
def test_no_spans(text: str) -> None:
    assert parse_span(text) is None


def test_times() -> None:
    assert (
        read_time(Field("f", "2026-05-04T08:00:00Z"))
        == read_time(Field("f", "2026-05-04T10:00:00+02:00"))
        == 1777881600
    )
    assert read_time(Field("f", None)) is None
    for wrong in ("yesterday", "1969-01-01T00:00:00Z", "2026-13-01T00:00:00Z", 7):
        with pytest.raises(InputError, match="a time since 1970"):
            read_time(Field("f", wrong))
