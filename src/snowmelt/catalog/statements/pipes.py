"""Statements on pipes: CREATE, ALTER, DROP, DESCRIBE, SHOW and SYSTEM$PIPE_STATUS.

A pipe accepts streamed rows, or it loads files: new files of a location (AUTO_INGEST = TRUE), or
files named in requests. The session's `check_file_copy` validates the COPY of files.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import dataclass

from snowmelt.catalog.model.records import PUBLIC, TableRecord
from snowmelt.catalog.objects import file_pipes, tables
from snowmelt.catalog.objects.file_pipes import FilePipeRecord
from snowmelt.catalog.objects.namespaces import find_schema
from snowmelt.catalog.sql.cursor import (
    Clause,
    ClauseReader,
    CreateMode,
    NameLevel,
    ObjectName,
    TokenCursor,
    parse_boolean,
)
from snowmelt.catalog.sql.lexer import PIPE_STATUS_FUNCTION, SourcePosition, TokenKind
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
    skipping_missing,
)
from snowmelt.errors import PipeNotFound, PrivilegeMissing, StatementError
from snowmelt.schema.types import TableName, to_display_name


@dataclass(frozen=True, slots=True)
class FileCopyText:
    """The unparsed COPY of a pipe that loads files, with its position in the statement."""

    text: str
    position: SourcePosition
    named_only: bool


class CreatePipe(Statement):
    """CREATE PIPE. `definition` is the text after AS."""

    name: ObjectName
    create_mode: CreateMode
    definition: str
    copy: PipeCopy | FileCopyText
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
        definition = self.definition
        if isinstance(self.copy, FileCopyText):
            _check_file_copy(self.copy, session, name)
        else:
            table = _check_pipe_copy(self.copy, session, pipe_name=name)
            definition = _list_target_columns(definition, self.copy, table)
        if known is not None and self.create_mode is CreateMode.OR_REPLACE:
            if not _may_use(known, session):
                raise PrivilegeMissing(
                    role=to_display_name(session.role),
                    privilege="OWNERSHIP",
                    object=f"pipe {known}",
                )
            tables.drop_pipe(session.connection, name, session.now)
        pipe_id = tables.create_pipe(
            session.connection,
            name,
            schema.schema_id,
            owner=session.role,
            definition=definition,
            comment=self.comment,
            now=session.now,
        )
        if isinstance(self.copy, FileCopyText):
            file_pipes.create_file_pipe(
                session.connection, pipe_id, named_only=self.copy.named_only
            )
        return StatementResult(message=f"Pipe {name} created.")


class AlterPipe(Statement):
    """ALTER PIPE: pause, resume, refresh or comment. Fields that are None stay unchanged."""

    name: ObjectName
    if_exists: bool
    refresh: bool = False
    paused: bool | None = None
    comment: str | None = None

    def execute(self, session: StatementSession) -> StatementResult:
        name = session.resolve_table_name(self.name)
        with skipping_missing(self.if_exists):
            pipe = _find_owned_pipe(name, session)
        if self.comment is not None:
            tables.set_pipe_comment(session.connection, pipe.pipe_id, self.comment or None)
        if self.refresh or self.paused is not None:
            if file_pipes.find_file_pipe(session.connection, pipe.pipe_id) is None:
                raise make_statement_error(
                    f"Pipe {name} accepts streamed rows: REFRESH and PIPE_EXECUTION_PAUSED are for pipes "
                    "that load files",
                    self.name.position,
                )
            values: dict[str, object] = {} if self.paused is None else {"paused": self.paused}
            if self.refresh:
                values["refresh_at"] = session.now
            file_pipes.update_file_pipe(session.connection, pipe.pipe_id, **values)
        return StatementResult(message=f"Pipe {name} altered.")


class PipeStatus(Statement):
    """SELECT SYSTEM$PIPE_STATUS('<pipe>'), which returns the state of a pipe as JSON."""

    reads_only = True

    name: ObjectName
    column: str

    def execute(self, session: StatementSession) -> StatementResult:
        name = session.resolve_table_name(self.name)
        pipe = _find_owned_pipe(name, session)
        text = json.dumps(_make_status(pipe, session), ensure_ascii=False)
        return StatementResult((self.column,), ((text,),))


class DropPipe(Statement):
    """DROP PIPE."""

    name: ObjectName
    if_exists: bool

    def execute(self, session: StatementSession) -> StatementResult:
        name = session.resolve_table_name(self.name)
        with skipping_missing(self.if_exists):
            _find_owned_pipe(name, session)
        tables.drop_pipe(session.connection, name, session.now)
        return StatementResult(message=f"Pipe {name} dropped.")


class DescribePipe(Statement):
    """DESCRIBE PIPE."""

    reads_only = True

    name: ObjectName

    def execute(self, session: StatementSession) -> StatementResult:
        name = session.resolve_table_name(self.name)
        found = _find_owned_pipe(name, session)
        state = file_pipes.find_file_pipe(session.connection, found.pipe_id)
        return StatementResult(tuple(PIPES.columns.split()), (_to_pipe_row(found, state),))


def _check_file_copy(copy: FileCopyText, session: StatementSession, name: TableName) -> None:
    """Validate the COPY of a pipe that loads files.

    Raises:
        StatementError: If the COPY is invalid, or has an option that pipes do not support.
        TableNotFound: If the table does not exist.
        PrivilegeMissing: If the role is not ACCOUNTADMIN, which is required because the service
            reads the files with its own permissions.
    """
    session.require_administrator("CREATE PIPE of files")
    if session.check_file_copy is None:
        raise make_statement_error(
            "A pipe of files is not supported here: create the pipe with `snowmelt sql`, the statement API or "
            "`lake.sql`",
            copy.position,
        )
    try:
        session.check_file_copy(session, copy.text, name)
    except StatementError as error:
        line, column = error.fields.get("line"), error.fields.get("column")
        if isinstance(line, int) and isinstance(column, int):
            shift = copy.position.column - 1 if line == 1 else 0
            error.fields.update(line=line + copy.position.line - 1, column=column + shift)
        raise


def _check_pipe_copy(
    copy: PipeCopy, session: StatementSession, *, pipe_name: TableName
) -> TableRecord:
    """Validate the COPY of a pipe that accepts rows against its table, and return the table.

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
                f"Expected {room} expressions, one for each column, not {len(items)}", item.position
            )
    return table


