"""Check what registrations claim against the stage, outside any transaction.

A row that is reported as committed must never turn out unreadable, and nothing that a client claims
may change an answer. So a chunk counts only when its blob is a regular file of the sender's own
prefix, of the right size and MD5, decrypts with the key it names, and decodes to rows that fit a
schema of the table; its statistics are collected from these rows.
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from snowmelt.blob import bdec as layout
from snowmelt.catalog.streaming.registration import ChannelAdvance, ChunkOffer
from snowmelt.errors import BlobInvalid, ObjectMissing, StageUnavailable
from snowmelt.ingest.back_pressure import TOO_MUCH_WAITS
from snowmelt.ingest.blob_decoder import BlobJob, ChunkFinding, ChunkJob
from snowmelt.ingest.decoder_pool import LocalInspector
from snowmelt.ingest.request_validation import Refusal, blob_refusal, chunk_refusal
from snowmelt.schema.types import (
    TableName,
    TableSchema,
    internal_name,
)
from snowmelt.wire import column_statistics as eps
from snowmelt.wire.streaming import ResponseCode

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping, Sequence

    from snowmelt.ingest.back_pressure import Pressure
    from snowmelt.ingest.blob_decoder import BlobFinding
    from snowmelt.ingest.catalog_cache import Known, KnownKey
    from snowmelt.ingest.decoder_pool import Inspector
    from snowmelt.storage.store import Store
    from snowmelt.wire.streaming import (
        BlobMetadata,
        ChunkChannelMessage,
        ChunkMetadata,
        RegisterRequest,
    )

_log = logging.getLogger("snowmelt.ingest")
_encoder = msgspec.json.Encoder()
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
    """Who registers: user and role (None: the user's own)."""

    user: str
    role: str | None


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
        return self.offer is not None and self.offer.rejection is None

    def refused(self, refusal: Refusal) -> Candidate:
        """Return this candidate as one that only a repetition can save."""
        if self.offer is None or self.offer.rejection is not None:
            return self
        refusal_fields = (int(refusal.code), refusal.message)
        return dataclasses.replace(
            self, offer=dataclasses.replace(self.offer, rejection=refusal_fields)
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
    """How much of a chunk is looked at.

    FULL decodes it. FOOTER, the opt-out of an administrator, compares checksums, footer and
    columns, and stores no bounds. OFF believes everything, so that the cost of the rest can be
    measured.
    """

    FULL = "full"
    FOOTER = "footer"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Scrutiny:
    """How deep chunks are looked at: that of users whom an administrator has opted out, by footer."""

    depth: Depth = Depth.FULL
    opted_out: frozenset[str] = frozenset()

    def decodes(self, user: str) -> bool:
        """Return True if the rows of this user's chunks are decoded before they count."""
        return self.depth is Depth.FULL and user not in self.opted_out


@dataclass(slots=True)
class _Claimed:
    """A blob as its sender describes it: candidates, and what is to be inspected of them.

    `keys` are those of the candidates at the same position; None where they are not inspected.
    """

    candidates: list[Candidate]
    keys: list[KnownKey | None]
    place: _Place | None = None
    md5: str = ""
    user: str = ""

    def open(self) -> list[int]:
        """Return the positions of the candidates that are to be inspected."""
        return [position for position, key in enumerate(self.keys) if key is not None]


class Verifier:
    """Checks registrations against the stage."""

    def __init__(
        self,
        known: Known,
        stage: Store,
        *,
        deployment_id: int,
        scrutiny: Scrutiny | None = None,
        pressure: Pressure | None = None,
        inspector: Inspector | None = None,
    ) -> None:
        """Check what lies on `stage`.

        Args:
            known: What the catalog holds of prefixes, keys and columns.
            stage: Where blobs lie.
            deployment_id: The number that the names of blobs carry.
            scrutiny: How deep chunks are looked at. None: in full, for all users.
            pressure: Tables that take nothing more now. None: no limits.
            inspector: Where blobs are inspected. None: in the calling thread.
        """
        self._known = known
        self._stage = stage
        self._suffix = f"_{deployment_id}"
        self._scrutiny = scrutiny or Scrutiny()
        self._pressure = pressure
        self._inspector = inspector or LocalInspector(stage)
        self._distrusted: dt.datetime | None = None

    def distrust(self, until: dt.datetime) -> None:
        """Refuse from now on what was put before that instant and is not registered.

        After a failed sync the kernel may have dropped pages of any file that was not on the disk
        yet; until they are read again they look whole.
        """
        self._distrusted = until

    def close(self) -> None:
        """Release the inspector; nothing may be checked any more."""
        self._inspector.close()

    def check(self, request: RegisterRequest, sender: Sender) -> list[Candidate]:
        """Return a candidate per chunk, in the order of the request."""
        [found] = self.check_all([(request, sender)])
        if isinstance(found, Exception):
            raise found
        return found

    def check_all(
        self, requests: Sequence[tuple[RegisterRequest, Sender]]
    ) -> list[list[Candidate] | Exception]:
        """Return for each request a candidate per chunk, or what went wrong on our side."""
        claimed: list[list[_Claimed] | Exception] = []
        for request, sender in requests:
            try:
                claimed.append(self._claim_all(request, sender))
            except Exception as error:  # noqa: BLE001 - the other requests go on
                claimed.append(error)
        waiting = [blob for blobs in claimed if not isinstance(blobs, Exception) for blob in blobs]
        failures = self._inspect([blob for blob in waiting if blob.open()])
        answers: list[list[Candidate] | Exception] = []
        for blobs in claimed:
            if isinstance(blobs, Exception):
                answers.append(blobs)
                continue
            failed = next((failures[id(blob)] for blob in blobs if id(blob) in failures), None)
            answers.append(failed or [each for blob in blobs for each in blob.candidates])
        return answers

    def _claim_all(self, request: RegisterRequest, sender: Sender) -> list[_Claimed]:
        claimed: list[_Claimed] = []
        paths: set[str] = set()
        for blob in request.blobs or []:
            claimed.append(self._claim(blob, paths, sender))
            paths.add(blob.path or "")
        return claimed

    def _claim(self, blob: BlobMetadata, earlier: set[str], sender: Sender) -> _Claimed:
        chunks = blob.chunks or []
        refusal = blob_refusal(blob, earlier)
        if refusal is not None:
            return _Claimed([Candidate(chunk, None, refusal) for chunk in chunks], [])
        try:
            place = self._place(blob, sender)
        except _Refused as refused:
            return _Claimed([Candidate(chunk, None, refused.refusal) for chunk in chunks], [])
        candidates = [self._claimed(chunk, blob, place, sender) for chunk in chunks]
        if self._scrutiny.depth is Depth.OFF:
            return _Claimed(candidates, [])
        keys = [
            self._known.key(candidate.offer.key_id)
            if candidate.is_open and candidate.offer is not None
            else None
            for candidate in candidates
        ]
        return _Claimed(candidates, keys, place, (blob.md5 or "").lower(), sender.user)

    def _inspect(self, blobs: Sequence[_Claimed]) -> dict[int, Exception]:
        """Inspect blobs and settle their candidates; return by identity what failed on our side."""
        failures: dict[int, Exception] = {}
        if not blobs:
            return failures
        doubtful = self._settle(blobs, [blob.open() for blob in blobs], is_final=False)
        again: list[_Claimed] = []
        positions: list[list[int]] = []
        for blob, doubts in zip(blobs, doubtful, strict=True):
            if not doubts:
                continue
            try:
                # The columns known here may have grown since.
                for table_id in {key.table_id for at in doubts if (key := blob.keys[at])}:
                    self._known.schemas(table_id, again=True)
            except Exception as error:  # noqa: BLE001 - the other requests go on
                failures[id(blob)] = error
                continue
            again.append(blob)
            positions.append(doubts)
        if again:
            self._settle(again, positions, is_final=True)
        return failures

    def _settle(
        self, blobs: Sequence[_Claimed], positions: Sequence[list[int]], *, is_final: bool
    ) -> list[list[int]]:
        """Inspect chunks of blobs and settle them; return those that newer columns could save."""
        schemas: dict[int, Mapping[int, TableSchema]] = {}
        jobs = [
            self._job(blob, chosen, schemas, is_final=is_final)
            for blob, chosen in zip(blobs, positions, strict=True)
        ]
        findings = self._inspector.inspect(jobs, schemas)
        doubtful: list[list[int]] = []
        for blob, chosen, found in zip(blobs, positions, findings, strict=True):
            doubts: list[int] = []
            unsafe = self._unsafe(blob, found)
            for at, finding in zip(chosen, found.chunks, strict=True):
                if finding.is_doubtful and not is_final:
                    doubts.append(at)
                else:
                    blob.candidates[at] = self._settled(blob, at, finding, unsafe)
            doubtful.append(doubts)
        return doubtful

    def _job(
        self,
        blob: _Claimed,
        positions: Sequence[int],
        schemas: dict[int, Mapping[int, TableSchema]],
        *,
        is_final: bool,
    ) -> BlobJob:
        assert blob.place is not None  # noqa: S101 - only blobs that have one are inspected
        decode = self._scrutiny.decodes(blob.user)
        chunks = []
        for at in positions:
            key, offer = blob.keys[at], blob.candidates[at].offer
            assert key is not None  # noqa: S101 - only chunks that have one are inspected
            assert offer is not None  # noqa: S101
            versions = schemas.setdefault(key.table_id, self._known.schemas(key.table_id))
            chunks.append(
                ChunkJob(
                    offer.offset,
                    offer.length,
                    offer.md5,
                    offer.key_id,
                    key.data_key,
                    offer.rows,
                    offer.statistics,
                    key.table_id,
                    tuple(versions),
                    decode,
                    is_final,
                )
            )
        return BlobJob(blob.place.path, blob.place.stored_at, blob.md5, tuple(chunks))

    def _unsafe(self, blob: _Claimed, found: BlobFinding) -> Refusal | None:
        """Return why the blob's bytes may not be on the disk, None if they are, or will be."""
        distrusted, modified_at = self._distrusted, found.modified_at
        if distrusted is not None and modified_at is not None and modified_at <= distrusted:
            return NOT_DURABLE
        if all(finding.code for finding in found.chunks) or blob.place is None:
            return None
        path = blob.place.path
        try:
            # Here, not where it was inspected: only this process hears of writes that failed.
            is_safe = self._stage.is_on_disk(blob.place.stored_at, blob.md5)
        except ObjectMissing:
            return Refusal(ResponseCode.BLOB_FORMAT_WRONG, f"Blob {path} is not on the stage.")
        except (StageUnavailable, OSError) as error:
            _log.warning("blob %s cannot be read from its disk: %s", path, error)
            return Refusal(ResponseCode.TRY_AGAIN, f"Blob {path} cannot be read now: {error}")
        return None if is_safe else NOT_DURABLE

    def _settled(
        self, blob: _Claimed, at: int, finding: ChunkFinding, unsafe: Refusal | None
    ) -> Candidate:
        """Return a candidate after its inspection."""
        candidate = blob.candidates[at]
        offer = candidate.offer
        assert offer is not None  # noqa: S101 - only offers are inspected
        if finding.failure:
            _log.error(
                "chunk at %d of blob %s: %s",
                *(offer.offset, offer.path, finding.failure),
                extra={"user": blob.user, "table": offer.table, "path": offer.path},
            )
        if unsafe is not None:
            return candidate.refused(unsafe)
        if finding.code:
            # Its owner is told; what it sent counts nowhere.
            _log.info(
                "chunk refused: %s",
                finding.message,
                extra={"user": blob.user, "table": offer.table, "path": offer.path},
            )
            return candidate.refused(Refusal(ResponseCode(finding.code), finding.message))
        offer = dataclasses.replace(
            offer, schema_version=finding.version, statistics=finding.statistics
        )
        return dataclasses.replace(candidate, offer=offer)

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
            # What the client claims goes to the inspection, which derives what is stored.
            statistics=eps.encode_row_count(chunk.eps.rows)
            if self._scrutiny.depth is Depth.OFF
            else _encoder.encode(chunk.eps),
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
            commit_chunk_count=chunk.parts,
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


def _end_token(channel: ChunkChannelMessage) -> str | None:
    # `offset_token` and `end_offset_token` are the same; clients before 2.1 send only the first.
    return (
        channel.end_offset_token if channel.end_offset_token is not None else channel.offset_token
    )
