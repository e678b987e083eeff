"""Compaction of small native files: select, rewrite, commit (`snowmelt.table.file_replacement_run`).

Files below three quarters of the target size are small. They are compacted when there are
`min_files` files of similar size. This limits how often a row is rewritten until it is in a file of
the target size. Each group becomes one file. Rows are processed in batches; rows of a clustered
table are sorted over the whole group. Before the commit, the new files are read again, and must
have the rows of the old files.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import pyarrow as pa

from snowmelt import failpoints
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.jobs.leases import renewing_lease
from snowmelt.catalog.jobs.lineage import list_native_file_records
from snowmelt.catalog.jobs.run_history import MaintenanceKind, MaintenanceTotals
from snowmelt.catalog.objects.tables import find_table, list_table_schema_versions
from snowmelt.clock import Clock
from snowmelt.errors import TableInconsistent
from snowmelt.failpoints import Failpoint
from snowmelt.schema.iceberg_table_form import keeps_values, native_schema
from snowmelt.schema.row_fingerprint import Fingerprint, fingerprint_table
from snowmelt.schema.types import TableName
from snowmelt.table.external_sort import ExternalSorter, make_sort_keys
from snowmelt.table.file_lineage import JoinedFiles
from snowmelt.table.file_replacement_run import (
    MaintenanceSettings,
    OpenMaintenanceRun,
    abort_maintenance_run,
    begin_maintenance_run,
    commit_maintenance_run,
)
from snowmelt.table.iceberg import list_native_files
from snowmelt.table.native_file import NativeFile, read_native_batches, read_native_field_batches
from snowmelt.table.native_file_writer import NativeWriter, WrittenFile
from snowmelt.table.snapshot import load_current_native_table
from snowmelt.table.warehouse_paths import open_cached_store, open_warehouse

_SMALL_FILE_SHARE = 0.75
_BATCH_ROWS = 64 * 1024
_ROW_GROUP_ROWS = 256 * 1024
# Share of the memory for the buffered rows of a row group. Encoding needs the rest.
_ROW_GROUP_MEMORY_DIVISOR = 4

FileGroup = tuple["NativeFile", ...]


def group_small_files(
    files: Sequence[NativeFile], *, target_bytes: int, min_files: int
) -> list[FileGroup]:
    """Group small files for compaction. Each group becomes one file of at most the target size.

    A file is selected only if the smaller files together are at least as large. Otherwise, each
    small file would cause a large file to be rewritten. Groups keep the order of the files.
    """
    small = [file for file in files if file.size < target_bytes * _SMALL_FILE_SHARE]
    by_size = sorted(small, key=lambda file: (file.size, file.sequence, file.path))
    taken = before = 0
    for count, file in enumerate(by_size, start=1):
        if count >= min_files and (file.size <= before or min_files <= 2):
            taken = count
        before += file.size
    chosen = {file.path for file in by_size[:taken]}
    groups: list[list[NativeFile]] = []
    size = 0
    for file in small:
        if file.path not in chosen:
            continue
        if not groups or size + file.size > target_bytes:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    return [tuple(group) for group in groups if len(group) > 1]


def plan_compaction(
    database: Database, name: TableName, settings: MaintenanceSettings
) -> list[FileGroup]:
    """Return the groups of files that a compaction would rewrite.

    Raises:
        TableNotFound: If the table does not exist.
        TableInconsistent: If catalog and native table do not agree.
    """
    with database.reading() as connection:
        table = find_table(connection, name)
    native = load_current_native_table(table)
    return [] if native is None else _plan_groups(list_native_files(native), settings)


def compact(
    database: Database,
    name: TableName,
    settings: MaintenanceSettings,
    *,
    clock: Clock,
    progress: Callable[[int, int], None] | None = None,
) -> MaintenanceTotals | None:
    """Compact small files of a table in one commit.

    One call processes about `run_bytes`. Calls `progress` with the bytes done and the total.

    Returns:
        The totals, or None if there is nothing to do or another process has the lease.

    Raises:
        TableNotFound: If the table does not exist.
        ConflictError: If the table was dropped or another process has taken over. Nothing was changed.
        TableInconsistent: If the new files do not have the rows of the old ones. Nothing was changed.
        UnknownOutcome: If the commit may have succeeded.
    """
    if not plan_compaction(database, name, settings):
        return None
    run = begin_maintenance_run(database, name, MaintenanceKind.COMPACTION, settings, clock)
    if run is None:
        return None
    with renewing_lease(database, run.lease, ttl_s=settings.lease_s, clock=clock):
        try:
            planned = _plan_groups(list_native_files(run.native), settings)
            sizes = [sum(file.size for file in group) for group in planned]
            # Take the first groups up to `run_bytes`, at least one.
            before = accumulate(sizes, initial=0)
            groups = [
                group
                for group, size in zip(planned, before, strict=False)
                if size < settings.run_bytes or not size
            ]
            failpoints.hit_failpoint(Failpoint.COMPACTION_PLANNED)
            if not groups:
                abort_maintenance_run(
                    database, run, "Another run has compacted the files.", clock=clock
                )
                return None
            written, done = [], 0
            known = _find_fingerprints(database, run, groups)
            for group, size in zip(groups, sizes, strict=False):
                written.append(_rewrite_group(run, group, known))
                failpoints.hit_failpoint(Failpoint.COMPACTION_FILE)
                done += size
                if progress is not None:
                    progress(done, sum(sizes[: len(groups)]))
        except Exception as error:
            abort_maintenance_run(database, run, str(error), clock=clock)
            raise
        failpoints.hit_failpoint(Failpoint.COMPACTION_WRITTEN)
        return commit_maintenance_run(
            database,
            run,
            MaintenanceTotals(rows=sum(file.rows for file in written)),
            clock=clock,
            joined=[
                JoinedFiles(each, tuple(file.path for file in group))
                for each, group in zip(written, groups, strict=True)
            ],
        )


def _plan_groups(files: Sequence[NativeFile], settings: MaintenanceSettings) -> list[FileGroup]:
    return group_small_files(
        files, target_bytes=settings.target_bytes, min_files=settings.min_files
    )


def _find_fingerprints(
    database: Database, run: OpenMaintenanceRun, groups: Sequence[FileGroup]
) -> dict[str, Fingerprint]:
    """Return the known fingerprints of files for the table's current columns, by address."""
    warehouse = open_warehouse(run.settings.warehouse_url)
    addresses = {warehouse.to_path(file.path): file.path for group in groups for file in group}
    table = run.table
    with database.reading() as connection:
        schemas = list_table_schema_versions(connection, table.table_id)
        records = list_native_file_records(connection, table.table_id, paths=addresses)
    found = {}
    for record in records:
        fingerprint = Fingerprint.from_bytes(record.fingerprint)
        columns = schemas.get(record.schema_version)
        if fingerprint is not None and columns is not None and keeps_values(columns, table.schema):
            found[addresses[record.path]] = fingerprint
    return found


