"""A bucket that stands in front of a store: its keys are the store's paths, its truth the store's.

What the store cannot keep cannot be asked of it: keys that are no paths (`a//b`, `a/`, `..`), and
on folders of files headers and user metadata.
"""

from __future__ import annotations

import contextlib
import itertools
import mimetypes
from typing import TYPE_CHECKING

from snowmelt.buckets.bucket import DEFAULT_TYPE, Entry, Facts, Page, Publication
from snowmelt.buckets.errors import S3Refusal
from snowmelt.catalog.objects.s3_objects import ANY, Condition
from snowmelt.errors import AlreadyExists, ObjectMissing, PathRefused, Unsupported
from snowmelt.storage.store import ObjectInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from snowmelt.catalog.db.database import Database
    from snowmelt.catalog.objects.s3_buckets import BucketRecord
    from snowmelt.storage.store import BytesLike, ObjectWriter, OpenObject, Store

_META = "x-amz-meta-"
_KEPT = {
    "content-type": "Content-Type",
    "content-encoding": "Content-Encoding",
    "content-language": "Content-Language",
    "content-disposition": "Content-Disposition",
    "cache-control": "Cache-Control",
}


class MountedBucket:
    """Objects of a store, under their own names."""

    def __init__(self, record: BucketRecord, database: Database, store: Store) -> None:
        self.record = record
        self.store = store
        self._database = database

    def facts(self, key: str) -> Facts:
        """Return what is known of an object."""
        facts, opened = self.open(key)
        opened.close()
        return facts

    def open(self, key: str) -> tuple[Facts, OpenObject]:
        """Open an object."""
        with _refusals(key, missing_is_fine=True):
            opened = self.store.open(key)
            return _facts(opened.info, opened.attributes), opened
        raise S3Refusal("NoSuchKey", Key=key)

    def incoming(self, key: str, headers: Mapping[str, str]) -> MountedIncoming:
        """Begin to write an object."""
        with _refusals(key):
            return MountedIncoming(self, key, headers, self.store.open_writer(key))

    def delete(self, key: str, condition: Condition = ANY) -> None:
        """Delete an object."""
        if condition != ANY:
            _refuse_condition()
        with _refusals(key, missing_is_fine=True):
            self.store.delete(key)

    def page(self, prefix: str, *, delimiter: str, after: str, limit: int) -> Page:
        """Return one page, as the store lists it."""
        found: Iterator[Entry] = (
            _facts(each, {}) if isinstance(each, ObjectInfo) else each
            for each in self.store.list_ordered(prefix, after=after, delimiter=delimiter)
        )
        entries = tuple(itertools.islice(found, limit + 1))
        return Page(entries[:limit], truncated=len(entries) > limit)

    def run(self, publication: Publication) -> None:
        """Do what belongs to a publication in the catalog."""
        if publication.also is not None:
            with self._database.writing() as connection:
                publication.also(connection)


class MountedIncoming:
    """An object that the store gets when it is whole."""

    def __init__(
        self, bucket: MountedBucket, key: str, headers: Mapping[str, str], writer: ObjectWriter
    ) -> None:
        self._bucket = bucket
        self._key = key
        self._headers = headers
        self._writer = writer

    def write(self, data: BytesLike) -> None:
        """Append bytes."""
        self._writer.write(data)

    def append(self, source: OpenObject, start: int = 0, end: int | None = None) -> None:
        """Append bytes of another object."""
        self._writer.append(source, start, end)

    def finish(self, publication: Publication) -> Facts:
        """Publish the object; its ETag is the store's."""
        if publication.condition not in {ANY, Condition(absent=True)}:
            _refuse_condition()
        attributes = _attributes(self._headers)
        with _refusals(self._key):
            info = self._writer.finish(
                create_only=publication.condition.absent, attributes=attributes
            )
        self._bucket.run(publication)
        return _facts(info, attributes)

    def abort(self) -> None:
        """Leave nothing behind."""
        self._writer.abort()


@contextlib.contextmanager
def _refusals(key: str, *, missing_is_fine: bool = False) -> Iterator[None]:
    try:
        yield
    except AlreadyExists:
        raise S3Refusal("PreconditionFailed") from None
    except Unsupported as error:
        raise S3Refusal("NotImplemented", str(error)) from None
    except PathRefused as error:
        if not missing_is_fine:
            sentence = f"The place this bucket stands for cannot hold this key: {error}"
            raise S3Refusal("InvalidArgument", sentence, Key=key) from None
    except ObjectMissing:
        if not missing_is_fine:
            raise


def _facts(info: ObjectInfo, attributes: Mapping[str, str]) -> Facts:
    names = {kept: header for header, kept in _KEPT.items()}
    headers = {names.get(name, _META + name.lower()): value for name, value in attributes.items()}
    headers.pop(_META + "storage-class", None)
    headers.setdefault("content-type", mimetypes.guess_type(info.path)[0] or DEFAULT_TYPE)
    return Facts(
        key=info.path,
        size=info.size,
        etag=(info.etag or "").strip('"'),
        modified_at=info.modified_at,
        headers=headers,
    )


def _attributes(headers: Mapping[str, str]) -> dict[str, str]:
    kept = {_KEPT[name]: value for name, value in headers.items() if name in _KEPT}
    own = {name[len(_META) :]: value for name, value in headers.items() if name.startswith(_META)}
    return kept | own


def _refuse_condition() -> None:
    raise S3Refusal(
        "NotImplemented",
        "Buckets in front of another place know no condition but If-None-Match: *.",
    )
