"""Plain columns as a few bytes: the checks that a call needs, without the conversion.

The bytes of many calls become one array later, mostly without holding the interpreter's lock. By
then no value may be rejected, so only values that are certainly valid are accepted. A function
returns None where it is not certain.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np
import pyarrow as pa

from snowmelt.errors import InternalError
from snowmelt.schema.conversion import msgpack_fast_path
from snowmelt.schema.conversion.column_converter import max_int64_for_column
from snowmelt.schema.types import MAX_TEXT_BYTES, TIMESTAMP_TYPES, LogicalType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.schema.conversion.column_converter import ColumnConverter
    from snowmelt.schema.conversion.msgpack_fast_path import Int32s
    from snowmelt.schema.types import Column

_encode_json_lines = msgspec.json.Encoder(decimal_format="string").encode_lines
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a local clock's epoch
# A datetime without a zone as a line of JSON, with and without a fraction; none with a zone is
# as long as either.
_FRACTIONAL_LINE_BYTES = len('"2026-01-01T00:00:00.000001"\n')
_WHOLE_SECOND_LINE_BYTES = len('"2026-01-01T00:00:00"\n')


class CompactColumn(ABC):
    """Values of a column, one or many calls' of them, none of them null."""

    __slots__ = ("body", "count")

    def __init__(self, body: bytes, count: int) -> None:
        self.body = body
        self.count = count

    @property
    def content_bytes(self) -> int:
        """How many bytes texts have in all."""
        return 0

    def can_concatenate(self, other: CompactColumn) -> bool:
        """Tell whether both can be joined."""
        return type(self) is type(other)

    def concatenate(self, columns: Sequence[Self]) -> Self:
        """Return the values of several pieces like this one."""
        return type(self)(b"".join(piece.body for piece in columns), _count_values(columns))

    @abstractmethod
    def to_array(self, converter: ColumnConverter) -> pa.Array | None:
        """Return the column's array; None where only the exact path knows."""

    @abstractmethod
    def to_python_values(self) -> list[Any]:
        """Return the values for that path."""


class CompactIntegers(CompactColumn):
    """Integers of 64 bits for FIXED."""

    __slots__ = ()

    @classmethod
    def try_pack(cls, values: Sequence[Any], max_value: int) -> CompactIntegers | None:
        """Take integers up to this limit."""
        if not max_value or not _are_all_of_type(int, values):
            return None
        try:
            words = struct.pack(f"{len(values)}q", *values)
        except struct.error:
            return None
        numbers = np.frombuffer(words, np.int64)
        if numbers.max() > max_value or numbers.min() < -max_value:
            return None
        return cls(words, len(values))

    def to_array(self, converter: ColumnConverter) -> pa.Array | None:
        """Return the unscaled values."""
        return converter.integers_to_fixed(np.frombuffer(self.body, np.int64), None)

    def to_python_values(self) -> list[Any]:
        """Return the integers."""
        return list(np.frombuffer(self.body, np.int64).tolist())


class CompactFloats(CompactColumn):
    """Floats for REAL."""

    __slots__ = ()

    def to_array(self, _: ColumnConverter) -> pa.Array:
        """Return the doubles."""
        return msgpack_fast_path.unpack_float_array(self.body)

    def to_python_values(self) -> list[Any]:
        """Return the floats."""
        return list(np.frombuffer(self.body, np.float64).tolist())


class CompactBooleans(CompactColumn):
    """Booleans."""

    __slots__ = ()

    def to_array(self, _: ColumnConverter) -> pa.Array:
        """Return the booleans."""
        return msgpack_fast_path.unpack_boolean_array(self.body)

    def to_python_values(self) -> list[Any]:
        """Return the booleans."""
        return list(map(bool, self.body))


