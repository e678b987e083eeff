"""Pipes: named entry points of a table, each with the COPY statement that transforms its rows."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import make_record
from snowmelt.catalog.objects.tables import select_in_schemas
from snowmelt.catalog.sql.pipe_copy import PipeCopy
from snowmelt.errors import AlreadyExists, PipeNotFound
from snowmelt.schema.types import TableName, to_display_name

# Behind a table's name: the pipe that each table has by itself.
DEFAULT_PIPE_SUFFIX = "-STREAMING"
_PIPES = model.pipes


@dataclass(frozen=True, slots=True)
class PipeRecord:
    """A pipe; `definition` is the text of its COPY."""

    pipe_id: int
    database: str
    schema: str
    name: str
    owner: str
    definition: str
    comment: str | None
    created_at: dt.datetime

    def __str__(self) -> str:
        return ".".join(map(to_display_name, (self.database, self.schema, self.name)))


def resolve_pipe_table(pipe_copy: PipeCopy, pipe_name: TableName) -> TableName:
    """Return the table that a pipe copies into; a short name is one beside the pipe."""
    parts = pipe_copy.table.parts
    return TableName(*(pipe_name.database, pipe_name.schema)[: 3 - len(parts)], *parts)


def find_pipe(connection: sa.Connection, name: TableName) -> PipeRecord | None:
    """Return the live pipe of this name, None when there is none."""
    found = list_pipes(connection, name.database, name.schema, name.table)
    return found[0] if found else None


def list_pipes(
    connection: sa.Connection, database: str | None, schema: str | None, name: str | None = None
) -> list[PipeRecord]:
    """Return the live pipes, ordered by name, of one database, schema and name when given."""
    query = select_in_schemas(_PIPES, database, schema, name)
    return [make_record(PipeRecord, row) for row in connection.execute(query)]


def create_pipe(
    connection: sa.Connection,
    name: TableName,
    schema_id: int,
    *,
    owner: str,
    definition: str,
    comment: str | None,
    now: dt.datetime,
) -> None:
    """Create a pipe.

    Raises:
        AlreadyExists: There is one of that name.
    """
    if find_pipe(connection, name) is not None:
        raise AlreadyExists(kind="Pipe", name=name)
    connection.execute(
        sa.insert(_PIPES).values(
            schema_id=schema_id,
            name=name.table,
            owner=owner,
            definition=definition,
            comment=comment,
            created_at=now,
        )
    )


def drop_pipe(connection: sa.Connection, name: TableName, now: dt.datetime) -> None:
    """Drop a pipe; rows that came through it stay, and so do the table's channels.

    Raises:
        PipeNotFound: There is none of that name.
    """
    found = find_pipe(connection, name)
    if found is None:
        raise PipeNotFound(pipe=name)
    connection.execute(
        sa.update(_PIPES).where(_PIPES.c.pipe_id == found.pipe_id).values(dropped_at=now)
    )
