"""CREATE FUNCTION of translators; other functions in JavaScript or Python there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog import clauses
from snowmelt.catalog.clauses import Clause, Settings
from snowmelt.catalog.lexing import TokenKind
from snowmelt.catalog.library_grammar import read_skipped_function
from snowmelt.catalog.signature_grammar import read_function_name, read_sql_type
from snowmelt.catalog.statements import CreateTranslator, SkippedFunction
from snowmelt.functions.definition import Language, Translator
from snowmelt.schema.types import Kind

if TYPE_CHECKING:
    from snowmelt.catalog.cursor import Cursor
    from snowmelt.catalog.naming import Existing

_WHAT = "CREATE FUNCTION"
_ONE_OBJECT = (
    "CREATE FUNCTION makes translators of external functions alone, from one OBJECT to another: "
    "write CREATE FUNCTION t(event OBJECT) RETURNS OBJECT LANGUAGE JAVASCRIPT AS '…'"
)
# What is so anyway, and is therefore read and not kept.
_PHRASES = (
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
    "LANGUAGE": Clause("language", clauses.choice(Language, "LANGUAGE"), is_required=True),
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
    settings = Settings(_CLAUSES, _WHAT)
    while not cursor.ahead("AS"):
        if not (
            any(cursor.accept(*each.split()) for each in _PHRASES) or settings.read_one(cursor)
        ):
            settings.refuse(cursor, (*_PHRASES, "AS"))
    settings.require(cursor)
    cursor.expect("AS")
    body = cursor.string("the source")
    cursor.end("the source, which comes last")
    given = settings.fields()
    language, handler = given["language"], given.get("handler")
    if (language is Language.PYTHON) != (handler is not None):
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
    if cursor.ahead("TABLE") or read_sql_type(cursor).kind is not Kind.OBJECT:
        raise cursor.error(_ONE_OBJECT, at)
