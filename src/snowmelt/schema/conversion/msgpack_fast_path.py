"""Plain columns read through MessagePack instead of one Python object after the other.

msgspec writes a list of floats, booleans or timestamps in a few nanoseconds each, in records of one
size, which NumPy reads as an array. It accepts no subclasses, but writes an enumeration's member as
its value. So the records also prove that the values have no other types.

Each function returns None where it is not certain. Rules and rejections are in other modules.
"""

from __future__ import annotations

import struct
from datetime import timedelta, timezone
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from snowmelt.schema.chunk_types import Int64s

    Int32s = NDArray[np.int32]

_encode_msgpack = msgspec.msgpack.Encoder().encode
_FIXARRAY_END, _ARRAY16_END = 2**4, 2**16

# What a byte of the list says: 0, 1, or nothing that a single byte could be the number of.
_BOOLEAN_TAGS = bytes({0xC2: 0, 0xC3: 1}.get(byte, 0xFF) for byte in range(256))
_DOUBLE_BYTES = 9
_DOUBLE_TAG = 0xCB

# A moment is 34 bits of seconds below 30 bits of nanoseconds, or 32 bits of seconds alone.
_TIMESTAMP64_RECORD = np.dtype([("tag", ">u2"), ("value", ">u8")])
_TIMESTAMP64_TAG = b"\xd7\xff"
_SECONDS_MASK = np.uint64(2**34 - 1)
_SECOND_BITS = np.uint64(34)
_TIMESTAMP32_RECORD = np.dtype([("tag", ">u2"), ("seconds", ">u4")])
_TIMESTAMP32_TAG = b"\xd6\xff"
_WIDENED_TIMESTAMP_TAG = _TIMESTAMP64_TAG + bytes(4)
# Beyond this share of moments without a fraction, among others, they are not put right one by one.
_WIDENED_SHARE_DIVISOR = 8
_MICROSECOND = timedelta(microseconds=1)

MAX_ARRAY_CHARACTERS = 2**31 - 1


def convert_floats(values: Sequence[object]) -> pa.Array | None:
    """Read values that are all floats."""
    words = pack_floats(values)
    return None if words is None else unpack_float_array(words)


def pack_floats(values: Sequence[object]) -> bytes | None:
    """Return values that are all floats as the machine has them."""
    count = len(values)
    body = _encode_items(values)
    if body is None or len(body) != count * _DOUBLE_BYTES:
        return None
    if body[::_DOUBLE_BYTES].count(_DOUBLE_TAG) != count:
        return None
    try:
        # Not those of the records: an enumeration's member may be a number, and have another.
        return struct.pack(f"{count}d", *values)
    except struct.error:
        return None


