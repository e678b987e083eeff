"""Convert chunk statistics to and from messages (specification §6)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from snowmelt.schema.types import (
    SEMI_STRUCTURED_TYPES,
    Column,
    LogicalType,
    TableSchema,
    to_internal_name,
)
from snowmelt.wire.streaming import ChunkStatisticsMessage, ColumnStatisticsMessage, ResponseCode

if TYPE_CHECKING:
    from snowmelt.schema import statistics

StatisticValue: TypeAlias = int | float | bytes | None

_MAX_BOUND_BYTES = 32
# Replaces a maximum that starts with 32 bytes 0xFF, because no 32-byte value is greater.
_UNBOUNDED_MAXIMUM = "Z"

_SPECIAL_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_INT128_END = 2**127


class _StoredBounds(msgspec.Struct, array_like=True, frozen=True, gc=False):
    minimum: Any = None
    maximum: Any = None
    null_count: int | None = None


class StatisticBounds(msgspec.Struct, frozen=True, gc=False):
    """Bounds of one column's stored values in a chunk. None means unknown.

    Bounds of strings are cut to 32 bytes, so `maximum` may be greater and `minimum` less than all
    values. NaN is the greatest value, so a column that contains NaN has no maximum. `null_count` is
    None if the chunk has no statistics of the column.
    """

    minimum: StatisticValue
    maximum: StatisticValue
    null_count: int | None


_UNKNOWN_BOUNDS = StatisticBounds(None, None, None)
NO_STORED_STATISTICS = msgspec.msgpack.encode({})
# Integers outside this range are stored as strings, because msgpack has only 64-bit integers.
_MIN_STORED_INTEGER, _STORED_INTEGERS_END = -(2**63), 2**63
_TEXT_TYPES = frozenset({LogicalType.TEXT, LogicalType.BINARY})


def statistics_to_message(
    schema: TableSchema, collected: statistics.ChunkStatistics
) -> ChunkStatisticsMessage:
    """Convert statistics to a message, with columns by display name."""
    return ChunkStatisticsMessage(
        rows=collected.rows,
        columns={
            column.display_name: _column_statistics_to_message(column, found)
            for column, found in zip(schema.columns, collected.columns, strict=True)
        },
    )


def encode_stored_statistics(schema: TableSchema, collected: statistics.ChunkStatistics) -> bytes:
    """Encode statistics for the catalog. `StoredStatisticsDecoder` decodes them.

    The encoding has the bounds of each column by ordinal. It is compact, because a search through a
    million chunks reads all statistics.
    """
    bounds = bounds_from_message(schema, statistics_to_message(schema, collected))
    return msgspec.msgpack.encode(
        {
            str(ordinal): (_to_stored(each.minimum), _to_stored(each.maximum), each.null_count)
            for ordinal, each in bounds.items()
        }
    )


def bounds_from_message(
    schema: TableSchema, message: ChunkStatisticsMessage
) -> dict[int, StatisticBounds]:
    """Return the bounds of the schema's columns by ordinal. Missing columns have unknown bounds.

    `find_statistics_error` must have accepted the message. A bound that cannot be parsed is
    unknown.
    """
    columns = {to_internal_name(key): found for key, found in message.columns.items()}
    return {
        column.ordinal: _bounds_from_column_message(column, columns.get(column.name), message.rows)
        for column in schema.columns
    }


class StoredStatisticsDecoder:
    """Decodes the bounds of selected columns in stored statistics."""

    def __init__(self, ordinals: Iterable[int]) -> None:
        columns = [(f"column{ordinal}", _StoredBounds, _StoredBounds()) for ordinal in ordinals]
        # The decoder skips columns without a field and creates no objects for them.
        kind = msgspec.defstruct(
            "StoredStatistics",
            columns,
            rename={name: name.removeprefix("column") for name, *_ in columns},
            gc=False,
        )
        self._unknown = kind()
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(kind)

    def decode(self, texts: Iterable[bytes]) -> list[Any]:
        """Decode the statistics of chunks for `list_bounds`. Unreadable statistics have unknown bounds.

        Older versions of Snowmelt stored statistics in a format that this decoder cannot read.
        """
        try:
            return list(map(self._decoder.decode, texts))
        except msgspec.DecodeError:
            return list(map(self._decode_one, texts))

    def _decode_one(self, text: bytes) -> Any:
        try:
            return self._decoder.decode(text)
        except msgspec.DecodeError:
            return self._unknown

    def list_bounds(
        self, ordinal: int, chunks: Iterable[Any]
    ) -> tuple[Sequence[Any], Sequence[Any], Sequence[int | None]]:
        """Return minimum, maximum and null count of a column in each chunk."""
        found = list(map(attrgetter(f"column{ordinal}"), chunks))
        lower, upper = [each.minimum for each in found], [each.maximum for each in found]
        if str in {*map(type, lower), *map(type, upper)}:
            lower, upper = list(map(_from_stored, lower)), list(map(_from_stored, upper))
        return lower, upper, [each.null_count for each in found]


def find_statistics_error(
    schema: TableSchema, message: ChunkStatisticsMessage, rows: int
) -> tuple[int, str] | None:
    """Return a code and reason if the statistics of a chunk of `rows` rows are invalid, or None.

    `schema` is the schema version that the chunk was written for. Nullable columns may be absent.
    """
    if message.rows != rows:
        return ResponseCode.EP_ROW_COUNT_INVALID, (
            f"the statistics state {message.rows} rows, but the file has {rows}"
        )
    columns = {to_internal_name(key): found for key, found in message.columns.items()}
    for column in schema.columns:
        found = columns.pop(column.name, None)
        if found is None and not column.nullable:
            return ResponseCode.EP_COLUMN_MISSING, (
                f"column {column.display_name} is missing in the statistics"
            )
        problem = found and _find_column_error(column, found, rows)
        if problem:
            code, reason = problem
            return code, f"statistics of column {column.display_name}: {reason}"
    if columns:
        return ResponseCode.EP_COLUMN_INVALID, (
            f"the statistics have {next(iter(columns))!r}, which is not a column of the table"
        )
    return None


def _column_statistics_to_message(
    column: Column, column_statistics: statistics.ColumnStatistics
) -> ColumnStatisticsMessage:
    sent = ColumnStatisticsMessage(
        columnId=column.ordinal,
        nullCount=column_statistics.null_count,
        maxLength=column_statistics.max_length,
    )
    match column_statistics.minimum, column_statistics.maximum:
        case bytes(low), bytes(high):
            sent.minStrValue = low[:_MAX_BOUND_BYTES].hex()
            sent.maxStrValue = _encode_truncated_maximum(high)
        case float(smallest), float(largest):
            sent.minRealValue = _float_to_json(smallest)
            sent.maxRealValue = _float_to_json(largest)
        case int(least), int(most):
            sent.minIntValue = least
            sent.maxIntValue = most
    return sent


def _encode_truncated_maximum(value: bytes) -> str:
    if len(value) <= _MAX_BOUND_BYTES:
        return value.hex()
    number = int.from_bytes(value[:_MAX_BOUND_BYTES], "big") + 1
    if number == 1 << 8 * _MAX_BOUND_BYTES:
        return _UNBOUNDED_MAXIMUM
    return number.to_bytes(_MAX_BOUND_BYTES, "big").hex()


def _float_to_json(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _bounds_from_column_message(
    column: Column, message: ColumnStatisticsMessage | None, rows: int
) -> StatisticBounds:
    """Return the bounds of a column in a chunk of `rows` rows."""
    if message is None:
        return _UNKNOWN_BOUNDS
    low: StatisticValue = None
    high: StatisticValue = None
    if column.kind not in SEMI_STRUCTURED_TYPES and message.nullCount < rows:
        with contextlib.suppress(ValueError):
            low, high = _parse_bounds(column, message)
    return StatisticBounds(_none_if_nan(low), _none_if_nan(high), message.nullCount)


def _to_stored(value: StatisticValue) -> StatisticValue | str:
    if isinstance(value, int) and not _MIN_STORED_INTEGER <= value < _STORED_INTEGERS_END:
        return str(value)
    return value


def _from_stored(value: StatisticValue | str) -> StatisticValue:
    return int(value) if isinstance(value, str) else value


def _parse_bounds(
    column: Column, message: ColumnStatisticsMessage
) -> tuple[StatisticValue, StatisticValue]:
    """Parse the bounds in the message of a column.

    Raises:
        ValueError: If a bound is not hexadecimal or not a number.
    """
    if column.kind in _TEXT_TYPES:
        return _parse_hex_bound(message.minStrValue), _parse_hex_bound(message.maxStrValue)
    if column.kind is LogicalType.REAL:
        return _parse_float_bound(message.minRealValue), _parse_float_bound(message.maxRealValue)
    return message.minIntValue, message.maxIntValue


def _parse_hex_bound(value: str | None) -> bytes | None:
    return None if value is None or value == _UNBOUNDED_MAXIMUM else bytes.fromhex(value)


def _parse_float_bound(value: float | str) -> float:
    if not isinstance(value, str):
        return float(value)
    if value not in _SPECIAL_FLOATS:
        raise ValueError(f"{value!r} is not a number")
    return _SPECIAL_FLOATS[value]


def _none_if_nan(value: StatisticValue) -> StatisticValue:
    return None if isinstance(value, float) and math.isnan(value) else value


def _find_column_error(
    column: Column, message: ColumnStatisticsMessage, rows: int
) -> tuple[int, str] | None:
    if message.columnId is not None and message.columnId != column.ordinal:
        return (
            ResponseCode.EP_COLUMN_INVALID,
            f"columnId is {message.columnId}, expected {column.ordinal}",
        )
    if not 0 <= message.nullCount <= rows:
        return ResponseCode.EP_INVALID, f"nullCount is {message.nullCount}, expected 0 to {rows}"
    if message.distinctValues > rows:
        return (
            ResponseCode.EP_INVALID,
            f"distinctValues is {message.distinctValues}, expected at most {rows}",
        )
    if message.nullCount and not column.nullable:
        return (
            ResponseCode.EP_INVALID,
            f"nullCount is {message.nullCount}, expected 0 for a NOT NULL column",
        )
    if message.nullCount == rows or column.kind in SEMI_STRUCTURED_TYPES:
        return None
    reason = _find_bounds_error(column, message)
    return None if reason is None else (ResponseCode.EP_VALUE_INVALID, reason)


def _find_bounds_error(column: Column, message: ColumnStatisticsMessage) -> str | None:
    if column.kind in _TEXT_TYPES and (message.minStrValue is None or message.maxStrValue is None):
        return "bounds are missing"
    try:
        low, high = _parse_bounds(column, message)
    except ValueError as error:
        return str(error)
    match low, high:
        case bytes(first), (bytes() | None) as last:
            if max(len(first), len(last or b"")) > _MAX_BOUND_BYTES:
                return f"bounds of more than {_MAX_BOUND_BYTES} bytes"
            crossed = last is not None and first > last
        case float(smallest), float(largest):
            crossed = _java_sort_key(smallest) > _java_sort_key(largest)
        case int(least), int(most):
            if not (-_INT128_END <= least < _INT128_END and -_INT128_END <= most < _INT128_END):
                return "a bound has more than 128 bits"
            crossed = least > most
        case _:
            crossed = True
    return "the lower bound exceeds the upper bound" if crossed else None


def _java_sort_key(value: float) -> tuple[bool, float, bool]:
    # Order of Java's Double.compareTo: -0.0 is less than 0.0, and NaN is the greatest value
    # (specification §6).
    if math.isnan(value):
        return True, 0.0, True
    return False, value, math.copysign(1.0, value) > 0
