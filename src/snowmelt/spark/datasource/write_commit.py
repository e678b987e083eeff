"""Commits a Spark write: one load that begins after all tasks have ended.

Tasks write files before the load begins, because no Snowmelt process runs during the whole write.
Garbage collection deletes files of unknown loads after 24 hours. A write that took more than 20
hours is therefore rejected.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from snowmelt.catalog.db.database import Database, open_catalog_clock
from snowmelt.catalog.jobs.load_history import LoadTotals, OffsetAdvance, read_stream_offsets
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.security.access_control import require_table_privilege
from snowmelt.clock import Clock
from snowmelt.errors import LoadOvertaken, LoadRefused, SnowmeltError, UnknownOutcome
from snowmelt.schema.types import TableName
from snowmelt.spark.datasource.catalog_connection import LakeConnection
from snowmelt.spark.datasource.write_task import WritePlan, WriteTaskResult, match_columns
from snowmelt.table.warehouse_paths import open_warehouse

if TYPE_CHECKING:
    from snowmelt.table.load_commit import LoadResult, OpenLoad

# Garbage collection deletes files of unknown loads after 24 hours.
_MAX_WRITE_DURATION = dt.timedelta(hours=20)
_OFFSET_TOPIC = "batch"


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """Target table of a DataFrame write, as of the start of the write. Picklable.

    `statement` is the text to store in LOAD_HISTORY.
    """

    connection: LakeConnection
    table: TableName
    table_id: int
    incarnation: str
    plan: WritePlan
    statement: str
    began_at: dt.datetime


@dataclass(frozen=True, slots=True)
class WriteId:
    """Idempotency key of a write: a stream ID, and a batch number that increases in the stream."""

    stream: str
    batch: int


def resolve_write_target(
    connection: LakeConnection,
    table: TableName,
    names: Sequence[str],
    statement: str,
    *,
    timezone: str | None = None,
    privileges: Sequence[str] = ("INSERT",),
) -> WriteTarget:
    """Look up a table and match a DataFrame's columns with its columns.

    Args:
        connection: The catalog, stores and role.
        table: The target table.
        names: The DataFrame's column names.
        statement: The text to store in LOAD_HISTORY.
        timezone: The session's time zone. None: each task determines it.
        privileges: The role must have one of these privileges on the table.

    Raises:
        TableNotFound: If the table does not exist or the role lacks the privilege on it.
        LoadRefused: If the columns do not match the table's.
    """
    with connection.database.reading() as reading:
        found = find_table(reading, table)
        require_table_privilege(reading, connection.role, found, *privileges)
    load_id = str(uuid.uuid4())
    now = open_catalog_clock(connection.database).now()
    present = {column.name for column in found.schema.columns}
    plan = WritePlan(
        load_id=load_id,
        warehouse_url=connection.warehouse,
        folder=f"{open_warehouse(connection.warehouse).table_folder(found)}/data/{load_id}",
        schema=found.schema,
        cluster_by=tuple(name for name in found.cluster_by if name in present),
        sources=match_columns(found.schema, names, table),
        started_at=now,
        zone=timezone,
    )
    return WriteTarget(
        connection,
        table,
        found.table_id,
        found.incarnation,
        plan,
        statement,
        now,
    )


def commit_write(
    target: WriteTarget,
    results: Sequence[WriteTaskResult],
    *,
    write_id: WriteId | None = None,
    load_id: str = "",
) -> bool:
    """Add the files of all tasks to the table in one commit.

    Args:
        target: The write target.
        results: The results of the tasks, one per task.
        write_id: Do nothing if this batch is already committed.
        load_id: Load ID in the files' folder. Empty: the load ID of the target.

    Returns:
        True if this call committed. False if the batch was already committed.

    Raises:
        LoadOvertaken: If the table was dropped or got a NOT NULL column.
        LoadRefused: If the write took more than 20 hours.
        UnknownOutcome: If the rows may have been committed.
    """
    database = target.connection.database
    if write_id is not None and _read_next_batch(database, target, write_id) > write_id.batch:
        return False
    clock = open_catalog_clock(database)
    if clock.now() - target.began_at > _MAX_WRITE_DURATION:
        raise LoadRefused(
            what=f"The write to {target.table}",
            reason="it took more than 20 hours, so its first files may be deleted. Write less data at a time",
        )
    try:
        run_as_load(
            target,
            lambda: _make_load_result(database, target, results, write_id),
            clock=clock,
            what=f"The write to {target.table}",
            stream_name=None if write_id is None else write_id.stream,
            load_id=load_id,
        )
    except LoadOvertaken:
        if write_id is None or _read_next_batch(database, target, write_id) <= write_id.batch:
            raise
        return False
    return True


def run_as_load(
    target: WriteTarget,
    write: Callable[[], LoadResult],
    *,
    clock: Clock,
    what: str,
    privileges: Sequence[str] = ("INSERT",),
    stream_name: str | None = None,
    load_id: str = "",
) -> LoadResult:
    """Open a load, run `write`, and commit its result.

    The role must have one of `privileges` on the table. `what` is the statement's name in errors.
    Without `load_id`, the load has the ID of the target.

    Raises:
        TableNotFound: If the table does not exist or the role lacks the privilege on it.
        LoadRefused: If a task rejected a row.
        LoadOvertaken: If the table was dropped or changed during the statement.
        UnknownOutcome: If the result may have been committed.
    """
    # Import PyIceberg only to commit: a process that only prepares a write needs no metadata.
    from snowmelt.table.load_commit import (
        LoadRequest,
        abort_load,
        begin_load,
        commit_load,
        renewing_load_lease,
    )

    connection = target.connection
    load = begin_load(
        connection.database,
        LoadRequest(
            target.table,
            target.statement,
            connection.role,
            stream_name=stream_name,
            load_id=load_id or target.plan.load_id,
        ),
        warehouse_url=connection.warehouse,
        clock=clock,
        privileges=privileges,
    )
    try:
        load = _restore_write_schema(load, target)
        with renewing_load_lease(connection.database, load, clock=clock):
            result = write()
            commit_load(connection.database, load, result, clock=clock)
    except UnknownOutcome:
        raise
    except BaseException as error:
        abort_load(connection.database, load, _format_error(error), clock=clock)
        if isinstance(error, SnowmeltError):
            raise
        sentence = _extract_worker_error(str(error))
        if sentence is None:
            raise
        raise LoadRefused(what=what, reason=sentence) from error
    return result


def _format_error(error: BaseException) -> str:
    return (
        _extract_worker_error(str(error)) or str(error).partition("\n")[0] or type(error).__name__
    )


def _extract_worker_error(text: str) -> str | None:
    """Return the message of a Snowmelt error that a task raised, or None."""
    for line in reversed(text.splitlines()):
        name, found, sentence = line.strip().partition(": ")
        if found and name.startswith("snowmelt.errors."):
            return sentence.rstrip(".")
    return None


def _restore_write_schema(load: OpenLoad, target: WriteTarget) -> OpenLoad:
    """Return the load with the columns for which the rows were written.

    Raises:
        LoadOvertaken: If the name belongs to another table.
    """
    if load.table.table_id != target.table_id:
        raise LoadOvertaken(load=load.load_id, reason=f"table {target.table} was dropped")
    return replace(load, table=replace(load.table, schema=target.plan.schema))


def _make_load_result(
    database: Database,
    target: WriteTarget,
    results: Sequence[WriteTaskResult],
    write_id: WriteId | None,
) -> LoadResult:
    from snowmelt.table.load_commit import LoadResult

    files = [file for each in results for file in each.files]
    advances: tuple[OffsetAdvance, ...] = ()
    if write_id is not None:
        stream = _make_stream_name(target, write_id)
        with database.reading() as connection:
            saved = read_stream_offsets(connection, stream).get((_OFFSET_TOPIC, 0))
        advances = (OffsetAdvance(stream, _OFFSET_TOPIC, 0, saved, write_id.batch + 1),)
    totals = LoadTotals(
        files=0,
        rows=sum(each.rows for each in results),
        rejects=0,
        bytes=sum(file.size for file in files),
    )
    return LoadResult(files, (), totals, offsets=advances)


def _read_next_batch(database: Database, target: WriteTarget, write_id: WriteId) -> int:
    with database.reading() as connection:
        return read_stream_offsets(connection, _make_stream_name(target, write_id)).get(
            (_OFFSET_TOPIC, 0), 0
        )


def _make_stream_name(target: WriteTarget, write_id: WriteId) -> str:
    return f"{target.incarnation}/{write_id.stream}"
