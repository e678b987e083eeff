"""What a client does for its channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.client.api import Calls, ChannelName
from snowmelt.client.channel_state import Failure
from snowmelt.client.schema_refresh import Columns, lost
from snowmelt.wire.streaming import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.client.channel_state import ChannelState
    from snowmelt.client.error_table_writer import Asides
    from snowmelt.client.flusher import Flusher
    from snowmelt.client.pending_rows import Backlog
    from snowmelt.schema.conversion.row_converter import RowError
    from snowmelt.schema.inference import RowsOrTable
    from snowmelt.wire.streaming import ChannelStatusMessage

REOPENED = Failure("it was opened again by this client", fenced=True)
DROPPED = Failure("it was dropped by this client")

_WITH_TOKEN = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.STALE_CLIENT_SEQUENCER)})


class Desk:
    """The client's side that its channels see.

    `commit_timeout_s` is how long rows may take before they are committed or their channel is
    invalid, s.
    """

    def __init__(
        self,
        backlog: Backlog,
        flusher: Flusher,
        calls: Calls,
        columns: Columns,
        asides: Asides,
        commit_timeout_s: float,
    ) -> None:
        self.backlog = backlog
        self.asides = asides
        self.commit_timeout_s = commit_timeout_s
        self._flusher = flusher
        self._calls = calls
        self._columns = columns

    def start(self) -> None:
        """See that flushes happen."""
        self._flusher.start()

    def committed_token(self, channel: ChannelState) -> str | None:
        """Ask the service for a channel's committed offset token.

        Raises:
            ChannelFenced: Somebody else has opened the channel.
            ChannelInvalid: It was dropped.
            ServiceUnavailable: The service does not answer.
        """
        status = self._calls.statuses([channel])[0]
        if status.status_code != 0:
            self._lost(channel, status)
            channel.check_valid()
        return status.persisted_offset_token

    def committed_tokens(self, channels: Sequence[ChannelState]) -> list[str | None]:
        """Ask for the committed offset tokens of several channels, with one request.

        Of a channel that somebody else has opened it is the token that the service reports.

        Raises:
            ChannelInvalid: A channel does not exist any more; all such channels are invalid then.
            ServiceUnavailable: The service does not answer.
        """
        statuses = self._calls.statuses(channels)
        gone = [
            (channel, status)
            for channel, status in zip(channels, statuses, strict=True)
            if status.status_code not in _WITH_TOKEN
        ]
        for channel, status in gone:
            self._lost(channel, status)
        for channel, _ in gone:
            channel.check_valid()
        return [status.persisted_offset_token for status in statuses]

    def follows(
        self, channel: ChannelState, errors: Sequence[RowError], given: RowsOrTable
    ) -> bool:
        """Tell whether rows that were refused for their columns may be tried again.

        Raises:
            RequestRefused: The table may not be evolved, and why (TableNotFound: by this role).
            ServiceUnavailable: The service does not answer.
        """
        return self._columns.follow(channel, errors, given)

    def _lost(self, channel: ChannelState, status: ChannelStatusMessage) -> None:
        self.backlog.fail([channel], lost(status))

    def reopen(self, channel: ChannelState) -> ChannelState:
        """Open an invalid channel again, unless somebody else has, and return what it is now.

        Raises:
            ChannelFenced: Somebody else has opened the channel, or was given it by this client.
            ChannelClosed: It was closed.
            SnowmeltError: The service refused, or does not answer.
        """
        if channel.closed or (channel.failure is not None and channel.failure.fenced):
            channel.check()
        name = ChannelName(*channel.target.table.display_name, channel.name)
        state = self._calls.open(name, None, channel.converter_for)
        state.evolves = channel.evolves
        self.backlog.attach(state, REOPENED)
        return state

    def drop(self, channel: ChannelState) -> None:
        """Drop a channel if it is still this client's.

        Raises:
            ChannelFenced: Somebody else has opened the channel.
            ChannelNotFound: Somebody has dropped it.
            ServiceUnavailable: The service does not answer.
        """
        name = ChannelName(*channel.target.table.display_name, channel.name)
        self._calls.drop(name, channel.client_sequencer, channel.target.key_id)
        self.backlog.fail([channel], DROPPED)
