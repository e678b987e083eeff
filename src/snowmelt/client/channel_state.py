"""State of an open channel; checks of offset tokens and table names.

The lock of the client's `FlushScheduler` guards all mutable state.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from snowmelt.client.counters_and_metrics import ChannelCounts, ChannelStatus
from snowmelt.client.row_buffer import FlushSlice, RowBuffer, segments_to_tables
from snowmelt.errors import (
    ChannelClosed,
    ChannelFenced,
    ChannelInvalid,
    ConfigurationError,
    SnowmeltError,
    UserError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.schema.conversion.row_converter import RowConverter
    from snowmelt.schema.types import TableName, TableSchema

    # Function that creates a converter with the time zone and the rules of the channel.
    ConverterFactory = Callable[[TableSchema], RowConverter]

MAX_CHUNK_BYTES = 256 * 1024 * 1024
# Number of committed tokens that `wait_for_commit` still recognizes.
_MAX_RECENT_TOKENS = 10_000


@dataclass(frozen=True, slots=True)
class ChannelTarget:
    """The table of a channel. Only channels with equal targets share a chunk.

    For an error table, `source_key_id` is the key of the table that rejected the rows.
    """

    table: TableName
    schema: TableSchema
    key_id: int
    data_key: bytes
    source_key_id: int | None = None

    @property
    def retry_queue_key(self) -> int:
        """Key of the retry queue. A table and its error table share it."""
        return self.key_id if self.source_key_id is None else self.source_key_id


@dataclass(frozen=True, slots=True)
class ChannelFailure:
    """Reason why a channel can no longer commit rows."""

    reason: str
    is_fenced: bool = False
    cause: SnowmeltError | None = None


REOPENED_FAILURE = ChannelFailure("this client opened it again", is_fenced=True)
MOVED_FAILURE = ChannelFailure("another site is the primary now; `resume` continues there")
DROPPED_FAILURE = ChannelFailure("this client dropped it")


@dataclass(slots=True, eq=False)
class ChunkEntry:
    """The rows of one channel in a chunk.

    `target` is the channel's target when the flush took the rows, or the target that they were
    adapted to. `rejections` counts how often the service has rejected them.
    """

    state: ChannelState
    flush_slice: FlushSlice
    row_sequencer: int
    target: ChannelTarget = field(init=False)
    rejections: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.target = self.state.target

    def retarget(self, target: ChannelTarget) -> None:
        """Adapt the rows to other columns of the table."""
        self.flush_slice.segments[:] = segments_to_tables(
            self.flush_slice.segments, self.target.schema
        )
        self.target = target


class ChannelState:
    """State of one open channel."""

    def __init__(
        self,
        name: str,
        target: ChannelTarget,
        make_converter: ConverterFactory,
        sequencers: tuple[int, int],
        committed_token: str | None,
    ) -> None:
        self.name = name
        self.target = target
        self.converter = make_converter(target.schema)
        self.make_converter = make_converter
        self.client_sequencer, self.row_sequencer = sequencers
        self.committed_sequencer = self.row_sequencer
        self.committed_token = committed_token
        self.on_commit: Callable[[str], object] | None = None
        self.counts = ChannelCounts()
        self.buffer = RowBuffer(committed_token, self.counts)
        self.in_flight: deque[ChunkEntry] = deque()
        self.failure: ChannelFailure | None = None
        self.failure_reported = False
        self.is_closed = False
        # Whether to add columns of rows that are missing in the table.
        self.evolves_schema = False
        self.last_error: SnowmeltError | None = None
        # Number of rejected rows that were reported to the service.
        self.reported_rejections = 0
        # Whether the service accepts offset tokens without rows.
        self.accepts_token_without_rows = False
        # Full name of the table's error table.
        self.error_table: str | None = None
        # Whether this is the client's internal channel for an error table, which users do not see.
        self.is_error_table_channel = False
        self._recent_tokens: deque[str] = deque(maxlen=_MAX_RECENT_TOKENS)

    @property
    def key(self) -> tuple[int, str]:
        """Unique key among the open channels of a client, independent of table names."""
        return self.target.key_id, self.name

    @property
    def qualified_name(self) -> tuple[TableName, str]:
        """Current table and channel name."""
        return self.target.table, self.name

    @property
    def unreported_rejections(self) -> int | None:
        """Number of rejected rows, or None if it was reported to the service."""
        count = self.counts.refused_rows
        return count if count > self.reported_rejections else None

    @property
    def error(self) -> SnowmeltError | None:
        """The error of an invalid channel, or None if it is valid."""
        return None if self.failure is None else self._make_error(self.failure)

    def status(self, now_ms: int) -> ChannelStatus:
        """Return the status for users."""
        counts, oldest = self.counts, self._oldest_insert_ms()
        waiting_rows = self.buffer.row_count + sum(
            entry.flush_slice.row_count for entry in self.in_flight
        )
        return ChannelStatus(
            name=self.name,
            table=self.target.table,
            is_valid=self.failure is None,
            inserted_rows=counts.inserted_rows,
            refused_rows=counts.refused_rows,
            committed_rows=counts.committed_rows,
            waiting_rows=waiting_rows,
            inserted_bytes=counts.inserted_bytes,
            committed_bytes=counts.committed_bytes,
            waiting_bytes=self.waiting_bytes,
            committed_token=self.committed_token,
            lag_s=0.0 if oldest is None else max(now_ms - oldest, 0) / 1000,
            last_error=self.error or self.last_error,
        )

    @property
    def waiting_bytes(self) -> int:
        """Estimated size of uncommitted rows in bytes."""
        return self.buffer.size_bytes + sum(
            entry.flush_slice.size_bytes for entry in self.in_flight
        )

    def _oldest_insert_ms(self) -> int | None:
        if self.in_flight:
            return self.in_flight[0].flush_slice.first_insert_ms
        return self.buffer.first_insert_ms if self.buffer.row_count else None

    @property
    def last_inserted_row_sequencer(self) -> int:
        """The row sequencer that commits all rows inserted so far."""
        return self.row_sequencer + (1 if self.buffer.has_data_to_flush else 0)

    def check_open(self) -> None:
        """Check that the channel is valid and open.

        Raises:
            ChannelFenced: If another client has opened the channel.
            ChannelInvalid: If rows were rejected by the service or could not be delivered.
            ChannelClosed: If the channel is closed.
        """
        self.check_valid()
        if self.is_closed:
            raise ChannelClosed(channel=self.name)

    def check_valid(self) -> None:
        """Check that the channel is valid.

        Raises:
            ChannelFenced: If another client has opened the channel.
            ChannelInvalid: If rows were rejected by the service or could not be delivered.
        """
        if self.failure is not None:
            self.failure_reported = True
            raise self._make_error(self.failure) from self.failure.cause

    def update_schema(self, schema: TableSchema, table: TableName | None = None) -> None:
        """Use newer columns of the table, or its new name.

        Buffered rows are converted to tables with the columns that were current at their insert.
        """
        if table is not None and table != self.target.table:
            self.target = replace(self.target, table=table)
        older = self.target.schema
        if schema.version <= older.version:
            return
        self.buffer.get_segments_for_update()[:] = segments_to_tables(
            self.buffer.get_segments_for_update(), older
        )
        self.target = replace(self.target, schema=schema)
        self.converter = self.make_converter(schema)

    def pop_buffered_rows(self) -> ChunkEntry:
        """Remove and return the buffered rows, with the next row sequencer."""
        self.row_sequencer += 1
        entry = ChunkEntry(self, self.buffer.pop_slice(), self.row_sequencer)
        self.in_flight.append(entry)
        return entry

    def record_commit(self, entry: ChunkEntry) -> None:
        """Record that an entry is committed."""
        self.committed_sequencer = max(self.committed_sequencer, entry.row_sequencer)
        self.committed_token = entry.flush_slice.end_token
        self._recent_tokens.extend(entry.flush_slice.offset_tokens[-_MAX_RECENT_TOKENS:])

    def find_row_sequencer(self, token: str) -> int | None:
        """Return the row sequencer that commits a token, or None if the token is unknown.

        If all rows of a token were rejected and there is no error table, the token waits for the
        next row. Until then there is no flush with the returned sequencer.
        """
        if self.buffer.contains_token(token):
            return self.row_sequencer + 1
        for entry in reversed(self.in_flight):
            if token in entry.flush_slice.offset_tokens:
                return entry.row_sequencer
        if token == self.committed_token or token in self._recent_tokens:
            return self.committed_sequencer
        return None

    def _make_error(self, failure: ChannelFailure) -> SnowmeltError:
        committed = f"the last committed offset token is {self.committed_token!r}"
        if failure.is_fenced:
            return ChannelFenced(
                f"Channel {self.name} of {self.target.table} may no longer write: "
                f"{failure.reason}; {committed}.",
                channel=self.name,
                reason=failure.reason,
                committed=self.committed_token,
            )
        return ChannelInvalid(
            channel=f"{self.name} of {self.target.table}",
            reason=f"{failure.reason}; {committed}",
            committed=self.committed_token,
        )


def check_offset_token(token: object) -> None:
    """Check that the catalog can store an offset token. None is allowed.

    Raises:
        UserError: If the token is not a string, or contains NUL or an unpaired surrogate.
    """
    if token is None:
        return
    if not isinstance(token, str):
        raise UserError(
            f"An offset token must be a string, not {type(token).__name__}. Use str(…)."
        )
    try:
        token.encode()
    except UnicodeEncodeError:
        raise UserError(f"Offset token {token[:100]!r} is not valid Unicode.") from None
    if "\0" in token:
        raise UserError(f"Offset token {token[:100]!r} contains the character NUL.")


def split_table_name(text: str) -> tuple[str, str, str]:
    """Split `db.schema.table` into its parts as written, including quotes.

    Raises:
        ConfigurationError: If the name does not have three parts, or a quote is not closed.
    """
    parts, quoted = [""], False
    for letter in text:
        quoted ^= letter == '"'
        if letter == "." and not quoted:
            parts.append("")
        else:
            parts[-1] += letter
    if quoted or len(parts) != 3 or not all(part.strip('"') for part in parts):
        reason = (
            f'{text!r} is not of the form database.schema.table ("…" around case-sensitive names)'
        )
        raise ConfigurationError(setting="table", reason=reason)
    return parts[0], parts[1], parts[2]
