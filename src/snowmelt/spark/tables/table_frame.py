"""DataFrame of a table: Spark's Parquet reader reads native files, the chunk source reads chunks.

Types: `docs/explanation/decisions/0010-types-in-spark.md`.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JError
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st
from pyspark.sql.functions import expr

from snowmelt.clock import to_epoch_ms
from snowmelt.errors import PlanExpired
from snowmelt.schema.types import quote_literal
from snowmelt.spark.tables.chunk_cache import ChunkCache
from snowmelt.spark.tables.partition import ReadShape, create_partition_frame, plan_partitions
from snowmelt.spark.tables.spark_column_mapping import (
    TableReadPlan,
    VisibleColumn,
    list_visible_columns,
    quote_identifier,
)
from snowmelt.table.chunk_reader import ChunkReadTask
from snowmelt.table.native_file import NativeFile, is_local_location

_log = logging.getLogger("snowmelt.spark")

_MAX_CACHED_FRAMES = 32
# Minimum number of native files for which Spark lists folders instead of checking each file.
_MIN_PATHS_TO_LIST_FOLDERS = 100
_DEADLINE_STEP_MS = 60_000


def start_warm_up(spark: SparkSession) -> None:
    """Start to load what the first query needs, in the background and once per process.

    Starts a Python worker, loads Spark's classes for Python sources and Parquet, and imports
    PyIceberg.
    """
    if _find_jvm(spark) is None or _warm_up_began.is_set():
        return
    _warm_up_began.set()
    threading.Thread(target=warm_up, args=(spark,), name="snowmelt-warm-up", daemon=True).start()


_warm_up_began = threading.Event()


def warm_up(spark: SparkSession) -> None:
    """Do the work of `start_warm_up` in this thread. Only log errors: the first query raises them."""
    try:
        import_module("snowmelt.table.iceberg")

        chunks = create_partition_frame(
            spark, (), st.StructType([st.StructField("a", st.LongType())])
        )
        with tempfile.TemporaryDirectory(prefix="snowmelt-warm-up-") as folder:
            reader = spark.read.schema(chunks.schema).options(**_PARQUET_OPTIONS)
            files = reader.parquet(Path(folder).as_uri())
            files.union(chunks)._jdf.queryExecution().executedPlan()  # noqa: SLF001  plans, runs no job
    except Exception:  # noqa: BLE001  for example, the session has ended
        _log.debug("warming up failed", exc_info=True)


class TableFrameBuilder:
    """Builder of DataFrames in one Spark session. Thread-safe.

    Spark needs 0.1 ms to list each native file. DataFrames are therefore cached by their files,
    which never change.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._cached_frames: OrderedDict[object, DataFrame] = OrderedDict()
        self._listable: dict[str, bool] = {}
        self._cores = count_task_slots(spark)
        self._chunks = ChunkCache(spark, self._build_chunk_frame)

    def build_frame(self, read: TableReadPlan) -> DataFrame:
        """Return the rows of a table as a DataFrame. Opens no file and runs no job."""
        if not read.columns:
            return self._build_count_frame(read)
        # Build the parts that do not need the manifests while these are read in the background.
        has_files = read.pointer is not None or bool(read.fresh)
        guard = self._get_deadline_guard(read) if has_files else None
        parts = self._chunks.build_frames(read) if read.tasks else []
        frames = [self._build_file_frame(read, group) for group in _group_files(read)]
        if frames and guard is not None:
            parts = [*frames, *parts, guard]
        if not parts:
            parts.append(self._spark.createDataFrame([], _make_spark_schema(read.columns)))
        whole = parts[0]
        for part in parts[1:]:
            whole = whole.union(part)
        if not any(visible.needs_cast for visible in read.columns):
            return whole
        return whole.selectExpr(*(visible.expression for visible in read.columns))

    def release_cached_frames(self) -> None:
        """Release cached chunks and frames. DataFrames that were returned stay usable."""
        self._chunks.clear()
        self._cached_frames.clear()

    def _build_count_frame(self, read: TableReadPlan) -> DataFrame:
        rows = read.row_count
        return self._spark.range(0, rows, 1, self._cores if rows > 100_000 else 1).select()

    def _build_file_frame(self, read: TableReadPlan, files: Sequence[NativeFile]) -> DataFrame:
        paths = tuple(file.path for file in files)
        if self.can_read_with_spark(paths[0]):
            frame = self._get_or_create_frame(
                (read.pointer, read.schema.version, paths), lambda: self._read_parquet(read, paths)
            )
        else:
            schema = _make_spark_schema(read.columns, read.parquet_names)
            frame = self._build_python_frame(read, files, (), schema)
        return frame.selectExpr(*_select_file_columns(read))

    def can_read_with_spark(self, path: str) -> bool:
        """Return True if Spark has a file system for this URL scheme."""
        scheme = urlsplit(path).scheme
        if is_local_location(path):
            return True
        if scheme not in self._listable:
            java = _find_jvm(self._spark)
            try:
                configuration = self._spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001  no other way
                java.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, configuration)
                self._listable[scheme] = True
            except Exception:  # noqa: BLE001  no file system, or Spark Connect, with varying errors
                self._listable[scheme] = False
        return self._listable[scheme]

    def _read_parquet(self, read: TableReadPlan, paths: tuple[str, ...]) -> DataFrame:
        reader = self._spark.read.schema(
            _make_spark_schema(list_visible_columns(read.schema), read.parquet_names)
        )
        for name, value in _PARQUET_OPTIONS.items():
            reader = reader.option(name, value)
        java = _find_jvm(self._spark)
        if java is None or len(paths) < _MIN_PATHS_TO_LIST_FOLDERS:
            return reader.parquet(*paths)
        # Listing a folder takes a fifth of the time of checking each file. Use the listing only if
        # it has exactly these files, because a failed migration leaves other files in the folder.
        names = (
            ""
            if len(paths) == read.native.result().total
            else ",".join(path.rpartition("/")[2] for path in paths)
        )
        folders = reader.option("pathGlobFilter", f"{{{names}}}" if names else "*").parquet(
            *sorted({path.rpartition("/")[0] for path in paths})
        )
        joined = java.org.apache.hadoop.util.StringUtils.join
        listed = joined("\0", folders._jdf.inputFiles())  # noqa: SLF001  one string, see below
        if sorted(map(unquote, listed.split("\0"))) == sorted(paths):
            return folders
        # Pass all paths in one string, because each value passed to or from the JVM takes 0.1 ms.
        array = java.org.apache.commons.lang3.StringUtils.split("\0".join(paths), "\0")
        reader = reader.option("pathGlobFilter", "*")
        return reader._df(reader._jreader.parquet(array))  # noqa: SLF001  as `parquet` does

    def _get_or_create_frame(self, key: object, create: Callable[[], DataFrame]) -> DataFrame:
        frame = self._cached_frames.pop(key, None)
        if frame is None:
            frame = create()
        # Move to the end, because least recently used frames are evicted first.
        self._cached_frames[key] = frame
        while len(self._cached_frames) > _MAX_CACHED_FRAMES:
            self._cached_frames.popitem(last=False)
        return frame

    def _build_chunk_frame(self, read: TableReadPlan) -> DataFrame:
        return self._build_python_frame(read, (), read.tasks, _make_spark_schema(read.columns))

    def _build_python_frame(
        self,
        read: TableReadPlan,
        files: Sequence[NativeFile],
        tasks: Sequence[ChunkReadTask],
        schema: st.StructType,
    ) -> DataFrame:
        shape = ReadShape(
            table=read.table,
            schema=read.schema,
            fields=tuple(visible.native_name for visible in read.columns),
            columns=tuple(dict.fromkeys(visible.column.name for visible in read.columns)),
            predicates=(),
            deadline=read.deadline,
        )
        partitions = plan_partitions(shape, files, tasks, cores=self._cores)
        return create_partition_frame(self._spark, partitions, schema)

    def _get_deadline_guard(self, read: TableReadPlan) -> DataFrame:
        """Return a frame without rows that raises an error after the deadline.

        Native files may be deleted after the deadline. Spark must not evaluate the function that
        reads the clock during planning. The guard is a separate branch of the union, so that
        conditions are still pushed down to the Parquet reader.
        """
        # Round the deadline down to a full minute: Spark compiles it into code, and compilation is
        # slow.
        limit = to_epoch_ms(read.deadline) // _DEADLINE_STEP_MS * _DEADLINE_STEP_MS
        types = tuple(
            (quote_identifier(visible.name), visible.raw_type.simpleString())
            for visible in read.columns
        )
        return self._get_or_create_frame(
            ("guard", read.table, limit, types),
            lambda: self._build_deadline_guard(read.table, limit, types),
        )

    def _build_deadline_guard(
        self, table: str, deadline_ms: int, columns: tuple[tuple[str, str], ...]
    ) -> DataFrame:
        message = quote_literal(str(PlanExpired(table=table)))
        # Make the columns depend on the clock too. Otherwise, Spark would evaluate the condition
        # during planning and drop this branch.
        made = [f"try_cast(cast(now AS STRING) AS {kind}) AS {name}" for name, kind in columns]
        return (
            self._spark.range(0, 1, 1, 1)
            .select(_make_current_time_ms_column(self._spark).alias("now"))
            .where(f"if(now > {deadline_ms}, raise_error({message}), false)")
            .selectExpr(*made)
        )


