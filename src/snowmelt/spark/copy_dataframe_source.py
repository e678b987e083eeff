"""`spark.read.format("snowmelt-load")`: raw files as a DataFrame, through filters and a parser.

The option `copy` is the text after FROM in a COPY statement. Alternatively, `load` is the path and
`copy` the rest of the statement. Rejected records are stored in the column `_rejected` if the
schema has it, or in the folder that the option `rejects` names. Without either, the first rejected
record fails the query, unless the option `ignore_rejects` is true.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import types as st
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from snowmelt.catalog.sql.lexer import is_copy_statement
from snowmelt.config import Settings
from snowmelt.errors import LoadFailed, LoadRefused
from snowmelt.load.copy_parser import parse_copy
from snowmelt.load.phase_protocols import ParseReject
from snowmelt.load.phase_registry import LoadFunctions
from snowmelt.load.planner import plan_load
from snowmelt.load.stack import run_portion
from snowmelt.load.task import LoadTask
from snowmelt.schema.types import MAX_BINARY_BYTES, MAX_TEXT_BYTES, Column, LogicalType, TableSchema
from snowmelt.storage.overwrite_protection import check_output_outside_deployment
from snowmelt.table.native_file_writer import NativeWriter
from snowmelt.table.rejects import RejectedRow, RejectOrigin, to_reject_table
from snowmelt.table.warehouse_paths import open_cached_store

FORMAT = "snowmelt-load"
FUNCTIONS_OPTION = "secret_functions"
# Column that describes a rejected record.
REJECTED_COLUMN = "_rejected"
_TASK_COUNT = 8
_INTEGER_DIGITS: dict[type[st.DataType], int] = {
    st.ByteType: 3,
    st.ShortType: 5,
    st.IntegerType: 10,
    st.LongType: 19,
}
_COLUMN_TYPES: dict[type[st.DataType], Mapping[str, Any]] = {
    st.StringType: {
        "kind": LogicalType.TEXT,
        "length": MAX_TEXT_BYTES,
        "byte_length": MAX_TEXT_BYTES,
    },
    st.BinaryType: {"kind": LogicalType.BINARY, "byte_length": MAX_BINARY_BYTES},
    st.BooleanType: {"kind": LogicalType.BOOLEAN},
    st.FloatType: {"kind": LogicalType.REAL},
    st.DoubleType: {"kind": LogicalType.REAL},
    st.DateType: {"kind": LogicalType.DATE},
    st.TimestampType: {"kind": LogicalType.TIMESTAMP_LTZ, "scale": 6},
    st.TimestampNTZType: {"kind": LogicalType.TIMESTAMP_NTZ, "scale": 6},
}


def register(spark: SparkSession) -> None:
    """Register the format with a session."""
    spark.dataSource.register(LoadSource)


class LoadSourcePartition(InputPartition):
    """Spark partition for one portion of the files."""

    def __init__(self, task: LoadTask) -> None:
        self.task = task


class LoadSource(DataSource):
    """Spark data source `snowmelt-load`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def reader(self, schema: st.StructType) -> DataSourceReader:
        """Return a reader for the files that the options specify.

        Raises:
            LoadRefused: If options are missing, or a column has a type that files cannot be parsed
                into.
        """
        return _LoadSourceReader(dict(self.options), schema)


class _LoadSourceReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], schema: st.StructType) -> None:
        self._schema = schema
        self._statement = parse_copy(build_copy_statement(options))
        self._table = to_table_schema(schema)
        self._reject_folder = options.get("rejects")
        if self._reject_folder is not None:
            check_output_outside_deployment(
                "rejects", self._reject_folder, reserved=Settings.load().list_reserved_paths()
            )
        self._ignores_rejects = options.get("ignore_rejects", "").lower() == "true"
        given = options.get(FUNCTIONS_OPTION)
        # Safe to unpickle: only this session's driver writes the option.
        self._functions: LoadFunctions = (
            LoadFunctions() if given is None else pickle.loads(base64.b85decode(given))  # noqa: S301
        )

    def partitions(self) -> Sequence[InputPartition]:
        plan = plan_load(self._statement, self._table, self._functions, parallelism=_TASK_COUNT)
        return [LoadSourcePartition(task) for task in plan.tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LoadSourcePartition)  # noqa: S101  always our own partition
        task = partition.task
        wanted = to_arrow_schema(self._schema, timezone="UTC")
        sink = None if self._reject_folder is None else _RejectFile(self._reject_folder, task)
        with contextlib.ExitStack() as opened:
            if sink is not None:
                opened.callback(sink.abort)
            run = run_portion(task, self._functions)
            for block in run:
                if block.rejects:
                    yield from self._handle_rejects(task, block.rejects, wanted, sink)
                if block.rows.num_rows:
                    yield from cast_rows(block.rows, wanted).to_batches()
            if run.counts.reject_limit_reached:
                raise LoadFailed(
                    where=task.portion.file.path,
                    reason=f"{run.counts.rejects:,} records were rejected, which is the limit",
                )
            if sink is not None:
                sink.finish()

    def _handle_rejects(
        self,
        task: LoadTask,
        rejects: Sequence[ParseReject],
        wanted: pa.Schema,
        sink: _RejectFile | None,
    ) -> Iterator[pa.RecordBatch]:
        file = task.portion.file.path
        if REJECTED_COLUMN in wanted.names:
            yield from _make_reject_rows(file, rejects, wanted).to_batches()
        elif sink is not None:
            sink.add(rejects)
        elif not self._ignores_rejects:
            first = rejects[0]
            raise LoadFailed(
                where=f"{file}, record {first.record:,} of the portion from byte "
                f"{task.portion.offset:,} on",
                reason=f"{first.reason}; a column {REJECTED_COLUMN} or the option `rejects` would keep "
                "rejected records",
            )


