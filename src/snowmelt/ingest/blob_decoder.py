"""Inspect blobs on the stage: read, hash, decrypt and decode them, and derive their statistics.

Nothing here needs the catalog, so that it can run in a process of its own (`inspectors`). A row
that is reported as committed must never turn out unreadable, and no statistics that a client sends
may hide a row: what is stored for queries is collected from the decoded rows.
"""

from __future__ import annotations

import datetime as dt  # noqa: TC003 - of frames
import hashlib
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from snowmelt.blob import bdec, reader
from snowmelt.errors import BlobInvalid, ObjectMissing, PathRefused, StageUnavailable
from snowmelt.ingest import chunk_validation
from snowmelt.ingest.chunk_validation import newest_match, written_for
from snowmelt.ingest.request_validation import MAX_BLOB_BYTES
from snowmelt.storage.local_store import LocalStore
from snowmelt.wire import column_statistics
from snowmelt.wire.streaming import ChunkStatisticsMessage, ResponseCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

    from snowmelt.blob.parquet_footer import ChunkFooter
    from snowmelt.ingest.request_validation import Refusal
    from snowmelt.schema.types import TableSchema
    from snowmelt.storage.store import Store

    Schemas: TypeAlias = Mapping[int, Mapping[int, TableSchema]]

# Larger blobs are hashed piece by piece and their chunks read one at a time.
_WHOLE_BYTES = 32 * 1024 * 1024
_PIECE_BYTES = 8 * 1024 * 1024
# Such chunks are decoded together; larger ones are not kept in memory for others.
_SMALL_BYTES = 256 * 1024
# Another server's stage mostly waits.
_READS_AT_ONCE = 16

_claims = msgspec.json.Decoder(ChunkStatisticsMessage)


class ChunkJob(msgspec.Struct, frozen=True, array_like=True):
    """One chunk to inspect: its place, what its client claims, and what may have been written.

    `claimed` are the client's statistics as JSON, `versions` the known versions of the columns of
    `table_id`. `is_final`: no newer versions exist, so that a chunk that fits none is rejected.
    """

    offset: int
    length: int
    md5: str
    key_id: int
    data_key: bytes
    rows: int
    claimed: bytes
    table_id: int
    versions: tuple[int, ...]
    decode: bool
    is_final: bool = False


class BlobJob(msgspec.Struct, frozen=True, array_like=True):
    """One blob to inspect: its path, where it lies in the stage, and the MD5 that was claimed."""

    path: str
    stored_at: str
    md5: str
    chunks: tuple[ChunkJob, ...]


class ChunkFinding(msgspec.Struct, frozen=True, array_like=True):
    """What became of one chunk: a version and our statistics, or a code and a reason.

    `is_doubtful`: newer columns could make the chunk acceptable. `failure` is a traceback where
    the inspection itself failed.
    """

    version: int = 0
    statistics: bytes = b""
    code: int = 0
    message: str = ""
    is_doubtful: bool = False
    failure: str = ""


class BlobFinding(msgspec.Struct, frozen=True, array_like=True):
    """What became of a blob's chunks, in their order, and when the blob was last modified."""

    chunks: tuple[ChunkFinding, ...]
    modified_at: dt.datetime | None = None


class _Rejected(Exception):
    def __init__(self, code: ResponseCode, message: str, *, is_doubtful: bool = False) -> None:
        super().__init__(message)
        self.finding = ChunkFinding(code=int(code), message=message, is_doubtful=is_doubtful)


def reject_all(job: BlobJob, code: ResponseCode, message: str) -> BlobFinding:
    """Return the same code and reason for every chunk of a blob."""
    return BlobFinding((ChunkFinding(code=int(code), message=message),) * len(job.chunks))


def inspect_blobs(stage: Store, jobs: Sequence[BlobJob], schemas: Schemas) -> list[BlobFinding]:
    """Inspect blobs and return a finding for each, in their order.

    Args:
        stage: Where the blobs lie.
        jobs: What to inspect.
        schemas: Columns by table id and version; holds at least those that the jobs name.
    """
    if isinstance(stage, LocalStore) or len(jobs) == 1:
        opened = [_opened(job, _read(stage, job), schemas) for job in jobs]
    else:
        with ThreadPoolExecutor(min(_READS_AT_ONCE, len(jobs))) as threads:
            read = threads.map(lambda job: _read(stage, job), jobs)
            opened = [_opened(job, data, schemas) for job, data in zip(jobs, read, strict=True)]
    small = [each for blob in opened for each in blob.chunks if isinstance(each, _Opened)]
    decoded = iter(_decoded_all(small))
    return [
        BlobFinding(
            tuple(next(decoded) if isinstance(each, _Opened) else each for each in blob.chunks),
            blob.modified_at,
        )
        for blob in opened
    ]


