"""Read, hash, decrypt and decode blobs on the stage.

Needs no catalog, so it can run in a child process (`decoder_pool`). Committed rows must stay
readable, and wrong statistics from a client must not hide rows from queries. The statistics stored
for queries are therefore computed from the decoded rows.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from snowmelt.blob import chunk_table_reader, encryption
from snowmelt.blob.parquet_footer import ChunkFooter
from snowmelt.errors import BlobInvalid, ObjectMissing, PathRefused, StageUnavailable
from snowmelt.ingest import chunk_content_check
from snowmelt.ingest.chunk_content_check import find_newest_matching_schema, find_written_schema
from snowmelt.ingest.registration_structure_check import MAX_BLOB_BYTES, RequestRejection
from snowmelt.schema.types import TableSchema
from snowmelt.storage.local_store import LocalStore
from snowmelt.storage.store import Store
from snowmelt.wire import column_statistics
from snowmelt.wire.streaming import ChunkStatisticsMessage, ResponseCode

if TYPE_CHECKING:
    Schemas: TypeAlias = Mapping[int, Mapping[int, TableSchema]]

# Larger blobs are hashed block by block, and their chunks are read one at a time.
_MAX_IN_MEMORY_BYTES = 32 * 1024 * 1024
_READ_SIZE_BYTES = 8 * 1024 * 1024
# Chunks up to this size are decoded together. Larger ones are decoded alone, to limit memory.
_SMALL_CHUNK_BYTES = 256 * 1024
# Reads from a remote stage are bound by latency, not by the processor.
_READ_THREADS = 16

_statistics_decoder = msgspec.json.Decoder(ChunkStatisticsMessage)


class ChunkDecodeJob(msgspec.Struct, frozen=True, array_like=True):
    """A chunk to decode: location, claims of the client, and possible schema versions.

    `claimed_statistics` are the client's statistics as JSON. `schema_versions` are the cached
    schema versions of `table_id`. If `is_final` is True, no newer versions exist, and a chunk that
    fits none is rejected.
    """

    offset: int
    length: int
    md5: str
    key_id: int
    data_key: bytes
    rows: int
    claimed_statistics: bytes
    table_id: int
    schema_versions: tuple[int, ...]
    must_decode: bool
    is_final: bool = False


class BlobDecodeJob(msgspec.Struct, frozen=True, array_like=True):
    """A blob to decode: path, location in the stage, and the MD5 that the client claims."""

    path: str
    stage_path: str
    md5: str
    chunks: tuple[ChunkDecodeJob, ...]


class ChunkDecodeResult(msgspec.Struct, frozen=True, array_like=True):
    """Result of one chunk: its schema version and statistics, or an error code and message.

    `may_fit_newer_schema` is True if a newer schema version could accept the chunk.
    `failure_traceback` is the traceback of an unexpected error in the decoder.
    """

    schema_version: int = 0
    statistics: bytes = b""
    code: int = 0
    message: str = ""
    may_fit_newer_schema: bool = False
    failure_traceback: str = ""


class BlobDecodeResult(msgspec.Struct, frozen=True, array_like=True):
    """Results of a blob's chunks in order, and the blob's modification time."""

    chunks: tuple[ChunkDecodeResult, ...]
    modified_at: dt.datetime | None = None


class _ChunkRejected(Exception):
    def __init__(
        self, code: ResponseCode, message: str, *, may_fit_newer_schema: bool = False
    ) -> None:
        super().__init__(message)
        self.result = ChunkDecodeResult(
            code=int(code), message=message, may_fit_newer_schema=may_fit_newer_schema
        )


def reject_all_chunks(job: BlobDecodeJob, code: ResponseCode, message: str) -> BlobDecodeResult:
    """Return a result that rejects every chunk of a blob with one code and message."""
    return BlobDecodeResult((ChunkDecodeResult(code=int(code), message=message),) * len(job.chunks))


def decode_blobs(
    stage: Store, jobs: Sequence[BlobDecodeJob], schemas: Schemas
) -> list[BlobDecodeResult]:
    """Decode blobs. Return one result for each, in order.

    `schemas` maps table ID and version to columns. It must contain the versions in the jobs.
    """
    if isinstance(stage, LocalStore) or len(jobs) == 1:
        opened = [_decrypt_blob(job, _open_verified_blob(stage, job), schemas) for job in jobs]
    else:
        with ThreadPoolExecutor(min(_READ_THREADS, len(jobs))) as threads:
            read = threads.map(lambda job: _open_verified_blob(stage, job), jobs)
            opened = [
                _decrypt_blob(job, data, schemas) for job, data in zip(jobs, read, strict=True)
            ]
    small = [each for blob in opened for each in blob.chunks if isinstance(each, _SmallChunk)]
    decoded = iter(_decode_small_chunks(small))
    return [
        BlobDecodeResult(
            tuple(next(decoded) if isinstance(each, _SmallChunk) else each for each in blob.chunks),
            blob.modified_at,
        )
        for blob in opened
    ]


@dataclass(frozen=True, slots=True)
class _SmallChunk:
    """A small chunk that will be decoded together with others. `error_prefix` begins its messages."""

    chunk: chunk_content_check.DecryptedChunk
    error_prefix: str


@dataclass(frozen=True, slots=True)
class _DecryptedBlob:
    chunks: Sequence[ChunkDecodeResult | _SmallChunk]
    modified_at: dt.datetime | None


def _decrypt_blob(
    job: BlobDecodeJob, data: _BlobReader | BlobDecodeResult, schemas: Schemas
) -> _DecryptedBlob:
    found: Sequence[ChunkDecodeResult | _SmallChunk] = (
        data.chunks
        if isinstance(data, BlobDecodeResult)
        else [_decode_or_defer_chunk(chunk, job, data, schemas) for chunk in job.chunks]
    )
    return _DecryptedBlob(found, data.modified_at)


def _decode_small_chunks(small_chunks: Sequence[_SmallChunk]) -> list[ChunkDecodeResult]:
    try:
        found = chunk_content_check.validate_and_derive_statistics_batch(
            [each.chunk for each in small_chunks]
        )
        return [
            _make_chunk_result(each, one) for each, one in zip(small_chunks, found, strict=True)
        ]
    except Exception as error:  # noqa: BLE001 - one of them; the others go on
        if len(small_chunks) > 1:
            return [each for one in small_chunks for each in _decode_small_chunks([one])]
        return [_make_failure_result(small_chunks[0].error_prefix, error)]


def _make_chunk_result(
    small_chunk: _SmallChunk, outcome: bytes | RequestRejection
) -> ChunkDecodeResult:
    if isinstance(outcome, bytes):
        return ChunkDecodeResult(small_chunk.chunk.schema.version, outcome)
    message = f"{small_chunk.error_prefix}: {outcome.message}"
    return ChunkDecodeResult(code=int(outcome.code), message=message, may_fit_newer_schema=True)


def _make_failure_result(error_prefix: str, error: Exception) -> ChunkDecodeResult:
    return ChunkDecodeResult(
        code=int(ResponseCode.BLOB_FORMAT_WRONG),
        message=f"{error_prefix} cannot be read: {error}",
        failure_traceback=traceback.format_exc(),
    )


def _read_failure(path: str, error: Exception) -> str:
    reason = str(error).rstrip(".")
    return f"Cannot read blob {path}: {reason}. Send the registration again."


def _open_verified_blob(stage: Store, job: BlobDecodeJob) -> _BlobReader | BlobDecodeResult:
    """Return a reader of a blob after checking its MD5, or a result that rejects the blob."""
    wrong = ResponseCode.BLOB_FORMAT_WRONG
    try:
        info, start = stage.read_prefix(job.stage_path, _MAX_IN_MEMORY_BYTES)
        if info.size > MAX_BLOB_BYTES:
            message = (
                f"Blob {job.path} has {info.size:,} bytes, expected at most {MAX_BLOB_BYTES:,}. Send"
                " smaller blobs."
            )
            return reject_all_chunks(job, wrong, message)
        whole = start if info.size <= _MAX_IN_MEMORY_BYTES else None
        data = _BlobReader(stage, job.stage_path, info.size, whole, info.modified_at)
        md5 = data.compute_md5(
            first_chunk_bytes=job.chunks[0].length if job.chunks[0].offset == 0 else 0
        )
    except ObjectMissing:
        return reject_all_chunks(
            job, wrong, f"Blob {job.path} is not on the stage. Upload it before its registration."
        )
    except PathRefused as error:
        return reject_all_chunks(job, wrong, str(error))
    except (StageUnavailable, OSError) as error:
        return reject_all_chunks(job, ResponseCode.TRY_AGAIN, _read_failure(job.path, error))
    if md5 != job.md5:
        message = (
            f"Blob {job.path} has MD5 {md5} on the stage ({info.size:,} bytes), not"
            f" {job.md5}. Upload the blob again."
        )
        finding = reject_all_chunks(job, ResponseCode.BLOB_MD5_MISSING, message)
        return BlobDecodeResult(finding.chunks, info.modified_at)
    return data


def _decode_or_defer_chunk(
    chunk: ChunkDecodeJob, job: BlobDecodeJob, data: _BlobReader, schemas: Schemas
) -> ChunkDecodeResult | _SmallChunk:
    """Decode a chunk and return its result. Return a small chunk decrypted, for later decoding."""
    where = f"The chunk at {chunk.offset} of blob {job.path}"
    known = schemas[chunk.table_id]
    versions = {number: known[number] for number in chunk.schema_versions}
    try:
        return _decrypt_and_check_chunk(chunk, job.path, data, versions, where)
    except _ChunkRejected as rejected:
        return rejected.result
    except (StageUnavailable, OSError) as error:
        message = _read_failure(job.path, error)
        return ChunkDecodeResult(code=int(ResponseCode.TRY_AGAIN), message=message)
    except Exception as error:  # noqa: BLE001 - the parent logs it and goes on
        return _make_failure_result(where, error)


def _decrypt_and_check_chunk(
    chunk: ChunkDecodeJob,
    path: str,
    data: _BlobReader,
    schemas_by_version: Mapping[int, TableSchema],
    error_prefix: str,
) -> ChunkDecodeResult | _SmallChunk:
    if chunk.offset + chunk.length > data.size:
        raise _ChunkRejected(
            ResponseCode.CHUNK_LENGTH_INVALID,
            f"{error_prefix} ends at byte {chunk.offset + chunk.length:,}, but the blob has only"
            f" {data.size:,} bytes. Upload the complete blob.",
        )
    cipher = data.read_range(chunk.offset, chunk.length)
    md5 = data.get_cached_md5(chunk.offset, chunk.length) or _new_md5(cipher).hexdigest()
    if md5 != chunk.md5:
        raise _ChunkRejected(
            ResponseCode.CHUNK_MD5_MISSING, f"{error_prefix} has MD5 {md5}, not {chunk.md5}."
        )
    blob_key = encryption.derive_blob_key(chunk.data_key, path)
    parquet = encryption.apply_aes_ctr(cipher, key=blob_key, offset=chunk.offset)
    try:
        footer = chunk_table_reader.read_chunk_footer(parquet)
    except BlobInvalid as error:
        raise _ChunkRejected(
            ResponseCode.BLOB_FORMAT_WRONG,
            f"{error_prefix} does not decrypt to a Parquet file with key {chunk.key_id}: {error}",
        ) from None
    if footer.rows != chunk.rows:
        raise _ChunkRejected(
            ResponseCode.EP_ROW_COUNT_INVALID,
            f"{error_prefix} has {footer.rows:,} rows, but its statistics state {chunk.rows:,}.",
        )
    schema = _find_schema_version(footer, schemas_by_version, error_prefix, is_final=chunk.is_final)
    claimed = _statistics_decoder.decode(chunk.claimed_statistics)
    problem = column_statistics.find_statistics_error(schema, claimed, claimed.rows)
    if problem is not None:
        code, reason = problem
        raise _ChunkRejected(
            ResponseCode(code), f"{error_prefix}: {reason}", may_fit_newer_schema=True
        )
    if not chunk.must_decode:
        # Store only bounds computed from the rows: a client's bounds must never prune a chunk.
        return ChunkDecodeResult(schema.version, column_statistics.NO_STORED_STATISTICS)
    opened = _SmallChunk(
        chunk_content_check.DecryptedChunk(parquet, footer, schema, claimed, path), error_prefix
    )
    if len(parquet) <= _SMALL_CHUNK_BYTES:
        return opened
    return _make_chunk_result(
        opened, chunk_content_check.validate_and_derive_statistics(opened.chunk)
    )


def _find_schema_version(
    footer: ChunkFooter,
    schemas_by_version: Mapping[int, TableSchema],
    error_prefix: str,
    *,
    is_final: bool,
) -> TableSchema:
    """Return the schema version that a chunk was written for, or else the newest one that it fits."""
    if not schemas_by_version:
        raise _ChunkRejected(
            ResponseCode.REOPEN,
            f"{error_prefix} lacks the default values of the table. Open the channel again.",
            may_fit_newer_schema=True,
        )
    known = find_written_schema(footer, schemas_by_version)
    if known is not None:
        return known
    found = find_newest_matching_schema(footer, schemas_by_version)
    if not is_final or isinstance(found, str):
        raise _ChunkRejected(
            ResponseCode.REOPEN,
            f"{error_prefix} does not fit the table: {found}. Open the channel again.",
            may_fit_newer_schema=True,
        )
    return found


@dataclass(eq=False, slots=True)
class _BlobReader:
    """Reads a blob: a small one completely into `_whole`, a larger one range by range."""

    _stage: Store
    _stored_at: str
    size: int
    _whole: bytes | None
    modified_at: dt.datetime
    # Length of the first chunk, and its MD5.
    _first: tuple[int, str | None] = (0, None)

    def compute_md5(self, *, first_chunk_bytes: int) -> str:
        """Return the MD5 of the whole blob in hex, and cache that of its first `first_chunk_bytes` bytes."""
        if self._whole is None:
            digest = _new_md5(b"")
            for offset in range(0, self.size, _READ_SIZE_BYTES):
                digest.update(self._stage.get_range(self._stored_at, offset, _READ_SIZE_BYTES))
            return digest.hexdigest()
        whole = memoryview(self._whole)
        digest = _new_md5(whole[:first_chunk_bytes])
        self._first = (first_chunk_bytes, digest.hexdigest())
        digest.update(whole[first_chunk_bytes:])
        return digest.hexdigest()

    def get_cached_md5(self, offset: int, length: int) -> str | None:
        """Return the MD5 of a range in hex if `compute_md5` cached it, else None."""
        return self._first[1] if offset == 0 and length == self._first[0] else None

    def read_range(self, offset: int, length: int) -> bytes | memoryview:
        """Return the bytes of one chunk."""
        if self._whole is None:
            return self._stage.get_range(self._stored_at, offset, length)
        return memoryview(self._whole)[offset : offset + length]


def _new_md5(data: bytes | memoryview) -> hashlib._Hash:
    return hashlib.md5(data, usedforsecurity=False)
