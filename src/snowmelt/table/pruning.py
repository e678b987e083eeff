"""Selects the files and chunks that may contain rows for a query's predicates. Pure.

A predicate is ignored if its result is uncertain: if value and column differ in type, a bound is
unknown, or a file lacks the column. Bounds may be wider than the values (truncated text, floored
microseconds), but never narrower. A file is skipped only if the predicate is false or null for
every value between its bounds.

Values are ordered as in Spark: text and binary by bytes, NaN above everything and equal to itself,
-0.0 equal to 0.0, and timestamps by UTC time, regardless of the offset.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import compress, groupby, repeat
from operator import and_, itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from snowmelt.schema.iceberg_table_form import native_fields, needs_nanosecond_companion
from snowmelt.schema.types import TIMESTAMP_TYPES, Column, LogicalType, TableSchema
from snowmelt.table.column_bounds import StoredBound, decode_bound
from snowmelt.wire.column_statistics import StoredStatisticsDecoder

if TYPE_CHECKING:
    from snowmelt.catalog.streaming.chunks import ChunkRange, ChunkRecord
    from snowmelt.table.native_file import NativeFile

LiteralValue: TypeAlias = (
    bool | int | float | Decimal | str | bytes | dt.date | dt.time | dt.datetime | None
)

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - naive on purpose, for TIMESTAMP_NTZ
_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_OFFSET_BITS = 14
# Allow for the engine's conversion of a decimal to a double, which rounds once or twice.
_MAX_ROUNDINGS = 2


@dataclass(frozen=True, slots=True)
class Comparison:
    """`column op value`, with the internal name of the column and a Python value."""

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
    """`column IS NULL`, or IS NOT NULL if `negated`."""

    column: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Or:
    """At least one condition."""

    conditions: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class And:
    """All conditions."""

    conditions: tuple[Predicate, ...]


Predicate: TypeAlias = Comparison | InList | StartsWith | IsNull | Or | And


class _ColumnBounds(NamedTuple):
    """Bounds of a column's comparable values and number of nulls, per file or chunk.

    None means unbounded or unknown.
    """

    column: Column
    lower: Sequence[Any]
    upper: Sequence[Any]
    nulls: Sequence[int | None]


_BoundsFinder: TypeAlias = "Callable[[str], _ColumnBounds | None]"
# A chunk as a tuple: key, rows, schema version and statistics.
_ChunkRow: TypeAlias = "tuple[int, int, int, bytes]"


def prune_files(
    files: Iterable[NativeFile], schema: TableSchema, predicates: Sequence[Predicate]
) -> list[NativeFile]:
    """Return the native files that may have rows for which all predicates are true."""
    files = list(files)
    if not predicates:
        return files

    def find_bounds(name: str) -> _ColumnBounds | None:
        column = schema.column(name)
        return None if column is None else _file_bounds(files, column)

    matches = _find_matches(And(tuple(predicates)), find_bounds, [file.rows for file in files])
    return list(compress(files, matches))


def prune_chunks(
    chunks: ChunkRange | Sequence[ChunkRecord],
    schema: TableSchema,
    schemas: Mapping[int, TableSchema],
    predicates: Sequence[Predicate],
) -> list[ChunkRecord]:
    """Return the chunks that may have rows for which all predicates are true.

    The predicates refer to `schema`. `schemas` has every schema version of the table.
    """
    if not predicates:
        return list(chunks)
    whole = And(tuple(predicates))
    names = set(list_predicate_columns(predicates))
    versions = {
        version: _map_written_columns(schema, written, names)
        for version, written in schemas.items()
    }
    decoder = StoredStatisticsDecoder(
        {column.ordinal for columns in versions.values() for column in columns.values()}
    )

    def choose(batch: Iterable[_ChunkRow]) -> list[int]:
        chosen: list[int] = []
        for version, group in groupby(batch, key=itemgetter(2)):
            keys, rows, _, texts = zip(*group, strict=True)
            columns = versions.get(version)
            if columns is None:
                chosen += keys
                continue
            found = decoder.decode(texts)

            def find_bounds(
                name: str,
                columns: dict[str, Column] = columns,
                found: Sequence[Any] = found,
            ) -> _ColumnBounds | None:
                column = columns.get(name)
                if column is None:
                    return None
                return _chunk_bounds(column, *decoder.list_bounds(column.ordinal, found))

            chosen += compress(keys, _find_matches(whole, find_bounds, rows))
        return chosen

    if not isinstance(chunks, Sequence):
        return chunks.select(choose)
    rows = ((at, *each.pruning_fields) for at, each in enumerate(chunks))
    return [chunks[at] for at in choose(rows)]


def list_predicate_columns(predicates: Iterable[Predicate]) -> Iterator[str]:
    """Yield the columns of predicates."""
    for predicate in predicates:
        match predicate:
            case And(conditions) | Or(conditions):
                yield from list_predicate_columns(conditions)
            case _:
                yield predicate.column


def _find_matches(
    predicate: Predicate, find_bounds: _BoundsFinder, rows: Sequence[int]
) -> Iterable[bool]:
    """Return, for each file or chunk, True if the predicate may be true for one of its rows."""
    match predicate:
        case And(conditions):
            each = [_find_matches(condition, find_bounds, rows) for condition in conditions]
            return each[0] if len(each) == 1 else list(map(all, zip(*each, strict=True)))
        case Or(conditions):
            each = [_find_matches(condition, find_bounds, rows) for condition in conditions]
            return list(map(any, zip(*each, strict=True)))
    bounds = find_bounds(predicate.column)
    if bounds is None:
        return repeat(True, len(rows))
    found: Iterable[bool] = repeat(True, len(rows))
    match predicate:
        case IsNull(negated=False) | Comparison(op="<=>", value=None):
            return [nulls != 0 for nulls in bounds.nulls]
        case Comparison(op=op, value=value):
            found = _compare(bounds, op, value)
        case InList(values=values):
            found = _compare_with_each(bounds, [value for value in values if value is not None])
        case StartsWith(prefix=prefix):
            found = _compare_start(bounds, prefix)
    has_values = [
        nulls is None or nulls < count for nulls, count in zip(bounds.nulls, rows, strict=True)
    ]
    return list(map(and_, has_values, found))


def _compare(bounds: _ColumnBounds, op: str, value: LiteralValue) -> Iterable[bool]:
    literal = _literal_range(bounds.column, value)
    if literal is None:
        return repeat(True, len(bounds.lower))
    low, high = literal
    match op:
        case "=" | "<=>":
            return _overlap(bounds, [literal])
        case "<>":
            pairs = zip(bounds.lower, bounds.upper, strict=True)
            return [not (low == high == lower == upper) for lower, upper in pairs]
        case "<":
            return [lower is None or lower < high for lower in bounds.lower]
        case "<=":
            return [lower is None or lower <= high for lower in bounds.lower]
        case ">":
            return [upper is None or upper > low for upper in bounds.upper]
        case _:
            return [upper is None or upper >= low for upper in bounds.upper]


def _compare_with_each(bounds: _ColumnBounds, values: Sequence[LiteralValue]) -> Iterable[bool]:
    literals = [_literal_range(bounds.column, value) for value in values]
    known = [literal for literal in literals if literal is not None]
    if len(known) < len(literals):
        return repeat(True, len(bounds.lower))
    return _overlap(bounds, known)


def _overlap(bounds: _ColumnBounds, ranges: Sequence[tuple[Any, Any]]) -> Iterable[bool]:
    pairs = zip(bounds.lower, bounds.upper, strict=True)
    if len(ranges) == 1:
        [(low, high)] = ranges
        return [
            (lower is None or lower <= high) and (upper is None or upper >= low)
            for lower, upper in pairs
        ]
    return [
        any(
            (lower is None or lower <= high) and (upper is None or upper >= low)
            for low, high in ranges
        )
        for lower, upper in pairs
    ]


def _compare_start(bounds: _ColumnBounds, prefix: str) -> Iterable[bool]:
    literal = _literal_range(bounds.column, prefix)
    if literal is None:
        return repeat(True, len(bounds.lower))
    start = literal[0]
    return [
        (upper is None or upper >= start) and (lower is None or lower[: len(start)] <= start)
        for lower, upper in zip(bounds.lower, bounds.upper, strict=True)
    ]


def _literal_range(column: Column, value: LiteralValue) -> tuple[Any, Any] | None:
    """Return the range of values to which the engine may convert the literal, or None if unknown."""
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
    # Exclude datetime: in Python it is a date, but the engine treats it as a timestamp.
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
    # The engine compares doubles, so values that round to the same double are equal.
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


def _file_bounds(files: Sequence[NativeFile], column: Column) -> _ColumnBounds:
    key, kind = column.ordinal, native_fields(column)[0].type
    unit = 1000 if column.kind is LogicalType.TIME or column.kind in TIMESTAMP_TYPES else 1
    rest = 999 if needs_nanosecond_companion(column) else 0
    lower: list[Any] = []
    upper: list[Any] = []
    for file in files:
        limits = file.lower.get(key), file.upper.get(key)
        if key not in file.nulls:
            limits = None, None
        elif column.kind is LogicalType.REAL and file.nans.get(key) != 0:
            # Bounds of FLOAT columns ignore NaN.
            limits = limits[0], None
        low, high = (None if limit is None else decode_bound(limit, kind) for limit in limits)
        lower.append(_to_sort_key(low, unit))
        upper.append(_to_sort_key(high, unit, rest=rest))
    return _ColumnBounds(column, lower, upper, [file.nulls.get(key) for file in files])


def _map_written_columns(
    schema: TableSchema, written: TableSchema, names: Collection[str]
) -> dict[str, Column]:
    """Return the columns of the written schema version, by their current names."""
    old = {column.ordinal: column for column in written.columns}
    return {
        column.name: old[column.ordinal]
        for column in schema.columns
        if column.ordinal in old and column.name in names
    }


def _chunk_bounds(
    column: Column, lower: Sequence[Any], upper: Sequence[Any], nulls: Sequence[int | None]
) -> _ColumnBounds:
    if column.kind is LogicalType.REAL:
        lower, upper = list(map(_to_sort_key, lower)), list(map(_to_sort_key, upper))
    elif column.kind is LogicalType.TIME or column.kind in TIMESTAMP_TYPES:
        unit = int(10 ** (9 - (column.scale or 0)))
        shift = _OFFSET_BITS if column.kind is LogicalType.TIMESTAMP_TZ else 0
        # Values may be floored to microseconds when they are read.
        step = 1000 if needs_nanosecond_companion(column) else 1
        lower = [None if low is None else (low >> shift) * unit // step * step for low in lower]
        upper = [
            None if high is None else (high >> shift) * unit // step * step + step - 1
            for high in upper
        ]
    return _ColumnBounds(column, lower, upper, nulls)


def _to_sort_key(value: StoredBound | None, unit: int = 1, *, rest: int = 0) -> Any:
    if isinstance(value, float):
        return _float_sort_key(value)
    if isinstance(value, int):
        return value * unit + rest
    return value
