"""Paths of native files: `<database>/<schema>/<table>/<incarnation>/{metadata,data/<run>}/…`.

A table's folder name contains its incarnation, so a table that is recreated with the same name
shares no files with the old one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from snowmelt.errors import ConfigurationError, TableInconsistent
from snowmelt.storage.store import Store
from snowmelt.storage.store_factory import open_store

if TYPE_CHECKING:
    from snowmelt.catalog.model.records import TableRecord

# Bucket of the S3 endpoint that serves a warehouse that is not itself in an S3 bucket.
WAREHOUSE_BUCKET = "snowmelt-warehouse"
# Folders of a table's publications and fresh files, and the prefix of copies of native manifests.
PUBLISHED_FOLDER = "metadata/published"
FRESH_FOLDER = "data/fresh"
COPY_PREFIX = "native-"
_PLAIN_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_MAX_NAME_BYTES = 120


class Warehouse:
    """Store of native files, and conversion of paths to the addresses in Iceberg metadata."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._root_address = _to_root_address(store.url)

    @property
    def url(self) -> str:
        """URL or path that `open_warehouse` accepts."""
        return self.store.url

    def to_address(self, path: str) -> str:
        """Return the full address of a path for metadata."""
        return self._root_address + path

    def to_path(self, address: str) -> str:
        """Return the path of a full address.

        Raises:
            TableInconsistent: If the address is not in this warehouse.
        """
        if not address.startswith(self._root_address):
            raise TableInconsistent(
                table=address, reason=f"it is not in the warehouse {self._root_address}"
            )
        return address.removeprefix(self._root_address)

    @property
    def is_public(self) -> bool:
        """True if engines on other machines can read the addresses in metadata."""
        return self._root_address.startswith("s3://")

    @property
    def public_bucket(self) -> str:
        """Bucket of the S3 endpoint in which engines find the warehouse."""
        return urlsplit(self._root_address).netloc if self.is_public else WAREHOUSE_BUCKET

    def to_public_address(self, path: str) -> str:
        """Return the address of a path for engines that read through the S3 endpoint."""
        return self.to_address(path) if self.is_public else f"s3://{WAREHOUSE_BUCKET}/{path}"

    def to_public_key(self, path: str) -> str:
        """Return the key of a path in the public bucket."""
        return self.to_public_address(path).removeprefix(f"s3://{self.public_bucket}/")

    def table_folder(self, table: TableRecord) -> str:
        """Return the folder of a table's files, which stays the same when the table is renamed."""
        if table.pointer is None:
            name = table.folder_name or table.name
            names = (name.database, name.schema, name.table)
            return "/".join((*map(_to_folder_name, names), table.incarnation))
        return self.to_path(table.pointer).rpartition("/metadata/")[0]


def open_warehouse(url: str) -> Warehouse:
    """Open the warehouse at a URL or path.

    Raises:
        ConfigurationError: If addresses cannot represent the path.
    """
    return Warehouse(open_cached_store(url))


def is_published_path(path: str) -> bool:
    """Return True if a path belongs to a fresh file or to the metadata of a publication."""
    return f"/{PUBLISHED_FOLDER}/" in path or f"/{FRESH_FOLDER}/" in path


def make_fresh_path(folder: str, from_seq: int, to_seq: int, unique: str) -> str:
    """Return a path for a fresh file of the chunks (`from_seq`, `to_seq`]."""
    return f"{folder}/{FRESH_FOLDER}/{from_seq:012d}-{to_seq:012d}-{unique}.parquet"


def parse_fresh_range(path: str) -> tuple[int, int] | None:
    """Return `from_seq` and `to_seq` of a fresh file, or None for another path."""
    _, found, name = path.partition(f"/{FRESH_FOLDER}/")
    if not found:
        return None
    from_seq, to_seq, _ = name.split("-", 2)
    return int(from_seq), int(to_seq)


def get_copied_path(path: str) -> str | None:
    """Return the path of the original of a copied manifest or list, or None for another path."""
    folder, found, name = path.partition(f"/{PUBLISHED_FOLDER}/{COPY_PREFIX}")
    return f"{folder}/metadata/{name}" if found else None


@lru_cache(maxsize=16)
def open_cached_store(url: str) -> Store:
    """Open a store once per process, and track failed writes. Tasks of an executor share it."""
    store = open_store(url)
    store.watch_writes()
    return store


def _to_folder_name(name: str) -> str:
    """Convert a name to a plain folder name. It need not be unique, because the incarnation is."""
    plain = "".join(letter if letter in _PLAIN_CHARACTERS else "~" for letter in name)
    return plain[:_MAX_NAME_BYTES] or "~"


def _to_root_address(url: str) -> str:
    if not url.startswith("file:"):
        return url.rstrip("/") + "/"
    # Reject these characters: Iceberg readers use the path of a `file:` address without unquoting.
    path = unquote(url.removeprefix("file://")).rstrip("/")
    if any(letter in path for letter in "#?"):
        raise ConfigurationError(
            setting="warehouse_url", reason=f"the path {path} must not contain # or ?"
        )
    return f"file://{path}/"
