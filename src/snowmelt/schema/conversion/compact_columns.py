"""Plain values of a column as a few bytes: what one call has to find out about them, and no more.

The bytes of many calls become one array later, mostly without the interpreter's lock. None of the
values may be refused by then, so only those are taken that are surely good; a reader returns None
where it is not sure.
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
from snowmelt.schema.conversion import msgpack_columns
from snowmelt.schema.conversion.column_converter import int64_limit
from snowmelt.schema.types import MAX_TEXT_BYTES, TIMESTAMPS, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.schema.conversion.column_converter import ColumnConverter
    from snowmelt.schema.conversion.msgpack_columns import Int32s
    from snowmelt.schema.types import Column

_lines = msgspec.json.Encoder(decimal_format="string").encode_lines
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a local clock's epoch
# A datetime without a zone as a line of JSON, with and without a fraction; none with a zone is
# as long as either.
_CLOCK_BYTES = len('"2026-01-01T00:00:00.000001"\n')
_WHOLE_CLOCK_BYTES = len('"2026-01-01T00:00:00"\n')


class Piece(ABC):
    """Values of a column, one or many calls' of them, none of them null."""

    __slots__ = ("body", "count")

    def __init__(self, body: bytes, count: int) -> None:
        self.body = body
        self.count = count

    @property
    def content_bytes(self) -> int:
        """How many bytes texts have in all."""
        return 0

    def is_like(self, other: Piece) -> bool:
        """Tell whether both can be joined."""
        return type(self) is type(other)

    def joined(self, pieces: Sequence[Self]) -> Self:
        """Return the values of several pieces like this one."""
        return type(self)(b"".join(piece.body for piece in pieces), _count(pieces))

    @abstractmethod
    def array(self, converter: ColumnConverter) -> pa.Array | None:
        """Return the column's array; None where only the exact path knows."""

    @abstractmethod
    def values(self) -> list[Any]:
        """Return the values for that path."""


class Integers(Piece):
    """Integers of 64 bits for FIXED."""

    __slots__ = ()

    @classmethod
    def of(cls, values: Sequence[Any], limit: int) -> Integers | None:
        """Take integers up to this limit."""
        if not limit or not _all_of(int, values):
            return None
        try:
            words = struct.pack(f"{len(values)}q", *values)
        except struct.error:
            return None
        numbers = np.frombuffer(words, np.int64)
        if numbers.max() > limit or numbers.min() < -limit:
            return None
        return cls(words, len(values))

    def array(self, converter: ColumnConverter) -> pa.Array | None:
        """Return the unscaled values."""
        return converter.integers(np.frombuffer(self.body, np.int64), None)

    def values(self) -> list[Any]:
        """Return the integers."""
        return list(np.frombuffer(self.body, np.int64).tolist())


class Reals(Piece):
    """Floats for REAL."""

    __slots__ = ()

    def array(self, _: ColumnConverter) -> pa.Array:
        """Return the doubles."""
        return msgpack_columns.floats_of(self.body)

    def values(self) -> list[Any]:
        """Return the floats."""
        return list(np.frombuffer(self.body, np.float64).tolist())


class Truths(Piece):
    """Booleans."""

    __slots__ = ()

    def array(self, _: ColumnConverter) -> pa.Array:
        """Return the booleans."""
        return msgpack_columns.booleans_of(self.body)

    def values(self) -> list[Any]:
        """Return the booleans."""
        return list(map(bool, self.body))


class Texts(Piece):
    """ASCII texts."""

    __slots__ = ("lengths",)

    def __init__(self, body: bytes, lengths: Int32s) -> None:
        super().__init__(body, len(lengths))
        self.lengths = lengths

    @property
    def content_bytes(self) -> int:
        """How many bytes they have in all."""
        return len(self.body)

    def joined(self, pieces: Sequence[Self]) -> Self:
        """Return the texts of several pieces."""
        lengths = np.concatenate([piece.lengths for piece in pieces])
        return type(self)(b"".join(piece.body for piece in pieces), lengths)

    def array(self, _: ColumnConverter) -> pa.Array:
        """Return the texts."""
        return msgpack_columns.texts_of(self.body, self.lengths)

    def values(self) -> list[Any]:
        """Return the texts."""
        return msgpack_columns.texts_of(self.body, self.lengths).to_pylist()  # type: ignore[no-any-return]


class Decimals(Piece):
    """Decimals for FIXED, as lines of text."""

    __slots__ = ()

    @classmethod
    def of(cls, values: Sequence[Any], digits: int) -> Decimals | None:
        """Take decimals of at most so many digits before the point."""
        if not _all_of(Decimal, values):
            return None
        body = _lines(values)
        # Infinities, what is no number, and exponents.
        if b"N" in body or b"I" in body or b"E" in body:
            return None
        # Rounding does not add a digit where one is to spare; else it is looked at twice.
        if max(map(Decimal.adjusted, values)) >= digits - 1:
            bound = 10**digits - 1
            if max(values) > bound or min(values) < -bound:
                return None
        return cls(body, len(values))

    def array(self, converter: ColumnConverter) -> pa.Array | None:
        """Return them; None if some would have to be rounded."""
        return _read(self.body, self.count, converter.type)

    def values(self) -> list[Any]:
        """Return the decimals."""
        return msgspec.json.Decoder(Decimal).decode_lines(self.body)


