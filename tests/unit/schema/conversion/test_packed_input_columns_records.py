"""What is read as a whole column of plain values is what the rules make of each of them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any
from zoneinfo import ZoneInfo

import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from snowmelt.schema.conversion.column_converter import ColumnConverter
from snowmelt.schema.types import Column, LogicalType

LOS_ANGELES = ZoneInfo("America/Los_Angeles")
KOLKATA = timezone(timedelta(hours=5, minutes=30))


class Number(int, Enum):
    """Its member is 7, and has the value 2.5."""

    SEVEN = 7

    def __new__(cls, number: Any) -> Number:
        member = int.__new__(cls, number)
        member._value_ = 2.5
        return member

    def __repr__(self) -> str:
        return self.name


class Switch(Enum):
    ON = True
    HALF = 0.5
    NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Letter(StrEnum):
    A = "a"


class Nowhere(tzinfo):
    """A zone that does not know its offset: its clock times are the channel's."""

    def utcoffset(self, _: datetime | None) -> None:
        return None


def column(kind: LogicalType, **options: Any) -> ColumnConverter:
    return ColumnConverter(Column("C", kind, 1, **options), LOS_ANGELES)


COLUMNS = {
    "float": column(LogicalType.REAL),
    "bool": column(LogicalType.BOOLEAN),
    "text": column(LogicalType.TEXT, length=5),
    "ltz": column(LogicalType.TIMESTAMP_LTZ, scale=6),
    "ltz3": column(LogicalType.TIMESTAMP_LTZ, scale=3),
    "ntz": column(LogicalType.TIMESTAMP_NTZ, scale=9),
    "tz": column(LogicalType.TIMESTAMP_TZ, scale=6),
}
MICROS = st.sampled_from([0, 0, 1, 999_999, 0xD6FF])
ZONED = st.builds(
    lambda at, us, zone: at.replace(microsecond=us, tzinfo=zone),
    st.datetimes(datetime(1969, 12, 31), datetime(2600, 1, 1)),
    MICROS,
    st.sampled_from([UTC, UTC, UTC, KOLKATA]),
)
PLAIN = {
    "float": st.floats(),
    "bool": st.booleans(),
    "text": st.text("ab", max_size=5),
    "moment": ZONED,
    "utc": ZONED.map(lambda at: at.replace(tzinfo=UTC)),
    "second": ZONED.map(lambda at: at.replace(tzinfo=UTC, microsecond=0)),
}
ODD = [
    None,
    1,
    -1,
    True,
    2.5,
    "2.5",
    "é",
    "\ud800",
    "toolong",
    b"x",
    Decimal("1.5"),
    Number.SEVEN,
    *Switch,
    Letter.A,
    date(2026, 1, 1),
    datetime(2026, 1, 1),
    datetime(2026, 1, 1, tzinfo=Nowhere()),  # type: ignore[abstract]
    datetime(2026, 1, 1, tzinfo=LOS_ANGELES),
    datetime(2026, 1, 1, tzinfo=timezone(timedelta(microseconds=1))),
    datetime(1, 1, 1, tzinfo=KOLKATA),
    pd.Timestamp("2026-01-01 00:00:00.123456789", tz="UTC"),
    [1.5],
    object(),
]


@st.composite
def lists(draw: st.DrawFn) -> list[Any]:
    """Mostly of one kind and often long enough for a few without a fraction."""
    kind = draw(st.sampled_from(sorted(PLAIN)))
    values = draw(st.lists(PLAIN[kind], min_size=1, max_size=3))
    if kind == "utc":
        fraction = datetime(2026, 1, 1, 0, 0, 0, 5, tzinfo=UTC)
        values = [*values, *[fraction] * draw(st.sampled_from([0, 7, 30]))]
        values = draw(st.sampled_from([values, values[::-1]]))
    if draw(st.integers(0, 2)) == 0:
        values.insert(draw(st.integers(0, len(values))), draw(st.sampled_from(ODD)))
    return values


@pytest.mark.slow
@settings(deadline=None, max_examples=3 * settings().max_examples)
@given(st.sampled_from(sorted(COLUMNS)), lists())
@example("float", [1.5, Number.SEVEN])
@example("float", [Switch.HALF, 0.5])
@example("bool", [True, Switch.ON])
@example("text", ["a", Letter.A])
@example("ltz", [datetime(2026, 1, 1, tzinfo=UTC), Switch.NOW])
@example("ltz", [datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00Z"])
def test_what_is_read_at_once_is_what_the_rules_say(name: Any, values: list[Any]) -> None:
    converter = COLUMNS[name]
    packed = converter._try_pack(values)
    read = None if packed is None else packed.to_array(converter)
    if read is None:
        return
    exact, refused = converter._convert_exactly(values)
    assert refused == []
    read.validate(full=True)
    assert list(map(repr, read.to_pylist())) == list(map(repr, exact.to_pylist()))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("float", [1.5, float("nan"), -0.0, float("inf")]),
        ("bool", [True, False] * 9),
        ("text", ["", "abcde", "x"] * 40_000),
        ("ltz", [datetime(2026, 1, 1, 0, 0, 0, n, tzinfo=UTC) for n in range(20)]),
        ("tz", [datetime(2026, 1, 1, 0, 0, n, tzinfo=KOLKATA) for n in range(20)]),
        ("ntz", [datetime(2026, 1, 1, 0, 0, 59, n % 9, tzinfo=UTC) for n in range(99)][1:]),
    ],
)
def test_plain_values_are_read_at_once(name: str, values: Any) -> None:
    converter = COLUMNS[name]
    packed = converter._try_pack(values)
    assert packed is not None
    assert packed.to_array(converter) is not None
