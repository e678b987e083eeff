"""External functions with their API integrations and translators.

Functions in a schema can be overloaded. Spark cannot distinguish overloads by type, so no two of
them can be called with the same number of arguments.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import msgspec
import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import make_record
from snowmelt.catalog.model.records import ObjectKind
from snowmelt.catalog.objects.tables import find_namespace_ids, select_in_schemas
from snowmelt.catalog.security.access_control import has_privilege
from snowmelt.catalog.sql.cursor import TokenCursor
from snowmelt.errors import AlreadyExists, NotFound, UserError
from snowmelt.functions.definition import ApiIntegration, ExternalFunction, Translator
from snowmelt.functions.errors import IntegrationDisabled
from snowmelt.functions.signature import FunctionSignature, SqlType
from snowmelt.schema.types import to_display_name

_FUNCTIONS = model.external_functions
_TRANSLATORS = model.translators
_INTEGRATIONS = model.api_integrations


@dataclass(frozen=True, slots=True, order=True)
class FunctionName:
    """Database, schema and function by internal names."""

    database: str
    schema: str
    function: str

    def __str__(self) -> str:
        return ".".join(map(to_display_name, (self.database, self.schema, self.function)))


@dataclass(frozen=True, slots=True)
class ExternalFunctionRecord:
    """A live external function; `owner` is a role."""

    function_id: int
    name: FunctionName
    database_id: int
    schema_id: int
    function: ExternalFunction
    owner: str
    created_at: dt.datetime

    @property
    def securable(self) -> tuple[ObjectKind, int]:
        """Kind and ID of the object for grants."""
        return "FUNCTION", self.function_id

    @property
    def display_signature(self) -> str:
        """Name and argument types in SQL notation."""
        return display_overload(self.name, [each.type for each in self.signature.arguments])

    @property
    def signature(self) -> FunctionSignature:
        """Name, arguments and result."""
        return self.function.signature

    def has_argument_types(self, types: Sequence[SqlType]) -> bool:
        """Return True if these are the argument types, ignoring type parameters."""
        mine = [each.type.base_name for each in self.signature.arguments]
        return mine == [each.base_name for each in types]


@dataclass(frozen=True, slots=True)
class TranslatorRecord:
    """A live translator; `owner` is a role."""

    translator_id: int
    name: FunctionName
    database_id: int
    schema_id: int
    translator: Translator
    comment: str | None
    owner: str
    created_at: dt.datetime

    @property
    def securable(self) -> tuple[ObjectKind, int]:
        """Kind and ID of the object for grants."""
        return "TRANSLATOR", self.translator_id

    @property
    def display_signature(self) -> str:
        """Name and argument types in SQL notation."""
        return f"{self.name}(OBJECT)"


def display_overload(name: FunctionName, types: Sequence[SqlType]) -> str:
    """Return a function in SQL notation, such as `DEMO.PUBLIC.F(NUMBER, DATE)`."""
    return f"{name}({', '.join(each.base_name for each in types)})"


def list_external_functions(
    connection: sa.Connection,
    database: str | None = None,
    schema: str | None = None,
    name: str | None = None,
) -> list[ExternalFunctionRecord]:
    """Return the live functions, optionally of one database, schema and name.

    They are ordered by name, then by number of arguments.
    """
    query = select_in_schemas(_FUNCTIONS, database, schema, name)
    return [
        make_record(
            ExternalFunctionRecord,
            row,
            name=FunctionName(row.database, row.schema, row.name),
            function=ExternalFunction.from_json(row.definition),
        )
        for row in connection.execute(query.order_by(_FUNCTIONS.c.most_arguments))
    ]


def list_overloads(connection: sa.Connection, name: FunctionName) -> list[ExternalFunctionRecord]:
    """Return the live functions of a name, ordered by number of arguments."""
    return list_external_functions(connection, name.database, name.schema, name.function)


def find_overload(
    connection: sa.Connection, name: FunctionName, types: Sequence[SqlType]
) -> ExternalFunctionRecord:
    """Return the live function with this name and these argument types.

    Raises:
        NotFound: If it does not exist. The message lists the functions with this name.
    """
    found = list_overloads(connection, name)
    for each in found:
        if each.has_argument_types(types):
            return each
    shown = display_overload(name, types)
    there = ", ".join(each.display_signature for each in found)
    message = (
        f"Function {shown} does not exist. Functions with this name: {there}." if found else None
    )
    raise NotFound(message, kind="Function", name=shown)


def list_usable_functions(
    connection: sa.Connection, role: str, database: str, schema: str, name: str
) -> list[ExternalFunctionRecord]:
    """Return the functions of a name that a role may use, ordered by number of arguments."""
    found = list_external_functions(connection, database, schema, name)
    return [each for each in found if can_use_function(connection, role, each)]


def can_use_function(connection: sa.Connection, role: str, record: ExternalFunctionRecord) -> bool:
    """Return True if a role has USAGE on a function, its schema and its database."""
    return (
        has_privilege(connection, role, "FUNCTION", record.function_id, "USAGE")
        and has_privilege(connection, role, "SCHEMA", record.schema_id, "USAGE")
        and has_privilege(connection, role, "DATABASE", record.database_id, "USAGE")
    )


def create_external_function(
    connection: sa.Connection,
    name: FunctionName,
    function: ExternalFunction,
    *,
    owner: str,
    now: dt.datetime,
    replaced: ExternalFunctionRecord | None,
) -> None:
    """Create a function. `replaced` is the function with the same argument types, which is dropped.

    Raises:
        AlreadyExists: If another function could be called with the same number of arguments.
        DatabaseNotFound: If the database does not exist.
        SchemaNotFound: If the schema does not exist.
    """
    _, schema_id = find_namespace_ids(connection, name.database, name.schema, lock=True)
    if replaced is not None:
        drop_external_function(connection, replaced, now)
    _check_overload_conflict(connection, name, function)
    values = _to_column_values(function)
    connection.execute(
        sa.insert(_FUNCTIONS).values(
            schema_id=schema_id, name=name.function, owner=owner, created_at=now, **values
        )
    )


def update_external_function(
    connection: sa.Connection, record: ExternalFunctionRecord, function: ExternalFunction
) -> None:
    """Update the definition of a function, but not its signature."""
    _update(connection, _FUNCTIONS, record.function_id, **_to_column_values(function))


def rename_external_function(
    connection: sa.Connection,
    record: ExternalFunctionRecord,
    name: FunctionName,
    function: ExternalFunction,
) -> None:
    """Rename a function, possibly into another schema; `function` has the new name.

    Raises:
        AlreadyExists: If another function could be called with the same number of arguments.
        DatabaseNotFound: If the database does not exist.
        SchemaNotFound: If the schema does not exist.
    """
    _, schema_id = find_namespace_ids(connection, name.database, name.schema, lock=True)
    _check_overload_conflict(connection, name, function, excluded_id=record.function_id)
    values = _to_column_values(function)
    _update(
        connection,
        _FUNCTIONS,
        record.function_id,
        schema_id=schema_id,
        name=name.function,
        **values,
    )


def drop_external_function(
    connection: sa.Connection, record: ExternalFunctionRecord, now: dt.datetime
) -> None:
    """Drop a function. Its name and argument types become available."""
    _update(connection, _FUNCTIONS, record.function_id, dropped_at=now)


def drop_functions_and_translators(
    connection: sa.Connection, schema_ids: Collection[int], now: dt.datetime
) -> None:
    """Drop all functions and translators of schemas that are being dropped."""
    for table in (_FUNCTIONS, _TRANSLATORS):
        connection.execute(
            sa.update(table)
            .where(table.c.schema_id.in_(schema_ids), table.c.dropped_at.is_(None))
            .values(dropped_at=now, dropped_with_parent=True)
        )


def restore_functions_and_translators(
    connection: sa.Connection, schema_ids: Collection[int]
) -> None:
    """Restore the functions and translators that were dropped with these schemas."""
    for table in (_FUNCTIONS, _TRANSLATORS):
        connection.execute(
            sa.update(table)
            .where(table.c.schema_id.in_(schema_ids), table.c.dropped_with_parent.is_(True))
            .values(dropped_at=None, dropped_with_parent=False)
        )


def _check_overload_conflict(
    connection: sa.Connection,
    name: FunctionName,
    function: ExternalFunction,
    *,
    excluded_id: int | None = None,
) -> None:
    mine = function.signature
    types = [each.type for each in mine.arguments]
    shown = display_overload(name, types)
    for other in list_overloads(connection, name):
        least, most = other.signature.min_arguments, len(other.signature.arguments)
        if other.function_id == excluded_id or least > len(types) or mine.min_arguments > most:
            continue
        if other.has_argument_types(types):
            raise AlreadyExists(kind="Function", name=shown)
        shared = max(least, mine.min_arguments)
        raise AlreadyExists(
            f"Function {shown} conflicts with {other.display_signature}: both could be called with "
            f"{shared} argument{'' if shared == 1 else 's'}. Spark distinguishes overloads "
            "by their number of arguments only.",
            kind="Function",
            name=shown,
        )
    if mine.min_arguments <= 1 <= len(types):
        there = select_in_schemas(_TRANSLATORS, name.database, name.schema, name.function)
        if connection.execute(there).first() is not None:
            raise AlreadyExists(
                f"Function {shown} conflicts with the translator of that name.",
                kind="Function",
                name=shown,
            )


def _to_column_values(function: ExternalFunction) -> dict[str, object]:
    return {
        "least_arguments": function.signature.min_arguments,
        "most_arguments": len(function.signature.arguments),
        "integration": function.integration,
        "definition": function.to_json().decode(),
    }


def _update(connection: sa.Connection, table: sa.Table, record_id: int, **values: object) -> None:
    (key,) = table.primary_key
    connection.execute(sa.update(table).where(key == record_id).values(values))


# Translators.


def list_translators(
    connection: sa.Connection,
    database: str | None = None,
    schema: str | None = None,
    name: str | None = None,
) -> list[TranslatorRecord]:
    """Return the live translators, ordered by name, optionally of one database, schema and name."""
    return [
        make_record(
            TranslatorRecord,
            row,
            name=FunctionName(row.database, row.schema, row.name),
            translator=msgspec.json.decode(row.definition, type=Translator),
        )
        for row in connection.execute(select_in_schemas(_TRANSLATORS, database, schema, name))
    ]


def find_translator(connection: sa.Connection, name: FunctionName) -> TranslatorRecord:
    """Return the live translator with this name. Raise NotFound if it does not exist."""
    for found in list_translators(connection, name.database, name.schema, name.function):
        return found
    raise NotFound(kind="Translator", name=str(name))


def lock_translator(connection: sa.Connection, record: TranslatorRecord) -> None:
    """Lock a translator, or the one that replaced it, against DROP until the transaction ends.

    Raises:
        NotFound: If it was dropped.
    """
    query = sa.select(_TRANSLATORS.c.translator_id).where(
        _TRANSLATORS.c.schema_id == record.schema_id,
        _TRANSLATORS.c.name == record.name.function,
        _TRANSLATORS.c.dropped_at.is_(None),
    )
    # The second statement sees the translator that replaced this one before the lock.
    if all(connection.execute(query.with_for_update()).first() is None for _ in range(2)):
        raise NotFound(kind="Translator", name=str(record.name))


def create_translator(
    connection: sa.Connection,
    name: FunctionName,
    translator: Translator,
    *,
    comment: str | None,
    owner: str,
    now: dt.datetime,
    replaced: TranslatorRecord | None,
) -> None:
    """Create a translator. `replaced` is the existing translator, which is dropped.

    Raises:
        AlreadyExists: If the translator exists, or a function of that name accepts one argument.
        DatabaseNotFound: If the database does not exist.
        SchemaNotFound: If the schema does not exist.
    """
    _, schema_id = find_namespace_ids(connection, name.database, name.schema, lock=True)
    if replaced is not None:
        _update(connection, _TRANSLATORS, replaced.translator_id, dropped_at=now)
    signatures = [each.signature for each in list_overloads(connection, name)]
    if list_translators(connection, name.database, name.schema, name.function) or any(
        each.min_arguments <= 1 <= len(each.arguments) for each in signatures
    ):
        raise AlreadyExists(kind="Function", name=f"{name}(OBJECT)")
    connection.execute(
        sa.insert(_TRANSLATORS).values(
            schema_id=schema_id,
            name=name.function,
            definition=msgspec.json.encode(replace(translator, name=str(name))).decode(),
            comment=comment,
            owner=owner,
            created_at=now,
        )
    )


def drop_translator(connection: sa.Connection, record: TranslatorRecord, now: dt.datetime) -> None:
    """Drop a translator. Raise UserError if functions use it."""
    lock_translator(connection, record)
    name = str(record.name)
    users = [
        each.display_signature
        for each in list_external_functions(connection)
        if name in {each.function.request_translator, each.function.response_translator}
    ]
    if users:
        raise UserError(
            f"Translator {name} is used by {', '.join(users)}. Drop these functions first, or UNSET their "
            "translators."
        )
    _update(connection, _TRANSLATORS, record.translator_id, dropped_at=now)


# API integrations: the URLs that functions may call, and how calls authenticate.

CREATE_INTEGRATION_PRIVILEGE = "CREATE INTEGRATION"


@dataclass(frozen=True, slots=True)
class ApiIntegrationRecord:
    """A live integration; `owner` is a role."""

    integration_id: int
    integration: ApiIntegration
    owner: str
    created_at: dt.datetime


def list_api_integrations(
    connection: sa.Connection, name: str | None = None
) -> list[ApiIntegrationRecord]:
    """Return the live integrations, ordered by name, optionally the one with an internal name."""
    query = sa.select(_INTEGRATIONS).where(_INTEGRATIONS.c.dropped_at.is_(None))
    if name is not None:
        query = query.where(_INTEGRATIONS.c.name == name)
    return [
        ApiIntegrationRecord(
            row.integration_id, ApiIntegration.from_json(row.definition), row.owner, row.created_at
        )
        for row in connection.execute(query.order_by(_INTEGRATIONS.c.name))
    ]


def find_api_integration(connection: sa.Connection, name: str) -> ApiIntegrationRecord:
    """Return the live integration with this internal name. Raise NotFound if it does not exist."""
    for found in list_api_integrations(connection, name):
        return found
    raise NotFound(kind="API integration", name=to_display_name(name))


def create_api_integration(
    connection: sa.Connection,
    integration: ApiIntegration,
    *,
    owner: str,
    now: dt.datetime,
    replaced: ApiIntegrationRecord | None,
) -> None:
    """Create an integration. `replaced` is the existing one, whose functions then use the new one.

    Raises:
        AlreadyExists: If another integration has the name.
    """
    if replaced is not None:
        _update(connection, _INTEGRATIONS, replaced.integration_id, dropped_at=now)
    if list_api_integrations(connection, integration.name):
        raise AlreadyExists(kind="API integration", name=to_display_name(integration.name))
    definition = integration.to_json().decode()
    connection.execute(
        sa.insert(_INTEGRATIONS).values(
            name=integration.name, definition=definition, owner=owner, created_at=now
        )
    )


def update_api_integration(
    connection: sa.Connection, record: ApiIntegrationRecord, integration: ApiIntegration
) -> None:
    """Update the definition of an integration."""
    definition = integration.to_json().decode()
    _update(connection, _INTEGRATIONS, record.integration_id, definition=definition)


def drop_api_integration(
    connection: sa.Connection, record: ApiIntegrationRecord, now: dt.datetime
) -> None:
    """Drop an integration. Raise UserError if functions use it."""
    name = record.integration.name
    # The lock prevents the creation of a function that uses it.
    lock_api_integration(connection, name)
    query = sa.select(_FUNCTIONS.c.name).where(
        _FUNCTIONS.c.integration == name, _FUNCTIONS.c.dropped_at.is_(None)
    )
    users = sorted(set(connection.execute(query).scalars()))
    if users:
        raise UserError(
            f"API integration {to_display_name(name)} is used by "
            f"{', '.join(map(to_display_name, users))}. "
            "Drop these functions first, or change their integration."
        )
    _update(connection, _INTEGRATIONS, record.integration_id, dropped_at=now)


def lock_api_integration(connection: sa.Connection, name: str) -> None:
    """Lock an integration against DROP until the transaction ends.

    Raises:
        NotFound: If it does not exist.
    """
    query = sa.select(_INTEGRATIONS.c.integration_id).where(
        _INTEGRATIONS.c.name == name, _INTEGRATIONS.c.dropped_at.is_(None)
    )
    # The second statement sees the integration that replaced this one before the lock.
    if all(connection.execute(query.with_for_update()).first() is None for _ in range(2)):
        raise NotFound(kind="API integration", name=to_display_name(name))


# Functions with their integration and translators, as queries need them.


@dataclass(frozen=True, slots=True)
class CallableFunction:
    """A function with its enabled integration and its translators."""

    name: FunctionName
    function: ExternalFunction
    integration: ApiIntegration
    request_translator: Translator | None
    response_translator: Translator | None


def list_callable_functions(
    connection: sa.Connection, role: str, name: FunctionName
) -> list[CallableFunction]:
    """Return the overloads of a name that a role may call, by number of arguments.

    Raises:
        NotFound: If the role may use no such function, or an object that a function needs was
            dropped.
        IntegrationDisabled: If the integration is disabled.
    """

    def find_used_translator(used_name: str | None) -> Translator | None:
        if used_name is None:
            return None
        parts = TokenCursor(used_name).parse_name("a translator", 3).parts
        return find_translator(connection, FunctionName(*parts)).translator

    found = []
    for each in list_usable_functions(connection, role, name.database, name.schema, name.function):
        function = each.function
        integration = find_api_integration(connection, function.integration).integration
        if not integration.enabled:
            raise IntegrationDisabled(integration=to_display_name(integration.name))
        request = find_used_translator(function.request_translator)
        response = find_used_translator(function.response_translator)
        found.append(CallableFunction(each.name, function, integration, request, response))
    if not found:
        raise NotFound(
            f"Function {name} does not exist, or this role may not use it.",
            kind="Function",
            name=str(name),
        )
    return found
