"""The backlog hands out rows when they are due, and holds inserts up when there are too many."""

from __future__ import annotations

import datetime as dt
import threading
from dataclasses import replace
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from snowmelt.client import flush_scheduling
from snowmelt.client.channel_state import ChannelFailure, ChannelState, ChannelTarget, ChunkEntry
from snowmelt.client.flush_scheduling import MAX_CHANNEL_BUFFER_BYTES, FlushScheduler
from snowmelt.client.row_buffer import InsertBatch
from snowmelt.client.settings import ClientSettings
from snowmelt.errors import BufferFull, ChannelClosed, ChannelFenced, ChannelInvalid, CommitTimeout
from snowmelt.schema.conversion.deferred_single_rows import FastRowChecker, FastRows
from snowmelt.schema.conversion.row_converter import RowConverter
from snowmelt.schema.types import Column, LogicalType, TableName, TableSchema

SCHEMA = TableSchema(1, (Column("A", LogicalType.REAL, 1),))
TARGET = ChannelTarget(TableName("D", "S", "T"), SCHEMA, 1, b"k" * 32)
LONG = dt.timedelta(minutes=10)
NOW = dt.timedelta(milliseconds=100)


def backlog_with(**options: Any) -> FlushScheduler:
    return FlushScheduler(ClientSettings(**options), lambda: None)


def opened(
    backlog: FlushScheduler, name: str = "c", *, sequencer: int = 0, token: str | None = None
) -> ChannelState:
    state = ChannelState(
        name, TARGET, partial(RowConverter, zone=ZoneInfo("UTC")), (sequencer, 0), token
    )
    backlog.add_channel(state, ChannelFailure("reopened", is_fenced=True))
    return state


def row(token: str | None = None, size: int = 8) -> InsertBatch:
    return InsertBatch((1.0,), 1, size, token, token)


def due(backlog: FlushScheduler) -> list[ChunkEntry]:
    entries = backlog.wait_for_due_flush()
    assert entries is not None
    return entries


def checked(form: FastRowChecker, value: float = 1.0) -> tuple[Any, ...]:
    values = form.try_check({"a": value})
    assert values is not None
    return values


def test_rows_are_due_after_the_lag() -> None:
    backlog = backlog_with(max_client_lag=NOW)
    state = opened(backlog)
    backlog.insert(state, row("1"))
    (entry,) = due(backlog)
    assert (entry.row_sequencer, entry.flush_slice.row_count) == (1, 1)


def test_a_full_channel_is_due_at_once() -> None:
    backlog = backlog_with(max_client_lag=LONG)
    backlog.insert(opened(backlog), row(size=MAX_CHANNEL_BUFFER_BYTES))
    assert len(due(backlog)) == 1


def test_what_a_channel_fills_up_is_a_flush_by_itself_and_comes_first() -> None:
    backlog = backlog_with(max_client_lag=LONG)
    first, second, failed = (opened(backlog, name) for name in "abc")
    backlog.insert(second, row())
    backlog.insert(failed, row(size=MAX_CHANNEL_BUFFER_BYTES))
    for token in ("1", "2"):
        backlog.insert(first, row(token, MAX_CHANNEL_BUFFER_BYTES))
    backlog.insert(first, row("3"))
    backlog.fail_channels([failed], ChannelFailure("the table is gone"))
    backlog.flush_now()
    taken = [due(backlog) for _ in range(3)]
    assert [
        [(e.state.name, e.row_sequencer, e.flush_slice.end_token) for e in t] for t in taken
    ] == [
        [("a", 1, "1")],
        [("a", 2, "2")],
        [("b", 1, None), ("a", 3, "3")],
    ]
    assert backlog.uncommitted_bytes == 2 * MAX_CHANNEL_BUFFER_BYTES + 16


def test_rows_of_a_table_that_is_held_gather_until_it_is_released() -> None:
    backlog = backlog_with(max_client_lag=LONG)
    held = [opened(backlog, name) for name in "ab"]
    free = opened(backlog, "c")
    free.target = replace(TARGET, key_id=2)
    backlog.hold_table(TARGET.retry_queue_key)
    for state in (*held, free):
        backlog.insert(state, row())
    backlog.insert(held[0], row(size=MAX_CHANNEL_BUFFER_BYTES))
    backlog.flush_now()
    assert [entry.state.name for entry in due(backlog)] == ["c"]
    backlog.insert(held[0], row())
    backlog.stop_when_drained()
    backlog.release_table(TARGET.retry_queue_key)
    taken = [
        [(entry.state.name, entry.flush_slice.row_count) for entry in due(backlog)]
        for _ in range(2)
    ]
    assert taken == [[("a", 2)], [("b", 1), ("a", 1)]]
    assert backlog.wait_for_due_flush() is None


