"""Arrow columns become native columns, or an error that names the column."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from snowmelt.errors import LoadFailed
from snowmelt.loaders.arrow_conversion import cast_column, cast_companion, convert_to_native
from snowmelt.schema.types import Column, LogicalType, TableSchema

NUMBER = Column("N", LogicalType.FIXED, 1, nullable=False, precision=5, scale=2)
TEXT = Column("T", LogicalType.TEXT, 2, length=3, byte_length=12)
INSTANT = Column("AT", LogicalType.TIMESTAMP_TZ, 3, scale=9)
SCHEMA = TableSchema(1, (NUMBER, TEXT, INSTANT))


def cast(column: Column, values: list[Any], kind: pa.DataType | None = None) -> list[Any]:
    [own, *_] = cast_column(column, pa.array(values, kind), dt.UTC)
    found: list[Any] = own.to_pylist()
    return found


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([Decimal("1.50"), Decimal("-2.00")], pa.decimal128(10, 2)),
        ([1.5, -2.0], pa.float64()),
        ([" 1.50", "-2"], pa.string()),
        ([Decimal("1.4950"), Decimal("-1.9951")], pa.decimal128(10, 4)),
    ],
)
def test_numbers_are_rounded_half_up_whatever_they_come_as(
    values: list[Any], kind: pa.DataType
) -> None:
    assert cast(NUMBER, values, kind) == [Decimal("1.50"), Decimal("-2.00")]


@pytest.mark.parametrize(
    ("column", "values", "why"),
    [
        (NUMBER, [1234], r"Column N \(NUMBER\(5,2\)\)"),
        (NUMBER, [1, None], "it is NOT NULL, and a value is NULL"),
        (TEXT, ["abc", "abcd"], r"Column T \(VARCHAR\(3\)\)"),
        (Column("F", LogicalType.REAL, 1), ["x"], "Not a valid decimal number|Not a valid"),
        (Column("D", LogicalType.DATE, 1), [True], r"Column D \(DATE\)"),
    ],
)
def test_what_does_not_fit_is_named(column: Column, values: list[Any], why: str) -> None:
    with pytest.raises(LoadFailed, match=why):
        cast_column(column, pa.array(values), dt.UTC)


def test_times_are_floored_and_bring_their_companions() -> None:
    before = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.UTC)
    at, nanos, offset = cast_column(
        INSTANT, pa.array([before, None], pa.timestamp("us", "UTC")), dt.UTC
    )
    assert at.to_pylist() == [before, None]
    assert nanos.to_pylist() == offset.to_pylist() == [0, None]
    coarse = Column("AT", LogicalType.TIMESTAMP_NTZ, 1, scale=0)
    found = cast(coarse, [before.replace(tzinfo=None)], pa.timestamp("us"))
    assert found == [dt.datetime(1969, 12, 31, 23, 59, 59)]
    assert cast_companion(INSTANT, "AT$tz", pa.array([-210])).to_pylist() == [-210]
    with pytest.raises(LoadFailed, match=r"AT\$ns must be between 0 and 999"):
        cast_companion(INSTANT, "AT$ns", pa.array([1000]))


def test_structs_lists_and_maps_become_documents() -> None:
    column = Column("V", LogicalType.VARIANT, 1)
    assert cast(column, [{"a": 1, "b": [1, None]}]) == ['{"a":1,"b":[1,null]}']
    assert cast(column, ['{"a": 1}', None]) == ['{"a":1}', None]
    assert cast(column, [[("k", 1)]], pa.map_(pa.string(), pa.int64())) == ['{"k":1}']


def test_texts_are_dates_and_times_as_sql_and_spark_write_them() -> None:
    noon = dt.datetime(2026, 1, 31, 12)
    plain = Column("AT", LogicalType.TIMESTAMP_NTZ, 1, scale=6)
    for text in ("2026-01-31 12:00:00", "2026-01-31T12:00:00", "01/31/2026 12:00:00"):
        assert cast(plain, [text, None]) == [noon, None]
    assert cast(INSTANT, ["2026-01-31 12:00:00 -0130"]) == [
        dt.datetime(2026, 1, 31, 13, 30, tzinfo=dt.UTC)
    ]
    assert cast(Column("D", LogicalType.DATE, 1), ["31-Jan-2026"]) == [noon.date()]
    assert cast(Column("C", LogicalType.TIME, 1, scale=0), ["12:00 PM"]) == [noon.time()]
    with pytest.raises(LoadFailed, match=r"AT \(TIMESTAMP_NTZ"):
        cast(plain, ["2026-02-30 12:00:00"])


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (Column("F", LogicalType.REAL, 1), "1e400"),
        (Column("F", LogicalType.REAL, 1), "1d"),
        (Column("B", LogicalType.BOOLEAN, 1), 2),
        (NUMBER, b"\x01"),
        (NUMBER, True),
        (TEXT, b"a"),
        (Column("D", LogicalType.DATE, 1), "20240102"),
        (Column("D", LogicalType.DATE, 1), "02.01.2024"),
        (Column("V", LogicalType.VARIANT, 1), [b"a"]),
    ],
)
def test_what_a_column_would_have_to_guess_is_rejected(column: Column, value: Any) -> None:
    with pytest.raises(LoadFailed):
        cast_column(column, pa.array([value]), dt.UTC)


@pytest.mark.parametrize("text", ["01/02/2024", "2-Jan-2024", "2024-01-02 23:59", "1704153600"])
def test_dates_are_read_as_snowflake_reads_them(text: str) -> None:
    assert cast(Column("D", LogicalType.DATE, 1), [text]) == [dt.date(2024, 1, 2)]


def test_a_companion_without_a_value_is_derived_and_one_without_its_column_is_null() -> None:
    noon = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    batch = pa.record_batch(
        {
            "n": pa.array([1, 2, 3]),
            "at": pa.array([noon, noon, None], pa.timestamp("us", "UTC")),
            "at$ns": pa.array([7, None, 9]),
            "at$tz": pa.array([None, 60, 60]),
        }
    )
    found = convert_to_native(SCHEMA, (0, None, 1, 2, 3), batch, dt.UTC, dt.datetime.now(dt.UTC))
    assert found.column("AT$ns").to_pylist() == [7, 0, None]
    assert found.column("AT$tz").to_pylist() == [0, 60, None]
