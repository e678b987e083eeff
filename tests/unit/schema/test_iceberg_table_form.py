"""Native form says what the stored value says: a moment in microseconds, the rest beside it."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.errors import InvalidValue
from snowmelt.schema.chunk_types import chunk_arrow_schema, decimal_from_unscaled
from snowmelt.schema.conversion.row_converter import RowConverter
from snowmelt.schema.iceberg_table_form import (
    find_companion_conflict,
    native_fields,
    native_schema,
    to_native_table,
)
from snowmelt.schema.types import Column, LogicalType, TableSchema

ZONE = ZoneInfo("UTC")
# At any offset they are in the years that readers have.
ANY_OFFSET = (datetime(1, 1, 3), datetime(9999, 12, 30))
MOMENT_KINDS = [LogicalType.TIMESTAMP_NTZ, LogicalType.TIMESTAMP_LTZ, LogicalType.TIMESTAMP_TZ]


def one(kind: Any, scale: int, values: list[Any]) -> Any:
    schema = TableSchema(1, (Column("C", kind, 4, scale=scale),))
    done = RowConverter(schema, zone=ZONE).convert([{"c": value} for value in values])
    assert done.errors == []
    return to_native_table(done.table, schema)


@given(
    st.lists(
        st.none()
        | st.tuples(st.datetimes(*ANY_OFFSET), st.integers(0, 999), st.integers(-1080, 1080)),
        min_size=1,
    ),
    st.sampled_from(MOMENT_KINDS),
    st.integers(0, 9),
)
def test_moments_are_floored_and_nothing_of_them_is_lost(
    values: list[Any], kind: Any, scale: int
) -> None:
    texts = [
        None
        if value is None
        else value[0].isoformat(timespec="microseconds") + f"{value[1]:03}" + offset_text(value[2])
        for value in values
    ]
    table = one(kind, scale, texts)
    table.validate(full=True)
    unit = 10 ** (9 - scale)
    for row, value in zip(raw(table), values, strict=True):
        if value is None:
            assert set(row.values()) == {None}
            continue
        local, nanos, minutes = value
        nanoseconds = (local - datetime(1970, 1, 1)) // timedelta(microseconds=1) * 1000 + nanos
        if kind is not LogicalType.TIMESTAMP_NTZ:
            nanoseconds -= minutes * 60 * 10**9
        expected = nanoseconds // unit * unit
        assert row["C"] * 1000 + row.get("C$ns", 0) == expected
        assert ("C$ns" in row) == (scale > 6)
        assert row.get("C$tz") == (minutes if kind is LogicalType.TIMESTAMP_TZ else None)


def offset_text(minutes: Any) -> str:
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"


def raw(table: Any) -> list[Any]:
    columns = {
        name: table[name]
        .combine_chunks()
        .view(pa.int64() if name == "C" else pa.int32())
        .to_pylist()
        for name in table.column_names
    }
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


@given(st.lists(st.none() | st.times(), min_size=1), st.integers(0, 9))
def test_times_of_day_are_floored(values: list[Any], scale: int) -> None:
    table = one(LogicalType.TIME, scale, values)
    assert table.schema.field("C").type == pa.time64("us")
    unit = 10 ** max(6 - scale, 0)
    for got, value in zip(table["C"].to_pylist(), values, strict=True):
        assert got == (value and value.replace(microsecond=value.microsecond // unit * unit))


def test_columns_have_companions_right_after_them() -> None:
    schema = TableSchema(
        1,
        (
            Column("A", LogicalType.TIMESTAMP_TZ, 1, scale=9, nullable=False),
            Column("B", LogicalType.TIME, 2, scale=7),
            Column("D", LogicalType.TIMESTAMP_LTZ, 5, scale=6),
            Column("E", LogicalType.VARIANT, 6),
        ),
    )
    native = native_schema(schema)
    assert native.names == ["A", "A$ns", "A$tz", "B", "B$ns", "D", "E"]
    ids = [int(field.metadata[b"PARQUET:field_id"]) for field in native]
    assert ids == [1, 1_000_001, 2_000_001, 2, 1_000_002, 5, 6]
    assert [field.nullable for field in native] == [False] * 3 + [True] * 4
    assert native.field("A").type == pa.timestamp("us", "UTC")
    assert native.field("E").type == pa.string()
    assert [field.name for field in native_fields(schema.columns[1])] == ["B", "B$ns"]


@pytest.mark.parametrize("name", ["A$ns", "A$NS", "a$tz"])
def test_a_companion_in_any_case_is_no_name_for_another_column(name: str) -> None:
    columns = [
        Column("A", LogicalType.TIMESTAMP_TZ, 1, scale=9),
        Column("A$", LogicalType.TEXT, 2),
        Column(name, LogicalType.TEXT, 3),
    ]
    assert find_companion_conflict(columns) == name
    assert find_companion_conflict(columns[:2]) is None


def test_the_last_instants_of_the_calendar_keep_their_offsets() -> None:
    early = datetime(1, 1, 2, tzinfo=UTC).astimezone(timezone(timedelta(hours=18)))
    late = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).astimezone(timezone(-timedelta(hours=18)))
    table = one(LogicalType.TIMESTAMP_TZ, 9, [early, late])
    assert table["C$tz"].to_pylist() == [1080, -1080]
    assert one(LogicalType.TIMESTAMP_LTZ, 0, [datetime(2020, 1, 1, tzinfo=UTC)])[
        "C"
    ].to_pylist() == [datetime(2020, 1, 1, tzinfo=UTC)]


@pytest.mark.parametrize(
    ("kind", "scale", "stored"),
    [
        (LogicalType.TIMESTAMP_NTZ, 0, 10**17),
        (LogicalType.TIMESTAMP_NTZ, 9, 10**37),
        (LogicalType.TIMESTAMP_LTZ, 7, -(10**30)),
        (LogicalType.TIME, 0, 86_400),
        (LogicalType.TIME, 9, -1),
        (LogicalType.TIMESTAMP_TZ, 9, (1 << 14) + 16_000),
    ],
)
def test_a_stored_value_outside_its_type_is_refused(
    kind: LogicalType, scale: int, stored: int
) -> None:
    schema = TableSchema(1, (Column("C", kind, 1, scale=scale),))
    arrow = chunk_arrow_schema(schema)
    array = decimal_from_unscaled([stored], arrow.field(0).type.precision, scale)
    with pytest.raises(InvalidValue, match="column C"):
        to_native_table(pa.Table.from_arrays([array], schema=arrow), schema)


def test_other_columns_pass_unchanged() -> None:
    schema = TableSchema(
        1, (Column("D", LogicalType.DATE, 1), Column("T", LogicalType.TEXT, 2, length=3))
    )
    done = RowConverter(schema, zone=ZONE).convert([{"d": date(1, 1, 1), "t": "é"}, {}])
    native = to_native_table(done.table, schema)
    assert native.to_pylist() == [{"D": date(1, 1, 1), "T": "é"}, {"D": None, "T": None}]
    assert to_native_table(done.table.slice(0, 0), schema).num_rows == 0


def test_an_empty_table_and_slices_convert() -> None:
    schema = TableSchema(1, (Column("C", LogicalType.TIME, 1, scale=9),))
    done = RowConverter(schema, zone=ZONE).convert(
        [{"c": time(second=second)} for second in range(4)]
    )
    assert to_native_table(done.table.slice(0, 0), schema).num_rows == 0
    assert to_native_table(done.table.slice(2, 1), schema)["C"].to_pylist() == [time(second=2)]
    assert np.array_equal(to_native_table(done.table, schema)["C$ns"].to_numpy(), np.zeros(4))
