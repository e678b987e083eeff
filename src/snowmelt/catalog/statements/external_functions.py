"""External functions: CREATE, ALTER, DROP, DESCRIBE and SHOW.

URL and headers of a SECURE function are visible to its owner only. DROP, DESCRIBE and SHOW
FUNCTIONS are of translators as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from snowmelt.catalog.objects import external_functions
from snowmelt.catalog.objects.external_functions import (
    ExternalFunctionRecord,
    FunctionName,
    TranslatorRecord,
    display_overload,
    list_overloads,
)
from snowmelt.catalog.objects.tables import find_namespace_ids
from snowmelt.catalog.security.access_control import has_privilege
from snowmelt.catalog.security.visibility import VisibleObjects
from snowmelt.catalog.sql.object_name_types import CreateMode, NameLevel, ObjectName
from snowmelt.catalog.sql.property_clauses import ClauseDefinition, ClauseReader, is_at_end
from snowmelt.catalog.statements.function_grammar import (
    FUNCTION_CLAUSES,
    parse_arguments,
    parse_function_name,
    parse_overload,
    parse_sql_type,
)
from snowmelt.catalog.statements.statement_context import (
    OverloadReference,
    Statement,
    StatementResult,
    StatementSession,
    creation_result,
    make_statement_error,
    skip_if_exists,
    skipping_missing,
)
from snowmelt.catalog.statements.statement_kind import Listing, ShowObjects, ShowRow, StatementKind
from snowmelt.catalog.statements.translators import (
    list_translator_properties,
    list_translator_rows,
    parse_create_translator,
)
from snowmelt.errors import UserError
from snowmelt.functions.definition import ExternalFunction, NullInputAction, Volatility
from snowmelt.functions.errors import UrlRefused
from snowmelt.functions.signature import FunctionSignature
from snowmelt.functions.urls import parse_url, resolve_allowed_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from snowmelt.catalog.sql.cursor import TokenCursor
    from snowmelt.catalog.sql.lexer import SourcePosition

REDACTED = "******"
# What OR ALTER and ALTER leave alone: whoever calls the function counts on it.
_IMMUTABLE_FIELDS = ("signature", "url", "returns_null", "null_input", "volatility")


@dataclass(frozen=True, slots=True)
class CreateExternalFunction(Statement):
    """CREATE EXTERNAL FUNCTION.

    The translators of `function` are not set: their names may be short. `positions` tells where
    clauses stand that only the catalog can check.
    """

    name: ObjectName
    function: ExternalFunction
    request_translator: ObjectName | None
    response_translator: ObjectName | None
    create_mode: CreateMode
    positions: Mapping[str, SourcePosition]

    def execute(self, session: StatementSession) -> StatementResult:
        name = session.resolve_function_name(self.name)
        session.require_create_function(name)
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
            session.require_privilege(
                "FUNCTION", there.function_id, there.display_signature, "OWNERSHIP"
            )
        if there is not None and self.create_mode is CreateMode.OR_ALTER:
            _check_immutable_fields(there.function, function, self)
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


@dataclass(frozen=True, slots=True)
class AlterFunction(Statement):
    """ALTER FUNCTION … SET or UNSET: fields of the definition and their new values.

    A translator's value is a name that may be short, or None.
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


@dataclass(frozen=True, slots=True)
class RenameFunction(Statement):
    """ALTER FUNCTION … RENAME TO; `new_name_text` is the new name as it was written."""

    function: OverloadReference
    new_name: ObjectName
    new_name_text: str
    if_exists: bool

    def execute(self, session: StatementSession) -> StatementResult:
        with skipping_missing(self.if_exists):
            record = _lock_owned_function(session, self.function)
        name = _qualify_name(record.name, self.new_name)
        if (name.database, name.schema) != (record.name.database, record.name.schema):
            session.require_create_function(name)
        signature = replace(record.signature, name=self.new_name_text)
        function = replace(record.function, signature=signature)
        external_functions.rename_external_function(session.connection, record, name, function)
        types = [each.type for each in signature.arguments]
        return StatementResult(
            message=f"Function {record.display_signature} renamed to {display_overload(name, types)}."
        )


