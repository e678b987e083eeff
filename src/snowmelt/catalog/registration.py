"""Registering chunks: many offers, one transaction, a fixed number of statements.

The caller's transaction must be a writing one. Table rows are locked in id order; then
everything the verdicts rest on is read, set by set; then the accepted chunks, the channels
that moved and the tables' last sequence numbers are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from snowmelt.catalog import model, sets, stages
from snowmelt.catalog.ledger import Remembered, read_ledger
from snowmelt.catalog.verdicts import ChannelAdvance, ChunkOffer, Verdict, accept, judge_parts

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Sequence

    import sqlalchemy as sa

    from snowmelt.catalog.verdicts import Ledger

__all__ = ["ChannelAdvance", "ChunkOffer", "Remembered", "Verdict", "register"]

_CHUNK_COLUMNS = (
    "table_id",
    "seq",
    "prefix",
    "path",
    "offset",
    "length",
    "md5",
    "key_id",
    "rows",
    "schema_version",
    "first_insert_ms",
    "last_insert_ms",
    "registered_at",
    "channels",
    "statistics",
)
_CHANNEL_COLUMNS = (
    "channel_id",
    "row_sequencer",
    "offset_token",
    "last_client_sequencer",
    "last_path",
    "last_chunk_offset",
    "last_chunk_md5",
    "last_key_id",
    "last_commit_at",
    "rows",
    "bytes",
)

_encoder = msgspec.json.Encoder()


def register(
    connection: sa.Connection,
    offers: Sequence[ChunkOffer],
    *,
    now: dt.datetime,
    remembered: Remembered | None = None,
) -> list[tuple[Verdict, ...]]:
    """Register chunks and return a verdict for each channel of each offer.

    Offers are judged in the order given, each on top of those before it; the parts of one commit
    are accepted together or not at all. A chunk that was accepted before is answered with its
    acceptance and not added again.

    Args:
        connection: A writing transaction; nothing counts before its commit.
        offers: Verified chunks, or refused ones that may turn out to be repetitions.
        now: The service's time, for the age of blobs; order never depends on it.
        remembered: Kept by the caller from group to group, so that what cannot change is read
            only once.
    """
    if not offers:
        return []
    ledger = read_ledger(connection, offers, now, remembered or Remembered())
    answers = []
    instant = model.microseconds(now)
    added: list[tuple[Any, ...]] = []
    unregistered: list[stages.StagedBlob] = []
    judged = (
        (offer, *verdict)
        for together in _commits(offers)
        for offer, verdict in zip(together, judge_parts(together, ledger), strict=True)
    )
    for offer, verdicts, table in judged:
        if table is not None and offer.channels:
            seq = accept(offer, table, ledger)
            if offer.rows:
                added.append(_chunk_row(offer, table.table_id, seq, instant))
        elif _is_on_stage(offer, ledger) and any(verdict.code for verdict in verdicts):
            unregistered.append(stages.StagedBlob(offer.prefix, offer.path))
        answers.append(verdicts)
    _write(connection, ledger, added, instant)
    stages.sight(connection, unregistered, now)
    return answers


def _commits(offers: Sequence[ChunkOffer]) -> Iterator[Sequence[ChunkOffer]]:
    """Yield offers one by one, and those together that are parts of one commit."""
    start = 0
    while start < len(offers):
        first, end = offers[start], start + 1
        while end < min(start + first.parts, len(offers)) and offers[end].commit == first.commit:
            end += 1
        yield offers[start:end]
        start = end


def _is_on_stage(offer: ChunkOffer, ledger: Ledger) -> bool:
    # Verified and of the user's own prefix: nobody fills the table of sightings with inventions.
    return offer.refusal is None and ledger.prefixes.get(offer.prefix) == offer.user


def _chunk_row(offer: ChunkOffer, table_id: int, seq: int, instant: int) -> tuple[Any, ...]:
    channels = [
        (*each.epoch, each.start_offset_token, each.end_offset_token) for each in offer.channels
    ]
    return (
        table_id,
        seq,
        offer.prefix,
        offer.path,
        offer.offset,
        offer.length,
        offer.md5,
        offer.key_id,
        offer.rows,
        offer.schema_version,
        offer.first_insert_ms,
        offer.last_insert_ms,
        instant,
        _encoder.encode(channels).decode(),
        offer.statistics,
    )


def _write(
    connection: sa.Connection, ledger: Ledger, added: list[tuple[Any, ...]], instant: int
) -> None:
    moved = [
        (
            state.channel_id,
            state.row_sequencer,
            state.offset_token,
            state.last.client_sequencer,
            state.last.path,
            state.last.offset,
            state.last.md5,
            state.last.key_id,
            instant,
            state.rows,
            state.bytes,
        )
        for state in ledger.channels.values()
        if state.moved
    ]
    if not moved:
        return
    if added:
        sets.insert_rows(connection, model.chunks, _CHUNK_COLUMNS, added)
    sets.update_rows(connection, model.channels, _CHANNEL_COLUMNS, moved)
    if not added:
        return
    touched = {row[0] for row in added}
    counted = [
        (table.table_id, table.last_seq)
        for table in ledger.tables.values()
        if table.table_id in touched
    ]
    sets.update_rows(connection, model.tables, ("table_id", "last_seq"), counted)
