"""Verify registrations against the stage, outside of transactions.

Committed rows must stay readable, and no claim of a client may change a query result. A chunk is
therefore only accepted if its blob is a regular file under a prefix of the user, with the correct
size and MD5. The specified key must decrypt the chunk, and its rows must fit a schema version of
the table. The statistics are computed from these rows.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

import msgspec

from snowmelt.blob import encryption
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.objects import tables
from snowmelt.catalog.security.encryption_keys import KeyRing
from snowmelt.catalog.streaming import registration
from snowmelt.catalog.streaming.registration import ChannelAdvance, ChunkOffer
from snowmelt.errors import BlobInvalid, ObjectMissing, StageUnavailable
from snowmelt.ingest.blob_decoder import BlobDecodeJob, ChunkDecodeJob, ChunkDecodeResult
from snowmelt.ingest.migration_backlog import BACKLOG_TOO_LARGE, BackPressure
from snowmelt.ingest.registration_structure_check import (
    RequestRejection,
    find_blob_error,
    find_chunk_error,
)
from snowmelt.schema.inference import find_versions_with_defaults_of
from snowmelt.schema.types import TableName, TableSchema, to_internal_name
from snowmelt.storage.store import Store
from snowmelt.wire import column_statistics
from snowmelt.wire.streaming import BlobMetadata, ChunkMetadata, RegisterBlobsRequest, ResponseCode

if TYPE_CHECKING:
    from snowmelt.ingest.blob_decoder import BlobDecodeResult, Schemas

_log = logging.getLogger("snowmelt.ingest")
_encoder = msgspec.json.Encoder()
BLOB_NOT_DURABLE = RequestRejection(
    ResponseCode.BLOB_FORMAT_WRONG,
    "A sync of the stage failed after this blob was written, so the blob may not be on the disk. Reopen"
    " the channel and resend the rows after its committed offset token. The log of the service has the"
    " reason.",
)
# Cache the parsed names, because registrations repeat the same few names.
_cached_internal_name = lru_cache(maxsize=100_000)(to_internal_name)

_MAX_CACHED_ENTRIES = 100_000
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class CachedDataKey:
    """A data key with its table incarnation and its user."""

    table_id: int
    user: str
    data_key: bytes = field(repr=False)


@dataclass(eq=False, slots=True)
class CatalogCache:
    """Cache of immutable catalog data: prefix owners, data keys and schema versions. Thread-safe.

    It is only used for preparation: the registering transaction checks table, role, key and columns
    again.
    """

    _database: Database
    _keyring: KeyRing
    _owners: dict[str, str] = field(default_factory=dict)
    _keys: dict[int, CachedDataKey] = field(default_factory=dict)
    _schemas: dict[int, Mapping[int, TableSchema]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def find_prefix_owner(self, prefix: str) -> str | None:
        """Return the user to whom a client prefix was issued, or None if it was not issued."""
        owner = self._owners.get(prefix)
        if owner is None:
            with self._database.reading() as connection:
                owner = registration.find_prefix_owner(connection, prefix)
            if owner is not None:
                self._put_in_cache(self._owners, prefix, owner)
        return owner

    def find_data_key(self, key_id: int) -> CachedDataKey | None:
        """Return a data key by its ID, or None if there is none."""
        known = self._keys.get(key_id)
        if known is None:
            with self._database.reading() as connection:
                scope = self._keyring.find_key_scope(connection, key_id)
                if scope is None:
                    return None
                data_key = self._keyring.find_data_keys(connection, [key_id])[key_id]
            known = CachedDataKey(scope[0], scope[1], data_key)
            self._put_in_cache(self._keys, key_id, known)
        return known

    def get_schemas(self, table_id: int, *, refresh: bool = False) -> Mapping[int, TableSchema]:
        """Return the cached schema versions of a table. With `refresh`, read the catalog first."""
        known = self._schemas.get(table_id)
        if known is None or refresh:
            with self._database.reading() as connection:
                known = tables.list_table_schema_versions(connection, table_id)
            self._put_in_cache(self._schemas, table_id, known)
        return known

    def _put_in_cache(self, cache: dict[_Key, _Value], key: _Key, value: _Value) -> None:
        with self._lock:
            if len(cache) >= _MAX_CACHED_ENTRIES:
                cache.clear()
            cache[key] = value


@dataclass(frozen=True, slots=True)
class Registrant:
    """User and role of a registration. Role None means the user's default role."""

    user: str
    role: str | None


