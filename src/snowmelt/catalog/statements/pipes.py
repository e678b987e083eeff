"""Pipes on streamed rows: CREATE, DROP, DESCRIBE and SHOW. There are no other kinds of pipes."""

from __future__ import annotations

from collections.abc import Iterator

from snowmelt.catalog.model.records import PUBLIC, TableRecord
from snowmelt.catalog.objects import tables
from snowmelt.catalog.sql.cursor import CreateMode, NameLevel, ObjectName, TokenCursor
from snowmelt.catalog.sql.pipe_copy import PipeCopy, parse_copy_at_cursor
from snowmelt.catalog.statements.statement_context import (
    Listing,
    ShowObjects,
    ShowRow,
    Statement,
    StatementKind,
    StatementResult,
    StatementSession,
    make_statement_error,
    skip_if_exists,
    skip_if_missing,
)
from snowmelt.errors import PipeNotFound, PrivilegeMissing, StatementError
from snowmelt.schema.types import TableName, to_display_name


class CreatePipe(Statement):
    """CREATE PIPE; `definition` is the text after AS."""

    name: ObjectName
    create_mode: CreateMode
    definition: str
    copy: PipeCopy
    comment: str | None

    def execute(self, session: StatementSession) -> StatementResult:
        name = session.resolve_table_name(self.name)
        schema = session.require_in_schema(name, "CREATE PIPE")
        if name.table.upper().endswith(tables.DEFAULT_PIPE_SUFFIX):
            raise make_statement_error(
                f"Names ending in {tables.DEFAULT_PIPE_SUFFIX} are reserved for the default pipes of tables; "
                "choose another name",
                self.name.position,
            )
        known = tables.find_pipe(session.connection, name)
        skip_if_exists(f"Pipe {name}", self.create_mode, exists=known is not None)
        _check_pipe_copy(self.copy, session, pipe_name=name)
        if known is not None and self.create_mode is CreateMode.OR_REPLACE:
            _require_pipe_owner(known, session)
            tables.drop_pipe(session.connection, name, session.now)
        tables.create_pipe(
            session.connection,
            name,
            schema.schema_id,
            owner=session.role,
            definition=self.definition,
            comment=self.comment,
            now=session.now,
        )
        return StatementResult(message=f"Pipe {name} created.")


class DropPipe(Statement):
    """DROP PIPE."""

    name: ObjectName
    if_exists: bool

    def execute(self, session: StatementSession) -> StatementResult:
        name = session.resolve_table_name(self.name)
        known = tables.find_pipe(session.connection, name)
        skip_if_missing(f"Pipe {name}", self.if_exists, exists=known is not None)
        if known is not None:
            _require_pipe_owner(known, session)
        tables.drop_pipe(session.connection, name, session.now)
        return StatementResult(message=f"Pipe {name} dropped.")


class DescribePipe(Statement):
    """DESCRIBE PIPE."""

    reads_only = True

    name: ObjectName

    def execute(self, session: StatementSession) -> StatementResult:
        name = session.resolve_table_name(self.name)
        found = tables.find_pipe(session.connection, name)
        if found is None or not _may_see(found, session):
            raise PipeNotFound(pipe=name)
        return StatementResult(tuple(PIPES.columns.split()), (_to_pipe_row(found),))


def _check_pipe_copy(copy: PipeCopy, session: StatementSession, *, pipe_name: TableName) -> None:
    """Verify that the COPY of a pipe fits its table.

    Raises:
        StatementError: If a column does not exist, or the number of expressions differs.
        TableNotFound: If the table does not exist.
        PrivilegeMissing: If the role lacks INSERT on the table.
    """
    table = session.find_table(tables.resolve_pipe_table(copy, pipe_name))
    session.require_privilege("TABLE", table.table_id, table.name, "INSERT")
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
            raise make_statement_error(
                f"There are {len(items)} expressions for {room} columns", item.position
            )


def _unknown_column_error(
    column: str, table: TableRecord, written_name: ObjectName
) -> StatementError:
    return make_statement_error(
        f"Table {table.name} has no column {to_display_name(column)}", written_name.position
    )


def _require_pipe_owner(pipe: tables.PipeRecord, session: StatementSession) -> None:
    if not session.is_administrator and pipe.owner not in {session.role, PUBLIC}:
        raise PrivilegeMissing(
            role=to_display_name(session.role), privilege="OWNERSHIP", object=f"pipe {pipe}"
        )


def _may_see(pipe: tables.PipeRecord, session: StatementSession) -> bool:
    return session.is_administrator or pipe.owner == session.role


def _list_pipe_rows(statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    database, schema, _ = statement.resolve_scope(session, NameLevel.SCHEMA)
    for each in tables.list_pipes(session.connection, database, schema):
        if _may_see(each, session):
            yield _to_pipe_row(each)


def _to_pipe_row(pipe: tables.PipeRecord) -> ShowRow:
    name = (pipe.name, pipe.database, pipe.schema)
    return (pipe.created_at, *name, pipe.definition, pipe.owner, pipe.comment)


def _parse_create(cursor: TokenCursor, create_mode: CreateMode) -> CreatePipe:
    name = cursor.parse_name("a pipe", 3)
    comment = None
    if cursor.accept("COMMENT"):
        cursor.expect("=")
        comment = cursor.parse_string("a comment")
    if cursor.is_next("AUTO_INGEST"):
        raise cursor.make_error(
            "AUTO_INGEST is not supported: rows come through channels of this pipe"
        )
    cursor.expect("AS")
    first = cursor.current
    copy = parse_copy_at_cursor(cursor)
    text = cursor.source_between(first, cursor.previous)
    cursor.expect_end("CREATE PIPE")
    return CreatePipe(name, create_mode, text, copy, comment)


def _parse_drop(cursor: TokenCursor, if_exists: bool) -> DropPipe:
    return DropPipe(cursor.parse_last_name("a pipe", 3, "DROP"), if_exists)


def _parse_describe(cursor: TokenCursor) -> DescribePipe:
    return DescribePipe(cursor.parse_last_name("a pipe", 3, "DESCRIBE"))


KINDS = (StatementKind("PIPE", _parse_create, None, _parse_drop, _parse_describe),)
PIPES = Listing(
    "PIPES",
    NameLevel.SCHEMA,
    "created_on name database_name schema_name definition owner comment",
    _list_pipe_rows,
)
