"""Columns of common values, packed as bytes: a call only checks values, and a flush converts them.

A flush converts the bytes of many calls to one array in native code. It cannot reject values, so
only values that are certainly valid are packed. Functions return None if validity is not certain.

msgspec writes a list of floats, booleans or timestamps in a few nanoseconds per value, as records
of one size that NumPy reads as an array. msgspec rejects subclasses, except members of
enumerations, which it writes as their values. The records therefore also prove the types of the
values.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any, Protocol, Self

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from snowmelt.schema.chunk_types import Int64s, Mask
from snowmelt.schema.types import MAX_TEXT_BYTES, TIMESTAMP_TYPES, Column, LogicalType

Int32s = NDArray[np.int32]

_MAX_INT64 = 2**63 - 1
_encode_json_lines = msgspec.json.Encoder(decimal_format="string").encode_lines
_encode_msgpack = msgspec.msgpack.Encoder().encode
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a local clock's epoch
_MICROSECOND = timedelta(microseconds=1)
_MAX_ARRAY_CHARACTERS = 2**31 - 1
# Lengths of a JSON line for a naive datetime with and without a fraction. A datetime with a zone
# has another length.
_FRACTIONAL_LINE_BYTES = len('"2026-01-01T00:00:00.000001"\n')
_WHOLE_SECOND_LINE_BYTES = len('"2026-01-01T00:00:00"\n')
# Bytes per line besides the text: two quotes and a line feed.
_LINE_FRAME_BYTES = 3
# Maximum text length for a 128-bit number. Arrow wraps around longer numbers without an error.
_MAX_DIGITS = 38

# Lists with fewer items than these limits have MessagePack headers of one and of three bytes.
_FIXARRAY_END, _ARRAY16_END = 2**4, 2**16
# Boolean of each MessagePack byte, or 0xFF for bytes that are not booleans.
_BOOLEAN_TAGS = bytes({0xC2: 0, 0xC3: 1}.get(byte, 0xFF) for byte in range(256))
_DOUBLE_BYTES = 9
_DOUBLE_TAG = 0xCB
# A MessagePack timestamp has 34 bits of seconds and 30 bits of nanoseconds, or 32 bits of seconds.
_TIMESTAMP64_RECORD = np.dtype([("tag", ">u2"), ("value", ">u8")])
_TIMESTAMP64_TAG = b"\xd7\xff"
_SECONDS_MASK = np.uint64(2**34 - 1)
_SECOND_BITS = np.uint64(34)
_TIMESTAMP32_RECORD = np.dtype([("tag", ">u2"), ("seconds", ">u4")])
_TIMESTAMP32_TAG = b"\xd6\xff"
_WIDENED_TIMESTAMP_TAG = _TIMESTAMP64_TAG + bytes(4)
# Timestamps without a fraction are widened if they are at most 1/8 of the values.
_WIDENED_SHARE_DIVISOR = 8


class PackedColumnReader(Protocol):
    """Operations of a column converter that packed values need."""

    type: pa.Decimal128Type

    def unpack(self, packed: CompactColumn) -> pa.Array | pa.ChunkedArray:
        """Return the array of packed values."""

    def integers_to_fixed(self, numbers: Int64s, nulls: Mask | None) -> pa.Array | None:
        """Return FIXED values, or None if the exact path is needed."""

    def local_times_to_timestamps(
        self, local_us: Int64s, zone: tzinfo | None, nulls: Mask | None
    ) -> pa.Array | None:
        """Convert local times (µs since 1970), all in `zone` or all without a zone, to timestamps."""


class CompactColumn(ABC):
    """Packed values of a column from one or more calls."""

    __slots__ = ("body", "count")

    def __init__(self, body: bytes, count: int) -> None:
        self.body = body
        self.count = count

    @property
    def content_bytes(self) -> int:
        """Total length of strings in bytes. 0 for other types."""
        return 0

    @property
    def null_count(self) -> int:
        """Number of nulls."""
        return 0

    def can_concatenate(self, other: CompactColumn) -> bool:
        """Return True if both can be concatenated."""
        return type(self) is type(other)

    def concatenate(self, columns: Sequence[Self]) -> Self:
        """Concatenate columns of this form."""
        return type(self)(b"".join(piece.body for piece in columns), _count_values(columns))

    @abstractmethod
    def to_array(self, converter: PackedColumnReader) -> pa.Array | None:
        """Return the column's array, or None if the exact path is needed."""

    def to_python_values(self) -> list[Any]:
        """Return Python values for the exact path. Not implemented by types that never need it."""
        raise NotImplementedError