@dataclass(frozen=True, slots=True)
class ChunkCandidate:
    """A verified chunk: an offer to the catalog, or a rejection if no offer is possible.

    An offer with a rejection can only be accepted as a repetition: a chunk stays registered even
    after its file was deleted.
    """

    offer: ChunkOffer | None
    rejection: RequestRejection | None = None

    @property
    def is_acceptable(self) -> bool:
        """True if no check has rejected this chunk."""
        return self.offer is not None and self.offer.rejection is None

    def with_rejection(self, rejection: RequestRejection) -> ChunkCandidate:
        """Return a copy with a rejection, which can only be accepted as a repetition."""
        if self.offer is None or self.offer.rejection is not None:
            return self
        refusal_fields = (int(rejection.code), rejection.message)
        return dataclasses.replace(
            self, offer=dataclasses.replace(self.offer, rejection=refusal_fields)
        )


@dataclass(frozen=True, slots=True)
class _BlobLocation:
    """Location of a blob in the stage, and its owner."""

    path: str
    stage_path: str
    prefix: str


class VerificationDepth(StrEnum):
    """Extent of the verification of a chunk.

    FULL decodes the chunk. FOOTER compares checksums, footer and columns, and stores no bounds; an
    administrator can select it for users. OFF verifies nothing, and is for measuring the cost of
    the other levels.
    """

    FULL = "full"
    FOOTER = "footer"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class VerificationPolicy:
    """Verification depth, with FOOTER for the users that an administrator has exempted."""

    depth: VerificationDepth = VerificationDepth.FULL
    unverified_users: frozenset[str] = frozenset()

    def requires_decoding(self, user: str) -> bool:
        """Return True if this user's chunks are decoded before they are registered."""
        return self.depth is VerificationDepth.FULL and user not in self.unverified_users


@dataclass(slots=True)
class _ClaimedBlob:
    """A blob as described by its sender: its candidates, and their decode jobs.

    `keys` has one item per candidate: None if the candidate is not decoded.
    """

    chunks: list[ChunkCandidate]
    keys: list[CachedDataKey | None]
    location: _BlobLocation | None = None
    md5: str = ""
    user: str = ""

    def positions_to_decode(self) -> list[int]:
        return [position for position, key in enumerate(self.keys) if key is not None]


