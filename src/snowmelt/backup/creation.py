"""Create a backup point: export the catalog, copy the files it refers to, write the manifest last.

All files that the catalog refers to are immutable, so copying may take hours while the installation
runs. A lease suspends garbage collection meanwhile (`leases.acquire_backup_lease`). Correctness
does not depend on the lease: every object is verified, and no manifest is written if one is
missing.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import secrets
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

import snowmelt
from snowmelt import failpoints
from snowmelt.backup.backup_keys import compute_fingerprint, seal_key
from snowmelt.backup.catalog_tables import (
    RowConverter,
    export_table,
    read_rows,
)
from snowmelt.backup.destination import (
    BackupDestination,
    Progress,
    Spool,
    read_object,
    report_nothing,
)
from snowmelt.backup.manifests import (
    PLAIN_KINDS,
    ChannelAtPoint,
    ExportedTable,
    FileKind,
    InventoryEntry,
    PointManifest,
    SourceDamaged,
    StoredObject,
    StoreName,
    TableAtPoint,
)
from snowmelt.catalog import model
from snowmelt.catalog.db.database import Database, open_catalog_clock, read_schema_version
from snowmelt.catalog.jobs import backup_history, leases
from snowmelt.catalog.security.encryption_keys import (
    KeyRing,
    open_or_create_keyring,
    secret_purpose,
)
from snowmelt.clock import Clock
from snowmelt.config import Settings
from snowmelt.errors import ObjectMissing
from snowmelt.failpoints import Failpoint
from snowmelt.schema.types import TableName
from snowmelt.storage.local_store import LocalStore
from snowmelt.storage.store import Store
from snowmelt.storage.store_factory import open_store
from snowmelt.table.warehouse_paths import Warehouse, open_warehouse

# Lifetime of the lease: garbage collection resumes this long after a backup was killed.
HOLD_S = 60.0

_ATTEMPTS = 3
_THREADS = 4
_FILES_PER_JOURNAL = 256
_INVENTORY_ROWS = 50_000


@dataclass(frozen=True, slots=True)
class BackupSource:
    """The installation to back up. `bucket` stores the objects of local S3 buckets."""

    database: Database
    stage: Store
    warehouse: Warehouse
    bucket: Store
    keyring: KeyRing
    clock: Clock

    @classmethod
    def open(cls, database: Database, settings: Settings) -> BackupSource:
        """Open the stores and the keyring in the settings.

        Raises:
            ConfigurationError: If settings are invalid.
        """
        return cls(
            database,
            open_store(settings.stage_url),
            open_warehouse(settings.warehouse_url),
            LocalStore(settings.objects_dir),
            open_or_create_keyring(database, settings.keys_dir),
            open_catalog_clock(database),
        )

    def get_store(self, name: StoreName) -> Store:
        """Return the store that contains a file."""
        return {"stage": self.stage, "warehouse": self.warehouse.store, "bucket": self.bucket}[name]


@dataclass(frozen=True, slots=True)
class _SourceFile:
    """A file that belongs to a point. `ranges` are (offset, length, MD5) of the chunks in a blob."""

    store: StoreName
    kind: FileKind
    path: str
    size: int | None = None
    ranges: tuple[tuple[int, int, str], ...] = ()


@dataclass(slots=True)
class _Export:
    """The exported catalog as files in a folder, and the files that it refers to."""

    at: dt.datetime
    catalog_version: str
    deployment_id: int
    sequencer_floor: int
    paths: dict[str, Path] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    last_ids: dict[str, int | None] = field(default_factory=dict)


class _ObjectVanished(Exception):
    """An object was deleted after the catalog was read."""


def create_point(
    source: BackupSource,
    destination: BackupDestination,
    public_key: X25519PublicKey,
    *,
    progress: Progress = report_nothing,
) -> PointManifest:
    """Back up an installation as a new point, while it runs.

    Copies only contents that the backup does not have yet. An interrupted run creates no point; the
    next run continues its work. `progress` receives the numbers of copied objects and bytes.

    Raises:
        BackupRejected: If another backup or expiration is using the destination.
        SourceDamaged: If an object of the installation is missing or has wrong bytes.
        BackupDamaged: If the destination does not return the bytes that were written.
    """
    with destination.locked():
        with source.database.writing() as connection:
            backup_id = backup_history.start_backup(connection, destination.url, source.clock.now())
        try:
            point = _create_in_attempts(source, destination, public_key, progress)
        except Exception as error:
            with contextlib.suppress(Exception), source.database.writing() as connection:
                backup_history.fail_backup(connection, backup_id, source.clock.now(), str(error))
            raise
        with source.database.writing() as connection:
            backup_history.commit_backup(
                connection,
                backup_id,
                source.clock.now(),
                point_id=point.point_id,
                objects=point.copied_objects,
                size=point.copied_bytes,
            )
    return point


def _create_in_attempts(
    source: BackupSource,
    destination: BackupDestination,
    public_key: X25519PublicKey,
    progress: Progress,
) -> PointManifest:
    with _holding(source, destination.url):
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return _create(source, destination, public_key, progress)
            except _ObjectVanished as error:
                # Garbage collection that began before the backup deleted the object.
                if attempt == _ATTEMPTS:
                    raise SourceDamaged(
                        path=str(error),
                        reason="the catalog refers to it, but it does not exist. Run `snowmelt "
                        "doctor` for details",
                    ) from error
    raise AssertionError("unreachable")


@contextlib.contextmanager
def _holding(source: BackupSource, url: str) -> Iterator[None]:
    with source.database.writing() as connection:
        lease = leases.acquire_backup_lease(connection, url, ttl_s=HOLD_S, now=source.clock.now())
    try:
        with leases.renewing_lease(source.database, lease, ttl_s=HOLD_S, clock=source.clock):
            yield
    finally:
        with contextlib.suppress(Exception), source.database.writing() as connection:
            leases.release_lease(connection, lease)


def _create(
    source: BackupSource,
    destination: BackupDestination,
    public_key: X25519PublicKey,
    progress: Progress,
) -> PointManifest:
    with tempfile.TemporaryDirectory(prefix="snowmelt-backup-") as name:
        folder = Path(name)
        export = _export_catalog(source, public_key, folder)
        failpoints.hit_failpoint(Failpoint.BACKUP_EXPORTED)
        tables, native_files = _describe_tables(source, export)
        files = [*_list_blobs(export), *native_files, *_list_bucket_files(export)]
        copier = _Copier(source, destination, progress)
        entries = copier.copy_files(files)
        catalog = {
            table_name: ExportedTable(
                copier.copy_local(path), export.rows[table_name], export.last_ids[table_name]
            )
            for table_name, path in export.paths.items()
        }
        inventory = copier.copy_local(_write_inventory(entries, folder / "inventory.parquet"))
        manifest = PointManifest(
            point_id=f"{export.at:%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(2)}",
            at=export.at,
            snowmelt_version=snowmelt.__version__,
            catalog_version=export.catalog_version,
            deployment_id=export.deployment_id,
            sequencer_floor=export.sequencer_floor,
            warehouse_root=source.warehouse.to_address(""),
            key_fingerprint=compute_fingerprint(public_key),
            catalog=catalog,
            inventory=inventory,
            objects=len(entries),
            bytes=sum(entry.stored.size for entry in entries),
            copied_objects=copier.copied_objects,
            copied_bytes=copier.copied_bytes,
            tables=tables,
            channels=_list_channels(export, tables),
        )
        failpoints.hit_failpoint(Failpoint.BACKUP_COPIED)
        destination.add_point(manifest)
        failpoints.hit_failpoint(Failpoint.BACKUP_COMPLETED)
        destination.delete_journals()
        return manifest


def _export_catalog(source: BackupSource, public_key: X25519PublicKey, folder: Path) -> _Export:
    with source.database.reading() as connection:
        deployment = connection.execute(sa.select(model.deployment)).one()
        # The transaction sees only commits from before this time.
        export = _Export(
            source.clock.now(),
            read_schema_version(connection) or "",
            deployment.deployment_id,
            deployment.sequencer_floor or 0,
        )
        converters = make_sealing_converters(connection, source, public_key)
        for table in model.list_portable_tables():
            done = export_table(connection, table, folder, converters.get(table.name))
            export.paths[table.name] = done.path
            export.rows[table.name] = done.rows
            export.last_ids[table.name] = done.last_id
    return export


def make_sealing_converters(
    connection: sa.Connection, source: BackupSource, public_key: X25519PublicKey
) -> Mapping[str, RowConverter]:
    """Return row converters by table. They encrypt keys and replace URLs by relative paths."""
    query = sa.select(model.tables.c.table_id, model.tables.c.incarnation)
    incarnations = {row.table_id: row.incarnation for row in connection.execute(query)}

    def convert_table(row: dict[str, Any]) -> dict[str, Any]:
        if row["pointer"] is not None:
            row["pointer"] = source.warehouse.to_path(row["pointer"])
        return row

    def convert_table_key(row: dict[str, Any]) -> dict[str, Any]:
        incarnation = incarnations[row["table_id"]]
        key = source.keyring.unwrap(row["wrapped_key"], incarnation)
        row["wrapped_key"] = seal_key(public_key, key, incarnation)
        return row

    def convert_access_key(row: dict[str, Any]) -> dict[str, Any]:
        purpose = secret_purpose(row["access_key_id"])
        secret = source.keyring.unseal(row["sealed_secret"], purpose)
        row["sealed_secret"] = seal_key(public_key, secret, purpose)
        return row

    def convert_lease(row: dict[str, Any]) -> dict[str, Any]:
        row["expires_at"] = None
        return row

    return {
        "leases": convert_lease,
        "tables": convert_table,
        "table_keys": convert_table_key,
        "access_keys": convert_access_key,
    }


def _describe_tables(
    source: BackupSource, export: _Export
) -> tuple[tuple[TableAtPoint, ...], list[_SourceFile]]:
    """Return the counts of the tables, and the files of native tables."""
    schemas = {row["schema_id"]: row for row in read_rows(export.paths["schemas"])}
    databases = {row["database_id"]: row["name"] for row in read_rows(export.paths["databases"])}
    rows = {row["table_id"]: row for row in read_rows(export.paths["tables"])}
    fresh_rows = dict.fromkeys(rows, 0)
    for chunk in read_rows(export.paths["chunks"]):
        is_quarantined = chunk["quarantine_reason"] is not None
        if chunk["seq"] > rows[chunk["table_id"]]["migrated_seq"] or is_quarantined:
            fresh_rows[chunk["table_id"]] += chunk["rows"]
    # Import PyIceberg only for a backup: processes that replicate use other functions of this module.
    from snowmelt.backup.native_metadata import list_table_files

    states = []
    files: list[_SourceFile] = []
    for table_id, row in rows.items():
        # Garbage collection may have deleted files of a table whose retention has passed.
        if row["purged_at"] is not None:
            continue
        native_rows = 0
        if row["pointer"] is not None:
            address = source.warehouse.to_address(row["pointer"])
            try:
                found, native_rows = list_table_files(address, row["incarnation"])
            except FileNotFoundError as error:
                raise _ObjectVanished(row["pointer"]) from error
            files += (
                _SourceFile("warehouse", f.kind, source.warehouse.to_path(f.address), f.size)
                for f in found
            )
        schema = schemas[row["schema_id"]]
        table_name = TableName(databases[schema["database_id"]], schema["name"], row["name"])
        states.append(
            TableAtPoint(
                table_id,
                str(table_name),
                row["incarnation"],
                row["last_seq"],
                row["migrated_seq"],
                native_rows,
                fresh_rows[table_id],
                row["dropped_at"] is not None,
            )
        )
    return tuple(states), files


def _list_blobs(export: _Export) -> Iterator[_SourceFile]:
    ranges: dict[str, list[tuple[int, int, str]]] = {}
    for chunk in read_rows(export.paths["chunks"]):
        # Omit the blob of a quarantined chunk, which is known to be damaged.
        if chunk["quarantine_reason"] is None:
            path = f"{chunk['prefix']}/{chunk['path']}"
            ranges.setdefault(path, []).append((chunk["offset"], chunk["length"], chunk["md5"]))
    for path, found in ranges.items():
        yield _SourceFile("stage", "blob", path, ranges=tuple(found))


def _list_bucket_files(export: _Export) -> Iterator[_SourceFile]:
    for row in read_rows(export.paths["objects"]):
        yield _SourceFile("bucket", "object", row["file"], row["size"])


def _list_channels(export: _Export, tables: Iterable[TableAtPoint]) -> tuple[ChannelAtPoint, ...]:
    names = {table.table_id: table.name for table in tables if not table.is_dropped}
    return tuple(
        ChannelAtPoint(
            names[row["table_id"]],
            row["name"],
            row["offset_token"],
            row["client_sequencer"],
            row["row_sequencer"],
        )
        for row in read_rows(export.paths["channels"])
        if row["table_id"] in names
    )


class _Copier:
    """Copies files into a backup concurrently, and records them in journals."""

    def __init__(
        self, source: BackupSource, destination: BackupDestination, progress: Progress
    ) -> None:
        self._source = source
        self._destination = destination
        self._progress = progress
        self._existing = destination.list_objects()
        # Reuse only files of the same deployment: a restored deployment may have other content
        # under the same path. Sites of a failover group are one deployment, but their copies of
        # native metadata contain the URLs of different warehouses.
        with source.database.reading() as connection:
            self._deployment_id = leases.read_deployment_id(connection)
        self._warehouse_root = source.warehouse.to_address("")
        root_id = hashlib.sha256(self._warehouse_root.encode()).hexdigest()[:16]
        self._journal_folder = f"{self._deployment_id}-{root_id}"
        self._known = self._read_known_files()
        self._run = f"{self._journal_folder}/{secrets.token_hex(8)}"
        self._mutex = threading.Lock()
        self.copied_objects = 0
        self.copied_bytes = 0

    def copy_files(self, files: Iterable[_SourceFile]) -> list[InventoryEntry]:
        """Copy the files that the backup does not have. Return the inventory entries of all files."""
        entries: list[InventoryEntry] = []
        missing: list[_SourceFile] = []
        for file in files:
            known = self._find_known(file)
            if known is None:
                missing.append(file)
            else:
                entries.append(known)
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="backup") as threads:
            for number, start in enumerate(range(0, len(missing), _FILES_PER_JOURNAL)):
                batch = missing[start : start + _FILES_PER_JOURNAL]
                copied = list(threads.map(self._copy_file, batch))
                self._destination.add_journal(self._run, number, copied)
                entries += copied
        return entries

    def copy_local(self, path: Path) -> StoredObject:
        """Copy a temporary file into the backup."""
        with path.open("rb") as file:
            spool = Spool(iter(lambda: file.read(1 << 20), b""))
        with contextlib.closing(spool):
            self._add(spool)
            return spool.stored

    def _find_known(self, file: _SourceFile) -> InventoryEntry | None:
        """Return the entry of a file that an earlier run has copied, or None. Files never change."""
        stored = self._known.get((file.store, file.path))
        if stored is None or self._existing.get(stored.sha256) != stored.size:
            return None
        if file.size is not None and file.size != stored.size:
            return None
        return InventoryEntry(file.store, file.kind, file.path, stored)

    def _copy_file(self, file: _SourceFile) -> InventoryEntry:
        store = self._source.get_store(file.store)
        try:
            spool = Spool(read_object(store, file.path))
        except ObjectMissing as error:
            raise _ObjectVanished(f"{file.store}:{file.path}") from error
        with contextlib.closing(spool):
            _verify_content(file, spool)
            self._add(spool)
        failpoints.hit_failpoint(Failpoint.BACKUP_OBJECT)
        return InventoryEntry(file.store, file.kind, file.path, spool.stored)

    def _add(self, spool: Spool) -> None:
        if not self._destination.add_object(spool, self._existing):
            return
        with self._mutex:
            self.copied_objects += 1
            self.copied_bytes += spool.stored.size
            self._progress(self.copied_objects, self.copied_bytes)

    def _read_known_files(self) -> dict[tuple[str, str], StoredObject]:
        known: dict[tuple[str, str], StoredObject] = {}
        points = self._destination.list_points()
        ours = [point for point in points if point.deployment_id == self._deployment_id]
        for point in ours[-1:]:
            has_same_urls = point.warehouse_root == self._warehouse_root
            for entry in read_inventory(self._destination, point):
                if has_same_urls or entry.kind in PLAIN_KINDS:
                    known[entry.store, entry.path] = entry.stored
        for entry in self._destination.read_journals(self._journal_folder):
            known[entry.store, entry.path] = entry.stored
        return known


def _verify_content(file: _SourceFile, spool: Spool) -> None:
    size = spool.stored.size
    if file.size is not None and size != file.size:
        raise SourceDamaged(
            path=f"{file.store}:{file.path}",
            reason=f"it has {size:,} bytes instead of {file.size:,}",
        )
    for offset, length, md5 in file.ranges:
        if offset + length > size or spool.compute_md5(offset, length) != md5:
            raise SourceDamaged(
                path=f"{file.store}:{file.path}",
                reason=f"the chunk at byte {offset:,} has another checksum than the registered one. "
                "Restore the blob, or migrate the table and discard the chunk with `snowmelt chunks "
                "give-up`",
            )


def _write_inventory(entries: Iterable[InventoryEntry], path: Path) -> Path:
    schema = pa.schema(
        [
            ("store", pa.string()),
            ("kind", pa.string()),
            ("path", pa.string()),
            ("sha256", pa.string()),
            ("size", pa.int64()),
        ]
    )
    ordered = iter(sorted(entries, key=lambda entry: (entry.store, entry.path)))
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while batch := list(islice(ordered, _INVENTORY_ROWS)):
            columns = [
                [entry.store for entry in batch],
                [entry.kind for entry in batch],
                [entry.path for entry in batch],
                [entry.stored.sha256 for entry in batch],
                [entry.stored.size for entry in batch],
            ]
            writer.write_table(pa.Table.from_arrays(list(map(pa.array, columns)), schema=schema))
    return path


def read_inventory(
    destination: BackupDestination, point: PointManifest
) -> Iterator[InventoryEntry]:
    """Yield the inventory of a point: its files.

    Raises:
        BackupDamaged: If the inventory is missing or has wrong bytes.
    """
    with (
        tempfile.TemporaryDirectory(prefix="snowmelt-backup-") as folder,
        destination.downloaded(point.inventory, Path(folder)) as path,
    ):
        for batch in pq.ParquetFile(path).iter_batches(_INVENTORY_ROWS):
            for row in batch.to_pylist():
                stored = StoredObject(row["sha256"], row["size"])
                yield InventoryEntry(row["store"], row["kind"], row["path"], stored)