def _list_target_columns(definition: str, copy: PipeCopy, table: TableRecord) -> str:
    """Add the names of the target columns to a COPY that refers to them by position.

    Otherwise, a dropped column would move the values of later expressions into other columns.
    """
    if copy.columns is not None or copy.items is None or copy.by_name:
        return definition
    cursor = TokenCursor(definition)
    first = cursor.current
    cursor.expect("COPY", "INTO")
    cursor.parse_name("a table", 3)
    head = cursor.source_between(first, cursor.previous)
    names = [to_display_name(each.name) for each in table.schema.columns[: len(copy.items)]]
    return f"{head} ({', '.join(names)}){definition.removeprefix(head)}"


def _unknown_column_error(
    column: str, table: TableRecord, written_name: ObjectName
) -> StatementError:
    return make_statement_error(
        f"Table {table.name} has no column {to_display_name(column)}", written_name.position
    )


def _find_owned_pipe(name: TableName, session: StatementSession) -> tables.PipeRecord:
    """Return a pipe that the role owns.

    Raises:
        PipeNotFound: If the pipe does not exist, or the role may not use it.
    """
    pipe = tables.find_pipe(session.connection, name)
    if pipe is None or not _may_use(pipe, session):
        raise PipeNotFound(pipe=name)
    return pipe


def _may_use(pipe: tables.PipeRecord, session: StatementSession) -> bool:
    """Return True if the role owns a pipe and has USAGE on its schema and database."""
    if not session.is_administrator and pipe.owner not in {session.role, PUBLIC}:
        return False
    schema = find_schema(session.connection, pipe.database, pipe.schema)
    return session.can_use_schema(schema)


