"""Is what a registration says true of the bytes on the stage? Outside any transaction.

A row that is reported as committed must never turn out unreadable, so a chunk counts only when
its blob is a regular file of the sender's own prefix, of the right size and MD5, decrypts with
the key it names, and holds a Parquet file whose footer fits a schema of the table.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from snowmelt.blob import crypto, layout, reader
from snowmelt.catalog.registration import ChannelAdvance, ChunkOffer
from snowmelt.errors import (
    BlobInvalid,
    ObjectMissing,
    PathRefused,
    SnowmeltError,
    StageUnavailable,
)
from snowmelt.ingest import decoding
from snowmelt.ingest.fitting import newest_match, written_for
from snowmelt.ingest.pressure import TOO_MUCH_WAITS
from snowmelt.ingest.structure import MAX_BLOB_BYTES, Refusal, blob_refusal, chunk_refusal
from snowmelt.schema.types import TableName, internal_name
from snowmelt.wire import eps
from snowmelt.wire.codes import ResponseCode

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from snowmelt.blob.reader import ChunkFooter
    from snowmelt.ingest.known import Known
    from snowmelt.ingest.pressure import Pressure
    from snowmelt.schema.types import TableSchema
    from snowmelt.storage.store import Store
    from snowmelt.wire.streaming import (
        BlobMetadata,
        ChunkChannel,
        ChunkMetadata,
        RegisterRequest,
    )

_log = logging.getLogger("snowmelt.ingest")
_encoder = msgspec.json.Encoder()
# Larger blobs are hashed piece by piece and their chunks read one at a time.
_WHOLE_BYTES = 32 * 1024 * 1024
_PIECE_BYTES = 8 * 1024 * 1024
NOT_DURABLE = Refusal(
    ResponseCode.BLOB_FORMAT_WRONG,
    "The stage could not be made durable when this blob was on it, so the blob may not be on the"
    " disk. Open the channel again and send the rows since its committed offset token again; the"
    " service's log says what is wrong with the stage.",
)
# The same few names come with every registration.
_name = lru_cache(maxsize=100_000)(internal_name)


@dataclass(frozen=True, slots=True)
class Sender:
    """Who registers: user, role (None: the user's own), and whether our SDK made the blobs."""

    user: str
    role: str | None
    ours: bool


@dataclass(frozen=True, slots=True)
class Candidate:
    """One chunk after its checks: an offer to the catalog, or (no offer) why there can be none.

    An offer may carry a refusal: then it may only be accepted as a repetition, for what was
    registered once stays registered, even when its file has been cleaned up since.
    """

    chunk: ChunkMetadata
    offer: ChunkOffer | None
    refusal: Refusal | None = None

    @property
    def is_open(self) -> bool:
        """Whether nothing has been found against this chunk yet."""
        return self.offer is not None and self.offer.refusal is None

    def refused(self, refusal: Refusal) -> Candidate:
        """Return this candidate as one that only a repetition can save."""
        if self.offer is None or self.offer.refusal is not None:
            return self
        refusal_fields = (int(refusal.code), refusal.message)
        return dataclasses.replace(
            self, offer=dataclasses.replace(self.offer, refusal=refusal_fields)
        )


class _Refused(Exception):
    def __init__(self, code: ResponseCode, message: str) -> None:
        super().__init__(message)
        self.refusal = Refusal(code, message)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a blob lies in the stage, and whose it is."""

    path: str
    stored_at: str
    prefix: str


class Depth(StrEnum):
    """How much of a chunk is looked at; FULL is also for blobs that our SDK did not make.

    OFF believes everything, so that the cost of the rest can be measured.
    """

    FOOTER = "footer"
    FULL = "full"
    OFF = "off"


class Verifier:
    """Checks registrations against the stage."""

    def __init__(
        self,
        known: Known,
        stage: Store,
        *,
        deployment_id: int,
        depth: Depth,
        pressure: Pressure | None = None,
    ) -> None:
        self._known = known
        self._stage = stage
        self._suffix = f"_{deployment_id}"
        self._depth = depth
        self._pressure = pressure
        self._distrusted: dt.datetime | None = None

    def distrust(self, until: dt.datetime) -> None:
        """Refuse from now on what was put before that instant and is not registered.

        After a failed sync the kernel may have dropped pages of any file that was not on the disk
        yet; until they are read again they look whole.
        """
        self._distrusted = until

    def check(self, request: RegisterRequest, sender: Sender) -> list[Candidate]:
        """Return a candidate per chunk, in the order of the request."""
        candidates: list[Candidate] = []
        paths: set[str] = set()
        for blob in request.blobs or []:
            candidates.extend(self._check_blob(blob, paths, sender))
            paths.add(blob.path or "")
        return candidates

    def _check_blob(self, blob: BlobMetadata, earlier: set[str], sender: Sender) -> list[Candidate]:
        chunks = blob.chunks or []
        refusal = blob_refusal(blob, earlier)
        if refusal is not None:
            return [Candidate(chunk, None, refusal) for chunk in chunks]
        try:
            place = self._place(blob, sender)
        except _Refused as refused:
            return [Candidate(chunk, None, refused.refusal) for chunk in chunks]
        candidates = [self._claimed(chunk, blob, place, sender) for chunk in chunks]
        if self._depth is not Depth.OFF and any(candidate.is_open for candidate in candidates):
            candidates = self._verified(candidates, blob, place, sender)
        return candidates

    def _place(self, blob: BlobMetadata, sender: Sender) -> _Place:
        """Return where the blob must lie: beneath the folder of a prefix of the sender's."""
        path = blob.path or ""
        if not path.endswith(".bdec"):
            raise _Refused(ResponseCode.BLOB_FORMAT_WRONG, f"Blob {path[:200]!r} is no .bdec file.")
        try:
            name = layout.parse_blob_path(path)
        except BlobInvalid as error:
            _log.warning(
                "user %s registers a blob with a bad name: %s",
                *(sender.user, error),
                extra={"user": sender.user},
            )
            raise _Refused(ResponseCode.BLOB_NAME_WRONG, str(error)) from None
        prefix = name.client_prefix.removesuffix(self._suffix)
        if prefix == name.client_prefix or self._known.prefix_owner(prefix) != sender.user:
            _log.warning(
                "user %s registers blob %s of a foreign prefix",
                *(sender.user, path),
                extra={"user": sender.user, "path": path},
            )
            raise _Refused(
                ResponseCode.BLOB_NAME_WRONG,
                f"Blob {path} does not carry a prefix that was given to user {sender.user}.",
            )
        return _Place(path, f"{prefix}/{path}", prefix)

    def _claimed(
        self, chunk: ChunkMetadata, blob: BlobMetadata, place: _Place, sender: Sender
    ) -> Candidate:
        """Return the chunk as its sender describes it, nothing of it verified yet."""
        refusal = chunk_refusal(chunk)
        if refusal is not None or chunk.eps is None:
            return Candidate(chunk, None, refusal)
        key = self._known.key(chunk.encryption_key_id or 0)
        schemas = self._known.schemas(key.table_id) if key is not None else {}
        offer = ChunkOffer(
            path=place.path,
            blob_md5=(blob.md5 or "").lower(),
            prefix=place.prefix,
            user=sender.user,
            role=sender.role,
            table=TableName(
                _name(chunk.database or ""),
                _name(chunk.schema or ""),
                _name(chunk.table or ""),
            ),
            offset=chunk.chunk_start_offset or 0,
            length=chunk.chunk_length or 0,
            md5=(chunk.chunk_md5 or "").lower(),
            key_id=chunk.encryption_key_id or 0,
            rows=chunk.eps.rows,
            schema_version=max(schemas, default=0),
            statistics=_encoder.encode(chunk.eps),
            first_insert_ms=chunk.first_insert_time_in_ms,
            last_insert_ms=chunk.last_insert_time_in_ms,
            channels=tuple(
                ChannelAdvance(
                    _name(channel.channel_name or ""),
                    channel.client_sequencer or 0,
                    channel.row_sequencer or 0,
                    channel.start_offset_token,
                    _end_token(channel),
                )
                for channel in chunk.channels or []
            ),
            parts=chunk.parts,
        )
        candidate = Candidate(chunk, offer)
        if key is None or key.user != sender.user:
            return candidate.refused(
                Refusal(
                    ResponseCode.REOPEN,
                    f"Encryption key {chunk.encryption_key_id} was not given to user"
                    f" {sender.user} for this table; open the channel again.",
                )
            )
        if self._pressure is not None and key.table_id in self._pressure.tables:
            return candidate.refused(TOO_MUCH_WAITS)
        return candidate

    def _verified(
        self,
        candidates: Sequence[Candidate],
        blob: BlobMetadata,
        place: _Place,
        sender: Sender,
    ) -> list[Candidate]:
        """Read the blob and check each chunk that is not refused yet."""
        try:
            data = self._read_blob(blob, place)
        except _Refused as refused:
            return [candidate.refused(refused.refusal) for candidate in candidates]
        return [
            self._with_chunk_checked(candidate, candidate.offer, data, sender)
            if candidate.is_open and candidate.offer is not None
            else candidate
            for candidate in candidates
        ]

    def _read_blob(self, blob: BlobMetadata, place: _Place) -> _Bytes:
        try:
            info, start = self._stage.read(place.stored_at, _WHOLE_BYTES)
            if self._distrusted is not None and info.modified_at <= self._distrusted:
                raise _Refused(NOT_DURABLE.code, NOT_DURABLE.message)
            if info.size > MAX_BLOB_BYTES:
                raise _Refused(
                    ResponseCode.BLOB_FORMAT_WRONG,
                    f"Blob {place.path} has {info.size:,} bytes; at most {MAX_BLOB_BYTES:,}"
                    " are taken.",
                )
            data = _Bytes(self._stage, place.stored_at, info.size, start)
            chunks = blob.chunks or []
            md5 = data.md5(first=(chunks[0].chunk_length or 0) if chunks else 0)
        except ObjectMissing:
            raise _Refused(
                ResponseCode.BLOB_FORMAT_WRONG, f"Blob {place.path} is not on the stage."
            ) from None
        except PathRefused as error:
            raise _Refused(ResponseCode.BLOB_FORMAT_WRONG, str(error)) from None
        except (StageUnavailable, OSError) as error:
            _log.warning("blob %s cannot be read: %s", place.path, error)
            raise _Refused(
                ResponseCode.TRY_AGAIN, f"Blob {place.path} cannot be read now: {error}"
            ) from None
        if md5 != (blob.md5 or "").lower():
            raise _Refused(
                ResponseCode.BLOB_MD5_MISSING,
                f"Blob {place.path} has MD5 {md5} on the stage ({info.size:,} bytes), not"
                f" {blob.md5}: it was changed or cut off after it was built.",
            )
        return data

    def _with_chunk_checked(
        self, candidate: Candidate, offer: ChunkOffer, data: _Bytes, sender: Sender
    ) -> Candidate:
        try:
            version = self._check_chunk(candidate.chunk, offer, data, sender)
        except _Refused as refused:
            return candidate.refused(refused.refusal)
        except Exception as error:
            if isinstance(error, SnowmeltError) and error.retryable:
                # Stage or catalog are away: nothing is known against the chunk.
                raise
            _log.exception(
                "chunk at %d of blob %s",
                *(offer.offset, offer.path),
                extra={"user": sender.user, "table": offer.table, "path": offer.path},
            )
            return candidate.refused(
                Refusal(
                    ResponseCode.BLOB_FORMAT_WRONG,
                    f"The chunk at {offer.offset} of blob {offer.path} cannot be read: {error}",
                )
            )
        return dataclasses.replace(
            candidate, offer=dataclasses.replace(offer, schema_version=version)
        )

    def _check_chunk(
        self, chunk: ChunkMetadata, offer: ChunkOffer, data: _Bytes, sender: Sender
    ) -> int:
        """Return the schema version that the chunk was written for."""
        where = f"The chunk at {offer.offset} of blob {offer.path}"
        key = self._known.key(offer.key_id)
        if key is None or chunk.eps is None:
            raise _Refused(ResponseCode.REOPEN, f"{where} names a key that is gone.")
        if offer.offset + offer.length > data.size:
            raise _Refused(
                ResponseCode.CHUNK_LENGTH_INVALID,
                f"{where} would end at {offer.offset + offer.length:,}; the file has"
                f" {data.size:,} bytes.",
            )
        cipher = data.part(offer.offset, offer.length)
        md5 = data.known_md5(offer.offset, offer.length) or _md5(cipher).hexdigest()
        if md5 != offer.md5:
            raise _Refused(
                ResponseCode.CHUNK_MD5_MISSING, f"{where} has MD5 {md5}, not {offer.md5}."
            )
        chunk_key = crypto.derive_key(key.data_key, offer.path)
        parquet = reader.decrypt(cipher, chunk_key=chunk_key, offset=offer.offset)
        try:
            footer = reader.inspect_chunk(parquet)
        except SnowmeltError as error:
            raise _Refused(
                ResponseCode.BLOB_FORMAT_WRONG,
                f"{where} does not decrypt to a Parquet file with key {offer.key_id}: {error}",
            ) from None
        if footer.rows != offer.rows:
            raise _Refused(
                ResponseCode.EP_ROW_COUNT_INVALID,
                f"{where} has {footer.rows:,} rows, its statistics say {offer.rows:,}.",
            )
        schema = self._matching(footer, key.table_id, where)
        refusal = self._disagreement(chunk, schema, parquet, path=offer.path, ours=sender.ours)
        if refusal is not None and self._known.is_stale(key.table_id):
            # The columns known here may have grown since.
            schema = self._matching(footer, key.table_id, where)
            refusal = self._disagreement(chunk, schema, parquet, path=offer.path, ours=sender.ours)
        if refusal is not None:
            raise _Refused(refusal.code, f"{where}: {refusal.message}")
        return schema.version

    def _disagreement(
        self, chunk: ChunkMetadata, schema: TableSchema, parquet: bytes, *, path: str, ours: bool
    ) -> Refusal | None:
        """Return where rows and statistics of a chunk contradict each other or the columns."""
        if chunk.eps is None:
            return None
        problem = eps.check(schema, chunk.eps, chunk.eps.rows)
        if problem is not None:
            return Refusal(ResponseCode(problem[0]), problem[1])
        if self._depth is Depth.FULL or not ours:
            return decoding.mismatch(parquet, schema, chunk.eps, path=path)
        return None

    def _matching(self, footer: ChunkFooter, table_id: int, where: str) -> TableSchema:
        """Return the schema version a chunk was written for, else the newest that it fits."""
        known = written_for(footer, self._known.schemas(table_id))
        if known is not None:
            return known
        schemas = self._known.schemas(table_id, again=True)
        found = written_for(footer, schemas) or newest_match(footer, schemas)
        if isinstance(found, str):
            raise _Refused(
                ResponseCode.REOPEN,
                f"{where} does not fit the table ({found}); open the channel again.",
            )
        return found


class _Bytes:
    """A blob's bytes: those read already where these are all, else read piece by piece."""

    def __init__(self, stage: Store, stored_at: str, size: int, start: bytes) -> None:
        self.size = size
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


def _end_token(channel: ChunkChannel) -> str | None:
    # `offset_token` and `end_offset_token` are the same; clients before 2.1 send only the first.
    return (
        channel.end_offset_token if channel.end_offset_token is not None else channel.offset_token
    )
