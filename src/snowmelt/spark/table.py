"""One table as a DataFrame: native files, by Spark's own reader, and chunks, by our source.

How each type arrives is decided in `docs/decisions/0010-types-in-spark.md`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import types as st

from snowmelt.clock import milliseconds
from snowmelt.errors import PlanExpired
from snowmelt.schema.arrow import FIELD_ID
from snowmelt.schema.native import native_columns
from snowmelt.schema.types import SEMI_STRUCTURED, Column, Kind, TableSchema
from snowmelt.spark.source import ChunkRead, chunks_frame

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from snowmelt.table.chunk import ChunkTask
    from snowmelt.table.iceberg import NativeFile

# Microseconds are as fine as both Parquet in Iceberg and Python's `datetime` are.
_TIME_DIGITS = 6
_KEPT_FRAMES = 16

_SPARK_TYPES: dict[Kind, st.DataType] = {
    Kind.REAL: st.DoubleType(),
    Kind.BOOLEAN: st.BooleanType(),
    Kind.BINARY: st.BinaryType(),
    Kind.DATE: st.DateType(),
    Kind.TIME: st.TimeType(_TIME_DIGITS),
    Kind.TIMESTAMP_NTZ: st.TimestampNTZType(),
    Kind.TIMESTAMP_LTZ: st.TimestampType(),
    Kind.TIMESTAMP_TZ: st.TimestampType(),
}


@dataclass(frozen=True, slots=True)
class VisibleColumn:
    """A column of the DataFrame: one of the table's, or a companion of one.

    `name` is what queries and both readers call it, and no other, even when case is ignored;
    `stored` is the native field's name.
    """

    name: str
    stored: str
    field_id: int
    column: Column
    is_companion: bool

    @property
    def raw_type(self) -> st.DataType:
        """The type in which both readers give it."""
        if self.is_companion:
            return st.IntegerType()
        if self.column.kind is Kind.FIXED:
            return st.DecimalType(self.column.precision or 38, self.column.scale or 0)
        return _SPARK_TYPES.get(self.column.kind, st.StringType())

    @property
    def is_cast(self) -> bool:
        """Whether the visible column differs from the raw one."""
        if self.is_companion:
            return False
        coarse = self.column.kind is Kind.TIME and (self.column.scale or 0) < _TIME_DIGITS
        return coarse or self.column.kind in SEMI_STRUCTURED

    @property
    def expression(self) -> str:
        """The Spark SQL that makes the visible column of the raw one."""
        name = _quoted(self.name)
        if not self.is_cast:
            return name
        if self.column.kind is Kind.TIME:
            return f"cast({name} AS TIME({self.column.scale or 0})) AS {name}"
        # `parse_json` fails a whole query on deep nesting or a key given twice; such a document
        # is shown as the text it is.
        return f"coalesce(try_parse_json({name}), cast({name} AS VARIANT)) AS {name}"


@dataclass(frozen=True, slots=True)
class TableRead:
    """What a query reads of one table: chosen columns, files and chunks, out of how many.

    `pointer` names the native snapshot; no columns at all means that rows are only counted.
    """

    table: str
    pointer: str | None
    schema: TableSchema
    columns: tuple[VisibleColumn, ...]
    files: tuple[NativeFile, ...]
    tasks: tuple[ChunkTask, ...]
    deadline: dt.datetime


def visible_columns(schema: TableSchema) -> list[VisibleColumn]:
    """Return what a DataFrame of the table has, each companion right after its column.

    Spark takes names that differ only by case for the same: the later ones get `_` and their
    ordinal.
    """
    visible: list[VisibleColumn] = []
    taken: set[str] = set()
    for column in schema.columns:
        for field in native_columns(column):
            name = field.name
            while name.lower() in taken:
                name = f"{name}_{column.ordinal}"
            taken.add(name.lower())
            visible.append(
                VisibleColumn(
                    name=name,
                    stored=field.name,
                    field_id=int(field.metadata[FIELD_ID]),
                    column=column,
                    is_companion=field.name != column.name,
                )
            )
    return visible


class TableReader:
    """Makes DataFrames in one Spark session; thread-safe.

    Listing native files in Spark costs 0.1 ms each, so DataFrames of the same files are kept:
    files never change.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._kept: OrderedDict[object, DataFrame] = OrderedDict()
        self._cores = _cores(spark)

    def frame(self, read: TableRead) -> DataFrame:
        """Return the rows of a table; no file is opened and no job is run by this."""
        if not read.columns:
            return self._counted(read)
        parts = []
        raw = [_quoted(visible.name) for visible in read.columns]
        if read.files:
            parts.append(self._native(read).selectExpr(*raw))
        if read.tasks:
            parts.append(self._chunks(read))
        elif read.files:
            parts.append(self._guard(read))
        if not parts:
            parts.append(self._spark.createDataFrame([], _schema(read.columns)))
        whole = parts[0]
        for part in parts[1:]:
            whole = whole.union(part)
        if not any(visible.is_cast for visible in read.columns):
            return whole
        return whole.selectExpr(*(visible.expression for visible in read.columns))

    def _counted(self, read: TableRead) -> DataFrame:
        rows = sum(file.rows for file in read.files) + sum(task.rows for task in read.tasks)
        return self._spark.range(0, rows, 1, self._cores if rows > 100_000 else 1).select()

    def _native(self, read: TableRead) -> DataFrame:
        paths = tuple(file.path for file in read.files)
        key = (read.pointer, read.schema.version, paths)
        frame = self._kept.get(key)
        if frame is None:
            reader = self._spark.read.schema(_schema(visible_columns(read.schema)))
            for name, value in _PARQUET_OPTIONS.items():
                reader = reader.option(name, value)
            frame = reader.parquet(*paths)
            self._kept[key] = frame
            while len(self._kept) > _KEPT_FRAMES:
                self._kept.popitem(last=False)
        return frame

    def _chunks(self, read: TableRead) -> DataFrame:
        wanted = dict.fromkeys(visible.column.name for visible in read.columns)
        return chunks_frame(
            self._spark,
            ChunkRead(
                table=read.table,
                tasks=read.tasks,
                columns=tuple(wanted),
                fields=tuple(visible.stored for visible in read.columns),
                deadline=read.deadline,
            ),
            _schema(read.columns),
            cores=self._cores,
        )

    def _guard(self, read: TableRead) -> DataFrame:
        """Return no rows, or after the deadline an error: native files may be gone by then.

        The clock is read by a function that Spark must not compute beforehand, in a plan of its
        own, where it does not keep conditions from reaching the Parquet reader.
        """
        message = str(PlanExpired(table=read.table)).replace("\\", "\\\\").replace("'", "\\'")
        limit = milliseconds(read.deadline)
        # Made of the clock, too: a condition on a constant would be decided beforehand, and the
        # whole part left out.
        columns = [
            f"try_cast(cast(now AS STRING) AS {visible.raw_type.simpleString()})"
            f" AS {_quoted(visible.name)}"
            for visible in read.columns
        ]
        return (
            self._spark.range(0, 1, 1, 1)
            .selectExpr("cast(reflect('java.lang.System', 'currentTimeMillis') AS BIGINT) AS now")
            .where(f"if(now > {limit}, raise_error('{message}'), false)")
            .selectExpr(*columns)
        )


# A session's own settings must not drop rows or shift dates without a word.
_PARQUET_OPTIONS = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "mergeSchema": "false",
    # The addresses are files, not patterns, whatever characters a folder's name has.
    "__globPaths__": "false",
}


def _schema(columns: Sequence[VisibleColumn]) -> st.StructType:
    # By field id, so that a column keeps its data whatever it is called; nullable throughout,
    # because both readers must agree.
    return st.StructType(
        [
            st.StructField(
                visible.name, visible.raw_type, True, {"parquet.field.id": visible.field_id}
            )
            for visible in columns
        ]
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _cores(spark: SparkSession) -> int:
    try:
        return max(1, int(spark.sparkContext.defaultParallelism))
    except Exception:  # noqa: BLE001  Spark Connect has no context, and says so in several ways
        return 8
