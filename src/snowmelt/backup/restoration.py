"""Restore a point into an empty installation: objects first, then the catalog in one transaction.

The restored installation has a new deployment ID, and its client sequencers begin above those of
the original. A client of the original must therefore reopen its channels before it writes here. It
then resumes after the offset tokens of the point.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import secrets
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from snowmelt import failpoints
from snowmelt.backup.backup_keys import compute_fingerprint, open_key
from snowmelt.backup.catalog_tables import (
    RowConverter,
    import_table,
    read_rows,
)
from snowmelt.backup.creation import read_inventory
from snowmelt.backup.destination import (
    BackupDestination,
    Progress,
    Spool,
    hash_object,
    report_nothing,
    write_verified,
)
from snowmelt.backup.manifests import (
    PLAIN_KINDS,
    AddressConverter,
    BackupDamaged,
    BackupRejected,
    InventoryEntry,
    PointManifest,
    StoreName,
)
from snowmelt.catalog import model
from snowmelt.catalog.db.database import (
    SCHEMA_VERSION,
    Database,
    open_database,
    read_schema_version,
    upgrade_schema,
)
from snowmelt.catalog.security.encryption_keys import (
    KeyRing,
    compute_master_key_check_value,
    load_master_key,
    secret_purpose,
)
from snowmelt.clock import Clock
from snowmelt.errors import ObjectMissing
from snowmelt.failpoints import Failpoint
from snowmelt.storage.store import Store
from snowmelt.table.warehouse_paths import Warehouse

# Import PyIceberg only to write metadata: replication uses other functions of this module.
if TYPE_CHECKING:
    from pyiceberg.io import OutputFile
    from pyiceberg.manifest import ManifestFile

# File at the root of the warehouse that marks an installation as being restored.
MARKER = "restoring.json"

_THREADS = 4
# A restored installation's client sequencers begin at the minutes since 2026 times this number, so
# two restorations of the same point differ.
_SEQUENCERS_PER_LINE = 2**32
_LINES_SINCE = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """The empty installation to restore into. A missing master key is created in `keys_dir`."""

    catalog_url: str
    stage: Store
    warehouse: Warehouse
    bucket: Store
    keys_dir: Path
    clock: Clock

    def get_store(self, name: StoreName) -> Store:
        """Return the store that receives a file."""
        return {"stage": self.stage, "warehouse": self.warehouse.store, "bucket": self.bucket}[name]

    def list_stores(self) -> list[Store]:
        """Return all stores of the installation."""
        return [self.stage, self.warehouse.store, self.bucket]


class _Marker(msgspec.Struct, frozen=True):
    point_id: str
    deployment_id: int


def choose_point(points: list[PointManifest], text: str) -> PointManifest:
    """Return the point with an ID, the last point at or before a time, or the `latest` point.

    Raises:
        BackupRejected: If there is no such point.
    """
    if not points:
        raise BackupRejected(reason="the backup is empty. Create a point with `snowmelt backup`")
    if text == "latest":
        return points[-1]
    for point in points:
        if point.point_id == text:
            return point
    try:
        until = dt.datetime.fromisoformat(text)
    except ValueError:
        raise BackupRejected(
            reason=f"there is no point {text!r}. Give an ID of `snowmelt backup list`, a time such as "
            "2026-11-22T09:00:00Z, or latest"
        ) from None
    if until.tzinfo is None:
        raise BackupRejected(reason=f"the time {text!r} needs a zone, for example {text}Z")
    earlier = [point for point in points if point.at <= until]
    if not earlier:
        raise BackupRejected(
            reason=f"no point is at or before {text}; the first is of {points[0].at.isoformat()}"
        )
    return earlier[-1]


def restore_point(
    destination: BackupDestination,
    point: PointManifest,
    private_key: X25519PrivateKey,
    target: RestoreTarget,
    *,
    progress: Progress = report_nothing,
) -> int:
    """Restore a point. Return the deployment ID of the new installation.

    An interrupted restoration leaves no catalog; the same call continues it. `progress` receives
    the numbers of restored objects and bytes.

    Raises:
        BackupRejected: If the installation is not empty, or the private key does not match the
            backup.
        BackupDamaged: If an object of the backup is missing or has wrong bytes.
    """
    if compute_fingerprint(private_key.public_key()) != point.key_fingerprint:
        raise BackupRejected(
            reason=f"point {point.point_id} was sealed for the key {point.key_fingerprint}, and the "
            f"private key is {compute_fingerprint(private_key.public_key())}"
        )
    if point.catalog_version > SCHEMA_VERSION:
        raise BackupRejected(
            reason=f"point {point.point_id} was written by a newer Snowmelt "
            f"({point.snowmelt_version}). Use that one, or a newer one"
        )
    with contextlib.closing(open_database(target.catalog_url)) as database:
        marker = _begin(database, point, target)
        if not _has_catalog(database):
            for store in target.list_stores():
                store.watch_writes()
            _restore_files(destination, point, target, progress)
            for store in target.list_stores():
                store.sync()
            failpoints.hit_failpoint(Failpoint.RESTORE_COPIED)
            _restore_catalog(destination, point, private_key, target, database, marker)
        failpoints.hit_failpoint(Failpoint.RESTORE_COMMITTED)
        target.warehouse.store.delete(MARKER)
    return marker.deployment_id


def _begin(database: Database, point: PointManifest, target: RestoreTarget) -> _Marker:
    """Create the mark of a restoration, or return that of an interrupted restoration of the same point."""
    try:
        marker = msgspec.json.decode(target.warehouse.store.get(MARKER), type=_Marker)
    except ObjectMissing:
        _require_empty(database, target)
        marker = _Marker(point.point_id, secrets.randbelow(2**31 - 1) + 1)
        data = msgspec.json.encode(marker)
        target.warehouse.store.put(MARKER, data, create_only=True, durable=True)
        return marker
    if marker.point_id != point.point_id:
        raise BackupRejected(
            reason=f"a restoration of point {marker.point_id} was interrupted here. Continue it with "
            f"`--to {marker.point_id}`, or empty catalog, stage, warehouse and objects"
        )
    if _has_catalog(database):
        with database.reading() as connection:
            found = connection.execute(sa.select(model.deployment.c.deployment_id)).scalar()
        if found != marker.deployment_id:
            raise BackupRejected(
                reason="another catalog was created here after the restoration was interrupted. Empty "
                "catalog, stage, warehouse and objects"
            )
    return marker


def _require_empty(database: Database, target: RestoreTarget) -> None:
    if _has_catalog(database):
        raise BackupRejected(
            reason="the catalog exists. Restore into an empty installation: give another --data-dir or "
            "--catalog"
        )
    for store in target.list_stores():
        first = next(iter(store.list()), None)
        if first is not None:
            raise BackupRejected(
                reason=f"{store.url} is not empty: it has {first.path}. Restore into an empty "
                "installation"
            )


def _has_catalog(database: Database) -> bool:
    with database.reading() as connection:
        return read_schema_version(connection) is not None


def _restore_files(
    destination: BackupDestination,
    point: PointManifest,
    target: RestoreTarget,
    progress: Progress,
) -> None:
    addresses = AddressConverter(point.warehouse_root, target.warehouse.to_address(""))
    plain: list[InventoryEntry] = []
    metadata: list[InventoryEntry] = []
    for entry in read_inventory(destination, point):
        is_plain = addresses.changes_nothing or entry.kind in PLAIN_KINDS
        (plain if is_plain else metadata).append(entry)
    done_bytes = 0

    def restore_file(entry: InventoryEntry) -> int:
        store = target.get_store(entry.store)
        found = store.head(entry.path)
        is_there = found is not None and found.size == entry.stored.size
        if not is_there or hash_object(store, entry.path) != entry.stored:
            with contextlib.closing(destination.open_spool(entry.stored)) as spool:
                write_verified(store, entry.path, spool)
        failpoints.hit_failpoint(Failpoint.RESTORE_OBJECT)
        return entry.stored.size

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="restore") as threads:
        for number, size in enumerate(threads.map(restore_file, plain), 1):
            done_bytes += size
            progress(number, done_bytes)
    _MetadataWriter(destination, target, addresses).write(metadata)


class _MetadataWriter:
    """Writes Iceberg metadata with the URLs of the new warehouse."""

    def __init__(
        self, destination: BackupDestination, target: RestoreTarget, addresses: AddressConverter
    ) -> None:
        self._destination = destination
        self._target = target
        self._addresses = addresses
        self._manifests: dict[str, InventoryEntry] = {}
        self._converted: dict[str, ManifestFile] = {}

    def write(self, entries: Iterable[InventoryEntry]) -> None:
        entries = list(entries)
        root = self._addresses.old_root
        self._manifests = {root + each.path: each for each in entries if each.kind == "manifest"}
        with tempfile.TemporaryDirectory(prefix="snowmelt-restore-") as name:
            for entry in entries:
                if entry.kind == "list":
                    self._write_list(entry, Path(name))
        for entry in entries:
            if entry.kind == "metadata":
                with contextlib.closing(self._destination.open_spool(entry.stored)) as spool:
                    content = b"".join(spool.read_blocks())
                with contextlib.closing(Spool([self._addresses.convert_metadata(content)])) as new:
                    write_verified(self._target.warehouse.store, entry.path, new)

    def _write_list(self, entry: InventoryEntry, folder: Path) -> None:
        from snowmelt.backup.native_metadata import convert_manifest_list, read_local_list

        with self._destination.downloaded(entry.stored, folder) as local:
            for manifest in read_local_list(local):
                if manifest.manifest_path not in self._converted:
                    self._write_manifest(manifest, folder)
            output = _open_output(self._target.warehouse.to_address(entry.path))
            convert_manifest_list(local, self._convert_entry, output)

    def _write_manifest(self, manifest: ManifestFile, folder: Path) -> None:
        from snowmelt.backup.native_metadata import convert_manifest

        entry = self._manifests.get(manifest.manifest_path)
        if entry is None:
            raise BackupDamaged(reason=f"{manifest.manifest_path} is not in the inventory")
        output = _open_output(self._target.warehouse.to_address(entry.path))
        with self._destination.downloaded(entry.stored, folder) as local:
            converted = convert_manifest(local, manifest, self._addresses, output)
        self._converted[manifest.manifest_path] = converted

    def _convert_entry(self, manifest: ManifestFile) -> ManifestFile:
        # Keep the entry's counts and sequence numbers; take path and length of the copy.
        converted = deepcopy(manifest)
        copy = self._converted[manifest.manifest_path]
        converted[0], converted[1] = copy.manifest_path, copy.manifest_length
        return converted


def _open_output(address: str) -> OutputFile:
    from snowmelt.table.file_io import make_file_io

    return make_file_io(address).new_output(address)


def _restore_catalog(
    destination: BackupDestination,
    point: PointManifest,
    private_key: X25519PrivateKey,
    target: RestoreTarget,
    database: Database,
    marker: _Marker,
) -> None:
    master_key = load_master_key(target.keys_dir)
    now = target.clock.now()
    floor = _compute_floor(point, now)
    with tempfile.TemporaryDirectory(prefix="snowmelt-restore-") as name:
        folder = Path(name)
        with contextlib.ExitStack() as files:
            paths = {
                table_name: files.enter_context(destination.downloaded(exported.stored, folder))
                for table_name, exported in point.catalog.items()
            }
            unknown = paths.keys() - {table.name for table in model.list_portable_tables()}
            if unknown:
                raise BackupRejected(
                    reason=f"table {min(unknown)!r} of the catalog is unknown. Use the Snowmelt that "
                    "wrote the backup, or a newer one"
                )
            incarnations = {
                row["table_id"]: row["incarnation"] for row in read_rows(paths["tables"])
            }
            converters = make_opening_converters(
                incarnations, private_key, KeyRing(master_key), target.warehouse
            )
            with database.writing() as connection:
                if read_schema_version(connection) is not None:
                    raise BackupRejected(
                        reason="another process has created a catalog here. Stop all services, delete "
                        "the catalog, and run the command again"
                    )
                upgrade_schema(connection, now)
                connection.execute(sa.delete(model.roles))
                for table in model.list_portable_tables():
                    exported = point.catalog.get(table.name)
                    if exported is None:
                        continue
                    path, convert = paths[table.name], converters.get(table.name)
                    rows = import_table(connection, table, path, exported.last_id, convert)
                    if rows != exported.rows:
                        raise BackupDamaged(
                            reason=f"table {table.name!r} of the catalog has {rows:,} rows instead of "
                            f"{exported.rows:,}"
                        )
                connection.execute(
                    sa.update(model.deployment).values(
                        deployment_id=marker.deployment_id,
                        created_at=now,
                        master_key_check=compute_master_key_check_value(master_key),
                        sequencer_floor=floor,
                    )
                )
                # Channels count as just opened, so the age of the point does not count as idle
                # time.
                connection.execute(
                    sa.update(model.channels).values(client_sequencer=floor, opened_at=now)
                )
                failpoints.hit_failpoint(Failpoint.RESTORE_INSIDE_COMMIT)


def _compute_floor(point: PointManifest, now: dt.datetime) -> int:
    """Return the lowest client sequencer of the restored installation, above all of the original."""
    previous = point.sequencer_floor // _SEQUENCERS_PER_LINE
    minutes = int((now - _LINES_SINCE).total_seconds() // 60)
    return max(previous + 1, minutes) * _SEQUENCERS_PER_LINE


def make_opening_converters(
    incarnations: Mapping[int, str],
    private_key: X25519PrivateKey,
    keyring: KeyRing,
    warehouse: Warehouse,
) -> Mapping[str, RowConverter]:
    """Return the reverse of `creation.make_sealing_converters`, for the keys of another installation.

    `incarnations` maps table IDs to the incarnations of all tables.
    """

    def convert_table(row: dict[str, Any]) -> dict[str, Any]:
        if row["pointer"] is not None:
            row["pointer"] = warehouse.to_address(row["pointer"])
        return row

    def convert_table_key(row: dict[str, Any]) -> dict[str, Any]:
        incarnation = incarnations[row["table_id"]]
        key = open_key(private_key, row["wrapped_key"], incarnation)
        row["wrapped_key"] = keyring.wrap(key, incarnation)
        return row

    def convert_access_key(row: dict[str, Any]) -> dict[str, Any]:
        purpose = secret_purpose(row["access_key_id"])
        row["sealed_secret"] = keyring.seal(
            open_key(private_key, row["sealed_secret"], purpose), purpose
        )
        return row

    return {
        "tables": convert_table,
        "table_keys": convert_table_key,
        "access_keys": convert_access_key,
    }
