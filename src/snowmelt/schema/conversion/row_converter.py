"""Conversion of a user's rows to a table in chunk form, with all errors of the rows.

Rows are checked in the order of the specification (v1, §5.2): unknown columns, then missing ones,
then nulls, then values in the row's own order, then the row's size. A batch is converted column by
column. Only rejected rows take the exact path, which finds the first reason for the rejection.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.errors import InternalError, InvalidRow, RowTooLarge
from snowmelt.schema.chunk_types import (
    chunk_arrow_schema,
    estimate_array_bytes,
    estimate_bytes_per_value,
    estimate_fixed_value_bytes,
    estimate_packed_bytes,
    estimate_value_bytes,
    to_contiguous_array,
)
from snowmelt.schema.conversion.arrow_input import (
    ArrowRows,
    combine_small_arrow_chunks,
    convert_arrow_array,
)
from snowmelt.schema.conversion.column_converter import (
    ColumnConverter,
    flatten_chunks,
    make_column_converters,
)
from snowmelt.schema.conversion.default_values import (
    make_default_chunk_array,
    make_default_value,
)
from snowmelt.schema.conversion.deferred_single_rows import FastRowChecker
from snowmelt.schema.conversion.packed_input_columns import CompactColumn, concatenate_to_arrays
from snowmelt.schema.conversion.value_rules import make_value_rule
from snowmelt.schema.types import (
    Compatibility,
    StoredValue,
    TableSchema,
    python_type_name,
    to_internal_name,
)

if TYPE_CHECKING:
    Mask: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool_]]

Row = Mapping[str, object]
Piece: TypeAlias = CompactColumn | pa.Array | pa.ChunkedArray

MAX_ROW_BYTES = 64 * 1024 * 1024

# Maximum number of cached key spellings, so that rows with random keys do not fill the memory.
_MAX_CACHED_SPELLINGS = 100_000
_PACKED_TOGETHER = 1_024
_MESSAGE_PREFIX = "The given row cannot be converted to the internal format:"


@dataclass(frozen=True, slots=True)
class RowError:
    """Rejection of a row of a batch. `row_index` is its zero-based position.

    Each of the three tuples has column names if its check rejected the row, and is None otherwise.
    """

    row_index: int
    row: object
    error: InvalidRow
    extra_columns: tuple[str, ...] | None = None
    missing_not_null: tuple[str, ...] | None = None
    null_for_not_null: tuple[str, ...] | None = None

    @property
    def lacks_columns(self) -> bool:
        """True if the row was rejected for its columns, not for a value."""
        return bool(self.extra_columns or self.missing_not_null or self.null_for_not_null)


@dataclass(frozen=True, slots=True)
class RowConversion:
    """Valid rows of a batch in chunk form, and the rejected rows."""

    table: pa.Table
    row_count: int
    size_bytes: int
    errors: list[RowError]


class RowConverter:
    """Converter of rows for one version of a table. Not thread-safe."""

    def __init__(
        self,
        schema: TableSchema,
        *,
        zone: ZoneInfo,
        compatibility: Compatibility = Compatibility.STRICT,
        max_row_bytes: int = MAX_ROW_BYTES,
        get_now: Callable[[], dt.datetime] | None = None,
    ) -> None:
        """Prepare for the columns; `get_now` returns the value of the default CURRENT_TIMESTAMP."""
        self._get_now = get_now
        self.schema = schema
        self._zone = zone
        self._compatibility = compatibility
        self._max_row_bytes = max_row_bytes
        self.fast_checker = FastRowChecker(
            schema, zone, compatibility, self._resolve_keys, max_row_bytes
        )
        self.arrow_schema = chunk_arrow_schema(schema)
        self._columns = schema.columns
        self._converters = self.make_converters()
        self._widths = [estimate_fixed_value_bytes(column) for column in schema.columns]
        self._positions = {column.name: place for place, column in enumerate(schema.columns)}
        self._cached_spellings: dict[str, int] = {}
        self._rules = [make_value_rule(column, zone, compatibility) for column in schema.columns]
        self._not_null = [
            place for place, column in enumerate(schema.columns) if not column.nullable
        ]
        self._defaults = [
            place for place, column in enumerate(schema.columns) if column.default is not None
        ]
        self._required = [place for place in self._not_null if place not in self._defaults]

    def convert(self, rows: Sequence[Row], *, stop_at_first: bool = False) -> RowConversion:
        """Convert a batch. Reports and omits rejected rows.

        With `stop_at_first`, returns no rows if one is rejected, and reports only the first one.
        """
        if not rows:
            return RowConversion(self.arrow_schema.empty_table(), 0, 0, [])
        pieces, refused = self._pack_columns(rows)
        arrays = [
            converter.unpack(piece) if isinstance(piece, CompactColumn) else piece
            for piece, converter in zip(pieces, self._converters, strict=True)
        ]
        return self._finish_conversion(arrays, refused, rows, stop_at_first=stop_at_first)

    def try_defer(self, rows: Sequence[Row]) -> DeferredRows | None:
        """Pack rows for a later conversion. Return None if a row is not certainly valid."""
        columns: list[list[Piece]] = [[] for _ in self._columns]
        size = 0.0
        # Process blocks of rows, so that values are in the processor cache when they are packed.
        for start in range(0, len(rows), _PACKED_TOGETHER):
            pieces, refused = self._pack_columns(rows[start : start + _PACKED_TOGETHER])
            size += sum(map(_estimate_piece_bytes, pieces, self._widths))
            if refused or size > self._max_row_bytes:
                return None
            for column, piece in zip(columns, pieces, strict=True):
                column.append(piece)
        return DeferredRows(self, columns, len(rows), int(size) + 1) if rows else None

    def make_converters(self) -> list[ColumnConverter]:
        """Return new converters, for use by another thread."""
        return make_column_converters(self.schema, self._zone, self._compatibility)

    def convert_arrow_table(self, table: pa.Table, *, stop_at_first: bool = False) -> RowConversion:
        """Convert a table whose column names are the keys of rows, as rows are converted."""
        rows = ArrowRows(table)
        places = self._distinct_positions(table.column_names)
        if not len(rows) or places is None or not set(self._required) <= set(places.values()):
            return self.convert(rows[:], stop_at_first=stop_at_first)
        table = combine_small_arrow_chunks(table)
        names = {place: name for name, place in places.items()}
        arrays: list[pa.Array | pa.ChunkedArray] = []
        refused: set[int] = set()
        for place, converter in enumerate(self._converters):
            if place not in names:
                arrays.append(
                    pa.nulls(len(rows), converter.type)
                    if place not in self._defaults
                    else make_default_chunk_array(converter.column, len(rows), self._find_now())
                )
                continue
            pieces: list[pa.Array] = []
            start = 0
            for chunk in table.column(names[place]).chunks:
                piece, positions = convert_arrow_array(converter, chunk)
                refused.update(start + position for position in positions)
                pieces += flatten_chunks([piece])
                start += len(chunk)
            arrays.append(pieces[0] if len(pieces) == 1 else pa.chunked_array(pieces))
        return self._finish_conversion(arrays, refused, rows, stop_at_first=stop_at_first)

    def _finish_conversion(
        self,
        arrays: list[pa.Array | pa.ChunkedArray],
        rejected: set[int],
        rows: Sequence[Row],
        *,
        stop_at_first: bool,
    ) -> RowConversion:
        total = sum(map(estimate_array_bytes, arrays, self._widths))
        if total > self._max_row_bytes:
            sizes = np.zeros(len(arrays[0]))
            for array, width in zip(arrays, self._widths, strict=True):
                sizes += estimate_bytes_per_value(array, width)
            rejected.update(np.flatnonzero(sizes > self._max_row_bytes).tolist())
        table = pa.Table.from_arrays(arrays, schema=self.arrow_schema)
        if not rejected:
            return RowConversion(table, len(rows), int(total) + 1, [])
        # Omit rejected rows, and find the first reason of each.
        places = sorted(rejected)
        if stop_at_first:
            error = self._find_row_error(rows[places[0]], places[0])
            return RowConversion(self.arrow_schema.empty_table(), 0, 0, [error])
        errors = [self._find_row_error(rows[index], index) for index in places]
        good = np.ones(len(rows), dtype=np.bool_)
        good[places] = False
        table = table.filter(pa.array(good)).combine_chunks()
        size = sum(map(estimate_array_bytes, table.columns, self._widths))
        return RowConversion(table, table.num_rows, int(size) + 1 if table.num_rows else 0, errors)

    def convert_row(self, row: Row, row_index: int = 0) -> tuple[StoredValue, ...]:
        """Convert one row on the exact path. Return its stored values in ordinal order.

        Raises:
            InvalidRow: If a check fails. Has the reason of the first failed check.
        """
        given, twice = self._check_columns(row, row_index)
        if twice:
            self._check_values_of_all_spellings(row, row_index)
        stored: list[StoredValue] = [None] * len(self._columns)
        for place in self._defaults:
            if place not in given:
                stored[place] = make_default_value(self._columns[place], self._find_now())
        for place, value in given.items():
            stored[place] = self._rules[place](value, row_index)
        size = sum(map(estimate_value_bytes, stored, self._widths))
        if size > self._max_row_bytes:
            raise RowTooLarge(
                reason=f"rowSizeInBytes:{size:.3f}, "
                f"maxAllowedRowSizeInBytes:{self._max_row_bytes}, rowIndex:{row_index}",
                row_index=row_index,
            )
        return tuple(stored)

    def build_table(self, rows: Sequence[tuple[StoredValue, ...]]) -> pa.Table:
        """Return rows from `convert_row` as a table in chunk form."""
        if not rows:
            return self.arrow_schema.empty_table()
        arrays = [
            converter.stored_to_array(values)
            for converter, values in zip(self._converters, zip(*rows, strict=True), strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=self.arrow_schema)

    def _resolve_keys(self, keys: tuple[str, ...]) -> tuple[int, ...] | None:
        """Return the columns of a row's keys, or None if a key is missing or unknown."""
        places = self._distinct_positions(keys)
        if places is None or not {*self._required, *self._defaults} <= set(places.values()):
            return None
        return tuple(places.values())

    def _pack_columns(self, rows: Sequence[Row]) -> tuple[list[Piece], set[int]]:
        """Return each column packed by `ColumnConverter.pack`, and the rejected rows."""
        columns, refused = self._gather_columns(rows)
        lacking = self._find_lacking_rows(rows) if self._defaults else {}
        pieces: list[Piece] = []
        for place, (values, converter) in enumerate(zip(columns, self._converters, strict=True)):
            if place in lacking:
                default = make_default_chunk_array(converter.column, 1, self._find_now())[0]
                piece, positions = _pack_with_default(converter, values, lacking[place], default)
                refused.update(positions)
                pieces.append(piece)
                continue
            if values is None:
                pieces.append(pa.nulls(len(rows), converter.type))
                if not converter.column.nullable:
                    refused.update(range(len(rows)))
                continue
            piece, positions = converter.pack(values)
            refused.update(positions)
            pieces.append(piece)
        return pieces, refused

    def _find_now(self) -> dt.datetime | None:
        return None if self._get_now is None else self._get_now()

    def _find_lacking_rows(self, rows: Sequence[Row]) -> dict[int, Mask]:
        """Return the rows that lack a column with a default, by the position of the column."""
        found: dict[int, Mask] = {}
        given = [
            frozenset(map(self._find_position, row))
            if isinstance(row, (dict, Mapping))
            else frozenset[int | None]()
            for row in cast("Sequence[object]", rows)
        ]
        for place in self._defaults:
            mask = np.fromiter((place not in each for each in given), np.bool_, len(rows))
            if mask.any():
                found[place] = mask
        return found

    def _gather_columns(self, rows: Sequence[Row]) -> tuple[list[list[object] | None], set[int]]:
        """Return the values of each column (None if no row has it), and the rejected rows."""
        columns: list[list[object] | None] = [None] * len(self._columns)
        if list(map(type, rows)).count(dict) == len(rows):
            gathered = self._gather_same_keys(rows)
            if gathered is not None:
                return gathered, set()
            places = self._distinct_positions(set().union(*rows))
            if places is not None:
                for key, place in places.items():
                    columns[place] = [row.get(key) for row in rows]
                return columns, set()
        given, refused = self._gather_row_by_row(rows)
        return list(given), refused

    def _gather_same_keys(self, rows: Sequence[Row]) -> list[list[object] | None] | None:
        """Return the columns of dicts with equal keys, or None if some have other keys."""
        keys = tuple(rows[0])
        places = self._distinct_positions(keys)
        # A lookup fails if a row lacks one of these keys. The total count shows that no row has
        # more.
        if not places or sum(map(len, rows)) != len(keys) * len(rows):
            return None
        columns: list[list[object] | None] = [None] * len(self._columns)
        try:
            if len(keys) == 1:
                columns[places[keys[0]]] = [row[keys[0]] for row in rows]
                return columns
            # Read row by row into one list, so that each row is in the cache when it is read.
            values = list(chain.from_iterable(map(itemgetter(*keys), rows)))
        except KeyError:
            return None
        for number, place in enumerate(places.values()):
            columns[place] = values[number :: len(keys)]
        return columns

    def _gather_row_by_row(self, rows: Sequence[Row]) -> tuple[list[list[object]], set[int]]:
        gathered: list[list[object]] = [[None] * len(rows) for _ in self._columns]
        refused: set[int] = set()
        for index, row in enumerate(rows):
            try:
                given, twice = self._check_columns(row, index)
                if twice:
                    self._check_values_of_all_spellings(row, index)
            except InvalidRow:
                refused.add(index)
                continue
            for place, value in given.items():
                gathered[place][index] = value
        return gathered, refused

    def _distinct_positions(self, keys: Iterable[object]) -> dict[str, int] | None:
        """Map keys to column positions. Return None if a key is unknown, or two name one column."""
        places: dict[str, int] = {}
        for key in keys:
            place = self._find_position(key)
            if place is None or not isinstance(key, str):
                return None
            places[key] = place
        return places if len(set(places.values())) == len(places) else None

    def _find_position(self, key: object) -> int | None:
        if not isinstance(key, str):
            return None
        place = self._cached_spellings.get(key)
        if place is None:
            place = self._positions.get(to_internal_name(key))
            if place is not None:
                if len(self._cached_spellings) >= _MAX_CACHED_SPELLINGS:
                    self._cached_spellings.clear()
                self._cached_spellings[key] = place
        return place

    def _check_columns(self, row: Row, row_index: int) -> tuple[dict[int, object], bool]:
        """Check a row's columns. Return values by position, and True if keys name a column twice."""
        if not isinstance(row, (dict, Mapping)):
            raise InvalidRow(
                reason=f"a row is a mapping, not {python_type_name(row)}, rowIndex:{row_index}"
            )
        given: dict[int, object] = {}
        extra: list[str] = []
        for key, value in row.items():
            place = self._find_position(key)
            if place is None:
                extra.append(str(key))
            else:
                given[place] = value
        if extra:
            advice = "Columns not present in the table shouldn't be specified"
            raise _columns_error("Extra columns", extra, advice, "extra_columns", row_index)
        missing = self._display_names(place for place in self._required if place not in given)
        if missing:
            advice = "Values for all non-nullable columns must be specified"
            raise _columns_error("Missing columns", missing, advice, "missing_not_null", row_index)
        null = self._display_names(
            place for place in self._not_null if place in given and given[place] is None
        )
        if null:
            what = "Not-nullable columns with null values"
            advice = "Values for all non-nullable columns must not be null"
            raise _columns_error(what, null, advice, "null_for_not_null", row_index)
        return given, len(given) != len(row)

    def _display_names(self, places: Iterable[int]) -> list[str]:
        return [self._columns[place].display_name for place in places]

    def _check_values_of_all_spellings(self, row: Row, row_index: int) -> None:
        """Also convert values that are replaced, because a later key names the same column."""
        for key, value in row.items():
            place = self._find_position(key)
            if place is not None and value is not None:
                self._rules[place](value, row_index)

    def _find_row_error(self, row: Row, row_index: int) -> RowError:
        try:
            self.convert_row(row, row_index)
        except InvalidRow as error:
            fields: dict[str, Any] = error.fields
            names = ("extra_columns", "missing_not_null", "null_for_not_null")
            return RowError(row_index, row, error, *map(fields.get, names))
        raise InternalError(f"A column rejected row {row_index}, but the row is valid.")


