"""Refresh and evolve the schema of channels after their table was altered.

A refresh does not fence clients, because the channel keeps its client sequencer. The response with
the columns reports if another client has opened the channel, and each registration checks that
again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from snowmelt.client.channel_state import ChannelFailure, ChannelState, ChunkEntry
from snowmelt.client.flush_scheduling import FlushScheduler
from snowmelt.client.row_buffer import find_schema_mismatch
from snowmelt.client.service_requests import ApiClient, schema_from_metadata
from snowmelt.client.transport import describe_status
from snowmelt.clock import Clock
from snowmelt.errors import SnowmeltError
from snowmelt.schema.conversion.row_converter import RowError
from snowmelt.schema.inference import RowsOrTable, find_unfilled_columns, infer_new_columns
from snowmelt.schema.types import TableName, TableSchema, to_internal_name
from snowmelt.wire.streaming import ChannelStatusMessage, ResponseCode

_log = logging.getLogger(__name__)

# Minimum time between two requests for the columns of the same table.
_REFRESH_INTERVAL_S = 1.0
_MAX_CACHED_SCHEMAS = 1_000


class ChannelCommitStatus(NamedTuple):
    """Last committed row sequencer of a channel, or the reason why the channel has failed."""

    row_sequencer: int | None
    failure: ChannelFailure | None


class _CachedSchema(NamedTuple):
    refreshed_at: float
    schema: TableSchema


class SchemaRefresher:
    """Updates the channels of one client to the current schema of their tables. Thread-safe."""

    def __init__(self, api_client: ApiClient, pending_rows: FlushScheduler, clock: Clock) -> None:
        self._api_client = api_client
        self._pending_rows = pending_rows
        self._clock = clock
        # Time of the last request and its columns, by key of the table and unknown columns.
        self._cached_schemas: dict[tuple[int, frozenset[str]], _CachedSchema] = {}

    def refresh_channel_schema(
        self, state: ChannelState, timeout_s: float | None = None
    ) -> ChannelCommitStatus:
        """Update a channel to the current columns and name of its table, if this client still owns it.

        Raises:
            Unsupported: If the table has a new column whose type does not support streaming.
            ServiceUnavailable: If the service does not respond.
        """
        status = self._api_client.fetch_statuses(
            [state], include_columns=True, timeout_s=timeout_s
        )[0]
        if status.status_code != 0:
            return ChannelCommitStatus(None, failure_from_status(status))
        columns, version = status.table_columns, status.schema_version
        if not isinstance(columns, msgspec.UnsetType) and isinstance(version, int):
            table = _parse_table_name(status) or state.target.table
            if table != state.target.table:
                _log.warning(
                    "Table %s was renamed to %s; channel %s continues.",
                    state.target.table,
                    table,
                    state.name,
                )
            self._pending_rows.update_schema(state, schema_from_metadata(columns, version), table)
        return ChannelCommitStatus(status.persisted_row_sequencer, None)

    def fetch_replicated_sequencers(
        self, states: Sequence[ChannelState]
    ) -> list[int | ChannelFailure | None]:
        """Return the last row sequencer of each channel that all followers have.

        A value is None if the group does not protect offset tokens: registered rows are then
        durable. A value is a `ChannelFailure` if the channel is invalid.

        Raises:
            ServiceUnavailable: If the service does not respond within 1 s.
        """
        statuses = self._api_client.fetch_statuses(states, include_replication=True, timeout_s=1.0)
        return [
            failure_from_status(status)
            if status.status_code != 0
            else (
                status.replicated_row_sequencer
                if isinstance(status.replicated_row_sequencer, int)
                else None
            )
            for status in statuses
        ]

    def try_schema_update(
        self, state: ChannelState, errors: Sequence[RowError], data: RowsOrTable
    ) -> bool:
        """Return True if rejected rows may be valid for the current table.

        The table may have new columns, wider types or fewer NOT NULL constraints. Its columns are
        requested at most once per second. A channel with schema evolution adds the columns that the
        rows need.

        Raises:
            Unsupported: If the table has a new column whose type does not support streaming.
            RequestRefused: If schema evolution of the table is not allowed.
            TableNotFound: If this role may not evolve the table.
            ServiceUnavailable: If the service does not respond.
        """
        evolved = state.evolves_schema and self._try_evolve_table(state, errors, data)
        return evolved or self._try_refresh_for_errors(state, errors)

    def _try_evolve_table(
        self, state: ChannelState, errors: Sequence[RowError], data: RowsOrTable
    ) -> bool:
        if not any(each.lacks_columns for each in errors):
            return False
        before = state.target.schema
        new, free = infer_new_columns(data, before), find_unfilled_columns(data, before)
        if not (new or free):
            return False
        answer = self._api_client.evolve_table(state.target, new, free)
        self._pending_rows.update_schema(
            state, schema_from_metadata(answer.table_columns, answer.schema_version)
        )
        return state.target.schema is not before

    def _try_refresh_for_errors(self, state: ChannelState, errors: Sequence[RowError]) -> bool:
        names = frozenset(
            to_internal_name(name) for error in errors for name in error.extra_columns or ()
        )
        if names and _has_any_column(state, names):
            return True
        before = state.target.schema
        if names:
            self._refresh_if_stale(state, names)
        elif self._api_client.got_response_to_last_request:
            # If there is no response, use the known columns.
            with suppress(SnowmeltError):
                self._refresh_if_stale(state, names, timeout_s=0.0)
        return state.target.schema is not before

    def _refresh_if_stale(
        self, state: ChannelState, column_names: frozenset[str], timeout_s: float | None = None
    ) -> None:
        """Update a channel to the columns of its table, unless requested within the last second."""
        key = state.target.key_id, column_names
        now = self._clock.monotonic()
        asked = self._cached_schemas.get(key)
        if asked is not None and now - asked.refreshed_at < _REFRESH_INTERVAL_S:
            self._pending_rows.update_schema(state, asked.schema)
            return
        if len(self._cached_schemas) >= _MAX_CACHED_SCHEMAS:
            self._cached_schemas.clear()
        self._cached_schemas[key] = _CachedSchema(now, state.target.schema)
        self.refresh_channel_schema(state, timeout_s)
        self._cached_schemas[key] = _CachedSchema(now, state.target.schema)

    def adapt_entry(self, entry: ChunkEntry) -> ChannelFailure | None:
        """Adapt rejected rows to the current columns. Return the reason if that is impossible, else None.

        Raises:
            Unsupported: If the table has a new column whose type does not support streaming.
            ServiceUnavailable: If the service does not respond.
        """
        state = entry.state
        standing = self.refresh_channel_schema(state)
        if standing.failure is not None:
            return standing.failure
        if standing.row_sequencer != entry.row_sequencer - 1:
            return ChannelFailure(
                f"data was lost: the service has its rows up to flush {standing.row_sequencer},"
                f" and had confirmed them up to {entry.row_sequencer - 1}"
            )
        current = state.target
        # Equal targets mean that the table was renamed and renamed back, so try again.
        reason = find_schema_mismatch(entry.target.schema, current.schema)
        if reason is not None:
            return ChannelFailure(
                f"its table was altered, and buffered rows no longer fit: {reason}"
            )
        entry.retarget(current)
        _log.info(
            "Channel %s of %s continues with the current columns of the table.",
            state.name,
            current.table,
        )
        return None


def failure_from_status(status: ChannelStatusMessage) -> ChannelFailure:
    """Convert a status other than 0 to a failure."""
    fenced = status.status_code == ResponseCode.STALE_CLIENT_SEQUENCER
    return ChannelFailure(describe_status(status.status_code, status.message), is_fenced=fenced)


def _parse_table_name(status: ChannelStatusMessage) -> TableName | None:
    names = (status.database, status.schema, status.table)
    found = [to_internal_name(name) for name in names if isinstance(name, str)]
    return TableName(*found) if len(found) == len(names) else None


def _has_any_column(state: ChannelState, column_names: frozenset[str]) -> bool:
    schema = state.target.schema
    return any(schema.column(name) is not None for name in column_names)
