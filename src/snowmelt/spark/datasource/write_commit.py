"""One commit for what tasks of Spark have written: a load, closed as soon as it has begun.

Tasks write first and the load begins when all are done, because there is no process of ours that
lives as long as Spark's write does. Until then clean-up leaves files alone whose load it does not
know, for a day; so a write that took nearly as long is refused.
"""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from snowmelt.catalog.db.catalog_clock import open_catalog_clock
from snowmelt.catalog.jobs.loads import LoadTotals, OffsetAdvance, read_stream_offsets
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.security.access_control import require_table_privilege
from snowmelt.errors import LoadOvertaken, LoadRefused, UnknownOutcome
from snowmelt.spark.datasource.write_task import WritePlan, Written, matched
from snowmelt.table.load_commit import (
    LoadRequest,
    LoadResult,
    abort_load,
    begin_load,
    commit_load,
    renewing_load_lease,
)
from snowmelt.table.warehouse import open_warehouse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.catalog.db.database import Database
    from snowmelt.schema.types import TableName
    from snowmelt.spark.datasource.connection import Connection
    from snowmelt.table.load_commit import OpenLoad

# Clean-up takes files of a load that never began after 24 hours.
_LONGEST = dt.timedelta(hours=20)
_TOPIC = "batch"


@dataclass(frozen=True, slots=True)
class Target:
    """A table that a DataFrame is written to, as it was when the write began; picklable.

    `statement` is what the history shows.
    """

    connection: Connection
    table: TableName
    table_id: int
    incarnation: str
    plan: WritePlan
    statement: str
    began_at: dt.datetime


@dataclass(frozen=True, slots=True)
class Once:
    """What makes a write happen once: the number `batch` of a `stream`, which follow each other."""

    stream: str
    batch: int


def target_of(
    connection: Connection,
    table: TableName,
    names: Sequence[str],
    statement: str,
    *,
    zone: str | None = None,
) -> Target:
    """Look a table up, and match the columns of a DataFrame with its own.

    Args:
        connection: The lake, and whose privileges count.
        table: Where the rows go.
        names: The DataFrame's columns.
        statement: What the history shows.
        zone: The session's time zone; None leaves it to the tasks to find out.

    Raises:
        TableNotFound: It does not exist, or the role may not insert into it.
        LoadRefused: The columns are not the table's.
    """
    with connection.database.reading() as reading:
        found = find_table(reading, table)
        require_table_privilege(reading, connection.role, found, "INSERT")
    load_id = str(uuid.uuid4())
    present = {column.name for column in found.schema.columns}
    plan = WritePlan(
        load_id=load_id,
        warehouse_url=connection.warehouse,
        folder=f"{open_warehouse(connection.warehouse).table_folder(found)}/data/{load_id}",
        schema=found.schema,
        cluster_by=tuple(name for name in found.cluster_by if name in present),
        sources=matched(found.schema, names, table),
        zone=zone,
    )
    return Target(
        connection,
        table,
        found.table_id,
        found.incarnation,
        plan,
        statement,
        open_catalog_clock(connection.database).now(),
    )


def commit_written(
    target: Target, written: Sequence[Written], *, once: Once | None = None, load_id: str = ""
) -> bool:
    """Make everything that tasks wrote part of the table, all or nothing.

    Args:
        target: What was written to.
        written: What tasks wrote whose outcome arrived, each task once.
        once: Do nothing if this batch was committed before.
        load_id: Whose folder the files are in, where it is not the target's own.

    Returns:
        Whether it was done; False where the batch had been committed before.

    Raises:
        LoadOvertaken: The table was dropped, or has got a column that must not be NULL.
        UnknownOutcome: It may have been committed.
    """
    database = target.connection.database
    if once is not None and _next_batch(database, target, once) > once.batch:
        return False
    clock = open_catalog_clock(database)
    if clock.now() - target.began_at > _LONGEST:
        raise LoadRefused(
            what=f"The write to {target.table}",
            reason="it took more than 20 hours, and its first files may be cleaned away",
        )
    load = begin_load(
        database,
        LoadRequest(
            target.table,
            target.statement,
            target.connection.role,
            stream_name=None if once is None else once.stream,
            load_id=load_id or target.plan.load_id,
        ),
        warehouse_url=target.connection.warehouse,
        clock=clock,
    )
    try:
        load = as_written(load, target)
        with renewing_load_lease(database, load, clock=clock):
            commit_load(database, load, _result(database, target, written, once), clock=clock)
    except UnknownOutcome:
        raise
    except BaseException as error:
        abort_load(database, load, str(error) or type(error).__name__, clock=clock)
        if (
            once is not None
            and isinstance(error, LoadOvertaken)
            and _next_batch(database, target, once) > once.batch
        ):
            return False
        raise
    return True


def as_written(load: OpenLoad, target: Target) -> OpenLoad:
    """Return a load whose columns are those that the rows were written for.

    Raises:
        LoadOvertaken: It is of another table, which has got the name since.
    """
    if load.table.table_id != target.table_id:
        raise LoadOvertaken(load=load.load_id, reason=f"table {target.table} was dropped")
    return replace(load, table=replace(load.table, schema=target.plan.schema))


def _result(
    database: Database, target: Target, written: Sequence[Written], once: Once | None
) -> LoadResult:
    files = [file for each in written for file in each.files]
    advances: tuple[OffsetAdvance, ...] = ()
    if once is not None:
        stream = _stream(target, once)
        with database.reading() as connection:
            saved = read_stream_offsets(connection, stream).get((_TOPIC, 0))
        advances = (OffsetAdvance(stream, _TOPIC, 0, saved, once.batch + 1),)
    totals = LoadTotals(
        files=0,
        rows=sum(each.rows for each in written),
        rejects=0,
        bytes=sum(file.size for file in files),
    )
    return LoadResult(files, (), totals, offsets=advances)


def _next_batch(database: Database, target: Target, once: Once) -> int:
    with database.reading() as connection:
        return read_stream_offsets(connection, _stream(target, once)).get((_TOPIC, 0), 0)


def _stream(target: Target, once: Once) -> str:
    return f"{target.incarnation}/{once.stream}"
