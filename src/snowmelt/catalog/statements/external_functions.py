"""External functions and their translators: CREATE, ALTER, DROP, DESCRIBE and SHOW.

Only the owner of a SECURE function sees its URL and headers. CREATE FUNCTION from OBJECT to OBJECT
creates a translator; other functions in JavaScript or Python are not supported. DROP, DESCRIBE and
SHOW FUNCTIONS cover functions and translators.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Any

from snowmelt.catalog.objects import external_functions
from snowmelt.catalog.objects.external_functions import (
    ExternalFunctionRecord,
    FunctionName,
    TranslatorRecord,
    display_overload,
    list_overloads,
)
from snowmelt.catalog.objects.tables import find_namespace_ids
from snowmelt.catalog.security.access_control import VisibleObjects, has_privilege
from snowmelt.catalog.sql.cursor import (
    Clause,
    ClauseReader,
    CreateMode,
    NameLevel,
    ObjectName,
    TokenCursor,
    choice_parser,
    is_at_end,
    text_parser,
)
from snowmelt.catalog.sql.lexer import SourcePosition, TokenKind
from snowmelt.catalog.statements.function_grammar import (
    FUNCTION_CLAUSES,
    parse_arguments,
    parse_function_name,
    parse_last_overload,
    parse_overload,
    parse_sql_type,
)
from snowmelt.catalog.statements.libraries import SkippedFunction, parse_skipped_function
from snowmelt.catalog.statements.statement_context import (
    Listing,
    OverloadReference,
    ShowObjects,
    ShowRow,
    Statement,
    StatementKind,
    StatementResult,
    StatementSession,
    creation_result,
    make_statement_error,
    skip_if_exists,
    skipping_missing,
)
from snowmelt.errors import UserError
from snowmelt.functions.definition import (
    ExternalFunction,
    NullInputAction,
    Translator,
    TranslatorLanguage,
    Volatility,
)
from snowmelt.functions.errors import UrlRefused
from snowmelt.functions.signature import FunctionSignature
from snowmelt.functions.urls import parse_url, resolve_allowed_url
from snowmelt.schema.types import LogicalType

REDACTED = "******"
# CREATE OR ALTER and ALTER do not change these fields, because callers depend on them.
_IMMUTABLE_FIELDS = ("signature", "url", "returns_null", "null_input", "volatility")


class CreateExternalFunction(Statement):
    """CREATE EXTERNAL FUNCTION.

    `function` has no translators yet, because their names may be short. `positions` has the source
    positions of clauses that are checked against the catalog.
    """

    name: ObjectName
    function: ExternalFunction
    request_translator: ObjectName | None
    response_translator: ObjectName | None
    create_mode: CreateMode
    positions: Mapping[str, SourcePosition]

    def execute(self, session: StatementSession) -> StatementResult:
        name = session.resolve_function_name(self.name)
        session.require_in_schema(name, "CREATE FUNCTION")
        types = [each.type for each in self.function.signature.arguments]
        label = f"Function {display_overload(name, types)}"
        same = [
            each
            for each in list_overloads(session.connection, name)
            if each.has_argument_types(types)
        ]
        there = same[0] if same else None
        skip_if_exists(label, self.create_mode, exists=there is not None)
        function = replace(
            self.function,
            request_translator=_resolve_translator_name(session, name, self.request_translator),
            response_translator=_resolve_translator_name(session, name, self.response_translator),
        )
        _check_cache_allowed(function, self.positions)
        _check_integration(session, function, self.positions)
        if there is not None and self.create_mode in {CreateMode.OR_REPLACE, CreateMode.OR_ALTER}:
            session.require_ownership("FUNCTION", there.function_id, there.display_signature)
        if there is not None and self.create_mode is CreateMode.OR_ALTER:
            for field in _IMMUTABLE_FIELDS:
                if getattr(there.function, field) != getattr(function, field):
                    raise make_statement_error(
                        f"OR ALTER cannot change the {field.replace('_', ' ')} of a function. Use "
                        "CREATE OR REPLACE",
                        self.name.position,
                    )
            external_functions.update_external_function(session.connection, there, function)
            return StatementResult(message=f"{label} altered.")
        replaced = there if self.create_mode is CreateMode.OR_REPLACE else None
        external_functions.create_external_function(
            session.connection,
            name,
            function,
            owner=session.role,
            now=session.now,
            replaced=replaced,
        )
        return creation_result(label, replaced=replaced is not None)


class AlterFunction(Statement):
    """ALTER FUNCTION … SET or UNSET: new values of fields of the definition.

    A translator's value is its name, which may be short, or None.
    """

    function: OverloadReference
    changes: Mapping[str, object]
    if_exists: bool
    positions: Mapping[str, SourcePosition]

    def execute(self, session: StatementSession) -> StatementResult:
        with skipping_missing(self.if_exists):
            record = _lock_owned_function(session, self.function)
        changes: dict[str, Any] = dict(self.changes)
        for field in ("request_translator", "response_translator"):
            if field in changes:
                changes[field] = _resolve_translator_name(session, record.name, changes[field])
        function = replace(record.function, **changes)
        _check_cache_allowed(function, self.positions)
        if "integration" in changes:
            _check_integration(session, function, self.positions)
        external_functions.update_external_function(session.connection, record, function)
        return StatementResult(message=f"Function {record.display_signature} altered.")


class RenameFunction(Statement):
    """ALTER FUNCTION … RENAME TO. `new_name_text` is the new name as written in SQL."""

    function: OverloadReference
    new_name: ObjectName
    new_name_text: str
    if_exists: bool

    def execute(self, session: StatementSession) -> StatementResult:
        with skipping_missing(self.if_exists):
            record = _lock_owned_function(session, self.function)
        name = _qualify_name(record.name, self.new_name)
        if (name.database, name.schema) != (record.name.database, record.name.schema):
            session.require_in_schema(name, "CREATE FUNCTION")
        signature = replace(record.signature, name=self.new_name_text)
        function = replace(record.function, signature=signature)
        external_functions.rename_external_function(session.connection, record, name, function)
        types = [each.type for each in signature.arguments]
        return StatementResult(
            message=f"Function {record.display_signature} renamed to {display_overload(name, types)}."
        )


class DropFunction(Statement):
    """DROP [EXTERNAL] FUNCTION. With EXTERNAL, it drops only functions, not translators."""

    function: OverloadReference
    external: bool
    if_exists: bool

    def execute(self, session: StatementSession) -> StatementResult:
        find = session.find_function if self.external else session.find_function_or_translator
        with skipping_missing(self.if_exists):
            name = find(self.function).name
            # Another transaction may rename or replace the function before this lock.
            find_namespace_ids(session.connection, name.database, name.schema, lock=True)
            found = find(self.function)
        if isinstance(found, TranslatorRecord):
            session.require_ownership("TRANSLATOR", found.translator_id, found.name)
            external_functions.drop_translator(session.connection, found, session.now)
            return StatementResult(message=f"Translator {found.display_signature} dropped.")
        session.require_ownership("FUNCTION", found.function_id, found.display_signature)
        external_functions.drop_external_function(session.connection, found, session.now)
        return StatementResult(message=f"Function {found.display_signature} dropped.")


class DescribeFunction(Statement):
    """DESCRIBE FUNCTION."""

    reads_only = True

    function: OverloadReference

    def execute(self, session: StatementSession) -> StatementResult:
        found = session.find_function_or_translator(self.function)
        rows = (
            _list_function_properties(found, session)
            if isinstance(found, ExternalFunctionRecord)
            else _list_translator_properties(found)
        )
        return StatementResult(("property", "value"), tuple(rows))


def _lock_owned_function(
    session: StatementSession, overload: OverloadReference
) -> ExternalFunctionRecord:
    record = session.find_function_or_translator(overload)
    if isinstance(record, TranslatorRecord):
        raise UserError(
            f"Cannot alter translator {record.display_signature}. Use CREATE OR REPLACE FUNCTION."
        )
    session.require_ownership("FUNCTION", record.function_id, record.display_signature)
    # Lock, so that concurrent changes of a function do not overwrite each other.
    find_namespace_ids(session.connection, record.name.database, record.name.schema, lock=True)
    # Another role may have replaced it before the lock.
    record = session.find_function(overload)
    session.require_ownership("FUNCTION", record.function_id, record.display_signature)
    return record


def _qualify_name(base_name: FunctionName, partial_name: ObjectName) -> FunctionName:
    """Complete a short name with the database and schema of the function."""
    return FunctionName(
        *(base_name.database, base_name.schema)[: 3 - len(partial_name.parts)], *partial_name.parts
    )


def _resolve_translator_name(
    session: StatementSession, function: FunctionName, name: ObjectName | None
) -> str | None:
    """Return the full name of a translator that the role may use."""
    if name is None:
        return None
    translator = _qualify_name(function, name)
    external_functions.lock_translator(session.connection, session.find_translator(translator))
    # Another role may have replaced it before the lock.
    return str(session.find_translator(translator).name)


def _check_integration(
    session: StatementSession, function: ExternalFunction, positions: Mapping[str, SourcePosition]
) -> None:
    """Verify that the role may use the integration, and that the integration allows the URL."""
    session.find_api_integration(function.integration)
    external_functions.lock_api_integration(session.connection, function.integration)
    integration = session.find_api_integration(function.integration).integration
    try:
        resolve_allowed_url(function.url, integration)
    except UrlRefused as error:
        place = positions.get("AS") or positions["API_INTEGRATION"]
        raise make_statement_error(f"AS: {str(error).rstrip('.')}", place) from None


def _check_cache_allowed(
    function: ExternalFunction, positions: Mapping[str, SourcePosition]
) -> None:
    place = positions.get("CACHE")
    if place is not None and function.cache_bytes and function.volatility is Volatility.VOLATILE:
        raise make_statement_error(
            "CACHE requires an IMMUTABLE function: a VOLATILE function is called for each row. Add "
            "IMMUTABLE, or omit CACHE",
            place,
        )


def _list_external_function_rows(
    statement: ShowObjects, session: StatementSession
) -> Iterator[ShowRow]:
    database, schema, _ = statement.resolve_scope(session)
    visible = VisibleObjects(session.connection, session.role)
    for each in external_functions.list_external_functions(session.connection, database, schema):
        if visible.includes_schema_object(*each.securable, each.schema_id, each.database_id):
            yield _to_function_row(each, session)


def _list_function_and_translator_rows(
    statement: ShowObjects, session: StatementSession
) -> list[ShowRow]:
    database, schema, _ = statement.resolve_scope(session)
    visible = VisibleObjects(session.connection, session.role)
    found = list(_list_external_function_rows(statement, session))
    for each in external_functions.list_translators(session.connection, database, schema):
        if visible.includes_schema_object(*each.securable, each.schema_id, each.database_id):
            name = each.name
            described = (1, 1, f"{name.function}(OBJECT) RETURN OBJECT", each.comment, False, False)
            row = (each.created_at, name.function, name.database, name.schema, *described)
            found.append((*row, each.translator.language.value, None, None, each.owner))
    # Rows are ordered by database, schema and name.
    return sorted(found, key=lambda row: (str(row[2]), str(row[3]), str(row[1])))


def _to_function_row(record: ExternalFunctionRecord, session: StatementSession) -> ShowRow:
    function, signature = record.function, record.signature
    types = ", ".join(
        f"DEFAULT {each.type.base_name}" if each.default is not None else each.type.base_name
        for each in signature.arguments
    )
    name, counts = record.name, (signature.min_arguments, len(signature.arguments))
    shown = f"{name.function}({types}) RETURN {signature.returns.base_name}"
    row = (record.created_at, name.function, name.database, name.schema, *counts, shown)
    url = function.url if _can_see_definition(record, session) else REDACTED
    kind = (function.comment, function.secure, True, "EXTERNAL")
    return (*row, *kind, function.integration, url, record.owner)


def _list_function_properties(
    record: ExternalFunctionRecord, session: StatementSession
) -> Iterator[tuple[str, object]]:
    function = record.function
    can_see = _can_see_definition(record, session)
    headers = ", ".join(f"'{name}'='{value}'" for name, value in function.headers)
    context = ", ".join(function.context_headers)
    yield "signature", f"({record.signature.format_arguments_ddl()})"
    yield "returns", function.signature.returns.ddl + ("" if function.returns_null else " NOT NULL")
    yield "language", "EXTERNAL"
    yield "null handling", function.null_input.value
    yield "volatility", function.volatility.value
    yield "body", function.url if can_see else REDACTED
    yield "api_integration", function.integration
    yield "headers", headers if can_see or not headers else REDACTED
    yield "context_headers", context if can_see or not context else REDACTED
    for name, field in _SHOWN_FIELDS.items():
        value = getattr(function, field)
        if name == "cache" and value == 0:
            value = "OFF"
        yield name, value.value if isinstance(value, StrEnum) else value
    yield "owner", record.owner


_SHOWN_FIELDS = {
    **{name: name for name in ("max_batch_rows", "compression", "request_translator")},
    **{name: name for name in ("response_translator", "max_in_flight", "rate_limit", "row_errors")},
    "cache": "cache_bytes",
    "max_batch_size": "max_batch_bytes",
    "on_batch_failure": "on_batch_failure",
    "max_batch_retries": "max_batch_retries",
    "batch_timeout_secs": "batch_timeout_s",
    "is_secure": "secure",
    "comment": "comment",
}


def _can_see_definition(record: ExternalFunctionRecord, session: StatementSession) -> bool:
    return not record.function.secure or has_privilege(
        session.connection, session.role, *record.securable, "OWNERSHIP"
    )


# The grammar of external functions.

_FUNCTION_LABEL = "an external function"
_TRANSLATOR_FIELDS = ("request_translator", "response_translator")
# Keywords without a value, each with the field and the value that it sets.
_KEYWORD_PHRASES: dict[str, tuple[str, object]] = {
    "RETURNS NULL ON NULL INPUT": ("null_input", NullInputAction.STRICT),
    "CALLED ON NULL INPUT": ("null_input", NullInputAction.CALLED),
    "STRICT": ("null_input", NullInputAction.STRICT),
    "VOLATILE": ("volatility", Volatility.VOLATILE),
    "IMMUTABLE": ("volatility", Volatility.IMMUTABLE),
    "NOT NULL": ("returns_null", False),
    "NULL": ("returns_null", True),
}
_SECURE_CLAUSE = Clause(lambda _: True, default=False, field="secure")


def parse_create_function(
    cursor: TokenCursor, create_mode: CreateMode, *, secure: bool = False
) -> CreateExternalFunction:
    """Parse the text after CREATE … EXTERNAL FUNCTION [IF NOT EXISTS]."""
    name, written = parse_function_name(cursor)
    arguments = parse_arguments(cursor)
    cursor.expect("RETURNS")
    if cursor.is_next("TABLE"):
        raise cursor.make_error(
            "RETURNS TABLE is not supported: an external function returns one value per row. Use a "
            "column type"
        )
    signature = FunctionSignature(written, arguments, parse_sql_type(cursor))
    settings = ClauseReader(FUNCTION_CLAUSES, _FUNCTION_LABEL)
    phrases: dict[str, Any] = {}
    while not cursor.is_next("AS"):
        if not (_parse_phrase(cursor, phrases) or settings.parse_next(cursor)):
            if is_at_end(cursor):
                raise cursor.make_error(
                    "Expected AS and the URL of the service in single quotes here"
                )
            settings.raise_unknown_clause(cursor, (*_KEYWORD_PHRASES, "AS"))
    settings.check_required(cursor)
    places = {**settings.positions(), "AS": cursor.advance().position}
    at = cursor.current
    url = cursor.parse_string("the URL of the service")
    try:
        parse_url(url)
    except UrlRefused as error:
        raise cursor.make_error(f"AS: {str(error).rstrip('.')}", at) from None
    cursor.expect_end("the URL, which must be last")
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


def _parse_alter(cursor: TokenCursor, if_exists: bool) -> AlterFunction | RenameFunction:
    function = parse_overload(cursor)
    word = cursor.expect_one_of("SET", "UNSET", "RENAME")
    if word == "RENAME":
        cursor.expect("TO")
        new_name, written = parse_function_name(cursor)
        cursor.expect_end("the new name")
        return RenameFunction(function, new_name, written, if_exists)
    settings = ClauseReader(FUNCTION_CLAUSES | {"SECURE": _SECURE_CLAUSE}, "ALTER FUNCTION")
    settings.parse_changes(cursor, unset=word == "UNSET")
    return AlterFunction(function, settings.field_values(), if_exists, settings.positions())


def _parse_drop(external: bool, cursor: TokenCursor, if_exists: bool) -> DropFunction:
    return DropFunction(parse_last_overload(cursor, "DROP FUNCTION"), external, if_exists)


def _parse_describe(cursor: TokenCursor) -> DescribeFunction:
    return DescribeFunction(parse_last_overload(cursor, "DESCRIBE FUNCTION"))


def _parse_phrase(cursor: TokenCursor, values: dict[str, Any]) -> bool:
    at = cursor.current
    for words, (field, value) in _KEYWORD_PHRASES.items():
        if cursor.accept(*words.split()):
            if field in values:
                raise cursor.make_error(
                    f"{words} repeats or contradicts an earlier clause. Use one of them", at
                )
            values[field] = value
            return True
    return False


# Translators.


class CreateTranslator(Statement):
    """CREATE FUNCTION from OBJECT to OBJECT. The name may be short."""

    name: ObjectName
    translator: Translator
    comment: str | None
    create_mode: CreateMode

    def execute(self, session: StatementSession) -> StatementResult:
        name = session.resolve_function_name(self.name)
        session.require_in_schema(name, "CREATE FUNCTION")
        if self.translator.language is TranslatorLanguage.PYTHON:
            # The code of a translator runs without isolation on every executor, like library code.
            session.require_administrator("CREATE FUNCTION … LANGUAGE PYTHON")
        there = external_functions.list_translators(
            session.connection, name.database, name.schema, name.function
        )
        label = f"Translator {name}(OBJECT)"
        skip_if_exists(label, self.create_mode, exists=bool(there))
        replaced = there[0] if there and self.create_mode is CreateMode.OR_REPLACE else None
        if replaced is not None:
            session.require_ownership("TRANSLATOR", replaced.translator_id, replaced.name)
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


def _list_translator_properties(record: TranslatorRecord) -> Iterator[tuple[str, object]]:
    made = record.translator
    yield "signature", f"({made.argument} OBJECT)"
    yield "returns", "OBJECT"
    yield "language", made.language.value
    if made.handler is not None:
        yield "handler", made.handler
    yield "body", made.body
    yield "comment", record.comment
    yield "owner", record.owner


_TRANSLATOR_LABEL = "CREATE FUNCTION"
_TRANSLATOR_SIGNATURE_ERROR = (
    "CREATE FUNCTION makes translators of external functions alone, from one OBJECT to another: "
    "write CREATE FUNCTION t(event OBJECT) RETURNS OBJECT LANGUAGE JAVASCRIPT AS '…'"
)


def _parse_handler_name(cursor: TokenCursor) -> str:
    at = cursor.current
    name = cursor.parse_string("the name of a function")
    if not name.isidentifier():
        raise cursor.make_error(
            f"Invalid HANDLER {name[:80]!r}. Expected the name of a function in the source", at
        )
    return name


_TRANSLATOR_CLAUSES = {
    "LANGUAGE": Clause(choice_parser(TranslatorLanguage, "LANGUAGE"), is_required=True),
    "HANDLER": Clause(_parse_handler_name),
    "COMMENT": Clause(text_parser("a comment")),
    "RUNTIME_VERSION": Clause(text_parser("a version")),
}


def _parse_create_translator(
    cursor: TokenCursor, create_mode: CreateMode
) -> CreateTranslator | SkippedFunction:
    name, written = parse_function_name(cursor)
    if cursor.is_next("AS"):
        return parse_skipped_function(cursor, "Function", written)
    argument = _parse_event_argument(cursor)
    cursor.expect("RETURNS")
    _expect_object_type(cursor)
    settings = ClauseReader(_TRANSLATOR_CLAUSES, _TRANSLATOR_LABEL)
    while not cursor.is_next("AS"):
        if not (
            # These clauses are accepted and ignored, because they state the only supported
            # behavior.
            any(cursor.accept(*words.split()) for words in _KEYWORD_PHRASES)
            or settings.parse_next(cursor)
        ):
            settings.raise_unknown_clause(cursor, (*_KEYWORD_PHRASES, "AS"))
    settings.check_required(cursor)
    cursor.expect("AS")
    body = cursor.parse_string("the source")
    cursor.expect_end("the source, which must be last")
    given = settings.field_values()
    language, handler = given["language"], given.get("handler")
    if (language is TranslatorLanguage.PYTHON) != (handler is not None):
        raise cursor.make_error(
            "LANGUAGE PYTHON needs HANDLER = '…', the name of the function in its source"
            if handler is None
            else "HANDLER requires LANGUAGE PYTHON. Omit it: the source of JavaScript is the function"
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


KINDS = (
    StatementKind(
        "EXTERNAL FUNCTION",
        parse_create_function,
        _parse_alter,
        partial(_parse_drop, True),
        _parse_describe,
    ),
    StatementKind(
        "FUNCTION",
        _parse_create_translator,
        _parse_alter,
        partial(_parse_drop, False),
        _parse_describe,
    ),
)
_COLUMNS = (
    "created_on name database_name schema_name min_num_arguments max_num_arguments arguments "
    "description is_secure is_external_function language api_integration url owner"
)
EXTERNAL_FUNCTIONS = Listing(
    "EXTERNAL FUNCTIONS", NameLevel.SCHEMA, _COLUMNS, _list_external_function_rows
)
FUNCTIONS = Listing("FUNCTIONS", NameLevel.SCHEMA, _COLUMNS, _list_function_and_translator_rows)
