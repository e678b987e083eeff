"""Statements that change external functions and their translators."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from snowmelt.catalog import access, external_functions, integrations, translators
from snowmelt.catalog.changing import change
from snowmelt.catalog.external_functions import FunctionName, overload_shown, overloads
from snowmelt.catalog.naming import Existing
from snowmelt.catalog.results import Result
from snowmelt.catalog.statements import (
    AlterFunction,
    CreateExternalFunction,
    CreateTranslator,
    DropFunction,
    GrantOnFunction,
    RenameFunction,
)
from snowmelt.catalog.tables import schema_of
from snowmelt.catalog.translators import TranslatorRecord
from snowmelt.errors import DatabaseNotFound, NotFound, SchemaNotFound, StatementError, UserError
from snowmelt.functions.definition import Language, Volatility
from snowmelt.functions.refusals import UrlRefused
from snowmelt.functions.urls import allowed_address
from snowmelt.schema.types import display_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from snowmelt.catalog.external_functions import FunctionRecord
    from snowmelt.catalog.lexing import Place
    from snowmelt.catalog.naming import Name
    from snowmelt.catalog.session import Session
    from snowmelt.catalog.statements import Overload
    from snowmelt.functions.definition import ExternalFunction

CREATE_FUNCTION = "CREATE FUNCTION"
_GONE = (NotFound, SchemaNotFound, DatabaseNotFound)
# What OR ALTER and ALTER leave alone: whoever calls the function counts on it.
_FIXED = ("signature", "url", "returns_null", "null_input", "volatility")


@change.register(CreateExternalFunction)
def _create_function(statement: CreateExternalFunction, session: Session) -> Result:
    name = session.function_name(statement.name)
    _require_create(session, name)
    types = [each.type for each in statement.function.signature.arguments]
    shown = f"Function {overload_shown(name, types)}"
    there = next((each for each in overloads(session.connection, name) if each.takes(types)), None)
    if there is not None and statement.existing is Existing.KEEP:
        return Result(message=f"{shown} exists already; nothing was done.")
    function = replace(
        statement.function,
        request_translator=_translator(session, name, statement.request_translator),
        response_translator=_translator(session, name, statement.response_translator),
    )
    _check_cache(function, statement.places)
    _check(session, function, statement.places)
    if there is not None and statement.existing in {Existing.REPLACE, Existing.ALTER}:
        session.require("FUNCTION", there.function_id, "OWNERSHIP", there.shown)
    if there is not None and statement.existing is Existing.ALTER:
        _require_same(there.function, function, statement)
        external_functions.update_function(session.connection, there, function)
        return Result(message=f"{shown} altered.")
    replaced = there if statement.existing is Existing.REPLACE else None
    external_functions.create_function(
        session.connection,
        name,
        function,
        owner=session.role,
        now=session.now,
        replaced=replaced,
    )
    return Result(message=f"{shown} {'created' if replaced is None else 'replaced'}.")


@change.register(AlterFunction)
def _alter_function(statement: AlterFunction, session: Session) -> Result:
    try:
        record = _owned_function(session, statement.function)
    except _GONE as error:
        return _nothing(error, if_exists=statement.if_exists)
    changes: dict[str, Any] = dict(statement.changes)
    for field in ("request_translator", "response_translator"):
        if field in changes:
            changes[field] = _translator(session, record.name, changes[field])
    function = replace(record.function, **changes)
    _check_cache(function, statement.places)
    if "integration" in changes:
        _check(session, function, statement.places)
    external_functions.update_function(session.connection, record, function)
    return Result(message=f"Function {record.shown} altered.")


@change.register(RenameFunction)
def _rename_function(statement: RenameFunction, session: Session) -> Result:
    try:
        record = _owned_function(session, statement.function)
    except _GONE as error:
        return _nothing(error, if_exists=statement.if_exists)
    name = _beside(record.name, statement.new_name)
    if (name.database, name.schema) != (record.name.database, record.name.schema):
        _require_create(session, name)
    signature = replace(record.signature, name=statement.written)
    function = replace(record.function, signature=signature)
    external_functions.rename_function(session.connection, record, name, function)
    types = [each.type for each in signature.arguments]
    return Result(message=f"Function {record.shown} renamed to {overload_shown(name, types)}.")


@change.register(CreateTranslator)
def _create_translator(statement: CreateTranslator, session: Session) -> Result:
    name = session.function_name(statement.name)
    _require_create(session, name)
    if statement.translator.language is Language.PYTHON:
        # It runs unconfined on every executor, as libraries do.
        session.require_administrator("CREATE FUNCTION … LANGUAGE PYTHON")
    try:
        there = translators.find_translator(session.connection, name)
    except NotFound:
        there = None
    shown = f"Translator {name}(OBJECT)"
    if there is not None and statement.existing is Existing.KEEP:
        return Result(message=f"{shown} exists already; nothing was done.")
    replaced = there if statement.existing is Existing.REPLACE else None
    if replaced is not None:
        session.require("TRANSLATOR", replaced.translator_id, "OWNERSHIP", replaced.name)
    translators.create_translator(
        session.connection,
        name,
        statement.translator,
        comment=statement.comment,
        owner=session.role,
        now=session.now,
        replaced=replaced,
    )
    return Result(message=f"{shown} {'created' if replaced is None else 'replaced'}.")


@change.register(DropFunction)
def _drop_function(statement: DropFunction, session: Session) -> Result:
    try:
        found = (
            session.find_function(statement.function)
            if statement.external
            else session.find_function_or_translator(statement.function)
        )
    except _GONE as error:
        return _nothing(error, if_exists=statement.if_exists)
    if isinstance(found, TranslatorRecord):
        session.require("TRANSLATOR", found.translator_id, "OWNERSHIP", found.name)
        translators.drop_translator(session.connection, found, session.now)
        return Result(message=f"Translator {found.shown} dropped.")
    session.require("FUNCTION", found.function_id, "OWNERSHIP", found.shown)
    external_functions.drop_function(session.connection, found, session.now)
    return Result(message=f"Function {found.shown} dropped.")


@change.register(GrantOnFunction)
def _grant_on_function(statement: GrantOnFunction, session: Session) -> Result:
    found = session.find_function_or_translator(statement.function)
    kind, object_id = found.securable
    session.require(kind, object_id, "OWNERSHIP", found.shown)
    write = access.revoke if statement.revoke else access.grant
    for privilege in statement.privileges:
        write(session.connection, privilege, kind, object_id, statement.role)
    done = "revoked from" if statement.revoke else "granted to"
    privileges, role = ", ".join(statement.privileges), display_name(statement.role)
    return Result(message=f"{privileges} on function {found.shown} {done} role {role}.")


def _require_create(session: Session, name: FunctionName) -> None:
    schema = session.find_schema(name.database, name.schema)
    shown = f"{display_name(name.database)}.{display_name(name.schema)}"
    session.require("SCHEMA", schema.schema_id, CREATE_FUNCTION, shown)


def _owned_function(session: Session, overload: Overload) -> FunctionRecord:
    record = session.find_function_or_translator(overload)
    if isinstance(record, TranslatorRecord):
        raise UserError(
            f"{record.shown} is a translator: CREATE OR REPLACE FUNCTION gives it another source."
        )
    session.require("FUNCTION", record.function_id, "OWNERSHIP", record.shown)
    # Changes of functions wait for one another, so that none undoes what another has just done.
    schema_of(session.connection, record.name.database, record.name.schema, lock=True)
    return session.find_function(overload)


def _nothing(error: Exception, *, if_exists: bool) -> Result:
    if not if_exists:
        raise error
    return Result(message=f"{error} Nothing was done.")


def _beside(name: FunctionName, other: Name) -> FunctionName:
    """Complete a name of fewer parts: it is where the function is."""
    return FunctionName(*(name.database, name.schema)[: 3 - len(other.parts)], *other.parts)


def _translator(session: Session, function: FunctionName, name: Name | None) -> str | None:
    """Return the full name of a translator that the role may use."""
    if name is None:
        return None
    record = session.find_translator(_beside(function, name))
    translators.lock_translator(session.connection, record)
    return str(record.name)


def _check(session: Session, function: ExternalFunction, places: Mapping[str, Place]) -> None:
    """Check that the role may use the integration, and that it lets calls go to the URL."""
    session.find_integration(function.integration)
    integrations.lock_integration(session.connection, function.integration)
    integration = session.find_integration(function.integration).integration
    try:
        allowed_address(function.url, integration)
    except UrlRefused as error:
        place = places.get("AS") or places["API_INTEGRATION"]
        raise StatementError(
            reason=f"AS: {str(error).rstrip('.')}", line=place.line, column=place.column
        ) from None


def _check_cache(function: ExternalFunction, places: Mapping[str, Place]) -> None:
    place = places.get("CACHE")
    if place is not None and function.cache_bytes and function.volatility is Volatility.VOLATILE:
        raise StatementError(
            reason="CACHE is for IMMUTABLE functions: a VOLATILE one is asked for each row",
            line=place.line,
            column=place.column,
        )


def _require_same(
    before: ExternalFunction, after: ExternalFunction, statement: CreateExternalFunction
) -> None:
    for field in _FIXED:
        if getattr(before, field) != getattr(after, field):
            place = statement.name.place
            raise StatementError(
                reason=f"OR ALTER cannot change the {field.replace('_', ' ')} of a function: OR "
                "REPLACE makes it anew",
                line=place.line,
                column=place.column,
            )
