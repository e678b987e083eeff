"""Pipes: named entry points of a table, each with the COPY statement that transforms its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.model import pipes
from snowmelt.errors import AlreadyExists, PipeNotFound
from snowmelt.schema.types import TableName, to_display_name

if TYPE_CHECKING:
    import datetime as dt

    from snowmelt.catalog.sql.pipe_copy import PipeCopy

# Behind a table's name: the pipe that each table has by itself.
DEFAULT_PIPE_SUFFIX = "-STREAMING"
_PIPES = pipes
_SCHEMAS = model.schemas
_DATABASES = model.databases


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
    row = connection.execute(
        _select_pipes().where(
            _DATABASES.c.name == name.database,
            _SCHEMAS.c.name == name.schema,
            _PIPES.c.name == name.table,
        )
    ).first()
    return None if row is None else PipeRecord(*row)


def list_pipes(
    connection: sa.Connection, database: str | None = None, schema: str | None = None
) -> list[PipeRecord]:
    """Return the live pipes, ordered by name, of one database or schema when given."""
    query = _select_pipes()
    if database is not None:
        query = query.where(_DATABASES.c.name == database)
    if schema is not None:
        query = query.where(_SCHEMAS.c.name == schema)
    rows = connection.execute(query.order_by(_DATABASES.c.name, _SCHEMAS.c.name, _PIPES.c.name))
    return [PipeRecord(*row) for row in rows]


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


def _select_pipes() -> sa.Select[Any]:
    return (
        sa.select(
            _PIPES.c.pipe_id,
            _DATABASES.c.name,
            _SCHEMAS.c.name,
            _PIPES.c.name,
            _PIPES.c.owner,
            _PIPES.c.definition,
            _PIPES.c.comment,
            _PIPES.c.created_at,
        )
        .join(_SCHEMAS, _PIPES.c.schema_id == _SCHEMAS.c.schema_id)
        .join(_DATABASES, _SCHEMAS.c.database_id == _DATABASES.c.database_id)
        .where(
            _PIPES.c.dropped_at.is_(None),
            _SCHEMAS.c.dropped_at.is_(None),
            _DATABASES.c.dropped_at.is_(None),
        )
    )
