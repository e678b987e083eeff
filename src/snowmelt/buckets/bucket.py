"""The interface of buckets and uploads, object metadata, and listing pages."""

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
    """What is known of an object; the ETag has no quotes, `headers` are what a GET repeats.

    `part_sizes` are those of the parts it was made of, empty where it came whole, or is not ours.
    """

    key: str
    size: int
    etag: str
    modified_at: dt.datetime
    headers: Mapping[str, str] = field(default_factory=dict)
    checksum: Checksum | None = None
    part_sizes: tuple[int, ...] = ()


# A group is the text up to a delimiter that several keys share.
ListingEntry: TypeAlias = ObjectMetadata | str


@dataclass(frozen=True, slots=True)
class ListingPage:
    """Entries in the order of their bytes, and whether there are more."""

    entries: tuple[ListingEntry, ...]
    truncated: bool

    @property
    def last_key_or_prefix(self) -> str:
        """The last key or group, from which a listing goes on; empty without entries."""
        if not self.entries:
            return ""
        last = self.entries[-1]
        return last if isinstance(last, str) else last.key


@dataclass(frozen=True, slots=True)
class UploadCompletion:
    """What becomes known of an object when it is whole.

    `etag` and `checksum` are None where the bucket finds its own. `in_transaction` is done in the
    transaction that publishes the object, where there is one, else right after.
    """

    etag: str | None = None
    checksum: Checksum | None = None
    part_sizes: tuple[int, ...] = ()
    condition: WritePrecondition = NO_PRECONDITION
    in_transaction: Callable[[sa.Connection], object] | None = None


class ObjectUpload(Protocol):
    """An object on its way in: nobody sees it before `finish`."""

    def write(self, data: BytesLike) -> None:
        """Append bytes."""

    def append(self, source: OpenObject, start: int = 0, end: int | None = None) -> None:
        """Append bytes of another object."""

    def finish(self, completion: UploadCompletion) -> ObjectMetadata:
        """Publish it, durably.

        Raises:
            S3Error: The condition does not hold.
        """

    def abort(self) -> None:
        """Leave nothing behind; after `finish`, or again, it is harmless."""


class Bucket(Protocol):
    """Objects by key. Keys are checked by `check_key`; all methods may block."""

    def head(self, key: str) -> ObjectMetadata:
        """Return what is known of an object.

        Raises:
            S3Error: There is none.
        """

    def open(self, key: str) -> tuple[ObjectMetadata, OpenObject]:
        """Open an object for reading; the caller closes it.

        Raises:
            S3Error: There is none.
        """

    def start_upload(self, key: str, headers: Mapping[str, str]) -> ObjectUpload:
        """Begin to write an object.

        Raises:
            S3Error: This bucket cannot hold such a key.
        """

    def delete(self, key: str, condition: WritePrecondition = NO_PRECONDITION) -> None:
        """Delete an object; a missing one is fine.

        Raises:
            S3Error: The condition does not hold.
        """

    def list_page(self, prefix: str, *, delimiter: str, after: str, limit: int) -> ListingPage:
        """Return up to `limit` entries beyond `after`; see `snowmelt.storage.store.Store.scan`."""


def check_key(key: str) -> None:
    """Let pass what can be a key.

    Raises:
        S3Error: Too long, or with a NUL.
    """
    size = len(key.encode("utf-8", "surrogatepass"))
    if size > MAX_KEY_BYTES:
        raise S3Error("KeyTooLongError", Size=size, MaxSizeAllowed=MAX_KEY_BYTES)
    if not key or "\0" in key:
        raise S3Error("InvalidArgument", "A key has 1 to 1,024 bytes, none of them NUL.")