class CompactIntegers(CompactColumn):
    """64-bit integers for FIXED."""

    __slots__ = ()

    @classmethod
    def try_pack(cls, values: Sequence[Any], max_value: int) -> CompactIntegers | None:
        """Pack integers between `-max_value` and `max_value`."""
        if not max_value or not _are_all_of_type(int, values):
            return None
        try:
            words = struct.pack(f"{len(values)}q", *values)
        except struct.error:
            return None
        numbers = np.frombuffer(words, np.int64)
        if np.maximum.reduce(numbers) > max_value or np.minimum.reduce(numbers) < -max_value:
            return None
        return cls(words, len(values))

    def to_array(self, converter: PackedColumnReader) -> pa.Array | None:
        """Return the array of decimals."""
        return converter.integers_to_fixed(np.frombuffer(self.body, np.int64), None)


class CompactFloats(CompactColumn):
    """Floats for REAL."""

    __slots__ = ()

    @classmethod
    def try_pack(cls, values: Sequence[Any]) -> CompactFloats | None:
        """Pack values that are all floats."""
        count = len(values)
        body = _encode_items(values)
        if body is None or len(body) != count * _DOUBLE_BYTES:
            return None
        if body[::_DOUBLE_BYTES].count(_DOUBLE_TAG) != count:
            return None
        try:
            # Use the values, not the numbers in the records: an enumeration member may be another
            # number.
            return cls(struct.pack(f"{count}d", *values), count)
        except struct.error:
            return None

    def to_array(self, _: PackedColumnReader) -> pa.Array:
        """Return the array of doubles."""
        return pa.Array.from_buffers(pa.float64(), self.count, [None, pa.py_buffer(self.body)])


class CompactBooleans(CompactColumn):
    """Booleans, one byte each."""

    __slots__ = ()

    @classmethod
    def try_pack(cls, values: Sequence[Any]) -> CompactBooleans | None:
        """Pack values that are all booleans."""
        body = _encode_items(values)
        if body is None or len(body) != len(values):
            return None
        try:
            bits = bytes(values)
        except (TypeError, ValueError):
            return None
        return cls(bits, len(values)) if body.translate(_BOOLEAN_TAGS) == bits else None

    def to_array(self, _: PackedColumnReader) -> pa.Array:
        """Return the array of booleans."""
        bits = np.packbits(np.frombuffer(self.body, np.uint8), bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), self.count, [None, pa.py_buffer(bits)])


