"""Statistics of a chunk's columns, from untruncated values (Streaming v1, §6)."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Context, Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.schema.chunk_types import Int64s
from snowmelt.schema.types import SEMI_STRUCTURED_TYPES, Column, LogicalType, TableSchema

_EXACT_CONTEXT = Context(prec=80)
# Maximum digits of a decimal whose unscaled value fits 64 bits.
_MAX_INT64_DIGITS = 18


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Bounds, null count and length in bytes of the longest value of one column in a chunk.

    Bounds are stored values: integers (unscaled, days, 0 and 1 for booleans), floats, bytes for
    TEXT and BINARY. They are None without values, or if the type has no order.
    """

    minimum: int | float | bytes | None
    maximum: int | float | bytes | None
    null_count: int
    max_length: int = 0


@dataclass(frozen=True, slots=True)
class ChunkStatistics:
    """Statistics of all columns, in ordinal order."""

    rows: int
    columns: tuple[ColumnStatistics, ...]


def collect_statistics(table: pa.Table, schema: TableSchema) -> ChunkStatistics:
    """Collect the statistics of a table in chunk form."""
    columns = tuple(_collect_column(table.column(column.name), column) for column in schema.columns)
    return ChunkStatistics(rows=table.num_rows, columns=columns)


def _collect_column(array: pa.ChunkedArray, column: Column) -> ColumnStatistics:
    nulls = array.null_count
    if column.kind in SEMI_STRUCTURED_TYPES or nulls == len(array):
        return ColumnStatistics(None, None, nulls)
    match column.kind:
        case LogicalType.TEXT | LogicalType.BINARY:
            return _binary_statistics(array, nulls)
        case LogicalType.REAL:
            return _float_statistics(array, nulls)
        case LogicalType.BOOLEAN:
            return ColumnStatistics(int(pc.all(array).as_py()), int(pc.any(array).as_py()), nulls)
        case LogicalType.DATE:
            return _integer_statistics(array.cast(pa.int32()), nulls)
        case _:
            return _decimal_statistics(array, nulls)


def _integer_statistics(array: pa.ChunkedArray, null_count: int) -> ColumnStatistics:
    bounds = pc.min_max(array)
    return ColumnStatistics(bounds["min"].as_py(), bounds["max"].as_py(), null_count)


def _decimal_statistics(array: pa.ChunkedArray, null_count: int) -> ColumnStatistics:
    if not null_count and array.type.precision <= _MAX_INT64_DIGITS:
        words = [_extract_low_words(chunk) for chunk in array.chunks if len(chunk)]
        low, high = min(each.min() for each in words), max(each.max() for each in words)
        return ColumnStatistics(int(low), int(high), 0)
    bounds = pc.min_max(array)
    scale = array.type.scale
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    return ColumnStatistics(_to_unscaled(low, scale), _to_unscaled(high, scale), null_count)


def _extract_low_words(array: pa.Decimal128Array) -> Int64s:
    """Return the lower 64 bits of the unscaled values. For small values, these are complete."""
    words = np.frombuffer(array.buffers()[1], np.int64)
    return words[2 * array.offset : 2 * (array.offset + len(array)) : 2]


def _to_unscaled(value: Decimal, scale: int) -> int:
    return int(value.scaleb(scale, _EXACT_CONTEXT))


def _float_statistics(array: pa.ChunkedArray, null_count: int) -> ColumnStatistics:
    """Compute statistics of floats in the wire format's order: -0.0 below 0.0, NaN highest."""
    values = array.drop_null().to_numpy()
    numbers = values[~np.isnan(values)]
    if not len(numbers):
        return ColumnStatistics(float("nan"), float("nan"), null_count)
    low, high = float(numbers.min()), float(numbers.max())
    if low == 0.0 or high == 0.0:
        negative = np.signbit(numbers[numbers == 0.0])
        low = (-0.0 if negative.any() else 0.0) if low == 0.0 else low
        high = (-0.0 if negative.all() else 0.0) if high == 0.0 else high
    return ColumnStatistics(low, high if len(numbers) == len(values) else float("nan"), null_count)


def _binary_statistics(array: pa.ChunkedArray, null_count: int) -> ColumnStatistics:
    raw = array.cast(pa.binary())
    bounds = pc.min_max(raw)
    longest = pc.max(pc.binary_length(raw)).as_py()
    return ColumnStatistics(bounds["min"].as_py(), bounds["max"].as_py(), null_count, longest)
