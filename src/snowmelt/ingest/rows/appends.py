"""One request of rows on its way into the catalog, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from snowmelt.catalog.row_channels import Advance, Settled
from snowmelt.catalog.verdicts import ChannelAdvance

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.ingest.rows.continuation import Continuation
    from snowmelt.ingest.rows.conversion import Converted
    from snowmelt.ingest.rows.places import Target


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

    def advance(self, at: Continuation) -> Advance:
        """Return how it moves the channel on without a chunk."""
        return Advance(
            self.target.table.table_id,
            self.channel,
            self.target.sender.user,
            at.client_sequencer,
            at.row_sequencer,
            self.end_offset_token,
        )

    def settled(self) -> Settled:
        """Return what is counted for the channel."""
        refused = self.converted.refused
        return Settled(
            self.target.table.table_id,
            self.channel,
            self.request_id,
            self.converted.parsed,
            self.converted.refused_count,
            refused[-1].reason if refused else None,
            self.end_offset_token,
        )