class CompactStrings(CompactColumn):
    """Strings in UTF-8, concatenated. `lengths` are in bytes."""

    __slots__ = ("lengths",)

    def __init__(self, body: bytes, lengths: Int32s) -> None:
        super().__init__(body, len(lengths))
        self.lengths = lengths

    @classmethod
    def try_pack(cls, values: Sequence[Any], max_bytes: int) -> CompactStrings | None:
        """Pack strings of at most `max_bytes` bytes without NUL characters."""
        try:
            separated = "\0".join(values).encode()
        except (TypeError, UnicodeEncodeError):
            return None
        # NumPy computes the lengths in a third of the time of `len` per string.
        separators = np.flatnonzero(np.frombuffer(separated, np.uint8) == 0)
        count = len(values)
        if len(separators) != count - 1 or len(separated) > _MAX_ARRAY_CHARACTERS:
            return None
        lengths = np.empty(count, np.int32)
        lengths[:-1] = separators
        lengths[-1] = len(separated)
        lengths[1:] -= lengths[:-1] + np.int32(1)
        if np.maximum.reduce(lengths) > max_bytes:
            return None
        return cls("".join(values).encode(), lengths)

    @property
    def content_bytes(self) -> int:
        """Total length in bytes."""
        return len(self.body)

    def concatenate(self, columns: Sequence[Self]) -> Self:
        """Concatenate columns of strings."""
        lengths = np.concatenate([piece.lengths for piece in columns])
        return type(self)(b"".join(piece.body for piece in columns), lengths)

    def to_array(self, _: PackedColumnReader | None = None) -> pa.Array:
        """Return the array of strings."""
        offsets = np.zeros(self.count + 1, np.int32)
        self.lengths.cumsum(out=offsets[1:])
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.body)]
        return pa.Array.from_buffers(pa.string(), self.count, buffers)


class CompactDecimals(CompactColumn):
    """Decimals for FIXED, as lines of text."""

    __slots__ = ()

    @classmethod
    def try_pack(cls, values: Sequence[Any], max_whole_digits: int) -> CompactDecimals | None:
        """Pack decimals of at most `max_whole_digits` digits before the point."""
        if not _are_all_of_type(Decimal, values):
            return None
        body = _encode_json_lines(values)
        if b"E" in body:
            if max(map(abs, map(Decimal.adjusted, values))) > _MAX_DIGITS:
                return None
            body = _encode_json_lines([format(value, "f") for value in values])
        ends = np.flatnonzero(np.frombuffer(body, np.uint8) == ord("\n"))
        ends[1:] -= ends[:-1].copy()
        ends[0] += 1
        longest = int(np.maximum.reduce(ends)) - _LINE_FRAME_BYTES
        # Reject infinities, NaN, and more digits than Arrow can read exactly.
        if b"N" in body or b"I" in body or longest > _MAX_DIGITS:
            return None
        # With a spare digit, rounding cannot overflow. Otherwise, compare the values. Most texts
        # are short enough even if all digits were before the point.
        if (
            longest >= max_whole_digits
            and max(map(Decimal.adjusted, values)) >= max_whole_digits - 1
        ):
            bound = 10**max_whole_digits - 1
            if max(values) > bound or min(values) < -bound:
                return None
        return cls(body, len(values))

    def to_array(self, converter: PackedColumnReader) -> pa.Array | None:
        """Return the array of decimals, or None if some need rounding."""
        return _parse_quoted_lines(self.body, self.count, converter.type)

    def to_python_values(self) -> list[Any]:
        """Return the decimals."""
        return msgspec.json.Decoder(Decimal).decode_lines(self.body)


class CompactNaiveTimestamps(CompactColumn):
    """Datetimes without a zone, as lines of text."""

    __slots__ = ()

    @classmethod
    def try_pack(
        cls, values: Sequence[Any], *, keeps_clock_times: bool
    ) -> CompactNaiveTimestamps | None:
        """Pack datetimes that all lack a zone.

        Datetimes with `fold=1` (the later of two equal local times) need the exact path, except
        with `keeps_clock_times`, where local times stay unchanged.
        """
        if not _are_all_of_type(datetime, values):
            return None
        if not keeps_clock_times and 1 in [value.fold for value in values]:
            return None
        try:
            body, count = _encode_json_lines(values), len(values)
        except Exception:  # noqa: BLE001 - code of a zone may raise anything
            return None
        # In years 1 and 9999 an offset may move a timestamp out of range, so years that begin with
        # 0 or 9 need the exact path.
        for size in (_FRACTIONAL_LINE_BYTES, _WHOLE_SECOND_LINE_BYTES):
            if len(body) == count * size and body[size - 1 :: size].count(b"\n") == count:
                digits = body[1::size]
                return None if b"0" in digits or b"9" in digits else cls(body, count)
        if b'"9' in body or b'"0' in body:
            return None
        naive = [value.tzinfo for value in values].count(None) == count
        return cls(body, count) if naive else None

    def to_array(self, converter: PackedColumnReader) -> pa.Array | None:
        """Return the array of timestamps."""
        read = _parse_quoted_lines(self.body, self.count, pa.timestamp("us"))
        if read is None:
            return None
        clock = np.frombuffer(read.buffers()[1], np.int64, count=len(read))
        return converter.local_times_to_timestamps(clock, None, None)

    def to_python_values(self) -> list[Any]:
        """Return the datetimes."""
        return msgspec.json.Decoder(datetime).decode_lines(self.body)


