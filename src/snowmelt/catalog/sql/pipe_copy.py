"""Syntax tree and parser of the COPY statement of a pipe: target, options and expressions.

The source is always the stream of rows. Expressions are fields of the row, constants, casts, and
calls of a fixed list of functions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from typing import TypeAlias

from snowmelt.catalog.sql.column_types import ColumnType, parse_column_type
from snowmelt.catalog.sql.cursor import ObjectName, TokenCursor
from snowmelt.catalog.sql.lexer import SourcePosition, TokenKind
from snowmelt.schema.types import to_display_name, to_internal_name


@dataclass(frozen=True, slots=True)
class PipeLiteral:
    """A constant."""

    value: str | int | Decimal | bool | None


@dataclass(frozen=True, slots=True)
class PipeField:
    """A field of the row, such as `$1:a.b[0]`, or the whole row. Names are case-sensitive."""

    steps: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class PipeCast:
    """`operand::TYPE`."""

    operand: PipeExpression
    type: ColumnType


@dataclass(frozen=True, slots=True)
class PipeCall:
    """A call of a supported function, or of one of the operators `+ - * / ||`."""

    name: str
    arguments: tuple[PipeExpression, ...]


PipeExpression: TypeAlias = PipeLiteral | PipeField | PipeCast | PipeCall


@dataclass(frozen=True, slots=True)
class PipeItem:
    """One expression of the SELECT, with its alias if it has one."""

    expression: PipeExpression
    alias: str | None
    position: SourcePosition


@dataclass(frozen=True, slots=True)
class PipeCopy:
    """The COPY statement of a pipe.

    If `items` is None, each field of the row is a column. If `by_name` is true, an item's column
    has the name of its alias. Otherwise its position in `columns`, or in the columns of the table,
    determines it. If `case_sensitive` is true, fields of the row match column names
    case-sensitively.
    """

    table: ObjectName
    columns: tuple[str, ...] | None
    items: tuple[PipeItem, ...] | None
    by_name: bool
    case_sensitive: bool = False


_STREAMING_SOURCE = "TABLE(DATA_SOURCE(TYPE => 'STREAMING'))"


def parse_pipe_copy(text: str) -> PipeCopy:
    """Parse the text after AS, which is `CreatePipe.definition`.

    Raises:
        StatementError: If the text cannot be parsed.
    """
    cursor = TokenCursor(text)
    copy = parse_copy_at_cursor(cursor)
    cursor.expect_end("the pipe's COPY")
    return copy


def parse_copy_at_cursor(cursor: TokenCursor) -> PipeCopy:
    """Parse COPY INTO … FROM streamed rows, with its options."""
    cursor.expect("COPY", "INTO")
    table = cursor.parse_name("a table", 3)
    columns = _parse_column_list(cursor) if cursor.accept("(") else None
    cursor.expect("FROM")
    at = cursor.current
    items: tuple[PipeItem, ...] | None = None
    if cursor.accept("("):
        items = _parse_select_list(cursor)
        cursor.expect("FROM")
        _expect_streaming_source(cursor)
        if cursor.is_next("WHERE"):
            raise cursor.make_error("WHERE is not supported: a pipe accepts every row. Omit it")
        cursor.expect(")")
    else:
        _expect_streaming_source(cursor)
    matching = _parse_copy_options(cursor)
    by_name = matching != "NONE"
    if items is None and not by_name:
        raise cursor.make_error("Whole rows require MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE", at)
    if by_name and columns is not None:
        raise cursor.make_error(
            "A list of columns and MATCH_BY_COLUMN_NAME exclude each other. Use one of them", at
        )
    if by_name and items is not None:
        items = tuple(_infer_alias(cursor, item) for item in items)
    return PipeCopy(table, columns, items, by_name, matching == "CASE_SENSITIVE")


def _parse_column_list(cursor: TokenCursor) -> tuple[str, ...]:
    names: list[str] = []
    while True:
        at = cursor.current
        name = cursor.parse_identifier("a column")
        if name in names:
            raise cursor.make_error(
                f"Column {to_display_name(name)} is listed twice. Remove one", at
            )
        names.append(name)
        if cursor.accept(")"):
            return tuple(names)
        cursor.expect(",")


def _parse_select_list(cursor: TokenCursor) -> tuple[PipeItem, ...] | None:
    cursor.expect("SELECT")
    if cursor.accept("*"):
        return None
    items: list[PipeItem] = []
    while True:
        at = cursor.current
        expression = _parse_sum(cursor, 0)
        levels, within = 0, [expression]
        while within:
            levels += 1
            calls = (each.arguments for each in within if isinstance(each, PipeCall))
            operands = (each.operand for each in within if isinstance(each, PipeCast))
            within = [*chain.from_iterable(calls), *operands]
        if levels > _MAX_EXPRESSION_LEVELS:
            raise cursor.make_error(
                f"This expression has more than {_MAX_EXPRESSION_LEVELS} nested operations. "
                "Simplify it",
                at,
            )
        alias = None
        is_named = cursor.current.kind is TokenKind.QUOTED or (
            cursor.current.kind is TokenKind.WORD and cursor.current.text != "FROM"
        )
        if cursor.accept("AS") or is_named:
            alias = cursor.parse_identifier("a column")
        items.append(PipeItem(expression, alias, at.position))
        if not cursor.accept(","):
            return tuple(items)


def _expect_streaming_source(cursor: TokenCursor) -> None:
    at = cursor.current
    words = ("TABLE", "(", "DATA_SOURCE", "(", "TYPE", "=>")
    if not cursor.accept(*words) or cursor.current.text.upper() != "STREAMING":
        raise cursor.make_error(
            f"Expected {_STREAMING_SOURCE} here: it is the only supported source", at
        )
    cursor.advance()
    cursor.expect(")", ")")


def _parse_copy_options(cursor: TokenCursor) -> str:
    matching = "NONE"
    while cursor.current.kind is TokenKind.WORD:
        option = cursor.expect_one_of("MATCH_BY_COLUMN_NAME", "ON_ERROR")
        cursor.expect("=")
        if option == "ON_ERROR":
            if not cursor.accept("CONTINUE"):
                raise cursor.make_error(
                    "ON_ERROR is CONTINUE for streamed rows: rejected rows are counted"
                )
        else:
            matching = cursor.expect_one_of("CASE_INSENSITIVE", "CASE_SENSITIVE", "NONE")
    return matching


def _infer_alias(cursor: TokenCursor, item: PipeItem) -> PipeItem:
    if item.alias is not None:
        return item
    path = item.expression
    while isinstance(path, PipeCast):
        path = path.operand
    if isinstance(path, PipeField) and path.steps and isinstance(path.steps[-1], str):
        return PipeItem(item.expression, to_internal_name(path.steps[-1]), item.position)
    error = cursor.make_error(
        "With MATCH_BY_COLUMN_NAME each expression needs AS and a column's name"
    )
    error.fields.update(line=item.position.line, column=item.position.column)
    raise error


# Minimum and maximum number of arguments; None means no maximum.
PIPE_FUNCTION_ARITIES: dict[str, tuple[int, int | None]] = dict(
    sorted(
        {
            "CURRENT_TIMESTAMP": (0, 0),
            **dict.fromkeys(("ABS", "CEIL", "FLOOR", "LENGTH"), (1, 1)),
            **dict.fromkeys(("LOWER", "UPPER", "LTRIM", "RTRIM", "TRIM"), (1, 1)),
            "ROUND": (1, 2),
            "CONCAT": (1, None),
            **dict.fromkeys(("IFNULL", "NULLIF", "NVL"), (2, 2)),
            **dict.fromkeys(("SUBSTR", "SUBSTRING"), (2, 3)),
            "COALESCE": (2, None),
            "REPLACE": (3, 3),
        }.items()
    )
)
_KEYWORD_CONSTANTS = {"NULL": None, "TRUE": True, "FALSE": False}
_FUNCTIONS_WITHOUT_PARENTHESES = {"CURRENT_TIMESTAMP"}
_MAX_NESTING_DEPTH = 50
# Maximum nesting of operations, including chains, because the evaluation is recursive.
_MAX_EXPRESSION_LEVELS = 100


def _parse_sum(cursor: TokenCursor, depth: int) -> PipeExpression:
    return _parse_operations(cursor, depth, {"+", "-", "||"}, _parse_product)


def _parse_product(cursor: TokenCursor, depth: int) -> PipeExpression:
    return _parse_operations(cursor, depth, {"*", "/"}, _parse_cast)


def _parse_operations(
    cursor: TokenCursor,
    depth: int,
    operators: Collection[str],
    parse_operand: Callable[[TokenCursor, int], PipeExpression],
) -> PipeExpression:
    found = parse_operand(cursor, depth)
    while _next_symbol(cursor) in operators:
        operator = cursor.advance().text
        found = PipeCall(operator, (found, parse_operand(cursor, depth)))
    return found


def _parse_cast(cursor: TokenCursor, depth: int) -> PipeExpression:
    found = _parse_operand(cursor, depth)
    while _next_symbol(cursor) == "::":
        cursor.advance()
        found = PipeCast(found, parse_column_type(cursor))
    return found


def _parse_operand(cursor: TokenCursor, depth: int) -> PipeExpression:
    if depth > _MAX_NESTING_DEPTH:
        raise cursor.make_error(
            f"This expression is nested more than {_MAX_NESTING_DEPTH} levels deep. Simplify it"
        )
    token = cursor.current
    sign = _next_symbol(cursor)
    if sign == "$":
        return _parse_field(cursor)
    if sign == "(":
        cursor.advance()
        found = _parse_sum(cursor, depth + 1)
        cursor.expect(")")
        return found
    if sign == "-":
        cursor.advance()
        return PipeCall("-", (PipeLiteral(0), _parse_cast(cursor, depth + 1)))
    if token.kind is TokenKind.STRING:
        return PipeLiteral(cursor.advance().text)
    if token.kind is TokenKind.NUMBER:
        text = cursor.advance().text
        return PipeLiteral(int(text) if text.isdecimal() else Decimal(text))
    if token.kind is TokenKind.WORD and token.text in _KEYWORD_CONSTANTS:
        return PipeLiteral(_KEYWORD_CONSTANTS[cursor.advance().text])
    if token.kind is TokenKind.WORD and cursor.peek().text == "(":
        return _parse_call(cursor, depth)
    if token.kind is TokenKind.WORD and token.text in _FUNCTIONS_WITHOUT_PARENTHESES:
        return PipeCall(cursor.advance().text, ())
    raise cursor.make_error(
        f"Expected a part of the row such as $1:name, a constant, CAST or a function here, not"
        f" {cursor.current_label}"
    )


def _parse_call(cursor: TokenCursor, depth: int) -> PipeExpression:
    at = cursor.advance()
    cursor.advance()
    if at.text == "CAST":
        operand = _parse_sum(cursor, depth + 1)
        cursor.expect("AS")
        kind = parse_column_type(cursor)
        cursor.expect(")")
        return PipeCast(operand, kind)
    if at.text not in PIPE_FUNCTION_ARITIES:
        raise cursor.make_error(
            f"{at.source_text} is not supported in a pipe. Supported: CAST, {', '.join(PIPE_FUNCTION_ARITIES)}",
            at,
        )
    arguments: list[PipeExpression] = []
    while not cursor.accept(")"):
        if arguments:
            cursor.expect(",")
        arguments.append(_parse_sum(cursor, depth + 1))
    least, most = PIPE_FUNCTION_ARITIES[at.text]
    if len(arguments) < least or (most is not None and len(arguments) > most):
        wanted = (
            str(least) if least == most else f"{least} to {'any number' if most is None else most}"
        )
        raise cursor.make_error(f"{at.text} takes {wanted} arguments, not {len(arguments)}", at)
    return PipeCall(at.text, tuple(arguments))


def _parse_field(cursor: TokenCursor) -> PipeField:
    cursor.advance()
    if cursor.current.text != "1":
        raise cursor.make_error("A streamed row is one value: $1")
    cursor.advance()
    steps: list[str | int] = []
    separator = ":"
    while _next_symbol(cursor) in {separator, "["}:
        if cursor.advance().text == "[":
            token = cursor.advance()
            if token.kind is TokenKind.NUMBER and token.text.isdecimal():
                steps.append(int(token.text))
            elif token.kind is TokenKind.STRING:
                steps.append(token.text)
            else:
                raise cursor.make_error("Expected a name in single quotes or a number here", token)
            cursor.expect("]")
        else:
            token = cursor.current
            if token.kind not in {TokenKind.WORD, TokenKind.QUOTED}:
                raise cursor.make_error(f"Expected a field's name here, not {cursor.current_label}")
            cursor.advance()
            # Names of fields in a row are case-sensitive.
            steps.append(token.source_text if token.kind is TokenKind.WORD else token.text)
        separator = "."
    return PipeField(tuple(steps))


def _next_symbol(cursor: TokenCursor) -> str | None:
    return cursor.current.text if cursor.current.kind is TokenKind.SYMBOL else None
