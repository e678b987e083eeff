"""Removal of native and fresh files from a table, in the commit that replaces their rows.

A fresh file has the rows of chunks that are not migrated. To remove it, the commit moves the
watermark to the file's last chunk. Other fresh files up to that chunk become native files. Rows
that arrive later are not affected.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import uuid
from collections.abc import Set
from dataclasses import dataclass

import sqlalchemy as sa
from pyiceberg.manifest import DataFile

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.jobs import lineage, run_history
from snowmelt.catalog.jobs.run_history import MigrationRecord, MigrationTotals, RunState
from snowmelt.catalog.model.records import TableRecord
from snowmelt.catalog.objects.published_snapshots import (
    FreshFile,
    adopt_fresh_files,
    list_fresh_files,
    retire_fresh_files,
)
from snowmelt.catalog.streaming.chunks import list_chunks
from snowmelt.errors import CommitLost, TableInconsistent
from snowmelt.table.file_lineage import make_file_record
from snowmelt.table.fresh_files import decode_fresh_file
from snowmelt.table.iceberg import NativeTable, find_file_entries
from snowmelt.table.native_file_writer import WrittenFile
from snowmelt.table.warehouse_paths import Warehouse


@dataclass(frozen=True, slots=True)
class FileRemoval:
    """Files that a commit removes, and fresh files that it makes native.

    `chunks` has (sequence, rows) of each chunk of all these fresh files. The watermark moves from
    `from_seq` to `to_seq`.
    """

    from_seq: int
    to_seq: int
    entries: tuple[DataFile, ...] = ()
    fresh: tuple[FreshFile, ...] = ()
    adopted: tuple[FreshFile, ...] = ()
    chunks: tuple[tuple[int, int], ...] = ()

    @property
    def adopted_files(self) -> list[WrittenFile]:
        """Descriptions of the fresh files that become native."""
        return [decode_fresh_file(file) for file in self.adopted]

    @property
    def native_rows(self) -> int:
        """Number of rows of the removed native files."""
        return sum(entry.record_count for entry in self.entries)

    @property
    def replaced_rows(self) -> int:
        """Number of rows of all removed files."""
        return self.native_rows + sum(decode_fresh_file(file).rows for file in self.fresh)

    def extend_checksum(self, checksum: str) -> str:
        """Return the checksum of the native table after the commit."""
        if not self.chunks:
            return checksum
        digest = hashlib.sha256(checksum.encode())
        digest.update("".join(f"{seq}:{rows};" for seq, rows in self.chunks).encode())
        return digest.hexdigest()

    def apply(
        self, connection: sa.Connection, table: TableRecord, snapshot_id: int, now: dt.datetime
    ) -> None:
        """Store the removal of fresh files, in the transaction that swaps the pointer.

        Raises:
            CommitLost: If one of the fresh files was compacted meanwhile.
        """
        if self.from_seq == self.to_seq:
            return
        adopted = adopt_fresh_files(connection, [file.file_id for file in self.adopted])
        removed = retire_fresh_files(connection, [file.file_id for file in self.fresh], now)
        if not adopted or removed != len(self.fresh):
            raise CommitLost(table=table.name, reason="a fresh file was compacted meanwhile")
        run_id = str(uuid.uuid4())
        run_history.start_migration(
            connection,
            MigrationRecord(
                run_id=run_id,
                table_id=table.table_id,
                epoch=0,
                from_seq=self.from_seq,
                to_seq=self.to_seq,
                state=RunState.RUNNING,
                started_at=now,
            ),
        )
        files = self.adopted_files
        lineage.add_committed_chunks(
            connection, table.table_id, self.from_seq, self.to_seq, run_id=run_id, fingerprints={}
        )
        records = [
            make_file_record(
                decode_fresh_file(file), run_id, table, [(file.from_seq + 1, file.to_seq)], now
            )
            for file in (*self.adopted, *self.fresh)
        ]
        # Removed files are part of the table until this commit.
        lineage.add_native_files(connection, table.table_id, records)
        run_history.finish_migration(
            connection,
            run_id,
            RunState.COMMITTED,
            now=now,
            totals=MigrationTotals(
                sum(file.rows for file in files),
                len(files),
                sum(file.size for file in files),
                snapshot_id,
            ),
        )


def plan_removal(
    database: Database,
    warehouse: Warehouse,
    table: TableRecord,
    native: NativeTable | None,
    paths: Set[str],
) -> FileRemoval | None:
    """Find the files of these paths in the current state of a table.

    Returns None if one of them is no longer part of the table.

    Raises:
        TableInconsistent: If chunks and fresh files do not agree.
    """
    start = table.migrated_seq
    addresses = {warehouse.to_address(path) for path in paths}
    entries = () if native is None else tuple(find_file_entries(native, addresses))
    others = paths - {warehouse.to_path(entry.file_path) for entry in entries}
    if not others:
        return FileRemoval(start, start, entries)
    with database.reading() as connection:
        live = [
            file for file in list_fresh_files(connection, table.table_id) if file.from_seq >= start
        ]
        removed = [file for file in live if file.path in others]
        if len(removed) != len(others):
            return None
        end = max(file.to_seq for file in removed)
        covered = [file for file in live if file.to_seq <= end]
        chunks = list_chunks(connection, table.table_id, start, end)
    bounds = [(file.from_seq, file.to_seq) for file in covered]
    expected = zip(
        [start, *(last for _, last in bounds)], (first for first, _ in bounds), strict=False
    )
    if any(last != first for last, first in expected):
        # The publisher is replacing the fresh files.
        return None
    counts = tuple((chunk.seq, chunk.rows) for chunk in chunks)
    rows = sum(decode_fresh_file(file).rows for file in covered)
    if rows != sum(count for _, count in counts) or len(counts) != end - start:
        raise TableInconsistent(
            table=table.name,
            reason=f"fresh files up to chunk {end} do not have the rows of the chunks",
        )
    kept = tuple(file for file in covered if file.path not in others)
    return FileRemoval(start, end, entries, tuple(removed), kept, counts)
