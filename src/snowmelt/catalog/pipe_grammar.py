"""CREATE PIPE of rows that are streamed; other pipes there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.cursor import Cursor
from snowmelt.catalog.lexing import TokenKind
from snowmelt.catalog.pipe_expressions import read_expression
from snowmelt.catalog.pipe_syntax import CreatePipe, DescribePipe, DropPipe, Item, Path, PipeCopy
from snowmelt.schema.types import display_name, internal_name

if TYPE_CHECKING:
    from snowmelt.catalog.naming import Existing

_STREAMING = "TABLE(DATA_SOURCE(TYPE => 'STREAMING'))"


def read_create_pipe(cursor: Cursor, existing: Existing) -> CreatePipe:
    """Go past what follows CREATE PIPE.

    Raises:
        StatementError: It is not COPY INTO a table from streamed rows; says where.
    """
    name = cursor.name("a pipe", 3)
    comment = None
    if cursor.accept("COMMENT"):
        cursor.expect("=")
        comment = cursor.string("a comment")
    if cursor.ahead("AUTO_INGEST"):
        raise cursor.error("AUTO_INGEST is not supported: rows come through channels of this pipe")
    cursor.expect("AS")
    first = cursor.token
    copy = read_pipe_copy(cursor)
    text = cursor.between(first, cursor.taken)
    cursor.end("CREATE PIPE")
    return CreatePipe(name, existing, text, copy, comment)


def parse_pipe_copy(text: str) -> PipeCopy:
    """Return what the text after AS says, as `CreatePipe.definition` has it.

    Raises:
        StatementError: It cannot be understood.
    """
    cursor = Cursor(text)
    copy = read_pipe_copy(cursor)
    cursor.end("the pipe's COPY")
    return copy


def read_drop_pipe(cursor: Cursor) -> DropPipe:
    """Go past what follows DROP PIPE.

    Raises:
        StatementError: If it is more than a name.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.name("a pipe", 3)
    cursor.end("DROP")
    return DropPipe(name, if_exists)


def read_describe_pipe(cursor: Cursor) -> DescribePipe:
    """Go past what follows DESCRIBE PIPE.

    Raises:
        StatementError: If it is more than a name.
    """
    name = cursor.name("a pipe", 3)
    cursor.end("DESCRIBE")
    return DescribePipe(name)


def read_pipe_copy(cursor: Cursor) -> PipeCopy:
    """Go past COPY INTO … FROM streamed rows, with its options.

    Raises:
        StatementError: It is something else; says where.
    """
    cursor.expect("COPY", "INTO")
    table = cursor.name("a table", 3)
    columns = _columns(cursor) if cursor.accept("(") else None
    cursor.expect("FROM")
    at = cursor.token
    items: tuple[Item, ...] | None = None
    if cursor.accept("("):
        items = _selected(cursor)
        cursor.expect("FROM")
        _streaming(cursor)
        if cursor.ahead("WHERE"):
            raise cursor.error("WHERE is not supported: a pipe takes every row")
        cursor.expect(")")
    else:
        _streaming(cursor)
    matching = _options(cursor)
    by_name = matching != "NONE"
    if items is None and not by_name:
        raise cursor.error("Whole rows need MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE", at)
    if by_name and columns is not None:
        raise cursor.error("A list of columns and MATCH_BY_COLUMN_NAME exclude each other", at)
    if by_name and items is not None:
        items = tuple(_with_alias(cursor, item) for item in items)
    return PipeCopy(table, columns, items, by_name, matching == "CASE_SENSITIVE")


def _columns(cursor: Cursor) -> tuple[str, ...]:
    names: list[str] = []
    while True:
        at = cursor.token
        name = cursor.identifier("a column")
        if name in names:
            raise cursor.error(f"Column {display_name(name)} is given twice", at)
        names.append(name)
        if cursor.accept(")"):
            return tuple(names)
        cursor.expect(",")


def _selected(cursor: Cursor) -> tuple[Item, ...] | None:
    cursor.expect("SELECT")
    if cursor.accept("*"):
        return None
    items: list[Item] = []
    while True:
        place = cursor.token.place
        expression = read_expression(cursor)
        alias = None
        is_named = cursor.token.kind is TokenKind.QUOTED or (
            cursor.token.kind is TokenKind.WORD and cursor.token.text != "FROM"
        )
        if cursor.accept("AS") or is_named:
            alias = cursor.identifier("a column")
        items.append(Item(expression, alias, place))
        if not cursor.accept(","):
            return tuple(items)


def _streaming(cursor: Cursor) -> None:
    at = cursor.token
    words = ("TABLE", "(", "DATA_SOURCE", "(", "TYPE", "=>")
    if not cursor.accept(*words) or cursor.token.text.upper() != "STREAMING":
        raise cursor.error(f"Expected {_STREAMING} here: other sources there are none", at)
    cursor.take()
    cursor.expect(")", ")")


def _options(cursor: Cursor) -> str:
    matching = "NONE"
    while cursor.token.kind is TokenKind.WORD:
        option = cursor.expect_one_of("MATCH_BY_COLUMN_NAME", "ON_ERROR")
        cursor.expect("=")
        if option == "ON_ERROR":
            if not cursor.accept("CONTINUE"):
                raise cursor.error(
                    "ON_ERROR is CONTINUE for streamed rows: those refused are counted"
                )
        else:
            matching = cursor.expect_one_of("CASE_INSENSITIVE", "CASE_SENSITIVE", "NONE")
    return matching


def _with_alias(cursor: Cursor, item: Item) -> Item:
    if item.alias is not None:
        return item
    path = item.expression
    while not isinstance(path, Path):
        operand = getattr(path, "operand", None)
        if operand is None:
            break
        path = operand
    if isinstance(path, Path) and path.steps and isinstance(path.steps[-1], str):
        return Item(item.expression, internal_name(path.steps[-1]), item.place)
    error = cursor.error("With MATCH_BY_COLUMN_NAME each expression needs AS and a column's name")
    error.fields.update(line=item.place.line, column=item.place.column)
    raise error
