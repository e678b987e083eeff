"""One request of rows on its way into the catalog, and what became of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from snowmelt.catalog.streaming.commit_rules import ChannelAdvance
from snowmelt.catalog.streaming.row_channels import AppendTotals, EmptyAppend

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.ingest.rows.row_converter import Converted
    from snowmelt.ingest.rows.targets import Target

# --- Continuation tokens: `<client sequencer>_<row sequencer>_<table>` of the request that may come next.
#
# With the table's number nobody gets into a channel of the same name and counts in a table that has
# the name now. Services before this gave tokens without it. `_b` at the end says that the channel's
# client may write bytes as base64.

_TOKEN = re.compile(r"([0-9]{1,18})_([0-9]{1,18})(?:_([0-9]{1,18}))?(_b)?")


class Continuation(NamedTuple):
    """Which owner's which request this is, in which table's channel; None is not known.

    `base64` says that bytes may come so: the channel was opened by a client that was not told to
    write digits.
    """

    client_sequencer: int
    row_sequencer: int
    table_id: int | None = None
    base64: bool = False

    @property
    def following(self) -> Continuation:
        """What the same owner sends next."""
        return self._replace(row_sequencer=self.row_sequencer + 1)

    def is_of(self, table_id: int) -> bool:
        """Tell whether it may be of this table."""
        return self.table_id in {None, table_id}

    def __str__(self) -> str:
        numbers = "_".join(str(part) for part in self[:3] if part is not None)
        return f"{numbers}_b" if self.base64 else numbers


def parse_continuation(text: str) -> Continuation | None:
    """Return what a token says, None when it was never given."""
    match = _TOKEN.fullmatch(text)
    if match is None:
        return None
    table = match[3]
    table_id = None if table is None else int(table)
    return Continuation(int(match[1]), int(match[2]), table_id, base64=match[4] is not None)


@dataclass(frozen=True, slots=True)
class Committed:
    """The rows are committed, by this request or an earlier copy of it."""

    is_repeated: bool = False


@dataclass(frozen=True, slots=True)
class Outdated:
    """The table is not what the rows were converted for; convert them again."""

    reason: str


Outcome: TypeAlias = Committed | Outdated | Exception


@dataclass(frozen=True, slots=True)
class Append:
    """A request after conversion.

    `continuation` None is the elastic channel: no order, each request id once. With `is_alone`
    it shares no chunk, since one that it shared was refused.
    """

    target: Target
    channel: str
    continuation: Continuation | None
    request_id: str
    start_offset_token: str | None
    end_offset_token: str | None
    converted: Converted
    inserted_ms: int
    respond: Callable[[Outcome], None]
    is_alone: bool = False

    @property
    def rows(self) -> int:
        """Rows to store."""
        return int(self.converted.table.num_rows)

    def alone(self) -> Append:
        """Return the same for a chunk of its own."""
        return replace(self, is_alone=True)

    def chunk_advance(self, at: Continuation) -> ChannelAdvance:
        """Return how its chunk moves the channel on."""
        return ChannelAdvance(
            self.channel,
            at.client_sequencer,
            at.row_sequencer,
            self.start_offset_token,
            self.end_offset_token,
            self.rows,
        )

    def advance(self, at: Continuation) -> EmptyAppend:
        """Return how it moves the channel on without a chunk."""
        return EmptyAppend(
            self.target.table.table_id,
            self.channel,
            self.target.sender.user,
            at.client_sequencer,
            at.row_sequencer,
            self.end_offset_token,
        )

    def settled(self) -> AppendTotals:
        """Return what is counted for the channel."""
        refused = self.converted.refused
        return AppendTotals(
            self.target.table.table_id,
            self.channel,
            self.request_id,
            self.converted.parsed,
            self.converted.refused_count,
            refused[-1].reason if refused else None,
            self.end_offset_token,
        )
