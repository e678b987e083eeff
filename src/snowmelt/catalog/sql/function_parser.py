"""Parser for external functions and translators, in Snowflake's grammar with additional clauses.

Covers the statements, their clauses, signatures with default values, and CREATE FUNCTION of
translators. Other functions in JavaScript or Python are not supported.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from snowmelt.catalog.sql import property_clauses
from snowmelt.catalog.sql.ast import (
    AlterFunction,
    CreateExternalFunction,
    CreateTranslator,
    DescribeFunction,
    DropFunction,
    OverloadReference,
    RenameFunction,
    SkippedFunction,
)
from snowmelt.catalog.sql.lexer import TokenKind
from snowmelt.catalog.sql.object_parser import parse_skipped_function
from snowmelt.catalog.sql.property_clauses import (
    ClauseDefinition,
    ClauseReader,
    is_at_end,
    parse_list,
)
from snowmelt.functions.ddl_writer import quote_literal
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
from snowmelt.functions.signature import FunctionArgument, FunctionSignature, parse_sql_type_text
from snowmelt.functions.urls import parse_url
from snowmelt.functions.wire.headers import validate_custom_headers
from snowmelt.schema.types import SEMI_STRUCTURED_TYPES, LogicalType

if TYPE_CHECKING:
    from snowmelt.catalog.sql.cursor import TokenCursor
    from snowmelt.catalog.sql.object_name_types import CreateMode, ObjectName
    from snowmelt.functions.signature import SqlType

_FUNCTION_LABEL = "an external function"
_TRANSLATOR_FIELDS = ("request_translator", "response_translator")
# Words that set something by themselves: what they set, and to what.
_KEYWORD_PHRASES: tuple[tuple[str, str, object], ...] = (
    ("RETURNS NULL ON NULL INPUT", "null_input", NullInputAction.STRICT),
    ("CALLED ON NULL INPUT", "null_input", NullInputAction.CALLED),
    ("STRICT", "null_input", NullInputAction.STRICT),
    ("VOLATILE", "volatility", Volatility.VOLATILE),
    ("IMMUTABLE", "volatility", Volatility.IMMUTABLE),
    ("NOT NULL", "returns_null", False),
    ("NULL", "returns_null", True),
)
_SECURE_CLAUSE = ClauseDefinition("secure", lambda _: True, default=False)


def parse_create_function(
    cursor: TokenCursor, create_mode: CreateMode, *, secure: bool
) -> CreateExternalFunction:
    """Go past what follows CREATE … EXTERNAL FUNCTION [IF NOT EXISTS].

    Raises:
        StatementError: It is not as it must be.
    """
    name, written = parse_function_name(cursor)
    arguments = parse_arguments(cursor)
    cursor.expect("RETURNS")
    if cursor.is_next("TABLE"):
        raise cursor.make_error("An external function returns one value per row, no TABLE")
    signature = FunctionSignature(written, arguments, parse_sql_type(cursor))
    settings = ClauseReader(FUNCTION_CLAUSES, _FUNCTION_LABEL)
    phrases: dict[str, Any] = {}
    while not cursor.is_next("AS"):
        if not (_parse_phrase(cursor, phrases) or settings.parse_next(cursor)):
            if is_at_end(cursor):
                raise cursor.make_error(
                    "Expected AS and the URL of the service in single quotes here"
                )
            settings.raise_unknown_clause(
                cursor, (*(words for words, _, _ in _KEYWORD_PHRASES), "AS")
            )
    settings.check_required(cursor)
    places = {**settings.positions(), "AS": cursor.advance().position}
    url = parse_service_url(cursor, "AS")
    cursor.expect_end("the URL, which comes last")
    fields = settings.field_values()
    request, response = (fields.pop(each, None) for each in _TRANSLATOR_FIELDS)
    return CreateExternalFunction(
        name=name,
        function=ExternalFunction(signature=signature, url=url, secure=secure, **fields, **phrases),
        request_translator=request,
        response_translator=response,
        create_mode=create_mode,
        positions=places,
    )


def parse_service_url(cursor: TokenCursor, clause: str) -> str:
    """Go past a URL in single quotes.

    Raises:
        StatementError: If it is none that can be called.
    """
    at = cursor.current
    url = cursor.parse_string("the URL of the service")
    try:
        parse_url(url)
    except UrlRefused as error:
        raise cursor.make_error(f"{clause}: {str(error).rstrip('.')}", at) from None
    return url


def parse_alter_function(cursor: TokenCursor) -> AlterFunction | RenameFunction:
    """Go past what follows ALTER [EXTERNAL] FUNCTION.

    Raises:
        StatementError: It is anything but SET, UNSET or RENAME TO.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    function = parse_overload(cursor)
    word = cursor.expect_one_of("SET", "UNSET", "RENAME")
    if word == "RENAME":
        cursor.expect("TO")
        new_name, written = parse_function_name(cursor)
        cursor.expect_end("the new name")
        return RenameFunction(function, new_name, written, if_exists)
    settings = ClauseReader(FUNCTION_CLAUSES | {"SECURE": _SECURE_CLAUSE}, "ALTER FUNCTION")
    parse_clause_changes(cursor, settings, unset=word == "UNSET")
    return AlterFunction(function, settings.field_values(), if_exists, settings.positions())


