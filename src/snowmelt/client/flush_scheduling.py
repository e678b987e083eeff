"""Manage a client's uncommitted rows: schedule flushes, limit memory and wait for commits.

One lock guards all channels of a client. Inserts hold it for microseconds: rows are converted
before, and encoded and sent without the lock. No thread polls.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from snowmelt.client.channel_state import (
    MAX_CHUNK_BYTES,
    ChannelFailure,
    ChannelState,
    ChunkEntry,
)
from snowmelt.client.counters_and_metrics import ChannelCounts, ChannelStatus, ClientStatus
from snowmelt.client.row_buffer import LARGE_ROW_BYTES, InsertBatch, segments_to_tables
from snowmelt.client.settings import ClientSettings
from snowmelt.clock import Clock, to_epoch_ms
from snowmelt.errors import BufferFull, CommitTimeout, SnowmeltError
from snowmelt.schema.types import TableName, TableSchema

if TYPE_CHECKING:
    from snowmelt.schema.conversion.deferred_single_rows import FastRowChecker, Values

_log = logging.getLogger("snowmelt.client")

# A channel buffer of this size is flushed immediately. It is below the limit of 64 MiB
# (specification of v1, §3.6), so that rows are encoded while the application inserts more, and that
# encoding needs less memory.
MAX_CHANNEL_BUFFER_BYTES = 16 * 1024 * 1024

_IMMEDIATELY = -math.inf


class FlushScheduler:
    """Manages the open channels of one client and their uncommitted rows. Thread-safe."""

    def __init__(
        self, settings: ClientSettings, get_current_error: Callable[[], SnowmeltError | None]
    ) -> None:
        self._settings = settings
        self._clock: Clock = settings.clock
        self._max_bytes = settings.max_waiting_bytes
        self._unthrottled_bytes = min(self._max_bytes, MAX_CHUNK_BYTES)
        self._lag_s = settings.max_client_lag.total_seconds()
        self._get_current_error = get_current_error
        self._channels: dict[tuple[int, str], ChannelState] = {}
        # Invalid channels among the open ones.
        self._failed_channels: dict[ChannelState, None] = {}
        self._unflushed_channels: dict[ChannelState, None] = {}
        self._full_flushes: deque[list[ChunkEntry]] = deque()
        # Held tables by retry queue key. The service currently accepts no rows of them.
        self._held_tables: set[int] = set()
        # Memory limit of held tables, so that there is memory for rows of other tables.
        self._max_held_bytes = self._max_bytes // 2
        self._flush_due_at: float | None = None
        self._uncommitted_bytes = 0
        self._removed_counts = ChannelCounts()
        self._is_stopped = False
        self._stops_when_drained = False
        # Called without the lock after each commit and each failure of channels.
        self.progress_listeners: Sequence[Callable[[], object]] = ()
        self._reset_locks()

    def _reset_locks(self) -> None:
        self._lock = threading.Lock()
        self._progress_condition = threading.Condition(self._lock)
        # A queue, because the garbage collector may use it in any thread, which a condition does
        # not allow.
        self._wake_queue: queue.SimpleQueue[None] = queue.SimpleQueue()

    @property
    def uncommitted_bytes(self) -> int:
        """Estimated bytes of rows that are buffered or in flight."""
        return max(self._uncommitted_bytes, 0)

    def list_open_channels(self) -> list[ChannelState]:
        """Return the open channels in the order in which they were opened."""
        with self._lock:
            return list(self._channels.values())

    def add_channel(self, state: ChannelState, replaced_failure: ChannelFailure) -> None:
        """Add a channel that was just opened. An older object of the same channel becomes invalid."""
        with self._lock:
            other = self._channels.get(state.key)
            if other is not None and other.client_sequencer > state.client_sequencer:
                # Two threads opened the channel, and their responses arrived in reverse order.
                self._fail_channel(state, replaced_failure)
                return
            if other is not None:
                self._fail_channel(other, replaced_failure)
                self._remove_channel(other)
            # Channels of a former table with the same name.
            for failed in [
                each
                for each in self._failed_channels
                if each.qualified_name == state.qualified_name
            ]:
                self._remove_channel(failed)
            self._channels[state.key] = state

    def remove_channel(self, state: ChannelState) -> None:
        """Remove a closed channel."""
        with self._lock:
            if self._channels.get(state.key) is state:
                self._remove_channel(state)

    def _remove_channel(self, state: ChannelState) -> None:
        del self._channels[state.key]
        self._failed_channels.pop(state, None)
        if not state.is_error_table_channel:
            self._removed_counts.add(state.counts)

    def stop_inserts_and_flush(self, state: ChannelState) -> int:
        """Close the channel for inserts, and flush. Return the row sequencer to wait for."""
        with self._lock:
            state.is_closed = True
            state.buffer.end_fast_run()
            if state.buffer.has_data_to_flush:
                self._schedule_immediate_flush()
            return state.last_inserted_row_sequencer

    def insert(
        self,
        state: ChannelState,
        batch: InsertBatch,
        error_table_batch: tuple[ChannelState, InsertBatch] | None = None,
        *,
        commits_token: bool = False,
    ) -> None:
        """Append a batch to its channel. Wait for memory if there are too many uncommitted rows.

        `error_table_batch` contains rejected rows for the error table's channel. The same flush
        sends both. If that channel is invalid, its rows are dropped. The offset token is committed
        with the rejected rows even if no row was valid, because the source does not send them
        again. With `commits_token`, the token is always committed.

        Raises:
            BufferFull: If the memory stayed full. Nothing of the batch was buffered.
            ChannelClosed: If the channel was closed meanwhile.
            ChannelFenced: If another client has opened the channel.
            ChannelInvalid: If the channel cannot commit rows.
        """
        with self._lock:
            state.check_open()
            size_bytes = batch.size_bytes + (
                0 if error_table_batch is None else error_table_batch[1].size_bytes
            )
            if batch.row_count or error_table_batch is not None:
                self._wait_for_capacity(state, size_bytes)
            self._append_batch(state, batch)
            touched = [state] if batch.row_count else []
            if error_table_batch is not None and error_table_batch[0].failure is None:
                self._append_batch(*error_table_batch)
                touched.append(error_table_batch[0])
                commits_token = True
            if (
                commits_token
                and not batch.row_count
                and batch.end_token is not None
                and state.accepts_token_without_rows
            ):
                state.buffer.request_offset_token_flush(to_epoch_ms(self._clock.now()))
                touched.append(state)
            self._schedule_flush(touched)

    def _append_batch(self, state: ChannelState, batch: InsertBatch) -> None:
        batch = _attach_outdated_schema(batch, state)
        if batch.row_count:
            self._uncommitted_bytes += batch.size_bytes
        state.buffer.append_batch(batch, to_epoch_ms(self._clock.now()))

    def insert_fast_row(
        self, state: ChannelState, checker: FastRowChecker, values: Values, token: str | None
    ) -> bool:
        """Append a row that was checked but not converted. Otherwise like `insert`.

        Returns True if limits were checked, which happens at the first row of a flush.
        """
        size_bytes = values[-1]
        with self._lock:
            buffer = state.buffer
            run, waiting = buffer.fast_run, self._uncommitted_bytes + size_bytes
            if (
                run is None
                or run.form is not checker
                or len(run.items) >= buffer.next_check_items
                or size_bytes > LARGE_ROW_BYTES
                or waiting > self._unthrottled_bytes
            ):
                self._insert_with_limit_checks(state, checker, values, token)
                return True
            # Add the rows first: Ctrl-C after the next line must not leave bytes without rows,
            # which are never released.
            run.items.extend(values)
            self._uncommitted_bytes = waiting
            if token is not None:
                run.tokens.append(token)
            return False

    def _insert_with_limit_checks(
        self, state: ChannelState, checker: FastRowChecker, values: Values, token: str | None
    ) -> None:
        """Append a row, and check state, limits and clock. The checks take as long as the rest."""
        state.check_open()
        size_bytes = values[-1]
        self._wait_for_capacity(state, size_bytes)
        self._uncommitted_bytes += size_bytes
        state.buffer.append_fast_row(checker, values, token, to_epoch_ms(self._clock.now()))
        self._schedule_flush([state])

    def update_schema(
        self, state: ChannelState, schema: TableSchema, table: TableName | None = None
    ) -> None:
        """Update a channel to newer columns or the new name of its table."""
        with self._lock:
            state.update_schema(schema, table)

    def _wait_for_capacity(self, state: ChannelState, size_bytes: int) -> None:
        if not self._exceeds_limits(state, size_bytes):
            return
        waits = self._settings.when_full == "wait"
        seconds = self._settings.insert_timeout.total_seconds() if waits else 0.0
        give_up_at = self._clock.monotonic() + seconds
        while self._exceeds_limits(state, size_bytes):
            self._schedule_immediate_flush()
            left_s = give_up_at - self._clock.monotonic()
            if left_s <= 0:
                trouble = self._get_current_error()
                raise BufferFull(
                    channel=state.name,
                    bytes=self._uncommitted_bytes,
                    seconds=seconds,
                    reason=trouble or "rows are inserted faster than they can be written",
                ) from trouble
            self._progress_condition.wait(left_s)
            state.check_open()

    def _exceeds_limits(self, state: ChannelState, size_bytes: int) -> bool:
        """Return True if a batch must wait for memory, or because it does not fit into the next chunk.

        A batch of any size is accepted if no other rows wait, because the rows of a call stay
        together.
        """
        held = state.buffer.size_bytes
        return (
            (self._uncommitted_bytes > 0 and self._uncommitted_bytes + size_bytes > self._max_bytes)
            or (held > 0 and held + size_bytes > MAX_CHUNK_BYTES)
            or self._exceeds_held_limit(state, size_bytes)
        )

    def _exceeds_held_limit(self, state: ChannelState, size_bytes: int) -> bool:
        """Return True if held tables exceed their memory limit."""
        if (
            state.target.retry_queue_key not in self._held_tables
            or self._uncommitted_bytes + size_bytes <= self._max_held_bytes
        ):
            return False
        states = [
            each
            for each in self._channels.values()
            if each.target.retry_queue_key in self._held_tables
        ]
        waiting = sum(each.waiting_bytes for each in states)
        return waiting > 0 and waiting + size_bytes > self._max_held_bytes

    def hold_table(self, retry_queue_key: int) -> None:
        """Keep rows of a table in the buffers of its channels until `release_table`."""
        with self._lock:
            self._held_tables.add(retry_queue_key)

    def release_table(self, retry_queue_key: int) -> None:
        """Release a held table, and flush its rows immediately."""
        with self._lock:
            self._held_tables.discard(retry_queue_key)
            self._schedule_immediate_flush()
            self._wake_queue.put(None)
            self._progress_condition.notify_all()

    def _schedule_flush(self, states: Sequence[ChannelState]) -> None:
        self._unflushed_channels.update(dict.fromkeys(states))
        for state in states:
            if (
                state in self._unflushed_channels
                and state.buffer.size_bytes >= MAX_CHANNEL_BUFFER_BYTES
            ):
                self._queue_full_channel(state)
            elif (
                self._flush_due_at is None and state.target.retry_queue_key not in self._held_tables
            ):
                self._flush_due_at = self._clock.monotonic() + self._lag_s
                self._wake_queue.put(None)

    def _queue_full_channel(self, state: ChannelState) -> None:
        """Queue the rows of a full channel, with the rejected rows of the same calls."""
        unit = state.target.retry_queue_key
        together = [
            each for each in self._unflushed_channels if each.target.retry_queue_key == unit
        ]
        if not any(each.is_error_table_channel for each in together):
            together = [state]
        for each in together:
            del self._unflushed_channels[each]
        self._full_flushes.append([each.pop_buffered_rows() for each in together])
        self._wake_queue.put(None)

    def _schedule_immediate_flush(self) -> None:
        if self._unflushed_channels and self._flush_due_at != _IMMEDIATELY:
            self._flush_due_at = _IMMEDIATELY
            self._wake_queue.put(None)

    def flush_now(self, state: ChannelState | None = None) -> int:
        """Flush immediately. Return the row sequencer of the last inserted row of `state`."""
        with self._lock:
            self._schedule_immediate_flush()
            return state.last_inserted_row_sequencer if state is not None else 0

    def wait_for_due_flush(self) -> list[ChunkEntry] | None:
        """Block until a flush is due and return its rows, or None after `stop`.

        Full channels are flushed first, alone.
        """
        while True:
            with self._lock:
                if self._is_stopped:
                    return None
                if entries := self._pop_full_flush() or self._pop_due_flush():
                    return entries
                if self._flush_due_at is not None:
                    left_s = self._flush_due_at - self._clock.monotonic()
                elif self._stops_when_drained and not (
                    self._unflushed_channels or self._full_flushes
                ):
                    return None
                else:
                    left_s = None
            with contextlib.suppress(queue.Empty):
                self._wake_queue.get(timeout=None if left_s is None else max(left_s, 0.0))

    def _pop_full_flush(self) -> list[ChunkEntry]:
        for entries in list(self._full_flushes):
            if entries[0].target.retry_queue_key in self._held_tables:
                continue
            self._full_flushes.remove(entries)
            if alive := [entry for entry in entries if entry.state.failure is None]:
                return alive
        return []

    def _pop_due_flush(self) -> list[ChunkEntry]:
        if self._flush_due_at is None or self._flush_due_at > self._clock.monotonic():
            return []
        states = [
            state
            for state in self._unflushed_channels
            if state.target.retry_queue_key not in self._held_tables
        ]
        entries = [state.pop_buffered_rows() for state in states]
        for state in states:
            del self._unflushed_channels[state]
        self._flush_due_at = None
        self._progress_condition.notify_all()
        return entries

    def record_commits(self, entries: Iterable[ChunkEntry]) -> None:
        """Record that entries are committed."""
        reports: list[tuple[ChannelState, str]] = []
        with self._lock:
            for entry in entries:
                entry.state.record_commit(entry)
                if entry.state.on_commit is not None and entry.flush_slice.offset_tokens:
                    reports.append((entry.state, entry.flush_slice.offset_tokens[-1]))
                entry.state.counts.committed_rows += entry.flush_slice.row_count
                entry.state.counts.committed_bytes += entry.flush_slice.size_bytes
                # The entry is missing after a failure, which has already released the bytes.
                if entry in entry.state.in_flight:
                    entry.state.in_flight.remove(entry)
                    self._uncommitted_bytes -= entry.flush_slice.size_bytes
            self._progress_condition.notify_all()
        for state, token in reports:
            _report_commit(state, token)
        self._call_progress_listeners()

    def fail_channels(self, states: Iterable[ChannelState], failure: ChannelFailure) -> None:
        """Invalidate channels and drop their uncommitted rows."""
        with self._lock:
            failed = [state for state in states if self._fail_channel(state, failure)]
        self._call_progress_listeners()
        for state in failed:
            if state.error is not None:
                self._settings.report_problem(state.error)

    def _call_progress_listeners(self) -> None:
        for call in self.progress_listeners:
            call()

    def _fail_channel(self, state: ChannelState, failure: ChannelFailure) -> bool:
        if state.failure is not None:
            return False
        state.failure = failure
        if self._channels.get(state.key) is state:
            self._failed_channels[state] = None
        self._unflushed_channels.pop(state, None)
        self._uncommitted_bytes -= state.buffer.pop_slice().size_bytes
        self._uncommitted_bytes -= sum(entry.flush_slice.size_bytes for entry in state.in_flight)
        state.in_flight.clear()
        self._progress_condition.notify_all()
        return True

    def record_rejected_rows(self, state: ChannelState, count: int, error: SnowmeltError) -> None:
        """Count rows that an insert rejected."""
        with self._lock:
            state.counts.refused_rows += count
            state.last_error = error

    def channel_status(self, state: ChannelState) -> ChannelStatus:
        """Return the status of a channel."""
        with self._lock:
            return state.status(to_epoch_ms(self._clock.now()))

    def client_status(self, current_error: SnowmeltError | None) -> ClientStatus:
        """Return the status of all channels and their totals."""
        with self._lock:
            now_ms = to_epoch_ms(self._clock.now())
            states = [
                state for state in self._channels.values() if not state.is_error_table_channel
            ]
            each = tuple(state.status(now_ms) for state in states)
            counts = [self._removed_counts, *(state.counts for state in states)]
            return ClientStatus(
                channels=each,
                inserted_rows=sum(count.inserted_rows for count in counts),
                refused_rows=sum(count.refused_rows for count in counts),
                committed_rows=sum(count.committed_rows for count in counts),
                inserted_bytes=sum(count.inserted_bytes for count in counts),
                committed_bytes=sum(count.committed_bytes for count in counts),
                waiting_bytes=self._uncommitted_bytes,
                max_waiting_bytes=self._settings.max_waiting_bytes,
                lag_s=max((channel.lag_s for channel in each), default=0.0),
                trouble=current_error,
            )

    def find_row_sequencer(self, state: ChannelState, token: str | None) -> int | None:
        """Return the row sequencer that commits `token` (None: all inserted rows)."""
        with self._lock:
            state.check_valid()
            return (
                state.last_inserted_row_sequencer
                if token is None
                else state.find_row_sequencer(token)
            )

    def wait_for_commit(
        self, state: ChannelState, sequencer: int, token: str | None, timeout_s: float
    ) -> None:
        """Wait until the row sequencer of a channel is committed.

        Raises:
            CommitTimeout: If the row sequencer is uncommitted after the timeout.
            ChannelFenced: If another client has opened the channel.
            ChannelInvalid: If the channel cannot commit rows.
        """
        give_up_at = self._clock.monotonic() + timeout_s
        with self._lock:
            while state.committed_sequencer < sequencer:
                state.check_valid()
                left_s = give_up_at - self._clock.monotonic()
                if left_s <= 0:
                    trouble = self._get_current_error()
                    raise CommitTimeout(
                        what="The last inserted row"
                        if token is None
                        else f"Offset token {token!r}",
                        channel=state.name,
                        seconds=f"{timeout_s:g}",
                        reason=trouble or "no request failed",
                        committed=repr(state.committed_token),
                    ) from trouble
                self._progress_condition.wait(left_s)

    def drain(self, timeout_s: float) -> int:
        """Flush, and wait until all rows are committed or dropped. Return the remaining bytes."""
        give_up_at = self._clock.monotonic() + timeout_s
        with self._lock:
            self._schedule_immediate_flush()
            while (
                self._uncommitted_bytes > 0 and (left_s := give_up_at - self._clock.monotonic()) > 0
            ):
                self._progress_condition.wait(left_s)
            return self.uncommitted_bytes

    def stop(self, failure: ChannelFailure) -> None:
        """End `wait_for_due_flush`, and invalidate open channels."""
        with self._lock:
            self._is_stopped = True
            for state in self._channels.values():
                # A channel that was closed normally stays closed, and does not become invalid.
                if (
                    not state.is_closed
                    or state.committed_sequencer < state.last_inserted_row_sequencer
                ):
                    self._fail_channel(state, failure)
            self._wake_queue.put(None)

    def stop_when_drained(self) -> None:
        """End `wait_for_due_flush` when the buffers are empty, because the client is unreferenced.

        The garbage collector calls this, possibly in a thread that holds the lock, so it must not
        block.
        """
        self._stops_when_drained = True
        self._wake_queue.put(None)

    def reset_after_fork(self, failure: ChannelFailure) -> None:
        """Drop all rows in a forked child. Replaces the lock, which another thread may have held."""
        self._reset_locks()
        self.stop(failure)


def _attach_outdated_schema(batch: InsertBatch, state: ChannelState) -> InsertBatch:
    """Return a batch with its schema attached if the schema of the channel is newer."""
    made_for = batch.schema
    if made_for is None or made_for is state.target.schema or not isinstance(batch.data, tuple):
        return batch
    (table,) = segments_to_tables([[batch.data]], made_for)
    return replace(batch, data=table)


def _report_commit(state: ChannelState, token: str) -> None:
    """Call the commit callback of a channel with a committed token. The caller must not hold the lock."""
    callback = state.on_commit
    if callback is None:
        return
    try:
        callback(token)
    except Exception:  # noqa: BLE001 - code of the application must not end the thread
        _log.exception("The commit callback of channel %s failed", state.name)