@dataclass(frozen=True, slots=True)
class _Opened:
    """A small chunk that is to be decoded together with others; `where` begins sentences."""

    chunk: chunk_validation.Chunk
    where: str


@dataclass(frozen=True, slots=True)
class _OpenedBlob:
    chunks: Sequence[ChunkFinding | _Opened]
    modified_at: dt.datetime | None


def _opened(job: BlobJob, data: _Bytes | BlobFinding, schemas: Schemas) -> _OpenedBlob:
    if isinstance(data, BlobFinding):
        return _OpenedBlob(data.chunks, data.modified_at)
    found = [_inspect_chunk(chunk, job, data, schemas) for chunk in job.chunks]
    return _OpenedBlob(found, data.modified_at)


def _decoded_all(opened: Sequence[_Opened]) -> list[ChunkFinding]:
    try:
        found = chunk_validation.derive_all([each.chunk for each in opened])
        return [_finding(each, one) for each, one in zip(opened, found, strict=True)]
    except Exception:  # noqa: BLE001 - one of them; the others go on
        return [_decoded(each) for each in opened]


def _decoded(opened: _Opened) -> ChunkFinding:
    try:
        return _finding(opened, chunk_validation.derive(opened.chunk))
    except Exception as error:  # noqa: BLE001 - the parent logs it and goes on
        return _failure(opened.where, error)


def _finding(opened: _Opened, found: bytes | Refusal) -> ChunkFinding:
    if isinstance(found, bytes):
        return ChunkFinding(opened.chunk.schema.version, found)
    message = f"{opened.where}: {found.message}"
    return ChunkFinding(code=int(found.code), message=message, is_doubtful=True)


def _failure(where: str, error: Exception) -> ChunkFinding:
    return ChunkFinding(
        code=int(ResponseCode.BLOB_FORMAT_WRONG),
        message=f"{where} cannot be read: {error}",
        failure=traceback.format_exc(),
    )


def _read(stage: Store, job: BlobJob) -> _Bytes | BlobFinding:
    """Return the bytes of a blob that has the MD5 that was claimed, or why there are none."""
    wrong = ResponseCode.BLOB_FORMAT_WRONG
    try:
        info, start = stage.read_prefix(job.stored_at, _WHOLE_BYTES)
        if info.size > MAX_BLOB_BYTES:
            message = (
                f"Blob {job.path} has {info.size:,} bytes; at most {MAX_BLOB_BYTES:,} are taken."
            )
            return reject_all(job, wrong, message)
        data = _Bytes(stage, job.stored_at, info.size, start, info.modified_at)
        md5 = data.md5(first=job.chunks[0].length if job.chunks[0].offset == 0 else 0)
    except ObjectMissing:
        return reject_all(job, wrong, f"Blob {job.path} is not on the stage.")
    except PathRefused as error:
        return reject_all(job, wrong, str(error))
    except (StageUnavailable, OSError) as error:
        message = f"Blob {job.path} cannot be read now: {error}"
        return reject_all(job, ResponseCode.TRY_AGAIN, message)
    if md5 != job.md5:
        message = (
            f"Blob {job.path} has MD5 {md5} on the stage ({info.size:,} bytes), not"
            f" {job.md5}: it was changed or cut off after it was built."
        )
        finding = reject_all(job, ResponseCode.BLOB_MD5_MISSING, message)
        return BlobFinding(finding.chunks, info.modified_at)
    return data


def _inspect_chunk(
    chunk: ChunkJob, job: BlobJob, data: _Bytes, schemas: Schemas
) -> ChunkFinding | _Opened:
    """Return what became of a chunk, or a small one opened and not decoded yet."""
    where = f"The chunk at {chunk.offset} of blob {job.path}"
    known = schemas[chunk.table_id]
    versions = {number: known[number] for number in chunk.versions}
    try:
        return _checked(chunk, job.path, data, versions, where)
    except _Rejected as rejected:
        return rejected.finding
    except (StageUnavailable, OSError) as error:
        message = f"Blob {job.path} cannot be read now: {error}"
        return ChunkFinding(code=int(ResponseCode.TRY_AGAIN), message=message)
    except Exception as error:  # noqa: BLE001 - the parent logs it and goes on
        return _failure(where, error)