def parse_clause_changes(cursor: TokenCursor, clause_reader: ClauseReader, *, unset: bool) -> None:
    """Go past the clauses of SET or UNSET, with commas between or without, to the end.

    Raises:
        StatementError: If there is none, or one that does not exist.
    """
    read = clause_reader.parse_next_unset if unset else clause_reader.parse_next
    while read(cursor):
        cursor.accept(",")
    if not clause_reader.values or not is_at_end(cursor):
        clause_reader.raise_unknown_clause(cursor)
    cursor.expect_end("ALTER")


def parse_drop_function(cursor: TokenCursor, *, external: bool) -> DropFunction:
    """Go past what follows DROP [EXTERNAL] FUNCTION.

    Raises:
        StatementError: It is more than a name and types.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    function = parse_overload(cursor)
    cursor.expect_end("DROP FUNCTION")
    return DropFunction(function, external, if_exists)


def parse_describe_function(cursor: TokenCursor) -> DescribeFunction:
    """Go past what follows DESCRIBE FUNCTION.

    Raises:
        StatementError: It is more than a name and types.
    """
    function = parse_overload(cursor)
    cursor.expect_end("DESCRIBE FUNCTION")
    return DescribeFunction(function)


def _parse_phrase(cursor: TokenCursor, values: dict[str, Any]) -> bool:
    at = cursor.current
    for words, field, value in _KEYWORD_PHRASES:
        if cursor.accept(*words.split()):
            if field in values:
                raise cursor.make_error(f"{words} says again what was said before: write one", at)
            values[field] = value
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

_MAX_BATCH_ROWS = 1_000_000
_MAX_BATCH_BYTES = 100_000_000
_MAX_CACHE_BYTES = 1 << 40
_MAX_IN_FLIGHT_BATCHES = 1_024
_MAX_CALLS_PER_S = 1_000_000
_MAX_BATCH_RETRIES = 100
_MAX_BATCH_TIMEOUT_S = 86_400


def _parse_headers(cursor: TokenCursor) -> tuple[tuple[str, str], ...]:
    at = cursor.current
    found: tuple[tuple[str, str], ...] = property_clauses.parse_list(cursor, _parse_header)
    names = [name.lower() for name, _ in found]
    for name in names:
        if names.count(name) > 1:
            raise cursor.make_error(
                f"HEADERS has {name!r} twice: case does not count in headers", at
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
    found: tuple[str, ...] = property_clauses.parse_list(cursor, _parse_context_header)
    for name in found:
        if found.count(name) > 1:
            raise cursor.make_error(f"CONTEXT_HEADERS has {name} twice", at)
    return found


def _parse_context_header(cursor: TokenCursor) -> str:
    token = cursor.current
    if token.kind in {TokenKind.STRING, TokenKind.QUOTED}:
        raise cursor.make_error(
            f"CONTEXT_HEADERS names functions, without quotes: {token.text}; HEADERS takes constants"
        )
    if token.kind is not TokenKind.WORD or token.text not in CONTEXT_FUNCTIONS:
        there = ", ".join(sorted(CONTEXT_FUNCTIONS))
        raise cursor.make_error(f"{cursor.current_label} is no context function; there are {there}")
    cursor.advance()
    if cursor.accept("("):
        cursor.expect(")")
    return token.text


def _parse_cache_bytes(cursor: TokenCursor) -> int:
    if cursor.accept("OFF"):
        return 0
    if cursor.current.kind is not TokenKind.NUMBER:
        raise cursor.make_error(f"CACHE is a number of bytes or OFF, not {cursor.current_label}")
    return cursor.parse_integer("a number of bytes", 0, _MAX_CACHE_BYTES)


def _parse_translator_name(cursor: TokenCursor) -> object:
    return cursor.parse_name("a translator", 3)


FUNCTION_CLAUSES = {
    "COMMENT": ClauseDefinition(
        "comment", property_clauses.text_parser("a comment"), DEFAULT_COMMENT
    ),
    "API_INTEGRATION": ClauseDefinition(
        "integration", property_clauses.identifier_parser("an API integration"), is_required=True
    ),
    "HEADERS": ClauseDefinition("headers", _parse_headers, ()),
    "CONTEXT_HEADERS": ClauseDefinition("context_headers", _parse_context_headers, ()),
    "MAX_BATCH_ROWS": ClauseDefinition(
        "max_batch_rows", property_clauses.integer_parser("a number of rows", 1, _MAX_BATCH_ROWS)
    ),
    "COMPRESSION": ClauseDefinition(
        "compression",
        property_clauses.choice_parser(RequestCompression, "COMPRESSION"),
        RequestCompression.AUTO,
    ),
    "REQUEST_TRANSLATOR": ClauseDefinition("request_translator", _parse_translator_name),
    "RESPONSE_TRANSLATOR": ClauseDefinition("response_translator", _parse_translator_name),
    "MAX_IN_FLIGHT": ClauseDefinition(
        "max_in_flight",
        property_clauses.integer_parser("a number of batches", 1, _MAX_IN_FLIGHT_BATCHES),
    ),
    "RATE_LIMIT": ClauseDefinition(
        "rate_limit",
        property_clauses.number_parser("a number of calls per second", _MAX_CALLS_PER_S),
    ),
    "ROW_ERRORS": ClauseDefinition(
        "row_errors",
        property_clauses.choice_parser(RowErrorAction, "ROW_ERRORS"),
        RowErrorAction.ABORT,
    ),
    "CACHE": ClauseDefinition("cache_bytes", _parse_cache_bytes),
    "MAX_BATCH_SIZE": ClauseDefinition(
        "max_batch_bytes", property_clauses.integer_parser("a number of bytes", 1, _MAX_BATCH_BYTES)
    ),
    "ON_BATCH_FAILURE": ClauseDefinition(
        "on_batch_failure",
        property_clauses.choice_parser(BatchFailureAction, "ON_BATCH_FAILURE"),
        BatchFailureAction.ABORT,
    ),
    "MAX_BATCH_RETRIES": ClauseDefinition(
        "max_batch_retries",
        property_clauses.integer_parser("a number of retries", 0, _MAX_BATCH_RETRIES),
    ),
    "BATCH_TIMEOUT_SECS": ClauseDefinition(
        "batch_timeout_s",
        property_clauses.number_parser("a number of seconds", _MAX_BATCH_TIMEOUT_S),
    ),
}


# --- Names, arguments and types of functions.

_MAX_ARGUMENTS = 500  # as Snowflake's
_NUMERIC_TYPES = frozenset({LogicalType.FIXED, LogicalType.REAL})


def parse_function_name(cursor: TokenCursor) -> tuple[ObjectName, str]:
    """Go past a function's name; return it, and its last part as it was written.

    Headers carry the name as it was written, so that `ext_func` stays in small letters.

    Raises:
        StatementError: If no name comes next, or it has too many parts.
    """
    name = cursor.parse_name("a function", 3)
    last = cursor.previous
    return name, last.source_text if last.kind is TokenKind.WORD else last.text


def parse_overload(cursor: TokenCursor) -> OverloadReference:
    """Go past a function's name and the types of its arguments.

    Raises:
        StatementError: If they are not there.
    """
    name, written = parse_function_name(cursor)
    if not cursor.is_next("("):
        raise cursor.make_error(
            f"Write the types of the function's arguments, such as {written}(NUMBER, VARCHAR), or "
            f"{written}() if it has none"
        )
    return OverloadReference(name, parse_list(cursor, parse_sql_type, min_items=0))


def parse_arguments(cursor: TokenCursor) -> tuple[FunctionArgument, ...]:
    """Go past arguments in parentheses; those with defaults are the last ones.

    Raises:
        StatementError: If they are not as they must be.
    """
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
    """Go past a type that can be sent to a service.

    Raises:
        StatementError: If it is none.
    """
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
        raise cursor.make_error(_capitalize_first(str(error.fields["reason"])), first) from None


def _parse_argument(
    cursor: TokenCursor, previous_arguments: list[FunctionArgument]
) -> FunctionArgument:
    at = cursor.current
    # Headers carry arguments in capitals, and Spark tells none apart by case.
    name = cursor.parse_identifier("an argument").upper()
    if name in {each.name for each in previous_arguments}:
        raise cursor.make_error(f"Argument {name} is there twice", at)
    if len(previous_arguments) == _MAX_ARGUMENTS:
        raise cursor.make_error(f"A function has at most {_MAX_ARGUMENTS} arguments", at)
    sql_type = parse_sql_type(cursor)
    default = _parse_default_value(cursor, sql_type) if cursor.accept("DEFAULT") else None
    if default is None and previous_arguments and previous_arguments[-1].default is not None:
        raise cursor.make_error(
            f"Argument {name} needs a DEFAULT, too: {previous_arguments[-1].name} before it has one",
            at,
        )
    return FunctionArgument(name, sql_type, default=default)


def _parse_default_value(cursor: TokenCursor, sql_type: SqlType) -> str:
    """Go past a constant that fits a type, and return it as SQL text."""
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
        raise cursor.make_error(f"{at.source_text} is no {sql_type.ddl}", at) from None
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
    scale, precision = sql_type.scale or 0, sql_type.precision or 0
    if sql_type.kind is LogicalType.FIXED and not _fits_precision(
        Decimal(digits), precision, scale
    ):
        raise cursor.make_error(f"{text} is no {sql_type.ddl}", at)
    return text


def _fits_precision(value: Decimal, precision: int, scale: int) -> bool:
    _, digits, exponent = value.normalize().as_tuple()
    exponent = int(exponent)
    return value == 0 or (exponent >= -scale and len(digits) + exponent <= precision - scale)


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


def _capitalize_first(text: str) -> str:
    return text[:1].upper() + text[1:]


# --- CREATE FUNCTION of translators; other functions in JavaScript or Python there are none.

_TRANSLATOR_LABEL = "CREATE FUNCTION"
_TRANSLATOR_SIGNATURE_ERROR = (
    "CREATE FUNCTION makes translators of external functions alone, from one OBJECT to another: "
    "write CREATE FUNCTION t(event OBJECT) RETURNS OBJECT LANGUAGE JAVASCRIPT AS '…'"
)
# What is so anyway, and is therefore read and not kept.
_IGNORED_PHRASES = (
    "RETURNS NULL ON NULL INPUT",
    "CALLED ON NULL INPUT",
    "STRICT",
    "VOLATILE",
    "IMMUTABLE",
    "NOT NULL",
    "NULL",
)


def _parse_handler_name(cursor: TokenCursor) -> str:
    at = cursor.current
    name = cursor.parse_string("the name of a function")
    if not name.isidentifier():
        raise cursor.make_error("HANDLER is the name of a function of the source, one word", at)
    return name


_TRANSLATOR_CLAUSES = {
    "LANGUAGE": ClauseDefinition(
        "language", property_clauses.choice_parser(TranslatorLanguage, "LANGUAGE"), is_required=True
    ),
    "HANDLER": ClauseDefinition("handler", _parse_handler_name),
    "COMMENT": ClauseDefinition("comment", property_clauses.text_parser("a comment")),
    "RUNTIME_VERSION": ClauseDefinition(
        "runtime_version", property_clauses.text_parser("a version")
    ),
}


def parse_create_translator(
    cursor: TokenCursor, create_mode: CreateMode
) -> CreateTranslator | SkippedFunction:
    """Go past what follows CREATE [OR REPLACE] FUNCTION [IF NOT EXISTS].

    Raises:
        StatementError: It is not as it must be, or no translator.
    """
    name, written = parse_function_name(cursor)
    if cursor.is_next("AS"):
        return parse_skipped_function(cursor, "Function", written)
    argument = _parse_event_argument(cursor)
    cursor.expect("RETURNS")
    _expect_object_type(cursor)
    settings = ClauseReader(_TRANSLATOR_CLAUSES, _TRANSLATOR_LABEL)
    while not cursor.is_next("AS"):
        if not (
            any(cursor.accept(*each.split()) for each in _IGNORED_PHRASES)
            or settings.parse_next(cursor)
        ):
            settings.raise_unknown_clause(cursor, (*_IGNORED_PHRASES, "AS"))
    settings.check_required(cursor)
    cursor.expect("AS")
    body = cursor.parse_string("the source")
    cursor.expect_end("the source, which comes last")
    given = settings.field_values()
    language, handler = given["language"], given.get("handler")
    if (language is TranslatorLanguage.PYTHON) != (handler is not None):
        raise cursor.make_error(
            "LANGUAGE PYTHON needs HANDLER = '…', the name of the function in its source"
            if handler is None
            else "HANDLER belongs to LANGUAGE PYTHON; JavaScript's source is the function itself"
        )
    translator = Translator(
        name="", language=language, argument=argument, body=body, handler=handler
    )
    return CreateTranslator(name, translator, given.get("comment"), create_mode)


def _parse_event_argument(cursor: TokenCursor) -> str:
    cursor.expect("(")
    if cursor.is_next(")"):
        raise cursor.make_error(_TRANSLATOR_SIGNATURE_ERROR)
    cursor.parse_identifier("an argument")
    taken = cursor.previous
    _expect_object_type(cursor)
    if cursor.is_next(","):
        raise cursor.make_error(_TRANSLATOR_SIGNATURE_ERROR)
    cursor.expect(")")
    return taken.source_text if taken.kind is TokenKind.WORD else taken.text


def _expect_object_type(cursor: TokenCursor) -> None:
    at = cursor.current
    if cursor.is_next("TABLE") or parse_sql_type(cursor).kind is not LogicalType.OBJECT:
        raise cursor.make_error(_TRANSLATOR_SIGNATURE_ERROR, at)
