"""Statements on pipes: CREATE, DROP and DESCRIBE. SHOW PIPES is in `show`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.commands.ddl import execute_ddl
from snowmelt.catalog.commands.show import PIPE_COLUMNS, execute_show_or_describe, to_pipe_row
from snowmelt.catalog.commands.statement_context import StatementResult
from snowmelt.catalog.model.privilege_kinds import PUBLIC
from snowmelt.catalog.objects import pipes
from snowmelt.catalog.security import access_control
from snowmelt.catalog.sql.object_name_types import CreateMode, ObjectName, display_schema
from snowmelt.catalog.sql.pipe_ast import CreatePipe, DescribePipe, DropPipe
from snowmelt.errors import PipeNotFound, PrivilegeMissing, StatementError
from snowmelt.schema.types import TableName, to_display_name

if TYPE_CHECKING:
    from snowmelt.catalog.commands.statement_context import StatementSession
    from snowmelt.catalog.model.records import TableRecord
    from snowmelt.catalog.sql.pipe_ast import PipeCopy


@execute_ddl.register(CreatePipe)
def _create_pipe(statement: CreatePipe, session: StatementSession) -> StatementResult:
    name = session.resolve_table_name(statement.name)
    schema = session.find_schema(name.database, name.schema)
    session.require_privilege(
        "SCHEMA", schema.schema_id, "CREATE PIPE", display_schema(name.database, name.schema)
    )
    if name.table.upper().endswith(pipes.DEFAULT_PIPE_SUFFIX):
        raise StatementError(
            reason=f"Pipes named …{pipes.DEFAULT_PIPE_SUFFIX} are the tables' own, and there by themselves",
            line=statement.name.position.line,
            column=statement.name.position.column,
        )
    known = pipes.find_pipe(session.connection, name)
    if known is not None and statement.create_mode is CreateMode.IF_NOT_EXISTS:
        return StatementResult(message=f"Pipe {name} exists already; nothing was done.")
    _check_pipe_copy(statement.copy, session, pipe_name=name)
    if known is not None and statement.create_mode is CreateMode.OR_REPLACE:
        _require_pipe_owner(known, session)
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
    return StatementResult(message=f"Pipe {name} created.")


@execute_ddl.register(DropPipe)
def _drop_pipe(statement: DropPipe, session: StatementSession) -> StatementResult:
    name = session.resolve_table_name(statement.name)
    known = pipes.find_pipe(session.connection, name)
    if known is None and statement.if_exists:
        return StatementResult(message=f"Pipe {name} does not exist; nothing was done.")
    if known is not None:
        _require_pipe_owner(known, session)
    pipes.drop_pipe(session.connection, name, session.now)
    return StatementResult(message=f"Pipe {name} dropped.")


def _check_pipe_copy(copy: PipeCopy, session: StatementSession, *, pipe_name: TableName) -> None:
    """Let pass what goes with the table as it is.

    Raises:
        StatementError: A column that is not there, or another number of expressions; says where.
        TableNotFound: There is no such table.
        PrivilegeMissing: The role may not insert into it.
    """
    table = session.find_table(pipes.resolve_pipe_table(copy, pipe_name))
    if not access_control.has_privilege(
        session.connection, session.role, "TABLE", table.table_id, "INSERT"
    ):
        raise PrivilegeMissing(
            role=to_display_name(session.role), privilege="INSERT", object=f"table {table.name}"
        )
    for column in copy.columns or ():
        if table.schema.column(column) is None:
            raise _unknown_column_error(column, table, copy.table)
    items = copy.items or ()
    room = len(copy.columns or table.schema.columns)
    for number, item in enumerate(items):
        if copy.by_name and table.schema.column(item.alias or "") is None:
            raise _unknown_column_error(item.alias or "", table, ObjectName((), item.position))
        is_last_too_early = copy.columns and len(items) == number + 1 < room
        if not copy.by_name and (number >= room or is_last_too_early):
            raise StatementError(
                reason=f"There are {len(items)} expressions for {room} columns",
                line=item.position.line,
                column=item.position.column,
            )


def _unknown_column_error(
    column: str, table: TableRecord, written_name: ObjectName
) -> StatementError:
    return StatementError(
        reason=f"Table {table.name} has no column {to_display_name(column)}",
        line=written_name.position.line,
        column=written_name.position.column,
    )


def _require_pipe_owner(pipe: pipes.PipeRecord, session: StatementSession) -> None:
    if not session.is_administrator and pipe.owner not in {session.role, PUBLIC}:
        raise PrivilegeMissing(
            role=to_display_name(session.role), privilege="OWNERSHIP", object=f"pipe {pipe}"
        )


# --- DESCRIBE PIPE.


@execute_show_or_describe.register(DescribePipe)
def _describe_pipe(statement: DescribePipe, session: StatementSession) -> StatementResult:
    name = session.resolve_table_name(statement.name)
    found = pipes.find_pipe(session.connection, name)
    if found is None or not (session.is_administrator or found.owner == session.role):
        raise PipeNotFound(pipe=name)
    return StatementResult(PIPE_COLUMNS, (to_pipe_row(found),))
