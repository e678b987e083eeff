"""Tables as they were: up to a commit number, or at an instant, as far as it is still kept.

What was at an instant is a native snapshot of then and the chunks above its watermark that had
come by then. Both are kept for the retention after something newer has replaced them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from snowmelt.catalog.streaming.chunks import list_chunks, list_quarantined_records
from snowmelt.clock import to_epoch_ms
from snowmelt.errors import LoadRefused
from snowmelt.table.iceberg import IcebergSummary, NativeTable, parse_snapshot_summary

if TYPE_CHECKING:
    import datetime as dt

    from pyiceberg.table.snapshots import Snapshot

    from snowmelt.catalog.db.database import Database
    from snowmelt.catalog.streaming.chunks import ChunkRecord
    from snowmelt.table.snapshot import TableSnapshot


def at_sequence(database: Database, now: TableSnapshot, sequence: int) -> TableSnapshot:
    """Return a table with the chunks up to a commit number.

    Rows of loads have no such number: those are there that were committed before the chunks
    after this number were migrated.

    Raises:
        LoadRefused: The table has not come so far, or it is no longer kept.
    """
    what = f"snapshot = {sequence}"
    if sequence > now.up_to:
        raise LoadRefused(
            what=what, reason=f"the last commit of {now.table.name} is number {now.up_to}"
        )
    native = _newest(now.native, lambda _, facts: facts.watermark <= sequence)
    return _as_of(database, now, native, sequence, what)


def at_time(database: Database, now: TableSnapshot, moment: dt.datetime) -> TableSnapshot:
    """Return a table as it was at an instant.

    Raises:
        LoadRefused: It did not exist then, or what was then is no longer kept.
    """
    what = f"as_of = {moment.isoformat()}"
    if moment < now.table.created_at:
        raise LoadRefused(what=what, reason=f"{now.table.name} was created later")
    before_ms = to_epoch_ms(moment)
    native = _newest(now.native, lambda made, _: made.timestamp_ms <= before_ms)
    watermark = 0 if native is None else native.facts.watermark
    with database.reading() as connection:
        chunks = list_chunks(
            connection, now.table.table_id, watermark, now.up_to, retained_only=True
        )
    late = [chunk.seq for chunk in chunks if chunk.registered_at > moment]
    return _as_of(database, now, native, min(late) - 1 if late else now.up_to, what)


def kept_snapshots(native: NativeTable) -> list[tuple[Snapshot, IcebergSummary]]:
    """Return the snapshots that a native table still has, with what each contains, oldest first."""
    ordered = sorted(native.metadata.snapshots, key=lambda each: each.sequence_number or 0)
    found = [(each, parse_snapshot_summary(each, native.location)) for each in ordered]
    return [(each, facts) for each, facts in found if facts is not None]


def _newest(native: NativeTable | None, fits: object) -> NativeTable | None:
    """Return the newest kept snapshot that fits as a table of its own; None where none does."""
    if native is None:
        return None
    assert callable(fits)  # noqa: S101  given by the two functions above
    for made, facts in reversed(kept_snapshots(native)):
        if fits(made, facts):
            metadata = native.metadata.model_copy(update={"current_snapshot_id": made.snapshot_id})
            return NativeTable(native.location, metadata, facts)
    return None


def _as_of(
    database: Database, now: TableSnapshot, native: NativeTable | None, up_to: int, what: str
) -> TableSnapshot:
    watermark = 0 if native is None else native.facts.watermark
    if native is None and now.native is not None and _has_lost_snapshots(now.native):
        raise _gone(now, what)
    table_id = now.table.table_id
    with database.reading() as connection:
        chunks = list_chunks(connection, table_id, watermark, up_to, retained_only=True)
        held = list_quarantined_records(connection, table_id)
    found: dict[int, ChunkRecord] = {chunk.seq: chunk for chunk in chunks}
    if len(found) != max(0, up_to - watermark):
        raise _gone(now, what)
    found |= {chunk.seq: chunk for chunk in held if chunk.seq <= watermark}
    return replace(
        now,
        native=native,
        watermark=watermark,
        up_to=up_to,
        chunks=tuple(found[seq] for seq in sorted(found)),
    )


def _has_lost_snapshots(native: NativeTable) -> bool:
    oldest = min(native.metadata.snapshots, key=lambda each: each.sequence_number or 0)
    return (oldest.sequence_number or 0) > 1


def _gone(now: TableSnapshot, what: str) -> LoadRefused:
    return LoadRefused(
        what=what,
        reason=f"{now.table.name} is no longer kept as it was then; what is replaced is kept for "
        "the retention (SNOWMELT_RETENTION_S)",
    )
