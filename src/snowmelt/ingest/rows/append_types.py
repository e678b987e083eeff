"""Converted append requests, their outcomes, and continuation tokens.

A continuation token, `<client sequencer>_<row sequencer>_<table>`, identifies the next allowed
request. The table number prevents a client from continuing in a channel of the same name in another
table. Tokens of older services do not have it. The suffix `_b` marks a channel whose client may
write bytes as base64.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from snowmelt.catalog.streaming.commit_rules import ChannelAdvance
from snowmelt.catalog.streaming.row_request_state import AppendTotals

if TYPE_CHECKING:
    from snowmelt.ingest.rows.row_converter import ConvertedRows
    from snowmelt.ingest.rows.targets import PipeTarget

_TOKEN_PATTERN = re.compile(r"([0-9]{1,18})_([0-9]{1,18})(?:_([0-9]{1,18}))?(_b)?")


class ContinuationToken(NamedTuple):
    """Identifies the next allowed request of a channel's owner. Unknown fields are None.

    `allows_base64` is True if the client that opened the channel may write binary values as base64.
    """

    client_sequencer: int
    row_sequencer: int
    table_id: int | None = None
    allows_base64: bool = False

    @property
    def next_token(self) -> ContinuationToken:
        """The token of the following request."""
        return self._replace(row_sequencer=self.row_sequencer + 1)

    def may_belong_to_table(self, table_id: int) -> bool:
        """Return True if the token may belong to this table."""
        return self.table_id in {None, table_id}

    def __str__(self) -> str:
        numbers = "_".join(str(part) for part in self[:3] if part is not None)
        return f"{numbers}_b" if self.allows_base64 else numbers


def parse_continuation_token(text: str) -> ContinuationToken | None:
    """Parse a token. Return None if the text is not a token."""
    match = _TOKEN_PATTERN.fullmatch(text)
    if match is None:
        return None
    table = match[3]
    table_id = None if table is None else int(table)
    return ContinuationToken(
        int(match[1]), int(match[2]), table_id, allows_base64=match[4] is not None
    )


@dataclass(frozen=True, slots=True)
class AppendCommitted:
    """The rows are committed, by this request or by an earlier copy of it."""

    is_repeated: bool = False


@dataclass(frozen=True, slots=True)
class SchemaOutdated:
    """The table has changed since the rows were converted. They must be converted again."""

    reason: str


AppendOutcome: TypeAlias = AppendCommitted | SchemaOutdated | Exception


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """A request after conversion.

    `continuation` is None for the elastic channel, which has no order and accepts each request ID
    once. If `needs_own_chunk` is True, the request gets a separate chunk, because a shared chunk
    was rejected.
    """

    target: PipeTarget
    channel: str
    continuation: ContinuationToken | None
    request_id: str
    start_offset_token: str | None
    end_offset_token: str | None
    converted_rows: ConvertedRows
    inserted_ms: int
    respond: Callable[[AppendOutcome], None]
    needs_own_chunk: bool = False

    @property
    def row_count(self) -> int:
        """Number of rows to store."""
        return int(self.converted_rows.table.num_rows)

    def with_own_chunk(self) -> AppendRequest:
        """Return a copy that needs a separate chunk."""
        return replace(self, needs_own_chunk=True)

    def make_channel_advance(self, token: ContinuationToken) -> ChannelAdvance:
        """Return the advance of the channel by this request."""
        return ChannelAdvance(
            self.channel,
            token.client_sequencer,
            token.row_sequencer,
            self.start_offset_token,
            self.end_offset_token,
            self.row_count,
        )

    def compute_totals(self) -> AppendTotals:
        """Return the counters for the channel."""
        refused = self.converted_rows.rejected
        return AppendTotals(
            self.target.table.table_id,
            self.channel,
            self.request_id,
            self.converted_rows.parsed_count,
            self.converted_rows.rejected_count,
            refused[-1].reason if refused else None,
            self.end_offset_token,
        )
