"""Chunks and blobs stay below the limits of the specification of v1, §3.6."""

from __future__ import annotations

from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from snowmelt.client import channel_state
from snowmelt.client.blob_builder import ChunkPlan, plan_blobs, plan_chunks, split_table
from snowmelt.client.channel_state import ChannelState, ChannelTarget
from snowmelt.client.row_buffer import InsertBatch
from snowmelt.schema.conversion.row_converter import RowConverter
from snowmelt.schema.types import Column, LogicalType, TableName, TableSchema

SCHEMA = TableSchema(1, (Column("A", LogicalType.REAL, 1),))
CONVERTER_FOR = partial(RowConverter, zone=ZoneInfo("UTC"))


def entry(
    channel: str, size: int, *, table: str = "T", key_id: int = 1
) -> channel_state.ChunkEntry:
    target = ChannelTarget(TableName("D", "S", table), SCHEMA, key_id, b"k" * 32)
    state = ChannelState(channel, target, CONVERTER_FOR, (0, 0), None)
    state.buffer.append_batch(InsertBatch((1.0,), 1, size), 0)
    return state.pop_buffered_rows()


def names(plans: list[ChunkPlan]) -> list[Any]:
    return [[each.state.name for each in plan.entries] for plan in plans]


def test_the_channels_of_a_table_share_a_chunk_in_order() -> None:
    entries = [entry("a", 1), entry("b", 1, table="U"), entry("c", 1)]
    assert names(plan_chunks(entries)) == [["a", "c"], ["b"]]


def test_channels_with_different_keys_do_not_share_a_chunk() -> None:
    assert names(plan_chunks([entry("a", 1), entry("b", 1, key_id=2)])) == [["a"], ["b"]]


def test_a_chunk_ends_before_its_limit() -> None:
    entries = [entry("a", 60), entry("b", 40), entry("c", 1), entry("d", 200), entry("e", 1)]
    chunks = plan_chunks(entries, max_chunk_bytes=100)
    assert names(chunks) == [["a", "b"], ["c"], ["d"], ["e"]]


def test_a_blob_ends_before_its_limits() -> None:
    chunks = plan_chunks([entry(name, 40, table=name) for name in "ABCDE"])
    by_bytes = plan_blobs(chunks, max_blob_bytes=100, max_chunks=100)
    assert [len(blob) for blob in by_bytes] == [2, 2, 1]
    by_count = plan_blobs(chunks, max_blob_bytes=1000, max_chunks=3)
    assert [len(blob) for blob in by_count] == [3, 2]


def test_what_is_larger_than_a_chunk_gets_blobs_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_state, "MAX_CHUNK_BYTES", 100)
    entries = [entry(name, size) for name, size in zip("abcd", (9, 101, 9, 100), strict=True)]
    plans = plan_chunks(entries)
    assert names(plans) == [["a"], ["b"], ["c"], ["d"]]
    assert [len(blob) for blob in plan_blobs(plans)] == [1, 1, 2]


def test_rows_are_torn_at_a_limit_and_a_larger_row_stays_whole() -> None:
    rows = pa.table({"A": ["x" * 1_000, *"abcdefgh"]})
    pieces = split_table(rows, 20)
    assert pa.concat_tables(pieces) == rows
    assert max(piece.nbytes for piece in pieces[1:]) <= 20
    assert pieces[0].num_rows == 1
    assert split_table(rows, rows.nbytes) == [rows]


def test_a_chunk_without_all_its_channels_is_nothing() -> None:
    first, second = entry("a", 1), entry("b", 1)
    plan = ChunkPlan(first.state.target, (first, second))
    left = plan.without_channels({first.state})
    assert left is not None
    assert names([left]) == [["b"]]
    assert plan.without_channels({first.state, second.state}) is None