@dataclass(frozen=True, slots=True)
class DropFunction(Statement):
    """DROP [EXTERNAL] FUNCTION; with the word it drops no translator."""

    function: OverloadReference
    external: bool
    if_exists: bool

    def execute(self, session: StatementSession) -> StatementResult:
        with skipping_missing(self.if_exists):
            found = (
                session.find_function(self.function)
                if self.external
                else session.find_function_or_translator(self.function)
            )
        if isinstance(found, TranslatorRecord):
            session.require_privilege("TRANSLATOR", found.translator_id, found.name, "OWNERSHIP")
            external_functions.drop_translator(session.connection, found, session.now)
            return StatementResult(message=f"Translator {found.display_signature} dropped.")
        session.require_privilege(
            "FUNCTION", found.function_id, found.display_signature, "OWNERSHIP"
        )
        external_functions.drop_external_function(session.connection, found, session.now)
        return StatementResult(message=f"Function {found.display_signature} dropped.")


@dataclass(frozen=True, slots=True)
class DescribeFunction(Statement):
    """DESCRIBE FUNCTION."""

    reads_only = True

    function: OverloadReference

    def execute(self, session: StatementSession) -> StatementResult:
        found = session.find_function_or_translator(self.function)
        rows = (
            _list_function_properties(found, session)
            if isinstance(found, ExternalFunctionRecord)
            else list_translator_properties(found)
        )
        return StatementResult(("property", "value"), tuple(rows))


def _lock_owned_function(
    session: StatementSession, overload: OverloadReference
) -> ExternalFunctionRecord:
    record = session.find_function_or_translator(overload)
    if isinstance(record, TranslatorRecord):
        raise UserError(
            f"{record.display_signature} is a translator: CREATE OR REPLACE FUNCTION gives it another source."
        )
    session.require_privilege("FUNCTION", record.function_id, record.display_signature, "OWNERSHIP")
    # Changes of functions wait for one another, so that none undoes what another has just done.
    find_namespace_ids(session.connection, record.name.database, record.name.schema, lock=True)
    return session.find_function(overload)


def _qualify_name(base_name: FunctionName, partial_name: ObjectName) -> FunctionName:
    """Complete a name of fewer parts: it is where the function is."""
    return FunctionName(
        *(base_name.database, base_name.schema)[: 3 - len(partial_name.parts)], *partial_name.parts
    )


def _resolve_translator_name(
    session: StatementSession, function: FunctionName, name: ObjectName | None
) -> str | None:
    """Return the full name of a translator that the role may use."""
    if name is None:
        return None
    record = session.find_translator(_qualify_name(function, name))
    external_functions.lock_translator(session.connection, record)
    return str(record.name)


def _check_integration(
    session: StatementSession, function: ExternalFunction, positions: Mapping[str, SourcePosition]
) -> None:
    """Check that the role may use the integration, and that it lets calls go to the URL."""
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
            "CACHE is for IMMUTABLE functions: a VOLATILE one is asked for each row", place
        )


def _check_immutable_fields(
    before: ExternalFunction, after: ExternalFunction, statement: CreateExternalFunction
) -> None:
    for field in _IMMUTABLE_FIELDS:
        if getattr(before, field) != getattr(after, field):
            raise make_statement_error(
                f"OR ALTER cannot change the {field.replace('_', ' ')} of a function: OR "
                "REPLACE makes it anew",
                statement.name.position,
            )


def _list_external_function_rows(
    statement: ShowObjects, session: StatementSession
) -> Iterator[ShowRow]:
    database, schema, _ = statement.resolve_scope(session)
    sight = VisibleObjects(session.connection, session.role)
    for each in external_functions.list_external_functions(session.connection, database, schema):
        if sight.includes_schema_object(*each.securable, each.schema_id, each.database_id):
            yield _to_function_row(each, session)


