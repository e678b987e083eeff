"""Values that were taken as a few bytes become what the rules make of each of them."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from snowmelt.schema.conversion.column_converter import ColumnConverter
from snowmelt.schema.conversion.packed_input_columns import concatenate_to_arrays
from snowmelt.schema.types import Column, Compatibility, LogicalType

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


class Price(Decimal, Enum):
    ONE = Decimal(1)


class Subclass(datetime):
    pass


def column(
    kind: LogicalType, compatibility: Compatibility = Compatibility.SNOWFLAKE, **options: Any
) -> ColumnConverter:
    return ColumnConverter(Column("C", kind, 1, **options), LOS_ANGELES, compatibility)


COLUMNS = {
    "small": column(LogicalType.FIXED, precision=3, scale=0),
    "large": column(LogicalType.FIXED, precision=38, scale=0),
    "money": column(LogicalType.FIXED, precision=6, scale=2),
    "part": column(LogicalType.FIXED, precision=4, scale=4),
    "float": column(LogicalType.REAL),
    "bool": column(LogicalType.BOOLEAN),
    "text": column(LogicalType.TEXT, length=5),
    "ltz": column(LogicalType.TIMESTAMP_LTZ, scale=6),
    "ntz": column(LogicalType.TIMESTAMP_NTZ, scale=9),
    "strict": column(LogicalType.TIMESTAMP_NTZ, Compatibility.STRICT, scale=3),
    "tz": column(LogicalType.TIMESTAMP_TZ, scale=9),
}
NUMBERS = ["small", "large", "money", "part"]
MOMENTS = ["ltz", "ntz", "strict", "tz"]
NAIVE = st.datetimes() | st.datetimes(datetime(2021, 3, 13), datetime(2021, 3, 15))
WHOLE = NAIVE.map(lambda at: at.replace(microsecond=0))
PLAIN = [
    (NUMBERS, st.integers(-1_100, 1_100)),
    (NUMBERS, st.integers()),
    (NUMBERS, st.decimals(-11_000, 11_000, places=2)),
    (NUMBERS, st.decimals(-1, 1, places=4)),
    (NUMBERS, st.decimals()),
    (["float"], st.floats()),
    (["bool"], st.booleans()),
    (["text"], st.text(max_size=6)),
    (["text"], st.text("ab", max_size=5)),
    (MOMENTS, NAIVE),
    (MOMENTS, WHOLE),
    (MOMENTS, NAIVE | WHOLE),
    (MOMENTS, NAIVE.map(lambda at: at.replace(tzinfo=UTC))),
    (MOMENTS, WHOLE.map(lambda at: at.replace(tzinfo=KOLKATA))),
]
ODD = [
    None,
    1,
    True,
    2.5,
    2**63,
    "1",
    "1.5",
    "2026-01-01T00:00:00",
    "\ud800",
    Decimal("1.005"),
    Decimal("99999.995"),
    Decimal("1E+1"),
    Decimal("-0"),
    Decimal("sNaN"),
    Number.SEVEN,
    time(1),
    datetime(2026, 1, 1),
    datetime(2026, 1, 1, tzinfo=UTC),
    datetime(2026, 1, 1, tzinfo=LOS_ANGELES),
    datetime(2021, 11, 7, 1, 30, fold=1),
    Subclass(2026, 1, 1),
    [1],
    object(),
]


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, list[list[Any]]]:
    """A column, and the values of a few calls for it, mostly of one kind."""
    names, plain = draw(st.sampled_from(PLAIN))
    given = [draw(st.lists(plain, min_size=1, max_size=4)) for _ in range(draw(st.integers(1, 3)))]
    if draw(st.integers(0, 2)) == 0:
        values = draw(st.sampled_from(given))
        values.insert(draw(st.integers(0, len(values))), draw(st.sampled_from(ODD)))
    return draw(st.sampled_from(names)), given


@pytest.mark.slow
@settings(deadline=None, max_examples=2 * settings().max_examples)
@given(calls())
@example(("small", [[1, Number.SEVEN]]))
@example(("small", [[1, True]]))
@example(("money", [[Decimal(1), Price.ONE]]))
@example(("money", [[Decimal("1.50"), Decimal("1.005")], [Decimal("9999.99")]]))
@example(("money", [[Decimal("9999.995")]]))
@example(("ltz", [[datetime(2026, 1, 1), Subclass(2026, 1, 1)]]))
@example(("ltz", [[datetime(2021, 11, 7, 1, 30)], [datetime(2021, 11, 7, 1, 30, fold=1)]]))
@example(("ntz", [[datetime(2021, 3, 14, 2, 30)], [datetime(2026, 1, 1, tzinfo=UTC)]]))
@example(("tz", [[datetime(2500, 1, 1, tzinfo=UTC)], [datetime(2026, 1, 1, tzinfo=KOLKATA)]]))
@example(("tz", [[datetime(1, 1, 1)], [datetime(9999, 12, 31, 23, 59)]]))
def test_what_is_taken_becomes_what_the_rules_say(call: tuple[str, list[list[Any]]]) -> None:
    name, given = call
    converter = COLUMNS[name]
    pieces, expected = [], []
    for values in given:
        piece = converter._try_pack(values)
        exact, refused = converter._convert_exactly(values)
        if piece is not None:
            assert refused == []
            assert piece.count == len(values)
            pieces.append(piece)
            expected += exact.to_pylist()
        elif not refused:
            pieces.append(exact)
            expected += exact.to_pylist()
    made = concatenate_to_arrays(pieces, converter)
    assert [repr(value) for array in made for value in array.to_pylist()] == list(
        map(repr, expected)
    )
    for array in made:
        array.validate(full=True)
        assert array.type == converter.type


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("small", [999, -999]),
        ("large", [0, -(2**63) + 1]),
        ("money", [Decimal("9998.99"), Decimal("-0.01"), Decimal(5)]),
        ("float", [1.5, float("inf"), -0.0]),
        ("bool", [True, False] * 9),
        ("text", ["", "abcde"]),
        ("ntz", [datetime(2026, 1, 1, 0, 0, 0, 7)]),
        ("tz", [datetime(2026, 1, 1), datetime(2026, 1, 1, 0, 0, 0, 7)]),
        ("ltz", [datetime(2026, 1, 1, 0, 0, 0, n, tzinfo=UTC) for n in range(20)]),
    ],
)
def test_plain_values_are_taken_and_those_of_many_calls_become_one_array(
    name: str, values: Any
) -> None:
    converter = COLUMNS[name]
    pieces = [converter._try_pack(values) for _ in range(3)]
    assert None not in pieces
    (array,) = concatenate_to_arrays(pieces, converter)
    assert array.to_pylist() == 3 * converter._convert_exactly(values)[0].to_pylist()
