"""Metadata and commits of one native table as an Iceberg table of format version 2.

PyIceberg creates snapshots, manifests and metadata files. The catalog stores the pointer to a
table's current metadata file. `PointerCatalog` receives the function that makes a commit visible.
Each commit writes its `IcebergSummary` twice: as table properties, which later commits preserve,
and in the snapshot's summary, with which the properties are verified.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile, read_manifest_list
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile, ToOutputFile
from pyiceberg.table import CommitTableResponse, Table, Transaction
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    TableRequirement,
    TableUpdate,
    update_table_metadata,
)
from pyiceberg.table.update.snapshot import ExpireSnapshots
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from snowmelt.catalog.model.records import TableRecord
from snowmelt.clock import to_epoch_ms
from snowmelt.errors import ConflictError, TableInconsistent
from snowmelt.schema.chunk_types import FIELD_ID
from snowmelt.schema.iceberg_table_form import native_schema
from snowmelt.schema.types import TableSchema
from snowmelt.table.file_io import make_file_io
from snowmelt.table.native_file import NativeFile
from snowmelt.table.native_file_writer import WrittenFile, make_data_file
from snowmelt.table.warehouse_paths import Warehouse

MAX_SNAPSHOTS = 50

_PROPERTY_PREFIX = "snowmelt."
_TABLE_PROPERTIES = {
    # Disable PyIceberg's retries: it would retry a lost commit on the newer table and duplicate
    # rows.
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "50",
    "write.metadata.previous-versions-max": str(MAX_SNAPSHOTS),
    "write.parquet.compression-codec": "zstd",
}
_ICEBERG_TYPES: dict[pa.DataType, PrimitiveType] = {
    pa.bool_(): BooleanType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.date32(): DateType(),
    pa.int32(): IntegerType(),
    pa.time64("us"): TimeType(),
    pa.timestamp("us"): TimestampType(),
    pa.timestamp("us", "UTC"): TimestamptzType(),
}


@dataclass(frozen=True, slots=True)
class IcebergSummary:
    """Content of a native table as of its last commit.

    The table has all chunks up to `watermark`, except quarantined chunks. Run `run_id` added
    `rows`; `total_rows` is the total. `checksum` is chained over (sequence, rows) of every migrated
    chunk. `replaced_rows` is the number of rows in all files that commits of other engines
    replaced.
    """

    incarnation: str
    watermark: int
    run_id: str
    epoch: int
    rows: int
    total_rows: int
    checksum: str
    replaced_rows: int = 0

    def to_properties(self) -> dict[str, str]:
        """Return the summary as table properties."""
        return {
            _PROPERTY_PREFIX + name.replace("_", "-"): str(getattr(self, name))
            for name in self.__slots__
        }


@dataclass(frozen=True, slots=True)
class NativeTable:
    """Native table, as one metadata file describes it."""

    location: str
    metadata: TableMetadata
    facts: IcebergSummary

    @property
    def committed_at(self) -> dt.datetime:
        """Time of the current snapshot."""
        snapshot = self.metadata.current_snapshot()
        milliseconds = self.metadata.last_updated_ms if snapshot is None else snapshot.timestamp_ms
        return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)

    def has_snapshot_of_run(self, run_id: str) -> bool:
        """Return True if this run committed a retained snapshot."""
        summaries = [snapshot.summary for snapshot in self.metadata.snapshots]
        key = _PROPERTY_PREFIX + "run-id"
        return any(s is not None and s.additional_properties.get(key) == run_id for s in summaries)


@dataclass(frozen=True, slots=True)
class IcebergAppend:
    """Commit to a table: files to add in `folder` of `warehouse`, and the new summary.

    `base` is the table for which the files were planned, or None for the first commit. `removed`
    are files of `base` that the new files replace. With `changes_rows`, the new files have other
    rows. Snapshots before `expire_before_ms` expire. `run_id` is the ID for the name of the
    metadata file if it differs from that of the summary. `snapshot_id` and `properties` are those
    of the new snapshot. If the ID is None, it is random.
    """

    warehouse: Warehouse
    folder: str
    base: NativeTable | None
    schema: TableSchema
    files: Sequence[WrittenFile]
    facts: IcebergSummary
    now_ms: int
    expire_before_ms: int = 0
    run_id: str | None = None
    removed: Sequence[DataFile] = ()
    changes_rows: bool = False
    snapshot_id: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


class PointerCatalog(NoopCatalog):
    """PyIceberg catalog of one table that supports only commits, with a given function.

    `swap(location, snapshot_id)` makes the new metadata file current, or raises an error without a
    change.
    """

    def __init__(self, append: IcebergAppend, swap: Callable[[str, int], None]) -> None:
        super().__init__("snowmelt")
        self._append = append
        self._swap = swap

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """Write the metadata file durably, then swap the pointer."""
        for requirement in requirements:
            requirement.validate(table.metadata)
        metadata = update_table_metadata(
            table.metadata,
            tuple(_complete_snapshot(update, self._append, table.metadata) for update in updates),
            metadata_location=table.metadata_location or None,
        )
        version = _metadata_version(table.metadata_location) + 1
        run_id = self._append.run_id or self._append.facts.run_id
        name = f"{version:05d}-{run_id}.metadata.json"
        location = f"{metadata.location}/metadata/{name}"
        ToOutputFile.table_metadata(metadata, table.io.new_output(location))
        self._append.warehouse.store.sync()
        snapshot_id = metadata.current_snapshot_id
        if snapshot_id is None:
            raise TableInconsistent(table=metadata.location, reason="a commit made no snapshot")
        try:
            self._swap(location, snapshot_id)
        except ConflictError:
            # Delete the metadata file, which is certainly not current, so that a retry leaves only
            # its last one.
            self._append.warehouse.store.delete(self._append.warehouse.to_path(location))
            raise
        return CommitTableResponse.model_validate(
            {"metadata": metadata, "metadata-location": location}
        )


# Cache metadata files, which never change, so that queries of an unchanged table read a file once.
@lru_cache(maxsize=64)
def load_native_table(location: str, incarnation: str) -> NativeTable:
    """Read a metadata file, and verify that its summary belongs to the incarnation.

    Raises:
        TableInconsistent: If the table is another incarnation, the summary is missing, or the
            snapshots contradict the properties (for example after a rollback by another tool).
    """
    io = make_file_io(location)
    metadata = FromInputFile.table_metadata(io.new_input(location))
    facts = _parse_summary(metadata.properties, location)
    if facts.incarnation != incarnation or metadata.table_uuid != uuid.UUID(incarnation):
        raise TableInconsistent(table=location, reason="it belongs to another incarnation")
    _verify_summary(facts, metadata, location)
    return NativeTable(location, metadata, facts)


def list_native_files(native: NativeTable) -> list[NativeFile]:
    """Return the files of the current snapshot, in the order of their chunks.

    Raises:
        TableInconsistent: If another tool has added delete files.
    """
    files = (
        file
        for manifest in _read_current_manifests(native)
        for file in _read_data_manifest(manifest, native)
    )
    return sorted(files, key=lambda file: (file.sequence, file.path))


def find_file_entries(native: NativeTable, addresses: Collection[str]) -> list[DataFile]:
    """Return the entries of these files in the current snapshot. Omits files that it lacks."""
    snapshot = native.metadata.current_snapshot()
    if snapshot is None or not addresses:
        return []
    io = make_file_io(native.location)
    return [
        entry.data_file
        for manifest in snapshot.manifests(io)
        for entry in manifest.fetch_manifest_entry(io)
        if entry.data_file.file_path in addresses
    ]


def list_current_file_addresses(native: NativeTable) -> Iterator[str]:
    """Yield the addresses of all files of the current snapshot: manifest list, manifests, data."""
    snapshot = native.metadata.current_snapshot()
    if snapshot is not None:
        yield snapshot.manifest_list
        for manifest in _read_current_manifests(native):
            yield manifest.manifest_path
            for file in _read_data_manifest(manifest, native):
                yield file.path


def list_retained_file_addresses(native: NativeTable) -> Iterator[str]:
    """Yield the addresses of all files of all retained snapshots, including metadata files."""
    yield native.location
    for entry in native.metadata.metadata_log:
        yield entry.metadata_file
    io = make_file_io(native.location)
    seen = set[str]()
    for snapshot in native.metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                yield manifest.manifest_path
                for file in _read_data_manifest(manifest, native):
                    yield file.path


def parse_snapshot_summary(snapshot: Snapshot, location: str) -> IcebergSummary | None:
    """Return the summary of a snapshot, or None if Snowmelt did not commit it.

    Raises:
        TableInconsistent: If the summary is incomplete.
    """
    if snapshot.summary is None or not _has_summary(snapshot):
        return None
    return _parse_summary(snapshot.summary.additional_properties, location)


def commit_append(append: IcebergAppend, swap: Callable[[str, int], None]) -> None:
    """Replace and add files with their summary in one commit. Also expires old snapshots.

    The new snapshot is the child of `append.base`.

    Errors of `swap` are passed on. Files that were written for the commit are kept, because only
    the catalog knows whether it succeeded.
    """
    transaction = begin_transaction(append, swap)
    properties = append.facts.to_properties()
    transaction.set_properties(properties)
    update = transaction.update_snapshot(snapshot_properties={**append.properties, **properties})
    producer = update.overwrite() if append.removed else update.merge_append()
    if append.snapshot_id is not None:
        # Use the engine's snapshot ID, because the engine searches for this ID after a lost
        # response.
        producer._snapshot_id = append.snapshot_id  # noqa: SLF001 - no public API
    with producer:
        for entry in append.removed:
            producer.delete_data_file(entry)
        for file in append.files:
            producer.append_data_file(make_data_file(file, append.warehouse.to_address(file.path)))
    transaction.commit_transaction()


def begin_transaction(append: IcebergAppend, swap: Callable[[str, int], None]) -> Transaction:
    """Begin a commit whose snapshot is a child of `append.base`, and expire old snapshots."""
    base = append.base
    metadata = (
        _make_first_metadata(
            append.warehouse.to_address(append.folder),
            append.facts.incarnation,
            append.schema,
            append.now_ms,
        )
        if base is None
        else _add_schema_version(base, append.schema)
    )
    location = "" if base is None else base.location
    io = make_file_io(metadata.location)
    table = Table((append.folder,), metadata, location, io, PointerCatalog(append, swap))
    transaction = table.transaction()
    expired = find_expired_snapshots(metadata, append.expire_before_ms)
    if expired:
        ExpireSnapshots(transaction).by_ids(expired).commit()
    return transaction


def find_expired_snapshots(metadata: TableMetadata, before_ms: int = 0) -> list[int]:
    """Return the snapshots that the next commit expires: those above the limit or before a time."""
    kept = sorted(metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    surplus = {snapshot.snapshot_id for snapshot in kept[: max(len(kept) - MAX_SNAPSHOTS + 1, 0)]}
    old = {snapshot.snapshot_id for snapshot in kept if snapshot.timestamp_ms < before_ms}
    return sorted((surplus | old) - {ref.snapshot_id for ref in metadata.refs.values()})


def to_iceberg_schema(schema: TableSchema) -> Schema:
    """Return the Iceberg schema of a table's native form, with its field IDs."""
    fields = [
        NestedField(
            field_id=int(field.metadata[FIELD_ID]),
            name=field.name,
            field_type=_to_iceberg_type(field.type),
            required=not field.nullable,
        )
        for field in native_schema(schema)
    ]
    return Schema(*fields, schema_id=schema.version)