class CompactZonedTimestamps(CompactColumn):
    """Datetimes of one zone with a fixed offset, as MessagePack records."""

    __slots__ = ("zone",)

    def __init__(self, body: bytes, count: int, zone: timezone) -> None:
        super().__init__(body, count)
        self.zone = zone

    @classmethod
    def try_pack(cls, values: Sequence[Any], zone: timezone) -> CompactZonedTimestamps | None:
        """Pack datetimes of one zone as records of one size, all with or all without a fraction."""
        # Offsets with microseconds need the exact path, which truncates them to seconds.
        body = None if zone.utcoffset(None).microseconds else _encode_items(values)
        if body is None or not _are_all_in_zone(zone, values):
            return None
        count, size, tag = len(values), _TIMESTAMP32_RECORD.itemsize, _TIMESTAMP32_TAG
        if len(body) != count * size:
            size, tag = _TIMESTAMP64_RECORD.itemsize, _TIMESTAMP64_TAG
            body = _widen_timestamps(body, count)
        if len(body) != count * size:
            return None
        tagged = all(body[place::size].count(byte) == count for place, byte in enumerate(tag))
        return cls(body, count, zone) if tagged else None

    def can_concatenate(self, other: CompactColumn) -> bool:
        """Return True if both have the same zone and record size."""
        return (
            isinstance(other, CompactZonedTimestamps)
            and self.zone == other.zone
            and len(self.body) * other.count == len(other.body) * self.count
        )

    def concatenate(self, columns: Sequence[Self]) -> Self:
        """Concatenate columns of datetimes."""
        return type(self)(
            b"".join(piece.body for piece in columns), _count_values(columns), self.zone
        )

    def to_array(self, converter: PackedColumnReader) -> pa.Array | None:
        """Return the array of timestamps."""
        return converter.local_times_to_timestamps(self._local_times_us(), self.zone, None)

    def to_python_values(self) -> list[Any]:
        """Return the datetimes."""
        epoch = _EPOCH.replace(tzinfo=self.zone)
        return [epoch + timedelta(microseconds=us) for us in self._local_times_us().tolist()]

    def _local_times_us(self) -> Int64s:
        """Return local times in µs since 1970."""
        if len(self.body) == self.count * _TIMESTAMP32_RECORD.itemsize:
            us = np.frombuffer(self.body, _TIMESTAMP32_RECORD)["seconds"].astype(np.int64)
            us *= 1_000_000
        else:
            words = np.frombuffer(self.body, _TIMESTAMP64_RECORD)["value"].astype(np.uint64)
            nanos = (words >> _SECOND_BITS).view(np.int64)
            us = (words & _SECONDS_MASK).view(np.int64) * 1_000_000 + nanos // 1000
        local_us: Int64s = us + self.zone.utcoffset(None) // _MICROSECOND
        return local_us


