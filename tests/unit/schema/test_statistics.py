"""Statistics follow the wire's order, on full values."""

from __future__ import annotations

import math
from functools import cmp_to_key
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from snowmelt.schema.conversion.row_converter import RowConverter
from snowmelt.schema.statistics import ChunkStatistics, ColumnStatistics, collect_statistics
from snowmelt.schema.types import Column, LogicalType, TableSchema

ZONE = ZoneInfo("UTC")


def statistics_of(values: list[Any], kind: LogicalType, **options: Any) -> ColumnStatistics:
    schema = TableSchema(1, (Column("C", kind, 1, **options),))
    table = RowConverter(schema, zone=ZONE).build_table([(value,) for value in values])
    return collect_statistics(table, schema).columns[0]


def double_compare(left: Any, right: Any) -> int:
    """Order as Java's Double.compareTo."""
    if left < right or left > right:
        return -1 if left < right else 1
    key = [
        (math.isnan(value), math.copysign(1.0, 0.0 if math.isnan(value) else value))
        for value in (left, right)
    ]
    return (key[0] > key[1]) - (key[0] < key[1])


@given(st.lists(st.none() | st.floats(), min_size=1))
@example([-0.0, 0.0])
@example([0.0, 1.0, -0.0])
@example([-1.0, -0.0])
@example([math.nan, -math.inf])
def test_reals_are_ordered_as_on_the_wire(values: list[Any]) -> None:
    got = statistics_of(values, LogicalType.REAL)
    given = [value for value in values if value is not None]
    assert got.null_count == len(values) - len(given)
    if not given:
        assert (got.minimum, got.maximum) == (None, None)
        return
    ordered = sorted(given, key=cmp_to_key(double_compare))
    assert [repr(got.minimum), repr(got.maximum)] == [repr(ordered[0]), repr(ordered[-1])]


@given(st.lists(st.none() | st.integers(-(10**38) + 1, 10**38 - 1), min_size=1), st.integers(0, 37))
def test_bounds_of_numbers_are_unscaled(values: list[Any], scale: int) -> None:
    got = statistics_of(values, LogicalType.FIXED, precision=38, scale=scale)
    given = [value for value in values if value is not None]
    assert got == ColumnStatistics(
        min(given, default=None), max(given, default=None), len(values) - len(given)
    )


@given(st.lists(st.integers(-(10**18) + 1, 10**18 - 1), min_size=1), st.integers(0, 5))
def test_bounds_of_short_numbers_are_found_in_pieces_too(values: list[Any], first: int) -> None:
    schema = TableSchema(1, (Column("C", LogicalType.FIXED, 1, precision=18, scale=2),))
    whole = RowConverter(schema, zone=ZONE).build_table([(value,) for value in values])
    for table in (whole, pa.concat_tables([whole[:first], whole[first:], whole[:0]])):
        bounds = collect_statistics(table, schema).columns[0]
        assert bounds == ColumnStatistics(min(values), max(values), 0)


@given(st.lists(st.none() | st.text(), min_size=1))
def test_text_is_ordered_by_its_bytes(values: list[Any]) -> None:
    got = statistics_of(values, LogicalType.TEXT, length=1000)
    given = [value.encode() for value in values if value is not None]
    assert got == ColumnStatistics(
        min(given, default=None),
        max(given, default=None),
        len(values) - len(given),
        max(map(len, given), default=0),
    )


@given(st.lists(st.none() | st.binary(), min_size=1))
def test_bytes_are_ordered_unsigned_and_shorter_first(values: list[Any]) -> None:
    got = statistics_of(values, LogicalType.BINARY, byte_length=1000)
    given = [value for value in values if value is not None]
    assert (got.minimum, got.maximum) == (min(given, default=None), max(given, default=None))


@pytest.mark.parametrize(
    ("values", "bounds"),
    [([True], (1, 1)), ([False, None], (0, 0)), ([True, False], (0, 1)), ([None], (None, None))],
)
def test_booleans_are_bounded_by_zero_and_one(
    values: list[None] | list[bool | None] | list[bool], bounds: tuple[int | None, int | None]
) -> None:
    got = statistics_of(values, LogicalType.BOOLEAN)
    assert (got.minimum, got.maximum) == bounds


def test_dates_are_bounded_by_days() -> None:
    assert statistics_of([-4_371_587, 3], LogicalType.DATE) == ColumnStatistics(-4_371_587, 3, 0)


@pytest.mark.parametrize("kind", [LogicalType.VARIANT, LogicalType.ARRAY, LogicalType.OBJECT])
def test_documents_have_nothing_but_nulls(kind: LogicalType) -> None:
    assert statistics_of(["{}", None, "[]"], kind) == ColumnStatistics(None, None, 1, 0)


def test_a_chunk_lists_its_columns_in_order() -> None:
    schema = TableSchema(1, (Column("A", LogicalType.DATE, 1), Column("B", LogicalType.BOOLEAN, 2)))
    table = RowConverter(schema, zone=ZONE).build_table([(1, True), (2, None)])
    assert collect_statistics(table, schema) == ChunkStatistics(
        2, (ColumnStatistics(1, 2, 0), ColumnStatistics(1, 1, 1))
    )
    assert collect_statistics(table.slice(0, 0), schema).rows == 0
