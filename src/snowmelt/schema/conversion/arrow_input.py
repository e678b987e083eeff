"""Conversion of a user's Arrow arrays and tables to columns in chunk form.

A vectorized conversion returns None unless its result certainly equals that of the exact path.
After None, the exact path converts the values as Python values.

The second section imports tables from any library with Arrow's C stream or array interface, and
returns rows as dicts when single rows are needed. The third section corrects INT96 timestamps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.errors import InvalidRow
from snowmelt.schema.chunk_types import make_null_mask
from snowmelt.schema.conversion.arrow_to_python import (
    UNIT_FRACTION_DIGITS,
    parse_arrow_zone,
    to_int64_and_nulls,
    to_python_values,
    type_checks,
    unwrap_encoding,
)
from snowmelt.schema.conversion.column_converter import ColumnConverter, convert_by_halving
from snowmelt.schema.conversion.numbers import are_shortest_float32s_java
from snowmelt.schema.types import TIMESTAMP_TYPES, LogicalType, python_type_name

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_DAY_MS = 86_400_000
_MAX_DECIMAL128_DIGITS, _MAX_DECIMAL256_DIGITS = 38, 76
_arrow_types = pa.types
_TEXT_CHECKS = type_checks("string large_string string_view integer boolean")
_BINARY_CHECKS = type_checks("binary large_binary binary_view fixed_size_binary")


def convert_arrow_array(
    converter: ColumnConverter, input_array: pa.Array
) -> tuple[pa.Array | pa.ChunkedArray, list[int]]:
    """Convert an array of any type, with the same result as for values in rows.

    Returns the same as `ColumnConverter.convert`. The result shares no memory with the input.
    """

    def at_once(part: pa.Array) -> pa.Array | None:
        return _try_convert_vectorized(converter, part)

    array = at_once(input_array)
    if array is not None:
        return array, []
    if converter.column.kind not in _VECTORIZED_CONVERTERS:
        return converter.convert(to_python_values(input_array))
    return convert_by_halving(
        input_array, at_once, lambda part: converter.convert(to_python_values(part))
    )


def _try_convert_vectorized(converter: ColumnConverter, array: pa.Array) -> pa.Array | None:
    """Convert an array to the converter's chunk form. Return None if the exact path is needed."""
    plain = unwrap_encoding(array)
    # The null count of a dictionary or run-end encoded array excludes nulls in its values.
    nulls = (array if plain is None else plain).null_count
    if nulls and not converter.column.nullable:
        return None
    if nulls == len(array):
        return pa.nulls(len(array), converter.type)
    step = _VECTORIZED_CONVERTERS.get(converter.column.kind)
    if plain is None or step is None:
        return None
    try:
        return step(converter, plain)
    except (pa.ArrowException, NotImplementedError):
        return None


def _convert_numbers(converter: ColumnConverter, array: pa.Array) -> pa.Array | None:
    kind = array.type
    if _arrow_types.is_integer(kind):
        if _arrow_types.is_uint64(kind) and pc.max(array).as_py() >= 2**63:
            return _round_decimals(array.cast(pa.decimal128(20, 0)), converter.type)
        return converter.integers_to_fixed(*to_int64_and_nulls(array.cast(pa.int64())))
    if _arrow_types.is_decimal(kind):
        return _round_decimals(array, converter.type)
    if _arrow_types.is_float32(kind):
        array = array.cast(pa.float64())
        kind = array.type
    if _arrow_types.is_float64(kind):
        nulls = make_null_mask(array) if array.null_count else None
        numbers = np.frombuffer(array.buffers()[1], np.float64, array.offset + len(array))
        numbers = numbers[array.offset :]
        if nulls is not None:
            numbers = np.where(nulls, 0.0, numbers)
        return converter.floats_to_fixed(numbers, nulls)
    return None


def _round_decimals(array: pa.Array, target: pa.Decimal128Type) -> pa.Array | None:
    precision, scale = array.type.precision, array.type.scale
    if scale > target.scale:
        # One more digit, because 9.9 rounds to 10. Without it, Arrow returns 0 without an error if
        # another value fits.
        precision += 1
        if precision > _MAX_DECIMAL256_DIGITS:
            return None
    if precision > array.type.precision or array.type.bit_width < 128:
        wide = pa.decimal256 if precision > _MAX_DECIMAL128_DIGITS else pa.decimal128
        array = array.cast(wide(precision, scale))
    if scale > target.scale:
        array = pc.round(array, target.scale, "half_towards_infinity")
    found = cast_decimals(array, target)
    return None if found is None else _copy_array(found)


def cast_decimals(array: pa.Array, target: pa.Decimal128Type) -> pa.Array | None:
    """Cast decimals. Return None if a value has too many digits before the point.

    Checks the number of digits, because Arrow wraps around beyond 128 bits without an error.

    Raises:
        ArrowInvalid: If a value has too many digits after the point.
    """
    whole_digits = target.precision - target.scale
    if array.type.precision - array.type.scale > whole_digits:
        bounds = pc.min_max(array).as_py().values()
        if any(each is not None and each.copy_abs() >= 10**whole_digits for each in bounds):
            return None
    return array.cast(target)


