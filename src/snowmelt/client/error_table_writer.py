"""Write rejected rows of a client to error tables.

For each table with an error table, the client has an internal channel for the error table. It is
opened with the first channel whose `on_error` is not `abort`. One flush contains the rejected and
the accepted rows of a call, so one request and one transaction of the service commit both. While
the service accepts no rows for one of the two tables, rows of the other wait, too.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from zoneinfo import ZoneInfo

import msgspec

from snowmelt.client.channel_state import REOPENED_FAILURE, ChannelState, split_table_name
from snowmelt.client.flush_scheduling import FlushScheduler
from snowmelt.client.row_buffer import InsertBatch
from snowmelt.client.service_requests import ApiClient, ChannelName
from snowmelt.clock import Clock
from snowmelt.errors import SnowmeltError, UserError
from snowmelt.schema.conversion.row_converter import RowConverter, RowError
from snowmelt.schema.error_table import (
    SDK_PROTOCOL,
    ErrorRowOrigin,
    convert_error_table_rows,
    make_error_table_rows,
    to_error_row,
)

_log = logging.getLogger(__name__)

# Minimum time between two requests for the error table of the same table.
_REFRESH_INTERVAL_S = 1.0
# Minimum time between two reports of the rejected rows of a channel.
_REPORT_INTERVAL_S = 1.0


class ErrorTableWriter:
    """Manages the channels of one client for error tables, and reports rejected rows. Thread-safe."""

    def __init__(self, api_client: ApiClient, pending_rows: FlushScheduler, clock: Clock) -> None:
        self._api_client = api_client
        self._pending_rows = pending_rows
        self._clock = clock
        # Channels by key of the table and name of its error table.
        self._error_channels: dict[tuple[int, str], ChannelState | None] = {}
        # Time of the last request and error table, by key of the table.
        self._cached_error_tables: dict[int, tuple[float, str | None]] = {}
        # Time of the last report of rejected rows.
        self._reported_at: weakref.WeakKeyDictionary[ChannelState, float] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.Lock()

    def report_rejections(self, channel: ChannelState, *, is_last: bool = False) -> None:
        """Report the number of rows that a channel has rejected, for the console.

        Sends at most one report per second, except the last one (`is_last`). Sends none while the
        service is unreachable: every later status request contains the number.
        """
        now = self._clock.monotonic()
        with self._lock:
            reported_at = self._reported_at.get(channel)
            is_due = is_last or reported_at is None or now - reported_at >= _REPORT_INTERVAL_S
            if (
                not is_due
                or channel.unreported_rejections is None
                or not self._api_client.got_response_to_last_request
            ):
                return
            self._reported_at[channel] = now
        try:
            self._api_client.fetch_statuses([channel], timeout_s=0)
        except SnowmeltError as error:
            _log.info("The rejected rows of channel %s are not reported: %s", channel.name, error)

    def get_or_open_error_channel(self, channel: ChannelState) -> ChannelState | None:
        """Return the channel for the error table of a channel's table, or None if there is none.

        If the service does not open it, rejected rows are only reported to the caller, and the
        client logs one warning.
        """
        name = channel.error_table
        if name is None:
            return None
        key = channel.target.key_id, name
        with self._lock:
            known = self._error_channels.get(key)
            if key in self._error_channels and (known is None or known.failure is None):
                return known
            try:
                state = self._open_error_channel(*key)
            except SnowmeltError as error:
                _log.warning("Rejected rows are not kept in table %s: %s", name, error)
                if not isinstance(error, UserError):
                    return None
                state = None
            self._error_channels[key] = state
            return state

    def _open_error_channel(self, source_key_id: int, error_table: str) -> ChannelState:
        name = f'"refused:{self._api_client.prefix}:{source_key_id}"'
        typed = ChannelName(*split_table_name(error_table), name)
        state = self._api_client.open_channel(
            typed, None, partial(RowConverter, zone=ZoneInfo("UTC"), get_now=self._clock.now)
        )
        state.target = replace(state.target, source_key_id=source_key_id)
        state.is_error_table_channel = True
        self._pending_rows.add_channel(state, REOPENED_FAILURE)
        return state

    def make_batch(
        self,
        channel: ChannelState,
        errors: Sequence[RowError],
        offset_tokens: tuple[str | None, str | None],
    ) -> tuple[ChannelState, InsertBatch] | None:
        """Convert rejected rows of a call to rows of the error table. Return them with their channel."""
        self._refresh_error_table_name(channel)
        state = self.get_or_open_error_channel(channel)
        if state is None:
            return None
        origin = ErrorRowOrigin(
            str(channel.target.table),
            SDK_PROTOCOL,
            channel.name,
            self._clock.now(),
            offset_tokens[0],
            offset_tokens[1],
        )
        made = convert_error_table_rows(
            state.target.schema, make_error_table_rows(origin, map(to_error_row, errors))
        )
        return state, InsertBatch(made.table, made.row_count, made.size_bytes)

    def _refresh_error_table_name(self, channel: ChannelState) -> None:
        """Update the name of a table's error table, because the table may have been altered or restored.

        Sends at most one request per second and table, and none while the service is unreachable.
        """
        key, now = channel.target.key_id, self._clock.monotonic()
        with self._lock:
            asked_at, name = self._cached_error_tables.get(
                key, (-_REFRESH_INTERVAL_S, channel.error_table)
            )
            is_new = (
                now - asked_at >= _REFRESH_INTERVAL_S
                and self._api_client.got_response_to_last_request
            )
            if is_new:
                self._cached_error_tables[key] = now, name
        if is_new:
            try:
                status = self._api_client.fetch_statuses(
                    [channel], include_columns=True, timeout_s=0
                )[0]
            except SnowmeltError as error:
                _log.info("The error table of %s is unknown: %s", channel.target.table, error)
                return
            if isinstance(status.error_table, msgspec.UnsetType):
                return
            name = status.error_table
            with self._lock:
                self._cached_error_tables[key] = now, name
                if name is not None and self._error_channels.get((key, name), channel) is None:
                    del self._error_channels[key, name]
        channel.error_table = name

    def find_error_channel(self, channel: ChannelState) -> ChannelState | None:
        """Return the open channel for the error table, or None."""
        if channel.error_table is None:
            return None
        return self._error_channels.get((channel.target.key_id, channel.error_table))

    def drop_error_channels(self) -> None:
        """Drop the channels if the service responds. No client will open them again."""
        for state in self._error_channels.values():
            if state is None or state.failure is not None:
                continue
            where = state.target.table
            name = ChannelName(*where.display_name, state.name)
            try:
                self._api_client.drop_channel(name, state.client_sequencer, state.target.key_id)
            except SnowmeltError as error:
                _log.info("Channel %s of %s was not dropped: %s", state.name, where, error)
