"""Interface of buckets and uploads, object metadata, and listing pages."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

import sqlalchemy as sa

from snowmelt.buckets.errors import S3Error
from snowmelt.catalog.objects.s3_objects import NO_PRECONDITION, WritePrecondition
from snowmelt.storage.store import BytesLike, OpenObject

if TYPE_CHECKING:
    from snowmelt.buckets.checksums import Checksum

MAX_KEY_BYTES = 1024
DEFAULT_CONTENT_TYPE = "binary/octet-stream"


@dataclass(frozen=True, slots=True)
class ObjectMetadata:
    """Metadata of an object. The ETag has no quotes. A GET returns `headers` unchanged.

    `part_sizes` has the sizes of its parts. It is empty for an object without parts, or of a
    backend.
    """

    key: str
    size: int
    etag: str
    modified_at: dt.datetime
    headers: Mapping[str, str] = field(default_factory=dict)
    checksum: Checksum | None = None
    part_sizes: tuple[int, ...] = ()


# A group is a common prefix: the text up to a delimiter.
ListingEntry: TypeAlias = ObjectMetadata | str


@dataclass(frozen=True, slots=True)
class ListingPage:
    """Entries in byte order, and True if more entries follow."""

    entries: tuple[ListingEntry, ...]
    truncated: bool

    @property
    def last_key_or_prefix(self) -> str:
        """The last key or common prefix, after which the listing continues. Empty without entries."""
        if not self.entries:
            return ""
        last = self.entries[-1]
        return last if isinstance(last, str) else last.key


@dataclass(frozen=True, slots=True)
class UploadCompletion:
    """Metadata of a complete object.

    `etag` and `checksum` are None if the bucket computes them. `in_transaction` runs in the
    transaction that publishes the object, or after the publication if there is no transaction.
    """

    etag: str | None = None
    checksum: Checksum | None = None
    part_sizes: tuple[int, ...] = ()
    condition: WritePrecondition = NO_PRECONDITION
    in_transaction: Callable[[sa.Connection], object] | None = None


class ObjectUpload(Protocol):
    """An upload in progress. The object is not visible before `finish`."""

    def write(self, data: BytesLike) -> None:
        """Append bytes."""

    def append(self, source: OpenObject, start: int = 0, end: int | None = None) -> None:
        """Append bytes of another object."""

    def finish(self, completion: UploadCompletion) -> ObjectMetadata:
        """Publish the object durably.

        Raises:
            S3Error: If the condition does not hold.
        """

    def abort(self) -> None:
        """Delete the upload. Idempotent, and without effect after `finish`."""


class Bucket(Protocol):
    """Bucket: objects by key. Callers must check keys with `check_key`. All methods may block."""

    def head(self, key: str) -> ObjectMetadata:
        """Return the metadata of an object.

        Raises:
            S3Error: If it does not exist.
        """

    def open(self, key: str) -> tuple[ObjectMetadata, OpenObject]:
        """Open an object for reading. The caller must close it.

        Raises:
            S3Error: If it does not exist.
        """

    def start_upload(self, key: str, headers: Mapping[str, str]) -> ObjectUpload:
        """Start to write an object.

        Raises:
            S3Error: If the bucket does not support the key.
        """

    def delete(self, key: str, condition: WritePrecondition = NO_PRECONDITION) -> None:
        """Delete an object. Idempotent.

        Raises:
            S3Error: If the condition does not hold.
        """

    def list_page(self, prefix: str, *, delimiter: str, after: str, limit: int) -> ListingPage:
        """Return up to `limit` entries after `after` (see `snowmelt.storage.store.Store.scan`)."""


def check_key(key: str) -> None:
    """Verify that a key is valid.

    Raises:
        S3Error: If the key is empty, too long or contains NUL.
    """
    size = len(key.encode("utf-8", "surrogatepass"))
    if size > MAX_KEY_BYTES:
        raise S3Error("KeyTooLongError", Size=size, MaxSizeAllowed=MAX_KEY_BYTES)
    if not key or "\0" in key:
        raise S3Error("InvalidArgument", "A key has 1 to 1,024 bytes, none of them NUL.")
