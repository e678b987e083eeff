"""Statistics of chunks between their full values and what the wire says (specification §6)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from snowmelt.schema.types import SEMI_STRUCTURED, Column, Kind, TableSchema, internal_name
from snowmelt.wire.streaming import ColumnStatistics, ResponseCode, Statistics

if TYPE_CHECKING:
    from snowmelt.schema import statistics

Stored: TypeAlias = int | float | bytes | None

_TEXT_BYTES = 32
# What a maximum of 32 bytes 0xFF becomes: nothing of 32 bytes is above it.
_UNBOUNDED = "Z"

_SPECIAL_REALS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_INT128 = 2**127


class _Undecoded(msgspec.Struct):
    rows: int
    columns: dict[str, msgspec.Raw] = {}


_UNDECODED = msgspec.json.Decoder(_Undecoded)
_ENCODER = msgspec.json.Encoder()
_COLUMN = msgspec.json.Decoder(ColumnStatistics)
_named = lru_cache(maxsize=16_384)(internal_name)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of one column's stored values in a chunk; None says nothing about that side.

    `maximum` of texts may lie above every value, `minimum` below (both are cut to 32 bytes).
    NaN is above everything, so a column that holds one has no maximum. `null_count` is None
    when the chunk's statistics lack the column.
    """

    minimum: Stored
    maximum: Stored
    null_count: int | None


def to_wire(schema: TableSchema, collected: statistics.ChunkStatistics) -> Statistics:
    """Return the statistics as they are sent, keyed by display name."""
    return Statistics(
        rows=collected.rows,
        columns={
            column.display_name: _column_to_wire(column, found)
            for column, found in zip(schema.columns, collected.columns, strict=True)
        },
    )


def stored(schema: TableSchema, collected: statistics.ChunkStatistics) -> bytes:
    """Return the statistics as the catalog keeps them and `StoredStatistics` reads them."""
    return _ENCODER.encode(to_wire(schema, collected))


def without_bounds(rows: int) -> bytes:
    """Return stored statistics that say nothing but the number of rows."""
    return _ENCODER.encode(Statistics(rows=rows))


def from_wire(schema: TableSchema, sent: Statistics) -> dict[int, Bounds]:
    """Return the bounds of the schema's columns by ordinal; a column not sent is unknown.

    The statistics have passed `check`; what does not parse is taken as unbounded.
    """
    columns = {internal_name(key): found for key, found in sent.columns.items()}
    return {
        column.ordinal: _column_from_wire(column, columns.get(column.name), sent.rows)
        for column in schema.columns
    }


class StoredStatistics:
    """Statistics of a chunk that have passed `check`; only what is asked for is decoded."""

    def __init__(self, text: bytes) -> None:
        """`text` is JSON, as it was registered."""
        self._sent = _UNDECODED.decode(text)
        # Many chunks have the same few names.
        self._columns = {_named(key): found for key, found in self._sent.columns.items()}

    def bounds(self, column: Column) -> Bounds:
        """Return a column's bounds; of one not sent, or that does not parse, they are unknown."""
        found = self._columns.get(column.name)
        sent = None if found is None else _COLUMN.decode(found)
        return _column_from_wire(column, sent, self._sent.rows)


def check(schema: TableSchema, sent: Statistics, rows: int) -> tuple[int, str] | None:
    """Return code and reason why these statistics of a chunk of `rows` are refused, or None.

    `schema` is the table's version that the chunk fits; nullable columns may be absent.
    """
    if sent.rows != rows:
        return ResponseCode.EP_ROW_COUNT_INVALID, (
            f"the statistics say {sent.rows} rows, the file has {rows}"
        )
    columns = {internal_name(key): found for key, found in sent.columns.items()}
    for column in schema.columns:
        found = columns.pop(column.name, None)
        if found is None and not column.nullable:
            return ResponseCode.EP_COLUMN_MISSING, (
                f"column {column.display_name} is missing in the statistics"
            )
        problem = found and _column_problem(column, found, rows)
        if problem:
            code, reason = problem
            return code, f"statistics of column {column.display_name}: {reason}"
    if columns:
        return ResponseCode.EP_COLUMN_INVALID, (
            f"the statistics have {next(iter(columns))!r}, which is no column of the table"
        )
    return None


