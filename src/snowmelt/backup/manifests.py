"""Records of a backup point: manifest, inventory, and the URLs in files."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from typing import Any, Literal

import msgspec

from snowmelt.errors import InternalError, UserError

# Version of the layout. Manifests of newer versions are rejected.
FORMAT_VERSION = 1

# The stores of an installation. `bucket` is the folder with the objects of local S3 buckets.
StoreName = Literal["stage", "warehouse", "bucket"]
# Kinds of files. A restoration rewrites the URLs in `metadata`, `list` and `manifest` files.
FileKind = Literal["blob", "data", "metadata", "list", "manifest", "object"]
# Kinds of files without URLs.
PLAIN_KINDS: frozenset[FileKind] = frozenset({"blob", "data", "object"})


class BackupRejected(UserError):
    """Cannot back up or restore: {reason}."""


class BackupDamaged(InternalError):
    """Backup damaged: {reason}."""


class SourceDamaged(InternalError):
    """Cannot back up {path}: {reason}."""


class StoredObject(msgspec.Struct, frozen=True):
    """An object of a backup. Its name is the SHA-256 of its content."""

    sha256: str
    size: int

    @property
    def path(self) -> str:
        """Path in the backup."""
        return f"objects/{self.sha256[:2]}/{self.sha256}"


class InventoryEntry(msgspec.Struct, frozen=True, array_like=True):
    """A file of the installation, and the backup object with its content."""

    store: StoreName
    kind: FileKind
    path: str
    stored: StoredObject


class ExportedTable(msgspec.Struct, frozen=True):
    """An exported table of the catalog. `last_id` is the last assigned row number, or None."""

    stored: StoredObject
    rows: int
    last_id: int | None = None


class TableAtPoint(msgspec.Struct, frozen=True):
    """Counts of a table at a point. `fresh_rows` counts the rows of chunks that are not migrated."""

    table_id: int
    name: str
    incarnation: str
    last_seq: int
    migrated_seq: int
    native_rows: int
    fresh_rows: int
    is_dropped: bool


class ChannelAtPoint(msgspec.Struct, frozen=True):
    """State of a channel at a point. `table` is the name of its table."""

    table: str
    channel: str
    offset_token: str | None
    client_sequencer: int
    row_sequencer: int


class PointManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Manifest of a point: everything that belongs to it. The point exists if its manifest does.

    `at` is the time at which the catalog was read, by the catalog's clock. `warehouse_root` is the
    URL that precedes the paths of native files. `copied` counts the objects that were not in
    earlier points.
    """

    point_id: str
    at: dt.datetime
    snowmelt_version: str
    catalog_version: str
    deployment_id: int
    sequencer_floor: int
    warehouse_root: str
    key_fingerprint: str
    catalog: dict[str, ExportedTable]
    inventory: StoredObject
    objects: int
    bytes: int
    copied_objects: int
    copied_bytes: int
    tables: tuple[TableAtPoint, ...]
    channels: tuple[ChannelAtPoint, ...]

    @property
    def live_tables(self) -> tuple[TableAtPoint, ...]:
        """The tables that were not dropped."""
        return tuple(table for table in self.tables if not table.is_dropped)


class _Envelope(msgspec.Struct, frozen=True):
    format: int
    sha256: str
    point: msgspec.Raw


class _Header(msgspec.Struct, frozen=True):
    format: int


def encode_manifest(manifest: PointManifest) -> bytes:
    """Serialize a manifest."""
    point = msgspec.json.encode(manifest)
    digest = hashlib.sha256(point).hexdigest()
    return msgspec.json.encode(_Envelope(FORMAT_VERSION, digest, msgspec.Raw(point)))


def decode_manifest(data: bytes, path: str) -> PointManifest:
    """Parse the content of a manifest file.

    Raises:
        BackupRejected: If a newer version of Snowmelt wrote it.
        BackupDamaged: If its checksum is wrong or it cannot be parsed.
    """
    try:
        found = msgspec.json.decode(data, type=_Header).format
        if found != FORMAT_VERSION:
            raise BackupRejected(
                reason=f"{path} has format {found}, and this Snowmelt reads format {FORMAT_VERSION}. "
                "Use the Snowmelt that wrote it, or a newer one"
            )
        envelope = msgspec.json.decode(data, type=_Envelope)
        if hashlib.sha256(envelope.point).hexdigest() != envelope.sha256:
            raise BackupDamaged(reason=f"the checksum of {path} is wrong. Use another point")
        return msgspec.json.decode(envelope.point, type=PointManifest)
    except msgspec.DecodeError as error:
        raise BackupDamaged(reason=f"cannot parse {path}: {error}. Use another point") from error


class AddressConverter:
    """Replaces the start of URLs. `old_root` and `new_root` end in a slash."""

    def __init__(self, old_root: str, new_root: str) -> None:
        self.old_root = old_root
        self._new_root = new_root

    @property
    def changes_nothing(self) -> bool:
        """True if both warehouses have the same URL."""
        return self.old_root == self._new_root

    def convert(self, address: str) -> str:
        """Return the corresponding URL in the new warehouse.

        Raises:
            BackupRejected: If the URL is not in the old warehouse.
        """
        if not address.startswith(self.old_root):
            raise BackupRejected(reason=f"{address} is not in the warehouse {self.old_root}")
        return self._new_root + address.removeprefix(self.old_root)

    def convert_metadata(self, content: bytes) -> bytes:
        """Return the content of a metadata file with converted URLs.

        Removes the references to earlier metadata files, which are not backed up.
        """
        found: dict[str, Any] = json.loads(content)
        found["location"] = self.convert(found["location"] + "/").removesuffix("/")
        found["metadata-log"] = []
        for snapshot in found.get("snapshots", ()):
            snapshot["manifest-list"] = self.convert(snapshot["manifest-list"])
        return json.dumps(found).encode()
