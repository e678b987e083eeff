"""Structural checks of a registration before any lookup (specification of v1, §2.7).

Pure. An error in a chunk is reported to its channels. The whole request is only rejected if it has
no channel to report to.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from snowmelt.blob.encryption import BDEC_VERSION
from snowmelt.errors import RegistrationRefused
from snowmelt.schema.types import to_display_name, to_internal_name
from snowmelt.wire.streaming import (
    BlobMetadata,
    ChunkChannelMessage,
    ChunkMetadata,
    RegisterBlobsRequest,
    ResponseCode,
)

# A client estimates sizes, and limits chunks to 256 MiB and blobs to 1 GiB (specification §3.6).
# Accept twice the sizes, because estimates may be too low.
MAX_CHUNK_BYTES = 512 * 1024 * 1024
MAX_BLOB_BYTES = 2 * 1024 * 1024 * 1024
MAX_CHUNK_ROWS = 1 << 40
_MAX_INT64 = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class RequestRejection:
    """Rejection of a chunk's channels: a response code of v1 and a message."""

    code: ResponseCode
    message: str


def check_request_names_channels(request: RegisterBlobsRequest) -> None:
    """Raise RegistrationRefused if a blob has no channel to respond to.

    Raises:
        RegistrationRefused: If there are no blobs, a blob has no chunks, or a chunk no channels.
    """
    if not request.blobs:
        raise RegistrationRefused("it names no blobs", ResponseCode.BLOBS_MISSING)
    for blob in request.blobs:
        if not blob.chunks:
            raise RegistrationRefused(
                f"blob {blob.path} has no chunks", ResponseCode.CHUNKS_MISSING
            )
        if not all(chunk.channels for chunk in blob.chunks):
            raise RegistrationRefused(
                f"a chunk of blob {blob.path} has no channels", ResponseCode.CHANNELS_MISSING
            )


def find_blob_error(blob: BlobMetadata, earlier_paths: set[str]) -> RequestRejection | None:
    """Return the error of a whole blob, or None. `earlier_paths` are the paths of previous blobs."""
    if not blob.path:
        return RequestRejection(ResponseCode.BLOB_PATH_MISSING, "The blob's path is missing.")
    if blob.path in earlier_paths:
        return RequestRejection(
            ResponseCode.BLOB_TWICE, f"Blob {blob.path} occurs twice in this registration."
        )
    if not blob.md5:
        return RequestRejection(ResponseCode.BLOB_MD5_MISSING, f"Blob {blob.path} has no MD5.")
    if blob.bdec_version != BDEC_VERSION:
        return RequestRejection(
            ResponseCode.BDEC_VERSION_UNSUPPORTED,
            f"Blob {blob.path} has BDEC version {blob.bdec_version}; only {BDEC_VERSION} is supported.",
        )
    ranges = sorted(
        (chunk.chunk_start_offset, chunk.chunk_length)
        for chunk in blob.chunks or []
        if chunk.chunk_start_offset is not None and chunk.chunk_length is not None
    )
    if any(
        start + length > following for (start, length), (following, _) in itertools.pairwise(ranges)
    ):
        return RequestRejection(
            ResponseCode.CHUNK_LENGTH_INVALID, f"Chunks of blob {blob.path} overlap."
        )
    return None


