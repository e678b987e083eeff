"""Registering chunks: many offers, one transaction, a fixed number of statements.

The caller's transaction must be a writing one. Table rows are locked in id order; then
everything the verdicts rest on is read, set by set; then the accepted chunks, the channels
that moved and the tables' last sequence numbers are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa

from snowmelt.catalog import model, stages
from snowmelt.catalog.ledger import read_ledger
from snowmelt.catalog.verdicts import ChannelAdvance, ChunkOffer, Verdict, accept, judge

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from snowmelt.catalog.verdicts import Ledger

__all__ = ["ChannelAdvance", "ChunkOffer", "Verdict", "register"]

_T = model.tables
_C = model.channels
_X = model.chunks

_encoder = msgspec.json.Encoder()


def register(
    connection: sa.Connection, offers: Sequence[ChunkOffer], *, now: dt.datetime
) -> list[tuple[Verdict, ...]]:
    """Register chunks and return a verdict for each channel of each offer.

    Offers are judged in the order given, each on top of those before it. A chunk that was
    accepted before is answered with its acceptance and not added again.

    Args:
        connection: A writing transaction; nothing counts before its commit.
        offers: Verified chunks, or refused ones that may turn out to be repetitions.
        now: The service's time, for the age of blobs; order never depends on it.
    """
    if not offers:
        return []
    ledger = read_ledger(connection, offers, now)
    answers = []
    added: list[dict[str, Any]] = []
    unregistered: list[stages.StagedBlob] = []
    for offer in offers:
        verdicts, table = judge(offer, ledger)
        if table is not None and offer.channels:
            seq = accept(offer, table, ledger)
            added.append(_chunk_row(offer, table.table_id, seq, now))
        elif _is_on_stage(offer, ledger) and any(verdict.code for verdict in verdicts):
            unregistered.append(stages.StagedBlob(offer.prefix, offer.path))
        answers.append(verdicts)
    _write(connection, ledger, added, now)
    stages.sight(connection, unregistered, now)
    return answers


def _is_on_stage(offer: ChunkOffer, ledger: Ledger) -> bool:
    # Verified and of the user's own prefix: nobody fills the table of sightings with inventions.
    return offer.refusal is None and ledger.prefixes.get(offer.prefix) == offer.user


def _chunk_row(offer: ChunkOffer, table_id: int, seq: int, now: dt.datetime) -> dict[str, Any]:
    channels = [
        (*each.epoch, each.start_offset_token, each.end_offset_token) for each in offer.channels
    ]
    return {
        "table_id": table_id,
        "seq": seq,
        "prefix": offer.prefix,
        "path": offer.path,
        "offset": offer.offset,
        "length": offer.length,
        "md5": offer.md5,
        "key_id": offer.key_id,
        "rows": offer.rows,
        "schema_version": offer.schema_version,
        "first_insert_ms": offer.first_insert_ms,
        "last_insert_ms": offer.last_insert_ms,
        "registered_at": now,
        "channels": _encoder.encode(channels).decode(),
        "statistics": offer.statistics,
    }


def _write(
    connection: sa.Connection, ledger: Ledger, added: list[dict[str, Any]], now: dt.datetime
) -> None:
    if not added:
        return
    connection.execute(sa.insert(_X), added)
    moved = [
        {
            "the_id": state.channel_id,
            "row_sequencer": state.row_sequencer,
            "offset_token": state.offset_token,
            "last_client_sequencer": state.last.client_sequencer,
            "last_path": state.last.path,
            "last_chunk_offset": state.last.offset,
            "last_chunk_md5": state.last.md5,
            "last_key_id": state.last.key_id,
            "last_commit_at": now,
            "rows": state.rows,
            "bytes": state.bytes,
        }
        for state in ledger.channels.values()
        if state.moved
    ]
    connection.execute(sa.update(_C).where(_C.c.channel_id == sa.bindparam("the_id")), moved)
    touched = {row["table_id"] for row in added}
    connection.execute(
        sa.update(_T).where(_T.c.table_id == sa.bindparam("the_id")),
        [
            {"the_id": table.table_id, "last_seq": table.last_seq}
            for table in ledger.tables.values()
            if table.table_id in touched
        ],
    )