class CompactStrings(CompactColumn):
    """ASCII texts."""

    __slots__ = ("lengths",)

    def __init__(self, body: bytes, lengths: Int32s) -> None:
        super().__init__(body, len(lengths))
        self.lengths = lengths

    @property
    def content_bytes(self) -> int:
        """How many bytes they have in all."""
        return len(self.body)

    def concatenate(self, columns: Sequence[Self]) -> Self:
        """Return the texts of several pieces."""
        lengths = np.concatenate([piece.lengths for piece in columns])
        return type(self)(b"".join(piece.body for piece in columns), lengths)

    def to_array(self, _: ColumnConverter) -> pa.Array:
        """Return the texts."""
        return msgpack_fast_path.unpack_string_array(self.body, self.lengths)

    def to_python_values(self) -> list[Any]:
        """Return the texts."""
        return msgpack_fast_path.unpack_string_array(self.body, self.lengths).to_pylist()  # type: ignore[no-any-return]


class CompactDecimals(CompactColumn):
    """Decimals for FIXED, as lines of text."""

    __slots__ = ()

    @classmethod
    def try_pack(cls, values: Sequence[Any], max_whole_digits: int) -> CompactDecimals | None:
        """Take decimals of at most so many digits before the point."""
        if not _are_all_of_type(Decimal, values):
            return None
        body = _encode_json_lines(values)
        # Infinities, what is no number, and exponents.
        if b"N" in body or b"I" in body or b"E" in body:
            return None
        # Rounding does not add a digit where one is to spare; else it is looked at twice.
        if max(map(Decimal.adjusted, values)) >= max_whole_digits - 1:
            bound = 10**max_whole_digits - 1
            if max(values) > bound or min(values) < -bound:
                return None
        return cls(body, len(values))

    def to_array(self, converter: ColumnConverter) -> pa.Array | None:
        """Return them; None if some would have to be rounded."""
        return _parse_quoted_lines(self.body, self.count, converter.type)

    def to_python_values(self) -> list[Any]:
        """Return the decimals."""
        return msgspec.json.Decoder(Decimal).decode_lines(self.body)


class CompactNaiveTimestamps(CompactColumn):
    """Datetimes without a zone, as lines of text."""

    __slots__ = ()

    @classmethod
    def try_pack(cls, values: Sequence[Any]) -> CompactNaiveTimestamps | None:
        """Take datetimes that all lack a zone; a later one of two equal clock times is none."""
        if not _are_all_of_type(datetime, values) or 1 in [value.fold for value in values]:
            return None
        try:
            body, count = _encode_json_lines(values), len(values)
        except Exception:  # noqa: BLE001 - code of a zone may raise anything
            return None
        # In the first and the last year an offset may move an instant out of range.
        if b'"9999-' in body or b'"0001-' in body:
            return None
        for size in (_FRACTIONAL_LINE_BYTES, _WHOLE_SECOND_LINE_BYTES):
            if len(body) == count * size and body[size - 1 :: size].count(b"\n") == count:
                return cls(body, count)
        naive = [value.tzinfo for value in values].count(None) == count
        return cls(body, count) if naive else None

    def to_array(self, converter: ColumnConverter) -> pa.Array | None:
        """Return the timestamps."""
        read = _parse_quoted_lines(self.body, self.count, pa.timestamp("us"))
        if read is None:
            return None
        clock = np.frombuffer(read.buffers()[1], np.int64, count=len(read))
        return converter.local_times_to_timestamps(clock, None, None)

    def to_python_values(self) -> list[Any]:
        """Return the datetimes."""
        return msgspec.json.Decoder(datetime).decode_lines(self.body)


class CompactZonedTimestamps(CompactColumn):
    """Datetimes of one zone with a fixed offset, as MessagePack has them."""

    __slots__ = ("zone",)

    def __init__(self, body: bytes, count: int, zone: timezone) -> None:
        super().__init__(body, count)
        self.zone = zone

    def can_concatenate(self, other: CompactColumn) -> bool:
        """Tell whether both are of one zone, and their records of one size."""
        return (
            isinstance(other, CompactZonedTimestamps)
            and self.zone == other.zone
            and len(self.body) * other.count == len(other.body) * self.count
        )

    def concatenate(self, columns: Sequence[Self]) -> Self:
        """Return the datetimes of several pieces."""
        return type(self)(
            b"".join(piece.body for piece in columns), _count_values(columns), self.zone
        )

    def to_array(self, converter: ColumnConverter) -> pa.Array | None:
        """Return the timestamps."""
        clock = msgpack_fast_path.unpack_local_times_us(self.body, self.count, self.zone)
        return converter.local_times_to_timestamps(clock, self.zone, None)

    def to_python_values(self) -> list[Any]:
        """Return the datetimes."""
        clock = msgpack_fast_path.unpack_local_times_us(self.body, self.count, self.zone)
        epoch = _EPOCH.replace(tzinfo=self.zone)
        return [epoch + timedelta(microseconds=us) for us in clock.tolist()]


