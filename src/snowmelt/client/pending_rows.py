"""Rows that are inserted and not committed yet: what waits for a flush, and who waits for whom.

One lock guards every channel of a client. Inserts hold it for microseconds: conversion happens
before, encoding and requests after. Nothing polls: without rows, nobody wakes up.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from snowmelt.client.chunk_planner import MAX_CHUNK_BYTES
from snowmelt.client.row_buffer import LARGE, Batch, as_tables
from snowmelt.client.status import ClientStatus, Counts
from snowmelt.clock import Clock, to_epoch_ms
from snowmelt.errors import BufferFull, CommitTimeout, SnowmeltError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from snowmelt.client.channel_state import ChannelState, Entry, Failure
    from snowmelt.client.settings import ClientSettings
    from snowmelt.client.status import ChannelStatus
    from snowmelt.schema.conversion.fast_rows import FastRowChecker, Values
    from snowmelt.schema.types import TableName, TableSchema

# A channel's buffer of this size is a flush by itself, far below the 64 MiB that the specification
# of v1, §3.6, allows: so a fast loader's rows are encoded while it goes on, not after its last one,
# and what encoding takes stays small however many rows wait.
MAX_CHANNEL_BYTES = 16 * 1024 * 1024

_AT_ONCE = -math.inf


class Backlog:
    """The open channels of one client and their rows; thread-safe."""

    def __init__(
        self, settings: ClientSettings, trouble: Callable[[], SnowmeltError | None]
    ) -> None:
        self._settings = settings
        self._clock: Clock = settings.clock
        self._most_bytes = settings.max_waiting_bytes
        self._unhindered = min(self._most_bytes, MAX_CHUNK_BYTES)
        self._lag_s = settings.max_client_lag.total_seconds()
        self._trouble = trouble
        self._states: dict[tuple[int, str], ChannelState] = {}
        # Those of them that have failed.
        self._failed: dict[ChannelState, None] = {}
        self._dirty: dict[ChannelState, None] = {}
        self._full: deque[list[Entry]] = deque()
        # Tables, by `Target.unit`, that take nothing now: their rows gather here.
        self._held: set[int] = set()
        # What those may fill of the memory, so that rows for other tables find room.
        self._held_bytes = self._most_bytes // 2
        self._due_at: float | None = None
        self._bytes = 0
        self._detached = Counts()
        self._stopped = False
        self._orphaned = False
        self._new_lock()

    def _new_lock(self) -> None:
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)
        # What wakes `take`: unlike a condition, it may be used by the garbage collector anywhere.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()

    @property
    def uncommitted_bytes(self) -> int:
        """Estimated bytes of rows that are buffered or in flight."""
        return max(self._bytes, 0)

    def states(self) -> list[ChannelState]:
        """Return the open channels, in the order of opening."""
        with self._lock:
            return list(self._states.values())

    def attach(self, state: ChannelState, replaced: Failure) -> None:
        """Add a channel just opened; an older object of the same channel fails at once."""
        with self._lock:
            other = self._states.get(state.key)
            if other is not None and other.client_sequencer > state.client_sequencer:
                # Two threads opened it, and the answers overtook each other.
                self._fail(state, replaced)
                return
            if other is not None:
                self._fail(other, replaced)
                self._remove(other)
            # Of a table that was dropped, and created again since.
            for failed in [each for each in self._failed if each.place == state.place]:
                self._remove(failed)
            self._states[state.key] = state

    def detach(self, state: ChannelState) -> None:
        """Forget a channel that is closed."""
        with self._lock:
            if self._states.get(state.key) is state:
                self._remove(state)

    def _remove(self, state: ChannelState) -> None:
        del self._states[state.key]
        self._failed.pop(state, None)
        if not state.is_aside:
            self._detached.add(state.counts)

    def close_channel(self, state: ChannelState) -> int:
        """Take no more rows, flush at once; return the row sequencer to wait for."""
        with self._lock:
            state.closed = True
            state.buffer.rest()
            if state.buffer.is_due:
                self._hurry()
            return state.inserted_sequencer

    def insert(
        self,
        state: ChannelState,
        batch: Batch,
        aside: tuple[ChannelState, Batch] | None = None,
    ) -> None:
        """Append a batch to its channel, whole, waiting while too much is uncommitted.

        What goes `aside` to another channel, refused rows, is taken by the same flush; if that
        channel has failed meanwhile, it is not kept. The offset token goes with it, even if no row
        was good: a source that goes on behind it never brings them again.

        Raises:
            BufferFull: It did not become less in time; nothing of the batch was kept.
            ChannelClosed: Closed meanwhile.
            ChannelFenced: Another client has opened the channel.
            ChannelInvalid: The channel cannot commit rows any more.
        """
        with self._lock:
            state.check()
            size_bytes = batch.size_bytes + (0 if aside is None else aside[1].size_bytes)
            if batch.rows or aside is not None:
                self._admit(state, size_bytes)
            self._add(state, batch)
            touched = [state] if batch.rows else []
            if aside is not None and aside[0].failure is None:
                self._add(*aside)
                touched.append(aside[0])
                if not batch.rows and batch.end_token is not None and state.takes_rowless:
                    state.buffer.send(to_epoch_ms(self._clock.now()))
                    touched.append(state)
            self._schedule(touched)

    def _add(self, state: ChannelState, batch: Batch) -> None:
        batch = _settled(batch, state)
        if batch.rows:
            self._bytes += batch.size_bytes
        state.buffer.add(batch, to_epoch_ms(self._clock.now()))

    def insert_quick(
        self, state: ChannelState, form: FastRowChecker, values: Values, token: str | None
    ) -> bool:
        """Append a row that was only checked; otherwise as `insert`.

        Returns whether it was looked at, as the first of a flush is.
        """
        size_bytes = values[-1]
        with self._lock:
            buffer = state.buffer
            run, waiting = buffer.run, self._bytes + size_bytes
            if (
                run is None
                or run.form is not form
                or len(run.items) >= buffer.look_at
                or size_bytes > LARGE
                or waiting > self._unhindered
            ):
                self._insert_looking(state, form, values, token)
                return True
            # In this order: Ctrl-C in between must not leave bytes that nobody gives back.
            run.items.extend(values)
            self._bytes = waiting
            if token is not None:
                run.tokens.append(token)
            return False

    def _insert_looking(
        self, state: ChannelState, form: FastRowChecker, values: Values, token: str | None
    ) -> None:
        """Append a row, and look at what costs as much as the rest: state, limits and clock."""
        state.check()
        size_bytes = values[-1]
        self._admit(state, size_bytes)
        self._bytes += size_bytes
        state.buffer.add_quick(form, values, token, to_epoch_ms(self._clock.now()))
        self._schedule([state])

    def adopt(
        self, state: ChannelState, schema: TableSchema, table: TableName | None = None
    ) -> None:
        """Let a channel go on with newer columns of its table, or under its table's name of now."""
        with self._lock:
            state.adopt(schema, table)

    def _admit(self, state: ChannelState, size_bytes: int) -> None:
        if not self._is_full(state, size_bytes):
            return
        waits = self._settings.when_full == "wait"
        seconds = self._settings.insert_timeout.total_seconds() if waits else 0.0
        give_up_at = self._clock.monotonic() + seconds
        while self._is_full(state, size_bytes):
            self._hurry()
            left_s = give_up_at - self._clock.monotonic()
            if left_s <= 0:
                trouble = self._trouble()
                raise BufferFull(
                    channel=state.name,
                    bytes=self._bytes,
                    seconds=seconds,
                    reason=trouble or "rows are inserted faster than they can be written",
                ) from trouble
            self._moved.wait(left_s)
            state.check()

    def _is_full(self, state: ChannelState, size_bytes: int) -> bool:
        """Tell whether a batch must wait: for memory, or for a chunk that has room for it.

        Whatever its size, a batch is taken when nothing else waits: a call is never torn.
        """
        held = state.buffer.size_bytes
        return (
            (self._bytes > 0 and self._bytes + size_bytes > self._most_bytes)
            or (held > 0 and held + size_bytes > MAX_CHUNK_BYTES)
            or self._is_share_used(state, size_bytes)
        )

    def _is_share_used(self, state: ChannelState, size_bytes: int) -> bool:
        """Tell whether tables that take nothing now have all the memory that is for them."""
        if state.target.unit not in self._held or self._bytes + size_bytes <= self._held_bytes:
            return False
        states = [each for each in self._states.values() if each.target.unit in self._held]
        waiting = sum(each.waiting_bytes for each in states)
        return waiting > 0 and waiting + size_bytes > self._held_bytes

    def hold(self, unit: int) -> None:
        """Let rows of a table gather in its channels' buffers, until it is released."""
        with self._lock:
            self._held.add(unit)

    def release(self, unit: int) -> None:
        """Flush a table's rows again, at once."""
        with self._lock:
            self._held.discard(unit)
            self._hurry()
            self._wake.put(None)
            self._moved.notify_all()

    def _schedule(self, states: Sequence[ChannelState]) -> None:
        self._dirty.update(dict.fromkeys(states))
        for state in states:
            if state in self._dirty and state.buffer.size_bytes >= MAX_CHANNEL_BYTES:
                self._fill_up(state)
            elif self._due_at is None and state.target.unit not in self._held:
                self._due_at = self._clock.monotonic() + self._lag_s
                self._wake.put(None)

    def _fill_up(self, state: ChannelState) -> None:
        """Take what a channel has filled up; with refused rows of its table all that came with them."""
        unit = state.target.unit
        together = [each for each in self._dirty if each.target.unit == unit]
        if not any(each.is_aside for each in together):
            together = [state]
        for each in together:
            del self._dirty[each]
        self._full.append([each.take() for each in together])
        self._wake.put(None)

    def _hurry(self) -> None:
        if self._dirty and self._due_at != _AT_ONCE:
            self._due_at = _AT_ONCE
            self._wake.put(None)

    def hurry(self, state: ChannelState | None = None) -> int:
        """Flush at once; return the row sequencer that covers what `state` has inserted."""
        with self._lock:
            self._hurry()
            return state.inserted_sequencer if state is not None else 0

    def take(self) -> list[Entry] | None:
        """Wait until a flush is due and return its rows; None at the end.

        What a channel has filled up comes by itself, before anything else.
        """
        while True:
            with self._lock:
                if self._stopped:
                    return None
                if entries := self._filled_up() or self._due():
                    return entries
                if self._due_at is not None:
                    left_s = self._due_at - self._clock.monotonic()
                elif self._orphaned and not (self._dirty or self._full):
                    return None
                else:
                    left_s = None
            with contextlib.suppress(queue.Empty):
                self._wake.get(timeout=None if left_s is None else max(left_s, 0.0))

    def _filled_up(self) -> list[Entry]:
        for entries in list(self._full):
            if entries[0].target.unit in self._held:
                continue
            self._full.remove(entries)
            if alive := [entry for entry in entries if entry.state.failure is None]:
                return alive
        return []

    def _due(self) -> list[Entry]:
        if self._due_at is None or self._due_at > self._clock.monotonic():
            return []
        states = [state for state in self._dirty if state.target.unit not in self._held]
        entries = [state.take() for state in states]
        for state in states:
            del self._dirty[state]
        self._due_at = None
        self._moved.notify_all()
        return entries

    def commit(self, entries: Iterable[Entry]) -> None:
        """Note that entries are committed."""
        with self._lock:
            for entry in entries:
                entry.state.commit(entry)
                entry.state.counts.committed_rows += entry.portion.rows
                entry.state.counts.committed_bytes += entry.portion.size_bytes
                # Absent after a failure, which has given the bytes back already.
                if entry in entry.state.in_flight:
                    entry.state.in_flight.remove(entry)
                    self._bytes -= entry.portion.size_bytes
            self._moved.notify_all()

    def fail(self, states: Iterable[ChannelState], failure: Failure) -> None:
        """Invalidate channels; their uncommitted rows are given up."""
        with self._lock:
            failed = [state for state in states if self._fail(state, failure)]
        for state in failed:
            if state.error is not None:
                self._settings.tell(state.error)

    def _fail(self, state: ChannelState, failure: Failure) -> bool:
        if state.failure is not None:
            return False
        state.failure = failure
        if self._states.get(state.key) is state:
            self._failed[state] = None
        self._dirty.pop(state, None)
        self._bytes -= state.buffer.take().size_bytes
        self._bytes -= sum(entry.portion.size_bytes for entry in state.in_flight)
        state.in_flight.clear()
        self._moved.notify_all()
        return True

    def refused(self, state: ChannelState, count: int, error: SnowmeltError) -> None:
        """Note that rows were refused when they were inserted."""
        with self._lock:
            state.counts.refused_rows += count
            state.last_error = error

    def status(self, state: ChannelState) -> ChannelStatus:
        """Return how a channel is doing."""
        with self._lock:
            return state.status(to_epoch_ms(self._clock.now()))

    def client_status(self, trouble: SnowmeltError | None) -> ClientStatus:
        """Return how all are doing."""
        with self._lock:
            now_ms = to_epoch_ms(self._clock.now())
            states = [state for state in self._states.values() if not state.is_aside]
            each = tuple(state.status(now_ms) for state in states)
            counts = [self._detached, *(state.counts for state in states)]
            return ClientStatus(
                channels=each,
                inserted_rows=sum(count.inserted_rows for count in counts),
                refused_rows=sum(count.refused_rows for count in counts),
                committed_rows=sum(count.committed_rows for count in counts),
                inserted_bytes=sum(count.inserted_bytes for count in counts),
                committed_bytes=sum(count.committed_bytes for count in counts),
                waiting_bytes=self._bytes,
                max_waiting_bytes=self._settings.max_waiting_bytes,
                lag_s=max((channel.lag_s for channel in each), default=0.0),
                trouble=trouble,
            )

    def target_of(self, state: ChannelState, token: str | None) -> int | None:
        """Return the row sequencer that commits `token` (None: everything inserted)."""
        with self._lock:
            state.check_valid()
            return state.inserted_sequencer if token is None else state.sequencer_of(token)

    def wait(
        self, state: ChannelState, sequencer: int, token: str | None, timeout_s: float
    ) -> None:
        """Return when the channel's row sequencer is committed.

        Raises:
            CommitTimeout: Not in time.
            ChannelFenced: Another client has opened the channel.
            ChannelInvalid: The channel cannot commit rows any more.
        """
        give_up_at = self._clock.monotonic() + timeout_s
        with self._lock:
            while state.committed_sequencer < sequencer:
                state.check_valid()
                left_s = give_up_at - self._clock.monotonic()
                if left_s <= 0:
                    raise CommitTimeout(
                        offset_token=repr(token),
                        channel=state.name,
                        seconds=f"{timeout_s:g}",
                        committed=repr(state.committed_token),
                    ) from self._trouble()
                self._moved.wait(left_s)

    def drain(self, timeout_s: float) -> int:
        """Flush at once, wait for all to be committed or given up; return the bytes left over."""
        give_up_at = self._clock.monotonic() + timeout_s
        with self._lock:
            self._hurry()
            while self._bytes > 0 and (left_s := give_up_at - self._clock.monotonic()) > 0:
                self._moved.wait(left_s)
            return self.uncommitted_bytes

    def stop(self, failure: Failure) -> None:
        """End `take`, and invalidate whatever is still open."""
        with self._lock:
            self._stopped = True
            for state in self._states.values():
                # A channel that was closed in good order stays closed, not invalid.
                if not state.closed or state.committed_sequencer < state.inserted_sequencer:
                    self._fail(state, failure)
            self._wake.put(None)

    def orphan(self) -> None:
        """Nobody can insert any more: let `take` end once nothing is buffered.

        Called by the garbage collector, perhaps in a thread that holds the lock: never waits.
        """
        self._orphaned = True
        self._wake.put(None)

    def abandon(self, failure: Failure) -> None:
        """Give everything up in a forked child, where the lock may be held by nobody."""
        self._new_lock()
        self.stop(failure)


def _settled(batch: Batch, state: ChannelState) -> Batch:
    """Return a batch that says for itself which columns it is for, if the channel's are newer."""
    made_for = batch.schema
    if made_for is None or made_for is state.target.schema or not isinstance(batch.part, tuple):
        return batch
    (table,) = as_tables([[batch.part]], made_for)
    return replace(batch, part=table)