class CompactNullable(CompactColumn):
    """Column with nulls: one byte per value (1 for null), and the packed non-null values."""

    __slots__ = ("present",)

    def __init__(self, null_bytes: bytes, present: CompactColumn) -> None:
        super().__init__(null_bytes, len(null_bytes))
        self.present = present

    @property
    def content_bytes(self) -> int:
        """Total length of strings in bytes. 0 for other types."""
        return self.present.content_bytes

    @property
    def null_count(self) -> int:
        """Number of nulls."""
        return self.count - self.present.count

    def can_concatenate(self, other: CompactColumn) -> bool:
        """Return True if both can be concatenated."""
        return isinstance(other, CompactNullable) and self.present.can_concatenate(other.present)

    def concatenate(self, columns: Sequence[Self]) -> Self:
        """Concatenate columns with nulls."""
        present = self.present.concatenate([piece.present for piece in columns])
        return type(self)(b"".join(piece.body for piece in columns), present)

    def to_array(self, converter: PackedColumnReader) -> pa.Array | None:
        """Return the array with its nulls, or None if the exact path is needed."""
        array = self.present.to_array(converter)
        return None if array is None else insert_nulls(array, self.body)

    def to_python_values(self) -> list[Any]:
        """Return the values, with None for nulls."""
        present = iter(self.present.to_python_values())
        return [None if null else next(present) for null in self.body]


def insert_nulls(array: pa.Array, null_bytes: bytes) -> pa.Array:
    """Insert a null at each 1 of `null_bytes`, and the next value of the array at each 0."""
    nulls = np.frombuffer(null_bytes, np.bool_)
    return array.take(pa.array(np.cumsum(~nulls) - 1, mask=nulls))


def max_int64_for_column(column: Column) -> int:
    """Return the largest integer of a FIXED column whose unscaled value fits 64 bits."""
    precision, scale = column.precision or 38, column.scale or 0
    return int(min(10**precision - 1, _MAX_INT64) // 10**scale)


def try_compact_column(
    column: Column, values: Sequence[Any], *, keeps_clock_times: bool
) -> CompactColumn | None:
    """Pack one or more values of a column. Return None if the exact path is needed.

    With `keeps_clock_times`, datetimes without a zone are stored unchanged.
    """
    packed = _try_compact_values(column, values, keeps_clock_times=keeps_clock_times)
    if packed is not None or not column.nullable:
        return packed
    null_bytes = bytes([value is None for value in values])
    if not 0 < null_bytes.count(1) < len(values):
        return None
    present = [value for value in values if value is not None]
    packed = _try_compact_values(column, present, keeps_clock_times=keeps_clock_times)
    return None if packed is None else CompactNullable(null_bytes, packed)


def _try_compact_values(
    column: Column, values: Sequence[Any], *, keeps_clock_times: bool
) -> CompactColumn | None:
    kind = column.kind
    packed: CompactColumn | None = None
    if kind is LogicalType.FIXED and type(values[0]) is int:
        packed = CompactIntegers.try_pack(values, max_int64_for_column(column))
    elif kind is LogicalType.FIXED:
        packed = CompactDecimals.try_pack(values, (column.precision or 38) - (column.scale or 0))
    elif kind in TIMESTAMP_TYPES:
        zone = getattr(values[0], "tzinfo", None)
        packed = (
            CompactZonedTimestamps.try_pack(values, zone)
            if type(zone) is timezone
            else CompactNaiveTimestamps.try_pack(values, keeps_clock_times=keeps_clock_times)
        )
    elif kind is LogicalType.TEXT:
        # Apply the limit in characters to bytes, because most strings are short and ASCII.
        limit = MAX_TEXT_BYTES if column.length is None else column.length
        packed = CompactStrings.try_pack(values, min(limit, MAX_TEXT_BYTES))
    elif kind is LogicalType.REAL:
        packed = CompactFloats.try_pack(values)
    elif kind is LogicalType.BOOLEAN:
        packed = CompactBooleans.try_pack(values)
    return packed


def concatenate_to_arrays(
    columns: Sequence[CompactColumn | pa.Array], converter: PackedColumnReader
) -> list[pa.Array | pa.ChunkedArray]:
    """Convert a column's parts to arrays. Adjacent parts of the same form become one array."""
    arrays: list[pa.Array | pa.ChunkedArray] = []
    run: list[CompactColumn] = []
    letters = 0
    for piece in columns:
        if isinstance(piece, CompactColumn):
            letters += len(piece.body)
            if run and not (run[-1].can_concatenate(piece) and letters <= _MAX_ARRAY_CHARACTERS):
                arrays.append(_run_to_array(run, converter))
                run, letters = [], len(piece.body)
            run.append(piece)
            continue
        if run:
            arrays.append(_run_to_array(run, converter))
            run, letters = [], 0
        arrays.append(piece)
    if run:
        arrays.append(_run_to_array(run, converter))
    return arrays


def _run_to_array(
    run: Sequence[CompactColumn], converter: PackedColumnReader
) -> pa.Array | pa.ChunkedArray:
    return converter.unpack(run[0] if len(run) == 1 else run[0].concatenate(run))


def _count_values(columns: Sequence[CompactColumn]) -> int:
    return sum(piece.count for piece in columns)


def _are_all_of_type(kind: type, values: Sequence[object]) -> bool:
    # Counting takes half the time of building a set of the types.
    return list(map(type, values)).count(kind) == len(values)


def _parse_quoted_lines(body: bytes, count: int, kind: pa.DataType) -> pa.Array | None:
    """Parse one quoted text per line. Return None if one does not fit."""
    try:
        return _unquote_lines(body, count).cast(kind)
    except pa.ArrowInvalid:
        return None


def _unquote_lines(body: bytes, count: int) -> pa.Array:
    size = len(body) // count
    if size * count == len(body) and body[size - 1 :: size].count(b"\n") == count:
        lines = np.frombuffer(body, np.uint8).reshape(count, size)
        texts = lines[:, 1 : size - 2].tobytes()
        offsets = np.arange(0, len(texts) + 1, size - 3, dtype=np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(texts)]
        return pa.Array.from_buffers(pa.string(), count, buffers)
    ends = np.flatnonzero(np.frombuffer(body, np.uint8) == ord("\n"))
    # Every second string is the separator between two texts.
    offsets = np.ones(2 * count, np.int32)
    offsets[1::2] = ends - 1
    offsets[2::2] = ends[:-1] + 2
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(body)]
    both = pa.Array.from_buffers(pa.string(), 2 * count - 1, buffers)
    return both.take(pa.array(np.arange(0, 2 * count - 1, 2)))


