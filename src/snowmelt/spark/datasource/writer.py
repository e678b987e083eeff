"""Writers of the data source `snowmelt`: tasks write native files, one commit adds them.

`abort` deletes nothing, because Spark also calls it after a commit that failed or whose response
was lost. Garbage collection deletes uncommitted files.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from snowmelt.errors import LoadOvertaken, LoadRefused, Unsupported
from snowmelt.schema.types import TableSchema
from snowmelt.spark.datasource.catalog_connection import LakeConnection
from snowmelt.spark.datasource.options import FORMAT, check_options, requested_table
from snowmelt.spark.datasource.write_commit import (
    WriteId,
    WriteTarget,
    commit_write,
    resolve_write_target,
)
from snowmelt.spark.datasource.write_task import WriteTaskResult, write_native_files

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


_WRITE_OPTIONS = frozenset({"write_id"})
_STREAM_WRITE_OPTIONS = frozenset({"checkpointLocation", "queryName"})
# Local property that Spark sets for tasks of a stream.
_QUERY_ID_PROPERTY = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class WriteTaskMessage(WriterCommitMessage):
    """Result of one write task, with the load ID of its files and the streaming query's ID.

    Another writer instance commits the stream and looks up the table again. The message therefore
    contains the table, its columns and the start time at which the rows were written.
    """

    result: WriteTaskResult
    load_id: str
    table_id: int
    schema: TableSchema
    began_at: dt.datetime
    query_id: str | None = None


class TableWriter(DataSourceArrowWriter):
    """Writer that appends one DataFrame to a table."""

    def __init__(
        self,
        connection: LakeConnection,
        options: Mapping[str, str],
        schema: StructType,
        *,
        overwrite: bool,
    ) -> None:
        check_options(options, _WRITE_OPTIONS, "writing")
        _reject_overwrite(overwrite=overwrite)
        self._target = resolve_write_target(
            connection, requested_table(options), schema.names, "df.write.format('snowmelt')"
        )
        self._write_id = options.get("write_id")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteTaskMessage:
        """Write the rows of one task."""
        return _write_task(self._target, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the files of all tasks.

        Raises:
            LoadOvertaken: If the table was dropped or changed during the write. Nothing was written.
        """
        written = [each.result for each in _check_messages(messages)]
        once = None if self._write_id is None else WriteId(f"write:{self._write_id}", 0)
        commit_write(self._target, written, write_id=once)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: garbage collection deletes uncommitted files, and committed files must stay."""


class TableStreamWriter(DataSourceStreamArrowWriter):
    """Writer that appends each batch of a streaming query once, by query ID and batch number."""

    def __init__(
        self,
        connection: LakeConnection,
        options: Mapping[str, str],
        schema: StructType,
        *,
        overwrite: bool,
    ) -> None:
        check_options(options, _STREAM_WRITE_OPTIONS, "writing a stream")
        _reject_overwrite(overwrite=overwrite)
        self._target: WriteTarget = resolve_write_target(
            connection, requested_table(options), schema.names, "writeStream.format('snowmelt')"
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteTaskMessage:
        """Write the rows of one task of a batch."""
        context = TaskContext.get()
        query_id = None if context is None else context.getLocalProperty(_QUERY_ID_PROPERTY)
        return replace(_write_task(self._target, iterator), query_id=query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a batch unless it is already committed.

        Raises:
            LoadOvertaken: If the table was dropped or changed during the write. Nothing was written.
        """
        outcomes = _check_messages(messages)
        if not outcomes:
            return
        queries = {each.query_id for each in outcomes}
        loads = {each.load_id for each in outcomes}
        if len(queries) != 1 or None in queries or len(loads) != 1:
            raise LoadRefused(
                what=f"Batch {batchId}",
                reason="its tasks report different queries, so the batch could be written twice",
            )
        [load_id], [query_id] = loads, queries
        once = WriteId(f"spark:{query_id}", batchId)
        target = _restore_target(self._target, outcomes[0])
        commit_write(target, [each.result for each in outcomes], write_id=once, load_id=load_id)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: garbage collection deletes uncommitted files, and committed files must stay."""


def _write_task(target: WriteTarget, rows: Iterator[pa.RecordBatch]) -> WriteTaskMessage:
    plan = target.plan
    written = write_native_files(plan, rows)
    return WriteTaskMessage(written, plan.load_id, target.table_id, plan.schema, target.began_at)


def _restore_target(target: WriteTarget, message: WriteTaskMessage) -> WriteTarget:
    """Return the commit's target as it was when the rows were written."""
    if target.table_id != message.table_id:
        raise LoadOvertaken(load=message.load_id, reason=f"table {target.table} was dropped")
    plan = replace(target.plan, schema=message.schema)
    return replace(target, plan=plan, began_at=message.began_at)


def _check_messages(messages: list[WriterCommitMessage | None]) -> list[WriteTaskMessage]:
    found = [each for each in messages if isinstance(each, WriteTaskMessage)]
    if len(found) != len(messages):
        raise LoadRefused(
            what="The write", reason=f"only {len(found)} of {len(messages)} tasks have ended"
        )
    return found


def _reject_overwrite(*, overwrite: bool) -> None:
    if overwrite:
        raise Unsupported(
            what=f"Overwriting a table by the format {FORMAT}",
            instead="tables support only appends; use mode('append') or outputMode('append'), "
            "or CREATE OR REPLACE TABLE before",
        )
