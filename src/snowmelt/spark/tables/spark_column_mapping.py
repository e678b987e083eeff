"""Columns of a table in Spark, and the plan of a table read.

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
    from snowmelt.table.native_file import NativeFile

# Both Parquet in Iceberg and Python's `datetime` have microsecond precision.
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
    """Column of the DataFrame: a column of the table, or the companion of one.

    `name` is its name in queries and in both readers, unique even when case is ignored.
    `native_name` is the native field's name.
    """

    name: str
    native_name: str
    field_id: int
    column: Column
    is_companion: bool

    @property
    def raw_type(self) -> st.DataType:
        """Type of the raw column that both readers return."""
        if self.is_companion:
            return st.IntegerType()
        if self.column.kind is LogicalType.FIXED:
            return st.DecimalType(self.column.precision or 38, self.column.scale or 0)
        return _SPARK_TYPES.get(self.column.kind, st.StringType())

    @property
    def needs_cast(self) -> bool:
        """True if the visible column differs from the raw one."""
        if self.is_companion:
            return False
        coarse = self.column.kind is LogicalType.TIME and (self.column.scale or 0) < _TIME_DIGITS
        return coarse or self.column.kind in SEMI_STRUCTURED_TYPES

    @property
    def expression(self) -> str:
        """Spark SQL expression that converts the raw column to the visible column."""
        name = quote_identifier(self.name)
        if not self.needs_cast:
            return name
        if self.column.kind is LogicalType.TIME:
            return f"cast({name} AS TIME({self.column.scale or 0})) AS {name}"
        # `parse_json` fails the whole query on deep nesting or duplicate keys, so convert such a
        # document to a string. For `1 2`, `parse_json` would return 1 and silently drop the rest.
        # Enclosing the text in an array prevents that.
        parsed = f"try_variant_get(try_parse_json(concat('[', {name}, ']')), '$[0]', 'variant')"
        return f"coalesce({parsed}, cast({name} AS VARIANT)) AS {name}"


@dataclass(frozen=True, slots=True)
class PlannedFiles:
    """Native files that a query reads, and their number before pruning."""

    files: tuple[NativeFile, ...]
    total: int


@dataclass(frozen=True, slots=True)
class TableReadPlan:
    """Read of one table: selected columns, files and chunks.

    `pointer` identifies the native snapshot. Its manifests are read in the background while Spark
    prepares other parts of the query. `fresh` are files with rows that are not migrated yet, and
    `tasks` read the rows that are in neither. `parquet_names` are column names for the Parquet reader, see
    `map_parquet_names`. `present_chunks` are the commit numbers of all chunks in the snapshot. Without
    columns, rows are only counted.
    """

    table: str
    incarnation: str
    pointer: str | None
    schema: TableSchema
    columns: tuple[VisibleColumn, ...]
    native: Future[PlannedFiles]
    fresh: tuple[NativeFile, ...]
    parquet_names: Mapping[int, str]
    tasks: tuple[ChunkReadTask, ...]
    present_chunks: frozenset[int]
    deadline: dt.datetime

    @property
    def files(self) -> tuple[NativeFile, ...]:
        """Native files to read.

        Raises:
            TableInconsistent: If another tool has added delete files.
        """
        return self.native.result().files

    @property
    def row_count(self) -> int:
        """Number of rows in the files and chunks to read."""
        files = (*self.files, *self.fresh)
        return sum(file.rows for file in files) + sum(task.rows for task in self.tasks)


def list_visible_columns(schema: TableSchema) -> list[VisibleColumn]:
    """Return the columns of a table's DataFrame, each companion right after its column.

    Spark treats names that differ only in case as equal, so later ones get `_` and their ordinal.
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
    """Map field IDs to names for the Parquet reader, for names that differ from the column's.

    Spark 4.3 finds a file's columns by field ID. But it takes the type, and for conditions the
    statistics, of the column that has the *name* in the file without regard to case, and narrows a
    number to the width of that column: `c < 3000000000` skips every row of a NUMBER(9). A column
    therefore gets another name if another column has or had its name, or if its type was widened.
    Spark then does not push down its conditions. So does a FLOAT column: in Spark, NaN is above
    every number, but statistics of Parquet ignore it.
    """
    had: dict[str, set[tuple[int, st.DataType]]] = {}
    for version in (*versions, schema):
        for visible in list_visible_columns(version):
            had.setdefault(visible.native_name.lower(), set()).add(
                (visible.field_id, visible.raw_type)
            )
    names: dict[int, str] = {}
    for visible in list_visible_columns(schema):
        others = had.get(visible.name.lower(), set()) - {(visible.field_id, visible.raw_type)}
        if others or visible.column.kind is LogicalType.REAL:
            name = visible.name
            while name.lower() in had:
                name = f"{name}_{visible.field_id}"
            names[visible.field_id] = name
            had[name.lower()] = set()
    return names


def quote_identifier(name: str) -> str:
    """Quote a name with backticks for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"
