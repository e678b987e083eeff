"""Which files and chunks can hold rows that a query's conditions select. Pure.

A condition is dropped on anything that is not certain: a value of another kind than the column,
a bound that is missing, a column that a file does not know. Bounds may be wider than the values
(text cut short, microseconds floored), never narrower; so a file is left out only when the
condition is false or null for every value between its bounds.

The order is Spark's: text and binary by bytes, NaN above everything and equal to itself, -0.0
equal to 0.0, timestamps by instant, whatever the offset.
"""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from snowmelt.schema.native_types import has_nanoseconds, native_fields
from snowmelt.schema.types import TIMESTAMP_TYPES, Column, LogicalType, TableSchema
from snowmelt.table.column_bounds import Stored, decode_bound
from snowmelt.wire.column_statistics import StoredStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa

    from snowmelt.catalog.streaming.chunks import ChunkRecord
    from snowmelt.table.iceberg import NativeFile
    from snowmelt.wire.column_statistics import StatisticBounds

Value: TypeAlias = (
    bool | int | float | Decimal | str | bytes | dt.date | dt.time | dt.datetime | None
)

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - naive on purpose, for TIMESTAMP_NTZ
_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_OFFSET_BITS = 14
# A decimal becomes a double in the engine by one or two roundings.
_ROUNDINGS = 2


@dataclass(frozen=True, slots=True)
class Comparison:
    """`column op value`; the column by internal name, the value in Python's terms."""

    column: str
    op: Literal["=", "<>", "<", "<=", ">", ">=", "<=>"]
    value: Value


@dataclass(frozen=True, slots=True)
class In:
    """`column IN (values)`."""

    column: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class StartsWith:
    """`column LIKE 'prefix%'`."""

    column: str
    prefix: str


