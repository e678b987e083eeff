"""Conversion of chunk statistics to and from their messages (specification §6)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache, partial
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
# What a maximum of 32 bytes 0xFF becomes: nothing of 32 bytes is above it.
_UNBOUNDED_MAXIMUM = "Z"

_SPECIAL_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_INT128_END = 2**127


class _StoredColumnStatistics(msgspec.Struct, gc=False):
    """What the catalog keeps of a column's statistics: what its bounds are made of."""

    minStrValue: str | None = None  # noqa: N815
    maxStrValue: str | None = None  # noqa: N815
    minIntValue: int = 0  # noqa: N815
    maxIntValue: int = 0  # noqa: N815
    minRealValue: float | str = 0.0  # noqa: N815
    maxRealValue: float | str = 0.0  # noqa: N815
    nullCount: int = 0  # noqa: N815


class _UndecodedStatistics(msgspec.Struct):
    rows: int
    columns: dict[str, msgspec.Raw] = {}


_NO_STATISTICS = _StoredColumnStatistics()
_STATISTICS_DECODER = msgspec.json.Decoder(_UndecodedStatistics)
_ENCODER = msgspec.json.Encoder()
_COLUMN_DECODER = msgspec.json.Decoder(_StoredColumnStatistics)
_cached_internal_name = lru_cache(maxsize=16_384)(to_internal_name)


class StatisticBounds(msgspec.Struct, frozen=True, gc=False):
    """Limits of one column's stored values in a chunk; None says nothing about that side.

    `maximum` of texts may lie above every value, `minimum` below (both are cut to 32 bytes).
    NaN is above everything, so a column that holds one has no maximum. `null_count` is None
    when the chunk's statistics lack the column.
    """

    minimum: StatisticValue
    maximum: StatisticValue
    null_count: int | None


_UNKNOWN_BOUNDS = StatisticBounds(None, None, None)
_TEXT_TYPES = frozenset({LogicalType.TEXT, LogicalType.BINARY})


def statistics_to_message(
    schema: TableSchema, collected: statistics.ChunkStatistics
) -> ChunkStatisticsMessage:
    """Return the statistics as they are sent, keyed by display name."""
    return ChunkStatisticsMessage(
        rows=collected.rows,
        columns={
            column.display_name: _column_statistics_to_message(column, found)
            for column, found in zip(schema.columns, collected.columns, strict=True)
        },
    )


def encode_stored_statistics(schema: TableSchema, collected: statistics.ChunkStatistics) -> bytes:
    """Return the statistics as the catalog keeps them and `StoredStatisticsDecoder` reads them.

    What says nothing is left out: a search through a million chunks reads all of it.
    """
    columns = {
        name: {
            field: value
            for field in _NO_STATISTICS.__struct_fields__
            if (value := getattr(sent, field)) != getattr(_NO_STATISTICS, field)
        }
        for name, sent in statistics_to_message(schema, collected).columns.items()
    }
    return _ENCODER.encode({"rows": collected.rows, "columns": columns})


def encode_row_count_statistics(rows: int) -> bytes:
    """Return stored statistics that say nothing but the number of rows."""
    return _ENCODER.encode(ChunkStatisticsMessage(rows=rows))


def bounds_from_message(
    schema: TableSchema, message: ChunkStatisticsMessage
) -> dict[int, StatisticBounds]:
    """Return the bounds of the schema's columns by ordinal; a column not sent is unknown.

    The statistics have passed `find_statistics_error`; what does not parse is taken as unbounded.
    """
    columns = {to_internal_name(key): found for key, found in message.columns.items()}
    return {
        column.ordinal: _make_bounds_parser(column)(columns.get(column.name), message.rows)
        for column in schema.columns
    }