def with_aside(backlog: FlushScheduler) -> tuple[ChannelState, ChannelState]:
    """A channel, and the one for what its table refuses."""
    state, aside = opened(backlog), opened(backlog, "refused")
    aside.target, aside.is_error_table_channel = (
        replace(TARGET, key_id=2, source_key_id=TARGET.key_id),
        True,
    )
    return state, aside


def test_what_a_channel_fills_up_takes_refused_rows_of_its_table_along() -> None:
    backlog = backlog_with(max_client_lag=LONG)
    state, aside = with_aside(backlog)
    other = opened(backlog, "o")
    backlog.insert(other, row("1"), (aside, row()))
    backlog.insert(state, row("1", MAX_CHANNEL_BUFFER_BYTES), (aside, row()))
    taken = {entry.state.name: entry.flush_slice.row_count for entry in due(backlog)}
    assert taken == {"c": 1, "o": 1, "refused": 2}


@pytest.mark.parametrize("takes_rowless", [True, False])
def test_a_token_without_a_row_goes_with_refused_rows_if_the_service_takes_it(
    takes_rowless: bool,
) -> None:
    backlog = backlog_with(max_client_lag=LONG)
    state, aside = with_aside(backlog)
    state.accepts_token_without_rows = takes_rowless
    nothing = InsertBatch(None, 0, 0, "1", "1")
    backlog.insert(state, nothing)
    assert backlog.stop_inserts_and_flush(state) == 0
    state.is_closed = False
    backlog.insert(state, nothing, (aside, row()))
    backlog.flush_now()
    taken = {entry.state.name: entry.flush_slice.end_token for entry in due(backlog)}
    assert taken == ({"refused": None, "c": "1"} if takes_rowless else {"refused": None})
    assert backlog.find_row_sequencer(state, "1") == 1


def test_a_chunk_that_is_full_is_taken_before_more_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush_scheduling, "MAX_CHUNK_BYTES", 100)
    backlog = backlog_with(max_client_lag=LONG)
    state = opened(backlog)
    backlog.insert(state, row("1", size=80))
    waiting = threading.Thread(target=backlog.insert, args=(state, row("2", size=30)))
    waiting.start()
    entries = [*due(backlog)]
    waiting.join()
    # A single call above the limit is a chunk of its own: it is never torn.
    larger = threading.Thread(target=backlog.insert, args=(state, row("3", size=500)))
    larger.start()
    entries += due(backlog)
    larger.join()
    backlog.flush_now()
    entries += due(backlog)
    assert [(e.row_sequencer, e.flush_slice.end_token) for e in entries] == [
        (1, "1"),
        (2, "2"),
        (3, "3"),
    ]
    assert [e.flush_slice.size_bytes for e in entries] == [80, 30, 500]


def test_one_take_brings_all_channels() -> None:
    backlog = backlog_with(max_client_lag=LONG)
    first, second = opened(backlog, "a"), opened(backlog, "b")
    backlog.insert(second, row())
    backlog.insert(first, row())
    backlog.flush_now()
    assert [entry.state.name for entry in due(backlog)] == ["b", "a"]


def test_an_insert_waits_until_rows_are_committed() -> None:
    backlog = backlog_with(max_client_lag=LONG, max_memory=20)
    state = opened(backlog)
    backlog.insert(state, row(size=10))
    thread = threading.Thread(target=backlog.insert, args=(state, row("2", size=10)))
    thread.start()
    backlog.record_commits(due(backlog))
    thread.join(60)
    assert state.buffer.contains_token("2")


def test_an_insert_that_waits_too_long_keeps_nothing() -> None:
    backlog = backlog_with(max_memory=20, insert_timeout=dt.timedelta(0))
    state = opened(backlog)
    backlog.insert(state, row("1", size=10))
    with pytest.raises(BufferFull, match="10 bytes uncommitted"):
        backlog.insert(state, row("2"))
    assert state.buffer.row_count == 1
    assert not state.buffer.contains_token("2")


def test_a_batch_above_the_limit_is_taken_when_nothing_else_waits() -> None:
    backlog = backlog_with(max_memory=20)
    state = opened(backlog)
    backlog.insert(state, row(size=100))
    assert backlog.uncommitted_bytes == 100


def test_a_failure_frees_the_bytes_and_names_the_last_committed_token() -> None:
    backlog = backlog_with(max_client_lag=LONG)
    state = opened(backlog, token="5")
    backlog.insert(state, row("6"))
    backlog.flush_now()
    backlog.wait_for_due_flush()
    backlog.insert(state, row("7"))
    backlog.fail_channels([state], ChannelFailure("the table is gone"))
    assert backlog.uncommitted_bytes == 0
    with pytest.raises(ChannelInvalid, match=r"the table is gone; .* token is '5'"):
        backlog.insert(state, row("8"))


