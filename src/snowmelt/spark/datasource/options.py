"""What options of the data source `snowmelt` ask for: a table, columns, rows, an instant."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import types as st

from snowmelt.clock import SystemClock
from snowmelt.errors import ColumnNotFound, LoadRefused, Unsupported
from snowmelt.schema.types import LogicalType, TableName
from snowmelt.spark.datasource.connection import SECRET_CATALOG
from snowmelt.spark.datasource.partition import Shape, needed
from snowmelt.spark.sql.predicates import exact_predicates
from snowmelt.spark.sql.query import name_of, read_query
from snowmelt.spark.tables.visible_columns import VisibleColumn, quoted, visible_columns
from snowmelt.table.pruning import prune_chunks, prune_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from snowmelt.catalog.streaming.chunks import ChunkRecord
    from snowmelt.schema.types import TableSchema
    from snowmelt.table.iceberg import NativeFile
    from snowmelt.table.pruning import Predicate
    from snowmelt.table.snapshot import TableSnapshot

FORMAT = "snowmelt"
PLACES = frozenset(
    {"data_dir", "catalog", SECRET_CATALOG, "stage", "warehouse", "keys", "role", "table", "path"}
)
_PARTS = 3
# Whoever says "now" may be ahead of this machine.
_CLOCKS_APART = dt.timedelta(minutes=1)


def check_options(options: Mapping[str, str], known: frozenset[str], doing: str) -> None:
    """Refuse options that nobody would look at.

    Raises:
        LoadRefused: One of them is not known.
    """
    allowed = {name.lower() for name in known | PLACES}
    unknown = sorted(name for name in options if name.lower() not in allowed)
    if unknown:
        names = ", ".join(sorted(known | PLACES - {"path"}))
        raise LoadRefused(
            what=f"Option {', '.join(unknown)}",
            reason=f"{doing} with the format {FORMAT} knows only {names}",
        )


def table_asked(options: Mapping[str, str]) -> TableName:
    """Return the table that options name.

    Raises:
        LoadRefused: They name none, or not in full.
    """
    text = options.get("table") or options.get("path") or ""
    parts = name_of(text)
    if len(parts) != _PARTS:
        raise LoadRefused(
            what=f"Table {text}" if text else f"Format {FORMAT}",
            reason="give the option `table`, in full: database.schema.table",
        )
    return TableName(*parts)


def spark_schema(
    schema: TableSchema, chosen: str | None = None, *, table: object = ""
) -> st.StructType:
    """Return a table's visible columns, or those of a list of names, as the format has them.

    Raises:
        ColumnNotFound: There is no column of this name.
    """
    visible = visible_columns(schema)
    if chosen is not None:
        visible = [_named(visible, name, table) for name in _listed(chosen)]
    return st.StructType([st.StructField(each.name, _type(each), True) for each in visible])


def shape_of(
    snapshot: TableSnapshot, wanted: st.StructType, predicates: Sequence[Predicate]
) -> Shape:
    """Return how rows of a snapshot are shaped for a schema that a session holds.

    Raises:
        ColumnNotFound: A column is not there, or no longer.
    """
    schema, name = snapshot.table.schema, snapshot.table.name
    visible = visible_columns(schema)
    chosen = [_named(visible, field.name, name) for field in wanted.fields]
    columns = needed([each.column.name for each in chosen], predicates)
    return Shape(
        table=str(name),
        schema=schema,
        fields=tuple(each.stored for each in chosen),
        columns=columns,
        predicates=tuple(predicates),
        deadline=snapshot.deadline,
    )


def conditions(text: str | None, schema: TableSchema) -> tuple[Predicate, ...]:
    """Return what the option `where` says; times without an offset are in UTC.

    Raises:
        Unsupported: A condition is none that is compared here exactly as Spark would.
    """
    if not text:
        return ()
    query = read_query(f"SELECT * FROM a.b.c WHERE {text}")
    columns = {
        each.name.lower(): None if each.is_companion else each.column
        for each in visible_columns(schema)
    }
    if len(query.references) != 1 or query.tree is None:
        raise Unsupported(what=f"where = {text}", instead="it is no condition on one table's rows")
    return tuple(exact_predicates(query, query.references[0], columns))


@dataclass(frozen=True, slots=True)
class Pruned:
    """Files and chunks that can hold rows which conditions select."""

    files: list[NativeFile]
    chunks: list[ChunkRecord]


def pruned(
    snapshot: TableSnapshot,
    files: Iterable[NativeFile],
    chunks: Iterable[ChunkRecord],
    predicates: Sequence[Predicate],
) -> Pruned:
    """Leave out what statistics say that no condition needs."""
    schema = snapshot.table.schema
    return Pruned(
        prune_files(files, schema, predicates),
        prune_chunks(chunks, schema, snapshot.schemas, predicates),
    )


def moment_asked(text: str) -> dt.datetime:
    """Return the instant that the option `as_of` names; without an offset it is UTC.

    Raises:
        LoadRefused: It is no time, or one to come.
    """
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise LoadRefused(
            what=f"as_of = {text}", reason="write a time as 2026-01-31T10:00:00+00:00"
        ) from error
    moment = found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)
    if moment > SystemClock().now() + _CLOCKS_APART:
        raise LoadRefused(
            what=f"as_of = {text}", reason="it lies in the future; a time without an offset is UTC"
        )
    return moment


def number_asked(options: Mapping[str, str], name: str, *, least: int = 0) -> int | None:
    """Return an option that is a whole number, None where it is not given.

    Raises:
        LoadRefused: It is none, or too small.
    """
    text = options.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < least:
        raise LoadRefused(what=f"{name} = {text}", reason=f"it is a whole number from {least} on")
    return int(text)


def _type(visible: VisibleColumn) -> st.DataType:
    if visible.column.kind is LogicalType.TIME and not visible.is_companion:
        return st.TimeType(min(visible.column.scale or 0, 6))
    return visible.raw_type


def _listed(text: str) -> list[str]:
    names = name_of(text.replace(",", "."))
    if not names:
        raise LoadRefused(what=f"columns = {text}", reason="write names with commas between them")
    return list(names)


def _named(visible: Sequence[VisibleColumn], name: str, table: object) -> VisibleColumn:
    exact = [each for each in visible if each.name == name]
    found = exact or [each for each in visible if each.name.lower() == name.lower()]
    if not found:
        raise ColumnNotFound(
            f"Table {table} has no column {quoted(name)}.", column=name, table=table
        )
    return found[0]