def try_compact_column(column: Column, values: Sequence[Any]) -> CompactColumn | None:
    """Take the values of a column, of which there are some."""
    kind = column.kind
    if kind is LogicalType.FIXED:
        return _try_compact_numbers(column, values)
    if kind in TIMESTAMP_TYPES:
        return _try_compact_timestamps(values)
    if kind is LogicalType.TEXT:
        limit = MAX_TEXT_BYTES if column.length is None else column.length
        read = msgpack_fast_path.pack_strings(values, min(limit, MAX_TEXT_BYTES))
        return None if read is None else CompactStrings(*read)
    if kind is LogicalType.REAL:
        words = msgpack_fast_path.pack_floats(values)
        return None if words is None else CompactFloats(words, len(values))
    bits = msgpack_fast_path.pack_booleans(values) if kind is LogicalType.BOOLEAN else None
    return None if bits is None else CompactBooleans(bits, len(values))


def _try_compact_numbers(column: Column, values: Sequence[Any]) -> CompactColumn | None:
    if type(values[0]) is int:
        return CompactIntegers.try_pack(values, max_int64_for_column(column))
    return CompactDecimals.try_pack(values, (column.precision or 38) - (column.scale or 0))


def _try_compact_timestamps(values: Sequence[Any]) -> CompactColumn | None:
    zone = getattr(values[0], "tzinfo", None)
    if type(zone) is not timezone:
        return CompactNaiveTimestamps.try_pack(values)
    records = msgpack_fast_path.pack_timestamps(values, zone)
    return None if records is None else CompactZonedTimestamps(records, len(values), zone)


def concatenate_to_arrays(
    columns: Sequence[CompactColumn | pa.Array], converter: ColumnConverter
) -> list[pa.Array | pa.ChunkedArray]:
    """Return the arrays of a column's pieces, those that are alike together."""
    arrays: list[pa.Array | pa.ChunkedArray] = []
    run: list[CompactColumn] = []
    letters = 0
    for piece in columns:
        if isinstance(piece, CompactColumn):
            letters += len(piece.body)
            if run and not (
                run[-1].can_concatenate(piece) and letters <= msgpack_fast_path.MAX_ARRAY_CHARACTERS
            ):
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
    run: Sequence[CompactColumn], converter: ColumnConverter
) -> pa.Array | pa.ChunkedArray:
    piece = run[0] if len(run) == 1 else run[0].concatenate(run)
    array = piece.to_array(converter)
    if array is not None:
        return array
    array, refused = converter.convert(piece.to_python_values())
    if refused:
        name = converter.column.display_name
        raise InternalError(f"Values were taken that column {name} refuses.")
    return array


def _count_values(columns: Sequence[CompactColumn]) -> int:
    return sum(piece.count for piece in columns)


def _are_all_of_type(kind: type, values: Sequence[object]) -> bool:
    # Half the time of a set of the types.
    return list(map(type, values)).count(kind) == len(values)


def _parse_quoted_lines(body: bytes, count: int, kind: pa.DataType) -> pa.Array | None:
    """Read one quoted text a line; None where one does not fit."""
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
    # Every other one of these is what stands between two texts.
    offsets = np.ones(2 * count, np.int32)
    offsets[1::2] = ends - 1
    offsets[2::2] = ends[:-1] + 2
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(body)]
    both = pa.Array.from_buffers(pa.string(), 2 * count - 1, buffers)
    return both.take(pa.array(np.arange(0, 2 * count - 1, 2)))
