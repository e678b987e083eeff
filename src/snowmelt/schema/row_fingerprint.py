"""Fingerprints of rows in native form. They do not depend on the order, file or row group.

Each value is hashed with its field ID, and the hashes of a row are added and mixed. A fingerprint
consists of the number of rows and two sums of row hashes modulo 2⁶⁴, so the fingerprint of several
tables is the sum of their fingerprints. NULL adds nothing, so a column that is added later does not
change the fingerprints of older rows. Fingerprints detect accidental changes, not those of an
attacker.

Fingerprints are stored for years. Any change of the hash requires a new `VERSION`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from snowmelt.schema.chunk_types import FIELD_ID, UInt64s, decimal_to_words, make_null_mask

VERSION = 1

_MASK = (1 << 64) - 1
# Constants of the finalizer of SplitMix64.
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_SEED_STEP = 0x9E3779B97F4A7C15
_ROW_SALT = np.uint64(0xD6E8FEB86659FD93)
_SECOND_SALT = np.uint64(0xA0761D6478BD642F)
_QUIET_NAN = np.uint64(0x7FF8000000000000)
# Rows per block, so that a block fits in the processor's cache.
_BLOCK_ROWS = 32 * 1024
_WORD = 8
# Longer values are hashed one by one. A block takes one more step for each further 8 bytes of its
# longest value.
_MAX_VECTOR_BYTES = 256
_STORED = struct.Struct("<BQQQ")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Number of rows, and two sums of their hashes modulo 2⁶⁴."""

    rows: int = 0
    first: int = 0
    second: int = 0

    def __add__(self, other: Fingerprint) -> Fingerprint:
        return Fingerprint(
            self.rows + other.rows,
            (self.first + other.first) & _MASK,
            (self.second + other.second) & _MASK,
        )

    def to_bytes(self) -> bytes:
        """Return the stored form, of 25 bytes."""
        return _STORED.pack(VERSION, self.rows, self.first, self.second)

    @staticmethod
    def from_bytes(stored: bytes | None) -> Fingerprint | None:
        """Decode a stored fingerprint. Return None if it is missing or of another version."""
        if not stored or stored[0] != VERSION or len(stored) != _STORED.size:
            return None
        return Fingerprint(*_STORED.unpack(stored)[1:])


def sum_fingerprints(parts: Iterable[Fingerprint | None]) -> Fingerprint | None:
    """Return the sum of fingerprints, or None if one of them is unknown."""
    total = Fingerprint()
    for part in parts:
        if part is None:
            return None
        total += part
    return total


def fingerprint_table(table: pa.Table) -> Fingerprint:
    """Return the fingerprint of a table in native form, whose fields have IDs."""
    total = Fingerprint()
    for start in range(0, table.num_rows, _BLOCK_ROWS):
        hashes = hash_rows(table.slice(start, _BLOCK_ROWS))
        second = _mix(hashes ^ _SECOND_SALT)
        total += Fingerprint(len(hashes), _sum(hashes), _sum(second))
    return total


def hash_rows(table: pa.Table) -> UInt64s:
    """Return a hash of each row of a table in native form, whose fields have IDs."""
    sums = np.zeros(table.num_rows, np.uint64)
    for field, column in zip(table.schema, table.columns, strict=True):
        seed = _mix_one(int(field.metadata[FIELD_ID]) * _SEED_STEP + VERSION)
        start = 0
        for part in column.chunks:
            sums[start : start + len(part)] += _hash_values(part, np.uint64(seed))
            start += len(part)
    return _mix(sums ^ _ROW_SALT)


def _sum(hashes: UInt64s) -> int:
    return int(hashes.sum(dtype=np.uint64))


def _mix_one(value: int) -> int:
    return int(_mix(np.array([value & _MASK], np.uint64))[0])


def _mix(words: UInt64s) -> UInt64s:
    """Mix hashes in place, and return the array."""
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):
        words ^= words >> shift
        words *= factor
    words ^= words >> _SHIFTS[2]
    return words


def _hash_values(array: pa.Array, seed: np.uint64) -> UInt64s:
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        hashes = _hash_bytes(array, seed)
    elif pa.types.is_decimal(kind):
        low, high = decimal_to_words(array)
        hashes = _mix(_mix(low ^ seed) ^ high.view(np.uint64))
    else:
        hashes = _mix(_to_words(array) ^ seed)
    if array.null_count:
        hashes[make_null_mask(array)] = 0
    return hashes


def _to_words(array: pa.Array) -> UInt64s:
    """Return fixed-width values as 64-bit words. Words of nulls are arbitrary."""
    kind = array.type
    if pa.types.is_boolean(kind):
        words: UInt64s = array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint64)
        return words
    width = kind.bit_width
    raw = np.frombuffer(array.buffers()[1], np.int32 if width == 32 else np.int64)
    values = raw[array.offset : array.offset + len(array)]
    if pa.types.is_floating(kind):
        words = values.view(np.uint64).copy()
        words[np.isnan(values.view(np.float64))] = _QUIET_NAN
        return words
    return values.astype(np.int64).view(np.uint64)


def _hash_bytes(array: pa.Array, seed: np.uint64) -> UInt64s:
    count = len(array)
    _, offset_buffer, data_buffer = array.buffers()
    if not count or offset_buffer is None:
        return np.zeros(count, np.uint64)
    bounds = np.frombuffer(offset_buffer, np.int32)[array.offset : array.offset + count + 1]
    starts, lengths = bounds[:-1].astype(np.int64), np.diff(bounds).astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer else np.zeros(0, np.uint8)
    if data.size < _WORD:
        data = np.concatenate([data, np.zeros(_WORD, np.uint8)])
    # Overlapping words, one for each byte. Positions near the end shift the last whole word instead.
    words = np.ndarray((data.size - _WORD + 1,), np.dtype("<u8"), data, strides=(1,))
    hashes = _mix(lengths.astype(np.uint64) ^ seed)
    long = lengths > _MAX_VECTOR_BYTES
    lengths[long] = 0
    active = np.flatnonzero(lengths)
    position = 0
    while active.size:
        at = starts[active] + position
        held = np.minimum(at, words.size - 1)
        found = words[held] >> ((at - held).astype(np.uint64) << np.uint64(3))
        left = lengths[active] - position
        spare = np.maximum(_WORD - left, 0).astype(np.uint64) << np.uint64(3)
        found = (found << spare) >> spare
        hashes[active] = _mix(hashes[active] ^ found)
        position += _WORD
        active = active[left > _WORD]
    for row in np.flatnonzero(long):
        value = data[bounds[row] : bounds[row + 1]]
        digest = hashlib.blake2b(value.data, digest_size=_WORD).digest()
        hashes[row] ^= np.uint64(int.from_bytes(digest, "little"))
    hashes[long] = _mix(hashes[long])
    return hashes
