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

    from snowmelt.schema.arrow import Int64s

_encode = msgspec.msgpack.Encoder().encode
# What a list of anything may raise when it is written.
_REFUSED = (AttributeError, TypeError, ValueError, OverflowError, RecursionError)
_SHORT_LIST, _LONG_LIST = 2**4, 2**16

_FALSE = 0xC2
_DOUBLE = np.dtype([("tag", "u1"), ("value", "V8")])
_DOUBLE_TAG = 0xCB

# A moment is 34 bits of seconds below 30 bits of nanoseconds, or 32 bits of seconds alone.
_MOMENT = np.dtype([("tag", ">u2"), ("value", ">u8")])
_MOMENT_TAG = 0xD7FF
_SECONDS = np.uint64(2**34 - 1)
_SECOND_BITS = np.uint64(34)
_WHOLE = np.dtype([("tag", ">u2"), ("seconds", ">u4")])
_WHOLE_TAG = b"\xd6\xff"
_WIDE_TAG = b"\xd7\xff\0\0\0\0"
# Beyond this share of moments without a fraction, among others, they are not put right one by one.
_FEW = 8
_MICROSECOND = timedelta(microseconds=1)

_MAX_TEXTS = 2**31 - 1


def floats(values: Sequence[object]) -> pa.Array | None:
    """Read values that are all floats."""
    body = _body(values)
    if body is None or len(body) != len(values) * _DOUBLE.itemsize:
        return None
    if not (np.frombuffer(body, _DOUBLE)["tag"] == _DOUBLE_TAG).all():
        return None
    try:
        # Not those of the records: an enumeration's member may be a number, and have another.
        words = struct.pack(f"{len(values)}d", *values)
    except struct.error:
        return None
    return pa.Array.from_buffers(pa.float64(), len(values), [None, pa.py_buffer(words)])


def booleans(values: Sequence[Any]) -> pa.Array | None:
    """Read values that are all booleans."""
    body = _body(values)
    if body is None or len(body) != len(values):
        return None
    try:
        bits = np.frombuffer(bytes(values), np.uint8)
    except (TypeError, ValueError):
        return None
    if not (np.frombuffer(body, np.uint8) == bits + np.uint8(_FALSE)).all() or bits.max() > 1:
        return None
    bitmap = pa.py_buffer(np.packbits(bits, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, bitmap])


def texts(values: Sequence[Any], limit: int) -> pa.Array | None:
    """Read values that are all ASCII texts of at most so many characters."""
    try:
        joined = "".join(values)
    except TypeError:
        return None
    if not joined.isascii() or len(joined) > _MAX_TEXTS:
        return None
    lengths = np.fromiter(map(len, values), np.int32, len(values))
    offsets = np.zeros(len(values) + 1, np.int32)
    lengths.cumsum(out=offsets[1:])
    if lengths.max() > limit or offsets[-1] != len(joined):
        return None
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(joined.encode())]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def clocks(values: Sequence[Any], zone: timezone) -> Int64s | None:
    """Read datetimes of one zone; return what their clocks show, in µs since 1970."""
    offset = zone.utcoffset(None)
    # The rules cut an offset to seconds.
    body = None if offset.microseconds else _body(values)
    if body is None or not _all_in(zone, values):
        return None
    if len(body) == len(values) * _WHOLE.itemsize:
        whole = np.frombuffer(body, _WHOLE)
        if not (whole["tag"] == int.from_bytes(_WHOLE_TAG)).all():
            return None
        us = whole["seconds"].astype(np.int64) * 1_000_000
    else:
        records = np.frombuffer(_widened(body, len(values)), _MOMENT)
        if len(records) != len(values) or not (records["tag"] == _MOMENT_TAG).all():
            return None
        words = records["value"].astype(np.uint64)
        nanos = (words >> _SECOND_BITS).view(np.int64)
        us = (words & _SECONDS).view(np.int64) * 1_000_000 + nanos // 1000
    return us + offset // _MICROSECOND


def _all_in(zone: timezone, values: Sequence[Any]) -> bool:
    try:
        return [value.tzinfo for value in values].count(zone) == len(values)
    except AttributeError:
        return False


def _body(values: Sequence[object]) -> bytes | None:
    """Return the values as MessagePack without the list's own head."""
    try:
        written = _encode(values)
    except _REFUSED:
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
