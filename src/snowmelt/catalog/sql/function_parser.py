"""Statements about external functions; the grammar is Snowflake's, with clauses of our own."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from snowmelt.catalog.sql import clauses
from snowmelt.catalog.sql.ast import (
    AlterFunction,
    CreateExternalFunction,
    CreateTranslator,
    DescribeFunction,
    DropFunction,
    Overload,
    RenameFunction,
    SkippedFunction,
)
from snowmelt.catalog.sql.clauses import Clause, Settings, is_at_end, listed
from snowmelt.catalog.sql.lexer import TokenKind
from snowmelt.catalog.sql.object_parser import read_skipped_function
from snowmelt.functions.ddl import quote_literal
from snowmelt.functions.definition import (
    DEFAULT_COMMENT,
    BatchFailureAction,
    ExternalFunction,
    NullInputAction,
    RequestCompression,
    RowErrorAction,
    Translator,
    TranslatorLanguage,
    Volatility,
)
from snowmelt.functions.errors import DeclarationInvalid, UrlRefused
from snowmelt.functions.signature import FunctionArgument, FunctionSignature, parse_type
from snowmelt.functions.urls import parse_url
from snowmelt.functions.wire.headers import validate_custom_headers
from snowmelt.schema.types import SEMI_STRUCTURED_TYPES, LogicalType

if TYPE_CHECKING:
    from snowmelt.catalog.sql.cursor import Cursor
    from snowmelt.catalog.sql.identifiers import Existing, Name
    from snowmelt.functions.signature import SqlType

_WHAT = "an external function"
_TRANSLATORS = ("request_translator", "response_translator")
# Words that set something by themselves: what they set, and to what.
_PHRASES: tuple[tuple[str, str, object], ...] = (
    ("RETURNS NULL ON NULL INPUT", "null_input", NullInputAction.STRICT),
    ("CALLED ON NULL INPUT", "null_input", NullInputAction.CALLED),
    ("STRICT", "null_input", NullInputAction.STRICT),
    ("VOLATILE", "volatility", Volatility.VOLATILE),
    ("IMMUTABLE", "volatility", Volatility.IMMUTABLE),
    ("NOT NULL", "returns_null", False),
    ("NULL", "returns_null", True),
)
_SECURE = Clause("secure", lambda _: True, default=False)


def read_create_function(
    cursor: Cursor, existing: Existing, *, secure: bool
) -> CreateExternalFunction:
    """Go past what follows CREATE … EXTERNAL FUNCTION [IF NOT EXISTS].

    Raises:
        StatementError: It is not as it must be.
    """
    name, written = read_function_name(cursor)
    arguments = read_arguments(cursor)
    cursor.expect("RETURNS")
    if cursor.ahead("TABLE"):
        raise cursor.error("An external function returns one value per row, no TABLE")
    signature = FunctionSignature(written, arguments, read_sql_type(cursor))
    settings = Settings(FUNCTION_CLAUSES, _WHAT)
    phrases: dict[str, Any] = {}
    while not cursor.ahead("AS"):
        if not (_phrase(cursor, phrases) or settings.read_one(cursor)):
            if is_at_end(cursor):
                raise cursor.error("Expected AS and the URL of the service in single quotes here")
            settings.refuse(cursor, (*(words for words, _, _ in _PHRASES), "AS"))
    settings.require(cursor)
    places = {**settings.places(), "AS": cursor.take().place}
    url = read_url(cursor, "AS")
    cursor.end("the URL, which comes last")
    fields = settings.fields()
    request, response = (fields.pop(each, None) for each in _TRANSLATORS)
    return CreateExternalFunction(
        name=name,
        function=ExternalFunction(signature=signature, url=url, secure=secure, **fields, **phrases),
        request_translator=request,
        response_translator=response,
        existing=existing,
        places=places,
    )


def read_url(cursor: Cursor, clause: str) -> str:
    """Go past a URL in single quotes.

    Raises:
        StatementError: If it is none that can be called.
    """
    at = cursor.token
    url = cursor.string("the URL of the service")
    try:
        parse_url(url)
    except UrlRefused as error:
        raise cursor.error(f"{clause}: {str(error).rstrip('.')}", at) from None
    return url


def read_alter_function(cursor: Cursor) -> AlterFunction | RenameFunction:
    """Go past what follows ALTER [EXTERNAL] FUNCTION.

    Raises:
        StatementError: It is anything but SET, UNSET or RENAME TO.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    function = read_overload(cursor)
    word = cursor.expect_one_of("SET", "UNSET", "RENAME")
    if word == "RENAME":
        cursor.expect("TO")
        new_name, written = read_function_name(cursor)
        cursor.end("the new name")
        return RenameFunction(function, new_name, written, if_exists)
    settings = Settings(FUNCTION_CLAUSES | {"SECURE": _SECURE}, "ALTER FUNCTION")
    read_changes(cursor, settings, unset=word == "UNSET")
    return AlterFunction(function, settings.fields(), if_exists, settings.places())