def _to_iceberg_type(kind: pa.DataType) -> PrimitiveType:
    if pa.types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    return _ICEBERG_TYPES[kind]


def make_current_metadata(
    native: NativeTable | None, table: TableRecord, location: str
) -> TableMetadata:
    """Return the metadata of a table with its current columns. `location` is its folder's address."""
    if native is not None:
        return _add_schema_version(native, table.schema)
    return _make_first_metadata(
        location, table.incarnation, table.schema, to_epoch_ms(table.created_at)
    )


def _make_first_metadata(
    location: str, incarnation: str, schema: TableSchema, now_ms: int
) -> TableMetadata:
    # Build the metadata directly, because PyIceberg's table creation renumbers the fields.
    iceberg_schema = to_iceberg_schema(schema)
    return TableMetadataV2.model_validate(
        {
            "location": location,
            "table-uuid": uuid.UUID(incarnation),
            "last-updated-ms": now_ms,
            "schemas": [iceberg_schema],
            "last-column-id": iceberg_schema.highest_field_id,
            "current-schema-id": iceberg_schema.schema_id,
            "partition-specs": [UNPARTITIONED_PARTITION_SPEC],
            "default-spec-id": UNPARTITIONED_PARTITION_SPEC.spec_id,
            "last-partition-id": PARTITION_FIELD_ID_START - 1,
            "sort-orders": [UNSORTED_SORT_ORDER],
            "default-sort-order-id": UNSORTED_SORT_ORDER.order_id,
            "properties": dict(_TABLE_PROPERTIES),
        }
    )


