"""Writing by the data source `snowmelt`: tasks write native files, one commit makes them count.

`abort` deletes nothing: Spark calls it after a commit that failed or whose answer was lost, too.
Files that were not committed are swept by clean-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from snowmelt.errors import LoadRefused, Unsupported
from snowmelt.spark.asked import FORMAT, check_options, table_asked
from snowmelt.spark.committing import Once, Target, commit_written, target_of
from snowmelt.spark.written_rows import Written, write_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from snowmelt.spark.connection import Connection

_OPTIONS = frozenset({"write_id"})
_STREAM_OPTIONS = frozenset({"checkpointLocation", "queryName"})
# What Spark sets for tasks of a stream.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class Outcome(WriterCommitMessage):
    """What one task wrote, into which load's folder, and for which query of Spark's streams."""

    written: Written
    load_id: str
    query_id: str | None = None


class TableWriter(DataSourceArrowWriter):
    """Appends one DataFrame to a table."""

    def __init__(
        self,
        connection: Connection,
        options: Mapping[str, str],
        schema: StructType,
        *,
        overwrite: bool,
    ) -> None:
        check_options(options, _OPTIONS, "writing")
        _refuse_overwrite(overwrite=overwrite)
        self._target = target_of(
            connection, table_asked(options), schema.names, "df.write.format('snowmelt')"
        )
        self._write_id = options.get("write_id")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Outcome:
        """Write one task's rows."""
        plan = self._target.plan
        return Outcome(write_rows(plan, iterator), plan.load_id)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit what all tasks wrote.

        Raises:
            LoadOvertaken: The table was dropped or changed meanwhile; nothing was written.
        """
        written = [each.written for each in _outcomes(messages)]
        once = None if self._write_id is None else Once(f"write:{self._write_id}", 0)
        commit_written(self._target, written, once=once)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave everything as it is: what was not committed is swept, what was must stay."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Appends each batch of a streaming query once, by the query's id and the batch's number."""

    def __init__(
        self,
        connection: Connection,
        options: Mapping[str, str],
        schema: StructType,
        *,
        overwrite: bool,
    ) -> None:
        check_options(options, _STREAM_OPTIONS, "writing a stream")
        _refuse_overwrite(overwrite=overwrite)
        self._target: Target = target_of(
            connection, table_asked(options), schema.names, "writeStream.format('snowmelt')"
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Outcome:
        """Write one task's rows of a batch."""
        plan = self._target.plan
        context = TaskContext.get()
        query_id = None if context is None else context.getLocalProperty(_QUERY)
        return Outcome(write_rows(plan, iterator), plan.load_id, query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a batch unless it was committed before."""
        outcomes = _outcomes(messages)
        if not outcomes:
            return
        queries = {each.query_id for each in outcomes}
        loads = {each.load_id for each in outcomes}
        if len(queries) != 1 or None in queries or len(loads) != 1:
            raise LoadRefused(
                what=f"Batch {batchId}",
                reason="its tasks do not tell of one query, so it could be written twice",
            )
        [load_id], [query_id] = loads, queries
        once = Once(f"spark:{query_id}", batchId)
        commit_written(
            self._target, [each.written for each in outcomes], once=once, load_id=load_id
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave everything as it is: what was not committed is swept, what was must stay."""


def _outcomes(messages: list[WriterCommitMessage | None]) -> list[Outcome]:
    found = [each for each in messages if isinstance(each, Outcome)]
    if len(found) != len(messages):
        raise LoadRefused(
            what="The write", reason=f"only {len(found)} of {len(messages)} tasks have ended"
        )
    return found


def _refuse_overwrite(*, overwrite: bool) -> None:
    if overwrite:
        raise Unsupported(
            what=f"Overwriting a table by the format {FORMAT}",
            instead="tables take rows and keep them; use mode('append') or outputMode('append'), "
            "or CREATE OR REPLACE TABLE before",
        )
