"""Rows of many channels, converted together: the same rows in the same order."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from snowmelt.client.row_buffer import (
    adapt_rows,
    convert_segments_jointly,
    find_schema_mismatch,
    segment_to_table,
)
from snowmelt.schema.conversion.deferred_single_rows import FastRowChecker, FastRows
from snowmelt.schema.conversion.row_converter import RowConverter
from snowmelt.schema.types import Column, Compatibility, LogicalType, TableSchema

UTC = ZoneInfo("UTC")
SCHEMA = TableSchema(
    1,
    (
        Column("N", LogicalType.FIXED, 1, nullable=True, precision=10, scale=2),
        Column("AT", LogicalType.TIMESTAMP_LTZ, 2, nullable=True, scale=6),
        Column("DOC", LogicalType.VARIANT, 3, nullable=True),
    ),
)


PLACES: dict[tuple[str, ...], tuple[int, ...]] = {("n", "at", "doc"): (0, 1, 2)}


def form(zone: str = "UTC") -> FastRowChecker:
    return FastRowChecker(
        SCHEMA,
        ZoneInfo(zone),
        Compatibility.SNOWFLAKE,
        PLACES.get,
        10_000,
    )


def quick(of: FastRowChecker, *numbers: object) -> FastRows:
    rows = FastRows(of)
    for number in numbers:
        taken = of.try_check({"n": number, "at": dt.datetime(2026, 7, 1, 12), "doc": [number]})
        assert taken is not None
        rows.items.extend(taken)
    return rows


def test_parts_of_many_channels_become_what_each_becomes_alone() -> None:
    converter = RowConverter(SCHEMA, zone=UTC)
    ready = segment_to_table(quick(form(), 70), converter)

    def portions() -> list[list[Any]]:
        return [
            [quick(form(), 1, 2)],
            [quick(form(), 2.5), ready, quick(form(), None)],
            [],
            # Clock times of another zone are other instants.
            [quick(form("America/New_York"), 3)],
            [quick(form("America/New_York"), 4), [(500, None, "[5]")]],
            [quick(form(), *range(300))],
            [quick(form(), 6)],
        ]

    alone = [[segment_to_table(part, converter) for part in parts] for parts in portions()]
    together = portions()
    tables = convert_segments_jointly(together, SCHEMA)
    expected = pa.concat_tables([table for parts in alone for table in parts])
    assert pa.concat_tables(tables).to_pylist() == expected.to_pylist()
    assert [[part.to_pylist() for part in parts] for parts in together] == [
        [part.to_pylist() for part in parts] for parts in alone
    ]
    assert [table.num_rows for table in tables] == [3, 1, 1, 2, 1, 300, 1]


def test_a_row_that_cannot_be_converted_leaves_all_parts_as_they_were() -> None:
    bad = quick(form(), 1)
    bad.items[0] = dt.date(2026, 1, 1)
    portions: list[list[Any]] = [[quick(form(), 1)], [bad]]
    with pytest.raises(Exception, match="N"):
        convert_segments_jointly(portions, SCHEMA)
    assert all(isinstance(parts[0], FastRows) for parts in portions)


def test_values_of_a_column_that_was_dropped_and_added_again_move_to_the_new_column() -> None:
    table = segment_to_table(quick(form(), 1, 2), RowConverter(SCHEMA, zone=UTC))
    number, *others = SCHEMA.columns
    added = replace(number, ordinal=4, precision=12)
    current = TableSchema(2, (*others, added))
    assert find_schema_mismatch(SCHEMA, current) is None
    assert adapt_rows(table, current)["N"].to_pylist() == [1, 2]
    other_type = Column("N", LogicalType.TEXT, 4, nullable=True, length=9, byte_length=36)
    reason = find_schema_mismatch(SCHEMA, TableSchema(2, (*others, other_type)))
    assert reason == "column N was changed to VARCHAR(9)"
    # A renamed column keeps its values, and a new column of its former name is NULL.
    renamed = TableSchema(2, (replace(number, name="M"), *others, added))
    assert adapt_rows(table, renamed)["M"].to_pylist() == [1, 2]
    assert adapt_rows(table, renamed)["N"].to_pylist() == [None, None]