def _add_schema_version(base: NativeTable, schema: TableSchema) -> TableMetadata:
    metadata = base.metadata
    # Keep the newer version: a run that was planned before a schema change must not undo it.
    if metadata.current_schema_id >= schema.version:
        return metadata
    # Do not use AddSchemaUpdate: it requires increasing IDs, and companions have much higher IDs.
    new = to_iceberg_schema(schema)
    others = [old for old in metadata.schemas if old.schema_id != schema.version]
    return metadata.model_copy(
        update={
            "schemas": [*others, new],
            "current_schema_id": new.schema_id,
            "last_column_id": max(metadata.last_column_id, new.highest_field_id),
        }
    )


def _complete_snapshot(
    update: TableUpdate, append: IcebergAppend, base: TableMetadata
) -> TableUpdate:
    """Set time and operation of a new snapshot.

    Its time is not before that of the previous snapshot, because other readers reject decreasing
    times.
    """
    if not isinstance(update, AddSnapshotUpdate):
        return update
    changes: dict[str, Any] = {"timestamp_ms": max(append.now_ms, base.last_updated_ms + 1)}
    summary = update.snapshot.summary
    if summary is not None and summary.operation is Operation.OVERWRITE and not append.changes_rows:
        # This commit replaces files but changes no rows, so readers of changes may skip it.
        changes["summary"] = Summary(Operation.REPLACE, **summary.additional_properties)
    return AddSnapshotUpdate(snapshot=update.snapshot.model_copy(update=changes))


