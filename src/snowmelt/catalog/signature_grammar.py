"""Names, arguments and types of functions."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING

from snowmelt.catalog.clauses import listed
from snowmelt.catalog.lexing import TokenKind
from snowmelt.catalog.statements import Overload
from snowmelt.functions.literals import quoted
from snowmelt.functions.refusals import DeclarationInvalid
from snowmelt.functions.signature import Argument
from snowmelt.functions.types import parse_type
from snowmelt.schema.types import SEMI_STRUCTURED, Kind

if TYPE_CHECKING:
    from snowmelt.catalog.cursor import Cursor
    from snowmelt.catalog.naming import Name
    from snowmelt.functions.types import SqlType

_MAX_ARGUMENTS = 500  # as Snowflake's
_NUMBERS = frozenset({Kind.FIXED, Kind.REAL})


def read_function_name(cursor: Cursor) -> tuple[Name, str]:
    """Go past a function's name; return it, and its last part as it was written.

    Headers carry the name as it was written, so that `ext_func` stays in small letters.

    Raises:
        StatementError: If no name comes next, or it has too many parts.
    """
    name = cursor.name("a function", 3)
    last = cursor.taken
    return name, last.written if last.kind is TokenKind.WORD else last.text


def read_overload(cursor: Cursor) -> Overload:
    """Go past a function's name and the types of its arguments.

    Raises:
        StatementError: If they are not there.
    """
    name, written = read_function_name(cursor)
    if not cursor.ahead("("):
        raise cursor.error(
            f"Write the types of the function's arguments, such as {written}(NUMBER, VARCHAR), or "
            f"{written}() if it has none"
        )
    return Overload(name, listed(cursor, read_sql_type, least=0))


def read_arguments(cursor: Cursor) -> tuple[Argument, ...]:
    """Go past arguments in parentheses; those with defaults are the last ones.

    Raises:
        StatementError: If they are not as they must be.
    """
    if not cursor.ahead("("):
        raise cursor.error(f"Expected the arguments in parentheses here, or (), not {cursor.seen}")
    cursor.expect("(")
    found: list[Argument] = []
    while not cursor.accept(")"):
        if found:
            cursor.expect(",")
        found.append(_argument(cursor, found))
    return tuple(found)


def read_sql_type(cursor: Cursor) -> SqlType:
    """Go past a type that can be sent to a service.

    Raises:
        StatementError: If it is none.
    """
    first = cursor.token
    if first.kind is not TokenKind.WORD:
        raise cursor.error(
            f"Expected a type here, such as NUMBER(10,2) or VARCHAR, not {cursor.seen}"
        )
    cursor.take()
    if first.text == "DOUBLE":
        cursor.accept("PRECISION")
    if cursor.accept("("):
        while not cursor.accept(")"):
            if cursor.token.kind is not TokenKind.NUMBER and not cursor.ahead(","):
                raise cursor.error(f"Expected a number or a parenthesis here, not {cursor.seen}")
            cursor.take()
    try:
        return parse_type(cursor.between(first, cursor.taken))
    except DeclarationInvalid as error:
        raise cursor.error(_sentence(str(error.fields["reason"])), first) from None


def _argument(cursor: Cursor, before: list[Argument]) -> Argument:
    at = cursor.token
    # Headers carry arguments in capitals, and Spark tells none apart by case.
    name = cursor.identifier("an argument").upper()
    if name in {each.name for each in before}:
        raise cursor.error(f"Argument {name} is there twice", at)
    if len(before) == _MAX_ARGUMENTS:
        raise cursor.error(f"A function has at most {_MAX_ARGUMENTS} arguments", at)
    sql_type = read_sql_type(cursor)
    default = _constant(cursor, sql_type) if cursor.accept("DEFAULT") else None
    if default is None and before and before[-1].default is not None:
        raise cursor.error(
            f"Argument {name} needs a DEFAULT, too: {before[-1].name} before it has one", at
        )
    return Argument(name, sql_type, default=default)


def _constant(cursor: Cursor, sql_type: SqlType) -> str:
    """Go past a constant that fits a type, and return it as SQL text."""
    at = cursor.token
    if cursor.accept("NULL"):
        return "NULL"
    if sql_type.kind in _NUMBERS:
        return _number(cursor, sql_type)
    if sql_type.kind is Kind.BOOLEAN:
        return cursor.expect_one_of("TRUE", "FALSE")
    if sql_type.kind in SEMI_STRUCTURED:
        raise cursor.error(f"The DEFAULT of {sql_type.bare} can only be NULL, not {cursor.seen}")
    value = cursor.string(f"a constant of type {sql_type.bare}")
    try:
        _check_text(value, sql_type)
    except ValueError:
        raise cursor.error(f"{at.written} is no {sql_type.ddl}", at) from None
    return quoted(value)


def _number(cursor: Cursor, sql_type: SqlType) -> str:
    at = cursor.token
    sign = cursor.accept_one_of("-", "+")
    if cursor.token.kind is not TokenKind.NUMBER:
        raise cursor.error(f"Expected a constant of type {sql_type.bare} here, not {cursor.seen}")
    digits = cursor.take().text
    text = f"-{digits}" if sign is not None and sign.text == "-" else digits
    scale, precision = sql_type.scale or 0, sql_type.precision or 0
    if sql_type.kind is Kind.FIXED and not _fits(Decimal(digits), precision, scale):
        raise cursor.error(f"{text} is no {sql_type.ddl}", at)
    return text


def _fits(value: Decimal, precision: int, scale: int) -> bool:
    _, digits, exponent = value.normalize().as_tuple()
    exponent = int(exponent)
    return value == 0 or (exponent >= -scale and len(digits) + exponent <= precision - scale)


def _check_text(value: str, sql_type: SqlType) -> None:
    if sql_type.kind is Kind.DATE:
        dt.date.fromisoformat(value)
    elif sql_type.kind is Kind.TIME:
        dt.time.fromisoformat(value)
    elif sql_type.kind is Kind.BINARY:
        bytes.fromhex(value)
    elif sql_type.kind is not Kind.TEXT:
        dt.datetime.fromisoformat(value)
    elif sql_type.length is not None and len(value) > sql_type.length:
        raise ValueError


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
