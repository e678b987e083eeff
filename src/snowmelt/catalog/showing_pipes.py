"""SHOW PIPES: which there are, for those whose they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog import pipes
from snowmelt.catalog.naming import Level

if TYPE_CHECKING:
    from collections.abc import Iterator

    from snowmelt.catalog.session import Session
    from snowmelt.catalog.statements import Show

PIPE_COLUMNS = (
    "created_on",
    "name",
    "database_name",
    "schema_name",
    "definition",
    "owner",
    "comment",
)


def shown_pipes(statement: Show, session: Session) -> Iterator[tuple[object, ...]]:
    """Yield the pipes that the session may know of, where the statement looks."""
    database = schema = None
    if statement.scope is not None and statement.level is Level.DATABASE:
        database = session.find_database(session.database_name(statement.scope)).name
    elif statement.scope is not None:
        found = session.find_schema(*session.schema_name(statement.scope))
        database, schema = found.database, found.name
    for each in pipes.pipes_of(session.connection, database, schema):
        if session.is_administrator or each.owner == session.role:
            yield pipe_row(each)


def pipe_row(pipe: pipes.PipeRecord) -> tuple[object, ...]:
    """Return what is shown of a pipe."""
    return (
        pipe.created_at,
        pipe.name,
        pipe.database,
        pipe.schema,
        pipe.definition,
        pipe.owner,
        pipe.comment,
    )
