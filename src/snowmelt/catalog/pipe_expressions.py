"""Expressions of a pipe: parts of the row, constants, casts, and a list of functions."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from snowmelt.catalog.column_types import read_type
from snowmelt.catalog.lexing import TokenKind
from snowmelt.catalog.pipe_syntax import Call, Cast, Literal, Path

if TYPE_CHECKING:
    from snowmelt.catalog.cursor import Cursor
    from snowmelt.catalog.lexing import Token
    from snowmelt.catalog.pipe_syntax import Expression

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
