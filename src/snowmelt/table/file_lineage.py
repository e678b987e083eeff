"""Lineage of native files: records of the files that a commit adds and removes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import sqlalchemy as sa

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.jobs import lineage
from snowmelt.catalog.jobs.lineage import FileSource, NativeFileRecord, merge_sources
from snowmelt.catalog.model.records import TableRecord
from snowmelt.errors import TableInconsistent
from snowmelt.table.iceberg import NativeTable, list_native_files
from snowmelt.table.native_file_writer import WrittenFile
from snowmelt.table.warehouse_paths import Warehouse

# Path, rows and bytes of the native files that a table had when its lineage began.
LineageStart: TypeAlias = Sequence[tuple[str, int, int]]


@dataclass(frozen=True, slots=True)
class JoinedFiles:
    """A written file, and the addresses of the files that it replaces, in row order."""

    written: WrittenFile
    replaced: tuple[str, ...]


def prepare_lineage(
    database: Database, warehouse: Warehouse, table: TableRecord, native: NativeTable | None
) -> LineageStart | None:
    """Return the current files of a table that has no lineage, else None."""
    with database.reading() as connection:
        if lineage.find_lineage_start(connection, table.table_id) is not None:
            return None
    files = [] if native is None else list_native_files(native)
    return [(warehouse.to_path(file.path), file.rows, file.size) for file in files]


def make_file_record(
    file: WrittenFile,
    run_id: str,
    table: TableRecord,
    sources: Iterable[FileSource],
    now: dt.datetime,
    *,
    reordered: bool = False,
) -> NativeFileRecord:
    """Return the record of a file that a run wrote, with the origin of its rows.

    If the table is clustered, or with `reordered`, the rows are not in the order of their sources.
    """
    return NativeFileRecord(
        file.path,
        run_id,
        file.rows,
        file.size,
        file.sha256 or None,
        file.fingerprint or None,
        table.schema.version,
        tuple(sources),
        now,
        reordered=reordered or bool(table.cluster_by),
    )


def record_joined_files(
    connection: sa.Connection,
    warehouse: Warehouse,
    table: TableRecord,
    run_id: str,
    joined: Sequence[JoinedFiles],
    now: dt.datetime,
) -> None:
    """Record files that replace other files and have their rows.

    Raises:
        TableInconsistent: If one of the replaced files is not a current file in the lineage.
    """
    paths = [[warehouse.to_path(address) for address in each.replaced] for each in joined]
    replaced = {path for each in paths for path in each}
    known = {
        record.path: record
        for record in lineage.list_native_file_records(
            connection, table.table_id, current_only=True, paths=replaced
        )
    }
    if missing := sorted(replaced - known.keys()):
        raise TableInconsistent(
            table=table.name, reason=f"its lineage does not have the current file {missing[0]}"
        )
    records = [
        make_file_record(
            each.written,
            run_id,
            table,
            merge_sources(source for path in sources for source in known[path].sources),
            now,
            reordered=any(known[path].reordered for path in sources),
        )
        for each, sources in zip(joined, paths, strict=True)
    ]
    lineage.mark_files_removed(
        connection, table.table_id, replaced, run_id=run_id, now=now, changed_rows=False
    )
    lineage.add_native_files(connection, table.table_id, records)
