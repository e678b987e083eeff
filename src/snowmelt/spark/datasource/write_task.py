"""Write task: writes rows of a DataFrame to native files, in Python on an executor.

A task may run more than once, even concurrently. Each attempt writes its own files. Only the files
of results that reach the driver are committed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from decimal import localcontext

import pyarrow as pa
from pyspark import TaskContext

from snowmelt import failpoints
from snowmelt.errors import LoadFailed, LoadRefused
from snowmelt.failpoints import Failpoint
from snowmelt.loaders.arrow_conversion import convert_to_native, format_column_names
from snowmelt.loaders.row_and_reject_files import FileSpool, RowSpool
from snowmelt.schema.conversion.arrow_to_python import parse_arrow_zone
from snowmelt.schema.iceberg_table_form import native_fields, native_schema
from snowmelt.schema.types import (
    DEFAULT_ZONE,
    Column,
    TableSchema,
    to_internal_name,
)
from snowmelt.spark.tables.spark_column_mapping import list_visible_columns
from snowmelt.table.native_file_writer import WrittenFile


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Target folder and column mapping of a write. Picklable.

    `sources` has, for each native field, the index of its DataFrame column. None: the field has the
    default of its column, or is derived from it. `started_at` is the default CURRENT_TIMESTAMP. `zone` is
    the session's time zone. None: the task determines it.
    """

    load_id: str
    warehouse_url: str
    folder: str
    schema: TableSchema
    cluster_by: tuple[str, ...]
    sources: tuple[int | None, ...]
    started_at: dt.datetime
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class WriteTaskResult:
    """Files and row count of one task. Picklable."""

    files: tuple[WrittenFile, ...]
    rows: int


