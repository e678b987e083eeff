"""What a channel does when its table was altered: ask for the columns of now, and go on.

Nobody is fenced for it: the channel stays the opening it is, and whether it still is the current
one is told with the columns and checked again with each registration.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from snowmelt.client.api import schema_of
from snowmelt.client.channel_state import Failure
from snowmelt.client.row_buffer import misfit
from snowmelt.client.transport import reason_of
from snowmelt.errors import SnowmeltError
from snowmelt.schema.inference import find_unfilled_columns, infer_new_columns
from snowmelt.schema.types import TableName, internal_name
from snowmelt.wire.streaming import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.client.api import Calls
    from snowmelt.client.channel_state import ChannelState, Entry
    from snowmelt.client.pending_rows import Backlog
    from snowmelt.clock import Clock
    from snowmelt.schema.conversion.row_converter import RowError
    from snowmelt.schema.inference import RowsOrTable
    from snowmelt.schema.types import TableSchema
    from snowmelt.wire.streaming import ChannelStatusMessage

_log = logging.getLogger(__name__)

# How long a table is not asked again whether it still refuses such rows.
_ASKED_AGAIN_S = 1.0
_MAX_REMEMBERED = 1_000


class Standing(NamedTuple):
    """How a channel stands with the service: its last committed row sequencer, or its end."""

    row_sequencer: int | None
    failure: Failure | None


class _Asked(NamedTuple):
    at: float
    schema: TableSchema


class Columns:
    """Keeps the channels of one client up with their tables; thread-safe."""

    def __init__(self, calls: Calls, backlog: Backlog, clock: Clock) -> None:
        self._calls = calls
        self._backlog = backlog
        self._clock = clock
        # By key, which is a table's, and unknown columns: when it was asked last, and its columns then.
        self._asked: dict[tuple[int, frozenset[str]], _Asked] = {}

    def refresh(self, state: ChannelState, timeout_s: float | None = None) -> Standing:
        """Let a channel go on with its table as it is now, if it is still its owner's.

        That is its columns, and what it is called.

        Raises:
            Unsupported: The table has got a column that cannot be streamed into.
            ServiceUnavailable: The service does not answer.
        """
        status = self._calls.statuses([state], with_columns=True, timeout_s=timeout_s)[0]
        if status.status_code != 0:
            return Standing(None, lost(status))
        columns, version = status.table_columns, status.schema_version
        if not isinstance(columns, msgspec.UnsetType) and isinstance(version, int):
            table = _name_of(status) or state.target.table
            if table != state.target.table:
                _log.warning(
                    "Table %s is called %s now; channel %s goes on there.",
                    state.target.table,
                    table,
                    state.name,
                )
            self._backlog.adopt(state, schema_of(columns, version), table)
        return Standing(status.persisted_row_sequencer, None)

    def follow(self, state: ChannelState, errors: Sequence[RowError], given: RowsOrTable) -> bool:
        """Tell whether rows that were refused may be tried again.

        The table's columns are asked for, at most once a second for the same ones: there may be
        more of them by now, of larger types, or without NOT NULL. A channel that evolves its table
        adds what the rows have.

        Raises:
            Unsupported: The table has got a column that cannot be streamed into.
            RequestRefused: The table may not be evolved, and why (TableNotFound: by this role).
            ServiceUnavailable: The service does not answer.
        """
        evolved = state.evolves and self._evolve(state, errors, given)
        return evolved or self._have(state, errors)

    def _evolve(self, state: ChannelState, errors: Sequence[RowError], given: RowsOrTable) -> bool:
        if not any(each.lacks_columns for each in errors):
            return False
        before = state.target.schema
        new, free = infer_new_columns(given, before), find_unfilled_columns(given, before)
        if not (new or free):
            return False
        answer = self._calls.evolve(state.target, new, free)
        self._backlog.adopt(state, schema_of(answer.table_columns, answer.schema_version))
        return state.target.schema is not before

    def _have(self, state: ChannelState, errors: Sequence[RowError]) -> bool:
        names = frozenset(
            internal_name(name) for error in errors for name in error.extra_columns or ()
        )
        if names and _known(state, names):
            return True
        before = state.target.schema
        if names:
            self._look(state, names)
        elif self._calls.is_answered:
            # Such rows are refused by what is known where the service cannot be asked.
            with suppress(SnowmeltError):
                self._look(state, names, timeout_s=0.0)
        return state.target.schema is not before

    def _look(
        self, state: ChannelState, names: frozenset[str], timeout_s: float | None = None
    ) -> None:
        """Let a channel go on with its table's columns as they were less than a second ago."""
        key = state.target.key_id, names
        now = self._clock.monotonic()
        asked = self._asked.get(key)
        if asked is not None and now - asked.at < _ASKED_AGAIN_S:
            self._backlog.adopt(state, asked.schema)
            return
        if len(self._asked) >= _MAX_REMEMBERED:
            self._asked.clear()
        self._asked[key] = _Asked(now, state.target.schema)
        self.refresh(state, timeout_s)
        self._asked[key] = _Asked(now, state.target.schema)

    def fit(self, entry: Entry) -> Failure | None:
        """Bring rows that the service did not take into the columns of now; say why if not.

        Raises:
            Unsupported: The table has got a column that cannot be streamed into.
            ServiceUnavailable: The service does not answer.
        """
        state = entry.state
        standing = self.refresh(state)
        if standing.failure is not None:
            return standing.failure
        if standing.row_sequencer != entry.row_sequencer - 1:
            return Failure(
                f"data was lost: the service has its rows up to flush {standing.row_sequencer},"
                f" and had confirmed them up to {entry.row_sequencer - 1}"
            )
        current = state.target
        # Equal where a name was given away and came back since; once more, then.
        reason = misfit(entry.target.schema, current.schema)
        if reason is not None:
            return Failure(
                f"its table was altered so that rows inserted before do not fit: {reason}"
            )
        entry.adopt(current)
        _log.info(
            "Channel %s of %s goes on with the table as it is now.",
            state.name,
            current.table,
        )
        return None


def lost(status: ChannelStatusMessage) -> Failure:
    """Return what a status other than 0 means for the channel."""
    fenced = status.status_code == ResponseCode.STALE_CLIENT_SEQUENCER
    return Failure(reason_of(status.status_code, status.message), fenced=fenced)


def _name_of(status: ChannelStatusMessage) -> TableName | None:
    names = (status.database, status.schema, status.table)
    found = [internal_name(name) for name in names if isinstance(name, str)]
    return TableName(*found) if len(found) == len(names) else None


def _known(state: ChannelState, names: frozenset[str]) -> bool:
    schema = state.target.schema
    return any(schema.column(name) is not None for name in names)