class RegistrationVerifier:
    """Verifies registrations against the stage."""

    def __init__(
        self,
        catalog_cache: CatalogCache,
        stage: Store,
        *,
        deployment_id: int,
        policy: VerificationPolicy | None = None,
        back_pressure: BackPressure | None = None,
        decode_blobs: Callable[[Sequence[BlobDecodeJob], Schemas], list[BlobDecodeResult]],
    ) -> None:
        """Create a verifier for blobs on `stage` whose names contain `deployment_id`."""
        self._catalog_cache = catalog_cache
        self._stage = stage
        self._suffix = f"_{deployment_id}"
        self._policy = policy or VerificationPolicy()
        self._back_pressure = back_pressure
        self._decode_blob_jobs = decode_blobs
        self._rejected_before: dt.datetime | None = None

    def reject_blobs_before(self, timestamp: dt.datetime) -> None:
        """Reject blobs that were written before `timestamp` and are not registered yet.

        After a failed sync, the kernel may have dropped dirty pages of any file. Such a file seems
        complete until its pages are read from the disk again.
        """
        self._rejected_before = timestamp

    def verify_all(
        self, requests: Sequence[tuple[RegisterBlobsRequest, Registrant]]
    ) -> list[list[ChunkCandidate] | Exception]:
        """Verify requests. Return one candidate per chunk for each, or an internal error."""
        claimed: list[list[_ClaimedBlob] | Exception] = []
        for request, sender in requests:
            try:
                paths: set[str] = set()
                claimed.append(
                    [self._read_blob_claims(blob, paths, sender) for blob in request.blobs or []]
                )
            except Exception as error:  # noqa: BLE001 - the other requests go on
                claimed.append(error)
        waiting = [blob for blobs in claimed if not isinstance(blobs, Exception) for blob in blobs]
        failures = self._decode_blobs([blob for blob in waiting if blob.positions_to_decode()])
        answers: list[list[ChunkCandidate] | Exception] = []
        for blobs in claimed:
            if isinstance(blobs, Exception):
                answers.append(blobs)
                continue
            failed = next((failures[id(blob)] for blob in blobs if id(blob) in failures), None)
            answers.append(failed or [each for blob in blobs for each in blob.chunks])
        return answers

    def _read_blob_claims(
        self, blob: BlobMetadata, earlier_paths: set[str], registrant: Registrant
    ) -> _ClaimedBlob:
        chunks = blob.chunks or []
        refusal = find_blob_error(blob, earlier_paths)
        earlier_paths.add(blob.path or "")
        place = refusal or self._locate_blob(blob, registrant)
        if isinstance(place, RequestRejection):
            return _ClaimedBlob([ChunkCandidate(None, place)] * len(chunks), [])
        candidates = [
            self._make_chunk_candidate(chunk, blob, place, registrant) for chunk in chunks
        ]
        if self._policy.depth is VerificationDepth.OFF:
            return _ClaimedBlob(candidates, [])
        keys = [
            self._catalog_cache.find_data_key(candidate.offer.key_id)
            if candidate.is_acceptable and candidate.offer is not None
            else None
            for candidate in candidates
        ]
        return _ClaimedBlob(candidates, keys, place, (blob.md5 or "").lower(), registrant.user)

    def _decode_blobs(self, blobs: Sequence[_ClaimedBlob]) -> dict[int, Exception]:
        """Decode blobs and update their candidates. Return internal errors by the blob's `id()`."""
        failures: dict[int, Exception] = {}
        if not blobs:
            return failures
        doubtful = self._decode_and_apply(
            blobs, [blob.positions_to_decode() for blob in blobs], is_final=False
        )
        again: list[_ClaimedBlob] = []
        positions: list[list[int]] = []
        for blob, doubts in zip(blobs, doubtful, strict=True):
            if not doubts:
                continue
            try:
                # Columns may have been added to the table since the schemas were cached.
                for table_id in {key.table_id for at in doubts if (key := blob.keys[at])}:
                    self._catalog_cache.get_schemas(table_id, refresh=True)
            except Exception as error:  # noqa: BLE001 - the other requests go on
                failures[id(blob)] = error
                continue
            again.append(blob)
            positions.append(doubts)
        if again:
            self._decode_and_apply(again, positions, is_final=True)
        return failures

    def _decode_and_apply(
        self, blobs: Sequence[_ClaimedBlob], positions: Sequence[list[int]], *, is_final: bool
    ) -> list[list[int]]:
        """Decode chunks and update their candidates.

        Return the candidates that newer columns could fit.
        """
        schemas: dict[int, Mapping[int, TableSchema]] = {}
        jobs = [
            self._make_decode_job(blob, chosen, schemas, is_final=is_final)
            for blob, chosen in zip(blobs, positions, strict=True)
        ]
        findings = self._decode_blob_jobs(jobs, schemas)
        doubtful: list[list[int]] = []
        for blob, chosen, found in zip(blobs, positions, findings, strict=True):
            doubts: list[int] = []
            unsafe = self._find_durability_error(blob, found)
            for at, finding in zip(chosen, found.chunks, strict=True):
                if finding.may_fit_newer_schema and not is_final:
                    doubts.append(at)
                else:
                    blob.chunks[at] = self._apply_decode_result(blob, at, finding, unsafe)
            doubtful.append(doubts)
        return doubtful

    def _make_decode_job(
        self,
        blob: _ClaimedBlob,
        positions: Sequence[int],
        schemas: dict[int, Mapping[int, TableSchema]],
        *,
        is_final: bool,
    ) -> BlobDecodeJob:
        assert blob.location is not None  # noqa: S101 - only blobs that have one are inspected
        decode = self._policy.requires_decoding(blob.user)
        chunks = []
        for at in positions:
            key, offer = blob.keys[at], blob.chunks[at].offer
            assert key is not None  # noqa: S101 - only chunks that have one are inspected
            assert offer is not None  # noqa: S101
            versions = schemas.setdefault(
                key.table_id, self._catalog_cache.get_schemas(key.table_id)
            )
            chunks.append(
                ChunkDecodeJob(
                    offer.offset,
                    offer.length,
                    offer.md5,
                    offer.key_id,
                    key.data_key,
                    offer.rows,
                    offer.statistics,
                    key.table_id,
                    # Consider only schema versions whose default values the client has filled.
                    tuple(find_versions_with_defaults_of(versions, offer.schema_version)),
                    decode,
                    is_final,
                )
            )
        return BlobDecodeJob(blob.location.path, blob.location.stage_path, blob.md5, tuple(chunks))

    def _find_durability_error(
        self, blob: _ClaimedBlob, result: BlobDecodeResult
    ) -> RequestRejection | None:
        """Return a rejection if a sync may not make the blob durable, else None."""
        distrusted, modified_at = self._rejected_before, result.modified_at
        if distrusted is not None and modified_at is not None and modified_at <= distrusted:
            return BLOB_NOT_DURABLE
        if all(finding.code for finding in result.chunks) or blob.location is None:
            return None
        path = blob.location.path
        try:
            # Check here, because only this process, and not its children, observes failed writes.
            is_safe = self._stage.is_on_disk(blob.location.stage_path, blob.md5)
        except ObjectMissing:
            return RequestRejection(
                ResponseCode.BLOB_FORMAT_WRONG,
                f"Blob {path} is not on the stage. Upload it before its registration.",
            )
        except (StageUnavailable, OSError) as error:
            _log.warning("cannot read blob %s from the disk: %s", path, error)
            reason = str(error).rstrip(".")
            return RequestRejection(
                ResponseCode.TRY_AGAIN,
                f"Cannot read blob {path}: {reason}. Send the registration again.",
            )
        return None if is_safe else BLOB_NOT_DURABLE

    def _apply_decode_result(
        self,
        blob: _ClaimedBlob,
        position: int,
        result: ChunkDecodeResult,
        durability_error: RequestRejection | None,
    ) -> ChunkCandidate:
        """Return a candidate updated with its decode result."""
        candidate = blob.chunks[position]
        offer = candidate.offer
        assert offer is not None  # noqa: S101 - only offers are inspected
        if result.failure_traceback:
            _log.error(
                "chunk at %d of blob %s: %s",
                *(offer.offset, offer.path, result.failure_traceback),
                extra={"user": blob.user, "table": offer.table, "path": offer.path},
            )
        if durability_error is not None:
            return candidate.with_rejection(durability_error)
        if result.code:
            # The channel's owner gets the error. The rows are not counted.
            _log.info(
                "chunk rejected: %s",
                result.message,
                extra={"user": blob.user, "table": offer.table, "path": offer.path},
            )
            return candidate.with_rejection(
                RequestRejection(ResponseCode(result.code), result.message)
            )
        offer = dataclasses.replace(
            offer, schema_version=result.schema_version, statistics=result.statistics
        )
        return dataclasses.replace(candidate, offer=offer)

    def _locate_blob(
        self, blob: BlobMetadata, registrant: Registrant
    ) -> _BlobLocation | RequestRejection:
        """Return the location of a blob. It must be under a prefix that was issued to the sender."""
        path = blob.path or ""
        if not path.endswith(".bdec"):
            return RequestRejection(
                ResponseCode.BLOB_FORMAT_WRONG, f"Blob {path[:200]!r} is not a .bdec file."
            )
        try:
            name = encryption.parse_blob_path(path)
        except BlobInvalid as error:
            _log.warning(
                "user %s registers a blob with a bad name: %s",
                *(registrant.user, error),
                extra={"user": registrant.user},
            )
            return RequestRejection(ResponseCode.BLOB_NAME_WRONG, str(error))
        prefix = name.client_prefix.removesuffix(self._suffix)
        if (
            prefix == name.client_prefix
            or self._catalog_cache.find_prefix_owner(prefix) != registrant.user
        ):
            _log.warning(
                "user %s registers blob %s of a foreign prefix",
                *(registrant.user, path),
                extra={"user": registrant.user, "path": path},
            )
            return RequestRejection(
                ResponseCode.BLOB_NAME_WRONG,
                f"Blob {path} does not have a prefix that was issued to user {registrant.user}.",
            )
        return _BlobLocation(path, f"{prefix}/{path}", prefix)

    def _make_chunk_candidate(
        self,
        chunk: ChunkMetadata,
        blob: BlobMetadata,
        location: _BlobLocation,
        registrant: Registrant,
    ) -> ChunkCandidate:
        """Create the candidate of a chunk as described by its sender, before verification."""
        refusal = find_chunk_error(chunk)
        if refusal is not None or chunk.eps is None:
            return ChunkCandidate(None, refusal)
        key = self._catalog_cache.find_data_key(chunk.encryption_key_id or 0)
        schemas: Mapping[int, TableSchema] = {}
        filled_version = chunk.schema_version or 0
        if key is not None:
            schemas = self._catalog_cache.get_schemas(key.table_id)
            if filled_version not in {0, *schemas}:
                schemas = self._catalog_cache.get_schemas(key.table_id, refresh=True)
        offer = ChunkOffer(
            path=location.path,
            blob_md5=(blob.md5 or "").lower(),
            prefix=location.prefix,
            user=registrant.user,
            role=registrant.role,
            table=TableName(
                _cached_internal_name(chunk.database or ""),
                _cached_internal_name(chunk.schema or ""),
                _cached_internal_name(chunk.table or ""),
            ),
            offset=chunk.chunk_start_offset or 0,
            length=chunk.chunk_length or 0,
            md5=(chunk.chunk_md5 or "").lower(),
            key_id=chunk.encryption_key_id or 0,
            rows=chunk.eps.rows,
            schema_version=max(find_versions_with_defaults_of(schemas, filled_version), default=0),
            # The decoder receives the claimed statistics, and computes the stored ones.
            statistics=column_statistics.NO_STORED_STATISTICS
            if self._policy.depth is VerificationDepth.OFF
            else _encoder.encode(chunk.eps),
            first_insert_ms=chunk.first_insert_time_in_ms,
            last_insert_ms=chunk.last_insert_time_in_ms,
            channels=tuple(
                ChannelAdvance(
                    _cached_internal_name(channel.channel_name or ""),
                    channel.client_sequencer or 0,
                    channel.row_sequencer or 0,
                    channel.start_offset_token,
                    # `offset_token` has the same meaning. Clients before version 2.1 send only that
                    # field.
                    channel.offset_token
                    if channel.end_offset_token is None
                    else channel.end_offset_token,
                )
                for channel in chunk.channels or []
            ),
            commit_chunk_count=chunk.parts,
        )
        candidate = ChunkCandidate(offer)
        if key is None or key.user != registrant.user:
            return candidate.with_rejection(
                RequestRejection(
                    ResponseCode.REOPEN,
                    f"Encryption key {chunk.encryption_key_id} was not issued to user"
                    f" {registrant.user} for this table. Open the channel again.",
                )
            )
        if (
            self._back_pressure is not None
            and key.table_id in self._back_pressure.throttled_table_ids
        ):
            return candidate.with_rejection(BACKLOG_TOO_LARGE)
        return candidate
