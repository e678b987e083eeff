"""One write task: rows of a DataFrame into native files, in Python, on an executor.

A task may run more than once, also concurrently. Each attempt writes its own files; only files
named by an outcome that reaches the driver are committed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import localcontext
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from snowmelt import failpoints
from snowmelt.errors import InvalidRow, LoadFailed, LoadRefused
from snowmelt.failpoints import Failpoint
from snowmelt.loaders.row_and_reject_files import FileSpool, RowSpool
from snowmelt.schema.conversion.arrow_to_python import parse_arrow_zone, to_python_values
from snowmelt.schema.conversion.column_converter import ColumnConverter
from snowmelt.schema.conversion.timestamp_limits import out_of_range_mask
from snowmelt.schema.conversion.value_rules import make_value_rule
from snowmelt.schema.iceberg_table_form import native_fields, native_schema, to_native_table
from snowmelt.schema.types import (
    DEFAULT_ZONE,
    TIMESTAMP_TYPES,
    Column,
    LogicalType,
    TableSchema,
    to_internal_name,
)
from snowmelt.spark.tables.spark_column_mapping import list_visible_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import tzinfo

    from snowmelt.table.native_file_writer import WrittenFile


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Where tasks write, and which of a DataFrame's columns is which of the table's; picklable.

    `sources` has the place of each native field among the DataFrame's columns, None where it is
    NULL or follows from its column. `zone` is the session's time zone, None where only a task knows it.
    """

    load_id: str
    warehouse_url: str
    folder: str
    schema: TableSchema
    cluster_by: tuple[str, ...]
    sources: tuple[int | None, ...]
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class WriteTaskResult:
    """What one task wrote; picklable."""

    files: tuple[WrittenFile, ...]
    rows: int


def match_columns(
    schema: TableSchema, names: Sequence[str], table: object
) -> tuple[int | None, ...]:
    """Find each native field among columns by name; case counts only where it must.

    Raises:
        LoadRefused: A column is not the table's, is there twice, or is missing and NOT NULL.
    """
    visible = list_visible_columns(schema)
    by_name = {each.name: at for at, each in enumerate(visible)}
    # Of two columns that differ only by case, the second has another name in a query.
    by_own_name = {each.native_name: at for at, each in enumerate(visible)}
    folded = {each.name.lower(): at for at, each in enumerate(visible)}
    places: list[int | None] = [None] * len(visible)
    for place, name in enumerate(names):
        at = by_name.get(name, by_own_name.get(name, folded.get(name.lower())))
        if at is None:
            raise LoadRefused(
                what=f"Column {name}",
                reason=f"table {table} has no such column; it has {format_column_names(schema.columns)}",
            )
        if places[at] is not None:
            raise LoadRefused(
                what=f"Column {name}",
                reason=f"two columns are meant for {visible[at].name} of table {table}",
            )
        places[at] = place
    given = dict(zip((each.native_name for each in visible), places, strict=True))
    lacking = [each for each in schema.columns if not each.nullable and given[each.name] is None]
    if lacking:
        raise LoadRefused(
            what=f"Table {table}",
            reason=f"no value is given for {format_column_names(lacking)}, which must not be NULL",
        )
    for column in schema.columns:
        for part in native_fields(column)[1:]:
            if given[part.name] is not None and given[column.name] is None:
                raise LoadRefused(
                    what=f"Column {part.name}",
                    reason=f"it says more of {column.display_name}, which is not given",
                )
    return tuple(places)


def name_values_by_position(
    schema: TableSchema, columns: Sequence[str] | None, value_count: int, table: object
) -> list[str]:
    """Return the names that columns of an INSERT have by their position.

    Raises:
        LoadRefused: There are more or fewer values than columns, or there is no such column.
    """
    names = (
        [column.name for column in schema.columns]
        if columns is None
        else [_resolve_column_name(schema, name, table) for name in columns]
    )
    if len(names) != value_count:
        raise LoadRefused(
            what=f"INSERT INTO {table}",
            reason=f"{len(names)} columns ({', '.join(names)}) want as many values, "
            f"{value_count} are given",
        )
    return names