def match_columns(
    schema: TableSchema, names: Sequence[str], table: object
) -> tuple[int | None, ...]:
    """Return, for each native field, the index of its name in `names`.

    An exact name takes precedence over a name that differs only in case.

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
                reason=f"two columns match {visible[at].name} of table {table}",
            )
        places[at] = place
    given = dict(zip((each.native_name for each in visible), places, strict=True))
    lacking = [
        each
        for each in schema.columns
        if not each.nullable and each.default is None and given[each.name] is None
    ]
    if lacking:
        raise LoadRefused(
            what=f"Table {table}",
            reason=f"no value for {format_column_names(lacking)}, which must not be NULL",
        )
    for column in schema.columns:
        for part in native_fields(column)[1:]:
            if given[part.name] is not None and given[column.name] is None:
                raise LoadRefused(
                    what=f"Column {part.name}",
                    reason=f"it is a companion of {column.display_name}, which has no value",
                )
    return tuple(places)


def name_values_by_position(
    schema: TableSchema, columns: Sequence[str] | None, value_count: int, table: object
) -> list[str]:
    """Return the column name of each value of an INSERT.

    Raises:
        LoadRefused: If the number of values differs from the columns, or a column does not exist.
    """
    names = _list_target_names(schema, columns, table)
    if len(names) != value_count:
        raise LoadRefused(
            what=f"INSERT INTO {table}",
            reason=f"expected {len(names)} values for the columns {', '.join(names)}, got "
            f"{value_count}",
        )
    return names


def name_query_columns(
    schema: TableSchema, columns: Sequence[str] | None, outputs: Sequence[str], table: object
) -> list[str]:
    """Return the column or companion of the table for each column of the query of an INSERT.

    If the query has more columns than the INSERT, a column `c$ns` or `c$tz` right after `c` is a
    companion, as in `SELECT *`.

    Raises:
        LoadRefused: If the number of values differs from the columns, or a column does not exist.
    """
    names = iter(_list_target_names(schema, columns, table))
    found: list[str] = []
    companions: dict[str, str] = {}
    for output in outputs:
        if output.lower() in companions:
            found.append(companions.pop(output.lower()))
            continue
        name = next(names, None)
        if name is None:
            break
        found.append(name)
        column = schema.column(name)
        companions = {
            f"{output}{field.name.removeprefix(name)}".lower(): field.name
            for field in (() if column is None else native_fields(column)[1:])
        }
    is_complete = len(found) == len(outputs) and next(names, None) is None
    return found if is_complete else name_values_by_position(schema, columns, len(outputs), table)


def _list_target_names(
    schema: TableSchema, columns: Sequence[str] | None, table: object
) -> list[str]:
    if columns is None:
        return [column.name for column in schema.columns]
    return [_resolve_column_name(schema, name, table) for name in columns]


class NativeRowWriter:
    """Writer of batches to native files in a plan's folder. The names are unique to this attempt."""

    def __init__(self, plan: WritePlan) -> None:
        """Prepare a writer. It creates its first file when it has a row group."""
        self._plan = plan
        self._files = FileSpool(plan.warehouse_url, plan.folder, "rows", native_schema(plan.schema))
        self._spool = RowSpool(self._files, plan.schema, plan.cluster_by)
        self._rows = 0
        self._zone: tzinfo | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Convert and add rows.

        Raises:
            LoadFailed: If a value does not fit its column.
            StageUnavailable: If the warehouse is not writable.
        """
        if not batch.num_rows:
            return
        self._zone = self._zone or _resolve_timezone(self._plan, batch.schema)
        rows = convert_to_native(
            self._plan.schema,
            self._plan.sources,
            decode_variant_columns(batch),
            self._zone,
            self._plan.started_at,
        )
        self._spool.add(rows)
        self._rows += batch.num_rows

    def finish(self) -> WriteTaskResult:
        """Close the last file and return the files.

        Raises:
            StageUnavailable: If the warehouse is not writable.
        """
        return WriteTaskResult(self._spool.finish(), self._rows)

    def abort_current_file(self) -> None:
        """Delete the unfinished file, if there is one."""
        self._files.abort_current_file()


def write_native_files(plan: WritePlan, batches: Iterable[pa.RecordBatch]) -> WriteTaskResult:
    """Write batches as native files in the plan's folder.

    Raises:
        LoadFailed: If a value does not fit its column.
        StageUnavailable: If the warehouse is not writable.
    """
    writer = NativeRowWriter(plan)
    try:
        for batch in batches:
            writer.add(batch)
        written = writer.finish()
    finally:
        writer.abort_current_file()
    failpoints.hit_failpoint(Failpoint.LOAD_TASK)
    return written


def _resolve_timezone(plan: WritePlan, schema: pa.Schema) -> tzinfo:
    """Return the session's time zone if the task can determine it, else UTC.

    A task can determine the zone if Spark's configuration sets it, or if a column has a zoned
    timestamp type.

    Raises:
        LoadFailed: If Python has no zone of this name.
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
            reason=f"{named!r} is not a time zone such as Europe/Berlin or +02:00",
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


_VARIANT_PRECISION = 60


def decode_variant_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with Spark's VARIANT columns as JSON texts."""
    for at, field in enumerate(batch.schema):
        if pa.types.is_struct(field.type) and _is_variant(field.type):
            texts = pa.array(_decode_variants(batch.column(at)), pa.string())
            batch = batch.set_column(at, field.name, texts)
    return batch


def _is_variant(struct_type: pa.StructType) -> bool:
    return {struct_type.field(at).name for at in range(struct_type.num_fields)} == {
        "value",
        "metadata",
    } and all(
        pa.types.is_binary(struct_type.field(at).type) for at in range(struct_type.num_fields)
    )


def _decode_variants(array: pa.Array) -> list[object]:
    # Import late: only workers that write VARIANT need it.
    from pyspark.sql.types import VariantVal

    # Raise the precision: PySpark rounds decimals to the precision of the context, by default 28
    # digits.
    with localcontext(prec=_VARIANT_PRECISION):
        return [
            None if each is None else VariantVal(each["value"], each["metadata"]).toJson("UTC")
            for each in array.to_pylist()
        ]
