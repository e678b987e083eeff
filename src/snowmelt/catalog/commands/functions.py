"""Statements on external functions, translators, API integrations and user-code libraries.

CREATE FILTER, PARSER and SOURCE check that the library has the factory without running its code.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, cast

from snowmelt.catalog.commands.ddl import execute_ddl
from snowmelt.catalog.commands.statement_context import StatementResult
from snowmelt.catalog.model.privilege_kinds import PUBLIC
from snowmelt.catalog.objects import api_integrations, external_functions, libraries
from snowmelt.catalog.objects import external_functions as translators
from snowmelt.catalog.objects.external_functions import (
    FunctionName,
    TranslatorRecord,
    display_overload,
    list_overloads,
)
from snowmelt.catalog.objects.libraries import LibraryRecord, LoadFunctionRecord
from snowmelt.catalog.objects.tables import find_namespace_ids
from snowmelt.catalog.security import access_control
from snowmelt.catalog.sql.ast import (
    AlterFunction,
    AlterIntegration,
    CreateExternalFunction,
    CreateIntegration,
    CreateLibrary,
    CreateLoadFunction,
    CreateTranslator,
    DropFunction,
    DropIntegration,
    DropLoadObject,
    GrantOnFunction,
    GrantOnIntegration,
    RenameFunction,
    SkippedFunction,
)
from snowmelt.catalog.sql.object_name_types import CreateMode
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
from snowmelt.schema.types import to_display_name
from snowmelt.storage.store_factory import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from snowmelt.catalog.commands.statement_context import StatementSession
    from snowmelt.catalog.objects.api_integrations import ApiIntegrationRecord
    from snowmelt.catalog.objects.external_functions import ExternalFunctionRecord
    from snowmelt.catalog.objects.libraries import FunctionKind
    from snowmelt.catalog.sql.ast import OverloadReference
    from snowmelt.catalog.sql.lexer import SourcePosition
    from snowmelt.catalog.sql.object_name_types import ObjectName
    from snowmelt.functions.definition import ExternalFunction

CREATE_FUNCTION_PRIVILEGE = "CREATE FUNCTION"
_MISSING_OBJECT_ERRORS = (NotFound, SchemaNotFound, DatabaseNotFound)
# What OR ALTER and ALTER leave alone: whoever calls the function counts on it.
_IMMUTABLE_FIELDS = ("signature", "url", "returns_null", "null_input", "volatility")


@execute_ddl.register(CreateExternalFunction)
def _create_external_function(
    statement: CreateExternalFunction, session: StatementSession
) -> StatementResult:
    name = session.resolve_function_name(statement.name)
    _require_create_function_privilege(session, name)
    types = [each.type for each in statement.function.signature.arguments]
    shown = f"Function {display_overload(name, types)}"
    there = next(
        (
            each
            for each in list_overloads(session.connection, name)
            if each.has_argument_types(types)
        ),
        None,
    )
    if there is not None and statement.create_mode is CreateMode.IF_NOT_EXISTS:
        return StatementResult(message=f"{shown} exists already; nothing was done.")
    function = replace(
        statement.function,
        request_translator=_resolve_translator_name(session, name, statement.request_translator),
        response_translator=_resolve_translator_name(session, name, statement.response_translator),
    )
    _check_cache_allowed(function, statement.positions)
    _check_integration(session, function, statement.positions)
    if there is not None and statement.create_mode in {CreateMode.OR_REPLACE, CreateMode.OR_ALTER}:
        session.require_privilege(
            "FUNCTION", there.function_id, "OWNERSHIP", there.display_signature
        )
    if there is not None and statement.create_mode is CreateMode.OR_ALTER:
        _check_immutable_fields(there.function, function, statement)
        external_functions.update_external_function(session.connection, there, function)
        return StatementResult(message=f"{shown} altered.")
    replaced = there if statement.create_mode is CreateMode.OR_REPLACE else None
    external_functions.create_external_function(
        session.connection,
        name,
        function,
        owner=session.role,
        now=session.now,
        replaced=replaced,
    )
    return StatementResult(message=f"{shown} {'created' if replaced is None else 'replaced'}.")


@execute_ddl.register(AlterFunction)
def _alter_external_function(
    statement: AlterFunction, session: StatementSession
) -> StatementResult:
    try:
        record = _lock_owned_function(session, statement.function)
    except _MISSING_OBJECT_ERRORS as error:
        return _missing_object_result(error, if_exists=statement.if_exists)
    changes: dict[str, Any] = dict(statement.changes)
    for field in ("request_translator", "response_translator"):
        if field in changes:
            changes[field] = _resolve_translator_name(session, record.name, changes[field])
    function = replace(record.function, **changes)
    _check_cache_allowed(function, statement.positions)
    if "integration" in changes:
        _check_integration(session, function, statement.positions)
    external_functions.update_external_function(session.connection, record, function)
    return StatementResult(message=f"Function {record.display_signature} altered.")


@execute_ddl.register(RenameFunction)
def _rename_external_function(
    statement: RenameFunction, session: StatementSession
) -> StatementResult:
    try:
        record = _lock_owned_function(session, statement.function)
    except _MISSING_OBJECT_ERRORS as error:
        return _missing_object_result(error, if_exists=statement.if_exists)
    name = _qualify_name(record.name, statement.new_name)
    if (name.database, name.schema) != (record.name.database, record.name.schema):
        _require_create_function_privilege(session, name)
    signature = replace(record.signature, name=statement.new_name_text)
    function = replace(record.function, signature=signature)
    external_functions.rename_external_function(session.connection, record, name, function)
    types = [each.type for each in signature.arguments]
    return StatementResult(
        message=f"Function {record.display_signature} renamed to {display_overload(name, types)}."
    )


@execute_ddl.register(CreateTranslator)
def _create_translator(statement: CreateTranslator, session: StatementSession) -> StatementResult:
    name = session.resolve_function_name(statement.name)
    _require_create_function_privilege(session, name)
    if statement.translator.language is TranslatorLanguage.PYTHON:
        # It runs unconfined on every executor, as libraries do.
        session.require_administrator("CREATE FUNCTION … LANGUAGE PYTHON")
    try:
        there = translators.find_translator(session.connection, name)
    except NotFound:
        there = None
    shown = f"Translator {name}(OBJECT)"
    if there is not None and statement.create_mode is CreateMode.IF_NOT_EXISTS:
        return StatementResult(message=f"{shown} exists already; nothing was done.")
    replaced = there if statement.create_mode is CreateMode.OR_REPLACE else None
    if replaced is not None:
        session.require_privilege("TRANSLATOR", replaced.translator_id, "OWNERSHIP", replaced.name)
    translators.create_translator(
        session.connection,
        name,
        statement.translator,
        comment=statement.comment,
        owner=session.role,
        now=session.now,
        replaced=replaced,
    )
    return StatementResult(message=f"{shown} {'created' if replaced is None else 'replaced'}.")


@execute_ddl.register(DropFunction)
def _drop_function_or_translator(
    statement: DropFunction, session: StatementSession
) -> StatementResult:
    try:
        found = (
            session.find_function(statement.function)
            if statement.external
            else session.find_function_or_translator(statement.function)
        )
    except _MISSING_OBJECT_ERRORS as error:
        return _missing_object_result(error, if_exists=statement.if_exists)
    if isinstance(found, TranslatorRecord):
        session.require_privilege("TRANSLATOR", found.translator_id, "OWNERSHIP", found.name)
        translators.drop_translator(session.connection, found, session.now)
        return StatementResult(message=f"Translator {found.display_signature} dropped.")
    session.require_privilege("FUNCTION", found.function_id, "OWNERSHIP", found.display_signature)
    external_functions.drop_external_function(session.connection, found, session.now)
    return StatementResult(message=f"Function {found.display_signature} dropped.")


@execute_ddl.register(GrantOnFunction)
def _grant_on_function_or_translator(
    statement: GrantOnFunction, session: StatementSession
) -> StatementResult:
    found = session.find_function_or_translator(statement.function)
    kind, object_id = found.securable
    session.require_privilege(kind, object_id, "OWNERSHIP", found.display_signature)
    write = access_control.revoke_privilege if statement.revoke else access_control.grant_privilege
    for privilege in statement.privileges:
        write(session.connection, privilege, kind, object_id, statement.role)
    done = "revoked from" if statement.revoke else "granted to"
    privileges, role = ", ".join(statement.privileges), to_display_name(statement.role)
    return StatementResult(
        message=f"{privileges} on function {found.display_signature} {done} role {role}."
    )


def _require_create_function_privilege(session: StatementSession, name: FunctionName) -> None:
    schema = session.find_schema(name.database, name.schema)
    shown = f"{to_display_name(name.database)}.{to_display_name(name.schema)}"
    session.require_privilege("SCHEMA", schema.schema_id, CREATE_FUNCTION_PRIVILEGE, shown)


def _lock_owned_function(
    session: StatementSession, overload: OverloadReference
) -> ExternalFunctionRecord:
    record = session.find_function_or_translator(overload)
    if isinstance(record, TranslatorRecord):
        raise UserError(
            f"{record.display_signature} is a translator: CREATE OR REPLACE FUNCTION gives it another source."
        )
    session.require_privilege("FUNCTION", record.function_id, "OWNERSHIP", record.display_signature)
    # Changes of functions wait for one another, so that none undoes what another has just done.
    find_namespace_ids(session.connection, record.name.database, record.name.schema, lock=True)
    return session.find_function(overload)


def _missing_object_result(error: Exception, *, if_exists: bool) -> StatementResult:
    if not if_exists:
        raise error
    return StatementResult(message=f"{error} Nothing was done.")


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
    translators.lock_translator(session.connection, record)
    return str(record.name)


def _check_integration(
    session: StatementSession, function: ExternalFunction, positions: Mapping[str, SourcePosition]
) -> None:
    """Check that the role may use the integration, and that it lets calls go to the URL."""
    session.find_api_integration(function.integration)
    api_integrations.lock_api_integration(session.connection, function.integration)
    integration = session.find_api_integration(function.integration).integration
    try:
        resolve_allowed_url(function.url, integration)
    except UrlRefused as error:
        place = positions.get("AS") or positions["API_INTEGRATION"]
        raise StatementError(
            reason=f"AS: {str(error).rstrip('.')}", line=place.line, column=place.column
        ) from None


def _check_cache_allowed(
    function: ExternalFunction, positions: Mapping[str, SourcePosition]
) -> None:
    place = positions.get("CACHE")
    if place is not None and function.cache_bytes and function.volatility is Volatility.VOLATILE:
        raise StatementError(
            reason="CACHE is for IMMUTABLE functions: a VOLATILE one is asked for each row",
            line=place.line,
            column=place.column,
        )


def _check_immutable_fields(
    before: ExternalFunction, after: ExternalFunction, statement: CreateExternalFunction
) -> None:
    for field in _IMMUTABLE_FIELDS:
        if getattr(before, field) != getattr(after, field):
            place = statement.name.position
            raise StatementError(
                reason=f"OR ALTER cannot change the {field.replace('_', ' ')} of a function: OR "
                "REPLACE makes it anew",
                line=place.line,
                column=place.column,
            )


# --- Statements that change API integrations.


@execute_ddl.register(CreateIntegration)
def _create_api_integration(
    statement: CreateIntegration, session: StatementSession
) -> StatementResult:
    roles = {session.role, PUBLIC}
    if not access_control.has_account_privilege(
        session.connection, roles, api_integrations.CREATE_INTEGRATION_PRIVILEGE
    ):
        raise PrivilegeMissing(
            role=to_display_name(session.role),
            privilege=api_integrations.CREATE_INTEGRATION_PRIVILEGE,
            object="the account",
        )
    name = statement.integration.name
    shown = f"API integration {to_display_name(name)}"
    try:
        there = api_integrations.find_api_integration(session.connection, name)
    except NotFound:
        there = None
    if there is not None and statement.create_mode is CreateMode.IF_NOT_EXISTS:
        return StatementResult(message=f"{shown} exists already; nothing was done.")
    is_replaced = there is not None and statement.create_mode is CreateMode.OR_REPLACE
    if there is not None and is_replaced:
        session.require_privilege(
            "INTEGRATION", there.integration_id, "OWNERSHIP", to_display_name(name)
        )
    statement.integration.validate()
    api_integrations.create_api_integration(
        session.connection,
        statement.integration,
        owner=session.role,
        now=session.now,
        replace=is_replaced,
    )
    return StatementResult(message=f"{shown} {'replaced' if is_replaced else 'created'}.")


@execute_ddl.register(AlterIntegration)
def _alter_api_integration(
    statement: AlterIntegration, session: StatementSession
) -> StatementResult:
    try:
        record = _lock_owned_integration(session, statement.name)
    except NotFound as error:
        if not statement.if_exists:
            raise
        return StatementResult(message=f"{error} Nothing was done.")
    changes: dict[str, Any] = dict(statement.changes)
    integration = replace(record.integration, **changes)
    integration.validate()
    api_integrations.update_api_integration(session.connection, record, integration)
    return StatementResult(message=f"API integration {to_display_name(statement.name)} altered.")


@execute_ddl.register(DropIntegration)
def _drop_api_integration(statement: DropIntegration, session: StatementSession) -> StatementResult:
    try:
        record = _lock_owned_integration(session, statement.name)
    except NotFound as error:
        if not statement.if_exists:
            raise
        return StatementResult(message=f"{error} Nothing was done.")
    api_integrations.drop_api_integration(session.connection, record, session.now)
    return StatementResult(message=f"API integration {to_display_name(statement.name)} dropped.")


@execute_ddl.register(GrantOnIntegration)
def _grant_on_api_integration(
    statement: GrantOnIntegration, session: StatementSession
) -> StatementResult:
    record = _lock_owned_integration(session, statement.integration)
    write = access_control.revoke_privilege if statement.revoke else access_control.grant_privilege
    for privilege in statement.privileges:
        write(
            session.connection,
            privilege,
            "INTEGRATION",
            record.integration_id,
            statement.role,
        )
    done = "revoked from" if statement.revoke else "granted to"
    privileges, role = ", ".join(statement.privileges), to_display_name(statement.role)
    shown = to_display_name(statement.integration)
    return StatementResult(message=f"{privileges} on integration {shown} {done} role {role}.")


def _lock_owned_integration(session: StatementSession, name: str) -> ApiIntegrationRecord:
    record = session.find_api_integration(name)
    session.require_privilege(
        "INTEGRATION", record.integration_id, "OWNERSHIP", to_display_name(name)
    )
    # Changes wait for one another, so that none undoes what another has just done.
    api_integrations.lock_api_integration(session.connection, name)
    return session.find_api_integration(name)


# --- Statements that change libraries of user code, and what is made of them.

# Calls that may bind names of a module.
_NAME_BINDING_CALLS = frozenset({"globals", "vars", "exec", "setattr", "locals"})
_MAX_LIBRARY_BYTES = 64 * 1024 * 1024


@execute_ddl.register(CreateLibrary)
def _create_library(statement: CreateLibrary, session: StatementSession) -> StatementResult:
    session.require_administrator("CREATE LIBRARY")
    shown = to_display_name(statement.name)
    known = {each.name for each in libraries.list_libraries(session.connection)}
    there = statement.name in known
    if there and statement.create_mode is CreateMode.IF_NOT_EXISTS:
        return StatementResult(message=f"Library {shown} exists already; nothing was done.")
    contents = _read_library_files(statement)
    record = LibraryRecord(
        name=statement.name,
        language="Python",
        origin=statement.path,
        files=tuple(contents),
        owner=session.role,
        created_at=session.now,
    )
    libraries.create_library(
        session.connection, record, contents, replace=statement.create_mode is CreateMode.OR_REPLACE
    )
    files = "1 file" if len(contents) == 1 else f"{len(contents)} files"
    return StatementResult(
        message=f"Library {shown} {'replaced' if there else 'created'}, {files}."
    )


@execute_ddl.register(CreateLoadFunction)
def _create_load_function(
    statement: CreateLoadFunction, session: StatementSession
) -> StatementResult:
    kind = cast("FunctionKind", statement.kind)
    session.require_administrator(f"CREATE {kind.upper()}")
    known = {each.name for each in libraries.list_load_functions(session.connection, kind)}
    there = statement.name in known
    shown = f"{kind.capitalize()} {to_display_name(statement.name)}"
    if there and statement.create_mode is CreateMode.IF_NOT_EXISTS:
        return StatementResult(message=f"{shown} exists already; nothing was done.")
    _check_factory_exists(statement, session)
    record = LoadFunctionRecord(
        kind=kind,
        name=statement.name,
        factory=statement.factory,
        library=statement.library,
        owner=session.role,
        created_at=session.now,
    )
    libraries.create_load_function(
        session.connection, record, replace=statement.create_mode is CreateMode.OR_REPLACE
    )
    return StatementResult(message=f"{shown} {'replaced' if there else 'created'}.")


@execute_ddl.register(DropLoadObject)
def _drop_load_object(statement: DropLoadObject, session: StatementSession) -> StatementResult:
    session.require_administrator(f"DROP {statement.kind.upper()}")
    shown = f"{statement.kind.capitalize()} {to_display_name(statement.name)}"
    try:
        if statement.kind == "library":
            libraries.drop_library(session.connection, statement.name, cascade=statement.cascade)
        else:
            kind = cast("FunctionKind", statement.kind)
            libraries.drop_load_function(session.connection, kind, statement.name)
    except NotFound:
        if not statement.if_exists:
            raise
        return StatementResult(message=f"{shown} does not exist; nothing was done.")
    return StatementResult(message=f"{shown} dropped.")


@execute_ddl.register(SkippedFunction)
def _report_skipped_function(
    statement: SkippedFunction,
    session: StatementSession,  # noqa: ARG001 - every handler takes it
) -> StatementResult:
    return StatementResult(
        message=f"{statement.kind} {statement.name} was skipped: of a library's functions a load "
        "runs filters, parsers and sources. A function for queries is an EXTERNAL FUNCTION."
    )


def _check_factory_exists(statement: CreateLoadFunction, session: StatementSession) -> None:
    """Verify that a library has a factory, without running any of its code.

    Raises:
        NotFound: If there is no such library.
        UserError: If no file of it binds the name, or a file is no Python.
    """
    files = libraries.read_library_files(session.connection, [statement.library])[statement.library]
    shown = to_display_name(statement.library)
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
        found = _find_bound_names(tree.body)
        if found is None:
            return  # a star import, or names that are made while it runs
        bound.update(dict.fromkeys(found))
    if statement.factory.lower() not in {name.lower() for name in bound}:
        offered = ", ".join(name for name in bound if not name.startswith("_")) or "nothing"
        raise UserError(
            f"Cannot create {statement.kind} {to_display_name(statement.name)}: library {shown} has no "
            f"{statement.factory}; it has {offered}."
        )


def _find_bound_names(body: Sequence[ast.stmt]) -> list[str] | None:
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
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in _NAME_BINDING_CALLS:
            return None
        waiting = [*ast.iter_child_nodes(node), *waiting]
    return None if {"*", "__getattr__"} & set(names) else names


def _read_library_files(statement: CreateLibrary) -> dict[str, bytes]:
    """Read a library's files, the named one first; others by their path beneath DEPENDS."""
    folder, _, name = statement.path.rpartition("/")
    if "://" not in folder and not Path(statement.path).is_file():
        raise ObjectMissing(path=name, store=folder or ".")
    contents = {name: open_store(folder or ".").get(name)}
    size = len(contents[name])
    for path, data in _read_dependencies(statement.depends):
        size += len(data)
        if size > _MAX_LIBRARY_BYTES:
            raise UserError(
                f"The files of library {to_display_name(statement.name)} have more than "
                f"{_MAX_LIBRARY_BYTES:,} bytes."
            )
        contents.setdefault(path, data)
    return contents


def _read_dependencies(depends: str | None) -> Iterator[tuple[str, bytes]]:
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
