"""COPY's text into data: table, columns, inputs; the options are in `copy_options`.

The grammar is Vertica's, with the forms seen in statements as people write them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.column_types import read_type
from snowmelt.catalog.copy_lexing import copy_tokens_of
from snowmelt.catalog.cursor import Cursor
from snowmelt.catalog.lexing import TokenKind
from snowmelt.load.copy_calls import read_call
from snowmelt.load.copy_options import ColumnOptionReader, OptionReader
from snowmelt.load.copying import (
    Compression,
    CopyStatement,
    Expression,
    Filler,
    InputPath,
    ParsedColumn,
    StandardInput,
)
from snowmelt.schema.types import Column, Kind, display_name

if TYPE_CHECKING:
    from snowmelt.load.copying import Inputs, Item
    from snowmelt.load.parsed import ColumnOptions

_OPENING = frozenset({"(", "[", "{"})
_CLOSING = frozenset({")", "]", "}"})


def parse_copy(text: str) -> CopyStatement:
    """Return what a COPY says; a semicolon at its end is allowed.

    Raises:
        StatementError: If it cannot be understood or is not supported; says where and what
            would be right.
    """
    cursor = Cursor(text, copy_tokens_of)
    cursor.expect("COPY")
    table = cursor.name("a table", 3)
    items = _items(cursor) if cursor.accept("(") else None
    listed = {item.name: item.options for item in items or () if not isinstance(item, Expression)}
    options = OptionReader(cursor)
    column_options = _column_options(cursor, listed)
    inputs, local = _inputs(cursor)
    options.read()
    cursor.end("COPY")
    return CopyStatement(
        table=table,
        items=items,
        inputs=inputs,
        text=text.strip().rstrip(";").rstrip(),
        column_options=column_options,
        local=local,
        **options.found(),
    )


def _items(cursor: Cursor) -> tuple[Item, ...]:
    items: list[Item] = []
    names: set[str] = set()
    while True:
        token = cursor.token
        item = _item(cursor)
        if item.name in names:
            raise cursor.error(f"Column {display_name(item.name)} is given twice", token)
        names.add(item.name)
        items.append(item)
        if cursor.accept(")"):
            break
        if not cursor.accept(","):
            raise cursor.error(
                "Expected a comma, or ) after the last column, here; a column may have AS with an "
                "expression, FILLER with a type, DELIMITER, ENCLOSED BY, ENFORCELENGTH, ESCAPE, "
                "NO ESCAPE, FORMAT, NULL or TRIM"
            )
    if all(isinstance(item, Expression) for item in items):
        raise cursor.error("At least one column must be parsed: all of them are expressions")
    return tuple(items)


def _item(cursor: Cursor) -> Item:
    place = cursor.token.place
    name = cursor.identifier("a column")
    if cursor.accept("AS"):
        return Expression(name, _expression(cursor), place)
    if cursor.accept("FILLER"):
        column = _filler(cursor, name)
        return Filler(column, ColumnOptionReader(cursor).read(), place)
    return ParsedColumn(name, ColumnOptionReader(cursor).read(), place)


def _filler(cursor: Cursor, name: str) -> Column:
    # Vertica's words for the longest texts and bytes; ours are as long by themselves.
    if cursor.ahead("LONG", "VARCHAR") or cursor.ahead("LONG", "VARBINARY"):
        cursor.take()
    found = read_type(cursor)
    return Column(
        name=name,
        kind=Kind(found.kind),
        ordinal=0,
        precision=found.precision,
        scale=found.scale,
        length=found.length,
        byte_length=found.byte_length,
    )


def _expression(cursor: Cursor) -> str:
    """Go past an expression, up to the comma or parenthesis after it, and return its text."""
    first = cursor.token
    depth = 0
    last = None
    while cursor.token.kind is not TokenKind.END:
        sign = cursor.token.text if cursor.token.kind is TokenKind.SYMBOL else None
        if depth == 0 and sign in {",", ")"}:
            break
        depth += (sign in _OPENING) - (sign in _CLOSING)
        last = cursor.take()
    if last is None:
        raise cursor.error("Expected an expression here")
    if cursor.token.kind is TokenKind.END:
        raise cursor.error("This expression has no end: a parenthesis is missing", first)
    return cursor.between(first, last)


def _column_options(cursor: Cursor, listed: dict[str, ColumnOptions]) -> dict[str, ColumnOptions]:
    if not cursor.accept("COLUMN", "OPTION"):
        return listed
    cursor.expect("(")
    given: set[str] = set()
    while True:
        token = cursor.token
        name = cursor.identifier("a column")
        if name in given:
            raise cursor.error(f"Column {display_name(name)} is given twice", token)
        given.add(name)
        listed[name] = ColumnOptionReader(cursor).read(listed.get(name))
        if cursor.accept(")"):
            return listed
        cursor.expect(",")


def _inputs(cursor: Cursor) -> tuple[Inputs, bool]:
    if cursor.accept("FROM"):
        local = cursor.accept("LOCAL")
        if cursor.ahead("VERTICA"):
            raise cursor.error(
                "FROM VERTICA is not supported: there is no other cluster to read from; export "
                "the table to files, and load those"
            )
        place = cursor.token.place
        if cursor.accept("STDIN"):
            return StandardInput(_compression(cursor), place), local
        if cursor.token.kind is not TokenKind.STRING:
            raise cursor.error(
                "Expected STDIN, or paths in single quotes, here: FROM 'folder/*.csv.gz' GZIP"
            )
        return _paths(cursor), local
    cursor.accept("WITH")
    if cursor.accept("SOURCE"):
        return read_call(cursor, "a source"), False
    raise cursor.error(
        "Expected FROM with paths or STDIN, or SOURCE with the name of a source, here"
    )


def _paths(cursor: Cursor) -> tuple[InputPath, ...]:
    paths: list[InputPath] = []
    while True:
        place = cursor.token.place
        path = cursor.string("a path")
        if not path:
            raise cursor.error("A path is not empty")
        _nodes(cursor)
        compression = _compression(cursor)
        _nodes(cursor)
        paths.append(InputPath(path, compression, place))
        if not cursor.accept(","):
            return tuple(paths)


def _nodes(cursor: Cursor) -> None:
    """Go past ON with nodes: every task can read every path, so any node will do."""
    if not cursor.ahead("ON"):
        return
    at = cursor.take()
    if cursor.accept("ANY", "NODE") or cursor.accept("EACH", "NODE"):
        return
    raise cursor.error(
        "Nodes are not chosen by name: the path is read wherever its task runs; leave ON out, or "
        "write ON ANY NODE",
        at,
    )


def _compression(cursor: Cursor) -> Compression | None:
    if cursor.ahead("LZO"):
        raise cursor.error(
            "LZO is not supported: there is no maintained library for it; use ZSTD or LZ4, or "
            "FILTER ExternalCommand(cmd = 'lzop -dc')"
        )
    word = cursor.accept_one_of(*Compression)
    return None if word is None else Compression(word.text)
