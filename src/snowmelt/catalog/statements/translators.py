"""Translators of external functions: CREATE FUNCTION from OBJECT to OBJECT, their rows in SHOW.

Other functions in JavaScript or Python are not supported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from snowmelt.catalog.objects import external_functions
from snowmelt.catalog.security.visibility import VisibleObjects
from snowmelt.catalog.sql.lexer import TokenKind
from snowmelt.catalog.sql.object_name_types import CreateMode, ObjectName
from snowmelt.catalog.sql.property_clauses import (
    ClauseDefinition,
    ClauseReader,
    choice_parser,
    text_parser,
)
from snowmelt.catalog.statements.function_grammar import parse_function_name, parse_sql_type
from snowmelt.catalog.statements.libraries import SkippedFunction, parse_skipped_function
from snowmelt.catalog.statements.statement_context import (
    Statement,
    StatementResult,
    StatementSession,
    creation_result,
    skip_if_exists,
)
from snowmelt.errors import NotFound
from snowmelt.functions.definition import Translator, TranslatorLanguage
from snowmelt.schema.types import LogicalType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from snowmelt.catalog.objects.external_functions import TranslatorRecord
    from snowmelt.catalog.sql.cursor import TokenCursor
    from snowmelt.catalog.statements.statement_kind import ShowRow


@dataclass(frozen=True, slots=True)
class CreateTranslator(Statement):
    """CREATE FUNCTION from OBJECT to OBJECT; the full name is not known yet."""

    name: ObjectName
    translator: Translator
    comment: str | None
    create_mode: CreateMode

    def execute(self, session: StatementSession) -> StatementResult:
        name = session.resolve_function_name(self.name)
        session.require_create_function(name)
        if self.translator.language is TranslatorLanguage.PYTHON:
            # It runs unconfined on every executor, as libraries do.
            session.require_administrator("CREATE FUNCTION … LANGUAGE PYTHON")
        try:
            there = external_functions.find_translator(session.connection, name)
        except NotFound:
            there = None
        label = f"Translator {name}(OBJECT)"
        skip_if_exists(label, self.create_mode, exists=there is not None)
        replaced = there if self.create_mode is CreateMode.OR_REPLACE else None
        if replaced is not None:
            session.require_privilege(
                "TRANSLATOR", replaced.translator_id, replaced.name, "OWNERSHIP"
            )
        external_functions.create_translator(
            session.connection,
            name,
            self.translator,
            comment=self.comment,
            owner=session.role,
            now=session.now,
            replaced=replaced,
        )
        return creation_result(label, replaced=replaced is not None)


def list_translator_rows(
    session: StatementSession, database: str | None, schema: str | None
) -> Iterator[ShowRow]:
    """Yield the translators that the role may use, as SHOW lists them."""
    sight = VisibleObjects(session.connection, session.role)
    for each in external_functions.list_translators(session.connection, database, schema):
        if sight.includes_schema_object(*each.securable, each.schema_id, each.database_id):
            yield (
                each.created_at,
                each.name.function,
                each.name.database,
                each.name.schema,
                1,
                1,
                f"{each.name.function}(OBJECT) RETURN OBJECT",
                each.comment,
                False,
                False,
                each.translator.language.value,
                None,
                None,
                each.owner,
            )


def list_translator_properties(record: TranslatorRecord) -> Iterator[tuple[str, object]]:
    """Yield what DESCRIBE FUNCTION shows of a translator."""
    made = record.translator
    yield "signature", f"({made.argument} OBJECT)"
    yield "returns", "OBJECT"
    yield "language", made.language.value
    if made.handler is not None:
        yield "handler", made.handler
    yield "body", made.body
    yield "comment", record.comment
    yield "owner", record.owner


# --- The grammar.

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
        "language", choice_parser(TranslatorLanguage, "LANGUAGE"), is_required=True
    ),
    "HANDLER": ClauseDefinition("handler", _parse_handler_name),
    "COMMENT": ClauseDefinition("comment", text_parser("a comment")),
    "RUNTIME_VERSION": ClauseDefinition("runtime_version", text_parser("a version")),
}


def parse_create_translator(
    cursor: TokenCursor, create_mode: CreateMode
) -> CreateTranslator | SkippedFunction:
    """Go past what follows CREATE [OR REPLACE] FUNCTION [IF NOT EXISTS]."""
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
