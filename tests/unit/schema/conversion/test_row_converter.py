"""A batch converted by columns is the same as its rows converted one by one."""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from snowmelt.errors import InvalidRow, RowTooLarge
from snowmelt.schema.chunk_types import chunk_arrow_schema
from snowmelt.schema.conversion.row_converter import RowConverter
from snowmelt.schema.types import Column, LogicalType, TableSchema

ZONES = [ZoneInfo(key) for key in ("America/Los_Angeles", "UTC", "Europe/Berlin", "Asia/Kolkata")]
LOS_ANGELES = ZONES[0]


def table(*columns: tuple[str, LogicalType, dict[str, bool] | dict[str, int]]) -> TableSchema:
    return TableSchema(
        1,
        tuple(
            Column(name, kind, ordinal, **options)
            for ordinal, (name, kind, options) in enumerate(columns, 1)
        ),
    )


def timed(
    kind: LogicalType, scale: int, **options: bool
) -> tuple[str, LogicalType, dict[str, int]]:
    return (f"{kind}_{scale}", kind, {"scale": scale, **options})


ANYTHING = table(
    ("N0", LogicalType.FIXED, {"precision": 38, "scale": 0}),
    ("N9", LogicalType.FIXED, {"precision": 9, "scale": 0}),
    ("N18", LogicalType.FIXED, {"precision": 18, "scale": 3, "nullable": False}),
    ("N38", LogicalType.FIXED, {"precision": 38, "scale": 10}),
    ("N2", LogicalType.FIXED, {"precision": 10, "scale": 2}),
    ("R", LogicalType.REAL, {}),
    ("B", LogicalType.BOOLEAN, {"nullable": False}),
    ("T", LogicalType.TEXT, {"length": 5, "byte_length": 20}),
    ("Y", LogicalType.BINARY, {"byte_length": 4}),
    ("D", LogicalType.DATE, {}),
    timed(LogicalType.TIME, 0),
    timed(LogicalType.TIME, 9),
    timed(LogicalType.TIMESTAMP_NTZ, 9),
    timed(LogicalType.TIMESTAMP_NTZ, 3, nullable=False),
    timed(LogicalType.TIMESTAMP_LTZ, 6),
    timed(LogicalType.TIMESTAMP_LTZ, 0),
    timed(LogicalType.TIMESTAMP_TZ, 9),
    timed(LogicalType.TIMESTAMP_TZ, 3),
    ("V", LogicalType.VARIANT, {"nullable": False}),
    ("A", LogicalType.ARRAY, {}),
    ("O", LogicalType.OBJECT, {}),
)

OFFSETS = st.sampled_from(
    [
        UTC,
        timezone(timedelta(hours=-7)),
        timezone(timedelta(hours=5, minutes=30)),
        timezone(-timedelta(hours=3, minutes=2, seconds=7)),
        *ZONES,
    ]
)
NEAR: dict[str, Any] = {"min_value": datetime(2021, 3, 13), "max_value": datetime(2021, 3, 15)}
NAIVE = st.datetimes() | st.datetimes(**NEAR)
AWARE = st.datetimes(timezones=OFFSETS) | st.datetimes(timezones=st.just(UTC), **NEAR)
ISO = (NAIVE | AWARE).map(datetime.isoformat)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=5,
)
GOOD: dict[LogicalType, list[st.SearchStrategy[Any]]] = {
    LogicalType.FIXED: [
        st.integers(-(10**9), 10**9),
        st.integers(-(10**40), 10**40),
        st.floats(-1e7, 1e7),
        st.floats(),
        st.integers(-(10**6), 10**6).map(lambda n: n / 1000),
        st.decimals(-(10**6), 10**6, places=2),
        st.decimals(),
        st.integers().map(str),
    ],
    LogicalType.REAL: [
        st.floats(),
        st.integers(),
        st.floats() | st.integers(-9, 9),
        st.floats().map(str),
    ],
    LogicalType.BOOLEAN: [st.booleans(), st.integers(0, 1)],
    LogicalType.TEXT: [st.text(max_size=6), st.integers(), st.floats()],
    LogicalType.BINARY: [st.binary(max_size=5), st.binary(max_size=4).map(bytearray)],
    LogicalType.DATE: [st.dates(), NAIVE, st.dates().map(str)],
    LogicalType.TIME: [st.times(), st.times(timezones=OFFSETS), st.times().map(str)],
    LogicalType.TIMESTAMP_NTZ: [
        NAIVE,
        AWARE,
        st.datetimes(timezones=st.just(UTC)),
        st.datetimes(timezones=st.just(LOS_ANGELES)),
        ISO,
        st.dates(),
    ],
    LogicalType.VARIANT: [JSON, st.text(max_size=3)],
}
for _kind in (LogicalType.TIMESTAMP_LTZ, LogicalType.TIMESTAMP_TZ):
    GOOD[_kind] = GOOD[LogicalType.TIMESTAMP_NTZ]
