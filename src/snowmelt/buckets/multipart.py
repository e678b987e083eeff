"""Uploads in parts: parts wait in files of our own, whatever bucket the object goes to."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from snowmelt.buckets import checksums
from snowmelt.buckets.bucket import Facts, Publication
from snowmelt.buckets.checksums import Checksum
from snowmelt.buckets.errors import S3Refusal
from snowmelt.buckets.local_bucket import new_file
from snowmelt.catalog.objects import s3_objects
from snowmelt.catalog.objects.s3_objects import ANY, Condition, PartRow, UploadRow
from snowmelt.errors import NotFound, UploadNotFound

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from snowmelt.buckets.bucket_registry import Directory, Visit
    from snowmelt.storage.store import BytesLike, ObjectWriter, OpenObject

MOST_PARTS = 10_000
SMALLEST_PART_BYTES = 5 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Named:
    """A part as a client names it to complete an upload; the ETag has no quotes."""

    number: int
    etag: str
    checksum: Checksum | None = None


@dataclass(frozen=True, slots=True)
class Promised:
    """What a client says of the object that its parts make; None where it says nothing."""

    checksum: Checksum | None = None
    kind: str | None = None
    size: int | None = None


class Uploads:
    """Uploads in parts of all buckets of a directory."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._database = directory.database
        self._files = directory.files

    def begin(
        self, visit: Visit, key: str, headers: Mapping[str, str], checksum: Checksum | None
    ) -> UploadRow:
        """Begin an upload; `checksum` has algorithm and kind, and no value yet.

        Raises:
            S3Refusal: The bucket is gone, or cannot hold such a key.
        """
        visit.bucket.incoming(key, headers).abort()
        now = self._directory.clock.now()
        upload = UploadRow(
            upload_id=s3_objects.new_upload_id(now),
            bucket_id=visit.record.bucket_id,
            key=key.encode(),
            user=visit.user,
            initiated_at=now,
            headers=headers,
            checksum=None if checksum is None else str(checksum),
        )
        with _refusals(), self._database.writing() as connection:
            s3_objects.begin_upload(connection, upload)
        return upload

    def find(self, visit: Visit, key: str, upload_id: str) -> UploadRow:
        """Return an upload under way.

        Raises:
            S3Refusal: There is none of that id for this key.
        """
        with _refusals(), self._database.reading() as connection:
            return s3_objects.find_upload(
                connection, visit.record.bucket_id, key.encode(), upload_id
            )

    def parts(self, upload: UploadRow) -> list[PartRow]:
        """Return the parts that have arrived, by number."""
        with self._database.reading() as connection:
            return s3_objects.parts_of(connection, upload)

    def page(
        self, visit: Visit, prefix: str, after: tuple[str, str | None], limit: int
    ) -> list[UploadRow]:
        """Return uploads under way by key and age, beyond a key and an upload of that key."""
        with self._database.reading() as connection:
            return s3_objects.uploads_from(
                connection,
                visit.record.bucket_id,
                prefix=prefix.encode(),
                after=(after[0].encode(), after[1]),
                limit=limit,
            )

    def incoming(self, upload: UploadRow, number: int) -> IncomingPart:
        """Begin to write a part."""
        file = new_file(upload.bucket_id)
        return IncomingPart(self, upload, number, file, self._files.open_writer(file))

    def add(self, upload: UploadRow, part: PartRow) -> None:
        """Note a part whose file is durable.

        Raises:
            S3Refusal: The upload has ended meanwhile.
        """
        try:
            with _refusals(), self._database.writing() as connection:
                s3_objects.put_part(connection, upload, part)
        except S3Refusal:
            self._files.delete(part.file)
            raise

    def now_part(
        self, number: int, size: int, etag: str, checksum: Checksum | None, file: str
    ) -> PartRow:
        """Return the row of a part that is written now."""
        text = None if checksum is None else str(checksum)
        return PartRow(number, size, etag, self._directory.clock.now(), text, file)

    def abort(self, upload: UploadRow) -> None:
        """Forget an upload and its parts.

        Raises:
            S3Refusal: It has ended already.
        """
        with _refusals(), self._database.writing() as connection:
            files = s3_objects.end_upload(connection, upload, self._directory.clock.now())
        self._delete(files)

    def complete(
        self,
        visit: Visit,
        upload: UploadRow,
        named: Sequence[Named],
        *,
        promised: Promised,
        condition: Condition = ANY,
    ) -> Facts:
        """Make the object of the parts that are named; the others go.

        Raises:
            S3Refusal: A part is missing, another or too small, or what was promised of the whole
                does not hold.
        """
        parts = _chosen(named, self.parts(upload), upload.upload_id)
        whole = _whole_checksum(upload, parts)
        _check_promised(promised, upload, whole, sum(part.size for part in parts))
        incoming = visit.bucket.incoming(upload.key.decode(), upload.headers)
        try:
            for part in parts:
                with contextlib.closing(self._open(part)) as opened:
                    incoming.append(opened)
            dropped: list[str] = []
            with _refusals():
                facts = incoming.finish(
                    Publication(
                        etag=etag_of_parts([part.etag for part in parts]),
                        checksum=whole,
                        part_sizes=tuple(part.size for part in parts),
                        condition=condition,
                        also=lambda connection: dropped.extend(
                            s3_objects.end_upload(connection, upload, self._directory.clock.now())
                        ),
                    )
                )
        finally:
            incoming.abort()
        self._delete(dropped)
        return facts

    def _open(self, part: PartRow) -> OpenObject:
        with _refusals():
            return self._files.open(part.file)

    def _delete(self, files: Sequence[str]) -> None:
        for file in files:
            self._files.delete(file)