def _checked(
    chunk: ChunkJob, path: str, data: _Bytes, versions: Mapping[int, TableSchema], where: str
) -> ChunkFinding | _Opened:
    if chunk.offset + chunk.length > data.size:
        raise _Rejected(
            ResponseCode.CHUNK_LENGTH_INVALID,
            f"{where} would end at {chunk.offset + chunk.length:,}; the file has"
            f" {data.size:,} bytes.",
        )
    cipher = data.part(chunk.offset, chunk.length)
    md5 = data.known_md5(chunk.offset, chunk.length) or _md5(cipher).hexdigest()
    if md5 != chunk.md5:
        raise _Rejected(ResponseCode.CHUNK_MD5_MISSING, f"{where} has MD5 {md5}, not {chunk.md5}.")
    parquet = reader.decrypt_chunk(
        cipher, chunk_key=bdec.derive_blob_key(chunk.data_key, path), offset=chunk.offset
    )
    try:
        footer = reader.read_chunk_footer(parquet)
    except BlobInvalid as error:
        raise _Rejected(
            ResponseCode.BLOB_FORMAT_WRONG,
            f"{where} does not decrypt to a Parquet file with key {chunk.key_id}: {error}",
        ) from None
    if footer.rows != chunk.rows:
        raise _Rejected(
            ResponseCode.EP_ROW_COUNT_INVALID,
            f"{where} has {footer.rows:,} rows, its statistics say {chunk.rows:,}.",
        )
    schema = _matching(footer, versions, where, is_final=chunk.is_final)
    claimed = _claims.decode(chunk.claimed)
    problem = column_statistics.find_statistics_error(schema, claimed, claimed.rows)
    if problem is not None:
        code, reason = problem
        raise _Rejected(ResponseCode(code), f"{where}: {reason}", is_doubtful=True)
    if not chunk.decode:
        # What a client claims never prunes: bounds that nobody has compared are not stored.
        return ChunkFinding(schema.version, column_statistics.encode_row_count(chunk.rows))
    opened = _Opened(chunk_validation.Chunk(parquet, footer, schema, claimed, path), where)
    if len(parquet) <= _SMALL_BYTES:
        return opened
    return _finding(opened, chunk_validation.derive(opened.chunk))


def _matching(
    footer: ChunkFooter, versions: Mapping[int, TableSchema], where: str, *, is_final: bool
) -> TableSchema:
    """Return the schema version a chunk was written for, else the newest that it fits."""
    known = written_for(footer, versions)
    if known is not None:
        return known
    found = newest_match(footer, versions)
    if not is_final or isinstance(found, str):
        raise _Rejected(
            ResponseCode.REOPEN,
            f"{where} does not fit the table ({found}); open the channel again.",
            is_doubtful=True,
        )
    return found


class _Bytes:
    """A blob's bytes: those read already where these are all, else read piece by piece."""

    def __init__(
        self, stage: Store, stored_at: str, size: int, start: bytes, modified_at: dt.datetime
    ) -> None:
        self.size = size
        self.modified_at = modified_at
        self._stage = stage
        self._stored_at = stored_at
        self._whole = start if size <= _WHOLE_BYTES else None
        self._first: tuple[int, str | None] = (0, None)

    def md5(self, *, first: int) -> str:
        """Return the MD5 of the whole blob, hex; that of its `first` bytes becomes known with it."""
        if self._whole is None:
            digest = _md5(b"")
            for offset in range(0, self.size, _PIECE_BYTES):
                digest.update(self._stage.get_range(self._stored_at, offset, _PIECE_BYTES))
            return digest.hexdigest()
        whole = memoryview(self._whole)
        digest = _md5(whole[:first])
        self._first = (first, digest.hexdigest())
        digest.update(whole[first:])
        return digest.hexdigest()

    def known_md5(self, offset: int, length: int) -> str | None:
        """Return the MD5 of a part, hex, if it is the one that came with the whole blob's."""
        return self._first[1] if offset == 0 and length == self._first[0] else None

    def part(self, offset: int, length: int) -> bytes | memoryview:
        """Return the bytes of one chunk."""
        if self._whole is None:
            return self._stage.get_range(self._stored_at, offset, length)
        return memoryview(self._whole)[offset : offset + length]


def _md5(data: bytes | memoryview) -> hashlib._Hash:
    return hashlib.md5(data, usedforsecurity=False)