def write_native_files(plan: WritePlan, batches: Iterable[pa.RecordBatch]) -> WriteTaskResult:
    """Write batches as native files of the plan's folder, under names of this attempt's own.

    Raises:
        LoadFailed: A value does not fit its column.
        StageUnavailable: The warehouse cannot be written.
    """
    files = FileSpool(plan.warehouse_url, plan.folder, "rows", native_schema(plan.schema))
    spool = RowSpool(files, plan.schema, plan.cluster_by)
    rows = 0
    zone: tzinfo | None = None
    try:
        for batch in batches:
            if batch.num_rows:
                zone = zone or _resolve_timezone(plan, batch.schema)
                spool.add(to_native_rows(plan, batch, zone))
                rows += batch.num_rows
        written = WriteTaskResult(spool.finish(), rows)
    finally:
        files.abort_current_file()
    failpoints.hit_failpoint(Failpoint.LOAD_TASK)
    return written


def to_native_rows(plan: WritePlan, batch: pa.RecordBatch, zone: tzinfo) -> pa.Table:
    """Return a batch in native form; `zone` is that of values that name none.

    Raises:
        LoadFailed: A value does not fit its column.
    """
    arrays: list[pa.Array] = []
    places = iter(plan.sources)
    for column in plan.schema.columns:
        fields = native_fields(column)
        own, *others = [next(places) for _ in fields]
        parts = (
            make_null_column(column, batch.num_rows)
            if own is None
            else cast_column(column, batch.column(own), zone)
        )
        for at, place in enumerate(others, start=1):
            if place is not None:
                parts[at] = cast_companion(column, fields[at].name, batch.column(place))
                check_local_time_range(column, parts)
        arrays += parts
    return pa.Table.from_arrays(arrays, schema=native_schema(plan.schema))


def _resolve_timezone(plan: WritePlan, schema: pa.Schema) -> tzinfo:
    """Return the session's time zone, as far as a task is told it; else UTC.

    Spark hands settings to its tasks if they were set, and names the zone in timestamps that have one.

    Raises:
        LoadFailed: Python has no zone of that name.
    """
    context = TaskContext.get()
    named = plan.zone or (context and context.getLocalProperty("spark.sql.session.timeZone"))
    if not named:
        zones = (field.type.tz for field in schema if pa.types.is_timestamp(field.type))
        named = next((zone for zone in zones if zone is not None), DEFAULT_ZONE)
    found = parse_arrow_zone(named)
    if found is None:
        raise LoadFailed(
            where="spark.sql.session.timeZone",
            reason=f"{named!r} is no zone such as Europe/Berlin or +02:00",
        )
    return found


def _resolve_column_name(schema: TableSchema, name: str, table: object) -> str:
    found: Column | None = schema.column(to_internal_name(name))
    if found is None:
        raise LoadRefused(
            what=f"Column {name}",
            reason=f"table {table} has no such column; it has {format_column_names(schema.columns)}",
        )
    return found.name


# --- Columns of a DataFrame become columns of a table, by the rules of a channel's rows.
#
# Types that say the same are taken over as they are. Everything else goes value by value through
# the rules of `snowmelt.schema.conversion.value_rules`: numbers are rounded half up, texts are read, structs and
# arrays become documents. What does not fit is an error that names the column and the value.

_MICROSECOND_DIGITS = 6
_NANOS_PER_MICRO = 1000
_MAX_INT64_DIGITS = 19
_MAX_OFFSET_MINUTES = 24 * 60
_MAX_SHOWN_CHARACTERS = 60
_VARIANT_PRECISION = 60

FastCast = Callable[[pa.Array, Column], "pa.Array | None"]


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
        raise _make_column_error(column, "it is NOT NULL, and a value is NULL")
    quick = _FAST_CASTS.get(column.kind)
    try:
        found = None if quick is None else quick(array, column)
    except pa.ArrowException:
        found = None
    if found is None:
        return _convert_by_rule(column, array, zone)
    parts = [found, *_make_zero_companions(column, found)]
    # The exact rules reject what is out of range, with a reason.
    return (
        parts if out_of_range_mask(column, parts) is None else _convert_by_rule(column, array, zone)
    )


