"""A value means the same by every way that rows take through the SDK, in each mode."""

from __future__ import annotations

import datetime as dt
import enum
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.errors import InvalidRow
from snowmelt.schema.conversion.row_converter import RowConverter
from snowmelt.schema.types import Column, Compatibility, LogicalType, TableSchema
from support.sdk_values_page import COLUMNS, VALUES

BERLIN = ZoneInfo("Europe/Berlin")
MODES = [Compatibility.SNOWFLAKE, Compatibility.STRICT, Compatibility.SDK_ROWS, Compatibility.COPY]
STAMPS = {
    "NTZ": Column("C", LogicalType.TIMESTAMP_NTZ, 1, scale=6),
    "LTZ": Column("C", LogicalType.TIMESTAMP_LTZ, 1, scale=3),
    "WHOLE": Column("C", LogicalType.FIXED, 1, precision=38, scale=0),
}
REJECTED = "rejected"


class Nowhere(dt.tzinfo):
    """A zone whose offset is not known."""

    def utcoffset(self, _: dt.datetime | None) -> None:
        return None


class Broken(dt.tzinfo):
    """A zone that raises."""

    def utcoffset(self, _: dt.datetime | None) -> None:
        raise ZeroDivisionError


class Loud(str):
    """A text that shows itself otherwise."""

    def __str__(self) -> str:
        return "loud"


class Flag(enum.IntFlag):
    A = 1
    B = 2


# What is at an edge, or only looks like something.
ODD = [
    10**400,
    -(10**400),
    2**64 + 1,
    True,
    2,
    0.1,
    -0.0,
    math.nan,
    math.inf,
    Decimal("sNaN"),
    Decimal("NaN"),
    Decimal("1e400"),
    Decimal("-0"),
    "1e400",
    "-1e400",
    "inf",
    "NaN",
    "1d",
    "0x1p3",
    "01",
    "1_0",
    " 7 ",
    "AAAA",
    "abcd",
    "2024-01-02 03:04:05",
    "01/02/2024",
    "Tue, 02 Jan 2024 03:04:05 GMT",
    "20240102",
    "1704164645",
    "2024-03-31T02:30:00",
    "2024-03-31 02:30:00.000001",
    "1 2",
    "[1]",
    b"\x01",
    b"abcd",
    memoryview(b"abcd"),
    memoryview(b"abcd").cast("I"),
    memoryview(b"abcd")[::2],
    memoryview(b"abcd").cast("B", (2, 2)),
    Loud("7"),
    Flag.A | Flag.B,
    np.float32(0.1),
    np.longdouble("1e400"),
    np.int64(-1),
    np.array(7),
    np.array([b"a"]),
    dt.datetime(2024, 3, 31, 2, 30),
    dt.datetime(2024, 10, 27, 2, 30, fold=1),
    dt.datetime(2024, 1, 2, tzinfo=dt.UTC),
    dt.datetime(2024, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=23, minutes=59))),
    dt.datetime(2024, 1, 2, tzinfo=dt.timezone(dt.timedelta(seconds=1))),
    dt.datetime(2024, 1, 2, tzinfo=Nowhere()),  # type: ignore[abstract]
    dt.datetime(2024, 1, 2, tzinfo=Broken()),  # type: ignore[abstract]
    dt.time(3, 4, tzinfo=dt.UTC),
    dt.time(3, 4, tzinfo=Broken()),  # type: ignore[abstract]
    dt.timedelta(hours=1),
    {1, 2},
    [b"a"],
    [Decimal("sNaN"), math.nan, {"a": {1}}],
    {"a": b"\xff"},
    {1: 2},
]


def outcome(work: Callable[[], Any]) -> str:
    """Return what a way makes of a value: a table's only column, or that it is rejected."""
    try:
        table = work()
    except InvalidRow:
        return REJECTED
    column = table.column(0).combine_chunks()
    return repr(column.to_pylist()[0])


def ways(converter: RowConverter, value: Any) -> dict[str, str]:
    """Return what each way makes of a value, by its name."""
    row = {"c": value}

    def rows(count: int) -> Callable[[], Any]:
        def work() -> Any:
            done = converter.convert([row] * count)
            if done.errors:
                raise done.errors[0].error
            return done.table

        return work

    def one() -> Any:
        return converter.build_table([converter.convert_row(row)])

    found = {"one": outcome(one), "few": outcome(rows(2)), "many": outcome(rows(40))}
    quick = converter.fast_checker.try_check(row)
    if quick is not None:
        found["quick"] = outcome(lambda: converter.fast_checker.build_table(list(quick)))
    later = converter.try_defer([row] * 3)
    if later is not None:
        found["later"] = outcome(later.to_table)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [*COLUMNS, *STAMPS])
def test_every_way_takes_a_value_alike_or_rejects_it(name: str, mode: Compatibility) -> None:
    column = (COLUMNS | STAMPS)[name]
    converter = RowConverter(TableSchema(1, (column,)), zone=BERLIN, compatibility=mode)
    samples = [*ODD, *(value for values in VALUES.values() for value in values)]
    for value in samples:
        found = ways(converter, value)
        assert len(set(found.values())) == 1, (value, found)


@given(
    st.one_of(
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.decimals(allow_nan=True, places=3),
        st.booleans(),
        st.datetimes(timezones=st.none() | st.sampled_from([dt.UTC, BERLIN])),
        st.times(),
        st.dates(),
        st.binary(max_size=6),
        st.datetimes().map(str),
        st.text("0123456789abAB+-. :/T", max_size=20),
    ),
    st.sampled_from([*COLUMNS.values(), *STAMPS.values()]),
    st.sampled_from(MODES),
)
def test_any_value_means_the_same_by_every_way_and_by_arrow(
    value: Any, column: Any, mode: Any
) -> None:
    converter = RowConverter(TableSchema(1, (column,)), zone=BERLIN, compatibility=mode)
    found = ways(converter, value)
    try:
        table = pa.table({"c": [value]})
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        table = None
    # Arrow has no folds, and a zone without one of its own.
    if table is not None and not getattr(value, "fold", 0):

        def by_arrow() -> Any:
            done = converter.convert_arrow_table(table)
            if done.errors:
                raise done.errors[0].error
            return done.table

        found["arrow"] = outcome(by_arrow)
    assert len(set(found.values())) == 1, (value, found)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FLOAT", 10**400),
        ("FLOAT", Decimal("1e400")),
        ("FLOAT", "1e400"),
        ("FLOAT", np.longdouble("1e400")),
        ("FLOAT", "1d"),
        ("BOOLEAN", 2),
        ("BOOLEAN", 0.5),
        ("BOOLEAN", math.nan),
        ("NUMBER", True),
        ("NUMBER", b"\x01"),
        ("NUMBER", Decimal("sNaN")),
        ("NUMBER", math.nan),
        ("VARCHAR", b"a"),
        ("VARCHAR", Decimal("sNaN")),
        ("BINARY", memoryview(b"abcd").cast("I")),
        ("VARIANT", b"a"),
        ("ARRAY", [b"a"]),
        ("TIME", dt.timedelta(hours=1)),
        ("TIMESTAMP_*", dt.datetime(2024, 1, 2, tzinfo=Broken())),  # type: ignore[abstract]
        ("DATE", "20240102"),
    ],
)
def test_strict_rejects_what_its_column_cannot_hold_with_a_reason(name: str, value: Any) -> None:
    column = COLUMNS[name]
    converter = RowConverter(TableSchema(1, (column,)), zone=BERLIN)
    [error] = converter.convert([{"c": value}]).errors
    assert "Column C" in str(error.error).replace("column C", "Column C")
