"""External functions and translators in the catalog.

A name may have several functions in a schema. Spark cannot distinguish them by type, so no two of
them can be called with the same number of arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.objects.tables import find_namespace_ids
from snowmelt.catalog.security.access_control import has_privilege
from snowmelt.errors import AlreadyExists, NotFound, UserError
from snowmelt.functions.ddl_writer import format_create_function
from snowmelt.functions.definition import ExternalFunction, Translator
from snowmelt.schema.types import to_display_name

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection, Sequence

    from snowmelt.catalog.model.privilege_kinds import ObjectKind
    from snowmelt.functions.signature import FunctionSignature, SqlType

_EXTERNAL_FUNCTIONS = model.external_functions
_TRANSLATORS = model.translators
_SCHEMAS = model.schemas
_DATABASES = model.databases
_QUALIFIED_FUNCTIONS = _EXTERNAL_FUNCTIONS.join(
    _SCHEMAS, _EXTERNAL_FUNCTIONS.c.schema_id == _SCHEMAS.c.schema_id
).join(_DATABASES, _SCHEMAS.c.database_id == _DATABASES.c.database_id)
_SELECT_LIVE_FUNCTIONS: sa.Select[Any] = (
    sa.select(
        *_EXTERNAL_FUNCTIONS.c,
        _SCHEMAS.c.database_id,
        _SCHEMAS.c.name.label("schema"),
        _DATABASES.c.name.label("database"),
    )
    .select_from(_QUALIFIED_FUNCTIONS)
    .where(_EXTERNAL_FUNCTIONS.c.dropped_at.is_(None))
    .order_by(
        _DATABASES.c.name,
        _SCHEMAS.c.name,
        _EXTERNAL_FUNCTIONS.c.name,
        _EXTERNAL_FUNCTIONS.c.most_arguments,
    )
)


@dataclass(frozen=True, slots=True, order=True)
class FunctionName:
    """Database, schema and function by internal names."""

    database: str
    schema: str
    function: str

    def __str__(self) -> str:
        return ".".join(
            to_display_name(part) for part in (self.database, self.schema, self.function)
        )


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
        """What privileges on it are granted on: kind and id."""
        return "FUNCTION", self.function_id

    @property
    def display_signature(self) -> str:
        """Name and types, as SQL tells overloads apart."""
        return display_overload(self.name, [each.type for each in self.signature.arguments])

    @property
    def signature(self) -> FunctionSignature:
        """Name, arguments and result."""
        return self.function.signature

    def to_ddl(self) -> str:
        """Return the statement that creates it."""
        *place, name = self.name.database, self.name.schema, self.name.function
        # Headers carry the name as it was written, so it is written that way again.
        written = self.signature.name
        plain = written.upper() == name == to_display_name(name)
        parts = (*map(to_display_name, place), written if plain else to_display_name(name))
        return format_create_function(
            self.function, ".".join(parts), to_display_name(self.function.integration)
        )

    def has_argument_types(self, types: Sequence[SqlType]) -> bool:
        """Tell whether these are the types of the arguments; parameters of types do not count."""
        mine = [each.type.base_name for each in self.signature.arguments]
        return mine == [each.base_name for each in types]

    def accepts_argument_count(self, count: int) -> bool:
        """Tell whether it can be called with so many arguments."""
        return self.signature.min_arguments <= count <= len(self.signature.arguments)


def display_overload(name: FunctionName, types: Sequence[SqlType]) -> str:
    """Return a function as SQL tells overloads apart, such as `DEMO.PUBLIC.F(NUMBER, DATE)`."""
    return f"{name}({', '.join(each.base_name for each in types)})"


def list_overloads(connection: sa.Connection, name: FunctionName) -> list[ExternalFunctionRecord]:
    """Return the live functions of a name, ordered by number of arguments."""
    return _fetch_functions(
        connection,
        _DATABASES.c.name == name.database,
        _SCHEMAS.c.name == name.schema,
        _EXTERNAL_FUNCTIONS.c.name == name.function,
    )


def list_external_functions(
    connection: sa.Connection, database: str | None = None, schema: str | None = None
) -> list[ExternalFunctionRecord]:
    """Return the live functions, ordered by name, of one database or schema when given."""
    where = [] if database is None else [_DATABASES.c.name == database]
    if schema is not None:
        where.append(_SCHEMAS.c.name == schema)
    return _fetch_functions(connection, *where)


def list_functions_using_translator(
    connection: sa.Connection, translator_name: str
) -> list[ExternalFunctionRecord]:
    """Return the live functions that use a translator, by its full name as SQL writes it."""
    return [
        each
        for each in _fetch_functions(connection)
        if translator_name in {each.function.request_translator, each.function.response_translator}
    ]


def list_usable_functions(
    connection: sa.Connection, role: str, database: str, schema: str, name: str
) -> list[ExternalFunctionRecord]:
    """Return the functions of a name that a role may use, ordered by number of arguments."""
    found = list_overloads(connection, FunctionName(database, schema, name))
    return [each for each in found if can_use_function(connection, role, each)]


def can_use_function(connection: sa.Connection, role: str, record: ExternalFunctionRecord) -> bool:
    """Tell whether a role may call a function: USAGE on it, its schema and its database."""
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
    replaced: ExternalFunctionRecord | None = None,
) -> None:
    """Create a function, in the place of one with the same types when given.

    Raises:
        AlreadyExists: There is one that can be called with the same number of arguments.
        DatabaseNotFound: There is no such database.
        SchemaNotFound: There is no such schema in it.
    """
    _, schema_id = find_namespace_ids(connection, name.database, name.schema, lock=True)
    if replaced is not None:
        drop_external_function(connection, replaced, now)
    _check_overload_conflict(connection, name, function)
    connection.execute(
        sa.insert(_EXTERNAL_FUNCTIONS).values(
            schema_id=schema_id,
            name=name.function,
            owner=owner,
            created_at=now,
            **_to_column_values(function),
        )
    )


def update_external_function(
    connection: sa.Connection, record: ExternalFunctionRecord, function: ExternalFunction
) -> None:
    """Set what a function is; its signature stays."""
    connection.execute(
        sa.update(_EXTERNAL_FUNCTIONS)
        .where(_EXTERNAL_FUNCTIONS.c.function_id == record.function_id)
        .values(**_to_column_values(function))
    )


def rename_external_function(
    connection: sa.Connection,
    record: ExternalFunctionRecord,
    name: FunctionName,
    function: ExternalFunction,
) -> None:
    """Give a function another name, perhaps in another schema; `function` carries it, too.

    Raises:
        AlreadyExists: There is one there that can be called with the same number of arguments.
        DatabaseNotFound: There is no such database.
        SchemaNotFound: There is no such schema in it.
    """
    _, schema_id = find_namespace_ids(connection, name.database, name.schema, lock=True)
    _check_overload_conflict(connection, name, function, excluded_id=record.function_id)
    connection.execute(
        sa.update(_EXTERNAL_FUNCTIONS)
        .where(_EXTERNAL_FUNCTIONS.c.function_id == record.function_id)
        .values(schema_id=schema_id, name=name.function, **_to_column_values(function))
    )


def drop_external_function(
    connection: sa.Connection, record: ExternalFunctionRecord, now: dt.datetime
) -> None:
    """Drop a function; its name and types are free again."""
    connection.execute(
        sa.update(_EXTERNAL_FUNCTIONS)
        .where(_EXTERNAL_FUNCTIONS.c.function_id == record.function_id)
        .values(dropped_at=now)
    )


def drop_functions_and_translators(
    connection: sa.Connection, schema_ids: Collection[int], now: dt.datetime
) -> None:
    """Drop all functions and translators of schemas that are going."""
    for table in (_EXTERNAL_FUNCTIONS, _TRANSLATORS):
        inside = sa.and_(table.c.schema_id.in_(schema_ids), table.c.dropped_at.is_(None))
        connection.execute(
            sa.update(table).where(inside).values(dropped_at=now, dropped_with_parent=True)
        )


def restore_functions_and_translators(
    connection: sa.Connection, schema_ids: Collection[int]
) -> None:
    """Bring back what `drop_functions_and_translators` has dropped, in schemas that come back themselves."""
    for table in (_EXTERNAL_FUNCTIONS, _TRANSLATORS):
        along = sa.and_(table.c.schema_id.in_(schema_ids), table.c.dropped_with_parent.is_(True))
        connection.execute(
            sa.update(table).where(along).values(dropped_at=None, dropped_with_parent=False)
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
        raise AlreadyExists(
            f"Function {shown} cannot stand beside {other.display_signature}: both could be called with "
            f"{_display_argument_count(max(least, mine.min_arguments))}, and calls are told apart by their "
            "number of arguments alone.",
            kind="Function",
            name=shown,
        )
    if mine.min_arguments <= 1 <= len(types) and _has_translator(connection, name):
        raise AlreadyExists(
            f"Function {shown} cannot stand beside the translator of that name.",
            kind="Function",
            name=shown,
        )


def _has_translator(connection: sa.Connection, name: FunctionName) -> bool:
    query = (
        sa.select(_TRANSLATORS.c.translator_id)
        .join(_SCHEMAS, _TRANSLATORS.c.schema_id == _SCHEMAS.c.schema_id)
        .join(_DATABASES, _SCHEMAS.c.database_id == _DATABASES.c.database_id)
        .where(
            _DATABASES.c.name == name.database,
            _SCHEMAS.c.name == name.schema,
            _TRANSLATORS.c.name == name.function,
            _TRANSLATORS.c.dropped_at.is_(None),
        )
    )
    return connection.execute(query).first() is not None


def _display_argument_count(count: int) -> str:
    return "1 argument" if count == 1 else f"{count} arguments"


def _to_column_values(function: ExternalFunction) -> dict[str, object]:
    return {
        "least_arguments": function.signature.min_arguments,
        "most_arguments": len(function.signature.arguments),
        "integration": function.integration,
        "definition": function.to_json().decode(),
    }


def _fetch_functions(
    connection: sa.Connection, *conditions: sa.ColumnElement[bool]
) -> list[ExternalFunctionRecord]:
    return [
        _to_function_record(row)
        for row in connection.execute(_SELECT_LIVE_FUNCTIONS.where(*conditions))
    ]


def _to_function_record(row: sa.Row[Any]) -> ExternalFunctionRecord:
    return ExternalFunctionRecord(
        function_id=row.function_id,
        name=FunctionName(row.database, row.schema, row.name),
        database_id=row.database_id,
        schema_id=row.schema_id,
        function=ExternalFunction.from_json(row.definition),
        owner=row.owner,
        created_at=row.created_at,
    )


def find_overload(
    connection: sa.Connection, name: FunctionName, types: Sequence[SqlType]
) -> ExternalFunctionRecord:
    """Return the live function of this name and these types.

    Raises:
        NotFound: There is none; says which of that name there are.
    """
    found = list_overloads(connection, name)
    for each in found:
        if each.has_argument_types(types):
            return each
    shown = display_overload(name, types)
    if found:
        there = ", ".join(each.display_signature for each in found)
        raise NotFound(
            f"Function {shown} does not exist; there is {there}.", kind="Function", name=shown
        )
    raise NotFound(kind="Function", name=shown)


# --- Translators of external functions: their source, and who may use it.

_TRANSLATOR_TABLE = model.translators
_TRANSLATOR_SCHEMAS = model.schemas
_TRANSLATOR_DATABASES = model.databases
_SELECT_LIVE_TRANSLATORS: sa.Select[Any] = (
    sa.select(
        *_TRANSLATOR_TABLE.c,
        _TRANSLATOR_SCHEMAS.c.database_id,
        _TRANSLATOR_SCHEMAS.c.name.label("schema"),
        _TRANSLATOR_DATABASES.c.name.label("database"),
    )
    .select_from(
        _TRANSLATOR_TABLE.join(
            _TRANSLATOR_SCHEMAS, _TRANSLATOR_TABLE.c.schema_id == _TRANSLATOR_SCHEMAS.c.schema_id
        ).join(
            _TRANSLATOR_DATABASES,
            _TRANSLATOR_SCHEMAS.c.database_id == _TRANSLATOR_DATABASES.c.database_id,
        )
    )
    .where(_TRANSLATOR_TABLE.c.dropped_at.is_(None))
    .order_by(_TRANSLATOR_DATABASES.c.name, _TRANSLATOR_SCHEMAS.c.name, _TRANSLATOR_TABLE.c.name)
)


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
        """What privileges on it are granted on: kind and id."""
        return "TRANSLATOR", self.translator_id

    @property
    def display_signature(self) -> str:
        """Name and types, as SQL tells overloads apart."""
        return f"{self.name}(OBJECT)"


def find_translator(connection: sa.Connection, name: FunctionName) -> TranslatorRecord:
    """Return the live translator of this name.

    Raises:
        NotFound: There is none.
    """
    row = connection.execute(
        _SELECT_LIVE_TRANSLATORS.where(
            _TRANSLATOR_DATABASES.c.name == name.database,
            _TRANSLATOR_SCHEMAS.c.name == name.schema,
            _TRANSLATOR_TABLE.c.name == name.function,
        )
    ).first()
    if row is None:
        raise NotFound(kind="Translator", name=str(name))
    return _to_translator_record(row)


def lock_translator(connection: sa.Connection, record: TranslatorRecord) -> None:
    """Keep a translator from being dropped or replaced until the transaction ends.

    Raises:
        NotFound: It is gone already.
    """
    query = sa.select(_TRANSLATOR_TABLE.c.translator_id).where(
        _TRANSLATOR_TABLE.c.translator_id == record.translator_id,
        _TRANSLATOR_TABLE.c.dropped_at.is_(None),
    )
    if connection.execute(query.with_for_update()).first() is None:
        raise NotFound(kind="Translator", name=str(record.name))


def list_translators(
    connection: sa.Connection, database: str | None = None, schema: str | None = None
) -> list[TranslatorRecord]:
    """Return the live translators, ordered by name, of one database or schema when given."""
    query = _SELECT_LIVE_TRANSLATORS
    if database is not None:
        query = query.where(_TRANSLATOR_DATABASES.c.name == database)
    if schema is not None:
        query = query.where(_TRANSLATOR_SCHEMAS.c.name == schema)
    return [_to_translator_record(row) for row in connection.execute(query)]


def create_translator(
    connection: sa.Connection,
    name: FunctionName,
    translator: Translator,
    *,
    comment: str | None,
    owner: str,
    now: dt.datetime,
    replaced: TranslatorRecord | None = None,
) -> None:
    """Create a translator, in the place of another when given.

    Raises:
        AlreadyExists: There is one, or a function that can be called with one argument.
        DatabaseNotFound: There is no such database.
        SchemaNotFound: There is no such schema in it.
    """
    _, schema_id = find_namespace_ids(connection, name.database, name.schema, lock=True)
    if replaced is not None:
        _mark_translator_dropped(connection, replaced, now)
    beside = [each for each in list_overloads(connection, name) if each.accepts_argument_count(1)]
    there = list_translators(connection, name.database, name.schema)
    if beside or name in {each.name for each in there}:
        raise AlreadyExists(kind="Function", name=f"{name}(OBJECT)")
    named = replace(translator, name=str(name))
    connection.execute(
        sa.insert(_TRANSLATOR_TABLE).values(
            schema_id=schema_id,
            name=name.function,
            definition=msgspec.json.encode(named).decode(),
            comment=comment,
            owner=owner,
            created_at=now,
        )
    )


def drop_translator(connection: sa.Connection, record: TranslatorRecord, now: dt.datetime) -> None:
    """Drop a translator.

    Raises:
        UserError: Functions still use it.
    """
    lock_translator(connection, record)
    users = list_functions_using_translator(connection, str(record.name))
    if users:
        shown = ", ".join(each.display_signature for each in users)
        raise UserError(
            f"Translator {record.name} is still used by {shown}; drop these first, or UNSET their "
            "translators."
        )
    _mark_translator_dropped(connection, record, now)


def _mark_translator_dropped(
    connection: sa.Connection, record: TranslatorRecord, now: dt.datetime
) -> None:
    connection.execute(
        sa.update(_TRANSLATOR_TABLE)
        .where(_TRANSLATOR_TABLE.c.translator_id == record.translator_id)
        .values(dropped_at=now)
    )


def _to_translator_record(row: sa.Row[Any]) -> TranslatorRecord:
    return TranslatorRecord(
        translator_id=row.translator_id,
        name=FunctionName(row.database, row.schema, row.name),
        database_id=row.database_id,
        schema_id=row.schema_id,
        translator=msgspec.json.decode(row.definition, type=Translator),
        comment=row.comment,
        owner=row.owner,
        created_at=row.created_at,
    )