def cast_companion(column: Column, name: str, array: pa.Array) -> pa.Array:
    """Return nanoseconds or offsets that a DataFrame brings for a column.

    Raises:
        LoadFailed: One is out of range.
    """
    least, most = (
        (0, _NANOS_PER_MICRO - 1)
        if name.endswith("$ns")
        else (-_MAX_OFFSET_MINUTES, _MAX_OFFSET_MINUTES)
    )
    numbers = array.cast(pa.int32())
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] is not None and not least <= bounds["min"] <= bounds["max"] <= most:
        raise _make_column_error(column, f"{name} lies between {least} and {most}")
    return numbers


def check_local_time_range(column: Column, arrays: Sequence[pa.Array]) -> None:
    """Check the local times that a column and the offsets given for it make.

    Raises:
        LoadFailed: One is outside the years 1 to 9999.
    """
    outside = out_of_range_mask(column, arrays)
    if outside is not None:
        place = int(outside.argmax())
        raise _make_column_error(
            column,
            f"the local time of {arrays[0][place]} at an offset of {arrays[-1][place]} minutes is "
            "outside the years 1 to 9999",
        )


def _make_zero_companions(column: Column, values: pa.Array) -> list[pa.Array]:
    zeros = pc.if_else(pc.is_valid(values), pa.scalar(0, pa.int32()), pa.scalar(None, pa.int32()))
    return [zeros] * (len(native_fields(column)) - 1)


# --- types that say the same


def _cast_number(array: pa.Array, column: Column) -> pa.Array | None:
    scale = column.scale or 0
    wanted = pa.decimal128(column.precision or 38, scale)
    if pa.types.is_decimal(array.type):
        return array.cast(wanted)
    if pa.types.is_integer(array.type) and scale <= 38 - _MAX_INT64_DIGITS:
        return array.cast(pa.int64()).cast(pa.decimal128(38, scale)).cast(wanted)
    return None


def _cast_float(array: pa.Array, _column: Column) -> pa.Array | None:
    return array.cast(pa.float64()) if pa.types.is_floating(array.type) else None


def _cast_boolean(array: pa.Array, _column: Column) -> pa.Array | None:
    return array if pa.types.is_boolean(array.type) else None


def _cast_string(array: pa.Array, column: Column) -> pa.Array | None:
    if not pa.types.is_string(array.type):
        return None
    longest = pc.max(pc.utf8_length(array)).as_py() or 0
    heaviest = pc.max(pc.binary_length(array)).as_py() or 0
    fits = longest <= (column.length or 0) and heaviest <= (column.byte_length or 0)
    return array if fits else None


def _cast_binary(array: pa.Array, column: Column) -> pa.Array | None:
    if not pa.types.is_binary(array.type):
        return None
    heaviest = pc.max(pc.binary_length(array)).as_py() or 0
    return array if heaviest <= (column.byte_length or 0) else None


def _cast_date(array: pa.Array, _column: Column) -> pa.Array | None:
    if not pa.types.is_date32(array.type):
        return None
    return array if _has_valid_years(array) else None


def _cast_time(array: pa.Array, column: Column) -> pa.Array | None:
    if not pa.types.is_time64(array.type):
        return None
    per_micro = _NANOS_PER_MICRO if array.type.unit == "ns" else 1
    micros = pc.divide(array.cast(pa.int64()), per_micro)
    return _truncate_to_scale(micros, column).cast(pa.time64("us"))


def _cast_timestamp(array: pa.Array, column: Column) -> pa.Array | None:
    if not pa.types.is_timestamp(array.type) or array.type.unit != "us":
        return None
    zoned = array.type.tz is not None
    if zoned == (column.kind is LogicalType.TIMESTAMP_NTZ) or not _has_valid_years(array):
        return None
    tz = "UTC" if zoned else None
    return _truncate_to_scale(array.cast(pa.int64()), column).cast(pa.timestamp("us", tz))


