"""Apply commits of other engines through the Iceberg REST catalog.

An engine writes files to the table's folder and sends a snapshot that lists them. Compared with its
parent, the snapshot adds and removes files. The service applies this difference to the current
state of the table, which may be newer than the parent:

* It reads the rows of added files, checks them like rows of a DataFrame, and writes them as native
files. It does not rely on values, statistics or manifests of the engine. * Removed files must still
be part of the table. If a file was rewritten meanwhile, the commit fails with a conflict.

The committed snapshot has the ID and the properties of the engine's snapshot. A request that is
repeated after a lost response is therefore recognized.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestFile,
    read_manifest_list,
)

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.jobs.load_history import LoadTotals, find_load_of_snapshot
from snowmelt.catalog.model.records import ROW_PRIVILEGES, TableRecord
from snowmelt.catalog.objects.published_snapshots import find_published_snapshot
from snowmelt.catalog.objects.tables import find_table_by_id
from snowmelt.catalog.security.access_control import require_table_privilege
from snowmelt.clock import Clock
from snowmelt.errors import (
    EngineCommitConflict,
    EngineCommitInvalid,
    LoadFailed,
    LoadOvertaken,
    PrivilegeMissing,
    SnowmeltError,
    TableInconsistent,
    TableNotFound,
    UnknownOutcome,
)
from snowmelt.loaders.arrow_conversion import convert_to_native
from snowmelt.loaders.row_and_reject_files import FileSpool, RowSpool
from snowmelt.schema.chunk_types import FIELD_ID
from snowmelt.schema.iceberg_table_form import native_schema
from snowmelt.table.file_io import make_file_io
from snowmelt.table.load_commit import (
    LoadRequest,
    LoadResult,
    OpenLoad,
    abort_load,
    begin_load,
    commit_load,
    renewing_load_lease,
)
from snowmelt.table.native_file_writer import WrittenFile
from snowmelt.table.snapshot import load_current_native_table
from snowmelt.table.warehouse_paths import Warehouse, get_copied_path, open_warehouse

_MAX_MANIFESTS = 10_000
_MAX_ADDED_FILES = 10_000
_BATCH_ROWS = 64 * 1024
_REPLACE_PRIVILEGES = ("UPDATE", "DELETE")
# Summary properties that the commit recomputes.
_COMPUTED_PREFIXES = ("total-", "added-", "deleted-", "removed-", "changed-", "manifests-")
_COMPUTED_NAMES = frozenset({"operation", "entries-processed", "engine-name", "engine-version"})


@dataclass(frozen=True, slots=True)
class EngineCommit:
    """A snapshot that an engine commits with a role. `statement` describes it in the history.

    `snapshot` has the fields of the Iceberg specification. `parent_id` is None for an empty table.
    """

    table_id: int
    role: str
    statement: str
    parent_id: int | None
    snapshot: Mapping[str, Any]

    @property
    def snapshot_id(self) -> int:
        """The ID of the snapshot."""
        return int(self.snapshot["snapshot-id"])


def commit_engine_snapshot(
    database: Database, warehouse_url: str, commit: EngineCommit, *, clock: Clock
) -> None:
    """Apply the change of an engine's snapshot, unless it is already applied.

    Raises:
        EngineCommitConflict: If a removed file or the parent snapshot is no longer part of the
            table.
        EngineCommitInvalid: If files are missing, have an unsupported form, or are not in the
            table's folder.
        LoadFailed: If a value does not fit its column.
        PrivilegeMissing: If the role lacks a privilege for the change.
        TableNotFound: If the table was dropped.
        UnknownOutcome: If the change may have been applied. Repeating the request is safe.
    """
    with database.reading() as connection:
        table = find_table_by_id(connection, commit.table_id)
        if find_load_of_snapshot(connection, table.table_id, commit.snapshot_id):
            return
        _require_privilege(connection, commit.role, table, *ROW_PRIVILEGES)
    warehouse = open_warehouse(warehouse_url)
    folder = warehouse.table_folder(table)
    files = _TableFiles(warehouse, folder)
    change = _read_change(database, table, files, commit)
    if change.removed:
        with database.reading() as connection:
            # A replaced file may lose rows and have changed values, so all these privileges are
            # required.
            for privilege in _REPLACE_PRIVILEGES:
                _require_privilege(connection, commit.role, table, privilege)
    load = begin_load(
        database,
        LoadRequest(table.name, commit.statement, commit.role),
        warehouse_url=warehouse_url,
        clock=clock,
        privileges=_REPLACE_PRIVILEGES if change.removed else ("INSERT",),
    )
    if load.table.table_id != table.table_id:
        abort_load(database, load, "The table was replaced.", clock=clock)
        raise EngineCommitConflict(reason="the table was replaced")
    try:
        with renewing_load_lease(database, load, clock=clock):
            written = _rewrite_files(load, files, change.added, clock.now())
            totals = LoadTotals(
                files=len(change.added),
                rows=sum(file.rows for file in written),
                rejects=0,
                bytes=sum(entry.file_size_in_bytes for entry in change.added),
                snapshot_id=commit.snapshot_id,
            )
            result = LoadResult(
                written,
                (),
                totals,
                removed=frozenset(change.removed),
                snapshot_id=commit.snapshot_id,
                properties=_list_own_properties(commit.snapshot),
            )
            commit_load(database, load, result, clock=clock)
    except UnknownOutcome:
        raise
    except BaseException as error:
        abort_load(database, load, str(error) or type(error).__name__, clock=clock)
        if isinstance(error, LoadOvertaken):
            with database.reading() as connection:
                if find_load_of_snapshot(connection, table.table_id, commit.snapshot_id):
                    return
            raise EngineCommitConflict(reason=str(error.fields["reason"])) from error
        raise


def _require_privilege(
    connection: sa.Connection, role: str, table: TableRecord, *privileges: str
) -> None:
    """Raise PrivilegeMissing, not TableNotFound, because the engine has already loaded the table."""
    try:
        require_table_privilege(connection, role, table, *privileges)
    except TableNotFound:
        raise PrivilegeMissing(
            role=role, privilege=" or ".join(privileges), object=f"table {table.name}"
        ) from None


@dataclass(frozen=True, slots=True)
class _Change:
    """Files that a snapshot adds to its parent, and paths of files that it removes."""

    added: list[DataFile]
    removed: set[str]


class _TableFiles(FileIO):
    """Read-only PyIceberg file access to one table, by the URLs that engines use."""

    def __init__(self, warehouse: Warehouse, folder: str) -> None:
        super().__init__()
        self._warehouse = warehouse
        self._folder = folder
        self._root = warehouse.to_public_address(f"{folder}/")
        self._native_root = warehouse.to_address(f"{folder}/")

    def to_path(self, address: str) -> str:
        """Convert a URL to a path in the warehouse.

        Raises:
            EngineCommitInvalid: If the URL is not in the table's folder.
        """
        path = address.removeprefix(self._root).removeprefix(self._native_root)
        if path == address or ".." in path.split("/"):
            raise EngineCommitInvalid(
                reason=f"file {address[:300]} is not in the folder {self._root} of the table"
            )
        return f"{self._folder}/{path}"

    def new_input(self, location: str) -> InputFile:
        """Return a file for reading."""
        address = self._warehouse.to_address(self.to_path(location))
        return make_file_io(address).new_input(address)

    def new_output(self, location: str) -> OutputFile:
        """Not supported."""
        raise NotImplementedError

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Not supported."""
        raise NotImplementedError


