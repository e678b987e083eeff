"""CREATE PIPE of rows that are streamed; other pipes there are none."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from snowmelt.catalog.sql.column_types import read_type
from snowmelt.catalog.sql.cursor import Cursor
from snowmelt.catalog.sql.lexer import TokenKind
from snowmelt.catalog.sql.pipe_ast import (
    Call,
    Cast,
    CreatePipe,
    DescribePipe,
    DropPipe,
    Item,
    Literal,
    Path,
    PipeCopy,
)
from snowmelt.schema.types import display_name, internal_name

if TYPE_CHECKING:
    from snowmelt.catalog.sql.identifiers import Existing
    from snowmelt.catalog.sql.lexer import Token
    from snowmelt.catalog.sql.pipe_ast import Expression

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


# --- Expressions of a pipe: parts of the row, constants, casts, and a list of functions.

# Least and most arguments; None is any number.
FUNCTIONS: dict[str, tuple[int, int | None]] = {
    "ABS": (1, 1),
    "CEIL": (1, 1),
    "COALESCE": (2, None),
    "CONCAT": (1, None),
    "CURRENT_TIMESTAMP": (0, 0),
    "FLOOR": (1, 1),
    "IFNULL": (2, 2),
    "LENGTH": (1, 1),
    "LOWER": (1, 1),
    "LTRIM": (1, 1),
    "NULLIF": (2, 2),
    "NVL": (2, 2),
    "REPLACE": (3, 3),
    "ROUND": (1, 2),
    "RTRIM": (1, 1),
    "SUBSTR": (2, 3),
    "SUBSTRING": (2, 3),
    "TRIM": (1, 1),
    "UPPER": (1, 1),
}
_CONSTANTS = {"NULL": None, "TRUE": True, "FALSE": False}
_WITHOUT_PARENTHESES = {"CURRENT_TIMESTAMP"}
_MOST_DEPTH = 50
# Of operations within each other, those of a chain too: rows are computed by functions that call each other.
_MOST_LEVELS = 100


def read_expression(cursor: Cursor) -> Expression:
    """Go past an expression.

    Raises:
        StatementError: It is none, or not one of those that a pipe computes; says where.
    """
    at = cursor.token
    found = _sum(cursor, 0)
    if _levels(found) > _MOST_LEVELS:
        raise cursor.error(
            f"This expression has more than {_MOST_LEVELS} operations within each other", at
        )
    return found


def _levels(expression: Expression) -> int:
    levels = 0
    within: list[Expression] = [expression]
    while within:
        levels += 1
        within = [part for each in within for part in _parts(each)]
    return levels


def _parts(expression: Expression) -> tuple[Expression, ...]:
    match expression:
        case Cast():
            return (expression.operand,)
        case Call():
            return expression.arguments
        case _:
            return ()


def _sum(cursor: Cursor, depth: int) -> Expression:
    found = _product(cursor, depth)
    while _sign(cursor) in {"+", "-", "||"}:
        operator = cursor.take().text
        found = Call(operator, (found, _product(cursor, depth)))
    return found


def _product(cursor: Cursor, depth: int) -> Expression:
    found = _cast(cursor, depth)
    while _sign(cursor) in {"*", "/"}:
        operator = cursor.take().text
        found = Call(operator, (found, _cast(cursor, depth)))
    return found


def _cast(cursor: Cursor, depth: int) -> Expression:
    found = _operand(cursor, depth)
    while _sign(cursor) == "::":
        cursor.take()
        found = Cast(found, read_type(cursor))
    return found


def _operand(cursor: Cursor, depth: int) -> Expression:
    if depth > _MOST_DEPTH:
        raise cursor.error("This expression is nested too deeply")
    token = cursor.token
    sign = _sign(cursor)
    if sign == "$":
        return _path(cursor)
    if sign == "(":
        cursor.take()
        found = _sum(cursor, depth + 1)
        cursor.expect(")")
        return found
    if sign == "-":
        cursor.take()
        return Call("-", (Literal(0), _cast(cursor, depth + 1)))
    if (constant := _constant(token)) is not None:
        cursor.take()
        return constant
    if token.kind is TokenKind.WORD and cursor.after().text == "(":
        return _called(cursor, depth)
    if token.kind is TokenKind.WORD and token.text in _WITHOUT_PARENTHESES:
        return Call(cursor.take().text, ())
    raise cursor.error(
        f"Expected a part of the row such as $1:name, a constant, CAST or a function here, not"
        f" {cursor.seen}"
    )


def _constant(token: Token) -> Literal | None:
    if token.kind is TokenKind.STRING:
        return Literal(token.text)
    if token.kind is TokenKind.NUMBER:
        return Literal(int(token.text) if token.text.isdecimal() else Decimal(token.text))
    if token.kind is TokenKind.WORD and token.text in _CONSTANTS:
        return Literal(_CONSTANTS[token.text])
    return None


def _called(cursor: Cursor, depth: int) -> Expression:
    at = cursor.take()
    cursor.take()
    if at.text == "CAST":
        operand = _sum(cursor, depth + 1)
        cursor.expect("AS")
        kind = read_type(cursor)
        cursor.expect(")")
        return Cast(operand, kind)
    if at.text not in FUNCTIONS:
        raise cursor.error(
            f"{at.written} is not computed by a pipe; there are CAST, {', '.join(FUNCTIONS)}", at
        )
    arguments: list[Expression] = []
    while not cursor.accept(")"):
        if arguments:
            cursor.expect(",")
        arguments.append(_sum(cursor, depth + 1))
    least, most = FUNCTIONS[at.text]
    if len(arguments) < least or (most is not None and len(arguments) > most):
        wanted = (
            str(least) if least == most else f"{least} to {'any number' if most is None else most}"
        )
        raise cursor.error(f"{at.text} takes {wanted} arguments, not {len(arguments)}", at)
    return Call(at.text, tuple(arguments))


def _path(cursor: Cursor) -> Path:
    cursor.take()
    if cursor.token.text != "1":
        raise cursor.error("A streamed row is one value: $1")
    cursor.take()
    steps: list[str | int] = []
    separator = ":"
    while _sign(cursor) in {separator, "["}:
        if cursor.take().text == "[":
            token = cursor.take()
            if token.kind is TokenKind.NUMBER and token.text.isdecimal():
                steps.append(int(token.text))
            elif token.kind is TokenKind.STRING:
                steps.append(token.text)
            else:
                raise cursor.error("Expected a name in single quotes or a number here", token)
            cursor.expect("]")
        else:
            token = cursor.token
            if token.kind not in {TokenKind.WORD, TokenKind.QUOTED}:
                raise cursor.error(f"Expected a field's name here, not {cursor.seen}")
            cursor.take()
            # Names in documents count as they are written.
            steps.append(token.written if token.kind is TokenKind.WORD else token.text)
        separator = "."
    return Path(tuple(steps))


def _sign(cursor: Cursor) -> str | None:
    return cursor.token.text if cursor.token.kind is TokenKind.SYMBOL else None
