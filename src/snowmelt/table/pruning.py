"""Selection of the files and chunks that can hold rows that match a query's predicates. Pure.

A predicate is ignored wherever the outcome is uncertain: a value of another type than the column,
a missing bound, a column that a file does not have. Bounds may be wider than the values (truncated
text, floored microseconds), never narrower. So a file is skipped only if the predicate is false or
null for every value between its bounds.

The order is Spark's: text and binary by bytes, NaN above everything and equal to itself, -0.0
equal to 0.0, timestamps by instant, whatever the offset.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from snowmelt.schema.iceberg_table_form import native_fields, needs_nanosecond_companion
from snowmelt.schema.types import TIMESTAMP_TYPES, Column, LogicalType, TableSchema
from snowmelt.table.column_bounds import StoredBound, decode_bound
from snowmelt.wire.column_statistics import StoredStatisticsDecoder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    import pyarrow as pa

    from snowmelt.catalog.streaming.chunks import ChunkRange, ChunkRecord
    from snowmelt.table.iceberg import NativeFile
    from snowmelt.wire.column_statistics import StatisticBounds

LiteralValue: TypeAlias = (
    bool | int | float | Decimal | str | bytes | dt.date | dt.time | dt.datetime | None
)

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - naive on purpose, for TIMESTAMP_NTZ
_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_OFFSET_BITS = 14
# A decimal becomes a double in the engine by one or two roundings.
_MAX_ROUNDINGS = 2


@dataclass(frozen=True, slots=True)
class Comparison:
    """`column op value`; the column by internal name, the value in Python's terms."""

    column: str
    op: Literal["=", "<>", "<", "<=", ">", ">=", "<=>"]
    value: LiteralValue


@dataclass(frozen=True, slots=True)
class InList:
    """`column IN (values)`."""

    column: str
    values: tuple[LiteralValue, ...]


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
class Or:
    """At least one of the conditions."""

    conditions: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class And:
    """Every one of the conditions."""

    conditions: tuple[Predicate, ...]


Predicate: TypeAlias = Comparison | InList | StartsWith | IsNull | Or | And


@dataclass(frozen=True, slots=True)
class _ValueRange:
    """Between what the comparable values of a column lie; None is unbounded or unknown."""

    column: Column
    lower: Any
    upper: Any
    nulls: int | None
    rows: int

    @property
    def has_only_nulls(self) -> bool:
        return self.nulls is not None and self.nulls >= self.rows


def prune_files(
    files: Iterable[NativeFile], schema: TableSchema, predicates: Sequence[Predicate]
) -> list[NativeFile]:
    """Return the native files that can hold rows for which all predicates are true."""
    if not predicates:
        return list(files)
    return [
        file for file in files if _can_all_match(predicates, _make_file_range_finder(file, schema))
    ]


def prune_chunks(
    chunks: ChunkRange | Sequence[ChunkRecord],
    schema: TableSchema,
    schemas: Mapping[int, TableSchema],
    predicates: Sequence[Predicate],
) -> list[ChunkRecord]:
    """Return the chunks that can hold rows for which all predicates are true.

    `schema` is the one the predicates speak of, `schemas` has every version of the table.
    """
    if not predicates:
        return list(chunks)
    names = set(list_predicate_columns(predicates))
    finders = {
        version: _make_chunk_range_finder(_map_written_columns(schema, written, names), written)
        for version, written in schemas.items()
    }

    def matches(rows: int, version: int, statistics: bytes) -> bool:
        find_ranges = finders.get(version)
        found = {} if find_ranges is None else find_ranges(rows, statistics)
        return _can_all_match(predicates, found.get)

    if not isinstance(chunks, Sequence):
        return chunks.select(matches)
    return [each for each in chunks if matches(each.rows, each.schema_version, each.statistics)]


def list_predicate_columns(predicates: Iterable[Predicate]) -> Iterator[str]:
    """Yield the columns that predicates are about."""
    for predicate in predicates:
        match predicate:
            case And(conditions) | Or(conditions):
                yield from list_predicate_columns(conditions)
            case _:
                yield predicate.column


