"""Statements about pipes: CREATE, DROP, DESCRIBE, SHOW."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.commands.ddl import change
from snowmelt.catalog.commands.session import Result
from snowmelt.catalog.commands.show import PIPE_COLUMNS, pipe_row, show
from snowmelt.catalog.model.privileges import PUBLIC
from snowmelt.catalog.objects import pipes
from snowmelt.catalog.security import access_control as access
from snowmelt.catalog.sql.identifiers import Existing, Name, schema_shown
from snowmelt.catalog.sql.pipe_ast import CreatePipe, DescribePipe, DropPipe
from snowmelt.errors import PipeNotFound, PrivilegeMissing, StatementError
from snowmelt.schema.types import TableName, display_name

if TYPE_CHECKING:
    from snowmelt.catalog.commands.session import Session
    from snowmelt.catalog.model.records import TableRecord
    from snowmelt.catalog.sql.pipe_ast import PipeCopy


@change.register(CreatePipe)
def _create_pipe(statement: CreatePipe, session: Session) -> Result:
    name = session.table_name(statement.name)
    schema = session.find_schema(name.database, name.schema)
    session.require(
        "SCHEMA", schema.schema_id, "CREATE PIPE", schema_shown(name.database, name.schema)
    )
    if name.table.upper().endswith(pipes.OWN_SUFFIX):
        raise StatementError(
            reason=f"Pipes named …{pipes.OWN_SUFFIX} are the tables' own, and there by themselves",
            line=statement.name.place.line,
            column=statement.name.place.column,
        )
    known = pipes.find_pipe(session.connection, name)
    if known is not None and statement.existing is Existing.KEEP:
        return Result(message=f"Pipe {name} exists already; nothing was done.")
    _check(statement.copy, session, beside=name)
    if known is not None and statement.existing is Existing.REPLACE:
        _require_owner(known, session)
        pipes.drop_pipe(session.connection, name, session.now)
    pipes.create_pipe(
        session.connection,
        name,
        schema.schema_id,
        owner=session.role,
        definition=statement.definition,
        comment=statement.comment,
        now=session.now,
    )
    return Result(message=f"Pipe {name} created.")


@change.register(DropPipe)
def _drop_pipe(statement: DropPipe, session: Session) -> Result:
    name = session.table_name(statement.name)
    known = pipes.find_pipe(session.connection, name)
    if known is None and statement.if_exists:
        return Result(message=f"Pipe {name} does not exist; nothing was done.")
    if known is not None:
        _require_owner(known, session)
    pipes.drop_pipe(session.connection, name, session.now)
    return Result(message=f"Pipe {name} dropped.")


def _check(copy: PipeCopy, session: Session, *, beside: TableName) -> None:
    """Let pass what goes with the table as it is.

    Raises:
        StatementError: A column that is not there, or another number of expressions; says where.
        TableNotFound: There is no such table.
        PrivilegeMissing: The role may not insert into it.
    """
    table = session.find_table(pipes.pipe_table(copy, beside))
    if not access.has(session.connection, session.role, "TABLE", table.table_id, "INSERT"):
        raise PrivilegeMissing(
            role=display_name(session.role), privilege="INSERT", object=f"table {table.name}"
        )
    for column in copy.columns or ():
        if table.schema.column(column) is None:
            raise _no_column(column, table, copy.table)
    items = copy.items or ()
    room = len(copy.columns or table.schema.columns)
    for number, item in enumerate(items):
        if copy.by_name and table.schema.column(item.alias or "") is None:
            raise _no_column(item.alias or "", table, Name((), item.place))
        is_last_too_early = copy.columns and len(items) == number + 1 < room
        if not copy.by_name and (number >= room or is_last_too_early):
            raise StatementError(
                reason=f"There are {len(items)} expressions for {room} columns",
                line=item.place.line,
                column=item.place.column,
            )


def _no_column(column: str, table: TableRecord, where: Name) -> StatementError:
    return StatementError(
        reason=f"Table {table.name} has no column {display_name(column)}",
        line=where.place.line,
        column=where.place.column,
    )


def _require_owner(pipe: pipes.PipeRecord, session: Session) -> None:
    if not session.is_administrator and pipe.owner not in {session.role, PUBLIC}:
        raise PrivilegeMissing(
            role=display_name(session.role), privilege="OWNERSHIP", object=f"pipe {pipe}"
        )


# --- DESCRIBE PIPE.


@show.register(DescribePipe)
def _describe_pipe(statement: DescribePipe, session: Session) -> Result:
    name = session.table_name(statement.name)
    found = pipes.find_pipe(session.connection, name)
    if found is None or not (session.is_administrator or found.owner == session.role):
        raise PipeNotFound(pipe=name)
    return Result(PIPE_COLUMNS, (pipe_row(found),))