def _convert_floats(converter: ColumnConverter, array: pa.Array) -> pa.Array | None:
    kind = array.type
    if _arrow_types.is_float64(kind):
        return _copy_array(array)
    if _arrow_types.is_float32(kind):
        numbers = np.frombuffer(array.buffers()[1], np.float32, array.offset + len(array))
        if not are_shortest_float32s_java(numbers[array.offset :]):
            return None
        # Convert from the shortest decimal text, as all paths do: 1.1, not
        # 1.10000002384185791015625.
        return array.cast(pa.string()).cast(converter.type)
    return array.cast(converter.type, safe=False) if _arrow_types.is_integer(kind) else None


def _convert_booleans(converter: ColumnConverter, array: pa.Array) -> pa.Array | None:
    if _arrow_types.is_boolean(array.type):
        return _copy_array(array)
    if not _arrow_types.is_integer(array.type):
        return None
    bounds = pc.min_max(array)
    if not converter.compatibility.is_java and not (
        bounds["min"].as_py() >= 0 and bounds["max"].as_py() <= 1
    ):
        return None
    return pc.not_equal(array, 0)


def _convert_strings(converter: ColumnConverter, array: pa.Array) -> pa.Array | None:
    if not any(check(array.type) for check in _TEXT_CHECKS):
        return None
    return converter.check_string_lengths(_copy_array(array.cast(converter.type)))


def _convert_binary(converter: ColumnConverter, array: pa.Array) -> pa.Array | None:
    if not any(check(array.type) for check in _BINARY_CHECKS):
        return None
    return converter.check_binary_lengths(_copy_array(array.cast(converter.type)))


def _convert_dates(converter: ColumnConverter, array: pa.Array) -> pa.Array | None:
    kind = array.type
    if not _arrow_types.is_date(kind):
        return None
    days, nulls = to_int64_and_nulls(array)
    if _arrow_types.is_date64(kind):
        days = days // _DAY_MS
    if days.min() < _FIRST_DAY or days.max() > _LAST_DAY:
        return None
    return pa.array(days.astype(np.int32), mask=nulls).view(converter.type)


def _convert_times(converter: ColumnConverter, array: pa.Array) -> pa.Array | None:
    if not _arrow_types.is_time(array.type):
        return None
    digits = UNIT_FRACTION_DIGITS[array.type.unit]
    clock, nulls = to_int64_and_nulls(array)
    if clock.min() < 0 or clock.max() >= 86_400 * 10**digits:
        return None
    return converter.scale_times(clock, digits, nulls)


def _convert_timestamps(converter: ColumnConverter, array: pa.Array) -> pa.Array | None:
    if not _arrow_types.is_timestamp(array.type):
        return None
    zone = None
    if array.type.tz is not None:
        zone = parse_arrow_zone(array.type.tz)
        if zone is None:
            return None
    counted, nulls = to_int64_and_nulls(array)
    return converter.epoch_counts_to_timestamps(
        counted, UNIT_FRACTION_DIGITS[array.type.unit], zone, nulls
    )


def _copy_array(array: pa.Array) -> pa.Array:
    """Copy an array, because the producer may change its memory later."""
    return pa.concat_arrays([array])


_VECTORIZED_CONVERTERS: dict[LogicalType, Callable[[Any, pa.Array], pa.Array | None]] = {
    LogicalType.FIXED: _convert_numbers,
    LogicalType.REAL: _convert_floats,
    LogicalType.BOOLEAN: _convert_booleans,
    LogicalType.TEXT: _convert_strings,
    LogicalType.BINARY: _convert_binary,
    LogicalType.DATE: _convert_dates,
    LogicalType.TIME: _convert_times,
    **dict.fromkeys(TIMESTAMP_TYPES, _convert_timestamps),
}


# --- User tables from any library, and their rows as dicts.

Row = dict[str, object]

# Average chunk size up to which chunks are combined. Larger chunks are converted as fast as one
# array, and combining them would hold the rows in memory twice.
_MIN_ARROW_CHUNK_ROWS = 8_192
_PANDAS_ERRORS = (pa.ArrowException, OverflowError, TypeError, ValueError)
_POLARS_TYPES_WITHOUT_ARROW = re.compile(r"\b(Object|U?Int128)\b")
_UNNAMED_INDEX_PATTERN = re.compile(r"__index_level_\d+__")


def to_arrow_table(data: object) -> pa.Table:
    """Import a table from an object with Arrow's C stream or array interface.

    The index of a pandas data frame is dropped unless it has a name.

    Raises:
        TypeError: If the object has neither interface.
        InvalidRow: If the data is not valid Arrow or has duplicate column names.
    """
    try:
        table = _import_table(data)
        table.validate(full=True)
    except pa.ArrowException as error:
        raise InvalidRow(reason=f"the data is not valid Arrow: {error}") from error
    if b"pandas" in (table.schema.metadata or {}):
        index = [name for name in table.column_names if _UNNAMED_INDEX_PATTERN.fullmatch(name)]
        table = table.drop_columns(index) if index else table
    names = table.column_names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidRow(reason=f"the data has more than one column named {', '.join(twice)}")
    return table


