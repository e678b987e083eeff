"""Calls of sources, filters and parsers in a COPY: `name(parameter = value, …)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.lexing import TokenKind
from snowmelt.load.copying import Call
from snowmelt.load.intervals import interval_of

if TYPE_CHECKING:
    import datetime as dt

    from snowmelt.catalog.cursor import Cursor
    from snowmelt.catalog.lexing import Token
    from snowmelt.load.copying import Value

_CONSTANTS: dict[str, Value] = {"TRUE": True, "FALSE": False, "NULL": None}
_UNITS = ("DAY", "HOUR", "MINUTE", "SECOND", "DAYS", "HOURS", "MINUTES", "SECONDS")
_EXPECTED = "Expected a value here: a string in single quotes, a number, TRUE, FALSE, NULL, or "
_EXPECTED += "INTERVAL with a string"


def read_call(cursor: Cursor, what: str) -> Call:
    """Go past one call; the parentheses may be missing.

    Raises:
        StatementError: It is no call.
    """
    token = cursor.token
    if token.kind not in {TokenKind.WORD, TokenKind.QUOTED}:
        raise cursor.error(f"Expected the name of {what} here")
    cursor.take()
    if token.text.upper() == "PUBLIC" and cursor.accept("."):
        # Vertica's own functions, and most of users, are in this schema.
        return read_call(cursor, what)
    return read_call_of(cursor, token)


def read_call_of(cursor: Cursor, name: Token) -> Call:
    """Go past the parameters of a call whose name was read.

    Raises:
        StatementError: They are no parameters.
    """
    written = name.text if name.kind is TokenKind.QUOTED else name.written
    return Call(written, _parameters(cursor), name.place)


def read_calls(cursor: Cursor, what: str, known: frozenset[str]) -> tuple[Call, ...]:
    """Go past calls with commas or blanks between them; `known` words begin something else.

    Raises:
        StatementError: There is no call.
    """
    calls = [read_call(cursor, what)]
    while cursor.accept(",") or _is_call(cursor, known):
        calls.append(read_call(cursor, what))
    return tuple(calls)


def _is_call(cursor: Cursor, known: frozenset[str]) -> bool:
    token = cursor.token
    named = token.kind is TokenKind.QUOTED or (
        token.kind is TokenKind.WORD and token.text not in known
    )
    return named and cursor.after().text in {"(", "."} and cursor.after().kind is TokenKind.SYMBOL


def _parameters(cursor: Cursor) -> dict[str, Value]:
    found: dict[str, Value] = {}
    if not cursor.accept("(") or cursor.accept(")"):
        return found
    while True:
        token = cursor.token
        if token.kind not in {TokenKind.WORD, TokenKind.QUOTED}:
            raise cursor.error("Expected the name of a parameter here, as in f(name = value)")
        cursor.take()
        name = token.text if token.kind is TokenKind.QUOTED else token.written
        if name.lower() in {each.lower() for each in found}:
            raise cursor.error(f"Parameter {name} is given twice", token)
        cursor.expect("=")
        found[name] = _value(cursor)
        if cursor.accept(")"):
            return found
        cursor.expect(",")


def _value(cursor: Cursor) -> Value:
    token = cursor.token
    if token.kind is TokenKind.STRING:
        return cursor.take().text
    if token.kind is TokenKind.NUMBER or token.text in {"-", "+"}:
        return _number(cursor)
    if token.kind is TokenKind.WORD and token.text == "INTERVAL":
        cursor.take()
        return _interval(cursor)
    if token.kind is TokenKind.WORD and token.text in _CONSTANTS:
        cursor.take()
        return _CONSTANTS[token.text]
    raise cursor.error(_EXPECTED)


def _number(cursor: Cursor) -> int | float:
    sign = cursor.accept_one_of("-", "+")
    if cursor.token.kind is not TokenKind.NUMBER:
        raise cursor.error("Expected a number here")
    text = cursor.take().text
    value = int(text) if text.isdecimal() else float(text)
    return -value if sign is not None and sign.text == "-" else value


def _interval(cursor: Cursor) -> dt.timedelta:
    token = cursor.token
    text = cursor.string("an interval, such as '10 seconds'")
    unit = cursor.accept_one_of(*_UNITS)
    value = interval_of(text, None if unit is None else unit.text)
    if value is None:
        raise cursor.error(
            f"{text!r} is no interval; write it as '10 seconds', '00:10:00' or '1 day 2 hours'",
            token,
        )
    return value
