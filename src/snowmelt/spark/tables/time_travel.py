"""Time travel: table snapshots at a commit number or a time within the retention time.

The state at an earlier time consists of the native snapshot of that time and of the chunks above
its watermark that were committed by then. Both are retained for the retention time after
replacement. It has the columns of that time, as snapshots of Iceberg have.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import TYPE_CHECKING

from pyiceberg.table.snapshots import Snapshot

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.objects.tables import find_schema_at
from snowmelt.catalog.streaming.chunks import (
    ChunkRecord,
    list_chunks,
    list_quarantined_chunk_records,
)
from snowmelt.clock import to_epoch_ms
from snowmelt.errors import LoadRefused
from snowmelt.table.iceberg import IcebergSummary, NativeTable, parse_snapshot_summary

if TYPE_CHECKING:
    from snowmelt.table.snapshot import TableSnapshot


def take_snapshot_at_sequence(
    database: Database, current: TableSnapshot, sequence: int
) -> TableSnapshot:
    """Return a table's snapshot with the chunks up to a commit number.

    Loaded rows have no commit number. The snapshot contains those committed before the migration of the
    first chunk after this number.

    Raises:
        LoadRefused: If the number is not committed, or its state was deleted after the retention
            time.
    """
    what = f"snapshot = {sequence}"
    if sequence > current.up_to:
        raise LoadRefused(
            what=what, reason=f"the last commit of {current.table.name} is number {current.up_to}"
        )
    native = _find_newest_snapshot(current.native, lambda _, facts: facts.watermark <= sequence)
    return _make_past_snapshot(database, current, native, sequence, what, None)


def take_snapshot_at_time(
    database: Database, current: TableSnapshot, timestamp: dt.datetime
) -> TableSnapshot:
    """Return a table's snapshot at a time.

    Raises:
        LoadRefused: If the table did not exist then, or its state was deleted after the retention
            time.
    """
    what = f"as_of = {timestamp.isoformat()}"
    if timestamp < current.table.created_at:
        raise LoadRefused(
            what=what,
            reason=f"{current.table.name} was created later, at {current.table.created_at.isoformat()}",
        )
    before_ms = to_epoch_ms(timestamp)
    native = _find_newest_snapshot(current.native, lambda made, _: made.timestamp_ms <= before_ms)
    watermark = 0 if native is None else native.facts.watermark
    with database.reading() as connection:
        chunks = list_chunks(
            connection, current.table.table_id, watermark, current.up_to, retained_only=True
        )
    late = [chunk.seq for chunk in chunks if chunk.registered_at > timestamp]
    return _make_past_snapshot(
        database, current, native, min(late) - 1 if late else current.up_to, what, timestamp
    )


def list_retained_snapshots(native: NativeTable) -> list[tuple[Snapshot, IcebergSummary]]:
    """Return the retained snapshots of a native table with their summaries, oldest first."""
    ordered = sorted(native.metadata.snapshots, key=lambda each: each.sequence_number or 0)
    found = [(each, parse_snapshot_summary(each, native.location)) for each in ordered]
    return [(each, facts) for each, facts in found if facts is not None]


def _find_newest_snapshot(native: NativeTable | None, matches: object) -> NativeTable | None:
    """Return the newest retained snapshot that matches, as a native table, or None."""
    if native is None:
        return None
    assert callable(matches)  # noqa: S101  passed by the two functions above
    for made, facts in reversed(list_retained_snapshots(native)):
        if matches(made, facts):
            metadata = native.metadata.model_copy(update={"current_snapshot_id": made.snapshot_id})
            return NativeTable(native.location, metadata, facts)
    return None


def _make_past_snapshot(
    database: Database,
    current: TableSnapshot,
    native: NativeTable | None,
    end_seq: int,
    option_text: str,
    timestamp: dt.datetime | None,
) -> TableSnapshot:
    """Return the snapshot of a time; None: the time of its last commit."""
    watermark = 0 if native is None else native.facts.watermark
    if native is None and current.native is not None and _has_expired_snapshots(current.native):
        raise _make_not_retained_error(current, option_text)
    table_id = current.table.table_id
    with database.reading() as connection:
        chunks = list_chunks(connection, table_id, watermark, end_seq, retained_only=True)
        held = list_quarantined_chunk_records(connection, table_id)
    found: dict[int, ChunkRecord] = {chunk.seq: chunk for chunk in chunks}
    if len(found) != max(0, end_seq - watermark):
        raise _make_not_retained_error(current, option_text)
    found |= {chunk.seq: chunk for chunk in held if chunk.seq <= watermark}
    if timestamp is None:
        begin = current.table.created_at if native is None else native.committed_at
        timestamp = max([begin, *(chunk.registered_at for chunk in chunks)])
    with database.reading() as connection:
        schema = find_schema_at(connection, table_id, timestamp)
    return replace(
        current,
        table=replace(current.table, schema=schema),
        native=native,
        watermark=watermark,
        up_to=end_seq,
        chunks=tuple(found[seq] for seq in sorted(found)),
    )


def _has_expired_snapshots(native: NativeTable) -> bool:
    oldest = min(native.metadata.snapshots, key=lambda each: each.sequence_number or 0)
    return (oldest.sequence_number or 0) > 1


def _make_not_retained_error(current: TableSnapshot, option_text: str) -> LoadRefused:
    return LoadRefused(
        what=option_text,
        reason=f"the snapshot of {current.table.name} at that time is deleted. Old snapshots are kept for "
        "SNOWMELT_RETENTION_S seconds",
    )