def _read_change(
    database: Database, table: TableRecord, files: _TableFiles, commit: EngineCommit
) -> _Change:
    """Compare the files of a snapshot with those of its parent."""
    with _translating_read_errors("the manifests of the snapshot"):
        after = _list_manifests(files, str(commit.snapshot["manifest-list"]))
    parent = _list_parent_manifests(database, table, files, commit.parent_id)
    # Manifests that are in both snapshots are not read.
    shared = after.keys() & parent.keys()
    with _translating_read_errors("a manifest of the snapshot"):
        new = _read_entries(files, [each for path, each in after.items() if path not in shared])
        old = _read_entries(files, [each for path, each in parent.items() if path not in shared])
    added = [entry for path, entry in new.items() if path not in old]
    if len(added) > _MAX_ADDED_FILES:
        raise EngineCommitInvalid(reason=f"it adds more than {_MAX_ADDED_FILES:,} files")
    return _Change(added, old.keys() - new.keys())


def _list_parent_manifests(
    database: Database, table: TableRecord, files: _TableFiles, parent_id: int | None
) -> dict[str, ManifestFile]:
    """Return the manifests of a snapshot's parent by path, as `_list_manifests` does."""
    if parent_id is None:
        return {}
    with database.reading() as connection:
        published = find_published_snapshot(connection, table.table_id, parent_id)
    if published is not None:
        with _translating_read_errors("the manifests of its parent"):
            return _list_manifests(files, published["manifest-list"])
    native = load_current_native_table(table)
    snapshot = None if native is None else native.metadata.snapshot_by_id(parent_id)
    if snapshot is None:
        raise EngineCommitConflict(
            reason=f"its parent {parent_id} is no longer a snapshot of the table"
        )
    io = make_file_io(snapshot.manifest_list)
    found = read_manifest_list(io.new_input(snapshot.manifest_list))
    return {files.to_path(each.manifest_path): each for each in found}