def _metadata_version(location: str) -> int:
    """Return the number at the start of a metadata file name, or -1 if there is none."""
    name = location.rpartition("/")[2]
    return int(name.partition("-")[0]) if name else -1


def _parse_summary(properties: Mapping[str, Any], location: str) -> IcebergSummary:
    values = {
        name: properties.get(_PROPERTY_PREFIX + name.replace("_", "-"))
        for name in IcebergSummary.__slots__
    }
    # Tables of earlier releases lack the value: engines could not replace their files.
    values["replaced_rows"] = values["replaced_rows"] or "0"
    # Do not treat a missing value as 0, which would migrate everything again.
    missing = [name for name, value in values.items() if value is None]
    if missing:
        raise TableInconsistent(table=location, reason=f"{', '.join(missing)} missing")
    return IcebergSummary(
        incarnation=str(values["incarnation"]),
        watermark=int(values["watermark"] or ""),
        run_id=str(values["run_id"]),
        epoch=int(values["epoch"] or ""),
        rows=int(values["rows"] or ""),
        total_rows=int(values["total_rows"] or ""),
        checksum=str(values["checksum"]),
        replaced_rows=int(values["replaced_rows"] or 0),
    )


def _verify_summary(summary: IcebergSummary, metadata: TableMetadata, location: str) -> None:
    snapshot = metadata.current_snapshot()
    proof: Snapshot | None = snapshot
    while proof is not None and not _has_summary(proof):
        proof = (
            metadata.snapshot_by_id(proof.parent_snapshot_id)
            if proof.parent_snapshot_id is not None
            else None
        )
    if proof is None or proof.summary is None:
        raise TableInconsistent(table=location, reason="no snapshot proves its watermark")
    proved = _parse_summary(proof.summary.additional_properties, location)
    if proved != summary:
        raise TableInconsistent(
            table=location,
            reason=f"watermark {summary.watermark} of run {summary.run_id} is not what its snapshots "
            f"hold: {proved.watermark} of run {proved.run_id}",
        )
    total = proof.summary.additional_properties.get("total-records")
    if total != str(summary.total_rows):
        raise TableInconsistent(
            table=location, reason=f"{total} rows instead of {summary.total_rows}"
        )


def _has_summary(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and (
        _PROPERTY_PREFIX + "watermark" in snapshot.summary.additional_properties
    )


def _read_current_manifests(native: NativeTable) -> Sequence[ManifestFile]:
    snapshot = native.metadata.current_snapshot()
    return () if snapshot is None else _read_manifest_list(snapshot.manifest_list)


def _read_data_manifest(manifest: ManifestFile, native: NativeTable) -> tuple[NativeFile, ...]:
    if manifest.content is not ManifestContent.DATA:
        raise TableInconsistent(
            table=native.location, reason="another tool has deleted rows from it by delete files"
        )
    return _read_manifest(manifest)


# Cache by path, because manifest lists and manifests never change.
@lru_cache(maxsize=64)
def _read_manifest_list(location: str) -> tuple[ManifestFile, ...]:
    return tuple(read_manifest_list(make_file_io(location).new_input(location)))


@lru_cache(maxsize=512)
def _read_manifest(manifest: ManifestFile) -> tuple[NativeFile, ...]:
    io = make_file_io(manifest.manifest_path)
    entries = [
        (entry.sequence_number or 0, entry.data_file) for entry in manifest.fetch_manifest_entry(io)
    ]
    return tuple(
        NativeFile(
            path=file.file_path,
            sequence=sequence,
            size=file.file_size_in_bytes,
            rows=file.record_count,
            lower=dict(file.lower_bounds or {}),
            upper=dict(file.upper_bounds or {}),
            nulls=dict(file.null_value_counts or {}),
            nans=dict(file.nan_value_counts or {}),
        )
        for sequence, file in entries
    )
