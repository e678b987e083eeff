"""Multipart uploads to buckets of any kind. Parts are local files until completion."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from snowmelt.buckets import checksums
from snowmelt.buckets.bucket import ObjectMetadata, UploadCompletion
from snowmelt.buckets.bucket_registry import BucketAccess, BucketRegistry
from snowmelt.buckets.checksums import Checksum
from snowmelt.buckets.errors import S3Error
from snowmelt.buckets.local_bucket import new_file_path
from snowmelt.catalog.objects import s3_objects
from snowmelt.catalog.objects.s3_objects import (
    NO_PRECONDITION,
    PartRecord,
    UploadRecord,
    WritePrecondition,
)
from snowmelt.errors import NotFound, UploadNotFound
from snowmelt.storage.store import ObjectWriter

MAX_PARTS = 10_000
MIN_PART_BYTES = 5 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CompletedPart:
    """A part in the request that completes an upload. The ETag has no quotes."""

    number: int
    etag: str
    checksum: Checksum | None = None


@dataclass(frozen=True, slots=True)
class ExpectedObject:
    """Properties of the complete object that a client states. None if it does not state them."""

    checksum: Checksum | None = None
    kind: str | None = None
    size: int | None = None


class MultipartUploads:
    """Multipart uploads of all buckets of a registry."""

    def __init__(self, registry: BucketRegistry) -> None:
        self._registry = registry
        self._database = registry.database
        self._files = registry.files

    def begin(
        self, access: BucketAccess, key: str, headers: Mapping[str, str], checksum: Checksum | None
    ) -> UploadRecord:
        """Start an upload. `checksum` has an algorithm and a kind, but no value.

        Raises:
            S3Error: If the bucket was dropped, or does not support the key.
        """
        access.bucket.start_upload(key, headers).abort()
        now = self._registry.clock.now()
        upload = UploadRecord(
            upload_id=s3_objects.new_upload_id(now),
            bucket_id=access.record.bucket_id,
            key=key.encode(),
            user=access.user,
            initiated_at=now,
            headers=headers,
            checksum=None if checksum is None else str(checksum),
        )
        with _translating_catalog_errors(), self._database.writing() as connection:
            s3_objects.create_upload(connection, upload)
        return upload

    def find(self, access: BucketAccess, key: str, upload_id: str) -> UploadRecord:
        """Return an upload in progress.

        Raises:
            S3Error: If the key has no upload with this ID.
        """
        with _translating_catalog_errors(), self._database.reading() as connection:
            return s3_objects.find_upload(
                connection, access.record.bucket_id, key.encode(), upload_id
            )

    def list_parts(self, upload: UploadRecord) -> list[PartRecord]:
        """Return the received parts, ordered by number."""
        with self._database.reading() as connection:
            return s3_objects.list_parts(connection, upload)

    def list_uploads(
        self, access: BucketAccess, prefix: str, after: tuple[str, str | None], limit: int
    ) -> list[UploadRecord]:
        """Return uploads in progress, ordered by key and age, after an upload of a key."""
        with self._database.reading() as connection:
            return s3_objects.list_uploads(
                connection,
                access.record.bucket_id,
                prefix=prefix.encode(),
                after=(after[0].encode(), after[1]),
                limit=limit,
            )

    def start_part(self, upload: UploadRecord, number: int) -> PartUpload:
        """Start to write a part."""
        file = new_file_path(upload.bucket_id)
        return PartUpload(self, upload, number, file, self._files.open_writer(file))

    def record_part(self, upload: UploadRecord, part: PartRecord) -> None:
        """Record a part. Its file must be durable.

        Raises:
            S3Error: If the upload has ended.
        """
        try:
            with _translating_catalog_errors(), self._database.writing() as connection:
                s3_objects.put_part(connection, upload, part)
        except S3Error:
            self._files.delete(part.file)
            raise

    def make_part_record(
        self, number: int, size: int, etag: str, checksum: Checksum | None, file: str
    ) -> PartRecord:
        """Return the record of a part that was just written."""
        text = None if checksum is None else str(checksum)
        return PartRecord(number, size, etag, self._registry.clock.now(), text, file)

    def abort(self, upload: UploadRecord) -> None:
        """Delete an upload and its parts.

        Raises:
            S3Error: If the upload has ended.
        """
        with _translating_catalog_errors(), self._database.writing() as connection:
            files = s3_objects.delete_upload(connection, upload, self._registry.clock.now())
        self._delete_files(files)

    def complete(
        self,
        access: BucketAccess,
        upload: UploadRecord,
        completed_parts: Sequence[CompletedPart],
        *,
        expected: ExpectedObject,
        condition: WritePrecondition = NO_PRECONDITION,
    ) -> ObjectMetadata:
        """Create the object from the given parts, and delete the other parts.

        Raises:
            S3Error: If a part is missing, differs or is too small, or the object does not have the
                expected properties.
        """
        parts = _select_parts(completed_parts, self.list_parts(upload), upload.upload_id)
        whole = _combine_part_checksums(upload, parts)
        _check_expected_object(expected, upload, whole, sum(part.size for part in parts))
        incoming = access.bucket.start_upload(upload.key.decode(), upload.headers)
        try:
            for part in parts:
                with _translating_catalog_errors():
                    opened = self._files.open(part.file)
                with contextlib.closing(opened):
                    incoming.append(opened)
            dropped: list[str] = []
            with _translating_catalog_errors():
                facts = incoming.finish(
                    UploadCompletion(
                        etag=compute_multipart_etag([part.etag for part in parts]),
                        checksum=whole,
                        part_sizes=tuple(part.size for part in parts),
                        condition=condition,
                        in_transaction=lambda connection: dropped.extend(
                            s3_objects.delete_upload(connection, upload, self._registry.clock.now())
                        ),
                    )
                )
        finally:
            incoming.abort()
        self._delete_files(dropped)
        return facts

    def _delete_files(self, files: Sequence[str]) -> None:
        for file in files:
            self._files.delete(file)


class PartUpload:
    """Upload of one part."""

    def __init__(
        self,
        uploads: MultipartUploads,
        upload: UploadRecord,
        number: int,
        file: str,
        writer: ObjectWriter,
    ) -> None:
        self._uploads = uploads
        self._upload = upload
        self._number = number
        self._file = file
        self._writer = writer
        self.write = writer.write
        self.append = writer.append
        self.abort = writer.abort

    def finish(self, completion: UploadCompletion) -> ObjectMetadata:
        """Store the record of the part. Ignores headers, which a part does not have."""
        info = self._writer.finish()
        part = self._uploads.make_part_record(
            self._number, info.size, completion.etag or "", completion.checksum, self._file
        )
        self._uploads.record_part(self._upload, part)
        return ObjectMetadata(
            key=self._upload.key.decode(),
            size=info.size,
            etag=part.etag,
            modified_at=part.modified_at,
            checksum=completion.checksum,
        )


def compute_multipart_etag(etags: Sequence[str]) -> str:
    """Compute the ETag of an object from the ETags of its parts: the MD5 of their MD5s."""
    digests = b"".join(bytes.fromhex(etag) for etag in etags)
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(etags)}"


def _check_expected_object(
    expected: ExpectedObject, upload: UploadRecord, whole: Checksum | None, size: int
) -> None:
    if expected.size is not None and expected.size != size:
        raise S3Error(
            "InvalidRequest",
            f"The provided 'x-amz-mp-object-size' header value {expected.size} does not match what "
            f"was computed: {size}",
        )
    kind = None if upload.checksum is None else Checksum.parse(upload.checksum).kind
    if expected.kind is not None and expected.kind != kind:
        raise S3Error(
            "InvalidRequest",
            f"The upload was created using the {kind or 'null'} checksum mode. The complete "
            "request must use the same checksum mode.",
        )
    checksum = expected.checksum
    if checksum is None:
        return
    if whole is None or whole.algorithm != checksum.algorithm:
        raise S3Error(
            "InvalidRequest",
            f"Checksum Type mismatch occurred, expected checksum Type: "
            f"{'null' if whole is None else whole.algorithm.lower()}, actual checksum Type: "
            f"{checksum.algorithm.lower()}",
        )
    if checksum.value != whole.value:
        raise S3Error(
            "BadDigest",
            f"The {whole.algorithm.lower()} you specified did not match the calculated checksum.",
        )


def _select_parts(
    completed_parts: Sequence[CompletedPart], uploaded_parts: Sequence[PartRecord], upload_id: str
) -> list[PartRecord]:
    if not completed_parts or len(completed_parts) > MAX_PARTS:
        raise S3Error("MalformedXML")
    numbers = [each.number for each in completed_parts]
    if any(later <= earlier for earlier, later in itertools.pairwise(numbers)):
        raise S3Error("InvalidPartOrder", UploadId=upload_id)
    by_number = {part.number: part for part in uploaded_parts}
    parts = []
    for each in completed_parts:
        part = by_number.get(each.number)
        if (
            part is None
            or part.etag != each.etag
            or not _is_checksum_compatible(part, each.checksum)
        ):
            raise S3Error("InvalidPart", UploadId=upload_id, PartNumber=each.number, ETag=each.etag)
        parts.append(part)
    for part in parts[:-1]:
        if part.size < MIN_PART_BYTES:
            raise S3Error(
                "EntityTooSmall",
                PartNumber=part.number,
                ProposedSize=part.size,
                MinSizeAllowed=MIN_PART_BYTES,
            )
    return parts


def _is_checksum_compatible(part: PartRecord, checksum: Checksum | None) -> bool:
    if checksum is None or part.checksum is None:
        return True
    mine = Checksum.parse(part.checksum)
    return mine.algorithm != checksum.algorithm or mine.value == checksum.value


def _combine_part_checksums(upload: UploadRecord, parts: Sequence[PartRecord]) -> Checksum | None:
    if upload.checksum is None:
        return None
    wanted = Checksum.parse(upload.checksum)
    found = [
        (Checksum.parse(part.checksum), part.size) for part in parts if part.checksum is not None
    ]
    if len(found) < len(parts) or any(c.algorithm != wanted.algorithm for c, _ in found):
        return None
    return checksums.combine_part_checksums(wanted.algorithm, wanted.kind, found)


@contextlib.contextmanager
def _translating_catalog_errors() -> Iterator[None]:
    try:
        yield
    except UploadNotFound:
        raise S3Error("NoSuchUpload") from None
    except NotFound:
        raise S3Error("NoSuchBucket") from None
