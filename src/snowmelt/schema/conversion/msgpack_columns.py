"""Plain values of a column, read out of MessagePack instead of one Python object after the other.

msgspec writes a list of floats, booleans or moments in a few nanoseconds each and in records of
one size, which NumPy reads at once. It takes no subclasses, but an enumeration's member, as its
value; so the records also tell that nothing else was among the values.
Each reader returns None where it is not sure: rules and refusals are for others.
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

_encode = msgspec.msgpack.Encoder().encode
_SHORT_LIST, _LONG_LIST = 2**4, 2**16

# What a byte of the list says: 0, 1, or nothing that a single byte could be the number of.
_TRUTHS = bytes({0xC2: 0, 0xC3: 1}.get(byte, 0xFF) for byte in range(256))
_DOUBLE_BYTES = 9
_DOUBLE_TAG = 0xCB

# A moment is 34 bits of seconds below 30 bits of nanoseconds, or 32 bits of seconds alone.
_MOMENT = np.dtype([("tag", ">u2"), ("value", ">u8")])
_MOMENT_TAG = b"\xd7\xff"
_SECONDS = np.uint64(2**34 - 1)
_SECOND_BITS = np.uint64(34)
_WHOLE = np.dtype([("tag", ">u2"), ("seconds", ">u4")])
_WHOLE_TAG = b"\xd6\xff"
_WIDE_TAG = _MOMENT_TAG + bytes(4)
# Beyond this share of moments without a fraction, among others, they are not put right one by one.
_FEW = 8
_MICROSECOND = timedelta(microseconds=1)

MAX_LETTERS = 2**31 - 1


def floats(values: Sequence[object]) -> pa.Array | None:
    """Read values that are all floats."""
    words = doubles(values)
    return None if words is None else floats_of(words)


def doubles(values: Sequence[object]) -> bytes | None:
    """Return values that are all floats as the machine has them."""
    count = len(values)
    body = _body(values)
    if body is None or len(body) != count * _DOUBLE_BYTES:
        return None
    if body[::_DOUBLE_BYTES].count(_DOUBLE_TAG) != count:
        return None
    try:
        # Not those of the records: an enumeration's member may be a number, and have another.
        return struct.pack(f"{count}d", *values)
    except struct.error:
        return None


def floats_of(words: bytes) -> pa.Array:
    """Return the array of what `doubles` returned."""
    return pa.Array.from_buffers(pa.float64(), len(words) // 8, [None, pa.py_buffer(words)])


def booleans(values: Sequence[Any]) -> pa.Array | None:
    """Read values that are all booleans."""
    bits = truths(values)
    return None if bits is None else booleans_of(bits)


def truths(values: Sequence[Any]) -> bytes | None:
    """Return values that are all booleans as bytes, 0 or 1."""
    body = _body(values)
    if body is None or len(body) != len(values):
        return None
    try:
        bits = bytes(values)
    except (TypeError, ValueError):
        return None
    return bits if body.translate(_TRUTHS) == bits else None


def booleans_of(bits: bytes) -> pa.Array:
    """Return the array of what `truths` returned."""
    bitmap = pa.py_buffer(np.packbits(np.frombuffer(bits, np.uint8), bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(bits), [None, bitmap])


def texts(values: Sequence[Any], limit: int) -> pa.Array | None:
    """Read values that are all ASCII texts of at most so many characters."""
    read = letters(values, limit)
    return None if read is None else texts_of(*read)


def letters(values: Sequence[Any], limit: int) -> tuple[bytes, Int32s] | None:
    """Return all characters of such texts, and the length of each."""
    try:
        joined = "".join(values)
    except TypeError:
        return None
    if not joined.isascii() or len(joined) > MAX_LETTERS:
        return None
    lengths = np.fromiter(map(len, values), np.int32, len(values))
    if lengths.max() > limit or lengths.sum() != len(joined):
        return None
    return joined.encode(), lengths


def texts_of(content: bytes, lengths: Int32s) -> pa.Array:
    """Return the array of what `letters` returned."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    lengths.cumsum(out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.string(), len(lengths), buffers)


def clocks(values: Sequence[Any], zone: timezone) -> Int64s | None:
    """Read datetimes of one zone; return what their clocks show, in µs since 1970."""
    records = moments(values, zone)
    return None if records is None else clocks_of(records, len(values), zone)


def moments(values: Sequence[Any], zone: timezone) -> bytes | None:
    """Return datetimes of one zone as records of one size, all with a fraction or all without."""
    # The rules cut an offset to seconds.
    body = None if zone.utcoffset(None).microseconds else _body(values)
    if body is None or not _all_in(zone, values):
        return None
    count, whole = len(values), _WHOLE.itemsize
    if len(body) == count * whole:
        return body if _all_tagged(body, _WHOLE_TAG, whole, count) else None
    body, size = _widened(body, count), _MOMENT.itemsize
    if len(body) != count * size:
        return None
    return body if _all_tagged(body, _MOMENT_TAG, size, count) else None


def clocks_of(records: bytes, count: int, zone: timezone) -> Int64s:
    """Return what the clocks of such datetimes show, in µs since 1970."""
    if len(records) == count * _WHOLE.itemsize:
        us = np.frombuffer(records, _WHOLE)["seconds"].astype(np.int64) * 1_000_000
    else:
        words = np.frombuffer(records, _MOMENT)["value"].astype(np.uint64)
        nanos = (words >> _SECOND_BITS).view(np.int64)
        us = (words & _SECONDS).view(np.int64) * 1_000_000 + nanos // 1000
    return us + zone.utcoffset(None) // _MICROSECOND


def _all_tagged(body: bytes, tag: bytes, size: int, count: int) -> bool:
    return all(body[place::size].count(byte) == count for place, byte in enumerate(tag))


def _all_in(zone: timezone, values: Sequence[Any]) -> bool:
    try:
        return [value.tzinfo for value in values].count(zone) == len(values)
    except AttributeError:
        return False


def _body(values: Sequence[object]) -> bytes | None:
    """Return the values as MessagePack without the list's own head."""
    try:
        written = _encode(values)
    except Exception:  # noqa: BLE001 - code of a value's own type may raise anything
        return None
    return written[1 if len(values) < _SHORT_LIST else 3 if len(values) < _LONG_LIST else 5 :]


def _widened(body: bytes, count: int) -> bytes:
    """Give the moments without a fraction one of zeros, if they are few; else return nothing."""
    size, short = _MOMENT.itemsize, _WHOLE.itemsize
    lacking = count * size - len(body)
    if not 0 < lacking <= count // _FEW * (size - short):
        return b"" if lacking else body
    pieces: list[bytes] = []
    done, at = 0, body.find(_WHOLE_TAG)
    while at >= 0:
        # Only behind full records does another begin; what is no record at all, the tags tell.
        if (at - done) % size == 0:
            seconds = body[at + len(_WHOLE_TAG) : at + short]
            pieces += (body[done:at], _WIDE_TAG, seconds)
            done = at = at + short
        else:
            at += 1
        at = body.find(_WHOLE_TAG, at)
    return b"".join([*pieces, body[done:]])
