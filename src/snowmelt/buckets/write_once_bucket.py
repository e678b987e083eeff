"""Buckets whose objects cannot be replaced or deleted: for stage blobs and table files."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Mapping

from snowmelt.buckets.bucket import (
    Bucket,
    ObjectMetadata,
    ObjectUpload,
    UploadCompletion,
)
from snowmelt.buckets.errors import S3Error
from snowmelt.catalog.objects.s3_objects import NO_PRECONDITION, WritePrecondition


class WriteOnceBucket:
    """A bucket whose objects cannot be replaced.

    A registered blob must not change after verification, because other bytes under its name would
    fail every query of its tables. A repeated upload of the same bytes succeeds, because clients
    repeat an upload whose response was lost.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.head = bucket.head
        self.open = bucket.open
        self.list_page = bucket.list_page

    def start_upload(self, key: str, headers: Mapping[str, str]) -> ObjectUpload:
        """Start the upload of an object."""
        return WriteOnceUpload(self._bucket, key, self._bucket.start_upload(key, headers))

    def delete(self, key: str, condition: WritePrecondition = NO_PRECONDITION) -> None:
        """Raise AccessDenied."""
        del key, condition
        raise S3Error("AccessDenied")


class WriteOnceUpload:
    """Upload of an object that replaces no existing object."""

    def __init__(self, bucket: Bucket, key: str, upload: ObjectUpload) -> None:
        self._bucket = bucket
        self._key = key
        self._upload = upload
        self.write = upload.write
        self.append = upload.append
        self.abort = upload.abort

    def finish(self, completion: UploadCompletion) -> ObjectMetadata:
        """Publish the object. Succeeds if an object of its name has the same bytes.

        Raises:
            S3Error: If an object of this name has other bytes.
        """
        condition = dataclasses.replace(completion.condition, must_not_exist=True)
        try:
            return self._upload.finish(dataclasses.replace(completion, condition=condition))
        except S3Error as refusal:
            if completion.condition.must_not_exist:
                raise
            if refusal.s3_code == "NotImplemented":
                # Check for the object first, because some S3 servers support no conditions for
                # large objects.
                return self._find_identical_object(completion) or self._upload.finish(completion)
            if refusal.s3_code != "PreconditionFailed":
                raise
        found = self._find_identical_object(completion)
        if found is None:
            raise S3Error("PreconditionFailed")
        return found

    def _find_identical_object(self, publication: UploadCompletion) -> ObjectMetadata | None:
        """Return the existing object if it has the same bytes. Return None if there is none."""
        try:
            facts, found = self._bucket.open(self._key)
        except S3Error as refusal:
            if refusal.s3_code == "NoSuchKey":
                return None
            raise
        digest = hashlib.md5(usedforsecurity=False)
        with contextlib.closing(found):
            for piece in found.read_blocks():
                digest.update(piece)
        if digest.hexdigest() != publication.etag:
            raise S3Error(
                "PreconditionFailed",
                f"Object {self._key} exists with other bytes. Upload under a new name.",
            )
        return facts
