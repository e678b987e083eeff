"""Parsers of parts of external functions: clauses, names, arguments with defaults, and types.

The clauses are Snowflake's, with additional ones.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from snowmelt.catalog.sql.cursor import (
    Clause,
    ObjectName,
    TokenCursor,
    choice_parser,
    identifier_parser,
    integer_parser,
    number_parser,
    parse_list,
    text_parser,
)
from snowmelt.catalog.sql.lexer import TokenKind
from snowmelt.catalog.statements.statement_context import OverloadReference
from snowmelt.functions.definition import (
    DEFAULT_COMMENT,
    FailureAction,
    RequestCompression,
)
from snowmelt.functions.errors import DeclarationInvalid
from snowmelt.functions.signature import FunctionArgument, SqlType, parse_sql_type_text
from snowmelt.functions.wire.headers import validate_custom_headers
from snowmelt.schema.types import SEMI_STRUCTURED_TYPES, LogicalType, quote_literal

# Context functions that headers may contain (specification of the format, §1.1). The last one is
# not specified, but existing statements use it.
# fmt: off
CONTEXT_FUNCTIONS = frozenset({
    "CURRENT_ACCOUNT", "CURRENT_CLIENT", "CURRENT_DATABASE", "CURRENT_DATE", "CURRENT_IP_ADDRESS",
    "CURRENT_REGION", "CURRENT_ROLE", "CURRENT_SCHEMA", "CURRENT_SCHEMAS", "CURRENT_SESSION",
    "CURRENT_STATEMENT", "CURRENT_TIME", "CURRENT_TIMESTAMP", "CURRENT_TRANSACTION",
    "CURRENT_USER", "CURRENT_VERSION", "CURRENT_WAREHOUSE", "LAST_QUERY_ID", "LAST_TRANSACTION",
    "LOCALTIME", "LOCALTIMESTAMP", "CURRENT_ACCOUNT_NAME",
})
# fmt: on

_MAX_BATCH_ROWS = 1_000_000
_MAX_BATCH_BYTES = 100_000_000
_MAX_CACHE_BYTES = 1 << 40
_MAX_IN_FLIGHT_BATCHES = 1_024
_MAX_CALLS_PER_S = 1_000_000
_MAX_BATCH_RETRIES = 100
_MAX_BATCH_TIMEOUT_S = 86_400


def _parse_headers(cursor: TokenCursor) -> tuple[tuple[str, str], ...]:
    at = cursor.current
    found: tuple[tuple[str, str], ...] = parse_list(cursor, _parse_header)
    names = [name.lower() for name, _ in found]
    for name in names:
        if names.count(name) > 1:
            raise cursor.make_error(
                f"HEADERS contains {name!r} twice. Names of headers are case-insensitive", at
            )
    try:
        validate_custom_headers(dict(found))
    except DeclarationInvalid as error:
        raise cursor.make_error(f"HEADERS: {error.fields['reason']}", at) from None
    return found


def _parse_header(cursor: TokenCursor) -> tuple[str, str]:
    name = cursor.parse_string("the name of a header")
    cursor.expect("=")
    return name, cursor.parse_string("the value of a header")


def _parse_context_headers(cursor: TokenCursor) -> tuple[str, ...]:
    at = cursor.current
    found: tuple[str, ...] = parse_list(cursor, _parse_context_header)
    for name in found:
        if found.count(name) > 1:
            raise cursor.make_error(f"CONTEXT_HEADERS has {name} twice", at)
    return found


def _parse_context_header(cursor: TokenCursor) -> str:
    token = cursor.current
    if token.kind in {TokenKind.STRING, TokenKind.QUOTED}:
        raise cursor.make_error(
            f"CONTEXT_HEADERS requires functions without quotes, such as {token.text}. Use HEADERS for "
            "constants"
        )
    if token.kind is not TokenKind.WORD or token.text not in CONTEXT_FUNCTIONS:
        there = ", ".join(sorted(CONTEXT_FUNCTIONS))
        raise cursor.make_error(
            f"{cursor.current_label} is not a context function. Valid functions: {there}"
        )
    cursor.advance()
    if cursor.accept("("):
        cursor.expect(")")
    return token.text


def _parse_cache_bytes(cursor: TokenCursor) -> int:
    if cursor.accept("OFF"):
        return 0
    if cursor.current.kind is not TokenKind.NUMBER:
        raise cursor.make_error(
            f"CACHE must be a number of bytes or OFF, not {cursor.current_label}"
        )
    return cursor.parse_integer("a number of bytes", 0, _MAX_CACHE_BYTES)


FUNCTION_CLAUSES = {
    "COMMENT": Clause(text_parser("a comment"), DEFAULT_COMMENT),
    "API_INTEGRATION": Clause(
        identifier_parser("an API integration"), is_required=True, field="integration"
    ),
    "HEADERS": Clause(_parse_headers, ()),
    "CONTEXT_HEADERS": Clause(_parse_context_headers, ()),
    "MAX_BATCH_ROWS": Clause(integer_parser("a number of rows", 1, _MAX_BATCH_ROWS)),
    "COMPRESSION": Clause(
        choice_parser(RequestCompression, "COMPRESSION"), RequestCompression.AUTO
    ),
    "REQUEST_TRANSLATOR": Clause(lambda cursor: cursor.parse_name("a translator", 3)),
    "RESPONSE_TRANSLATOR": Clause(lambda cursor: cursor.parse_name("a translator", 3)),
    "MAX_IN_FLIGHT": Clause(integer_parser("a number of batches", 1, _MAX_IN_FLIGHT_BATCHES)),
    "RATE_LIMIT": Clause(number_parser("a number of calls per second", _MAX_CALLS_PER_S)),
    "ROW_ERRORS": Clause(choice_parser(FailureAction, "ROW_ERRORS"), FailureAction.ABORT),
    "CACHE": Clause(_parse_cache_bytes, field="cache_bytes"),
    "MAX_BATCH_SIZE": Clause(
        integer_parser("a number of bytes", 1, _MAX_BATCH_BYTES), field="max_batch_bytes"
    ),
    "ON_BATCH_FAILURE": Clause(
        choice_parser(FailureAction, "ON_BATCH_FAILURE"),
        FailureAction.ABORT,
        field="on_batch_failure",
    ),
    "MAX_BATCH_RETRIES": Clause(integer_parser("a number of retries", 0, _MAX_BATCH_RETRIES)),
    "BATCH_TIMEOUT_SECS": Clause(
        number_parser("a number of seconds", _MAX_BATCH_TIMEOUT_S), field="batch_timeout_s"
    ),
}


# Names, arguments and types of functions.

_MAX_ARGUMENTS = 500  # The limit of Snowflake.
_NUMERIC_TYPES = frozenset({LogicalType.FIXED, LogicalType.REAL})


def parse_function_name(cursor: TokenCursor) -> tuple[ObjectName, str]:
    """Parse the name of a function. Return the name, and its last part as written in SQL.

    Request headers contain the name as written, so `ext_func` stays in lower case.
    """
    name = cursor.parse_name("a function", 3)
    last = cursor.previous
    return name, last.source_text if last.kind is TokenKind.WORD else last.text


def parse_overload(cursor: TokenCursor) -> OverloadReference:
    """Parse the name of a function and its argument types."""
    name, written = parse_function_name(cursor)
    if not cursor.is_next("("):
        raise cursor.make_error(
            f"Write the types of the function's arguments, such as {written}(NUMBER, VARCHAR), or "
            f"{written}() if it has none"
        )
    return OverloadReference(name, parse_list(cursor, parse_sql_type, min_items=0))


def parse_last_overload(cursor: TokenCursor, statement: str) -> OverloadReference:
    """Parse a function that ends the statement. Errors refer to the statement as `statement`."""
    function = parse_overload(cursor)
    cursor.expect_end(statement)
    return function


def parse_arguments(cursor: TokenCursor) -> tuple[FunctionArgument, ...]:
    """Parse arguments in parentheses. Arguments with defaults must follow those without."""
    if not cursor.is_next("("):
        raise cursor.make_error(
            f"Expected the arguments in parentheses here, or (), not {cursor.current_label}"
        )
    cursor.expect("(")
    found: list[FunctionArgument] = []
    while not cursor.accept(")"):
        if found:
            cursor.expect(",")
        found.append(_parse_argument(cursor, found))
    return tuple(found)


def parse_sql_type(cursor: TokenCursor) -> SqlType:
    """Parse a type that can be sent to a service."""
    first = cursor.current
    if first.kind is not TokenKind.WORD:
        raise cursor.make_error(
            f"Expected a type here, such as NUMBER(10,2) or VARCHAR, not {cursor.current_label}"
        )
    cursor.advance()
    if first.text == "DOUBLE":
        cursor.accept("PRECISION")
    if cursor.accept("("):
        while not cursor.accept(")"):
            if cursor.current.kind is not TokenKind.NUMBER and not cursor.is_next(","):
                raise cursor.make_error(
                    f"Expected a number or a parenthesis here, not {cursor.current_label}"
                )
            cursor.advance()
    try:
        return parse_sql_type_text(cursor.source_between(first, cursor.previous))
    except DeclarationInvalid as error:
        reason = str(error.fields["reason"])
        raise cursor.make_error(reason[:1].upper() + reason[1:], first) from None


def _parse_argument(
    cursor: TokenCursor, previous_arguments: list[FunctionArgument]
) -> FunctionArgument:
    at = cursor.current
    # Request headers contain argument names in upper case, and Spark compares them
    # case-insensitively.
    name = cursor.parse_identifier("an argument").upper()
    if name in {each.name for each in previous_arguments}:
        raise cursor.make_error(f"Argument {name} is specified twice", at)
    if len(previous_arguments) == _MAX_ARGUMENTS:
        raise cursor.make_error(f"A function has at most {_MAX_ARGUMENTS} arguments", at)
    sql_type = parse_sql_type(cursor)
    default = _parse_default_value(cursor, sql_type) if cursor.accept("DEFAULT") else None
    if default is None and previous_arguments and previous_arguments[-1].default is not None:
        raise cursor.make_error(
            f"Argument {name} needs a DEFAULT, because the previous argument "
            f"{previous_arguments[-1].name} has one",
            at,
        )
    return FunctionArgument(name, sql_type, default=default)


def _parse_default_value(cursor: TokenCursor, sql_type: SqlType) -> str:
    """Parse a constant of the given type, and return it as SQL text."""
    at = cursor.current
    if cursor.accept("NULL"):
        return "NULL"
    if sql_type.kind in _NUMERIC_TYPES:
        return _parse_numeric_constant(cursor, sql_type)
    if sql_type.kind is LogicalType.BOOLEAN:
        return cursor.expect_one_of("TRUE", "FALSE")
    if sql_type.kind in SEMI_STRUCTURED_TYPES:
        raise cursor.make_error(
            f"The DEFAULT of {sql_type.base_name} can only be NULL, not {cursor.current_label}"
        )
    value = cursor.parse_string(f"a constant of type {sql_type.base_name}")
    try:
        _check_text_constant(value, sql_type)
    except ValueError:
        raise cursor.make_error(f"{at.source_text} is not a {sql_type.ddl}", at) from None
    return quote_literal(value)


def _parse_numeric_constant(cursor: TokenCursor, sql_type: SqlType) -> str:
    at = cursor.current
    sign = cursor.accept_one_of("-", "+")
    if cursor.current.kind is not TokenKind.NUMBER:
        raise cursor.make_error(
            f"Expected a constant of type {sql_type.base_name} here, not {cursor.current_label}"
        )
    digits = cursor.advance().text
    text = f"-{digits}" if sign is not None and sign.text == "-" else digits
    if sql_type.kind is LogicalType.FIXED:
        value, scale, precision = Decimal(digits), sql_type.scale or 0, sql_type.precision or 0
        _, significant, exponent = value.normalize().as_tuple()
        exponent = int(exponent)
        fits = exponent >= -scale and len(significant) + exponent <= precision - scale
        if value != 0 and not fits:
            raise cursor.make_error(f"{text} is not a {sql_type.ddl}", at)
    return text


def _check_text_constant(value: str, sql_type: SqlType) -> None:
    if sql_type.kind is LogicalType.DATE:
        dt.date.fromisoformat(value)
    elif sql_type.kind is LogicalType.TIME:
        dt.time.fromisoformat(value)
    elif sql_type.kind is LogicalType.BINARY:
        bytes.fromhex(value)
    elif sql_type.kind is not LogicalType.TEXT:
        dt.datetime.fromisoformat(value)
    elif sql_type.length is not None and len(value) > sql_type.length:
        raise ValueError