class IncomingPart:
    """A part on its way in."""

    def __init__(
        self, owner: Uploads, upload: UploadRow, number: int, file: str, writer: ObjectWriter
    ) -> None:
        self._owner = owner
        self._upload = upload
        self._number = number
        self._file = file
        self._writer = writer

    def write(self, data: BytesLike) -> None:
        """Append bytes."""
        self._writer.write(data)

    def append(self, source: OpenObject, start: int = 0, end: int | None = None) -> None:
        """Append bytes of an object."""
        self._writer.append(source, start, end)

    def finish(self, publication: Publication) -> Facts:
        """Note the part; its facts have no headers."""
        info = self._writer.finish()
        part = self._owner.now_part(
            self._number, info.size, publication.etag or "", publication.checksum, self._file
        )
        self._owner.add(self._upload, part)
        return Facts(
            key=self._upload.key.decode(),
            size=info.size,
            etag=part.etag,
            modified_at=part.modified_at,
            checksum=publication.checksum,
        )

    def abort(self) -> None:
        """Leave nothing behind."""
        self._writer.abort()


def etag_of_parts(etags: Sequence[str]) -> str:
    """Return the ETag of an object made of parts with these ETags: the MD5 of their MD5s."""
    digests = b"".join(bytes.fromhex(etag) for etag in etags)
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(etags)}"


def _check_promised(
    promised: Promised, upload: UploadRow, whole: Checksum | None, size: int
) -> None:
    if promised.size is not None and promised.size != size:
        raise S3Refusal(
            "InvalidRequest",
            f"The provided 'x-amz-mp-object-size' header value {promised.size} does not match what "
            f"was computed: {size}",
        )
    kind = None if upload.checksum is None else Checksum.parse(upload.checksum).kind
    if promised.kind is not None and promised.kind != kind:
        raise S3Refusal(
            "InvalidRequest",
            f"The upload was created using the {kind or 'null'} checksum mode. The complete "
            "request must use the same checksum mode.",
        )
    checksum = promised.checksum
    if checksum is None:
        return
    if whole is None or whole.algorithm != checksum.algorithm:
        raise S3Refusal(
            "InvalidRequest",
            f"Checksum Type mismatch occurred, expected checksum Type: "
            f"{'null' if whole is None else whole.algorithm.lower()}, actual checksum Type: "
            f"{checksum.algorithm.lower()}",
        )
    if checksum.value != whole.value:
        raise S3Refusal(
            "BadDigest",
            f"The {whole.algorithm.lower()} you specified did not match the calculated checksum.",
        )


def _chosen(named: Sequence[Named], there: Sequence[PartRow], upload_id: str) -> list[PartRow]:
    if not named or len(named) > MOST_PARTS:
        raise S3Refusal("MalformedXML")
    numbers = [each.number for each in named]
    if any(later <= earlier for earlier, later in itertools.pairwise(numbers)):
        raise S3Refusal("InvalidPartOrder", UploadId=upload_id)
    by_number = {part.number: part for part in there}
    parts = []
    for each in named:
        part = by_number.get(each.number)
        if part is None or part.etag != each.etag or not _agrees(part, each.checksum):
            raise S3Refusal(
                "InvalidPart", UploadId=upload_id, PartNumber=each.number, ETag=each.etag
            )
        parts.append(part)
    for part in parts[:-1]:
        if part.size < SMALLEST_PART_BYTES:
            raise S3Refusal(
                "EntityTooSmall",
                PartNumber=part.number,
                ProposedSize=part.size,
                MinSizeAllowed=SMALLEST_PART_BYTES,
            )
    return parts


def _agrees(part: PartRow, checksum: Checksum | None) -> bool:
    if checksum is None or part.checksum is None:
        return True
    mine = Checksum.parse(part.checksum)
    return mine.algorithm != checksum.algorithm or mine.value == checksum.value


def _whole_checksum(upload: UploadRow, parts: Sequence[PartRow]) -> Checksum | None:
    if upload.checksum is None:
        return None
    wanted = Checksum.parse(upload.checksum)
    found = [
        (Checksum.parse(part.checksum), part.size) for part in parts if part.checksum is not None
    ]
    if len(found) < len(parts) or any(c.algorithm != wanted.algorithm for c, _ in found):
        return None
    return checksums.of_parts(wanted.algorithm, wanted.kind, found)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except UploadNotFound:
        raise S3Refusal("NoSuchUpload") from None
    except NotFound:
        raise S3Refusal("NoSuchBucket") from None