def _make_current_time_ms_column(spark: SparkSession) -> SparkColumn:
    """Return the executor's time as a column that Spark does not evaluate during planning.

    Does not use SQL's `reflect`, which prevents compilation of the whole union: with it, summing a
    column of 4.5 million native rows took 0.4 s longer.
    """
    java = _find_jvm(spark)
    if java is None:
        return expr("cast(reflect('java.lang.System', 'currentTimeMillis') AS BIGINT)")
    try:
        nothing = java.PythonUtils.toSeq([])
        call = java.org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke(
            java.java.lang.Class.forName("java.lang.System"),
            java.org.apache.spark.sql.types.DataTypes.LongType,
            "currentTimeMillis",
            nothing,
            nothing,
            *(False, False, False),
            java.scala.Option.empty(),
        )
        return SparkColumn(java.org.apache.spark.sql.classic.ExpressionUtils.column(call))
    except Py4JError:
        return expr("cast(reflect('java.lang.System', 'currentTimeMillis') AS BIGINT)")


# Override session settings that would silently drop rows or shift dates.
_PARQUET_OPTIONS = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "mergeSchema": "false",
    # Disable glob patterns: a folder's name may have pattern characters.
    "__globPaths__": "false",
}


def _group_files(read: TableReadPlan) -> list[tuple[NativeFile, ...]]:
    """Return the files to read in one scan each.

    Each scan takes time, so few files are read in one. Fresh files change with each round. With
    many native files, they are in a scan of their own, because Spark checks all files of a new
    scan.
    """
    if len(read.files) + len(read.fresh) < _MIN_PATHS_TO_LIST_FOLDERS:
        groups = [(*read.files, *read.fresh)]
    else:
        groups = [read.files, read.fresh]
    return [group for group in groups if group]


