"""Write task: rows of a DataFrame into native files, in Python, on an executor.

A task may run more than once, also concurrently. Each attempt writes its own files; only files
named by an outcome that reaches the driver are committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from decimal import localcontext
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from snowmelt import failpoints
from snowmelt.errors import InvalidRow, LoadFailed, LoadRefused
from snowmelt.failpoints import Failpoint
from snowmelt.loaders.row_and_reject_files import FileSpool, RowSpool
from snowmelt.schema.conversion.arrow_input import convert_arrow_array
from snowmelt.schema.conversion.arrow_to_python import parse_arrow_zone, to_python_values
from snowmelt.schema.conversion.column_converter import ColumnConverter
from snowmelt.schema.conversion.timestamps import out_of_range_mask
from snowmelt.schema.conversion.value_rules import make_value_rule
from snowmelt.schema.iceberg_table_form import native_fields, native_schema, to_native_table
from snowmelt.schema.types import (
    DEFAULT_ZONE,
    Column,
    LogicalType,
    TableSchema,
    to_internal_name,
)
from snowmelt.spark.tables.spark_column_mapping import list_visible_columns
from snowmelt.table.native_file_writer import WrittenFile


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Target folder and column mapping of a write; picklable.

    `sources` has the index of each native field among the DataFrame's columns. None means that the field
    is NULL or is derived from its column. `zone` is the session's time zone. None means that the task
    determines it.
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
    """Files and row count of one task; picklable."""

    files: tuple[WrittenFile, ...]
    rows: int


def match_columns(
    schema: TableSchema, names: Sequence[str], table: object
) -> tuple[int | None, ...]:
    """Return the index of each native field among the names.

    Exact names take precedence over names that differ in case.

    Raises:
        LoadRefused: If a name is unknown or duplicate, or a NOT NULL column is missing.
    """
    visible = list_visible_columns(schema)
    by_name = {each.name: at for at, each in enumerate(visible)}
    # If two columns differ only in case, the second has another name in queries.
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
    """Return the column names of an INSERT's values, by position.

    Raises:
        LoadRefused: If the number of values differs from the columns, or a column does not exist.
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
    """Write batches as native files in the plan's folder, under names unique to this attempt.

    Raises:
        LoadFailed: If a value does not fit its column.
        StageUnavailable: If the warehouse is not writable.
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
    """Convert a batch to native form. `zone` applies to values without a time zone.

    Raises:
        LoadFailed: If a value does not fit its column.
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
    """Return the session's time zone if the task can determine it, else UTC.

    Spark passes explicitly set settings to its tasks, and includes the zone in zoned timestamp types.

    Raises:
        LoadFailed: If Python does not know the zone.
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


# --- Conversion of a DataFrame's columns, with the same rules as rows of a channel.

_MAX_OFFSET_MINUTES = 24 * 60
_MAX_SHOWN_CHARACTERS = 60
_VARIANT_PRECISION = 60


def cast_column(column: Column, array: pa.Array, zone: tzinfo) -> list[pa.Array]:
    """Return a column in native form, with its companions.

    Args:
        column: The target column.
        array: The values.
        zone: The session's zone, for TIMESTAMP_LTZ and TIMESTAMP_TZ values without a zone.

    Raises:
        LoadFailed: If a value does not fit, or is NULL in a NOT NULL column.
    """
    if array.null_count and not column.nullable:
        raise _make_column_error(column, "it is NOT NULL, and a value is NULL")
    kind = array.type
    if pa.types.is_struct(kind) and _is_variant(kind):
        array = pa.array(_decode_variants(array), pa.string())
    elif pa.types.is_timestamp(kind) and kind.tz and column.kind is LogicalType.TIMESTAMP_TZ:
        # Spark timestamps do not store an offset.
        array = array.cast(pa.timestamp(kind.unit, "UTC"))
    try:
        converted, wrong = convert_arrow_array(ColumnConverter(column, zone), array)
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise _make_column_error(column, str(error)) from error
    if wrong:
        [value] = to_python_values(array.slice(wrong[0], 1))
        raise _make_column_error(column, _find_rejection_reason(column, value, zone))
    try:
        native = to_native_table(
            pa.table([converted], names=[column.name]), TableSchema(1, (column,))
        )
    except InvalidRow as error:
        raise _make_column_error(column, str(error)) from error
    return [part.combine_chunks() for part in native.columns]


def cast_companion(column: Column, name: str, array: pa.Array) -> pa.Array:
    """Return a companion column of nanoseconds or offsets that the DataFrame supplies.

    Raises:
        LoadFailed: If a value is out of range.
    """
    least, most = (0, 999) if name.endswith("$ns") else (-_MAX_OFFSET_MINUTES, _MAX_OFFSET_MINUTES)
    numbers = array.cast(pa.int32())
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] is not None and not least <= bounds["min"] <= bounds["max"] <= most:
        raise _make_column_error(column, f"{name} lies between {least} and {most}")
    return numbers


def check_local_time_range(column: Column, arrays: Sequence[pa.Array]) -> None:
    """Verify the local times that a column and its supplied offsets result in.

    Raises:
        LoadFailed: If a local time is outside the years 1 to 9999.
    """
    outside = out_of_range_mask(column, arrays)
    if outside is not None:
        place = int(outside.argmax())
        raise _make_column_error(
            column,
            f"the local time of {arrays[0][place]} at an offset of {arrays[-1][place]} minutes is "
            "outside the years 1 to 9999",
        )


def _is_variant(struct_type: pa.StructType) -> bool:
    return {struct_type.field(at).name for at in range(struct_type.num_fields)} == {
        "value",
        "metadata",
    } and all(
        pa.types.is_binary(struct_type.field(at).type) for at in range(struct_type.num_fields)
    )


def _decode_variants(array: pa.Array) -> list[object]:
    # Imported here because only workers that write VARIANT need it.
    from pyspark.sql.types import VariantVal

    # PySpark computes decimals, which rounds to the context's precision, 28 digits by default.
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
    return f"the value {str(value)[:_MAX_SHOWN_CHARACTERS]} is invalid"


def _make_column_error(column: Column, reason: str) -> LoadFailed:
    return LoadFailed(where=f"Column {column.display_name} ({column.sql_type})", reason=reason)


def make_null_column(column: Column, rows: int) -> list[pa.Array]:
    """Return an all-NULL column with its companions."""
    return [pa.nulls(rows, part.type) for part in native_fields(column)]


def format_column_names(columns: Sequence[Column]) -> str:
    """Return display names, separated by commas."""
    return ", ".join(column.display_name for column in columns)
