"""Statements that change external functions and their translators."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, cast

from snowmelt.catalog.commands.ddl import change
from snowmelt.catalog.commands.session import Result
from snowmelt.catalog.model.privileges import PUBLIC
from snowmelt.catalog.objects import external_functions, integrations, libraries
from snowmelt.catalog.objects import external_functions as translators
from snowmelt.catalog.objects.external_functions import (
    FunctionName,
    TranslatorRecord,
    overload_shown,
    overloads,
)
from snowmelt.catalog.objects.libraries import FunctionRecord as FunctionRecordChangingLibraries
from snowmelt.catalog.objects.libraries import LibraryRecord
from snowmelt.catalog.objects.tables import schema_of
from snowmelt.catalog.security import access_control as access
from snowmelt.catalog.security import access_control as account
from snowmelt.catalog.sql.ast import (
    AlterFunction,
    AlterIntegration,
    CreateExternalFunction,
    CreateFunction,
    CreateIntegration,
    CreateLibrary,
    CreateTranslator,
    DropFunction,
    DropIntegration,
    DropLoadObject,
    GrantOnFunction,
    GrantOnIntegration,
    RenameFunction,
    SkippedFunction,
)
from snowmelt.catalog.sql.identifiers import Existing
from snowmelt.errors import (
    DatabaseNotFound,
    NotFound,
    ObjectMissing,
    PrivilegeMissing,
    SchemaNotFound,
    StatementError,
    UserError,
)
from snowmelt.functions.definition import TranslatorLanguage, Volatility
from snowmelt.functions.errors import UrlRefused
from snowmelt.functions.urls import resolve_allowed_url
from snowmelt.schema.types import display_name
from snowmelt.storage.store_factory import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from snowmelt.catalog.commands.session import Session
    from snowmelt.catalog.objects.external_functions import FunctionRecord
    from snowmelt.catalog.objects.integrations import IntegrationRecord
    from snowmelt.catalog.objects.libraries import FunctionKind
    from snowmelt.catalog.sql.ast import Overload
    from snowmelt.catalog.sql.identifiers import Name
    from snowmelt.catalog.sql.lexer import Place
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
    if statement.translator.language is TranslatorLanguage.PYTHON:
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
        resolve_allowed_url(function.url, integration)
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


# --- Statements that change API integrations.


@change.register(CreateIntegration)
def _create(statement: CreateIntegration, session: Session) -> Result:
    roles = {session.role, PUBLIC}
    if not account.may(session.connection, roles, integrations.CREATE_INTEGRATION):
        raise PrivilegeMissing(
            role=display_name(session.role),
            privilege=integrations.CREATE_INTEGRATION,
            object="the account",
        )
    name = statement.integration.name
    shown = f"API integration {display_name(name)}"
    try:
        there = integrations.find_integration(session.connection, name)
    except NotFound:
        there = None
    if there is not None and statement.existing is Existing.KEEP:
        return Result(message=f"{shown} exists already; nothing was done.")
    is_replaced = there is not None and statement.existing is Existing.REPLACE
    if there is not None and is_replaced:
        session.require("INTEGRATION", there.integration_id, "OWNERSHIP", display_name(name))
    statement.integration.validate()
    integrations.create_integration(
        session.connection,
        statement.integration,
        owner=session.role,
        now=session.now,
        replace=is_replaced,
    )
    return Result(message=f"{shown} {'replaced' if is_replaced else 'created'}.")


@change.register(AlterIntegration)
def _alter(statement: AlterIntegration, session: Session) -> Result:
    try:
        record = _owned(session, statement.name)
    except NotFound as error:
        if not statement.if_exists:
            raise
        return Result(message=f"{error} Nothing was done.")
    changes: dict[str, Any] = dict(statement.changes)
    integration = replace(record.integration, **changes)
    integration.validate()
    integrations.update_integration(session.connection, record, integration)
    return Result(message=f"API integration {display_name(statement.name)} altered.")


@change.register(DropIntegration)
def _drop(statement: DropIntegration, session: Session) -> Result:
    try:
        record = _owned(session, statement.name)
    except NotFound as error:
        if not statement.if_exists:
            raise
        return Result(message=f"{error} Nothing was done.")
    integrations.drop_integration(session.connection, record, session.now)
    return Result(message=f"API integration {display_name(statement.name)} dropped.")


@change.register(GrantOnIntegration)
def _grant(statement: GrantOnIntegration, session: Session) -> Result:
    record = _owned(session, statement.integration)
    write = access.revoke if statement.revoke else access.grant
    for privilege in statement.privileges:
        write(
            session.connection,
            privilege,
            "INTEGRATION",
            record.integration_id,
            statement.role,
        )
    done = "revoked from" if statement.revoke else "granted to"
    privileges, role = ", ".join(statement.privileges), display_name(statement.role)
    shown = display_name(statement.integration)
    return Result(message=f"{privileges} on integration {shown} {done} role {role}.")


def _owned(session: Session, name: str) -> IntegrationRecord:
    record = session.find_integration(name)
    session.require("INTEGRATION", record.integration_id, "OWNERSHIP", display_name(name))
    # Changes wait for one another, so that none undoes what another has just done.
    integrations.lock_integration(session.connection, name)
    return session.find_integration(name)


# --- Statements that change libraries of user code, and what is made of them.

# Calls that may bind names of a module.
_MAKING = frozenset({"globals", "vars", "exec", "setattr", "locals"})
_MAX_BYTES = 64 * 1024 * 1024


@change.register(CreateLibrary)
def _create_library(statement: CreateLibrary, session: Session) -> Result:
    session.require_administrator("CREATE LIBRARY")
    shown = display_name(statement.name)
    known = {each.name for each in libraries.libraries_of(session.connection)}
    there = statement.name in known
    if there and statement.existing is Existing.KEEP:
        return Result(message=f"Library {shown} exists already; nothing was done.")
    contents = _read(statement)
    record = LibraryRecord(
        name=statement.name,
        language="Python",
        origin=statement.path,
        files=tuple(contents),
        owner=session.role,
        created_at=session.now,
    )
    libraries.create_library(
        session.connection, record, contents, replace=statement.existing is Existing.REPLACE
    )
    files = "1 file" if len(contents) == 1 else f"{len(contents)} files"
    return Result(message=f"Library {shown} {'replaced' if there else 'created'}, {files}.")


@change.register(CreateFunction)
def _create_function_changing_libraries(statement: CreateFunction, session: Session) -> Result:
    kind = cast("FunctionKind", statement.kind)
    session.require_administrator(f"CREATE {kind.upper()}")
    known = {each.name for each in libraries.functions_of(session.connection, kind)}
    there = statement.name in known
    shown = f"{kind.capitalize()} {display_name(statement.name)}"
    if there and statement.existing is Existing.KEEP:
        return Result(message=f"{shown} exists already; nothing was done.")
    _check_factory(statement, session)
    record = FunctionRecordChangingLibraries(
        kind=kind,
        name=statement.name,
        factory=statement.factory,
        library=statement.library,
        owner=session.role,
        created_at=session.now,
    )
    libraries.create_function(
        session.connection, record, replace=statement.existing is Existing.REPLACE
    )
    return Result(message=f"{shown} {'replaced' if there else 'created'}.")


@change.register(DropLoadObject)
def _drop_changing_libraries(statement: DropLoadObject, session: Session) -> Result:
    session.require_administrator(f"DROP {statement.kind.upper()}")
    shown = f"{statement.kind.capitalize()} {display_name(statement.name)}"
    try:
        if statement.kind == "library":
            libraries.drop_library(session.connection, statement.name, cascade=statement.cascade)
        else:
            kind = cast("FunctionKind", statement.kind)
            libraries.drop_function(session.connection, kind, statement.name)
    except NotFound:
        if not statement.if_exists:
            raise
        return Result(message=f"{shown} does not exist; nothing was done.")
    return Result(message=f"{shown} dropped.")


@change.register(SkippedFunction)
def _skip(statement: SkippedFunction, session: Session) -> Result:  # noqa: ARG001 - as changes are
    return Result(
        message=f"{statement.kind} {statement.name} was skipped: of a library's functions a load "
        "runs filters, parsers and sources. A function for queries is an EXTERNAL FUNCTION."
    )


def _check_factory(statement: CreateFunction, session: Session) -> None:
    """Verify that a library has a factory, without running any of its code.

    Raises:
        NotFound: If there is no such library.
        UserError: If no file of it binds the name, or a file is no Python.
    """
    files = libraries.library_files(session.connection, [statement.library])[statement.library]
    shown = display_name(statement.library)
    bound: dict[str, None] = {}
    for path, data in files.items():
        parts = PurePosixPath(path)
        is_top = len(parts.parts) == 1 or (len(parts.parts) == 2 and parts.name == "__init__.py")
        if parts.suffix != ".py" or not is_top:
            continue
        try:
            tree = ast.parse(data, path)
        except (SyntaxError, ValueError) as error:
            raise UserError(f"Cannot use library {shown}: {path} is no Python: {error}.") from None
        found = _bound(tree.body)
        if found is None:
            return  # a star import, or names that are made while it runs
        bound.update(dict.fromkeys(found))
    if statement.factory.lower() not in {name.lower() for name in bound}:
        offered = ", ".join(name for name in bound if not name.startswith("_")) or "nothing"
        raise UserError(
            f"Cannot create {statement.kind} {display_name(statement.name)}: library {shown} has no "
            f"{statement.factory}; it has {offered}."
        )


def _bound(body: Sequence[ast.stmt]) -> list[str] | None:
    """Return the names that a module binds; None if that is known only by running it."""
    names: list[str] = []
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            # What is within binds nothing outside.
            names.append(node.name)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            names += [each.asname or each.name.partition(".")[0] for each in node.names]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in _MAKING:
            return None
        waiting = [*ast.iter_child_nodes(node), *waiting]
    return None if {"*", "__getattr__"} & set(names) else names


def _read(statement: CreateLibrary) -> dict[str, bytes]:
    """Read a library's files, the named one first; others by their path beneath DEPENDS."""
    folder, _, name = statement.path.rpartition("/")
    if "://" not in folder and not Path(statement.path).is_file():
        raise ObjectMissing(path=name, store=folder or ".")
    contents = {name: open_store(folder or ".").get(name)}
    size = len(contents[name])
    for path, data in _needed(statement.depends):
        size += len(data)
        if size > _MAX_BYTES:
            raise UserError(
                f"The files of library {display_name(statement.name)} have more than "
                f"{_MAX_BYTES:,} bytes."
            )
        contents.setdefault(path, data)
    return contents


def _needed(depends: str | None) -> Iterator[tuple[str, bytes]]:
    """Yield what DEPENDS names: files and folders, with `:` between them, `*` for a folder's all."""
    for part in filter(None, (depends or "").split(":")):
        path = Path(part.removesuffix("/*"))
        if path.is_file():
            yield path.name, path.read_bytes()
        elif path.is_dir():
            store = open_store(str(path))
            for found in sorted(store.list(), key=lambda info: info.path):
                if "__pycache__" not in found.path:
                    yield found.path, store.get(found.path)
        else:
            raise UserError(f"DEPENDS {part}: there is no such file or folder.")