def _list_manifests(files: _TableFiles, address: str) -> dict[str, ManifestFile]:
    """Return the manifests of a manifest list by path. Copies are keyed by the path of their original."""
    manifests: dict[str, ManifestFile] = {}
    for manifest in read_manifest_list(files.new_input(address)):
        path = files.to_path(manifest.manifest_path)
        if manifest.content is not ManifestContent.DATA:
            raise EngineCommitInvalid(
                reason="it has delete files, which Snowmelt does not read; set the table property "
                "write.delete.mode, write.update.mode and write.merge.mode to copy-on-write"
            )
        manifests[get_copied_path(path) or path] = manifest
        if len(manifests) > _MAX_MANIFESTS:
            raise EngineCommitInvalid(reason=f"it has more than {_MAX_MANIFESTS:,} manifests")
    return manifests


def _read_entries(files: _TableFiles, manifests: Sequence[ManifestFile]) -> dict[str, DataFile]:
    """Return the live files in manifests, by path."""
    found: dict[str, DataFile] = {}
    for manifest in manifests:
        for entry in manifest.fetch_manifest_entry(files):
            path = files.to_path(entry.data_file.file_path)
            if path in found:
                raise EngineCommitInvalid(reason=f"file {path} is listed twice")
            found[path] = entry.data_file
    return found


def _rewrite_files(
    load: OpenLoad, files: _TableFiles, added: Sequence[DataFile], now: dt.datetime
) -> tuple[WrittenFile, ...]:
    """Write the rows of an engine's files to native files of a load."""
    schema = load.table.schema
    names = {column.name for column in schema.columns}
    clustered_by = tuple(name for name in load.table.cluster_by if name in names)
    spool = FileSpool(load.warehouse_url, load.folder, "rows", native_schema(schema))
    rows = RowSpool(spool, schema, clustered_by)
    try:
        for entry in added:
            for batch in _read_native_batches(load.table, files, entry, now):
                rows.add(batch)
        return rows.finish()
    finally:
        spool.abort_current_file()


def _read_native_batches(
    table: TableRecord, files: _TableFiles, entry: DataFile, now: dt.datetime
) -> Iterator[pa.Table]:
    """Yield the rows of an engine's file in native form."""
    name = entry.file_path.rpartition("/")[2][:100]
    if entry.content is not DataFileContent.DATA or entry.file_format is not FileFormat.PARQUET:
        raise EngineCommitInvalid(reason=f"file {name} is not a Parquet file of rows")
    with _translating_read_errors(f"file {name}"):
        source = files.new_input(entry.file_path)
        size = len(source)
        if size != entry.file_size_in_bytes:
            raise EngineCommitInvalid(
                reason=f"file {name} has {size:,} bytes instead of {entry.file_size_in_bytes:,}"
            )
        with source.open() as stream:
            whole = pq.ParquetFile(stream)
            if whole.metadata.num_rows != entry.record_count:
                raise EngineCommitInvalid(
                    reason=f"file {name} has {whole.metadata.num_rows:,} rows instead of "
                    f"{entry.record_count:,}"
                )
            sources = _match_fields(table, whole.schema_arrow, name)
            for batch in whole.iter_batches(_BATCH_ROWS):
                yield convert_to_native(
                    table.schema, sources, _set_time_zones(table, sources, batch), dt.UTC, now
                )


