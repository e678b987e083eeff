"""Arrow arrays of a user become columns in chunk form, where the result is surely the exact one.

Each function returns None when it does not know: the values then go through Python.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.errors import InvalidRow
from snowmelt.schema.chunk_types import nulls_of
from snowmelt.schema.conversion.arrow_values import (
    DIGITS,
    counts,
    python_values,
    unwrapped,
    zone_of,
)
from snowmelt.schema.conversion.column_converter import in_pieces
from snowmelt.schema.conversion.numbers import surely_shortest_singles
from snowmelt.schema.types import TIMESTAMPS, Kind
from snowmelt.schema.value_errors import type_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.schema.conversion.column_converter import ColumnConverter

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_DAY_MS = 86_400_000
_types = pa.types


def convert_arrow(
    converter: ColumnConverter, given: pa.Array
) -> tuple[pa.Array | pa.ChunkedArray, list[int]]:
    """Convert an array of any type as its values would be in rows.

    Returns what `ColumnConverter.convert` does. Nothing of it is memory that the caller could
    change.
    """

    def at_once(part: pa.Array) -> pa.Array | None:
        return _at_once(converter, part)

    array = at_once(given)
    if array is not None:
        return array, []
    if converter.column.kind not in _STEPS:
        return converter.convert(python_values(given))
    return in_pieces(given, at_once, lambda part: converter.convert(python_values(part)))


def _at_once(converter: ColumnConverter, given: pa.Array) -> pa.Array | None:
    """Return an array in the chunk form of the converter's column, None when in doubt."""
    plain = unwrapped(given)
    # A dictionary, or a run, counts as no null what it stands for.
    nulls = (given if plain is None else plain).null_count
    if nulls and not converter.column.nullable:
        return None
    if nulls == len(given):
        return pa.nulls(len(given), converter.type)
    step = _STEPS.get(converter.column.kind)
    if plain is None or step is None:
        return None
    try:
        return step(converter, plain)
    except (pa.ArrowException, NotImplementedError):
        return None


def _numbers(converter: ColumnConverter, array: pa.Array) -> pa.Array | None:
    kind = array.type
    if _types.is_integer(kind):
        if _types.is_uint64(kind) and pc.max(array).as_py() >= 2**63:
            return _rounded(array.cast(pa.decimal128(20, 0)), converter.type)
        return converter.integers(*counts(array.cast(pa.int64())))
    if _types.is_decimal(kind):
        return _rounded(array, converter.type)
    if _types.is_float32(kind):
        array = array.cast(pa.float64())
        kind = array.type
    if _types.is_float64(kind):
        nulls = nulls_of(array) if array.null_count else None
        numbers = np.frombuffer(array.buffers()[1], np.float64, array.offset + len(array))
        numbers = numbers[array.offset :]
        if nulls is not None:
            numbers = np.where(nulls, 0.0, numbers)
        return converter.floats(numbers, nulls)
    return None


def _rounded(array: pa.Array, target: pa.Decimal128Type) -> pa.Array:
    if array.type.bit_width < 128:
        array = array.cast(pa.decimal128(array.type.precision, array.type.scale))
    if array.type.scale > target.scale:
        array = pc.round(array, target.scale, "half_towards_infinity")
    return _own(array.cast(target))


def _reals(converter: ColumnConverter, array: pa.Array) -> pa.Array | None:
    kind = array.type
    if _types.is_float64(kind):
        return _own(array)
    if _types.is_float32(kind):
        numbers = np.frombuffer(array.buffers()[1], np.float32, array.offset + len(array))
        if not surely_shortest_singles(numbers[array.offset :]):
            return None
        # By the shortest decimal text, as everywhere: 1.1 is not 1.10000002384185791015625.
        return array.cast(pa.string()).cast(converter.type)
    return array.cast(converter.type, safe=False) if _types.is_integer(kind) else None


def _booleans(converter: ColumnConverter, array: pa.Array) -> pa.Array | None:
    if _types.is_boolean(array.type):
        return _own(array)
    if not _types.is_integer(array.type):
        return None
    bounds = pc.min_max(array)
    if not converter.compatibility.is_java and not (
        bounds["min"].as_py() >= 0 and bounds["max"].as_py() <= 1
    ):
        return None
    return pc.not_equal(array, 0)


def _texts(converter: ColumnConverter, array: pa.Array) -> pa.Array | None:
    kind = array.type
    if (
        _types.is_string(kind)
        or _types.is_large_string(kind)
        or _types.is_string_view(kind)
        or _types.is_integer(kind)
        or _types.is_boolean(kind)
    ):
        return converter.texts(_own(array.cast(converter.type)))
    return None