def pandas_to_arrow_table(frame: Any, *, preserve_index: bool | None = None) -> pa.Table:
    """Return a pandas data frame as a table, without its index if `preserve_index` is False.

    Raises:
        InvalidRow: If Arrow has no type for a column or cannot represent a value.
    """
    try:
        return pa.Table.from_pandas(frame, preserve_index=preserve_index)
    except _PANDAS_ERRORS as error:
        name = next((name for name, series in frame.items() if not _is_convertible(series)), None)
        where = "" if name is None else f" column {name} of"
        reason = f"Arrow cannot represent{where} the data frame: {error}"
        raise InvalidRow(reason=reason) from error


def _is_convertible(series: Any) -> bool:
    try:
        pa.array(series, from_pandas=True)
    except _PANDAS_ERRORS:
        return False
    return True


def _check_polars_types(frame: Any) -> None:
    # Polars exports Python objects as their addresses.
    for name, kind in frame.schema.items():
        found = _POLARS_TYPES_WITHOUT_ARROW.search(re.sub(r"'[^']*'", "", str(kind)))
        if found is not None:
            raise InvalidRow(
                reason=f"column {name} has the type {found[0]} of Polars, which Arrow lacks. Cast it"
                " to another type, such as Decimal(38, 0) or String",
            )


def _import_table(data: Any) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    library = type(data).__module__.partition(".")[0]
    if library == "pandas" and hasattr(data, "columns"):
        return pandas_to_arrow_table(data)
    if library == "polars" and hasattr(data, "columns"):
        _check_polars_types(data)
    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data).read_all()
    if hasattr(data, "__arrow_c_array__"):
        return pa.Table.from_batches([pa.record_batch(data)])
    raise TypeError(
        f"insert_arrow takes an object with __arrow_c_stream__, such as a pyarrow.Table or a data "
        f"frame of pandas, Polars or DuckDB; not {python_type_name(data)}"
    )


def combine_small_arrow_chunks(table: pa.Table) -> pa.Table:
    """Combine the chunks of a table if they are small on average, else return the table unchanged."""
    pieces = max((column.num_chunks for column in table.columns), default=0)
    return table if pieces * _MIN_ARROW_CHUNK_ROWS <= table.num_rows else table.combine_chunks()


class ArrowRows(Sequence["Row"]):
    """Rows of a table as dicts (as for `insert_rows`), created on access."""

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
            return _to_row_dicts(self._table)[index]
        return _to_row_dicts(self._table.slice(index, 1))[0]


def _to_row_dicts(table: pa.Table) -> list[Row]:
    if not table.num_columns:
        return [{} for _ in range(table.num_rows)]
    columns = [
        [value for chunk in column.chunks for value in to_python_values(chunk)]
        for column in table.columns
    ]
    names = table.column_names
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


# INT96 timestamps of Parquet. Arrow reads them as nanoseconds, which wrap around outside of 1677 to
# 2262, or as microseconds.


def has_int96(file: pq.ParquetFile) -> bool:
    """Return True if a Parquet file has INT96 timestamps."""
    leaves = file.schema
    return any(leaves.column(number).physical_type == "INT96" for number in range(len(leaves)))


def unwrap_int96(batch: pa.RecordBatch, micros: pa.RecordBatch) -> pa.RecordBatch:
    """Return `batch`, with columns of `micros` in place of those that wrapped around.

    `micros` are the same rows, with INT96 timestamps as microseconds.

    Raises:
        OverflowError: If microseconds would lose digits.
    """
    arrays = map(_unwrap_int96_column, batch.columns, micros.columns)
    return pa.RecordBatch.from_arrays(list(arrays), names=batch.schema.names)


def _unwrap_int96_column(nanos: pa.Array, micros: pa.Array) -> pa.Array:
    if nanos.type == micros.type:
        return nanos
    try:
        micros.cast(nanos.type)
    except pa.ArrowInvalid:
        pass
    else:
        return nanos
    if _has_sub_microseconds(nanos, micros):
        raise OverflowError(
            "a column of INT96 has timestamps beyond 1677 to 2262, and nanoseconds that would be "
            "lost: write the file with microseconds"
        )
    return micros


def _has_sub_microseconds(nanos: pa.Array, micros: pa.Array) -> bool:
    kind = micros.type
    if pa.types.is_timestamp(kind) and nanos.type != kind:
        # Unchecked arithmetic wraps around, too, so the difference is exact.
        thousands = pc.multiply(micros.view(pa.int64()), 1000)
        different = pc.not_equal(pc.subtract(nanos.view(pa.int64()), thousands), 0)
        return bool(pc.any(different).as_py())
    if pa.types.is_map(kind):
        parts = [(nanos.keys, micros.keys), (nanos.items, micros.items)]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        parts = [(nanos.values, micros.values)]
    elif pa.types.is_struct(kind):
        parts = list(zip(nanos.flatten(), micros.flatten(), strict=True))
    else:
        parts = []
    return any(_has_sub_microseconds(*pair) for pair in parts)
