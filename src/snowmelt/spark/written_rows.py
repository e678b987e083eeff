"""One task's rows of a DataFrame into native files, in Python, on an executor.

It may run more than once, also at the same time; each attempt writes files of its own, and only
those that its outcome names, where that arrives, are committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext

from snowmelt import faults
from snowmelt.bulk.spool import FileSpool, RowSpool
from snowmelt.errors import LoadFailed, LoadRefused
from snowmelt.faults import Point
from snowmelt.schema.arrow_values import zone_of
from snowmelt.schema.compatibility import DEFAULT_ZONE
from snowmelt.schema.native import native_columns, native_schema
from snowmelt.schema.types import internal_name
from snowmelt.spark.casting import (
    cast_column,
    cast_companion,
    check_local_time,
    column_names,
    null_column,
)
from snowmelt.spark.visible import visible_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import tzinfo

    from snowmelt.schema.types import Column, TableSchema
    from snowmelt.table.native import WrittenFile


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
class Written:
    """What one task wrote; picklable."""

    files: tuple[WrittenFile, ...]
    rows: int


def matched(schema: TableSchema, names: Sequence[str], table: object) -> tuple[int | None, ...]:
    """Find each native field among columns by name; case counts only where it must.

    Raises:
        LoadRefused: A column is not the table's, is there twice, or is missing and NOT NULL.
    """
    visible = visible_columns(schema)
    by_name = {each.name: at for at, each in enumerate(visible)}
    # Of two columns that differ only by case, the second has another name in a query.
    by_own_name = {each.stored: at for at, each in enumerate(visible)}
    folded = {each.name.lower(): at for at, each in enumerate(visible)}
    places: list[int | None] = [None] * len(visible)
    for place, name in enumerate(names):
        at = by_name.get(name, by_own_name.get(name, folded.get(name.lower())))
        if at is None:
            raise LoadRefused(
                what=f"Column {name}",
                reason=f"table {table} has no such column; it has {column_names(schema.columns)}",
            )
        if places[at] is not None:
            raise LoadRefused(
                what=f"Column {name}",
                reason=f"two columns are meant for {visible[at].name} of table {table}",
            )
        places[at] = place
    given = dict(zip((each.stored for each in visible), places, strict=True))
    lacking = [each for each in schema.columns if not each.nullable and given[each.name] is None]
    if lacking:
        raise LoadRefused(
            what=f"Table {table}",
            reason=f"no value is given for {column_names(lacking)}, which must not be NULL",
        )
    for column in schema.columns:
        for part in native_columns(column)[1:]:
            if given[part.name] is not None and given[column.name] is None:
                raise LoadRefused(
                    what=f"Column {part.name}",
                    reason=f"it says more of {column.display_name}, which is not given",
                )
    return tuple(places)


def by_position(
    schema: TableSchema, columns: Sequence[str] | None, count: int, table: object
) -> list[str]:
    """Return the names that columns of an INSERT have by their position.

    Raises:
        LoadRefused: There are more or fewer values than columns, or there is no such column.
    """
    names = (
        [column.name for column in schema.columns]
        if columns is None
        else [_internal(schema, name, table) for name in columns]
    )
    if len(names) != count:
        raise LoadRefused(
            what=f"INSERT INTO {table}",
            reason=f"{len(names)} columns ({', '.join(names)}) want as many values, "
            f"{count} are given",
        )
    return names


def write_rows(plan: WritePlan, batches: Iterable[pa.RecordBatch]) -> Written:
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
                zone = zone or _zone_of(plan, batch.schema)
                spool.add(native_rows(plan, batch, zone))
                rows += batch.num_rows
        written = Written(spool.finish(), rows)
    finally:
        files.abort()
    faults.point(Point.LOAD_TASK)
    return written


def native_rows(plan: WritePlan, batch: pa.RecordBatch, zone: tzinfo) -> pa.Table:
    """Return a batch in native form; `zone` is that of values that name none.

    Raises:
        LoadFailed: A value does not fit its column.
    """
    arrays: list[pa.Array] = []
    places = iter(plan.sources)
    for column in plan.schema.columns:
        fields = native_columns(column)
        own, *others = [next(places) for _ in fields]
        parts = (
            null_column(column, batch.num_rows)
            if own is None
            else cast_column(column, batch.column(own), zone)
        )
        for at, place in enumerate(others, start=1):
            if place is not None:
                parts[at] = cast_companion(column, fields[at].name, batch.column(place))
                check_local_time(column, parts)
        arrays += parts
    return pa.Table.from_arrays(arrays, schema=native_schema(plan.schema))


def _zone_of(plan: WritePlan, schema: pa.Schema) -> tzinfo:
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
    found = zone_of(named)
    if found is None:
        raise LoadFailed(
            where="spark.sql.session.timeZone",
            reason=f"{named!r} is no zone such as Europe/Berlin or +02:00",
        )
    return found


def _internal(schema: TableSchema, name: str, table: object) -> str:
    found: Column | None = schema.column(internal_name(name))
    if found is None:
        raise LoadRefused(
            what=f"Column {name}",
            reason=f"table {table} has no such column; it has {column_names(schema.columns)}",
        )
    return found.name
