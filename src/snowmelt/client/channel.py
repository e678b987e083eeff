"""Public class `Channel`: ordered exactly-once inserts with offset tokens."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Self

import pyarrow as pa

from snowmelt import failpoints
from snowmelt.client.channel_state import (
    DROPPED_FAILURE,
    REOPENED_FAILURE,
    ChannelState,
    check_offset_token,
)
from snowmelt.client.counters_and_metrics import ChannelStatus
from snowmelt.client.error_table_writer import ErrorTableWriter
from snowmelt.client.flush_scheduling import FlushScheduler
from snowmelt.client.flusher import Flusher
from snowmelt.client.row_buffer import InsertBatch, StoredRow
from snowmelt.client.schema_refresh import SchemaRefresher, failure_from_status
from snowmelt.client.service_requests import ApiClient, ChannelName
from snowmelt.client.settings import to_timeout_s
from snowmelt.errors import (
    ChannelFenced,
    ChannelInvalid,
    InvalidRow,
    RequestRefused,
    ServiceUnavailable,
    SnowmeltError,
    TableNotFound,
    TokenNotInserted,
)
from snowmelt.schema.chunk_types import estimate_fixed_value_bytes
from snowmelt.schema.conversion.arrow_input import pandas_to_arrow_table, to_arrow_table
from snowmelt.schema.conversion.deferred_single_rows import FastRows
from snowmelt.schema.conversion.row_converter import (
    DeferredRows,
    RowConversion,
    RowConverter,
    RowError,
)
from snowmelt.schema.notebook_tables import render_notebook_table
from snowmelt.schema.types import TableName, TableSchema

_log = logging.getLogger(__name__)

_VARIABLE_VALUE_OVERHEAD_BYTES = 4.25
# Calls with at least this many rows are packed by columns. With fewer rows, the cost per column
# exceeds the cost per row: with 10 rows per call, a row takes 0.7 µs instead of 5.0 µs
# (benchmarks/row_packing.py).
_MIN_PACKED_ROWS = 100


class OnError(StrEnum):
    """Treatment of valid rows by an insert that rejects others (specification of v1, §8)."""

    ABORT = "abort"
    CONTINUE = "continue"
    SKIP_BATCH = "skip_batch"


class InsertResult:
    """Result of an insert: the rejected rows, in order."""

    __slots__ = ("_errors",)

    def __init__(self, errors: Iterable[RowError] = ()) -> None:
        self._errors = tuple(errors)

    def __repr__(self) -> str:
        return f"InsertResult(errors={self.errors})"

    def _repr_html_(self) -> str:
        """Return the rejected rows as a table, for notebooks."""
        if not self._errors:
            return "<p>No row was rejected.</p>"
        rows = [(each.row_index, each.error, each.row) for each in self._errors]
        caption = f"Rejected rows: {len(rows):,}"
        return render_notebook_table(("row", "reason", "values"), rows, caption)

    @property
    def errors(self) -> list[RowError]:
        """The rejected rows, as a new list."""
        return list(self._errors)

    @property
    def has_errors(self) -> bool:
        """True if a row was rejected."""
        return bool(self._errors)


# Results are immutable, so all calls without rejections share one.
_NO_ERRORS = InsertResult()


@dataclass(eq=False)
class ClientComponents:
    """Components that the channels of a client share. A reference keeps the client's threads running.

    `commit_timeout_s` is the maximum time in seconds until rows are committed or their channel
    becomes invalid.
    `successor` has the components for another site after the client has moved there.
    """

    pending_rows: FlushScheduler
    flusher: Flusher
    api_client: ApiClient
    schema_refresher: SchemaRefresher
    error_table_writer: ErrorTableWriter
    commit_timeout_s: float
    successor: ClientComponents | None = None

    def find_current(self) -> ClientComponents:
        """Return the components for the site to which the client has moved last."""
        found = self
        while found.successor is not None:
            found = found.successor
        return found


def open_at_current_site(
    components: ClientComponents,
    name: ChannelName,
    make_converter: Callable[[TableSchema], RowConverter],
    *,
    offset_token: str | None = None,
    evolves_schema: bool,
) -> tuple[ClientComponents, ChannelState]:
    """Open a channel with the components for the site to which the client has moved, and return both.

    Opens it again if the client moves meanwhile, because no thread sends rows of the former components.

    Raises:
        SnowmeltError: If the service rejects the request or does not respond.
    """
    while True:
        components = components.find_current()
        try:
            state = components.api_client.open_channel(name, offset_token, make_converter)
        except ServiceUnavailable:
            if components.find_current() is components:
                raise
            continue
        state.evolves_schema = evolves_schema
        components.pending_rows.add_channel(state, REOPENED_FAILURE)
        # A move that begins later invalidates the channel.
        if components.find_current() is components:
            return components, state


class Channel:
    """An open channel of a table, which `Client.open_channel` returns. Thread-safe.

    Rows of one call are committed together and in order. As a context manager, a channel flushes,
    waits for the commit and closes at the end of the block.
    """

    def __init__(
        self, state: ChannelState, components: ClientComponents, on_error: OnError
    ) -> None:
        self._state = state
        self._pending_rows = components.pending_rows
        self._components = components
        self._on_error = on_error
        self._conversion_lock = threading.Lock()
        self._measured_converter: RowConverter | None = None

    def __repr__(self) -> str:
        state = "valid" if self.is_valid else "invalid"
        return f"<Channel {self.name} of {self.table}, {state}>"

    def _repr_html_(self) -> str:
        """Return the status of the channel as a table, for notebooks."""
        status = self.status()
        names = ("inserted_rows", "committed_rows", "waiting_rows", "refused_rows")
        rows: list[tuple[str, object]] = [
            (name.replace("_", " ").replace("refused", "rejected"), getattr(status, name))
            for name in names
        ]
        rows += [("committed token", status.committed_token), ("last error", status.last_error)]
        return render_notebook_table(("", ""), rows, f"Channel {self.name} of {self.table}")

    @property
    def state(self) -> ChannelState:
        """Internal state of the channel."""
        return self._state

    @property
    def name(self) -> str:
        """Name of the channel in the catalog."""
        return self._state.name

    @property
    def table(self) -> TableName:
        """Table that the channel writes to."""
        return self._state.target.table

    @property
    def _qualified_name(self) -> ChannelName:
        return ChannelName(*self.table.display_name, self.name)

    @property
    def on_error(self) -> OnError:
        """Treatment of valid rows by an insert that rejects others."""
        return self._on_error

    @property
    def client_sequencer(self) -> int:
        """Number that identifies this opening of the channel. Each opening has a higher number."""
        return self._state.client_sequencer

    @property
    def is_valid(self) -> bool:
        """True until the client detects that rows cannot be committed."""
        return self._state.failure is None

    @property
    def invalidation_reason(self) -> str | None:
        """Reason why the channel is invalid, or None if it is valid."""
        return self._state.failure.reason if self._state.failure else None

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return self._state.is_closed

    def insert_row(
        self, row: Mapping[str, object], offset_token: str | None = None
    ) -> InsertResult:
        """Validate a row and buffer it for the next flush.

        Args:
            row: Values by column name. Case and quotes of names are as in SQL. A missing column is
                NULL.
            offset_token: Token to commit together with the row. None: keep the channel's token.

        Returns:
            The rejected row, if it was rejected and `on_error` is not `abort`.

        Raises:
            InvalidRow: If the row is invalid and `on_error` is `abort` (InvalidValue and RowTooLarge
                are subclasses). Nothing was buffered, and the token did not change.
            UserError: If the token is not a text that can be stored.
            ChannelFenced: If another client has opened the channel.
            ChannelInvalid: If earlier rows were rejected by the service or could not be delivered.
            ChannelClosed: If the channel is closed.
            BufferFull: If the buffer stayed full for `insert_timeout`.
        """
        state = self._state
        form = state.converter.fast_checker
        # Make a fast check first, because this runs for each row.
        if offset_token is not None and not (
            offset_token.__class__ is str and offset_token.isprintable()
        ):
            check_offset_token(offset_token)
        values = form.try_check(row)
        if values is None:
            return self._convert_and_insert_row(row, offset_token)
        if self._pending_rows.insert_fast_row(state, form, values, offset_token):
            self._components.flusher.start()
        if failpoints.armed_failpoints:
            failpoints.hit_failpoint(failpoints.Failpoint.ROWS_BUFFERED)
        return _NO_ERRORS

    def _convert_and_insert_row(
        self, row: Mapping[str, object], offset_token: str | None
    ) -> InsertResult:
        self._state.check_open()
        try:
            with self._conversion_lock:
                converter = self._state.converter
                stored = converter.convert_row(row)
                size = self._estimate_row_bytes(converter, stored)
        except InvalidRow:
            return self.insert_rows([row], offset_token, start_offset_token=offset_token)
        self._append_batch(
            InsertBatch(stored, 1, size, offset_token, offset_token, converter.schema)
        )
        return _NO_ERRORS

    def insert_rows(
        self,
        rows: Iterable[Mapping[str, object]],
        offset_token: str | None = None,
        *,
        start_offset_token: str | None = None,
    ) -> InsertResult:
        """Validate rows and buffer them for the next flush, as one batch.

        Args:
            rows: Rows as for `insert_row`. Calls with thousands of rows are fastest.
            offset_token: Token to commit together with the last row. None: keep the channel's
                token. If all rows are rejected, the token is committed with the rejected rows if
                the table has an error table, or else with the next valid row.
            start_offset_token: Token of the first row, for the log of the service.

        Returns:
            The rejected rows. `on_error` determines what happens to the others.

        Raises:
            InvalidRow: If a row is invalid and `on_error` is `abort`. Nothing was buffered, and the token
                did not change.
            ChannelFenced: If another client has opened the channel.
            ChannelInvalid: If earlier rows were rejected by the service or could not be delivered.
            ChannelClosed: If the channel is closed.
            BufferFull: If the buffer stayed full for `insert_timeout`. Nothing was buffered.
        """
        self._state.check_open()
        batch = rows if isinstance(rows, list) else list(rows)
        return self._insert_many(batch, start_offset_token, offset_token)

    def insert_arrow(
        self,
        data: object,
        offset_token: str | None = None,
        *,
        start_offset_token: str | None = None,
    ) -> InsertResult:
        """Validate the rows of a table and buffer them for the next flush, as one batch.

        Columns are matched by name. Values are converted by the rules of `insert_rows`, regardless
        of their Arrow type. A stream is read completely before the insert, so pass a stream that
        exceeds the memory batch by batch.

        Args:
            data: An object with `__arrow_c_stream__`: a pyarrow Table, RecordBatch or
                RecordBatchReader, a data frame of pandas or Polars, a relation of DuckDB, or the
                result of Spark's `toArrow()`.
            offset_token: As for `insert_rows`.
            start_offset_token: As for `insert_rows`.

        Returns:
            The rejected rows, as dicts. `on_error` determines what happens to the others.

        Raises:
            TypeError: If the object has another type.
            InvalidRow: If the Arrow data is invalid, or for the reasons of `insert_rows`.
            ChannelFenced: If another client has opened the channel.
            ChannelInvalid: If earlier rows were rejected by the service or could not be delivered.
            ChannelClosed: If the channel is closed.
            BufferFull: If the buffer stayed full for `insert_timeout`. Nothing was buffered.
        """
        self._state.check_open()
        return self._insert_many(to_arrow_table(data), start_offset_token, offset_token)

    def insert_dataframe(
        self,
        frame: object,
        offset_token: str | None = None,
        *,
        start_offset_token: str | None = None,
    ) -> InsertResult:
        """Validate the rows of a data frame and buffer them for the next flush, as one batch.

        Args:
            frame: A data frame of pandas, Polars, DuckDB or Spark, or any object that
                `insert_arrow` accepts. The index of a pandas data frame is not inserted. The rows
                of Spark are collected.
            offset_token: As for `insert_rows`.
            start_offset_token: As for `insert_rows`.

        Returns:
            The rejected rows, as dicts. `on_error` determines what happens to the others.

        Raises:
            TypeError: If the object has another type.
            InvalidRow: As for `insert_arrow`.
            ChannelFenced: If another client has opened the channel.
            ChannelInvalid: If earlier rows were rejected by the service or could not be delivered.
            ChannelClosed: If the channel is closed.
            BufferFull: If the buffer stayed full for `insert_timeout`. Nothing was buffered.
        """
        convert = getattr(frame, "toArrow", None)
        if convert is not None:
            frame = convert()
        elif type(frame).__module__.partition(".")[0] == "pandas":
            frame = pandas_to_arrow_table(frame, preserve_index=False)
        return self.insert_arrow(frame, offset_token, start_offset_token=start_offset_token)

    def advance(self, offset_token: str) -> None:
        """Commit an offset token without rows, after all rows inserted so far.

        For sources whose last records have no rows. A service before 0.2 commits the token with the next
        row.

        Args:
            offset_token: The token.

        Raises:
            ChannelFenced: If another client has opened the channel.
            ChannelInvalid: If earlier rows were rejected by the service or could not be delivered.
            ChannelClosed: If the channel is closed.
        """
        self._state.check_open()
        check_offset_token(offset_token)
        batch = InsertBatch(None, 0, 0, offset_token, offset_token)
        self._pending_rows.insert(self._state, batch, None, commits_token=True)
        self._components.flusher.start()

    def call_on_commit(self, callback: Callable[[str], object] | None) -> None:
        """Call a function with the last offset token of each commit, in order.

        A commit may contain several tokens: all up to this one are committed. A thread of the client calls
        the function, so it must return soon. Its exceptions are logged.

        Args:
            callback: The function. None: call none.
        """
        self._state.on_commit = callback

    def _insert_many(
        self,
        data: list[Mapping[str, object]] | pa.Table,
        start_offset_token: str | None,
        offset_token: str | None,
    ) -> InsertResult:
        check_offset_token(start_offset_token)
        check_offset_token(offset_token)
        deferred = self._try_defer_conversion(data) if isinstance(data, list) else None
        if deferred is not None:
            self._append_batch(
                InsertBatch(
                    deferred, len(data), deferred.size_bytes, start_offset_token, offset_token
                )
            )
            return _NO_ERRORS
        abort = self._on_error is OnError.ABORT
        converted = self._convert(data, stop_at_first=abort)
        if converted.errors:
            converted = self._retry_with_updated_schema(converted, data, abort=abort)
        if converted.errors:
            lost = len(data) if abort or self._on_error is OnError.SKIP_BATCH else 0
            refused = converted.errors[0].error
            self._pending_rows.record_rejected_rows(
                self._state, lost or len(converted.errors), refused
            )
            self._components.error_table_writer.report_rejections(self._state)
        if converted.errors and abort:
            raise converted.errors[0].error
        aside = None
        if converted.errors:
            tokens = (start_offset_token, offset_token)
            aside = self._components.error_table_writer.make_batch(
                self._state, converted.errors, tokens
            )
        if not (converted.errors and self._on_error is OnError.SKIP_BATCH):
            self._append_batch(
                InsertBatch(
                    converted.table,
                    converted.row_count,
                    converted.size_bytes,
                    start_offset_token,
                    offset_token,
                ),
                aside,
            )
        elif aside is not None:
            self._append_batch(InsertBatch(None, 0, 0), aside)
        return InsertResult(converted.errors)

    def insert_all_or_rejected(
        self,
        rows: list[Mapping[str, object]],
        offset_tokens: tuple[str, str],
        on_rejected: Callable[[list[RowError]], Sequence[RowError]],
    ) -> None:
        """Insert valid rows, and store rejected rows in the error table, in one batch with the token.

        For connectors. The token is committed even if no row is valid, if the service supports
        that.

        Args:
            rows: Rows as for `insert_rows`.
            offset_tokens: Tokens of the first and the last row.
            on_rejected: Called with the rejected rows before anything is buffered. Returns the rows for
                the error table. If it raises an error, nothing is buffered.

        Raises:
            ChannelFenced: If another client has opened the channel.
            ChannelInvalid: If earlier rows were rejected by the service or could not be delivered.
            BufferFull: If the buffer stayed full for `insert_timeout`. Nothing was buffered.
        """
        self._state.check_open()
        start, end = offset_tokens
        deferred = self._try_defer_conversion(rows) if rows else None
        if deferred is not None:
            batch = InsertBatch(deferred, len(rows), deferred.size_bytes, start, end)
            errors: list[RowError] = []
        else:
            converted = self._convert(rows, stop_at_first=False)
            if converted.errors:
                converted = self._retry_with_updated_schema(converted, rows, abort=False)
            errors = converted.errors
            batch = InsertBatch(
                converted.table, converted.row_count, converted.size_bytes, start, end
            )
        stored = on_rejected(errors)
        if stored:
            self._pending_rows.record_rejected_rows(self._state, len(stored), stored[0].error)
            self._components.error_table_writer.report_rejections(self._state)
        error_batch = None
        if stored:
            error_batch = self._components.error_table_writer.make_batch(
                self._state, stored, offset_tokens
            )
        self._pending_rows.insert(self._state, batch, error_batch, commits_token=True)
        self._components.flusher.start()
        failpoints.hit_failpoint(failpoints.Failpoint.ROWS_BUFFERED)

    def status(self) -> ChannelStatus:
        """Return the status of the channel. Does not send a request."""
        return self._pending_rows.channel_status(self._state)

    def flush(self, timeout: dt.timedelta | None = None) -> None:
        """Send all inserted rows immediately, and wait until they are committed.

        Raises:
            CommitTimeout: If rows are uncommitted after `timeout`. A timeout of None means the
                limit of `give_up_after`.
            ChannelFenced: If another client has opened the channel.
            ChannelInvalid: If the rows cannot be committed.
            ChannelClosed: If the channel is closed.
        """
        self._state.check_open()
        self._wait_for_row_sequencer(self._pending_rows.flush_now(self._state), None, timeout)
        self._wait_until_rejected_rows_stored(timeout)

    def wait_for_commit(
        self, token: str | None = None, timeout: dt.timedelta | None = None
    ) -> None:
        """Wait until an offset token is committed. Does not send rows early, in contrast to `flush`.

        Args:
            token: A token that was inserted through this object. None: all inserted rows.
            timeout: Maximum wait. None: the limit of `give_up_after`.

        Raises:
            CommitTimeout: If the token is uncommitted after `timeout`.
            TokenNotInserted: If this object did not insert the token, or it is too old to track.
            ChannelFenced: If another client has opened the channel.
            ChannelInvalid: If the rows cannot be committed.
        """
        self.prepare_wait(token)(timeout)

    def prepare_wait(self, token: str | None = None) -> Callable[[dt.timedelta | None], None]:
        """Return a function that waits as `wait_for_commit` does, for the rows inserted so far.

        Args:
            token: As for `wait_for_commit`.

        Raises:
            TokenNotInserted: If this object did not insert the token, or it is too old to track.
            ChannelFenced: If another client has opened the channel.
            ChannelInvalid: If the rows cannot be committed.
        """
        sequencer = self._pending_rows.find_row_sequencer(self._state, token)
        if sequencer is None:
            raise TokenNotInserted(
                offset_token=repr(token),
                channel=self.name,
                committed=repr(self._state.committed_token),
            )
        return partial(self._wait_for_row_sequencer, sequencer, token)

    def latest_committed_offset_token(self) -> str | None:
        """Request the last committed offset token from the service. Return None if there is none.

        Raises:
            ChannelFenced: If another client has opened the channel.
            ChannelInvalid: If the channel was dropped or its rows cannot be committed.
            ServiceUnavailable: If the service does not respond.
        """
        state = self._state
        state.check_valid()
        status = self._components.api_client.fetch_statuses([state])[0]
        if status.status_code != 0:
            self._pending_rows.fail_channels([state], failure_from_status(status))
            state.check_valid()
        return status.persisted_offset_token

    def resume(self) -> str | None:
        """Return the committed offset token after which the application must continue to insert.

        Waits until rows that were inserted before are committed. Reopens an invalid channel, so
        that this object can be used again, unless another client has opened the channel.

        Raises:
            ChannelFenced: If another client has opened the channel.
            CommitTimeout: If the inserted rows were not committed in time.
            ChannelClosed: If the channel is closed.
            TableNotFound: If the table was dropped or the role lacks privileges on it.
            ServiceUnavailable: If the service does not respond.
        """
        if self._state.failure is None:
            try:
                self.flush()
            except ChannelInvalid:
                pass
            else:
                return self.latest_committed_offset_token()
        former = self._state
        if former.is_closed or (former.failure is not None and former.failure.is_fenced):
            former.check_open()
        self._components, state = open_at_current_site(
            self._components,
            self._qualified_name,
            former.make_converter,
            evolves_schema=former.evolves_schema,
        )
        self._pending_rows = self._components.pending_rows
        self._state = state
        return state.committed_token

    def close(self, *, drop: bool = False, timeout: dt.timedelta | None = None) -> None:
        """Flush, wait until all rows are committed, and close.

        A second call has no effect, except after CommitTimeout, when it continues to wait.

        Args:
            drop: Drop the channel afterwards, unless another client has opened it.
            timeout: Maximum wait. None: the limit of `give_up_after`.

        Raises:
            CommitTimeout: If rows are uncommitted after `timeout`.
            ChannelFenced: If another client has opened the channel.
            ChannelInvalid: If rows cannot be committed. An error that an earlier call has raised is
                not raised again.
        """
        state = self._state
        sequencer = self._pending_rows.stop_inserts_and_flush(state)
        try:
            if not (state.failure and state.failure_reported):
                self._wait_for_row_sequencer(sequencer, None, timeout)
                self._wait_until_rejected_rows_stored(timeout)
        finally:
            if state.failure:
                self._pending_rows.remove_channel(state)
        if state.failure is None and not drop:
            self._components.error_table_writer.report_rejections(state, is_last=True)
        if drop and state.failure is None:
            self._components.api_client.drop_channel(
                self._qualified_name, state.client_sequencer, state.target.key_id
            )
            self._pending_rows.fail_channels([state], DROPPED_FAILURE)
        self._pending_rows.remove_channel(state)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        with keeping_first_error(error, f"Channel {self.name}"):
            self.close()

    def _append_batch(
        self, batch: InsertBatch, error_table_batch: tuple[ChannelState, InsertBatch] | None = None
    ) -> None:
        self._pending_rows.insert(self._state, batch, error_table_batch)
        self._components.flusher.start()
        failpoints.hit_failpoint(failpoints.Failpoint.ROWS_BUFFERED)

    def _try_defer_conversion(
        self, rows: list[Mapping[str, object]]
    ) -> DeferredRows | FastRows | None:
        """Validate rows without converting them. Return None if a row may be invalid."""
        if 0 < len(rows) < _MIN_PACKED_ROWS:
            checked = self._state.converter.fast_checker.try_check_all(rows)
            if checked is not None:
                return checked
        with self._conversion_lock:
            return self._state.converter.try_defer(rows)

    def _convert(
        self, data: list[Mapping[str, object]] | pa.Table, *, stop_at_first: bool
    ) -> RowConversion:
        with self._conversion_lock:
            converter = self._state.converter
            if isinstance(data, list):
                return converter.convert(data, stop_at_first=stop_at_first)
            return converter.convert_arrow_table(data, stop_at_first=stop_at_first)

    def _retry_with_updated_schema(
        self, rejected: RowConversion, data: list[Mapping[str, object]] | pa.Table, *, abort: bool
    ) -> RowConversion:
        """Convert the rows again if the table now has the columns that they need."""
        try:
            if not self._components.schema_refresher.try_schema_update(
                self._state, rejected.errors, data
            ):
                return rejected
        except (RequestRefused, TableNotFound) as error:
            if abort:
                raise
            # Reject only these rows, because valid rows must not wait.
            reason = str(error.fields.get("reason", error))
            return replace(
                rejected, errors=[_add_evolution_error(each, reason) for each in rejected.errors]
            )
        return self._convert(data, stop_at_first=abort)

    def _prepare_row_size_estimate(self, converter: RowConverter) -> None:
        widths = [estimate_fixed_value_bytes(column) for column in converter.schema.columns]
        self._variable_length_positions = [
            place for place, width in enumerate(widths) if width is None
        ]
        self._fixed_row_bytes = sum(
            _VARIABLE_VALUE_OVERHEAD_BYTES if width is None else width + 0.25 for width in widths
        )
        self._measured_converter = converter

    def _estimate_row_bytes(self, converter: RowConverter, stored: StoredRow) -> int:
        if self._measured_converter is not converter:
            self._prepare_row_size_estimate(converter)
        size = self._fixed_row_bytes
        for place in self._variable_length_positions:
            value = stored[place]
            if isinstance(value, str | bytes):
                size += len(value)
        return int(size)

    def _wait_until_rejected_rows_stored(self, timeout: dt.timedelta | None) -> None:
        """Wait until the rejected rows are in the error table, or cannot be stored there."""
        state = self._components.error_table_writer.find_error_channel(self._state)
        if state is None or self._on_error is OnError.ABORT:
            return
        seconds = to_timeout_s(timeout, self._components.commit_timeout_s)
        try:
            self._pending_rows.wait_for_commit(
                state, self._pending_rows.flush_now(state), None, seconds
            )
        except (ChannelInvalid, ChannelFenced) as error:
            _log.warning("Rows that channel %s rejected were not kept: %s", self.name, error)

    def _wait_for_row_sequencer(
        self, sequencer: int, token: str | None, timeout: dt.timedelta | None
    ) -> None:
        seconds = to_timeout_s(timeout, self._components.commit_timeout_s)
        self._pending_rows.wait_for_commit(self._state, sequencer, token, seconds)


def _add_evolution_error(row_error: RowError, reason: str) -> RowError:
    """Add the reason why schema evolution cannot add the columns of a row to its error."""
    if not row_error.lacks_columns:
        return row_error
    error = InvalidRow(f"{row_error.error}; {reason}", **row_error.error.fields)
    return replace(row_error, error=error)


@contextlib.contextmanager
def keeping_first_error(error: BaseException | None, label: str) -> Iterator[None]:
    """Log an error of closing if another exception is being raised."""
    try:
        yield
    except SnowmeltError as closing:
        if error is None:
            raise
        _log.warning("%s was not closed cleanly: %s", label, closing)