def _list_function_and_translator_rows(
    statement: ShowObjects, session: StatementSession
) -> list[ShowRow]:
    database, schema, _ = statement.resolve_scope(session)
    found = [
        *_list_external_function_rows(statement, session),
        *list_translator_rows(session, database, schema),
    ]
    # By database, schema and name.
    return sorted(found, key=lambda row: (str(row[2]), str(row[3]), str(row[1])))


def _to_function_row(record: ExternalFunctionRecord, session: StatementSession) -> ShowRow:
    function, signature = record.function, record.signature
    types = ", ".join(
        f"DEFAULT {each.type.base_name}" if each.default is not None else each.type.base_name
        for each in signature.arguments
    )
    return (
        record.created_at,
        record.name.function,
        record.name.database,
        record.name.schema,
        signature.min_arguments,
        len(signature.arguments),
        f"{record.name.function}({types}) RETURN {signature.returns.base_name}",
        function.comment,
        function.secure,
        True,
        "EXTERNAL",
        function.integration,
        function.url if _can_see_definition(record, session) else REDACTED,
        record.owner,
    )


def _list_function_properties(
    record: ExternalFunctionRecord, session: StatementSession
) -> Iterator[tuple[str, object]]:
    function = record.function
    looks = _can_see_definition(record, session)
    headers = ", ".join(f"'{name}'='{value}'" for name, value in function.headers)
    yield "signature", f"({record.signature.format_arguments_ddl()})"
    yield "returns", function.signature.returns.ddl + ("" if function.returns_null else " NOT NULL")
    yield "language", "EXTERNAL"
    yield "null handling", function.null_input.value
    yield "volatility", function.volatility.value
    yield "body", function.url if looks else REDACTED
    yield "api_integration", function.integration
    yield "headers", headers if looks or not headers else REDACTED
    context = ", ".join(function.context_headers)
    yield "context_headers", context if looks or not context else REDACTED
    yield "max_batch_rows", function.max_batch_rows
    yield "compression", function.compression.value
    yield "request_translator", function.request_translator
    yield "response_translator", function.response_translator
    yield "max_in_flight", function.max_in_flight
    yield "rate_limit", function.rate_limit
    yield "row_errors", function.row_errors.value
    yield "cache", "OFF" if function.cache_bytes == 0 else function.cache_bytes
    yield "max_batch_size", function.max_batch_bytes
    yield "on_batch_failure", function.on_batch_failure.value
    yield "max_batch_retries", function.max_batch_retries
    yield "batch_timeout_secs", function.batch_timeout_s
    yield "is_secure", function.secure
    yield "comment", function.comment
    yield "owner", record.owner


def _can_see_definition(record: ExternalFunctionRecord, session: StatementSession) -> bool:
    return not record.function.secure or has_privilege(
        session.connection, session.role, *record.securable, "OWNERSHIP"
    )


# --- The grammar.

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
    cursor: TokenCursor, create_mode: CreateMode, *, secure: bool = False
) -> CreateExternalFunction:
    """Go past what follows CREATE … EXTERNAL FUNCTION [IF NOT EXISTS]."""
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
    url = _parse_service_url(cursor)
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


def _parse_service_url(cursor: TokenCursor) -> str:
    at = cursor.current
    url = cursor.parse_string("the URL of the service")
    try:
        parse_url(url)
    except UrlRefused as error:
        raise cursor.make_error(f"AS: {str(error).rstrip('.')}", at) from None
    return url


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
    function = parse_overload(cursor)
    cursor.expect_end("DROP FUNCTION")
    return DropFunction(function, external, if_exists)


def _parse_describe(cursor: TokenCursor) -> DescribeFunction:
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
        parse_create_translator,
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