def _set_time_zones(
    table: TableRecord, sources: Sequence[int | None], batch: pa.RecordBatch
) -> pa.RecordBatch:
    """Make timestamps of a batch zoned or naive, as the table's columns are.

    As in all Iceberg readers, the type of the column decides, and not the annotation in the file.
    ClickHouse annotates all timestamps as UTC.
    """
    for field, place in zip(native_schema(table.schema), sources, strict=True):
        if place is None or not pa.types.is_timestamp(field.type):
            continue
        given = batch.schema.field(place)
        if given.type.tz != field.type.tz:
            kind = pa.timestamp(given.type.unit, field.type.tz)
            batch = batch.set_column(place, given.name, batch.column(place).cast(kind))
    return batch


def _match_fields(table: TableRecord, given: pa.Schema, name: str) -> tuple[int | None, ...]:
    """Return the index of the file's column for each native field, matched by field ID."""
    wanted = native_schema(table.schema)
    ids = [int(field.metadata[FIELD_ID]) for field in wanted]
    places: dict[int, int] = {}
    for place, field in enumerate(given):
        field_id = int((field.metadata or {}).get(FIELD_ID, -1))
        if field_id not in ids or field_id in places:
            raise EngineCommitInvalid(
                reason=f"column {field.name} of file {name} is not a column of the table, by its "
                f"field ID {field_id}"
            )
        expected = wanted.field(ids.index(field_id)).type
        if _kind(field.type) != _kind(expected):
            raise EngineCommitInvalid(
                reason=f"column {field.name} of file {name} has type {field.type}, expected {expected}"
            )
        places[field_id] = place
    for column in table.schema.columns:
        if not column.nullable and column.default is None and column.ordinal not in places:
            raise LoadFailed(
                where=f"Column {column.display_name} ({column.sql_type})",
                reason=f"it is NOT NULL, and file {name} lacks it",
            )
    return tuple(places.get(each) for each in ids)


def _kind(kind: pa.DataType) -> object:
    """Return a key that is equal for types that convert to each other if the values fit."""
    if pa.types.is_decimal(kind):
        return "decimal", kind.scale
    for check in (
        pa.types.is_integer,
        pa.types.is_time,
        pa.types.is_timestamp,
        pa.types.is_floating,
    ):
        if check(kind):
            return check
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind


def _list_own_properties(snapshot: Mapping[str, Any]) -> dict[str, str]:
    """Return the snapshot properties that the engine or its user has set."""
    return {
        str(name): str(value)
        for name, value in snapshot.get("summary", {}).items()
        if name not in _COMPUTED_NAMES and not name.startswith((*_COMPUTED_PREFIXES, "snowmelt."))
    }


@contextlib.contextmanager
def _translating_read_errors(what: str) -> Iterator[None]:
    """Translate errors of missing or malformed files of an engine."""
    try:
        yield
    except FileNotFoundError as error:
        raise EngineCommitInvalid(
            reason=f"{what} cannot be read: {error} does not exist"
        ) from error
    except (SnowmeltError, OSError) as error:
        if not isinstance(error, TableInconsistent | pa.ArrowException):
            raise
        raise EngineCommitInvalid(reason=f"{what} cannot be read: {error}") from error
    except Exception as error:
        # PyIceberg's Avro reader raises arbitrary exceptions if a file is not Avro.
        reason = f"{what} cannot be read: {str(error) or type(error).__name__}"
        raise EngineCommitInvalid(reason=reason) from error