for _kind in (LogicalType.ARRAY, LogicalType.OBJECT):
    GOOD[_kind] = GOOD[LogicalType.VARIANT]
WRONG = st.sampled_from(
    [object(), b"x", "x", True, 1, 2.5, [1], date(2020, 1, 1), float("nan"), "\ud800", ""]
)
MISSING = object()


@st.composite
def batches(draw: st.DrawFn) -> list[dict[Any, Any]]:
    """Columns mostly of one type, as the fast path likes them, with surprises."""
    count = draw(st.integers(1, 5))
    rows: list[dict[Any, Any]] = [{} for _ in range(count)]
    chosen = draw(st.lists(st.sampled_from(ANYTHING.columns), unique=True, max_size=6))
    required = [column for column in ANYTHING.columns if not column.nullable]
    for column in dict.fromkeys([*chosen, *required]):
        values = draw(st.sampled_from(GOOD[column.kind]))
        if draw(st.integers(0, 3)) == 0:
            values |= draw(st.sampled_from([st.none(), WRONG, st.just(MISSING)]))
        key = draw(st.sampled_from([column.name, column.name.lower(), f'"{column.name}"']))
        for row in rows:
            value = draw(values)
            if value is not MISSING:
                row[key] = value
    if draw(st.integers(0, 9)) == 0:
        rows[0].update(
            draw(
                st.sampled_from([{"unknown": 1}, {"n0": 1, "N0": "x"}, {"n0": 1, "N0": 2}, {3: 1}])
            )
        )
    return rows