def _are_all_in_zone(zone: timezone, values: Sequence[Any]) -> bool:
    try:
        return [value.tzinfo for value in values].count(zone) == len(values)
    except AttributeError:
        return False


def _encode_items(values: Sequence[object]) -> bytes | None:
    """Encode values as MessagePack without the list header, or return None."""
    try:
        written = _encode_msgpack(values)
    except Exception:  # noqa: BLE001 - code of a value's own type may raise anything
        return None
    return written[1 if len(values) < _FIXARRAY_END else 3 if len(values) < _ARRAY16_END else 5 :]


def _widen_timestamps(body: bytes, count: int) -> bytes:
    """Add a zero fraction to timestamps without one. Return empty bytes if over 1/8 lack one."""
    size, short = _TIMESTAMP64_RECORD.itemsize, _TIMESTAMP32_RECORD.itemsize
    lacking = count * size - len(body)
    if not 0 < lacking <= count // _WIDENED_SHARE_DIVISOR * (size - short):
        return b"" if lacking else body
    pieces: list[bytes] = []
    done, at = 0, body.find(_TIMESTAMP32_TAG)
    while at >= 0:
        # A record begins at a multiple of the record size. The caller verifies the tags of all
        # records.
        if (at - done) % size == 0:
            seconds = body[at + len(_TIMESTAMP32_TAG) : at + short]
            pieces += (body[done:at], _WIDENED_TIMESTAMP_TAG, seconds)
            done = at = at + short
        else:
            at += 1
        at = body.find(_TIMESTAMP32_TAG, at)
    return b"".join([*pieces, body[done:]])
