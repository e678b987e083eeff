"""Operations of a client that its channels call: status requests, reopening and dropping."""

from __future__ import annotations

from collections.abc import Sequence

from snowmelt.client.channel_state import ChannelFailure, ChannelState
from snowmelt.client.error_table_writer import ErrorTableWriter
from snowmelt.client.flush_scheduling import FlushScheduler
from snowmelt.client.flusher import Flusher
from snowmelt.client.schema_refresh import SchemaRefresher, failure_from_status
from snowmelt.client.service_requests import ApiClient, ChannelName
from snowmelt.schema.conversion.row_converter import RowError
from snowmelt.schema.inference import RowsOrTable
from snowmelt.wire.streaming import ChannelStatusMessage, ResponseCode

REOPENED_FAILURE = ChannelFailure("it was opened again by this client", is_fenced=True)
DROPPED_FAILURE = ChannelFailure("it was dropped by this client")

_CODES_WITH_TOKEN = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.STALE_CLIENT_SEQUENCER)})


class ChannelManager:
    """The client's side that its channels see.

    `commit_timeout_s` is how long rows may take before they are committed or their channel is
    invalid, s.
    """

    def __init__(
        self,
        pending_rows: FlushScheduler,
        flusher: Flusher,
        api_client: ApiClient,
        schema_refresher: SchemaRefresher,
        error_table_writer: ErrorTableWriter,
        commit_timeout_s: float,
    ) -> None:
        self.pending_rows = pending_rows
        self.error_table_writer = error_table_writer
        self.commit_timeout_s = commit_timeout_s
        self._flusher = flusher
        self._api_client = api_client
        self._schema_refresher = schema_refresher

    def start_flusher(self) -> None:
        """See that flushes happen."""
        self._flusher.start()

    def fetch_committed_token(self, channel: ChannelState) -> str | None:
        """Ask the service for a channel's committed offset token.

        Raises:
            ChannelFenced: Somebody else has opened the channel.
            ChannelInvalid: It was dropped.
            ServiceUnavailable: The service does not answer.
        """
        status = self._api_client.fetch_statuses([channel])[0]
        if status.status_code != 0:
            self._fail_channel(channel, status)
            channel.check_valid()
        return status.persisted_offset_token

    def fetch_committed_tokens(self, channels: Sequence[ChannelState]) -> list[str | None]:
        """Ask for the committed offset tokens of several channels, with one request.

        Of a channel that somebody else has opened it is the token that the service reports.

        Raises:
            ChannelInvalid: A channel does not exist any more; all such channels are invalid then.
            ServiceUnavailable: The service does not answer.
        """
        statuses = self._api_client.fetch_statuses(channels)
        gone = [
            (channel, status)
            for channel, status in zip(channels, statuses, strict=True)
            if status.status_code not in _CODES_WITH_TOKEN
        ]
        for channel, status in gone:
            self._fail_channel(channel, status)
        for channel, _ in gone:
            channel.check_valid()
        return [status.persisted_offset_token for status in statuses]

    def try_schema_update(
        self, channel: ChannelState, errors: Sequence[RowError], data: RowsOrTable
    ) -> bool:
        """Tell whether rows that were refused for their columns may be tried again.

        Raises:
            RequestRefused: The table may not be evolved, and why (TableNotFound: by this role).
            ServiceUnavailable: The service does not answer.
        """
        return self._schema_refresher.try_schema_update(channel, errors, data)

    def _fail_channel(self, channel: ChannelState, status: ChannelStatusMessage) -> None:
        self.pending_rows.fail_channels([channel], failure_from_status(status))

    def reopen_channel(self, channel: ChannelState) -> ChannelState:
        """Open an invalid channel again, unless somebody else has, and return what it is now.

        Raises:
            ChannelFenced: Somebody else has opened the channel, or was given it by this client.
            ChannelClosed: It was closed.
            SnowmeltError: The service refused, or does not answer.
        """
        if channel.is_closed or (channel.failure is not None and channel.failure.is_fenced):
            channel.check_open()
        name = ChannelName(*channel.target.table.display_name, channel.name)
        state = self._api_client.open_channel(name, None, channel.make_converter)
        state.evolves_schema = channel.evolves_schema
        self.pending_rows.add_channel(state, REOPENED_FAILURE)
        return state

    def drop_channel(self, channel: ChannelState) -> None:
        """Drop a channel if it is still this client's.

        Raises:
            ChannelFenced: Somebody else has opened the channel.
            ChannelNotFound: Somebody has dropped it.
            ServiceUnavailable: The service does not answer.
        """
        name = ChannelName(*channel.target.table.display_name, channel.name)
        self._api_client.drop_channel(name, channel.client_sequencer, channel.target.key_id)
        self.pending_rows.fail_channels([channel], DROPPED_FAILURE)
