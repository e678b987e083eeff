"""Validate a COPY that loads files as they appear, for pipes and `snowmelt copy --watch`.

Also finds the files whose names clients send to a pipe.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from snowmelt.catalog.statements.statement_context import (
    StatementSession,
    make_statement_error,
)
from snowmelt.errors import LoadRefused, StatementError
from snowmelt.load.copy_ast import CopyStatement, InputPath
from snowmelt.load.copy_parser import parse_copy
from snowmelt.schema.types import TableName

if TYPE_CHECKING:
    from snowmelt.catalog.model.records import TableRecord


def check_file_copy(session: StatementSession, text: str, pipe: TableName) -> TableRecord:
    """Validate the COPY of a pipe and return its table. Short names are in the schema of the pipe.

    Raises:
        StatementError: If the COPY cannot be parsed, or has an option that is not supported.
        TableNotFound: If the table does not exist.
        PrivilegeMissing: If the role lacks INSERT on the table.
    """
    # Imported here, so that a service starts without the load stack.
    from snowmelt.load.planner import check_load, list_named_steps
    from snowmelt.loaders.copy_job import find_load_functions

    statement = parse_watched_copy(text)
    table = session.find_table(_complete_name(statement, pipe))
    session.require_privilege("TABLE", table.table_id, table.name, "INSERT")
    functions = find_load_functions(session.connection, list_named_steps(statement))
    try:
        check_load(statement, table.schema, functions)
    except LoadRefused as error:
        raise make_statement_error(str(error).rstrip("."), statement.table.position) from error
    return table


@dataclass(frozen=True, slots=True)
class PipeLocation:
    """Location of a pipe's files. Names in requests are relative to `folder`.

    `reject_limit` is the number of rejects at which a file is not loaded. None: no limit.
    """

    folder: str
    table: TableName
    reject_limit: int | None
    _inputs: tuple[InputPath, ...]

    def find_path(self, name: str) -> str | None:
        """Return the path of a named file, or None if the pipe's COPY does not load it."""
        # Imported here, so that a service starts without the load stack.
        from snowmelt.load.sources.files import match_location

        for each in self._inputs:
            found = match_location(each.path, name, is_prefix=each.is_prefix, pattern=each.pattern)
            if found is not None:
                return found
        return None


def find_pipe_location(definition: str, pipe: TableName) -> PipeLocation:
    """Return the location of a pipe's files, from its COPY."""
    from snowmelt.load.sources.files import find_base_folder

    statement = parse_watched_copy(definition)
    assert isinstance(statement.inputs, tuple)  # noqa: S101 - checked above
    first = statement.inputs[0]
    return PipeLocation(
        find_base_folder(first.path, is_prefix=first.is_prefix),
        _complete_name(statement, pipe),
        statement.for_arriving_files().file_reject_max,
        statement.inputs,
    )


def _complete_name(statement: CopyStatement, pipe: TableName) -> TableName:
    parts = statement.table.parts
    return TableName(*(pipe.database, pipe.schema)[: 3 - len(parts)], *parts)


def parse_watched_copy(text: str) -> CopyStatement:
    """Parse a COPY that loads files as they appear.

    Raises:
        StatementError: If the COPY cannot be parsed, or has an option that is not supported.
    """
    statement = parse_copy(text)
    inputs = statement.inputs
    if not isinstance(inputs, tuple) or statement.local:
        raise _make_error(statement, "only folders and stores can be watched: use FROM with paths")
    for each in inputs:
        scheme = each.path.partition("://")[0].lower() if "://" in each.path else ""
        if scheme in {"http", "https"}:
            raise make_statement_error(
                f"{each.path} cannot be watched: HTTP servers do not list files. Use a folder or a store",
                each.position,
            )
        if not scheme and not PurePath(each.path).is_absolute():
            raise make_statement_error(
                f"{each.path} is relative. Write an absolute path or a URL",
                each.position,
            )
        if each.compression is not inputs[0].compression:
            raise make_statement_error(
                "All watched paths must have the same compression. Use one COPY for each compression",
                each.position,
            )
    rejects = statement.rejects
    if rejects.data_path is not None or rejects.exceptions_path is not None:
        raise _make_error(
            statement,
            "each batch would replace the reject files of the previous one. Use REJECTED DATA AS TABLE",
        )
    for is_set, words, reason in (
        (statement.validation is not None, "VALIDATION_MODE", "it loads nothing"),
        (statement.force, "FORCE", "each file is loaded once"),
        (statement.purge, "PURGE", "delete the loaded files with a separate job"),
        (statement.no_commit, "NO COMMIT", "each batch is a transaction"),
        (
            statement.stream_name is not None,
            "STREAM NAME",
            "the name of the pipe is the name of the stream",
        ),
    ):
        if is_set:
            raise _make_error(statement, f"{words} is not supported: {reason}")
    return statement


def _make_error(statement: CopyStatement, reason: str) -> StatementError:
    return make_statement_error(reason, statement.table.position)