def _binaries(converter: ColumnConverter, array: pa.Array) -> pa.Array | None:
    kind = array.type
    if (
        _types.is_binary(kind)
        or _types.is_large_binary(kind)
        or _types.is_binary_view(kind)
        or _types.is_fixed_size_binary(kind)
    ):
        return converter.binaries(_own(array.cast(converter.type)))
    return None


def _dates(converter: ColumnConverter, array: pa.Array) -> pa.Array | None:
    kind = array.type
    if not _types.is_date(kind):
        return None
    days, nulls = counts(array)
    if _types.is_date64(kind):
        days = days // _DAY_MS
    if days.min() < _FIRST_DAY or days.max() > _LAST_DAY:
        return None
    return pa.array(days.astype(np.int32), mask=nulls).view(converter.type)


def _times(converter: ColumnConverter, array: pa.Array) -> pa.Array | None:
    if not _types.is_time(array.type):
        return None
    digits = DIGITS[array.type.unit]
    clock, nulls = counts(array)
    if clock.min() < 0 or clock.max() >= 86_400 * 10**digits:
        return None
    return converter.times(clock, digits, nulls)


def _timestamps(converter: ColumnConverter, array: pa.Array) -> pa.Array | None:
    if not _types.is_timestamp(array.type):
        return None
    zone = None
    if array.type.tz is not None:
        zone = zone_of(array.type.tz)
        if zone is None:
            return None
    counted, nulls = counts(array)
    return converter.instants(counted, DIGITS[array.type.unit], zone, nulls)


def _own(array: pa.Array) -> pa.Array:
    """Copy: the producer's memory may be a NumPy array that somebody goes on writing to."""
    return pa.concat_arrays([array])


_STEPS: dict[Kind, Callable[[Any, pa.Array], pa.Array | None]] = {
    Kind.FIXED: _numbers,
    Kind.REAL: _reals,
    Kind.BOOLEAN: _booleans,
    Kind.TEXT: _texts,
    Kind.BINARY: _binaries,
    Kind.DATE: _dates,
    Kind.TIME: _times,
    **dict.fromkeys(TIMESTAMPS, _timestamps),
}


# --- Tables of a user, from whatever library, and their rows where a row is wanted.

if TYPE_CHECKING:
    Row = dict[str, object]

# From this size on a piece is converted and encoded as fast as all in one; joined, rows would be
# there twice.
_PIECE_ROWS = 8_192
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")


def table_from(given: object) -> pa.Table:
    """Return the table of anything that offers Arrow's C stream or array interface.

    The index of a pandas data frame is left out unless it has a name.

    Raises:
        TypeError: The object offers neither.
        InvalidRow: What it offers is not valid Arrow, or has two columns of the very same name.
    """
    try:
        table = _read(given)
        table.validate(full=True)
    except pa.ArrowException as error:
        raise InvalidRow(reason=f"the data is not valid Arrow: {error}") from error
    if b"pandas" in (table.schema.metadata or {}):
        index = [name for name in table.column_names if _UNNAMED_INDEX.fullmatch(name)]
        table = table.drop_columns(index) if index else table
    names = table.column_names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidRow(reason=f"the data has more than one column named {', '.join(twice)}")
    return table


def _read(given: Any) -> pa.Table:
    if isinstance(given, pa.Table):
        return given
    if isinstance(given, pa.RecordBatchReader):
        return given.read_all()
    if hasattr(given, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(given).read_all()
    if hasattr(given, "__arrow_c_array__"):
        return pa.Table.from_batches([pa.record_batch(given)])
    raise TypeError(
        f"insert_arrow takes an object with __arrow_c_stream__, such as a pyarrow.Table or a data "
        f"frame of pandas, Polars or DuckDB; not {type_name(given)}"
    )


def pieced(table: pa.Table) -> pa.Table:
    """Return the rows in pieces that are not small, mostly the table as it is."""
    pieces = max((column.num_chunks for column in table.columns), default=0)
    return table if pieces * _PIECE_ROWS <= table.num_rows else table.combine_chunks()


class ArrowRows(Sequence["Row"]):
    """The rows of a table as the dicts that `insert_rows` would be given, made when asked for."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return _rows(self._table)[index]
        return _rows(self._table.slice(index, 1))[0]


def _rows(table: pa.Table) -> list[Row]:
    if not table.num_columns:
        return [{} for _ in range(table.num_rows)]
    columns = [
        [value for chunk in column.chunks for value in python_values(chunk)]
        for column in table.columns
    ]
    names = table.column_names
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
