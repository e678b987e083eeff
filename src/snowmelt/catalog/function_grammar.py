"""Statements about external functions; the grammar is Snowflake's, with clauses of our own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from snowmelt.catalog.clauses import Clause, Settings, is_at_end
from snowmelt.catalog.function_clauses import FUNCTION_CLAUSES
from snowmelt.catalog.signature_grammar import (
    read_arguments,
    read_function_name,
    read_overload,
    read_sql_type,
)
from snowmelt.catalog.statements import (
    AlterFunction,
    CreateExternalFunction,
    DescribeFunction,
    DropFunction,
    RenameFunction,
)
from snowmelt.functions.definition import ExternalFunction, NullInput, Volatility
from snowmelt.functions.refusals import UrlRefused
from snowmelt.functions.signature import Signature
from snowmelt.functions.urls import parse_url

if TYPE_CHECKING:
    from snowmelt.catalog.cursor import Cursor
    from snowmelt.catalog.naming import Existing

_WHAT = "an external function"
_TRANSLATORS = ("request_translator", "response_translator")
# Words that set something by themselves: what they set, and to what.
_PHRASES: tuple[tuple[str, str, object], ...] = (
    ("RETURNS NULL ON NULL INPUT", "null_input", NullInput.STRICT),
    ("CALLED ON NULL INPUT", "null_input", NullInput.CALLED),
    ("STRICT", "null_input", NullInput.STRICT),
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
    signature = Signature(written, arguments, read_sql_type(cursor))
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