def _truncate_to_scale(micros: pa.Array, column: Column) -> pa.Array:
    """Drop the digits that a column has not; before 1970, too, towards the past."""
    unit = 10 ** max(0, _MICROSECOND_DIGITS - (column.scale or 0))
    if unit == 1:
        return micros
    rest = pc.subtract(micros, pc.multiply(pc.divide(micros, unit), unit))
    rest = pc.if_else(pc.less(rest, 0), pc.add(rest, unit), rest)
    return pc.subtract(micros, rest)


def _has_valid_years(array: pa.Array) -> bool:
    bounds = pc.min_max(pc.year(array)).as_py()
    return bounds["min"] is None or 1 <= bounds["min"] <= bounds["max"] <= 9999


_FAST_CASTS: dict[LogicalType, FastCast] = {
    LogicalType.FIXED: _cast_number,
    LogicalType.REAL: _cast_float,
    LogicalType.BOOLEAN: _cast_boolean,
    LogicalType.TEXT: _cast_string,
    LogicalType.BINARY: _cast_binary,
    LogicalType.DATE: _cast_date,
    LogicalType.TIME: _cast_time,
    **dict.fromkeys(TIMESTAMP_TYPES, _cast_timestamp),
}


# --- everything else, by the rules of a value


def _convert_by_rule(column: Column, array: pa.Array, zone: tzinfo) -> list[pa.Array]:
    values = _to_python_values(column, array)
    converted, wrong = ColumnConverter(column, zone).convert(values)
    if wrong:
        raise _make_column_error(column, _find_rejection_reason(column, values[wrong[0]], zone))
    alone = TableSchema(1, (column,))
    table = pa.Table.from_arrays([converted], names=[column.name])
    try:
        native = to_native_table(table, alone)
    except InvalidRow as error:
        raise _make_column_error(column, str(error)) from error
    return [part.combine_chunks() for part in native.columns]


def _to_python_values(column: Column, array: pa.Array) -> list[object]:
    try:
        if pa.types.is_struct(array.type) and _is_variant(array.type):
            return _decode_variants(array)
        if pa.types.is_map(array.type):
            return [None if each is None else dict(each) for each in array.to_pylist()]
        if pa.types.is_time(array.type):
            array = array.cast(pa.time64("us"), safe=False)
        if pa.types.is_date(array.type) or pa.types.is_timestamp(array.type):
            return to_python_values(array)
        return list(array.to_pylist())
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise _make_column_error(column, str(error)) from error


def _is_variant(struct_type: pa.StructType) -> bool:
    return {struct_type.field(at).name for at in range(struct_type.num_fields)} == {
        "value",
        "metadata",
    } and all(
        pa.types.is_binary(struct_type.field(at).type) for at in range(struct_type.num_fields)
    )


def _decode_variants(array: pa.Array) -> list[object]:
    # Only here: workers that write no VARIANT need not import it.
    from pyspark.sql.types import VariantVal

    # PySpark makes decimals by arithmetic, which rounds to the context's digits: 28 by default.
    with localcontext(prec=_VARIANT_PRECISION):
        return [
            None if each is None else VariantVal(each["value"], each["metadata"]).toJson("UTC")
            for each in array.to_pylist()
        ]


def _find_rejection_reason(column: Column, value: Any, zone: tzinfo) -> str:
    try:
        make_value_rule(column, zone)(value, 0)
    except InvalidRow as error:
        return str(error.fields.get("reason", error)).rstrip(".")
    return f"the value {str(value)[:_MAX_SHOWN_CHARACTERS]} is refused"


def _make_column_error(column: Column, reason: str) -> LoadFailed:
    return LoadFailed(where=f"Column {column.display_name} ({column.sql_type})", reason=reason)


def make_null_column(column: Column, rows: int) -> list[pa.Array]:
    """Return a column, with its companions, that is NULL throughout."""
    return [pa.nulls(rows, part.type) for part in native_fields(column)]


def format_column_names(columns: Sequence[Column]) -> str:
    """Return names for a sentence."""
    return ", ".join(column.display_name for column in columns)