def _column_to_wire(column: Column, found: statistics.ColumnStatistics) -> ColumnStatistics:
    sent = ColumnStatistics(
        columnId=column.ordinal, nullCount=found.null_count, maxLength=found.max_length
    )
    match found.minimum, found.maximum:
        case bytes(low), bytes(high):
            sent.minStrValue = low[:_TEXT_BYTES].hex()
            sent.maxStrValue = _cut_maximum(high)
        case float(smallest), float(largest):
            sent.minRealValue = _real_to_wire(smallest)
            sent.maxRealValue = _real_to_wire(largest)
        case int(least), int(most):
            sent.minIntValue = least
            sent.maxIntValue = most
    return sent


def _cut_maximum(value: bytes) -> str:
    if len(value) <= _TEXT_BYTES:
        return value.hex()
    number = int.from_bytes(value[:_TEXT_BYTES], "big") + 1
    if number == 1 << 8 * _TEXT_BYTES:
        return _UNBOUNDED
    return number.to_bytes(_TEXT_BYTES, "big").hex()


def _real_to_wire(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _column_from_wire(column: Column, sent: ColumnStatistics | None, rows: int) -> Bounds:
    if sent is None:
        return Bounds(None, None, None)
    if sent.nullCount >= rows or column.kind in SEMI_STRUCTURED:
        return Bounds(None, None, sent.nullCount)
    try:
        low, high = _sent_bounds(column, sent)
    except ValueError:
        return Bounds(None, None, sent.nullCount)
    return Bounds(_unless_nan(low), _unless_nan(high), sent.nullCount)


def _sent_bounds(column: Column, sent: ColumnStatistics) -> tuple[Stored, Stored]:
    match column.kind:
        case Kind.TEXT | Kind.BINARY:
            return _text(sent.minStrValue), _text(sent.maxStrValue)
        case Kind.REAL:
            return _real(sent.minRealValue), _real(sent.maxRealValue)
        case _:
            return sent.minIntValue, sent.maxIntValue


def _text(value: str | None) -> bytes | None:
    return None if value is None or value == _UNBOUNDED else bytes.fromhex(value)


def _real(value: float | str) -> float:
    if not isinstance(value, str):
        return float(value)
    if value not in _SPECIAL_REALS:
        raise ValueError(f"{value!r} is not a number")
    return _SPECIAL_REALS[value]


def _unless_nan(value: Stored) -> Stored:
    return None if isinstance(value, float) and math.isnan(value) else value


def _column_problem(column: Column, sent: ColumnStatistics, rows: int) -> tuple[int, str] | None:
    if sent.columnId is not None and sent.columnId != column.ordinal:
        return ResponseCode.EP_COLUMN_INVALID, f"columnId {sent.columnId} is not {column.ordinal}"
    if not 0 <= sent.nullCount <= rows or sent.distinctValues > rows:
        return ResponseCode.EP_INVALID, "more nulls or distinct values than rows, or fewer than 0"
    if sent.nullCount and not column.nullable:
        return ResponseCode.EP_INVALID, "nulls in a column that is not nullable"
    if sent.nullCount == rows or column.kind in SEMI_STRUCTURED:
        return None
    reason = _bounds_problem(column, sent)
    return None if reason is None else (ResponseCode.EP_VALUE_INVALID, reason)


def _bounds_problem(column: Column, sent: ColumnStatistics) -> str | None:
    if column.kind in {Kind.TEXT, Kind.BINARY} and (
        sent.minStrValue is None or sent.maxStrValue is None
    ):
        return "bounds are missing"
    try:
        low, high = _sent_bounds(column, sent)
    except ValueError as error:
        return str(error)
    match low, high:
        case bytes(first), (bytes() | None) as last:
            if max(len(first), len(last or b"")) > _TEXT_BYTES:
                return f"bounds of more than {_TEXT_BYTES} bytes"
            crossed = last is not None and first > last
        case float(smallest), float(largest):
            crossed = _java_order(smallest) > _java_order(largest)
        case int(least), int(most):
            if not -_INT128 <= least <= most < _INT128:
                return "bounds are crossed, or outside 128 bits"
            crossed = False
        case _:
            crossed = True
    return "bounds are crossed" if crossed else None


def _java_order(value: float) -> tuple[bool, float, bool]:
    # Order of Double.compareTo: -0.0 below 0.0, NaN above everything (specification §6).
    if math.isnan(value):
        return True, 0.0, True
    return False, value, math.copysign(1.0, value) > 0
