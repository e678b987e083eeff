"""Encryption of chunks: AES-256 in counter mode, a key per blob (specification of v1, §3.3)."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, TypeAlias

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from snowmelt.blob.layout import BLOCK_BYTES

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext

Readable: TypeAlias = bytes | bytearray | memoryview

KEY_BYTES = 32


def derive_key(data_key: bytes, path: str) -> bytes:
    """Return the key of one blob: SHA-256 of the table's data key and the blob's path."""
    return hashlib.sha256(data_key + path.encode()).digest()


def apply_ctr(data: Readable, *, key: bytes, offset: int) -> bytes:
    """Encrypt or decrypt a chunk that begins at `offset` of its blob; `key` is the derived one.

    The counter starts at `offset` whole blocks, so it runs on across the chunks of a blob.
    """
    return _stream(key, offset).update(data)


def apply_ctr_into(data: Readable, target: memoryview, *, key: bytes, offset: int) -> None:
    """Encrypt or decrypt like `apply_ctr` into `target`, which has the size of `data`."""
    _stream(key, offset).update_into(data, target)


def _stream(key: bytes, offset: int) -> CipherContext:
    counter = (offset // BLOCK_BYTES).to_bytes(BLOCK_BYTES, "big")
    return Cipher(algorithms.AES256(key), modes.CTR(counter)).encryptor()