class Clocks(Piece):
    """Datetimes without a zone, as lines of text."""

    __slots__ = ()

    @classmethod
    def of(cls, values: Sequence[Any]) -> Clocks | None:
        """Take datetimes that all lack a zone; a later one of two equal clock times is none."""
        if not _all_of(datetime, values) or 1 in [value.fold for value in values]:
            return None
        try:
            body, count = _lines(values), len(values)
        except Exception:  # noqa: BLE001 - code of a zone may raise anything
            return None
        # In the first and the last year an offset may move an instant out of range.
        if b'"9999-' in body or b'"0001-' in body:
            return None
        for size in (_CLOCK_BYTES, _WHOLE_CLOCK_BYTES):
            if len(body) == count * size and body[size - 1 :: size].count(b"\n") == count:
                return cls(body, count)
        naive = [value.tzinfo for value in values].count(None) == count
        return cls(body, count) if naive else None

    def array(self, converter: ColumnConverter) -> pa.Array | None:
        """Return the timestamps."""
        read = _read(self.body, self.count, pa.timestamp("us"))
        if read is None:
            return None
        clock = np.frombuffer(read.buffers()[1], np.int64, count=len(read))
        return converter.shown(clock, None, None)

    def values(self) -> list[Any]:
        """Return the datetimes."""
        return msgspec.json.Decoder(datetime).decode_lines(self.body)


class Moments(Piece):
    """Datetimes of one zone with a fixed offset, as MessagePack has them."""

    __slots__ = ("zone",)

    def __init__(self, body: bytes, count: int, zone: timezone) -> None:
        super().__init__(body, count)
        self.zone = zone

    def is_like(self, other: Piece) -> bool:
        """Tell whether both are of one zone, and their records of one size."""
        return (
            isinstance(other, Moments)
            and self.zone == other.zone
            and len(self.body) * other.count == len(other.body) * self.count
        )

    def joined(self, pieces: Sequence[Self]) -> Self:
        """Return the datetimes of several pieces."""
        return type(self)(b"".join(piece.body for piece in pieces), _count(pieces), self.zone)

    def array(self, converter: ColumnConverter) -> pa.Array | None:
        """Return the timestamps."""
        clock = msgpack_columns.clocks_of(self.body, self.count, self.zone)
        return converter.shown(clock, self.zone, None)

    def values(self) -> list[Any]:
        """Return the datetimes."""
        clock = msgpack_columns.clocks_of(self.body, self.count, self.zone)
        epoch = _EPOCH.replace(tzinfo=self.zone)
        return [epoch + timedelta(microseconds=us) for us in clock.tolist()]


def compacted(column: Column, values: Sequence[Any]) -> Piece | None:
    """Take the values of a column, of which there are some."""
    kind = column.kind
    if kind is Kind.FIXED:
        return _numbers(column, values)
    if kind in TIMESTAMPS:
        return _times(values)
    if kind is Kind.TEXT:
        limit = MAX_TEXT_BYTES if column.length is None else column.length
        read = msgpack_columns.letters(values, min(limit, MAX_TEXT_BYTES))
        return None if read is None else Texts(*read)
    if kind is Kind.REAL:
        words = msgpack_columns.doubles(values)
        return None if words is None else Reals(words, len(values))
    bits = msgpack_columns.truths(values) if kind is Kind.BOOLEAN else None
    return None if bits is None else Truths(bits, len(values))


def _numbers(column: Column, values: Sequence[Any]) -> Piece | None:
    if type(values[0]) is int:
        return Integers.of(values, int64_limit(column))
    return Decimals.of(values, (column.precision or 38) - (column.scale or 0))


def _times(values: Sequence[Any]) -> Piece | None:
    zone = getattr(values[0], "tzinfo", None)
    if type(zone) is not timezone:
        return Clocks.of(values)
    records = msgpack_columns.moments(values, zone)
    return None if records is None else Moments(records, len(values), zone)


def arrays_of(
    pieces: Sequence[Piece | pa.Array], converter: ColumnConverter
) -> list[pa.Array | pa.ChunkedArray]:
    """Return the arrays of a column's pieces, those that are alike together."""
    arrays: list[pa.Array | pa.ChunkedArray] = []
    run: list[Piece] = []
    letters = 0
    for piece in pieces:
        if isinstance(piece, Piece):
            letters += len(piece.body)
            if run and not (run[-1].is_like(piece) and letters <= msgpack_columns.MAX_LETTERS):
                arrays.append(_array_of(run, converter))
                run, letters = [], len(piece.body)
            run.append(piece)
            continue
        if run:
            arrays.append(_array_of(run, converter))
            run, letters = [], 0
        arrays.append(piece)
    if run:
        arrays.append(_array_of(run, converter))
    return arrays


def _array_of(run: Sequence[Piece], converter: ColumnConverter) -> pa.Array | pa.ChunkedArray:
    piece = run[0] if len(run) == 1 else run[0].joined(run)
    array = piece.array(converter)
    if array is not None:
        return array
    array, refused = converter.convert(piece.values())
    if refused:
        name = converter.column.display_name
        raise InternalError(f"Values were taken that column {name} refuses.")
    return array


def _count(pieces: Sequence[Piece]) -> int:
    return sum(piece.count for piece in pieces)


def _all_of(kind: type, values: Sequence[object]) -> bool:
    # Half the time of a set of the types.
    return list(map(type, values)).count(kind) == len(values)


def _read(body: bytes, count: int, kind: pa.DataType) -> pa.Array | None:
    """Read one quoted text a line; None where one does not fit."""
    try:
        return _unquoted(body, count).cast(kind)
    except pa.ArrowInvalid:
        return None


def _unquoted(body: bytes, count: int) -> pa.Array:
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
