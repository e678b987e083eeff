"""Columns of a DataFrame become columns of a table, by the rules of a channel's rows.

Types that say the same are taken over as they are. Everything else goes value by value through
the rules of `snowmelt.schema.values`: numbers are rounded half up, texts are read, structs and
arrays become documents. What does not fit is an error that names the column and the value.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import localcontext
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.errors import InvalidRow, LoadFailed
from snowmelt.schema.arrow_values import python_values
from snowmelt.schema.batches import ColumnConverter
from snowmelt.schema.native import native_columns, to_native
from snowmelt.schema.time_limits import out_of_range
from snowmelt.schema.types import TIMESTAMPS, Column, Kind, TableSchema
from snowmelt.schema.values import rule_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import tzinfo

_MICRO_DIGITS = 6
_NANOS = 1000
_DIGITS_OF_INT64 = 19
_MAX_OFFSET = 24 * 60
_SHOWN = 60
_DECIMAL_DIGITS = 60

Quick = Callable[[pa.Array, Column], "pa.Array | None"]


def cast_column(column: Column, array: pa.Array, zone: tzinfo) -> list[pa.Array]:
    """Return a column in native form, with its companions.

    Args:
        column: Where the values go.
        array: The values.
        zone: The session's, for values of TIMESTAMP_LTZ and TIMESTAMP_TZ that name none.

    Raises:
        LoadFailed: A value does not fit, or is NULL where that is refused.
    """
    if array.null_count and not column.nullable:
        raise _refused(column, "it is NOT NULL, and a value is NULL")
    quick = _QUICK.get(column.kind)
    try:
        found = None if quick is None else quick(array, column)
    except pa.ArrowException:
        found = None
    if found is None:
        return _by_rule(column, array, zone)
    parts = [found, *_companions(column, found)]
    # The exact rules reject what is out of range, with a reason.
    return parts if out_of_range(column, parts) is None else _by_rule(column, array, zone)


def cast_companion(column: Column, name: str, array: pa.Array) -> pa.Array:
    """Return nanoseconds or offsets that a DataFrame brings for a column.

    Raises:
        LoadFailed: One is out of range.
    """
    least, most = (0, _NANOS - 1) if name.endswith("$ns") else (-_MAX_OFFSET, _MAX_OFFSET)
    numbers = array.cast(pa.int32())
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] is not None and not least <= bounds["min"] <= bounds["max"] <= most:
        raise _refused(column, f"{name} lies between {least} and {most}")
    return numbers


def check_local_time(column: Column, parts: Sequence[pa.Array]) -> None:
    """Check the local times that a column and the offsets given for it make.

    Raises:
        LoadFailed: One is outside the years 1 to 9999.
    """
    outside = out_of_range(column, parts)
    if outside is not None:
        place = int(outside.argmax())
        raise _refused(
            column,
            f"the local time of {parts[0][place]} at an offset of {parts[-1][place]} minutes is "
            "outside the years 1 to 9999",
        )


def _companions(column: Column, values: pa.Array) -> list[pa.Array]:
    zeros = pc.if_else(pc.is_valid(values), pa.scalar(0, pa.int32()), pa.scalar(None, pa.int32()))
    return [zeros] * (len(native_columns(column)) - 1)


# --- types that say the same


def _number(array: pa.Array, column: Column) -> pa.Array | None:
    scale = column.scale or 0
    wanted = pa.decimal128(column.precision or 38, scale)
    if pa.types.is_decimal(array.type):
        return array.cast(wanted)
    if pa.types.is_integer(array.type) and scale <= 38 - _DIGITS_OF_INT64:
        return array.cast(pa.int64()).cast(pa.decimal128(38, scale)).cast(wanted)
    return None


def _real(array: pa.Array, _column: Column) -> pa.Array | None:
    return array.cast(pa.float64()) if pa.types.is_floating(array.type) else None


def _boolean(array: pa.Array, _column: Column) -> pa.Array | None:
    return array if pa.types.is_boolean(array.type) else None


def _text(array: pa.Array, column: Column) -> pa.Array | None:
    if not pa.types.is_string(array.type):
        return None
    longest = pc.max(pc.utf8_length(array)).as_py() or 0
    heaviest = pc.max(pc.binary_length(array)).as_py() or 0
    fits = longest <= (column.length or 0) and heaviest <= (column.byte_length or 0)
    return array if fits else None


def _binary(array: pa.Array, column: Column) -> pa.Array | None:
    if not pa.types.is_binary(array.type):
        return None
    heaviest = pc.max(pc.binary_length(array)).as_py() or 0
    return array if heaviest <= (column.byte_length or 0) else None


def _date(array: pa.Array, _column: Column) -> pa.Array | None:
    if not pa.types.is_date32(array.type):
        return None
    return array if _has_years(array) else None


def _clock(array: pa.Array, column: Column) -> pa.Array | None:
    if not pa.types.is_time64(array.type):
        return None
    per_micro = _NANOS if array.type.unit == "ns" else 1
    micros = pc.divide(array.cast(pa.int64()), per_micro)
    return _floored(micros, column).cast(pa.time64("us"))


def _moment(array: pa.Array, column: Column) -> pa.Array | None:
    if not pa.types.is_timestamp(array.type) or array.type.unit != "us":
        return None
    zoned = array.type.tz is not None
    if zoned == (column.kind is Kind.TIMESTAMP_NTZ) or not _has_years(array):
        return None
    tz = "UTC" if zoned else None
    return _floored(array.cast(pa.int64()), column).cast(pa.timestamp("us", tz))


def _floored(micros: pa.Array, column: Column) -> pa.Array:
    """Drop the digits that a column has not; before 1970, too, towards the past."""
    unit = 10 ** max(0, _MICRO_DIGITS - (column.scale or 0))
    if unit == 1:
        return micros
    rest = pc.subtract(micros, pc.multiply(pc.divide(micros, unit), unit))
    rest = pc.if_else(pc.less(rest, 0), pc.add(rest, unit), rest)
    return pc.subtract(micros, rest)


def _has_years(array: pa.Array) -> bool:
    bounds = pc.min_max(pc.year(array)).as_py()
    return bounds["min"] is None or 1 <= bounds["min"] <= bounds["max"] <= 9999


_QUICK: dict[Kind, Quick] = {
    Kind.FIXED: _number,
    Kind.REAL: _real,
    Kind.BOOLEAN: _boolean,
    Kind.TEXT: _text,
    Kind.BINARY: _binary,
    Kind.DATE: _date,
    Kind.TIME: _clock,
    **dict.fromkeys(TIMESTAMPS, _moment),
}


# --- everything else, by the rules of a value


def _by_rule(column: Column, array: pa.Array, zone: tzinfo) -> list[pa.Array]:
    values = _python_values(column, array)
    converted, wrong = ColumnConverter(column, zone).convert(values)
    if wrong:
        raise _refused(column, _reason(column, values[wrong[0]], zone))
    alone = TableSchema(1, (column,))
    table = pa.Table.from_arrays([converted], names=[column.name])
    try:
        native = to_native(table, alone)
    except InvalidRow as error:
        raise _refused(column, str(error)) from error
    return [part.combine_chunks() for part in native.columns]


def _python_values(column: Column, array: pa.Array) -> list[object]:
    try:
        if pa.types.is_struct(array.type) and _is_variant(array.type):
            return _variants(array)
        if pa.types.is_map(array.type):
            return [None if each is None else dict(each) for each in array.to_pylist()]
        if pa.types.is_time(array.type):
            array = array.cast(pa.time64("us"), safe=False)
        if pa.types.is_date(array.type) or pa.types.is_timestamp(array.type):
            return python_values(array)
        return list(array.to_pylist())
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise _refused(column, str(error)) from error


def _is_variant(kind: pa.StructType) -> bool:
    return {kind.field(at).name for at in range(kind.num_fields)} == {"value", "metadata"} and all(
        pa.types.is_binary(kind.field(at).type) for at in range(kind.num_fields)
    )


def _variants(array: pa.Array) -> list[object]:
    # Only here: workers that write no VARIANT need not import it.
    from pyspark.sql.types import VariantVal

    # PySpark makes decimals by arithmetic, which rounds to the context's digits: 28 by default.
    with localcontext(prec=_DECIMAL_DIGITS):
        return [
            None if each is None else VariantVal(each["value"], each["metadata"]).toJson("UTC")
            for each in array.to_pylist()
        ]


def _reason(column: Column, value: Any, zone: tzinfo) -> str:
    try:
        rule_of(column, zone)(value, 0)
    except InvalidRow as error:
        return str(error.fields.get("reason", error)).rstrip(".")
    return f"the value {str(value)[:_SHOWN]} is refused"


def _refused(column: Column, reason: str) -> LoadFailed:
    return LoadFailed(where=f"Column {column.display_name} ({column.sql_type})", reason=reason)


def null_column(column: Column, rows: int) -> list[pa.Array]:
    """Return a column, with its companions, that is NULL throughout."""
    return [pa.nulls(rows, part.type) for part in native_columns(column)]


def column_names(columns: Sequence[Column]) -> str:
    """Return names for a sentence."""
    return ", ".join(column.display_name for column in columns)