def read_changes(cursor: Cursor, settings: Settings, *, unset: bool) -> None:
    """Go past the clauses of SET or UNSET, with commas between or without, to the end.

    Raises:
        StatementError: If there is none, or one that does not exist.
    """
    read = settings.unset_one if unset else settings.read_one
    while read(cursor):
        cursor.accept(",")
    if not settings.found or not is_at_end(cursor):
        settings.refuse(cursor)
    cursor.end("ALTER")


def read_drop_function(cursor: Cursor, *, external: bool) -> DropFunction:
    """Go past what follows DROP [EXTERNAL] FUNCTION.

    Raises:
        StatementError: It is more than a name and types.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    function = read_overload(cursor)
    cursor.end("DROP FUNCTION")
    return DropFunction(function, external, if_exists)


def read_describe_function(cursor: Cursor) -> DescribeFunction:
    """Go past what follows DESCRIBE FUNCTION.

    Raises:
        StatementError: It is more than a name and types.
    """
    function = read_overload(cursor)
    cursor.end("DESCRIBE FUNCTION")
    return DescribeFunction(function)


def _phrase(cursor: Cursor, found: dict[str, Any]) -> bool:
    at = cursor.token
    for words, field, value in _PHRASES:
        if cursor.accept(*words.split()):
            if field in found:
                raise cursor.error(f"{words} says again what was said before: write one", at)
            found[field] = value
            return True
    return False


# --- The clauses of external functions: Snowflake's own, and ours.

# Specification of the format, §1.1; the last is used in the wild.
# fmt: off
CONTEXT_FUNCTIONS = frozenset({
    "CURRENT_ACCOUNT", "CURRENT_CLIENT", "CURRENT_DATABASE", "CURRENT_DATE", "CURRENT_IP_ADDRESS",
    "CURRENT_REGION", "CURRENT_ROLE", "CURRENT_SCHEMA", "CURRENT_SCHEMAS", "CURRENT_SESSION",
    "CURRENT_STATEMENT", "CURRENT_TIME", "CURRENT_TIMESTAMP", "CURRENT_TRANSACTION",
    "CURRENT_USER", "CURRENT_VERSION", "CURRENT_WAREHOUSE", "LAST_QUERY_ID", "LAST_TRANSACTION",
    "LOCALTIME", "LOCALTIMESTAMP", "CURRENT_ACCOUNT_NAME",
})
# fmt: on

_MAX_ROWS = 1_000_000
_MAX_BYTES = 100_000_000
_MAX_CACHE_BYTES = 1 << 40
_MAX_IN_FLIGHT = 1_024
_MAX_PER_SECOND = 1_000_000
_MAX_RETRIES = 100
_MAX_SECONDS = 86_400


def _headers(cursor: Cursor) -> tuple[tuple[str, str], ...]:
    at = cursor.token
    found: tuple[tuple[str, str], ...] = clauses.listed(cursor, _header)
    names = [name.lower() for name, _ in found]
    for name in names:
        if names.count(name) > 1:
            raise cursor.error(f"HEADERS has {name!r} twice: case does not count in headers", at)
    try:
        validate_custom_headers(dict(found))
    except DeclarationInvalid as error:
        raise cursor.error(f"HEADERS: {error.fields['reason']}", at) from None
    return found


def _header(cursor: Cursor) -> tuple[str, str]:
    name = cursor.string("the name of a header")
    cursor.expect("=")
    return name, cursor.string("the value of a header")


def _context_headers(cursor: Cursor) -> tuple[str, ...]:
    at = cursor.token
    found: tuple[str, ...] = clauses.listed(cursor, _context_header)
    for name in found:
        if found.count(name) > 1:
            raise cursor.error(f"CONTEXT_HEADERS has {name} twice", at)
    return found


def _context_header(cursor: Cursor) -> str:
    token = cursor.token
    if token.kind in {TokenKind.STRING, TokenKind.QUOTED}:
        raise cursor.error(
            f"CONTEXT_HEADERS names functions, without quotes: {token.text}; HEADERS takes constants"
        )
    if token.kind is not TokenKind.WORD or token.text not in CONTEXT_FUNCTIONS:
        there = ", ".join(sorted(CONTEXT_FUNCTIONS))
        raise cursor.error(f"{cursor.seen} is no context function; there are {there}")
    cursor.take()
    if cursor.accept("("):
        cursor.expect(")")
    return token.text


def _cache(cursor: Cursor) -> int:
    if cursor.accept("OFF"):
        return 0
    if cursor.token.kind is not TokenKind.NUMBER:
        raise cursor.error(f"CACHE is a number of bytes or OFF, not {cursor.seen}")
    return cursor.integer("a number of bytes", 0, _MAX_CACHE_BYTES)


def _translator(cursor: Cursor) -> object:
    return cursor.name("a translator", 3)


FUNCTION_CLAUSES = {
    "COMMENT": Clause("comment", clauses.text("a comment"), DEFAULT_COMMENT),
    "API_INTEGRATION": Clause(
        "integration", clauses.identifier("an API integration"), is_required=True
    ),
    "HEADERS": Clause("headers", _headers, ()),
    "CONTEXT_HEADERS": Clause("context_headers", _context_headers, ()),
    "MAX_BATCH_ROWS": Clause("max_batch_rows", clauses.integer("a number of rows", 1, _MAX_ROWS)),
    "COMPRESSION": Clause(
        "compression", clauses.choice(RequestCompression, "COMPRESSION"), RequestCompression.AUTO
    ),
    "REQUEST_TRANSLATOR": Clause("request_translator", _translator),
    "RESPONSE_TRANSLATOR": Clause("response_translator", _translator),
    "MAX_IN_FLIGHT": Clause(
        "max_in_flight", clauses.integer("a number of batches", 1, _MAX_IN_FLIGHT)
    ),
    "RATE_LIMIT": Clause(
        "rate_limit", clauses.number("a number of calls per second", _MAX_PER_SECOND)
    ),
    "ROW_ERRORS": Clause(
        "row_errors", clauses.choice(RowErrorAction, "ROW_ERRORS"), RowErrorAction.ABORT
    ),
    "CACHE": Clause("cache_bytes", _cache),
    "MAX_BATCH_SIZE": Clause(
        "max_batch_bytes", clauses.integer("a number of bytes", 1, _MAX_BYTES)
    ),
    "ON_BATCH_FAILURE": Clause(
        "on_batch_failure",
        clauses.choice(BatchFailureAction, "ON_BATCH_FAILURE"),
        BatchFailureAction.ABORT,
    ),
    "MAX_BATCH_RETRIES": Clause(
        "max_batch_retries", clauses.integer("a number of retries", 0, _MAX_RETRIES)
    ),
    "BATCH_TIMEOUT_SECS": Clause(
        "batch_timeout_s", clauses.number("a number of seconds", _MAX_SECONDS)
    ),
}


# --- Names, arguments and types of functions.

_MAX_ARGUMENTS = 500  # as Snowflake's
_NUMBERS = frozenset({LogicalType.FIXED, LogicalType.REAL})


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


def read_arguments(cursor: Cursor) -> tuple[FunctionArgument, ...]:
    """Go past arguments in parentheses; those with defaults are the last ones.

    Raises:
        StatementError: If they are not as they must be.
    """
    if not cursor.ahead("("):
        raise cursor.error(f"Expected the arguments in parentheses here, or (), not {cursor.seen}")
    cursor.expect("(")
    found: list[FunctionArgument] = []
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


def _argument(cursor: Cursor, before: list[FunctionArgument]) -> FunctionArgument:
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
    return FunctionArgument(name, sql_type, default=default)


def _constant(cursor: Cursor, sql_type: SqlType) -> str:
    """Go past a constant that fits a type, and return it as SQL text."""
    at = cursor.token
    if cursor.accept("NULL"):
        return "NULL"
    if sql_type.kind in _NUMBERS:
        return _number(cursor, sql_type)
    if sql_type.kind is LogicalType.BOOLEAN:
        return cursor.expect_one_of("TRUE", "FALSE")
    if sql_type.kind in SEMI_STRUCTURED_TYPES:
        raise cursor.error(
            f"The DEFAULT of {sql_type.base_name} can only be NULL, not {cursor.seen}"
        )
    value = cursor.string(f"a constant of type {sql_type.base_name}")
    try:
        _check_text(value, sql_type)
    except ValueError:
        raise cursor.error(f"{at.written} is no {sql_type.ddl}", at) from None
    return quote_literal(value)


def _number(cursor: Cursor, sql_type: SqlType) -> str:
    at = cursor.token
    sign = cursor.accept_one_of("-", "+")
    if cursor.token.kind is not TokenKind.NUMBER:
        raise cursor.error(
            f"Expected a constant of type {sql_type.base_name} here, not {cursor.seen}"
        )
    digits = cursor.take().text
    text = f"-{digits}" if sign is not None and sign.text == "-" else digits
    scale, precision = sql_type.scale or 0, sql_type.precision or 0
    if sql_type.kind is LogicalType.FIXED and not _fits(Decimal(digits), precision, scale):
        raise cursor.error(f"{text} is no {sql_type.ddl}", at)
    return text


def _fits(value: Decimal, precision: int, scale: int) -> bool:
    _, digits, exponent = value.normalize().as_tuple()
    exponent = int(exponent)
    return value == 0 or (exponent >= -scale and len(digits) + exponent <= precision - scale)


def _check_text(value: str, sql_type: SqlType) -> None:
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


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


# --- CREATE FUNCTION of translators; other functions in JavaScript or Python there are none.

_WHAT_TRANSLATOR_GRAMMAR = "CREATE FUNCTION"
_ONE_OBJECT = (
    "CREATE FUNCTION makes translators of external functions alone, from one OBJECT to another: "
    "write CREATE FUNCTION t(event OBJECT) RETURNS OBJECT LANGUAGE JAVASCRIPT AS '…'"
)
# What is so anyway, and is therefore read and not kept.
_PHRASES_TRANSLATOR_GRAMMAR = (
    "RETURNS NULL ON NULL INPUT",
    "CALLED ON NULL INPUT",
    "STRICT",
    "VOLATILE",
    "IMMUTABLE",
    "NOT NULL",
    "NULL",
)


def _handler(cursor: Cursor) -> str:
    at = cursor.token
    name = cursor.string("the name of a function")
    if not name.isidentifier():
        raise cursor.error("HANDLER is the name of a function of the source, one word", at)
    return name


_CLAUSES = {
    "LANGUAGE": Clause(
        "language", clauses.choice(TranslatorLanguage, "LANGUAGE"), is_required=True
    ),
    "HANDLER": Clause("handler", _handler),
    "COMMENT": Clause("comment", clauses.text("a comment")),
    "RUNTIME_VERSION": Clause("runtime_version", clauses.text("a version")),
}


def read_create_translator(
    cursor: Cursor, existing: Existing
) -> CreateTranslator | SkippedFunction:
    """Go past what follows CREATE [OR REPLACE] FUNCTION [IF NOT EXISTS].

    Raises:
        StatementError: It is not as it must be, or no translator.
    """
    name, written = read_function_name(cursor)
    if cursor.ahead("AS"):
        return read_skipped_function(cursor, "Function", written)
    argument = _event(cursor)
    cursor.expect("RETURNS")
    _object(cursor)
    settings = Settings(_CLAUSES, _WHAT_TRANSLATOR_GRAMMAR)
    while not cursor.ahead("AS"):
        if not (
            any(cursor.accept(*each.split()) for each in _PHRASES_TRANSLATOR_GRAMMAR)
            or settings.read_one(cursor)
        ):
            settings.refuse(cursor, (*_PHRASES_TRANSLATOR_GRAMMAR, "AS"))
    settings.require(cursor)
    cursor.expect("AS")
    body = cursor.string("the source")
    cursor.end("the source, which comes last")
    given = settings.fields()
    language, handler = given["language"], given.get("handler")
    if (language is TranslatorLanguage.PYTHON) != (handler is not None):
        raise cursor.error(
            "LANGUAGE PYTHON needs HANDLER = '…', the name of the function in its source"
            if handler is None
            else "HANDLER belongs to LANGUAGE PYTHON; JavaScript's source is the function itself"
        )
    translator = Translator(
        name="", language=language, argument=argument, body=body, handler=handler
    )
    return CreateTranslator(name, translator, given.get("comment"), existing)


def _event(cursor: Cursor) -> str:
    cursor.expect("(")
    if cursor.ahead(")"):
        raise cursor.error(_ONE_OBJECT)
    cursor.identifier("an argument")
    taken = cursor.taken
    _object(cursor)
    if cursor.ahead(","):
        raise cursor.error(_ONE_OBJECT)
    cursor.expect(")")
    return taken.written if taken.kind is TokenKind.WORD else taken.text


def _object(cursor: Cursor) -> None:
    at = cursor.token
    if cursor.ahead("TABLE") or read_sql_type(cursor).kind is not LogicalType.OBJECT:
        raise cursor.error(_ONE_OBJECT, at)