def _can_all_match(
    predicates: Sequence[Predicate], find_range: Callable[[str], _ValueRange | None]
) -> bool:
    return all(_can_match(predicate, find_range) for predicate in predicates)


def _can_match(predicate: Predicate, find_range: Callable[[str], _ValueRange | None]) -> bool:
    match predicate:
        case And(conditions):
            return _can_all_match(conditions, find_range)
        case Or(conditions):
            return any(_can_match(condition, find_range) for condition in conditions)
        case _:
            extent = find_range(predicate.column)
            return extent is None or _can_column_match(predicate, extent)


def _can_column_match(
    predicate: Comparison | InList | StartsWith | IsNull, value_range: _ValueRange
) -> bool:
    match predicate:
        case IsNull(negated=negated):
            return not value_range.has_only_nulls if negated else value_range.nulls != 0
        case Comparison(op="<=>", value=None):
            return value_range.nulls != 0
        case Comparison(op=op, value=value):
            return not value_range.has_only_nulls and _can_comparison_hold(value_range, op, value)
        case InList(values=values):
            return not value_range.has_only_nulls and any(
                _can_comparison_hold(value_range, "=", value)
                for value in values
                if value is not None
            )
        case StartsWith(prefix=prefix):
            return not value_range.has_only_nulls and _can_prefix_match(value_range, prefix)


def _can_comparison_hold(value_range: _ValueRange, op: str, value: LiteralValue) -> bool:
    literal = _literal_range(value_range.column, value)
    if literal is None:
        return True
    low, high = literal
    lower, upper = value_range.lower, value_range.upper
    if op in {"=", "<=>"}:
        return (lower is None or high >= lower) and (upper is None or low <= upper)
    if op == "<>":
        return not (low == high == lower == upper)
    if op in {"<", "<="}:
        return lower is None or bool(lower < high if op == "<" else lower <= high)
    return upper is None or bool(upper > low if op == ">" else upper >= low)


def _can_prefix_match(value_range: _ValueRange, prefix: str) -> bool:
    literal = _literal_range(value_range.column, prefix)
    if literal is None:
        return True
    start = literal[0]
    if value_range.upper is not None and value_range.upper < start:
        return False
    return value_range.lower is None or bool(value_range.lower[: len(start)] <= start)


# The same literal is compared with every file; `typed` because True, 1 and 1.0 are equal.
@lru_cache(maxsize=1024, typed=True)
def _literal_range(column: Column, value: LiteralValue) -> tuple[Any, Any] | None:
    """Return the limits between which the engine may see the literal, None for no idea."""
    match column.kind:
        case LogicalType.FIXED | LogicalType.REAL:
            return _number_range(column, value)
        case LogicalType.TEXT:
            return _make_single_value_range(_encode_utf8(value)) if isinstance(value, str) else None
        case LogicalType.BINARY:
            return _make_single_value_range(bytes(value)) if isinstance(value, bytes) else None
        case LogicalType.BOOLEAN:
            return _make_single_value_range(int(value)) if isinstance(value, bool) else None
        case LogicalType.DATE:
            return _make_single_value_range(_date_to_days(value))
        case _:
            return _make_single_value_range(_to_nanoseconds(column, value))


def _make_single_value_range(value: Any) -> tuple[Any, Any] | None:
    return None if value is None else (value, value)


def _date_to_days(value: LiteralValue) -> int | None:
    # Not a datetime, which is a date to Python but a timestamp to the engine.
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return value.toordinal() - _EPOCH.toordinal()
    return None


def _encode_utf8(text: str) -> bytes | None:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None


def _number_range(column: Column, value: LiteralValue) -> tuple[Any, Any] | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    if column.kind is LogicalType.REAL:
        return _float_range(value)
    if isinstance(value, int) or (isinstance(value, Decimal) and value.is_finite()):
        scaled = Fraction(value) * 10 ** (column.scale or 0)
        return _make_single_value_range(scaled if scaled.denominator > 1 else int(scaled))
    if isinstance(value, Decimal) or not math.isfinite(value):
        return None
    # The engine compares as doubles: whatever rounds to this one may be equal to it.
    low, high = _widen_float(value)
    if not (math.isfinite(low) and math.isfinite(high)):
        return None
    unit = 10 ** (column.scale or 0)
    return Fraction(low) * unit, Fraction(high) * unit