def test_opening_again_fences_the_older_object() -> None:
    backlog = backlog_with()
    old = opened(backlog, sequencer=0)
    new = opened(backlog, sequencer=1)
    with pytest.raises(ChannelFenced):
        backlog.insert(old, row())
    late = opened(backlog, sequencer=0)
    assert (new.failure, late.failure is None) == (None, False)


def test_tokens_are_known_while_they_wait_and_afterwards() -> None:
    backlog = backlog_with(max_client_lag=LONG)
    state = opened(backlog, token="0")
    backlog.insert(state, row("1"))
    backlog.flush_now()
    entries = due(backlog)
    backlog.insert(state, row("2"))
    assert [state.find_row_sequencer(token) for token in ("0", "1", "2", "x")] == [0, 1, 2, None]
    with pytest.raises(CommitTimeout, match="Last committed token: '0'"):
        backlog.wait_for_commit(state, 1, "1", 0.0)
    backlog.record_commits(entries)
    backlog.wait_for_commit(state, 1, "1", 0.0)
    assert state.committed_token == "1"


def test_an_orphan_ends_when_nothing_is_buffered() -> None:
    backlog = backlog_with(max_client_lag=NOW)
    backlog.insert(opened(backlog), row())
    backlog.stop_when_drained()
    assert len(due(backlog)) == 1
    assert backlog.wait_for_due_flush() is None


def test_an_orphan_ends_whoever_holds_the_lock() -> None:
    backlog = backlog_with()
    thread = threading.Thread(target=backlog.wait_for_due_flush)
    thread.start()
    with backlog._lock:  # as the garbage collector may find it
        backlog.stop_when_drained()
    thread.join(60)
    assert not thread.is_alive()


def test_checked_rows_of_many_threads_come_once_while_others_are_taken() -> None:
    backlog = backlog_with(max_client_lag=LONG)
    state = opened(backlog)
    form, found = state.converter.fast_checker, []

    def insert(first: int) -> None:
        for number in range(first, first + 2_000):
            backlog.insert_fast_row(state, form, checked(form, float(number)), None)

    def take() -> None:
        while (entries := backlog.wait_for_due_flush()) is not None:
            for entry in entries:
                for part in entry.flush_slice.segments:
                    assert isinstance(part, FastRows)
                    found.extend(part.to_table().column("A").to_pylist())
            backlog.record_commits(entries)

    threads = [threading.Thread(target=insert, args=(first,)) for first in range(0, 8_000, 2_000)]
    taking = threading.Thread(target=take)
    for thread in (taking, *threads):
        thread.start()
    while any(thread.is_alive() for thread in threads):
        backlog.flush_now()
    assert backlog.drain(200) == 0
    assert (
        backlog.channel_status(state).committed_rows
        == backlog.channel_status(state).inserted_rows
        == 8_000
    )
    backlog.stop_when_drained()
    taking.join(60)
    assert sorted(found) == [float(number) for number in range(8_000)]
    for first in range(0, 8_000, 2_000):
        mine = [number for number in found if first <= number < first + 2_000]
        assert mine == sorted(mine)


def test_a_closed_channel_takes_no_checked_row() -> None:
    backlog = backlog_with(max_client_lag=LONG)
    state = opened(backlog)
    form = state.converter.fast_checker
    values = checked(form)
    assert backlog.insert_fast_row(state, form, values, "1")
    assert not backlog.insert_fast_row(state, form, values, "2")
    backlog.stop_inserts_and_flush(state)
    with pytest.raises(ChannelClosed):
        backlog.insert_fast_row(state, form, values, "3")
    (entry,) = due(backlog)
    assert (entry.flush_slice.row_count, entry.flush_slice.end_token) == (2, "2")


def test_checked_rows_are_held_up_as_others_are_and_none_is_half_kept() -> None:
    backlog = backlog_with(max_memory=4_000, insert_timeout=dt.timedelta(0), max_client_lag=LONG)
    state = opened(backlog)
    form = state.converter.fast_checker
    values = checked(form)
    kept = 2_000 // values[-1]
    for number in range(kept):
        backlog.insert_fast_row(state, form, values, str(number))
    with pytest.raises(BufferFull):
        backlog.insert_fast_row(state, form, values, "x")
    assert backlog.uncommitted_bytes == kept * values[-1]
    (entry,) = due(backlog)
    assert (entry.flush_slice.row_count, entry.flush_slice.end_token) == (kept, str(kept - 1))
