"""A buffer keeps order, and moves tokens by the rules of the specification of v1, §7.4."""

from __future__ import annotations

from typing import Any, cast
from zoneinfo import ZoneInfo

import pyarrow as pa

from snowmelt.client.counters_and_metrics import ChannelCounts
from snowmelt.client.row_buffer import InsertBatch, RowBuffer
from snowmelt.schema.conversion.deferred_single_rows import FastRowChecker, FastRows
from snowmelt.schema.conversion.row_converter import RowConverter
from snowmelt.schema.types import Column, Compatibility, LogicalType, TableSchema


def table(*values: int) -> Any:
    return pa.table({"A": list(values)})


def test_rows_and_tables_keep_the_order_of_insertion() -> None:
    buffer = RowBuffer(None)
    buffer.append_batch(InsertBatch((1,), 1, 8), 10)
    buffer.append_batch(InsertBatch((2,), 1, 8), 11)
    buffer.append_batch(InsertBatch(table(3, 4), 2, 16), 12)
    buffer.append_batch(InsertBatch((5,), 1, 8), 13)
    portion = buffer.pop_slice()
    segments: list[Any] = list(portion.segments)
    assert segments[0] == [(1,), (2,)]
    assert segments[1].column("A").to_pylist() == [3, 4]
    assert segments[2] == [(5,)]
    assert (portion.row_count, portion.size_bytes) == (5, 40)
    assert (portion.first_insert_ms, portion.last_insert_ms) == (10, 13)


def test_a_portion_begins_with_the_first_token_and_ends_with_the_last() -> None:
    buffer = RowBuffer("0")
    buffer.append_batch(InsertBatch((1,), 1, 8, "1", "1"), 0)
    buffer.append_batch(InsertBatch(table(2, 3), 2, 16, "2", "3"), 0)
    portion = buffer.pop_slice()
    assert (portion.start_token, portion.end_token) == ("1", "3")
    assert portion.offset_tokens == ["1", "3"]


def test_a_call_without_token_leaves_the_last_known_one() -> None:
    buffer = RowBuffer("7")
    buffer.append_batch(InsertBatch((1,), 1, 8), 0)
    assert buffer.pop_slice().end_token == "7"
    buffer.append_batch(InsertBatch((2,), 1, 8, "8", "8"), 0)
    buffer.append_batch(InsertBatch((3,), 1, 8), 0)
    assert buffer.pop_slice().end_token == "8"


def test_the_token_of_a_call_without_good_rows_waits_for_the_next_row() -> None:
    buffer = RowBuffer(None)
    buffer.append_batch(InsertBatch(None, 0, 0, None, "5"), 0)
    assert buffer.row_count == 0
    assert buffer.contains_token("5")
    buffer.append_batch(InsertBatch((1,), 1, 8, "6", "6"), 0)
    portion = buffer.pop_slice()
    assert (portion.start_token, portion.end_token) == ("6", "6")
    assert portion.offset_tokens == ["5", "6"]


def test_a_taken_buffer_is_empty() -> None:
    buffer = RowBuffer(None)
    buffer.append_batch(InsertBatch((1,), 1, 8, "1", "1"), 0)
    buffer.pop_slice()
    assert (buffer.row_count, buffer.size_bytes, buffer.contains_token("1")) == (0, 0, False)


PLACES: dict[tuple[str, ...], tuple[int, ...]] = {("a",): (0,)}


def form() -> FastRowChecker:
    schema = TableSchema(1, (Column("A", LogicalType.REAL, 1),))
    return FastRowChecker(
        schema,
        ZoneInfo("UTC"),
        Compatibility.SNOWFLAKE,
        PLACES.get,
        10_000,
    )


def test_checked_rows_are_counted_late_and_never_twice() -> None:
    counts, quick = ChannelCounts(), form()
    buffer = RowBuffer(None, counts)
    sizes = []
    for number in range(5):
        values = quick.try_check({"a": float(number)})
        assert values is not None
        sizes.append(values[-1])
        if buffer.fast_run is None:
            buffer.append_fast_row(quick, values, "0", 7)
        else:  # as whoever holds the lock does
            buffer.fast_run.items.extend(values)
            buffer.fast_run.tokens.append(str(number))
        assert buffer.contains_token(str(number))
    assert (buffer.row_count, counts.inserted_rows) == (5, 5)
    buffer.append_batch(InsertBatch((5.0,), 1, 8, None, "5"), 9)
    assert buffer.fast_run is None
    portion = buffer.pop_slice()
    assert (portion.row_count, portion.size_bytes) == (6, sum(sizes) + 8)
    assert (counts.inserted_rows, counts.inserted_bytes) == (6, sum(sizes) + 8)
    assert (portion.start_token, portion.end_token) == ("0", "5")
    assert portion.offset_tokens == ["0", "1", "2", "3", "4", "5"]
    (run, _) = portion.segments
    assert isinstance(run, FastRows)
    assert run.to_table().column("A").to_pylist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_rows_of_other_columns_begin_a_run_of_their_own() -> None:
    buffer, older, newer = RowBuffer(None), form(), form()
    buffer.append_fast_row(older, cast("tuple[Any, ...]", older.try_check({"a": 1.0})), None, 0)
    buffer.append_fast_row(newer, cast("tuple[Any, ...]", newer.try_check({"a": 2.0})), None, 0)
    segments: list[Any] = list(buffer.pop_slice().segments)
    assert [part.form for part in segments] == [older, newer]


def test_calls_that_were_only_checked_are_joined_where_nothing_is_between_them() -> None:
    schema = TableSchema(1, (Column("A", LogicalType.REAL, 1),))
    older, newer = (RowConverter(schema, zone=ZoneInfo("UTC")) for _ in range(2))
    buffer = RowBuffer(None)
    parts = [older.try_defer([{"a": 1.0}]), older.try_defer([{"a": None}]), (9.0,)]
    parts += [
        older.try_defer([{"a": 3.0}]),
        newer.try_defer([{"a": 4.0}]),
        newer.try_defer([{"a": 5.0}]),
    ]
    for part in parts:
        buffer.append_batch(InsertBatch(part, 1, 8), 0)
    segments: list[Any] = list(buffer.pop_slice().segments)
    first, single, *others = segments
    assert first.to_table().column("A").to_pylist() == [1.0, None]
    assert single == [(9.0,)]
    assert [part.to_table().column("A").to_pylist() for part in others] == [[3.0], [4.0, 5.0]]
    assert [part.form for part in others] == [older, newer]


def test_small_calls_that_were_checked_row_by_row_are_one_run() -> None:
    checker = form()
    buffer = RowBuffer(None)
    for number in range(3):
        checked = checker.try_check_all([{"a": float(number)}, {"a": None}])
        assert checked is not None
        buffer.append_batch(InsertBatch(checked, 2, checked.size_bytes, end_token=str(number)), 0)
    assert checker.try_check_all([{"a": 1.0}, {"a": object()}]) is None
    portion = buffer.pop_slice()
    assert (portion.row_count, portion.end_token) == (6, "2")
    (run,) = portion.segments
    assert isinstance(run, FastRows)
    assert run.to_table().column("A").to_pylist() == [0.0, None, 1.0, None, 2.0, None]