def _float_range(value: float | Decimal) -> tuple[Any, Any] | None:
    if isinstance(value, float):
        return _make_single_value_range(_float_sort_key(value))
    try:
        real = float(value)
    except (OverflowError, ValueError):
        return None
    if not math.isfinite(real):
        return None
    low, high = _widen_float(real)
    return _float_sort_key(low), _float_sort_key(high)


def _widen_float(value: float) -> tuple[float, float]:
    low = high = value
    for _ in range(_MAX_ROUNDINGS):
        low, high = math.nextafter(low, -math.inf), math.nextafter(high, math.inf)
    return low, high


def _float_sort_key(value: float) -> tuple[int, float]:
    return (1, 0.0) if math.isnan(value) else (0, value)


def _to_nanoseconds(column: Column, value: LiteralValue) -> int | None:
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


def _make_file_range_finder(
    file: NativeFile, schema: TableSchema
) -> Callable[[str], _ValueRange | None]:
    return lambda name: _file_range(file, schema.column(name))


def _file_range(file: NativeFile, column: Column | None) -> _ValueRange | None:
    if column is None or column.ordinal not in file.nulls:
        return None
    key, kind = column.ordinal, _native_arrow_type(column)
    # Bounds of reals leave NaN out.
    with_nan = column.kind is LogicalType.REAL and file.nans.get(key) != 0
    limits = (file.lower.get(key), None if with_nan else file.upper.get(key))
    lower, upper = (None if limit is None else decode_bound(limit, kind) for limit in limits)
    unit = 1000 if column.kind is LogicalType.TIME or column.kind in TIMESTAMP_TYPES else 1
    return _ValueRange(
        column,
        _to_sort_key(lower, unit),
        _to_sort_key(upper, unit, rest=999 if needs_nanosecond_companion(column) else 0),
        file.nulls[key],
        file.rows,
    )


@lru_cache(maxsize=1024)
def _native_arrow_type(column: Column) -> pa.DataType:
    return native_fields(column)[0].type


def _map_written_columns(
    schema: TableSchema, written: TableSchema, names: Collection[str]
) -> dict[str, Column]:
    """Return columns as they were written, by the names that they have now."""
    old = {column.ordinal: column for column in written.columns}
    return {
        column.name: old[column.ordinal]
        for column in schema.columns
        if column.ordinal in old and column.name in names
    }


def _make_chunk_range_finder(
    columns: Mapping[str, Column], written: TableSchema
) -> Callable[[int, bytes], dict[str, _ValueRange]]:
    decoder = StoredStatisticsDecoder(written, columns.values())

    def find_ranges(rows: int, statistics: bytes) -> dict[str, _ValueRange]:
        bounds = decoder.decode(statistics)
        return {
            name: _chunk_range(column, bounds[column.ordinal], rows)
            for name, column in columns.items()
        }

    return find_ranges


def _chunk_range(column: Column, bounds: StatisticBounds, rows: int) -> _ValueRange:
    lower, upper = bounds.minimum, bounds.maximum
    if column.kind is LogicalType.TIME or column.kind in TIMESTAMP_TYPES:
        lower, upper = _stored_to_nanoseconds(column, lower), _stored_to_nanoseconds(column, upper)
        # What is read back may be floored to microseconds.
        if needs_nanosecond_companion(column):
            lower = None if lower is None else lower // 1000 * 1000
            upper = None if upper is None else upper // 1000 * 1000 + 999
    return _ValueRange(column, _to_sort_key(lower), _to_sort_key(upper), bounds.null_count, rows)


def _stored_to_nanoseconds(column: Column, stored: StoredBound | None) -> int | None:
    if not isinstance(stored, int):
        return None
    value = stored >> _OFFSET_BITS if column.kind is LogicalType.TIMESTAMP_TZ else stored
    return value * int(10 ** (9 - (column.scale or 0)))


def _to_sort_key(value: StoredBound | None, unit: int = 1, *, rest: int = 0) -> Any:
    if isinstance(value, float):
        return _float_sort_key(value)
    if isinstance(value, int):
        return value * unit + rest
    return value