@pytest.mark.slow
@settings(
    max_examples=3 * settings().max_examples // 2,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(batches(), st.sampled_from(ZONES))
@example([{"N18": 1, "b": 0, "TIMESTAMP_NTZ_3": datetime(2021, 3, 14, 2, 30), "v": 1}], LOS_ANGELES)
def test_a_batch_is_the_sum_of_its_rows(rows: list[dict[Any, Any]], zone: Any) -> None:
    converter = RowConverter(ANYTHING, zone=zone)
    stored, messages, quick = [], [], []
    for index, row in enumerate(rows):
        taken = converter.fast_checker.try_check(row)
        try:
            stored.append(converter.convert_row(row, index))
        except InvalidRow as error:
            messages.append((index, str(error)))
            assert taken is None
        if taken is not None:
            quick.append((taken, stored[-1]))
    done = converter.convert(rows)
    assert [(error.row_index, str(error.error)) for error in done.errors] == messages
    assert done.row_count == len(stored) == done.table.num_rows
    one_by_one = converter.build_table(stored)
    assert done.table.schema.equals(one_by_one.schema, check_metadata=True)
    for name in done.table.column_names:
        assert same(done.table[name], one_by_one[name]), name
    done.table.validate(full=True)
    checked, exact = (
        converter.fast_checker.build_table([item for pair in quick for item in pair[0]]),
        converter.build_table([pair[1] for pair in quick]),
    )
    assert all(same(checked[name], exact[name]) for name in checked.column_names)
    later = converter.try_defer(rows)
    assert (later is None) == bool(messages)
    if later is not None:
        assert later.size_bytes == done.size_bytes
        more = converter.try_defer(rows[::-1])
        assert later.try_extend(more)
        both = later.to_table()
        both.validate(full=True)
        twice = converter.build_table(stored + stored[::-1])
        assert both.schema.equals(twice.schema, check_metadata=True)
        assert all(same(both[name], twice[name]) for name in both.column_names)


def same(left: Any, right: Any) -> Any:
    if left.type == pa.float64():
        left, right = (column.to_pylist() for column in (left, right))
        return list(map(repr, left)) == list(map(repr, right))
    return left.equals(right)


def test_a_large_batch_of_rows_with_other_keys_each_is_packed() -> None:
    columns = [Column(name, LogicalType.REAL, place) for place, name in enumerate("AB", 1)]
    rows: list[dict[str, Any]] = [{"a": 1.0}, {"b": 2.0}, {"a": 3.0, "b": None}] * 1_000
    converter = RowConverter(TableSchema(1, tuple(columns)), zone=LOS_ANGELES)
    later = converter.try_defer(rows)
    assert later is not None
    assert later.rows == 3_000
    done = converter.convert(rows)
    assert later.to_table().combine_chunks().equals(done.table.combine_chunks())
    assert later.size_bytes == done.size_bytes


ORDERS = table(
    ("ID", LogicalType.FIXED, {"precision": 38, "scale": 0, "nullable": False}),
    ("NOTE", LogicalType.TEXT, {"length": 10, "byte_length": 40}),
    ("lower case", LogicalType.BINARY, {"byte_length": 8}),
    ("DOC", LogicalType.VARIANT, {}),
)


def orders(**options: Any) -> RowConverter:
    return RowConverter(ORDERS, zone=LOS_ANGELES, **options)


def test_an_empty_batch_is_an_empty_table() -> None:
    assert orders().try_defer([]) is None
    done = orders().convert([])
    assert (done.row_count, done.size_bytes, done.errors) == (0, 0, [])
    assert done.table.schema.equals(chunk_arrow_schema(ORDERS), check_metadata=True)
    assert orders().build_table([]).schema == done.table.schema


def test_columns_may_be_spelled_as_in_sql() -> None:
    rows: list[dict[str, Any]] = [{"id": 1, '"lower case"': b"a"}, {"ID": 2}, {'"ID"': 3, "iD": 4}]
    done = orders().convert(rows)
    assert done.errors == []
    assert done.table["ID"].to_pylist() == [1, 2, 4]
    assert done.table["lower case"].to_pylist() == [b"a", None, None]


def test_unknown_columns_are_named_as_written() -> None:
    [error] = orders().convert([{"id": 1, "Extra": 1, "other": 2}]).errors
    assert error.extra_columns == ("Extra", "other")
    assert (error.missing_not_null, error.null_for_not_null) == (None, None)
    assert (
        "Extra columns: [Extra, other]. Columns not present in the table shouldn't be specified, rowIndex:0"
        in str(error.error)
    )


def test_a_row_without_a_required_column_is_refused() -> None:
    [error] = orders().convert([{"id": 1}, {"note": "x"}]).errors
    assert (error.row_index, error.missing_not_null) == (1, ("ID",))
    assert (
        "Missing columns: [ID]. Values for all non-nullable columns must be specified, rowIndex:1"
        in str(error.error)
    )


def test_null_in_a_required_column_is_refused() -> None:
    [error] = orders().convert([{"id": 1}, {"id": None}]).errors
    assert (error.row_index, error.null_for_not_null) == (1, ("ID",))
    assert "Not-nullable columns with null values: [ID]" in str(error.error)


def test_only_the_first_failing_check_is_reported() -> None:
    [error] = orders().convert([{"nope": 1, "note": object()}]).errors
    assert error.extra_columns == ("nope",)
    assert error.missing_not_null is None


def test_the_first_bad_value_in_the_rows_order_is_reported() -> None:
    [error] = orders().convert([{"note": "much too long", "id": "x"}]).errors
    assert "NOTE" in str(error.error)
    [error] = orders().convert([{"id": "x", "note": "much too long"}]).errors
    assert "column ID" in str(error.error)


def test_good_rows_around_refused_ones_stay_in_order() -> None:
    rows = [{"id": number if number % 3 else "bad", "note": str(number)} for number in range(10)]
    done = orders().convert(rows)
    assert [error.row_index for error in done.errors] == [0, 3, 6, 9]
    assert done.errors[1].row is rows[3]
    assert done.table["ID"].to_pylist() == [1, 2, 4, 5, 7, 8]
    assert done.table["NOTE"].to_pylist() == ["1", "2", "4", "5", "7", "8"]


def test_stopping_at_the_first_error_keeps_no_rows() -> None:
    done = orders().convert([{"id": 1}, {"id": "x"}, {"id": "y"}], stop_at_first=True)
    assert [error.row_index for error in done.errors] == [1]
    assert (done.row_count, done.table.num_rows, done.size_bytes) == (0, 0, 0)


@pytest.mark.parametrize("row", [None, 5, [("id", 1)], "id"])
def test_a_row_must_be_a_mapping(row: Any) -> None:
    done = orders().convert([{"id": 1}, row])
    assert [error.row_index for error in done.errors] == [1]
    assert done.row_count == 1


def test_any_mapping_is_a_row() -> None:
    done = orders().convert([OrderedDict(id=1), {"id": 2}])
    assert done.table["ID"].to_pylist() == [1, 2]


def test_a_row_larger_than_the_limit_is_refused() -> None:
    converter = orders(max_row_bytes=40)
    done = converter.convert([{"id": 1, "note": "short"}, {"id": 2, "doc": ["x" * 40]}])
    assert [(type(error.error), error.row_index) for error in done.errors] == [(RowTooLarge, 1)]
    assert "maxAllowedRowSizeInBytes:40, rowIndex:1" in str(done.errors[0].error)
    with pytest.raises(RowTooLarge):
        converter.convert_row({"id": 2, "doc": ["x" * 40]})
    assert converter.fast_checker.try_check({"id": 2, "doc": ["x" * 40]}) is None


def test_many_small_rows_may_exceed_the_limit_of_one_row() -> None:
    done = orders(max_row_bytes=40).convert([{"id": number} for number in range(100)])
    assert done.row_count == 100


def test_values_are_copied() -> None:
    content, document = bytearray(b"abc"), {"a": [1]}
    row = {"id": 1, '"lower case"': content, "doc": document}
    converter = orders()
    done, single = converter.convert([row]), converter.convert_row(row)
    content[:] = b"xyz"
    document["a"].append(2)
    assert done.table["lower case"].to_pylist() == [b"abc"]
    assert done.table["DOC"].to_pylist() == ['{"a":[1]}']
    assert single[2:] == (b"abc", '{"a":[1]}')


def test_a_blank_document_is_null_and_refused_where_null_is() -> None:
    schema = table(("D", LogicalType.VARIANT, {"nullable": False}))
    [error] = RowConverter(schema, zone=LOS_ANGELES).convert([{"d": " "}]).errors
    assert "Passed null to non nullable field D" in str(error.error)


def test_numpy_numbers_are_numbers() -> None:
    schema = table(
        ("N", LogicalType.FIXED, {"precision": 10, "scale": 2}),
        ("R", LogicalType.REAL, {}),
        ("B", LogicalType.BOOLEAN, {}),
        ("T", LogicalType.TEXT, {"length": 9}),
        ("V", LogicalType.VARIANT, {}),
    )
    row = {
        "n": np.float32(1.1),
        "r": np.float32(1.1),
        "b": np.bool_(True),
        "t": np.int64(7),
        "v": [np.float64(0.5)],
    }
    assert RowConverter(schema, zone=LOS_ANGELES).convert_row(row) == (110, 1.1, True, "7", "[0.5]")


def test_a_later_clock_time_of_an_overlap_is_kept_apart() -> None:
    schema = table(timed(LogicalType.TIMESTAMP_LTZ, 0))
    early = datetime(2021, 11, 7, 1, 30)
    done = RowConverter(schema, zone=LOS_ANGELES).convert(
        [{"timestamp_ltz_0": early}, {"timestamp_ltz_0": early.replace(fold=1)}]
    )
    first, second = (int(value) for value in done.table.column(0).to_pylist())
    assert second - first == 3600


def test_size_is_the_sum_of_its_parts() -> None:
    done = orders().convert([{"id": 1, "note": "abc"}])
    assert done.size_bytes >= 4 * 0.25 + 16 + 4 + 3
    assert done.size_bytes < 30


def test_times_keep_their_clock() -> None:
    schema = table(timed(LogicalType.TIME, 3))
    done = RowConverter(schema, zone=LOS_ANGELES).convert(
        [{"time_3": time(1, 2, 3, 4999, tzinfo=UTC)}]
    )
    assert done.table.column(0).to_pylist() == [Decimal("3723.004")]


def test_a_plain_row_is_only_checked_and_its_values_cannot_change() -> None:
    content = {"a": [1]}
    converter = orders()
    values = converter.fast_checker.try_check({"id": 1, "note": "é", "doc": content})
    assert values is not None
    content["a"].append(2)
    assert values[-1] > 100
    assert converter.fast_checker.build_table([*values, *values]).to_pylist()[1] == {
        "ID": 1,
        "NOTE": "é",
        "lower case": None,
        "DOC": '{"a":[1]}',
    }


@pytest.mark.parametrize(
    "row",
    [
        {"id": True},
        {"id": 10**38},
        {"id": float("nan")},
        {"id": Decimal("sNaN")},
        {"id": None},
        {},
        {"id": 1, "note": "\ud800"},
        {"id": 1, "note": "x" * 11},
        {"id": 1, "no": 1},
        {"id": 1, "doc": "{"},
        {"id": 1, "ID": 2},
        {"id": 1, '"lower case"': bytearray(b"a")},
        OrderedDict(id=1),
    ],
)
def test_what_is_not_surely_good_is_left_to_the_exact_path(row: Any) -> None:
    assert orders().fast_checker.try_check(row) is None