def _pack_with_default(
    converter: ColumnConverter, values: list[object] | None, lacking: Mask, default: pa.Scalar
) -> tuple[pa.Array, list[int]]:
    """Return a column with the default in the rows that lack it, and the rejected rows."""
    if values is None or lacking.all():
        return pa.repeat(default, len(lacking)), []
    piece, positions = converter.pack(values)
    array = converter.unpack(piece) if isinstance(piece, CompactColumn) else piece
    filled = pc.if_else(pa.array(lacking), default, to_contiguous_array(array))
    return filled, [place for place in positions if not lacking[place]]


@dataclass(eq=False, slots=True)
class DeferredRows:
    """Packed rows of one or more calls. `size_bytes` is an estimate.

    A flush converts them to one table. The fixed cost of a conversion therefore occurs once per
    flush, not once per call.
    """

    form: RowConverter
    columns: list[list[Piece]]
    rows: int
    size_bytes: int

    def try_extend(self, other: object) -> bool:
        """Append the rows of a later call if they have the same form."""
        if not (isinstance(other, DeferredRows) and other.form is self.form):
            return False
        for own, more in zip(self.columns, other.columns, strict=True):
            own += more
        self.rows += other.rows
        self.size_bytes += other.size_bytes
        return True

    def to_table(self) -> pa.Table:
        """Return the rows in chunk form. May be called in any thread."""
        arrays = []
        for pieces, converter in zip(self.columns, self.form.make_converters(), strict=True):
            made = concatenate_to_arrays(pieces, converter)
            arrays.append(made[0] if len(made) == 1 else pa.chunked_array(flatten_chunks(made)))
        return pa.Table.from_arrays(arrays, schema=self.form.arrow_schema)


def _estimate_piece_bytes(piece: Piece, width_bytes: float | None) -> float:
    if isinstance(piece, CompactColumn):
        return estimate_packed_bytes(
            piece.count, piece.null_count, piece.content_bytes, width_bytes
        )
    return estimate_array_bytes(piece, width_bytes)


def _columns_error(
    what: str, names: Sequence[str], advice: str, field: str, row_index: int
) -> InvalidRow:
    return InvalidRow(
        f"{_MESSAGE_PREFIX} {what}: [{', '.join(names)}]. {advice}, rowIndex:{row_index}",
        **{"row_index": row_index, field: tuple(names)},
    )
