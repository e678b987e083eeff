"""Options of the data source `snowmelt`: table, columns, conditions, time, integers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from pyspark.sql import types as st

from snowmelt.clock import SystemClock
from snowmelt.errors import ColumnNotFound, LoadRefused, Unsupported
from snowmelt.schema.types import LogicalType, TableName, TableSchema
from snowmelt.spark.datasource.catalog_connection import SECRET_CATALOG
from snowmelt.spark.sql.cursor import parse_dotted_name
from snowmelt.spark.tables.partition import ReadShape, list_needed_columns
from snowmelt.spark.tables.spark_column_mapping import (
    VisibleColumn,
    list_visible_columns,
    quote_identifier,
)
from snowmelt.table.pruning import Predicate
from snowmelt.table.snapshot import TableSnapshot

FORMAT = "snowmelt"
READ_OPTIONS = frozenset({"where", "columns", "snapshot", "as_of"})
STREAM_OPTIONS = frozenset(
    {"where", "columns", "startingOffset", "maxRowsPerTrigger", "maxChunksPerTrigger"}
)
LOCATION_OPTIONS = frozenset(
    {"data_dir", "catalog", SECRET_CATALOG, "stage", "warehouse", "keys", "role", "table", "path"}
)
_FULL_NAME_PARTS = 3
# Tolerance for future times: the clock of the user's machine may be ahead.
_MAX_CLOCK_SKEW = dt.timedelta(minutes=1)


def check_options(options: Mapping[str, str], supported: frozenset[str], operation: str) -> None:
    """Reject unknown options.

    Raises:
        LoadRefused: If an option is unknown.
    """
    allowed = {name.lower() for name in supported | LOCATION_OPTIONS}
    unknown = sorted(name for name in options if name.lower() not in allowed)
    if unknown:
        names = ", ".join(sorted(supported | LOCATION_OPTIONS - {"path"}))
        raise LoadRefused(
            what=f"Option {', '.join(unknown)}",
            reason=f"{operation} with the format {FORMAT} has no such option. Valid options: {names}",
        )


def requested_table(options: Mapping[str, str]) -> TableName:
    """Return the table name that the options contain.

    Raises:
        LoadRefused: If the options do not contain a full table name.
    """
    text = options.get("table") or options.get("path") or ""
    parts = parse_dotted_name(text)
    if len(parts) != _FULL_NAME_PARTS:
        raise LoadRefused(
            what=f"Table {text}" if text else f"Format {FORMAT}",
            reason="set the option `table` to a full name: database.schema.table",
        )
    return TableName(*parts)


def to_spark_schema(
    schema: TableSchema, column_list: str | None = None, *, table: object = ""
) -> st.StructType:
    """Return the Spark schema of a table's visible columns, or of the columns in `column_list`.

    Raises:
        ColumnNotFound: If a column does not exist.
    """
    visible = list_visible_columns(schema)
    if column_list is not None:
        visible = [
            _find_visible_column(visible, name, table) for name in _parse_column_list(column_list)
        ]
    return st.StructType(
        [st.StructField(each.name, _find_spark_type(each), True) for each in visible]
    )


def make_read_shape(
    snapshot: TableSnapshot, requested_schema: st.StructType, predicates: Sequence[Predicate]
) -> ReadShape:
    """Build the read shape of a snapshot for a schema that a session requested.

    Raises:
        ColumnNotFound: If a column does not exist or was dropped.
    """
    schema, name = snapshot.table.schema, snapshot.table.name
    visible = list_visible_columns(schema)
    chosen = [_find_visible_column(visible, field.name, name) for field in requested_schema.fields]
    columns = list_needed_columns([each.column.name for each in chosen], predicates)
    return ReadShape(
        table=str(name),
        schema=schema,
        fields=tuple(each.native_name for each in chosen),
        columns=columns,
        predicates=tuple(predicates),
        deadline=snapshot.deadline,
    )


def parse_where_option(text: str | None, schema: TableSchema) -> tuple[Predicate, ...]:
    """Parse the option `where`. Times without an offset are in UTC.

    Raises:
        Unsupported: If a condition cannot be evaluated exactly as Spark would.
    """
    if not text:
        return ()
    # Import sqlglot only for a condition: each of Spark's planning processes imports this module.
    from snowmelt.spark.sql.predicates import extract_exact_predicates
    from snowmelt.spark.sql.table_references import parse_query

    query = parse_query(f"SELECT * FROM a.b.c WHERE {text}")
    columns = {
        each.name.lower(): None if each.is_companion else each.column
        for each in list_visible_columns(schema)
    }
    if len(query.references) != 1 or query.tree is None:
        raise Unsupported(
            what=f"where = {text}", instead="it is not a condition on the rows of one table"
        )
    return tuple(extract_exact_predicates(query, query.references[0], columns))


def requested_time(text: str) -> dt.datetime:
    """Parse the option `as_of`. A time without an offset is in UTC.

    Raises:
        LoadRefused: If the text is not a time, or the time is more than a minute in the future.
    """
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise LoadRefused(
            what=f"as_of = {text}", reason="write a time as 2026-01-31T10:00:00+00:00"
        ) from error
    moment = found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)
    if moment > SystemClock().now() + _MAX_CLOCK_SKEW:
        raise LoadRefused(
            what=f"as_of = {text}", reason="it is in the future; a time without an offset is in UTC"
        )
    return moment


def parse_integer_option(options: Mapping[str, str], name: str, *, minimum: int = 0) -> int | None:
    """Parse an integer option, or return None if it is missing.

    Raises:
        LoadRefused: If the text is not an integer or is less than `minimum`.
    """
    text = options.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < minimum:
        raise LoadRefused(
            what=f"{name} = {text}", reason=f"expected an integer of at least {minimum}"
        )
    return int(text)


def _find_spark_type(visible: VisibleColumn) -> st.DataType:
    if visible.column.kind is LogicalType.TIME and not visible.is_companion:
        return st.TimeType(min(visible.column.scale or 0, 6))
    return visible.raw_type


def _parse_column_list(text: str) -> list[str]:
    names = parse_dotted_name(text.replace(",", "."))
    if not names:
        raise LoadRefused(what=f"columns = {text}", reason="write names with commas between them")
    return list(names)


def _find_visible_column(
    visible: Sequence[VisibleColumn], name: str, table: object
) -> VisibleColumn:
    exact = [each for each in visible if each.name == name]
    found = exact or [each for each in visible if each.name.lower() == name.lower()]
    if not found:
        raise ColumnNotFound(
            f"Table {table} has no column {quote_identifier(name)}.", column=name, table=table
        )
    return found[0]