def build_copy_statement(options: Mapping[str, str]) -> str:
    """Build the COPY statement that the options describe, with a placeholder table.

    Raises:
        LoadRefused: If the options name no files.
    """
    copy, path = options.get("copy", "").strip(), options.get("path")
    if is_copy_statement(copy):
        return copy
    if path is not None:
        quoted = path.replace("'", "''")
        return f"COPY frame FROM '{quoted}' {copy}"
    if not copy:
        raise LoadRefused(
            what=f"format {FORMAT}",
            reason="pass the files to `load`, or the text after COPY as the option `copy`: "
            "\"FROM '/data/*.csv.gz' PARSER fcsvparser()\"",
        )
    return f"COPY frame {copy}"


def to_table_schema(schema: st.StructType) -> TableSchema:
    """Convert a DataFrame schema to the columns to parse, without `_rejected`.

    Raises:
        LoadRefused: If a column has a type that files cannot be parsed into.
    """
    fields = [field for field in schema.fields if field.name != REJECTED_COLUMN]
    return TableSchema(
        1, tuple(_to_column(field, ordinal) for ordinal, field in enumerate(fields, start=1))
    )


def cast_rows(rows: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Cast parsed rows to the types and names that Spark expects.

    Raises:
        ArrowInvalid: If a number is out of range for its type.
    """
    columns = iter(rows.columns)
    arrays = [
        pa.nulls(rows.num_rows, field.type)
        if field.name == REJECTED_COLUMN
        else next(columns).cast(field.type)
        for field in wanted
    ]
    return pa.Table.from_arrays(arrays, schema=wanted).combine_chunks()


def _make_reject_rows(file: str, rejects: Sequence[ParseReject], wanted: pa.Schema) -> pa.Table:
    values = [
        {
            "file": file,
            "record": each.record,
            "offset": each.offset,
            "data": each.data,
            "reason": each.reason,
            "column": each.column,
        }
        for each in rejects
    ]
    arrays = [
        pa.array(values, field.type)
        if field.name == REJECTED_COLUMN
        else pa.nulls(len(rejects), field.type)
        for field in wanted
    ]
    return pa.Table.from_arrays(arrays, schema=wanted)


def _to_column(field: st.StructField, ordinal: int) -> Column:
    kind, name = field.dataType, field.name.upper()
    if isinstance(kind, st.DecimalType):
        return Column(name, LogicalType.FIXED, ordinal, precision=kind.precision, scale=kind.scale)
    digits = _INTEGER_DIGITS.get(type(kind))
    if digits is not None:
        return Column(name, LogicalType.FIXED, ordinal, precision=digits, scale=0)
    found = _COLUMN_TYPES.get(type(kind))
    if found is None:
        raise LoadRefused(
            what=f"column {field.name}",
            reason=f"files cannot be read as {kind.simpleString()}; read it as a string",
        )
    return Column(name=name, ordinal=ordinal, **found)


class _RejectFile:
    """Parquet file with the rejects of one portion. Its name is the same in every read of the portion."""

    def __init__(self, folder: str, task: LoadTask) -> None:
        portion = task.portion
        mark = f"{portion.file.path}\0{portion.file.tag}\0{portion.offset}"
        self._path = f"{hashlib.sha256(mark.encode()).hexdigest()[:32]}.parquet"
        self._store = open_cached_store(folder)
        self._origin = RejectOrigin("0" * 32, "", portion.file.path, task.number)
        self._writer: NativeWriter | None = None

    def add(self, rejects: Sequence[ParseReject]) -> None:
        """Write rejected records to the file."""
        rows = [RejectedRow(r.record, r.offset, r.data, r.reason, r.column) for r in rejects]
        table = to_reject_table(self._origin, rows)
        if self._writer is None:
            self._writer = NativeWriter(self._store, self._path, table.schema)
        self._writer.write_row_group(table)

    def finish(self) -> None:
        """Publish the file. It replaces a file of an earlier read."""
        self._store.delete(self._path)
        if self._writer is not None:
            self._writer.finish()

    def abort(self) -> None:
        """Remove an unfinished file."""
        if self._writer is not None:
            self._writer.abort()