def find_chunk_error(chunk: ChunkMetadata) -> RequestRejection | None:
    """Return the first validation error of a chunk or its channels, or None."""
    for value, code, what in (
        (chunk.database, ResponseCode.DATABASE_NAME_MISSING, "database"),
        (chunk.schema, ResponseCode.SCHEMA_NAME_MISSING, "schema"),
        (chunk.table, ResponseCode.TABLE_NAME_MISSING, "table"),
        (chunk.chunk_md5, ResponseCode.CHUNK_MD5_MISSING, "MD5"),
        (chunk.eps, ResponseCode.EP_MISSING, "statistics (eps)"),
    ):
        if not value:
            return RequestRejection(code, f"The chunk's {what} is missing.")
    position_error = _find_position_error(chunk)
    if position_error is not None:
        return position_error
    if not _is_non_negative_int64(chunk.encryption_key_id):
        return RequestRejection(
            ResponseCode.ENCRYPTION_KEY_INVALID,
            f"The chunk has encryption key ID {chunk.encryption_key_id}, expected 0 to {2**63 - 1}.",
        )
    if chunk.eps is not None and not (
        chunk.eps.rows == 0 if chunk.rowless else 0 < chunk.eps.rows < MAX_CHUNK_ROWS
    ):
        return RequestRejection(
            ResponseCode.EP_ROW_COUNT_INVALID,
            f"The chunk has {chunk.eps.rows} rows, expected"
            f" {'0' if chunk.rowless else f'1 to {MAX_CHUNK_ROWS - 1:,}'}.",
        )
    parts_error = _find_parts_error(chunk)
    if parts_error is not None:
        return parts_error
    for instant in (chunk.first_insert_time_in_ms, chunk.last_insert_time_in_ms):
        if instant is not None and not _is_non_negative_int64(instant):
            return RequestRejection(
                ResponseCode.BLOB_FORMAT_WRONG,
                f"Invalid insertion time {instant} ms of the chunk. Expected 0 to {2**63 - 1} ms.",
            )
    return _find_channel_error(chunk.channels or [])


def _find_position_error(chunk: ChunkMetadata) -> RequestRejection | None:
    offset, length = chunk.chunk_start_offset, chunk.chunk_length
    if offset is None or offset < 0:
        return RequestRejection(
            ResponseCode.CHUNK_LENGTH_INVALID,
            f"The chunk has offset {offset}, expected 0 or greater.",
        )
    if length is None or not 0 < length <= MAX_CHUNK_BYTES:
        return RequestRejection(
            ResponseCode.CHUNK_LENGTH_INVALID,
            f"The chunk has length {length}, expected 1 to {MAX_CHUNK_BYTES:,} bytes. Send smaller"
            " chunks.",
        )
    return None


def _find_parts_error(chunk: ChunkMetadata) -> RequestRejection | None:
    if chunk.parts < 1:
        return RequestRejection(
            ResponseCode.CHUNKS_MISSING,
            f"The number of chunks (parts) is {chunk.parts}, expected 1 or greater.",
        )
    if chunk.parts > 1 and len(chunk.channels or []) != 1:
        return RequestRejection(
            ResponseCode.CHUNKS_MISSING,
            f"A chunk with parts {chunk.parts} has {len(chunk.channels or [])} channels, expected 1.",
        )
    return None


def _find_channel_error(channels: Sequence[ChunkChannelMessage]) -> RequestRejection | None:
    names: set[str] = set()
    for channel in channels:
        if not channel.channel_name:
            return RequestRejection(
                ResponseCode.CHANNEL_NAME_MISSING, "A channel of the chunk has no name."
            )
        name = to_internal_name(channel.channel_name)
        if name in names:
            return RequestRejection(
                ResponseCode.CHANNEL_TWICE,
                f"Channel {to_display_name(name)} occurs twice in the chunk.",
            )
        names.add(name)
        tokens = (channel.offset_token, channel.start_offset_token, channel.end_offset_token)
        if any("\0" in token for token in tokens if token):
            return RequestRejection(
                ResponseCode.CHANNEL_NAME_MISSING,
                f"The offset token of channel {to_display_name(name)} contains the character NUL.",
            )
        if not _is_non_negative_int64(channel.client_sequencer):
            return RequestRejection(
                ResponseCode.CLIENT_SEQUENCER_MISSING,
                f"The client sequencer of channel {to_display_name(name)} is"
                f" {channel.client_sequencer}, expected 0 to {2**63 - 1}.",
            )
        if not _is_non_negative_int64(channel.row_sequencer):
            return RequestRejection(
                ResponseCode.ROW_SEQUENCER_NOT_NEXT,
                f"The row sequencer of channel {to_display_name(name)} is"
                f" {channel.row_sequencer}, expected 0 to {2**63 - 1}.",
            )
    return None


def _is_non_negative_int64(value: int | None) -> bool:
    return value is not None and 0 <= value <= _MAX_INT64