def _list_pipe_rows(statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    database, schema, _ = statement.resolve_scope(session, NameLevel.SCHEMA)
    for each in tables.list_pipes(session.connection, database, schema):
        if _may_use(each, session):
            yield _to_pipe_row(each, file_pipes.find_file_pipe(session.connection, each.pipe_id))


def _to_pipe_row(pipe: tables.PipeRecord, state: FilePipeRecord | None) -> ShowRow:
    name = (pipe.name, pipe.database, pipe.schema)
    kind = _name_kind(state)
    paused = None if state is None else state.paused
    error = None if state is None else state.last_error
    return (pipe.created_at, *name, pipe.definition, pipe.owner, pipe.comment, kind, paused, error)


def _name_kind(state: FilePipeRecord | None) -> str:
    if state is None:
        return "STREAMING"
    return "REST" if state.named_only else "AUTO_INGEST"


def _make_status(pipe: tables.PipeRecord, session: StatementSession) -> dict[str, object]:
    """Return the fields of SYSTEM$PIPE_STATUS. Fields that do not apply are omitted."""
    state = file_pipes.find_file_pipe(session.connection, pipe.pipe_id)
    if state is None:
        return {"executionState": "RUNNING", "kind": _name_kind(state)}
    failed = file_pipes.list_pipe_files(session.connection, pipe.pipe_id)
    found = {
        "executionState": "PAUSED" if state.paused else "RUNNING",
        "kind": _name_kind(state),
        "pendingFileCount": state.waiting_files or 0,
        "oldestFileTimestamp": _format_instant(state.oldest_waiting_at),
        "lastIngestedTimestamp": _format_instant(state.last_load_at),
        "lastIngestedFilePath": state.last_file,
        "lastListedTimestamp": _format_instant(state.listed_at),
        "error": state.last_error,
        "lastErrorTimestamp": _format_instant(state.last_error_at),
        "failedFileCount": len(failed),
        "failedFiles": [
            {"path": each.path, "state": each.state, "error": each.error, "at": each.at.isoformat()}
            for each in failed[-_MAX_SHOWN_FILES:]
        ],
    }
    if state.last_error is not None and not state.paused:
        found["executionState"] = "STALLED_EXECUTION_ERROR"
    return {name: value for name, value in found.items() if value is not None}


def _format_instant(instant: dt.datetime | None) -> str | None:
    return None if instant is None else instant.isoformat()


def _parse_create(cursor: TokenCursor, create_mode: CreateMode) -> CreatePipe:
    name = cursor.parse_name("a pipe", 3)
    comment, auto_ingest = None, False
    while not cursor.accept("AS"):
        if cursor.accept("COMMENT"):
            cursor.expect("=")
            comment = cursor.parse_string("a comment")
        elif cursor.accept("AUTO_INGEST"):
            cursor.expect("=")
            auto_ingest = cursor.expect_one_of("TRUE", "FALSE") == "TRUE"
        elif (reason := _UNSUPPORTED_PIPE_OPTIONS.get(cursor.current.text)) is not None:
            raise cursor.make_error(f"{cursor.current.text} is not supported: {reason}. Omit it")
        else:
            raise cursor.make_alternatives_error(("AS", "AUTO_INGEST", "COMMENT"))
    first = cursor.current
    if auto_ingest or _names_files(cursor):
        copy_text = _require_no_nul(cursor, _skip_copy(cursor))
        copy: PipeCopy | FileCopyText = FileCopyText(
            copy_text, first.position, named_only=not auto_ingest
        )
        return CreatePipe(name, create_mode, copy_text, copy, comment)
    copy = parse_copy_at_cursor(cursor)
    text = _require_no_nul(cursor, cursor.source_between(first, cursor.previous))
    cursor.expect_end("CREATE PIPE")
    return CreatePipe(name, create_mode, text, copy, comment)


def _require_no_nul(cursor: TokenCursor, definition: str) -> str:
    """Return the definition. Reject NUL, which PostgreSQL does not store."""
    if "\0" in definition:
        raise cursor.make_error(r"The statement contains the character NUL. Write it as '\0'")
    return definition


def _names_files(cursor: TokenCursor) -> bool:
    """Return True if a COPY has a path in single quotes after a FROM."""
    ahead = cursor.fork()
    while ahead.current.kind is not TokenKind.END:
        if ahead.accept("FROM") and ahead.current.kind is TokenKind.STRING:
            return True
        ahead.advance()
    return False


def _skip_copy(cursor: TokenCursor) -> str:
    """Return the text of the COPY up to the end of the statement. `check_file_copy` parses it."""
    first = cursor.current
    if not cursor.is_next("COPY"):
        raise cursor.make_error("Expected COPY here: the statement that loads the files")
    last = first
    while cursor.current.kind is not TokenKind.END:
        if cursor.current.text == ";" and cursor.current.kind is TokenKind.SYMBOL:
            cursor.expect_end("CREATE PIPE")
            break
        last = cursor.advance()
    return cursor.source_between(first, last)


def _parse_alter(cursor: TokenCursor, if_exists: bool) -> AlterPipe:
    name = cursor.parse_name("a pipe", 3)
    if cursor.accept("REFRESH"):
        if cursor.current.text in {"PREFIX", "MODIFIED_AFTER"}:
            raise cursor.make_error(
                f"{cursor.current.text} is not supported: REFRESH checks all files of the pipe. Omit it"
            )
        cursor.expect_end("ALTER PIPE … REFRESH")
        return AlterPipe(name, if_exists, refresh=True)
    if cursor.accept("UNSET", "COMMENT"):
        cursor.expect_end("ALTER PIPE")
        return AlterPipe(name, if_exists, comment="")
    cursor.expect("SET")
    reader = ClauseReader(_PIPE_CLAUSES, "pipe")
    reader.parse_changes(cursor, unset=False)
    values = {_PIPE_FIELDS[word]: value for word, (value, _) in reader.values.items()}
    return AlterPipe(name, if_exists, **values)


def parse_pipe_status(cursor: TokenCursor) -> PipeStatus:
    """Parse SELECT SYSTEM$PIPE_STATUS('<pipe>') after the name of the function."""
    cursor.expect("(")
    at = cursor.current
    text = cursor.parse_string("the name of a pipe")
    inner = TokenCursor(text)
    try:
        name = inner.parse_last_name("a pipe", 3, PIPE_STATUS_FUNCTION)
    except StatementError as error:
        raise make_statement_error(str(error.fields["reason"]), at.position) from None
    cursor.expect(")")
    column = f"{PIPE_STATUS_FUNCTION}({at.source_text})"
    if cursor.accept("AS") or cursor.current.kind in {TokenKind.WORD, TokenKind.QUOTED}:
        column = cursor.parse_identifier("a column")
    cursor.expect_end(f"SELECT {PIPE_STATUS_FUNCTION}")
    return PipeStatus(ObjectName(name.parts, at.position), column)


def _parse_drop(cursor: TokenCursor, if_exists: bool) -> DropPipe:
    return DropPipe(cursor.parse_last_name("a pipe", 3, "DROP"), if_exists)


def _parse_describe(cursor: TokenCursor) -> DescribePipe:
    return DescribePipe(cursor.parse_last_name("a pipe", 3, "DESCRIBE"))


_MAX_SHOWN_FILES = 100
_UNSUPPORTED_PIPE_OPTIONS = {
    "AWS_SNS_TOPIC": "the service lists the location itself",
    "INTEGRATION": "the service lists the location itself",
    "ERROR_INTEGRATION": "SYSTEM$PIPE_STATUS and COPY_HISTORY show the errors of files",
}
_PIPE_CLAUSES = {
    "PIPE_EXECUTION_PAUSED": Clause(parse_boolean, is_required=True),
    "COMMENT": Clause(lambda cursor: cursor.parse_string("a comment")),
}
_PIPE_FIELDS = {"PIPE_EXECUTION_PAUSED": "paused", "COMMENT": "comment"}
KINDS = (StatementKind("PIPE", _parse_create, _parse_alter, _parse_drop, _parse_describe),)
PIPES = Listing(
    "PIPES",
    NameLevel.SCHEMA,
    "created_on name database_name schema_name definition owner comment kind paused error",
    _list_pipe_rows,
)
