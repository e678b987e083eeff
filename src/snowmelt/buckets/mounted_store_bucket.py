"""Buckets that serve the objects of a store. Keys are paths in the store.

Does not support keys that are not valid paths in the store (`a//b`, `a/`, `..`). Stores that are
folders of files also do not support headers and user metadata.
"""

from __future__ import annotations

import contextlib
import itertools
import mimetypes
from collections.abc import Iterator, Mapping

from snowmelt.buckets.bucket import (
    DEFAULT_CONTENT_TYPE,
    ListingEntry,
    ListingPage,
    ObjectMetadata,
    UploadCompletion,
)
from snowmelt.buckets.errors import S3Error
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.objects.s3_buckets import BucketRecord
from snowmelt.catalog.objects.s3_objects import NO_PRECONDITION, WritePrecondition
from snowmelt.errors import AlreadyExists, ObjectMissing, PathRefused, Unsupported
from snowmelt.storage.store import ObjectInfo, ObjectWriter, OpenObject, Store

_USER_METADATA_PREFIX = "x-amz-meta-"
_STORED_HEADERS = {
    "content-type": "Content-Type",
    "content-encoding": "Content-Encoding",
    "content-language": "Content-Language",
    "content-disposition": "Content-Disposition",
    "cache-control": "Cache-Control",
}


class MountedBucket:
    """Bucket whose keys are the paths of objects in a store."""

    def __init__(self, record: BucketRecord, database: Database, store: Store) -> None:
        self.record = record
        self.store = store
        self._database = database

    def head(self, key: str) -> ObjectMetadata:
        """Return the metadata of an object."""
        facts, opened = self.open(key)
        opened.close()
        return facts

    def open(self, key: str) -> tuple[ObjectMetadata, OpenObject]:
        """Open an object."""
        with _translating_errors(key, allow_missing=True):
            opened = self.store.open(key)
            return _to_metadata(opened.info, opened.attributes), opened
        raise S3Error("NoSuchKey", Key=key)

    def start_upload(self, key: str, headers: Mapping[str, str]) -> MountedObjectUpload:
        """Start to write an object."""
        with _translating_errors(key):
            writer = self.store.open_writer(key)
        return MountedObjectUpload(self._database, key, headers, writer)

    def delete(self, key: str, condition: WritePrecondition = NO_PRECONDITION) -> None:
        """Delete an object."""
        if condition != NO_PRECONDITION:
            _raise_unsupported_condition()
        with _translating_errors(key, allow_missing=True):
            self.store.delete(key)

    def list_page(self, prefix: str, *, delimiter: str, after: str, limit: int) -> ListingPage:
        """Return one page of the listing of the store."""
        found: Iterator[ListingEntry] = (
            _to_metadata(each, {}) if isinstance(each, ObjectInfo) else each
            for each in self.store.list_ordered(prefix, after=after, delimiter=delimiter)
        )
        entries = tuple(itertools.islice(found, limit + 1))
        return ListingPage(entries[:limit], truncated=len(entries) > limit)


class MountedObjectUpload:
    """Upload of an object that is sent to the store when it is complete."""

    def __init__(
        self, database: Database, key: str, headers: Mapping[str, str], writer: ObjectWriter
    ) -> None:
        self._database = database
        self._key = key
        self._headers = headers
        self._writer = writer
        self.write = writer.write
        self.append = writer.append
        self.abort = writer.abort

    def finish(self, completion: UploadCompletion) -> ObjectMetadata:
        """Publish the object. Its ETag is the store's."""
        if completion.condition not in {NO_PRECONDITION, WritePrecondition(must_not_exist=True)}:
            _raise_unsupported_condition()
        attributes = _to_store_attributes(self._headers)
        with _translating_errors(self._key):
            info = self._writer.finish(
                create_only=completion.condition.must_not_exist, attributes=attributes
            )
        if completion.in_transaction is not None:
            with self._database.writing() as connection:
                completion.in_transaction(connection)
        return _to_metadata(info, attributes)


@contextlib.contextmanager
def _translating_errors(key: str, *, allow_missing: bool = False) -> Iterator[None]:
    try:
        yield
    except AlreadyExists:
        raise S3Error("PreconditionFailed") from None
    except Unsupported as error:
        raise S3Error("NotImplemented", str(error)) from None
    except PathRefused as error:
        if not allow_missing:
            sentence = f"The backend of this bucket does not support this key: {error}"
            raise S3Error("InvalidArgument", sentence, Key=key) from None
    except ObjectMissing:
        if not allow_missing:
            raise


def _to_metadata(info: ObjectInfo, attributes: Mapping[str, str]) -> ObjectMetadata:
    names = {kept: header for header, kept in _STORED_HEADERS.items()}
    headers = {
        names.get(name, _USER_METADATA_PREFIX + name.lower()): value
        for name, value in attributes.items()
    }
    headers.pop(_USER_METADATA_PREFIX + "storage-class", None)
    headers.setdefault("content-type", mimetypes.guess_type(info.path)[0] or DEFAULT_CONTENT_TYPE)
    return ObjectMetadata(
        key=info.path,
        size=info.size,
        etag=(info.etag or "").strip('"'),
        modified_at=info.modified_at,
        headers=headers,
    )


def _to_store_attributes(headers: Mapping[str, str]) -> dict[str, str]:
    kept = {
        _STORED_HEADERS[name]: value for name, value in headers.items() if name in _STORED_HEADERS
    }
    own = {
        name[len(_USER_METADATA_PREFIX) :]: value
        for name, value in headers.items()
        if name.startswith(_USER_METADATA_PREFIX)
    }
    return kept | own


def _raise_unsupported_condition() -> None:
    raise S3Error(
        "NotImplemented",
        "Mounted buckets support only the condition If-None-Match: *.",
    )