def _rewrite_group(
    run: OpenMaintenanceRun, group: FileGroup, known: Mapping[str, Fingerprint]
) -> WrittenFile:
    schema = run.table.schema
    keys = make_sort_keys(schema, run.table.cluster_by)
    fingerprints: list[Fingerprint] = []
    rows: Iterator[pa.Table] = (
        batch for file in group for batch in _read_verified_batches(run, file, known, fingerprints)
    )
    memory = run.settings.memory_bytes
    sorter = ExternalSorter(native_schema(schema), keys, memory_bytes=memory) if keys else None
    writer = NativeWriter(
        open_cached_store(run.settings.warehouse_url),
        f"{run.folder}/{uuid.uuid4().hex}.parquet",
        native_schema(schema),
    )
    try:
        if sorter is not None:
            for batch in rows:
                sorter.add_rows(batch)
            rows = sorter.drain_sorted_rows()
        for part in _build_row_groups(rows, memory // _ROW_GROUP_MEMORY_DIVISOR):
            writer.write_row_group(part)
        written = writer.finish()
    finally:
        writer.abort()
        if sorter is not None:
            sorter.close()
    return _verify_fingerprint(run, written, fingerprints)


def _read_verified_batches(
    run: OpenMaintenanceRun,
    file: NativeFile,
    known: Mapping[str, Fingerprint],
    fingerprints: list[Fingerprint],
) -> Iterator[pa.Table]:
    """Yield the rows of a file. Append their fingerprint, and compare it with the known one.

    Raises:
        TableInconsistent: If the rows of the file have changed.
    """
    found = Fingerprint()
    for batch in read_native_batches(file, run.table.schema, _BATCH_ROWS):
        found += fingerprint_table(batch)
        yield batch
    if known.get(file.path, found) != found:
        raise TableInconsistent(
            table=run.table.name,
            reason=f"file {file.path} does not have the rows that were written; run `snowmelt check"
            f" {run.table.name} --deep`",
        )
    fingerprints.append(found)


def _verify_fingerprint(
    run: OpenMaintenanceRun, written: WrittenFile, fingerprints: Iterable[Fingerprint]
) -> WrittenFile:
    """Read a written file. Return it with its fingerprint, which must be the sum of the given ones.

    Raises:
        TableInconsistent: If the file has other rows.
    """
    expected = sum(fingerprints, start=Fingerprint())
    address = open_warehouse(run.settings.warehouse_url).to_address(written.path)
    fields = native_schema(run.table.schema)
    found = Fingerprint()
    for batch in read_native_field_batches(address, fields, _BATCH_ROWS):
        found += fingerprint_table(batch)
    if found != expected:
        raise TableInconsistent(
            table=run.table.name,
            reason=f"compaction {run.run_id} wrote other rows than those of the files that it replaces",
        )
    return replace(written, fingerprint=found.to_bytes())


def _build_row_groups(rows: Iterable[pa.Table], max_bytes: int) -> Iterator[pa.Table]:
    """Yield the rows as row groups of limited rows and bytes."""
    waiting: list[pa.Table] = []
    count = size = 0
    for table in rows:
        for start in range(0, table.num_rows, _BATCH_ROWS):
            part = table.slice(start, _BATCH_ROWS)
            waiting.append(part)
            count += part.num_rows
            size += part.nbytes
            if count >= _ROW_GROUP_ROWS or size >= max_bytes:
                yield pa.concat_tables(waiting)
                waiting, count, size = [], 0, 0
    if waiting:
        yield pa.concat_tables(waiting)