def _select_file_columns(read: TableReadPlan) -> list[str]:
    """Return expressions that select the columns of native files with the query's names."""
    names = read.parquet_names
    return [
        f"{quote_identifier(names[each.field_id])} AS {quote_identifier(each.name)}"
        if each.field_id in names
        else quote_identifier(each.name)
        for each in read.columns
    ]


def _make_spark_schema(
    columns: Sequence[VisibleColumn], names: Mapping[int, str] = MappingProxyType({})
) -> st.StructType:
    # Field IDs keep a column's data across renames. All fields are nullable, because both
    # readers must return the same schema.
    return st.StructType(
        [
            st.StructField(
                names.get(visible.field_id, visible.name),
                visible.raw_type,
                True,
                {"parquet.field.id": visible.field_id},
            )
            for visible in columns
        ]
    )


def _find_jvm(spark: SparkSession) -> Any:
    """Return the session's JVM gateway, or None with Spark Connect."""
    try:
        return spark.sparkContext._jvm  # noqa: SLF001  no public API
    except Exception:  # noqa: BLE001  Spark Connect raises various errors
        return None


def count_task_slots(spark: SparkSession) -> int:
    """Return the number of tasks that run concurrently, or 8 with Spark Connect."""
    try:
        return max(1, int(spark.sparkContext.defaultParallelism))
    except Exception:  # noqa: BLE001  Spark Connect has no context and raises various errors
        return 8
