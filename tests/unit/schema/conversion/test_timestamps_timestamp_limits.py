"""Dates and timestamps at the ends of the calendar: one limit, whichever way a row is converted."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any, cast
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from snowmelt.errors import InvalidRow
from snowmelt.schema.conversion.row_converter import RowConverter
from snowmelt.schema.conversion.timestamps import out_of_range_mask
from snowmelt.schema.iceberg_table_form import to_native_table
from snowmelt.schema.types import Column, LogicalType, TableSchema

KINDS = [LogicalType.TIMESTAMP_NTZ, LogicalType.TIMESTAMP_LTZ, LogicalType.TIMESTAMP_TZ]
ZONES = ["UTC", "America/Los_Angeles", "Asia/Tokyo", "Pacific/Kiritimati"]
FOREVER = datetime(9999, 12, 31, 23, 59, 59)
ENDS = (
    st.datetimes(datetime(1, 1, 1), datetime(1, 1, 4))
    | st.datetimes(datetime(9999, 12, 29), datetime.max)
    | st.sampled_from([datetime.min, datetime.max, FOREVER, datetime(2026, 1, 1)])
)
OFFSETS = st.none() | st.integers(-1439, 1439).map(lambda m: timezone(timedelta(minutes=m)))


def converted_each_way(
    column: Column, zone: Any, value: datetime
) -> tuple[TableSchema, dict[str, tuple[int, Any]]]:
    """Return by way whether a value is taken; each way that takes it stores the same."""
    schema = TableSchema(1, (column,))
    converter = RowConverter(schema, zone=ZoneInfo(zone))
    rows = [{"c": value}, {"c": datetime(2026, 1, 1, tzinfo=value.tzinfo)}] * 40
    batch = converter.convert(rows)
    found = {"insert_rows": (batch.row_count, batch.table)}
    try:
        found["insert_row"] = (1, converter.build_table([converter.convert_row(rows[0])]))
    except InvalidRow as error:
        found["insert_row"] = (0, None)
        told = (error.fields["column"], str(error.fields["reason"]).partition(": expected")[0])
        if told != ("C", "Timestamp out of range"):
            raise
    item = converter.fast_checker.try_check(rows[0])
    if item is not None:
        found["quick"] = (1, converter.fast_checker.build_table(list(item)))
    later = converter.try_defer(rows)
    if later is not None:
        found["later"] = (len(rows), later.to_table())
    # Arrow has an instant in one zone for all: of its clock time in another one nothing is left.
    if value.tzinfo is None or column.kind is LogicalType.TIMESTAMP_LTZ:
        us = (value.replace(tzinfo=None) - datetime(1970, 1, 1)) // timedelta(microseconds=1)
        us -= (value.utcoffset() or timedelta()) // timedelta(microseconds=1)
        kind = pa.timestamp("us", None if value.tzinfo is None else "UTC")
        arrow = converter.convert_arrow_table(pa.table({"c": pa.array([us] * 40).cast(kind)}))
        found["insert_arrow"] = (arrow.row_count, arrow.table)
    return schema, found


@example(LogicalType.TIMESTAMP_LTZ, 9, "UTC", FOREVER, None)
@example(LogicalType.TIMESTAMP_LTZ, 9, "America/Los_Angeles", FOREVER, None)
@example(LogicalType.TIMESTAMP_TZ, 6, "Asia/Tokyo", datetime.min, None)
@given(st.sampled_from(KINDS), st.integers(0, 9), st.sampled_from(ZONES), ENDS, OFFSETS)
def test_every_way_of_a_row_has_the_same_limits(
    kind: Any, scale: int, zone: Any, value: datetime, offset: timezone | None
) -> None:
    column = Column("C", kind, 1, scale=scale)
    given = value.replace(tzinfo=offset)
    schema, found = converted_each_way(column, zone, given)
    at = given.replace(tzinfo=ZoneInfo(zone)) if offset is None else given
    offset_s = cast("timedelta", at.utcoffset()).total_seconds()
    seconds = (value - datetime(1970, 1, 1)) // timedelta(seconds=1) - offset_s
    taken = kind is LogicalType.TIMESTAMP_NTZ or -62_135_510_400 <= seconds < 253_402_300_800
    assert {way: count > 0 for way, (count, _) in found.items() if way != "insert_rows"} == {
        way: taken for way in found if way != "insert_rows"
    }
    # The other half of the rows is taken in any case.
    assert found["insert_rows"][0] == (80 if taken else 40)
    for _, table in found.values():
        if table is None:
            continue
        native = to_native_table(table, schema)
        assert out_of_range_mask(column, native.columns) is None
        # What Python makes of it: no reader of ours raises.
        native.to_pylist()
        if taken:
            first = to_native_table(found["insert_row"][1], schema).slice(0, 1)
            assert native.slice(0, 1).equals(first)


@pytest.mark.parametrize("text", ["-9999-01-01", "0000-12-31", "+10000-01-01"])
def test_a_date_that_python_does_not_have_is_rejected_with_column_and_reason(text: str) -> None:
    converter = RowConverter(
        TableSchema(1, (Column("C", LogicalType.DATE, 1),)), zone=ZoneInfo("UTC")
    )
    [error] = converter.convert([{"c": text}, {"c": date.min}, {"c": date.max}]).errors
    assert error.row_index == 0
    assert error.error.fields["column"] == "C"
    assert "between 1 and 9999" in str(error.error)


def test_an_arrow_instant_that_python_does_not_have_is_rejected_as_out_of_range() -> None:
    column = Column("C", LogicalType.TIMESTAMP_LTZ, 1, scale=6)
    converter = RowConverter(TableSchema(1, (column,)), zone=ZoneInfo("UTC"))
    given = pa.table({"c": pa.array([10**18, 0], pa.timestamp("us", "UTC"))})
    done = converter.convert_arrow_table(given)
    [error] = done.errors
    assert done.row_count == 1
    assert "out of range" in str(error.error)
    assert (
        datetime(1970, 1, 1, tzinfo=UTC)
        == to_native_table(done.table, converter.schema)["C"][0].as_py()
    )
