"""Columns of a table as Spark sees them, and the definition of a table read.

Types: `docs/explanation/decisions/0010-types-in-spark.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import types as st

from snowmelt.schema.chunk_types import FIELD_ID
from snowmelt.schema.iceberg_table_form import native_fields
from snowmelt.schema.types import SEMI_STRUCTURED_TYPES, Column, LogicalType, TableSchema

if TYPE_CHECKING:
    import datetime as dt

    from snowmelt.table.chunk_reader import ChunkReadTask
    from snowmelt.table.iceberg import NativeFile

# Microseconds are as fine as both Parquet in Iceberg and Python's `datetime` are.
_TIME_DIGITS = 6

_SPARK_TYPES: dict[LogicalType, st.DataType] = {
    LogicalType.REAL: st.DoubleType(),
    LogicalType.BOOLEAN: st.BooleanType(),
    LogicalType.BINARY: st.BinaryType(),
    LogicalType.DATE: st.DateType(),
    LogicalType.TIME: st.TimeType(_TIME_DIGITS),
    LogicalType.TIMESTAMP_NTZ: st.TimestampNTZType(),
    LogicalType.TIMESTAMP_LTZ: st.TimestampType(),
    LogicalType.TIMESTAMP_TZ: st.TimestampType(),
}


@dataclass(frozen=True, slots=True)
class VisibleColumn:
    """A column of the DataFrame: one of the table's, or a companion of one.

    `name` is what queries and both readers call it, and no other, even when case is ignored;
    `native_name` is the native field's name.
    """

    name: str
    native_name: str
    field_id: int
    column: Column
    is_companion: bool

    @property
    def raw_type(self) -> st.DataType:
        """The type in which both readers give it."""
        if self.is_companion:
            return st.IntegerType()
        if self.column.kind is LogicalType.FIXED:
            return st.DecimalType(self.column.precision or 38, self.column.scale or 0)
        return _SPARK_TYPES.get(self.column.kind, st.StringType())

    @property
    def needs_cast(self) -> bool:
        """Whether the visible column differs from the raw one."""
        if self.is_companion:
            return False
        coarse = self.column.kind is LogicalType.TIME and (self.column.scale or 0) < _TIME_DIGITS
        return coarse or self.column.kind in SEMI_STRUCTURED_TYPES

    @property
    def expression(self) -> str:
        """The Spark SQL that makes the visible column of the raw one."""
        name = quote_identifier(self.name)
        if not self.needs_cast:
            return name
        if self.column.kind is LogicalType.TIME:
            return f"cast({name} AS TIME({self.column.scale or 0})) AS {name}"
        # `parse_json` fails a whole query on deep nesting or a key given twice; such a document
        # is shown as the text it is. Of `1 2` it would take the 1 and drop the rest without a
        # word, which it cannot do inside an array.
        parsed = f"try_variant_get(try_parse_json(concat('[', {name}, ']')), '$[0]', 'variant')"
        return f"coalesce({parsed}, cast({name} AS VARIANT)) AS {name}"


@dataclass(frozen=True, slots=True)
class PlannedFiles:
    """The native files that a query reads, out of `total`."""

    files: tuple[NativeFile, ...]
    total: int


@dataclass(frozen=True, slots=True)
class TableReadPlan:
    """What a query reads of one table: chosen columns, files and chunks, out of how many.

    `pointer` names the native snapshot, whose manifests are read in the background: Spark prepares
    meanwhile what it can without them. `parquet_names` is what the Parquet reader calls columns (see there);
    `present_chunks` are all of the snapshot's chunks by commit number. No columns at all means that rows
    are only counted.
    """

    table: str
    incarnation: str
    pointer: str | None
    schema: TableSchema
    columns: tuple[VisibleColumn, ...]
    native: Future[PlannedFiles]
    parquet_names: Mapping[int, str]
    tasks: tuple[ChunkReadTask, ...]
    present_chunks: frozenset[int]
    deadline: dt.datetime

    @property
    def files(self) -> tuple[NativeFile, ...]:
        """The native files to read.

        Raises:
            TableInconsistent: Another tool has added delete files.
        """
        return self.native.result().files


def list_visible_columns(schema: TableSchema) -> list[VisibleColumn]:
    """Return what a DataFrame of the table has, each companion right after its column.

    Spark takes names that differ only by case for the same: the later ones get `_` and their
    ordinal.
    """
    visible: list[VisibleColumn] = []
    taken: set[str] = set()
    for column in schema.columns:
        for field in native_fields(column):
            name = field.name
            while name.lower() in taken:
                name = f"{name}_{column.ordinal}"
            taken.add(name.lower())
            visible.append(
                VisibleColumn(
                    name=name,
                    native_name=field.name,
                    field_id=int(field.metadata[FIELD_ID]),
                    column=column,
                    is_companion=field.name != column.name,
                )
            )
    return visible


def map_parquet_names(schema: TableSchema, versions: Iterable[TableSchema]) -> dict[int, str]:
    """Return by field id what the Parquet reader must call a column, where that is not its name.

    Spark finds a file's columns by field id, but compares conditions with the statistics of the
    column that has the *name* in the file, and cuts a number down to the width it has there (4.3:
    `c < 3000000000` leaves out every row of a NUMBER(9)). So a column does not go by a name that
    another has had, nor by its own once its numbers have grown: such conditions stay with Spark.
    """
    had: dict[str, set[tuple[int, st.DataType]]] = {}
    for version in (*versions, schema):
        for visible in list_visible_columns(version):
            had.setdefault(visible.name.lower(), set()).add((visible.field_id, visible.raw_type))
    names: dict[int, str] = {}
    for visible in list_visible_columns(schema):
        if len(had[visible.name.lower()]) > 1:
            name = visible.name
            while name.lower() in had:
                name = f"{name}_{visible.field_id}"
            names[visible.field_id] = name
            had[name.lower()] = set()
    return names


def quote_identifier(name: str) -> str:
    """Return a name as Spark's SQL takes it, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"