@dataclass(frozen=True, slots=True)
class IsNull:
    """`column IS NULL`, or IS NOT NULL when `negated`."""

    column: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one of the conditions."""

    conditions: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class AllOf:
    """Every one of the conditions."""

    conditions: tuple[Predicate, ...]


Predicate: TypeAlias = Comparison | In | StartsWith | IsNull | AnyOf | AllOf


@dataclass(frozen=True, slots=True)
class _Extent:
    """Between what the comparable values of a column lie; None is unbounded or unknown."""

    column: Column
    lower: Any
    upper: Any
    nulls: int | None
    rows: int

    @property
    def only_nulls(self) -> bool:
        return self.nulls is not None and self.nulls >= self.rows


def prune_files(
    files: Iterable[NativeFile], schema: TableSchema, predicates: Sequence[Predicate]
) -> list[NativeFile]:
    """Return the native files that can hold rows for which all predicates are true."""
    if not predicates:
        return list(files)
    return [file for file in files if _all_may(predicates, _file_extents(file, schema))]


def prune_chunks(
    chunks: Iterable[ChunkRecord],
    schema: TableSchema,
    schemas: Mapping[int, TableSchema],
    predicates: Sequence[Predicate],
) -> list[ChunkRecord]:
    """Return the chunks that can hold rows for which all predicates are true.

    `schema` is the one the predicates speak of, `schemas` has every version of the table.
    """
    if not predicates:
        return list(chunks)
    columns = {version: _as_written(schema, written) for version, written in schemas.items()}
    return [
        chunk
        for chunk in chunks
        if _all_may(predicates, _chunk_extents(chunk, columns.get(chunk.schema_version, {})))
    ]


def _all_may(predicates: Sequence[Predicate], extent_of: Callable[[str], _Extent | None]) -> bool:
    return all(_may(predicate, extent_of) for predicate in predicates)


def _may(predicate: Predicate, extent_of: Callable[[str], _Extent | None]) -> bool:
    match predicate:
        case AllOf(conditions):
            return _all_may(conditions, extent_of)
        case AnyOf(conditions):
            return any(_may(condition, extent_of) for condition in conditions)
        case _:
            extent = extent_of(predicate.column)
            return extent is None or _column_may(predicate, extent)


def _column_may(predicate: Comparison | In | StartsWith | IsNull, extent: _Extent) -> bool:
    match predicate:
        case IsNull(negated=negated):
            return not extent.only_nulls if negated else extent.nulls != 0
        case Comparison(op="<=>", value=None):
            return extent.nulls != 0
        case Comparison(op=op, value=value):
            return not extent.only_nulls and _compares(extent, op, value)
        case In(values=values):
            return not extent.only_nulls and any(
                _compares(extent, "=", value) for value in values if value is not None
            )
        case StartsWith(prefix=prefix):
            return not extent.only_nulls and _starts(extent, prefix)


def _compares(extent: _Extent, op: str, value: Value) -> bool:
    literal = _comparable(extent.column, value)
    if literal is None:
        return True
    low, high = literal
    lower, upper = extent.lower, extent.upper
    if op in {"=", "<=>"}:
        return (lower is None or high >= lower) and (upper is None or low <= upper)
    if op == "<>":
        return not (low == high == lower == upper)
    if op in {"<", "<="}:
        return lower is None or bool(lower < high if op == "<" else lower <= high)
    return upper is None or bool(upper > low if op == ">" else upper >= low)


def _starts(extent: _Extent, prefix: str) -> bool:
    literal = _comparable(extent.column, prefix)
    if literal is None:
        return True
    start = literal[0]
    if extent.upper is not None and extent.upper < start:
        return False
    return extent.lower is None or bool(extent.lower[: len(start)] <= start)


# The same literal is compared with every file; `typed` because True, 1 and 1.0 are equal.
@lru_cache(maxsize=1024, typed=True)
def _comparable(column: Column, value: Value) -> tuple[Any, Any] | None:
    """Return the limits between which the engine may see the literal, None for no idea."""
    match column.kind:
        case LogicalType.FIXED | LogicalType.REAL:
            return _number(column, value)
        case LogicalType.TEXT:
            return _same(_utf8(value)) if isinstance(value, str) else None
        case LogicalType.BINARY:
            return _same(bytes(value)) if isinstance(value, bytes) else None
        case LogicalType.BOOLEAN:
            return _same(int(value)) if isinstance(value, bool) else None
        case LogicalType.DATE:
            return _same(_days(value))
        case _:
            return _same(_nanoseconds(column, value))


def _same(value: Any) -> tuple[Any, Any] | None:
    return None if value is None else (value, value)


def _days(value: Value) -> int | None:
    # Not a datetime, which is a date to Python but a timestamp to the engine.
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return value.toordinal() - _EPOCH.toordinal()
    return None


def _utf8(text: str) -> bytes | None:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None


def _number(column: Column, value: Value) -> tuple[Any, Any] | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    if column.kind is LogicalType.REAL:
        return _as_real(value)
    if isinstance(value, int) or (isinstance(value, Decimal) and value.is_finite()):
        return _same(Fraction(value) * 10 ** (column.scale or 0))
    if isinstance(value, Decimal) or not math.isfinite(value):
        return None
    # The engine compares as doubles: whatever rounds to this one may be equal to it.
    low, high = _widened(value)
    if not (math.isfinite(low) and math.isfinite(high)):
        return None
    unit = 10 ** (column.scale or 0)
    return Fraction(low) * unit, Fraction(high) * unit


def _as_real(value: float | Decimal) -> tuple[Any, Any] | None:
    if isinstance(value, float):
        return _same(_real_order(value))
    try:
        real = float(value)
    except (OverflowError, ValueError):
        return None
    if not math.isfinite(real):
        return None
    low, high = _widened(real)
    return _real_order(low), _real_order(high)


def _widened(value: float) -> tuple[float, float]:
    low = high = value
    for _ in range(_ROUNDINGS):
        low, high = math.nextafter(low, -math.inf), math.nextafter(high, math.inf)
    return low, high


def _real_order(value: float) -> tuple[int, float]:
    return (1, 0.0) if math.isnan(value) else (0, value)


def _nanoseconds(column: Column, value: Value) -> int | None:
    if column.kind is LogicalType.TIME and isinstance(value, dt.time) and value.tzinfo is None:
        whole = (value.hour * 60 + value.minute) * 60 + value.second
        return whole * 10**9 + value.microsecond * 1000
    if column.kind not in TIMESTAMP_TYPES or not isinstance(value, dt.datetime):
        return None
    if column.kind is LogicalType.TIMESTAMP_NTZ and value.tzinfo is None:
        return (value - _EPOCH) // _MICROSECOND * 1000
    if column.kind is not LogicalType.TIMESTAMP_NTZ and value.tzinfo is not None:
        return (value - _EPOCH_UTC) // _MICROSECOND * 1000
    return None


def _file_extents(file: NativeFile, schema: TableSchema) -> Callable[[str], _Extent | None]:
    return lambda name: _file_extent(file, schema.column(name))


def _file_extent(file: NativeFile, column: Column | None) -> _Extent | None:
    if column is None or column.ordinal not in file.nulls:
        return None
    key, kind = column.ordinal, _native_type(column)
    # Bounds of reals leave NaN out.
    with_nan = column.kind is LogicalType.REAL and file.nans.get(key) != 0
    limits = (file.lower.get(key), None if with_nan else file.upper.get(key))
    lower, upper = (None if limit is None else decode_bound(limit, kind) for limit in limits)
    unit = 1000 if column.kind is LogicalType.TIME or column.kind in TIMESTAMP_TYPES else 1
    return _Extent(
        column,
        _ordered(lower, unit),
        _ordered(upper, unit, rest=999 if has_nanoseconds(column) else 0),
        file.nulls[key],
        file.rows,
    )


@lru_cache(maxsize=1024)
def _native_type(column: Column) -> pa.DataType:
    return native_fields(column)[0].type


def _as_written(schema: TableSchema, written: TableSchema) -> dict[str, Column]:
    """Return the columns as they were written, by the names that they have now."""
    old = {column.ordinal: column for column in written.columns}
    return {column.name: old[column.ordinal] for column in schema.columns if column.ordinal in old}


def _chunk_extents(
    chunk: ChunkRecord, written: Mapping[str, Column]
) -> Callable[[str], _Extent | None]:
    statistics = StoredStatistics(chunk.statistics)

    def extent(name: str) -> _Extent | None:
        column = written.get(name)
        if column is None:
            return None
        return _chunk_extent(column, statistics.bounds(column), chunk.rows)

    return extent


def _chunk_extent(column: Column, bounds: StatisticBounds, rows: int) -> _Extent:
    lower, upper = bounds.minimum, bounds.maximum
    if column.kind is LogicalType.TIME or column.kind in TIMESTAMP_TYPES:
        lower, upper = _instant(column, lower), _instant(column, upper)
        # What is read back may be floored to microseconds.
        if has_nanoseconds(column):
            lower = None if lower is None else lower // 1000 * 1000
            upper = None if upper is None else upper // 1000 * 1000 + 999
    return _Extent(column, _ordered(lower), _ordered(upper), bounds.null_count, rows)


def _instant(column: Column, stored: Stored | None) -> int | None:
    if not isinstance(stored, int):
        return None
    value = stored >> _OFFSET_BITS if column.kind is LogicalType.TIMESTAMP_TZ else stored
    return value * int(10 ** (9 - (column.scale or 0)))


def _ordered(value: Stored | None, unit: int = 1, *, rest: int = 0) -> Any:
    if isinstance(value, float):
        return _real_order(value)
    if isinstance(value, int):
        return value * unit + rest
    return value
