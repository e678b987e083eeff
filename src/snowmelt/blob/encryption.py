"""Paths of blobs, padding of chunks, and their encryption (specification of v1, §3.1–§3.3).

Chunks are encrypted by AES-256 in counter mode, with one key per blob.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from dataclasses import dataclass
from typing import TypeAlias

from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from snowmelt.errors import BlobInvalid

BLOCK_BYTES = 16
BDEC_VERSION = 3

_BASE36_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_MAX_PATH_CHARACTERS = 512
_PATH_PATTERN = re.compile(
    r"(?P<year>[0-9]{4})/(?P<month>[0-9]{1,2})/(?P<day>[0-9]{1,2})"
    r"/(?P<hour>[0-9]{1,2})/(?P<minute>[0-9]{1,2})"
    r"/(?P<seconds>[0-9a-z]{1,9})_(?P<prefix>[A-Za-z0-9][A-Za-z0-9_-]*)"
    r"_(?P<thread>[0-9]{1,19})_(?P<counter>[0-9]{1,19})\.bdec\Z"
)


@dataclass(frozen=True, slots=True)
class ParsedBlobPath:
    """Parts of a blob's path. `created_at` is the time of the client's clock, in whole seconds."""

    path: str
    created_at: dt.datetime
    client_prefix: str
    thread_id: int
    counter: int


def make_blob_path(
    created_at: dt.datetime, client_prefix: str, thread_id: int, counter: int
) -> str:
    """Return the path of a blob: its location on the stage, and part of its key.

    `created_at` must be timezone-aware. Never use the same client prefix and counter for other
    bytes: the key is derived from the path, and a reused key repeats the keystream.
    """
    created_at = created_at.astimezone(dt.UTC)
    # Truncate before converting to float, because in some centuries that rounds microseconds up.
    seconds = _encode_base36(int(created_at.replace(microsecond=0).timestamp()))
    folder = f"{created_at.year}/{created_at.month}/{created_at.day}/{created_at.hour}/{created_at.minute}"
    return f"{folder}/{seconds}_{client_prefix}_{thread_id}_{counter}.bdec"


def parse_blob_path(path: str) -> ParsedBlobPath:
    """Parse the path of a blob.

    Raises:
        BlobInvalid: If it is not a BDEC path, is absolute, or has `..`, a backslash or NUL.
    """
    match = _PATH_PATTERN.match(path) if len(path) <= _MAX_PATH_CHARACTERS else None
    if match is None:
        raise BlobInvalid(
            path=repr(path[:_MAX_PATH_CHARACTERS]), reason="the name is not that of a BDEC blob"
        )
    year, month, day, hour, minute = (
        int(match[name]) for name in ("year", "month", "day", "hour", "minute")
    )
    try:
        dt.datetime(year, month, day, hour, minute, tzinfo=dt.UTC)
        created_at = dt.datetime.fromtimestamp(int(match["seconds"], 36), dt.UTC)
    except (ValueError, OverflowError, OSError):
        raise BlobInvalid(path=path, reason="the name has an invalid time") from None
    return ParsedBlobPath(
        path, created_at, match["prefix"], int(match["thread"]), int(match["counter"])
    )


def padded_length(length: int) -> int:
    """Return the padded size of a chunk of `length` bytes: 1 to 16 pad bytes, never 0."""
    return length + BLOCK_BYTES - length % BLOCK_BYTES


def _encode_base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, len(_BASE36_DIGITS))
        digits = _BASE36_DIGITS[digit] + digits
    return digits or "0"


# --- Encryption of chunks: AES-256 in counter mode, one key per blob (specification of v1, §3.3).

BytesLike: TypeAlias = bytes | bytearray | memoryview


def derive_blob_key(data_key: bytes, path: str) -> bytes:
    """Return the key of one blob: SHA-256 of the table's data key and the blob's path."""
    return hashlib.sha256(data_key + path.encode()).digest()


def apply_aes_ctr(data: BytesLike, *, key: bytes, offset: int) -> bytes:
    """Encrypt or decrypt a chunk that starts at `offset` of its blob, with the derived `key`.

    The counter starts at the block of `offset`, so it continues across the chunks of a blob.
    """
    return _make_ctr_cipher(key, offset).update(data)


def apply_aes_ctr_into(data: BytesLike, target: memoryview, *, key: bytes, offset: int) -> None:
    """Encrypt or decrypt as `apply_aes_ctr` does, into `target` of the same size as `data`."""
    _make_ctr_cipher(key, offset).update_into(data, target)


def _make_ctr_cipher(key: bytes, offset: int) -> CipherContext:
    counter = (offset // BLOCK_BYTES).to_bytes(BLOCK_BYTES, "big")
    return Cipher(algorithms.AES256(key), modes.CTR(counter)).encryptor()