def unpack_float_array(words: bytes) -> pa.Array:
    """Return the array of what `pack_floats` returned."""
    return pa.Array.from_buffers(pa.float64(), len(words) // 8, [None, pa.py_buffer(words)])


def convert_booleans(values: Sequence[Any]) -> pa.Array | None:
    """Read values that are all booleans."""
    bits = pack_booleans(values)
    return None if bits is None else unpack_boolean_array(bits)


def pack_booleans(values: Sequence[Any]) -> bytes | None:
    """Return values that are all booleans as bytes, 0 or 1."""
    body = _encode_items(values)
    if body is None or len(body) != len(values):
        return None
    try:
        bits = bytes(values)
    except (TypeError, ValueError):
        return None
    return bits if body.translate(_BOOLEAN_TAGS) == bits else None


def unpack_boolean_array(boolean_bytes: bytes) -> pa.Array:
    """Return the array of what `pack_booleans` returned."""
    bitmap = pa.py_buffer(np.packbits(np.frombuffer(boolean_bytes, np.uint8), bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(boolean_bytes), [None, bitmap])


def convert_strings(values: Sequence[Any], max_characters: int) -> pa.Array | None:
    """Read values that are all ASCII texts of at most so many characters."""
    read = pack_strings(values, max_characters)
    return None if read is None else unpack_string_array(*read)


def pack_strings(values: Sequence[Any], max_characters: int) -> tuple[bytes, Int32s] | None:
    """Return all characters of such texts, and the length of each."""
    try:
        joined = "".join(values)
    except TypeError:
        return None
    if not joined.isascii() or len(joined) > MAX_ARRAY_CHARACTERS:
        return None
    lengths = np.fromiter(map(len, values), np.int32, len(values))
    if lengths.max() > max_characters or lengths.sum() != len(joined):
        return None
    return joined.encode(), lengths


def unpack_string_array(content: bytes, lengths: Int32s) -> pa.Array:
    """Return the array of what `pack_strings` returned."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    lengths.cumsum(out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.string(), len(lengths), buffers)


def convert_timestamps(values: Sequence[Any], zone: timezone) -> Int64s | None:
    """Read datetimes of one zone; return what their clocks show, in µs since 1970."""
    records = pack_timestamps(values, zone)
    return None if records is None else unpack_local_times_us(records, len(values), zone)


def pack_timestamps(values: Sequence[Any], zone: timezone) -> bytes | None:
    """Return datetimes of one zone as records of one size, all with a fraction or all without."""
    # The rules cut an offset to seconds.
    body = None if zone.utcoffset(None).microseconds else _encode_items(values)
    if body is None or not _are_all_in_zone(zone, values):
        return None
    count, whole = len(values), _TIMESTAMP32_RECORD.itemsize
    if len(body) == count * whole:
        return body if _are_all_tagged(body, _TIMESTAMP32_TAG, whole, count) else None
    body, size = _widen_timestamps(body, count), _TIMESTAMP64_RECORD.itemsize
    if len(body) != count * size:
        return None
    return body if _are_all_tagged(body, _TIMESTAMP64_TAG, size, count) else None


def unpack_local_times_us(records: bytes, count: int, zone: timezone) -> Int64s:
    """Return what the clocks of such datetimes show, in µs since 1970."""
    if len(records) == count * _TIMESTAMP32_RECORD.itemsize:
        us = np.frombuffer(records, _TIMESTAMP32_RECORD)["seconds"].astype(np.int64) * 1_000_000
    else:
        words = np.frombuffer(records, _TIMESTAMP64_RECORD)["value"].astype(np.uint64)
        nanos = (words >> _SECOND_BITS).view(np.int64)
        us = (words & _SECONDS_MASK).view(np.int64) * 1_000_000 + nanos // 1000
    return us + zone.utcoffset(None) // _MICROSECOND


def _are_all_tagged(body: bytes, tag: bytes, size: int, count: int) -> bool:
    return all(body[place::size].count(byte) == count for place, byte in enumerate(tag))


def _are_all_in_zone(zone: timezone, values: Sequence[Any]) -> bool:
    try:
        return [value.tzinfo for value in values].count(zone) == len(values)
    except AttributeError:
        return False


def _encode_items(values: Sequence[object]) -> bytes | None:
    """Return the values as MessagePack without the list's own head."""
    try:
        written = _encode_msgpack(values)
    except Exception:  # noqa: BLE001 - code of a value's own type may raise anything
        return None
    return written[1 if len(values) < _FIXARRAY_END else 3 if len(values) < _ARRAY16_END else 5 :]


def _widen_timestamps(body: bytes, count: int) -> bytes:
    """Give the moments without a fraction one of zeros, if they are few; else return nothing."""
    size, short = _TIMESTAMP64_RECORD.itemsize, _TIMESTAMP32_RECORD.itemsize
    lacking = count * size - len(body)
    if not 0 < lacking <= count // _WIDENED_SHARE_DIVISOR * (size - short):
        return b"" if lacking else body
    pieces: list[bytes] = []
    done, at = 0, body.find(_TIMESTAMP32_TAG)
    while at >= 0:
        # Only behind full records does another begin; what is no record at all, the tags tell.
        if (at - done) % size == 0:
            seconds = body[at + len(_TIMESTAMP32_TAG) : at + short]
            pieces += (body[done:at], _WIDENED_TIMESTAMP_TAG, seconds)
            done = at = at + short
        else:
            at += 1
        at = body.find(_TIMESTAMP32_TAG, at)
    return b"".join([*pieces, body[done:]])
