"""Consistent snapshots of tables: native files up to a watermark, chunks above it.

The pointer, the fresh files and the sequences of the chunks are read in one transaction, so a
concurrent migration does not change the result. Each row is in exactly one chunk, fresh file or
native file. Fresh files are the files that the publisher writes for tables in demand. A reader that
reads Parquet faster than chunks asks for them, and gets only the chunks that are in no fresh file.
If a table has many chunks, this also records demand for its fresh files. Everything that a snapshot
references is retained until its deadline, including the catalog rows of its chunks, because garbage
collection waits longer than that. These rows can therefore be read later.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.model.records import TableRecord
from snowmelt.catalog.objects.name_suggestions import suggesting_names
from snowmelt.catalog.objects.published_snapshots import (
    FreshFile,
    find_last_request,
    list_fresh_files,
    record_demand,
)
from snowmelt.catalog.objects.tables import find_table, list_table_schema_versions
from snowmelt.catalog.security.access_control import require_table_privilege
from snowmelt.catalog.streaming.chunks import ChunkRange, ChunkRecord, read_chunk_range
from snowmelt.clock import Clock
from snowmelt.errors import ConfigurationError, SnowmeltError, TableInconsistent
from snowmelt.schema.types import TableName, TableSchema

if TYPE_CHECKING:
    from snowmelt.table.iceberg import NativeTable
    from snowmelt.table.native_file import NativeFile

# Maximum age. Ten minutes less than the default retention, so that garbage collection waits longer.
MAX_SNAPSHOT_AGE_S = 3000
# Queries of tables with this many chunks after the native files are faster with fresh files.
MANY_CHUNKS = 100
# The publisher stops ten minutes after the last request. A query per minute keeps it at work.
_MIN_REQUEST_INTERVAL = dt.timedelta(minutes=1)
_log = logging.getLogger(__name__)


def check_retention_outlasts_queries(retention_s: float) -> None:
    """Verify that files are retained longer than a query's plan is valid.

    Raises:
        ConfigurationError: If `retention_s` (seconds) is too short.
    """
    if retention_s <= MAX_SNAPSHOT_AGE_S:
        raise ConfigurationError(
            setting="retention_s",
            reason=f"queries may read what they planned for {MAX_SNAPSHOT_AGE_S:,} s; it must be longer",
        )


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """Table at one time: native files up to `watermark`, `fresh` files, and `chunks` up to `up_to`.

    `chunks` includes quarantined chunks with any sequence, because these are in no native file.
    """

    table: TableRecord
    schemas: dict[int, TableSchema]
    native: NativeTable | None
    watermark: int
    up_to: int
    chunks: ChunkRange | tuple[ChunkRecord, ...]
    deadline: dt.datetime
    fresh: tuple[FreshFile, ...] = ()

    @property
    def pointer(self) -> str | None:
        """Metadata file of the native table, or None before the first migration."""
        return self.table.pointer

    @property
    def chunk_numbers(self) -> frozenset[int]:
        """Sequences of the chunks."""
        if isinstance(self.chunks, tuple):
            return frozenset(chunk.seq for chunk in self.chunks)
        return self.chunks.numbers

    def list_native_files(self) -> list[NativeFile]:
        """Return the native files of the snapshot."""
        if self.native is None:
            return []
        from snowmelt.table.iceberg import list_native_files

        return list_native_files(self.native)


def take_snapshots(
    database: Database,
    names: Sequence[TableName],
    *,
    clock: Clock,
    role: str | None = None,
    with_fresh_files: bool = False,
) -> list[TableSnapshot]:
    """Take snapshots of several tables at one time.

    Snapshots are valid for `MAX_SNAPSHOT_AGE_S`. `role` must have SELECT. None: no check. With
    `with_fresh_files`, the snapshots have the existing fresh files instead of their chunks, and
    demand is recorded for tables with at least `MANY_CHUNKS` chunks that are not migrated.

    Raises:
        DatabaseNotFound: If a database does not exist or the role lacks privileges on it.
        SchemaNotFound: If a schema does not exist or the role lacks privileges on it.
        TableNotFound: If a table does not exist or the role lacks SELECT on it.
        TableInconsistent: If catalog and native table do not agree.
    """
    deadline = clock.now() + dt.timedelta(seconds=MAX_SNAPSHOT_AGE_S)
    found = []
    wanted = []
    with database.reading() as connection:
        for name in names:
            with suggesting_names(connection, role, name):
                table = find_table(connection, name)
                if role is not None:
                    require_table_privilege(connection, role, table, "SELECT")
            schemas = list_table_schema_versions(connection, table.table_id)
            fresh = _list_adjacent_files(connection, table) if with_fresh_files else ()
            covered = fresh[-1].to_seq if fresh else table.migrated_seq
            chunks = read_chunk_range(connection, database, table, covered)
            found.append((table, schemas, fresh, chunks))
            if with_fresh_files and _needs_fresh_files(connection, table, clock):
                wanted.append(table)
    if wanted:
        _request_fresh_files(database, wanted, clock)
    return [
        TableSnapshot(
            table=table,
            schemas=schemas,
            native=load_current_native_table(table),
            watermark=table.migrated_seq,
            up_to=table.last_seq,
            chunks=chunks,
            deadline=deadline,
            fresh=fresh,
        )
        for table, schemas, fresh, chunks in found
    ]


def _needs_fresh_files(connection: sa.Connection, table: TableRecord, clock: Clock) -> bool:
    """Return True if a table has many chunks, and no fresh files were requested in the last minute."""
    if table.hides_fresh_rows or table.last_seq - table.migrated_seq < MANY_CHUNKS:
        return False
    requested_at = find_last_request(connection, table.table_id)
    return requested_at is None or clock.now() - requested_at >= _MIN_REQUEST_INTERVAL


def _request_fresh_files(database: Database, tables: Sequence[TableRecord], clock: Clock) -> None:
    """Record demand for tables. Their queries need no fresh files, so an error has no effect on them."""
    try:
        with database.writing() as connection:
            for table in tables:
                record_demand(connection, table.table_id, native_only=False, now=clock.now())
    except (SnowmeltError, sa.exc.SQLAlchemyError) as error:
        _log.info("Cannot request fresh files: %s", error)


def _list_adjacent_files(connection: sa.Connection, table: TableRecord) -> tuple[FreshFile, ...]:
    """Return the fresh files that continue the native files without a gap."""
    found: list[FreshFile] = []
    covered = table.migrated_seq
    for file in list_fresh_files(connection, table.table_id):
        # A migration that was planned before the file may have ended within it.
        if file.from_seq == covered:
            found.append(file)
            covered = file.to_seq
    return tuple(found)


def load_current_native_table(table: TableRecord) -> NativeTable | None:
    """Load the current native table, or return None before the first migration.

    Raises:
        TableInconsistent: If the native table and the catalog do not agree.
    """
    if table.pointer is None:
        if table.migrated_seq:
            raise TableInconsistent(table=table.name, reason="chunks are migrated to nowhere")
        return None
    # Import late: PyIceberg takes longer to load than the rest of a service.
    from snowmelt.table.iceberg import load_native_table

    native = load_native_table(table.pointer, table.incarnation)
    if native.facts.watermark != table.migrated_seq:
        raise TableInconsistent(
            table=table.name,
            reason=f"its native files hold {native.facts.watermark} chunks, "
            f"the catalog says {table.migrated_seq}",
        )
    return native