class StoredStatisticsDecoder:
    """Decoder of some columns in chunk statistics that have passed `find_statistics_error`."""

    def __init__(self, schema: TableSchema, columns: Collection[Column]) -> None:
        """`schema` is what the statistics were written for, `columns` those of it to decode."""
        self._columns = {each.ordinal: each for each in columns}
        names = {f"column{each.ordinal}": each.display_name for each in schema.columns}
        ignored = msgspec.defstruct("Ignored", [], gc=False)
        fields: list[tuple[str, Any, None]] = [
            (
                f"column{each.ordinal}",
                (_StoredColumnStatistics if each.ordinal in self._columns else ignored) | None,
                None,
            )
            for each in schema.columns
        ]
        # A third of the time that decoding by names takes. msgspec takes no quotes in names.
        known = not any('"' in name for name in names.values())
        self._known = msgspec.defstruct(
            "KnownColumns",
            fields,
            rename=names if known else None,
            forbid_unknown_fields=True,
            gc=False,
        )
        self._kind = msgspec.defstruct(
            "KnownStatistics", [("rows", int), ("columns", self._known)], gc=False
        )
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(self._kind)
        self._decode = decoder.decode if known else self._decode_by_name

    def decode(self, text: bytes) -> Any:
        """Return the statistics of a chunk for `list_bounds`."""
        try:
            return self._decode(text)
        except msgspec.ValidationError:
            # `id` for `ID` is allowed, even beside it; the last one counts.
            return self._decode_by_name(text)

    def list_bounds(self, column: Column, chunks: Iterable[Any]) -> list[StatisticBounds]:
        """Return a column's bounds in chunks; what is not sent, or does not parse, is unknown."""
        find = attrgetter(f"column{column.ordinal}")
        parse = _make_bounds_parser(column)
        return [parse(find(each.columns), each.rows) for each in chunks]

    def _decode_by_name(self, text: bytes) -> Any:
        found = _STATISTICS_DECODER.decode(text)
        sent = {_cached_internal_name(key): column for key, column in found.columns.items()}
        columns = {
            f"column{ordinal}": _COLUMN_DECODER.decode(sent[column.name])
            for ordinal, column in self._columns.items()
            if column.name in sent
        }
        return self._kind(found.rows, self._known(**columns))


def find_statistics_error(
    schema: TableSchema, message: ChunkStatisticsMessage, rows: int
) -> tuple[int, str] | None:
    """Return code and reason why these statistics of a chunk of `rows` are refused, or None.

    `schema` is the table's version that the chunk fits; nullable columns may be absent.
    """
    if message.rows != rows:
        return ResponseCode.EP_ROW_COUNT_INVALID, (
            f"the statistics say {message.rows} rows, the file has {rows}"
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
            f"the statistics have {next(iter(columns))!r}, which is no column of the table"
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


def _make_bounds_parser(column: Column) -> Callable[[Any, int], StatisticBounds]:
    """Return what makes bounds of the message of a column, or of None, in a chunk of so many rows."""
    find_limits: Callable[[Any], tuple[StatisticValue, StatisticValue]]
    find_limits = attrgetter("minIntValue", "maxIntValue")
    if column.kind in _TEXT_TYPES or column.kind is LogicalType.REAL:
        find_limits = partial(_parse_known_bounds, column)
    is_ordered = column.kind not in SEMI_STRUCTURED_TYPES

    def parse(message: Any, rows: int) -> StatisticBounds:
        if message is None:
            return _UNKNOWN_BOUNDS
        nulls = message.nullCount
        low, high = find_limits(message) if is_ordered and nulls < rows else (None, None)
        return StatisticBounds(low, high, nulls)

    return parse


def _parse_known_bounds(column: Column, message: Any) -> tuple[StatisticValue, StatisticValue]:
    try:
        low, high = _parse_bounds(column, message)
    except ValueError:
        return None, None
    return _none_if_nan(low), _none_if_nan(high)


def _parse_bounds(column: Column, message: Any) -> tuple[StatisticValue, StatisticValue]:
    """Return the limits that the message of a column has.

    Raises:
        ValueError: A limit is no hexadecimal text or no number.
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
            f"columnId {message.columnId} is not {column.ordinal}",
        )
    if not 0 <= message.nullCount <= rows or message.distinctValues > rows:
        return ResponseCode.EP_INVALID, "more nulls or distinct values than rows, or fewer than 0"
    if message.nullCount and not column.nullable:
        return ResponseCode.EP_INVALID, "nulls in a column that is not nullable"
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
            if not -_INT128_END <= least <= most < _INT128_END:
                return "bounds are crossed, or outside 128 bits"
            crossed = False
        case _:
            crossed = True
    return "bounds are crossed" if crossed else None


def _java_sort_key(value: float) -> tuple[bool, float, bool]:
    # Order of Double.compareTo: -0.0 below 0.0, NaN above everything (specification §6).
    if math.isnan(value):
        return True, 0.0, True
    return False, value, math.copysign(1.0, value) > 0
