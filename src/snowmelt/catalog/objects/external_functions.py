"""External functions as the catalog keeps them.

A name may have several functions in a schema. Spark cannot tell them apart by types, so no two of
them can be called with the same number of arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.objects.tables import schema_of
from snowmelt.catalog.security.access_control import has
from snowmelt.errors import AlreadyExists, NotFound, UserError
from snowmelt.functions.ddl import format_create_function
from snowmelt.functions.definition import ExternalFunction, Translator
from snowmelt.schema.types import display_name

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection, Sequence

    from snowmelt.catalog.model.privileges import Kind
    from snowmelt.functions.signature import FunctionSignature, SqlType

_F = model.external_functions
_T = model.translators
_S = model.schemas
_D = model.databases
_NAMED = _F.join(_S, _F.c.schema_id == _S.c.schema_id).join(
    _D, _S.c.database_id == _D.c.database_id
)
_LIVE: sa.Select[Any] = (
    sa.select(*_F.c, _S.c.database_id, _S.c.name.label("schema"), _D.c.name.label("database"))
    .select_from(_NAMED)
    .where(_F.c.dropped_at.is_(None))
    .order_by(_D.c.name, _S.c.name, _F.c.name, _F.c.most_arguments)
)


@dataclass(frozen=True, slots=True, order=True)
class FunctionName:
    """Database, schema and function by internal names."""

    database: str
    schema: str
    function: str

    def __str__(self) -> str:
        return ".".join(display_name(part) for part in (self.database, self.schema, self.function))


@dataclass(frozen=True, slots=True)
class FunctionRecord:
    """A live external function; `owner` is a role."""

    function_id: int
    name: FunctionName
    database_id: int
    schema_id: int
    function: ExternalFunction
    owner: str
    created_at: dt.datetime

    @property
    def securable(self) -> tuple[Kind, int]:
        """What privileges on it are granted on: kind and id."""
        return "FUNCTION", self.function_id

    @property
    def shown(self) -> str:
        """Name and types, as SQL tells overloads apart."""
        return overload_shown(self.name, [each.type for each in self.signature.arguments])

    @property
    def signature(self) -> FunctionSignature:
        """Name, arguments and result."""
        return self.function.signature

    def ddl(self) -> str:
        """Return the statement that creates it."""
        *place, name = self.name.database, self.name.schema, self.name.function
        # Headers carry the name as it was written, so it is written that way again.
        written = self.signature.name
        plain = written.upper() == name == display_name(name)
        parts = (*map(display_name, place), written if plain else display_name(name))
        return format_create_function(
            self.function, ".".join(parts), display_name(self.function.integration)
        )

    def takes(self, types: Sequence[SqlType]) -> bool:
        """Tell whether these are the types of the arguments; parameters of types do not count."""
        mine = [each.type.base_name for each in self.signature.arguments]
        return mine == [each.base_name for each in types]

    def takes_count(self, count: int) -> bool:
        """Tell whether it can be called with so many arguments."""
        return self.signature.min_arguments <= count <= len(self.signature.arguments)


def overload_shown(name: FunctionName, types: Sequence[SqlType]) -> str:
    """Return a function as SQL tells overloads apart, such as `DEMO.PUBLIC.F(NUMBER, DATE)`."""
    return f"{name}({', '.join(each.base_name for each in types)})"


def overloads(connection: sa.Connection, name: FunctionName) -> list[FunctionRecord]:
    """Return the live functions of a name, ordered by number of arguments."""
    return _found(
        connection,
        _D.c.name == name.database,
        _S.c.name == name.schema,
        _F.c.name == name.function,
    )


def functions_of(
    connection: sa.Connection, database: str | None = None, schema: str | None = None
) -> list[FunctionRecord]:
    """Return the live functions, ordered by name, of one database or schema when given."""
    where = [] if database is None else [_D.c.name == database]
    if schema is not None:
        where.append(_S.c.name == schema)
    return _found(connection, *where)


def functions_by(connection: sa.Connection, translator: str) -> list[FunctionRecord]:
    """Return the live functions that use a translator, by its full name as SQL writes it."""
    return [
        each
        for each in _found(connection)
        if translator in {each.function.request_translator, each.function.response_translator}
    ]


def find_function(
    connection: sa.Connection, role: str, database: str, schema: str, name: str
) -> list[FunctionRecord]:
    """Return the functions of a name that a role may use, ordered by number of arguments."""
    found = overloads(connection, FunctionName(database, schema, name))
    return [each for each in found if may_use(connection, role, each)]


def may_use(connection: sa.Connection, role: str, record: FunctionRecord) -> bool:
    """Tell whether a role may call a function: USAGE on it, its schema and its database."""
    return (
        has(connection, role, "FUNCTION", record.function_id, "USAGE")
        and has(connection, role, "SCHEMA", record.schema_id, "USAGE")
        and has(connection, role, "DATABASE", record.database_id, "USAGE")
    )


def create_function(
    connection: sa.Connection,
    name: FunctionName,
    function: ExternalFunction,
    *,
    owner: str,
    now: dt.datetime,
    replaced: FunctionRecord | None = None,
) -> None:
    """Create a function, in the place of one with the same types when given.

    Raises:
        AlreadyExists: There is one that can be called with the same number of arguments.
        DatabaseNotFound: There is no such database.
        SchemaNotFound: There is no such schema in it.
    """
    _, schema_id = schema_of(connection, name.database, name.schema, lock=True)
    if replaced is not None:
        drop_function(connection, replaced, now)
    _require_room(connection, name, function)
    connection.execute(
        sa.insert(_F).values(
            schema_id=schema_id,
            name=name.function,
            owner=owner,
            created_at=now,
            **_values(function),
        )
    )


def update_function(
    connection: sa.Connection, record: FunctionRecord, function: ExternalFunction
) -> None:
    """Set what a function is; its signature stays."""
    connection.execute(
        sa.update(_F).where(_F.c.function_id == record.function_id).values(**_values(function))
    )


def rename_function(
    connection: sa.Connection,
    record: FunctionRecord,
    name: FunctionName,
    function: ExternalFunction,
) -> None:
    """Give a function another name, perhaps in another schema; `function` carries it, too.

    Raises:
        AlreadyExists: There is one there that can be called with the same number of arguments.
        DatabaseNotFound: There is no such database.
        SchemaNotFound: There is no such schema in it.
    """
    _, schema_id = schema_of(connection, name.database, name.schema, lock=True)
    _require_room(connection, name, function, but=record.function_id)
    connection.execute(
        sa.update(_F)
        .where(_F.c.function_id == record.function_id)
        .values(schema_id=schema_id, name=name.function, **_values(function))
    )


def drop_function(connection: sa.Connection, record: FunctionRecord, now: dt.datetime) -> None:
    """Drop a function; its name and types are free again."""
    connection.execute(
        sa.update(_F).where(_F.c.function_id == record.function_id).values(dropped_at=now)
    )


def drop_in_schemas(
    connection: sa.Connection, schema_ids: Collection[int], now: dt.datetime
) -> None:
    """Drop all functions and translators of schemas that are going."""
    for table in (_F, _T):
        inside = sa.and_(table.c.schema_id.in_(schema_ids), table.c.dropped_at.is_(None))
        connection.execute(
            sa.update(table).where(inside).values(dropped_at=now, dropped_with_parent=True)
        )


def restore_in_schemas(connection: sa.Connection, schema_ids: Collection[int]) -> None:
    """Bring back what `drop_in_schemas` has dropped, in schemas that come back themselves."""
    for table in (_F, _T):
        along = sa.and_(table.c.schema_id.in_(schema_ids), table.c.dropped_with_parent.is_(True))
        connection.execute(
            sa.update(table).where(along).values(dropped_at=None, dropped_with_parent=False)
        )


def _require_room(
    connection: sa.Connection,
    name: FunctionName,
    function: ExternalFunction,
    *,
    but: int | None = None,
) -> None:
    mine = function.signature
    types = [each.type for each in mine.arguments]
    shown = overload_shown(name, types)
    for other in overloads(connection, name):
        least, most = other.signature.min_arguments, len(other.signature.arguments)
        if other.function_id == but or least > len(types) or mine.min_arguments > most:
            continue
        if other.takes(types):
            raise AlreadyExists(kind="Function", name=shown)
        raise AlreadyExists(
            f"Function {shown} cannot stand beside {other.shown}: both could be called with "
            f"{_arguments(max(least, mine.min_arguments))}, and calls are told apart by their "
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
        sa.select(_T.c.translator_id)
        .join(_S, _T.c.schema_id == _S.c.schema_id)
        .join(_D, _S.c.database_id == _D.c.database_id)
        .where(
            _D.c.name == name.database,
            _S.c.name == name.schema,
            _T.c.name == name.function,
            _T.c.dropped_at.is_(None),
        )
    )
    return connection.execute(query).first() is not None


def _arguments(count: int) -> str:
    return "1 argument" if count == 1 else f"{count} arguments"


def _values(function: ExternalFunction) -> dict[str, object]:
    return {
        "least_arguments": function.signature.min_arguments,
        "most_arguments": len(function.signature.arguments),
        "integration": function.integration,
        "definition": function.to_json().decode(),
    }


def _found(connection: sa.Connection, *where: sa.ColumnElement[bool]) -> list[FunctionRecord]:
    return [_record(row) for row in connection.execute(_LIVE.where(*where))]


def _record(row: sa.Row[Any]) -> FunctionRecord:
    return FunctionRecord(
        function_id=row.function_id,
        name=FunctionName(row.database, row.schema, row.name),
        database_id=row.database_id,
        schema_id=row.schema_id,
        function=ExternalFunction.from_json(row.definition),
        owner=row.owner,
        created_at=row.created_at,
    )


def named_overload(
    connection: sa.Connection, name: FunctionName, types: Sequence[SqlType]
) -> FunctionRecord:
    """Return the live function of this name and these types.

    Raises:
        NotFound: There is none; says which of that name there are.
    """
    found = overloads(connection, name)
    for each in found:
        if each.takes(types):
            return each
    shown = overload_shown(name, types)
    if found:
        there = ", ".join(each.shown for each in found)
        raise NotFound(
            f"Function {shown} does not exist; there is {there}.", kind="Function", name=shown
        )
    raise NotFound(kind="Function", name=shown)


# --- Translators of external functions: their source, and who may use it.

_T_TRANSLATORS = model.translators
_S_TRANSLATORS = model.schemas
_D_TRANSLATORS = model.databases
_LIVE_TRANSLATORS: sa.Select[Any] = (
    sa.select(
        *_T_TRANSLATORS.c,
        _S_TRANSLATORS.c.database_id,
        _S_TRANSLATORS.c.name.label("schema"),
        _D_TRANSLATORS.c.name.label("database"),
    )
    .select_from(
        _T_TRANSLATORS.join(
            _S_TRANSLATORS, _T_TRANSLATORS.c.schema_id == _S_TRANSLATORS.c.schema_id
        ).join(_D_TRANSLATORS, _S_TRANSLATORS.c.database_id == _D_TRANSLATORS.c.database_id)
    )
    .where(_T_TRANSLATORS.c.dropped_at.is_(None))
    .order_by(_D_TRANSLATORS.c.name, _S_TRANSLATORS.c.name, _T_TRANSLATORS.c.name)
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
    def securable(self) -> tuple[Kind, int]:
        """What privileges on it are granted on: kind and id."""
        return "TRANSLATOR", self.translator_id

    @property
    def shown(self) -> str:
        """Name and types, as SQL tells overloads apart."""
        return f"{self.name}(OBJECT)"


def find_translator(connection: sa.Connection, name: FunctionName) -> TranslatorRecord:
    """Return the live translator of this name.

    Raises:
        NotFound: There is none.
    """
    row = connection.execute(
        _LIVE_TRANSLATORS.where(
            _D_TRANSLATORS.c.name == name.database,
            _S_TRANSLATORS.c.name == name.schema,
            _T_TRANSLATORS.c.name == name.function,
        )
    ).first()
    if row is None:
        raise NotFound(kind="Translator", name=str(name))
    return _record_translators(row)


def lock_translator(connection: sa.Connection, record: TranslatorRecord) -> None:
    """Keep a translator from being dropped or replaced until the transaction ends.

    Raises:
        NotFound: It is gone already.
    """
    query = sa.select(_T_TRANSLATORS.c.translator_id).where(
        _T_TRANSLATORS.c.translator_id == record.translator_id,
        _T_TRANSLATORS.c.dropped_at.is_(None),
    )
    if connection.execute(query.with_for_update()).first() is None:
        raise NotFound(kind="Translator", name=str(record.name))


def translators_of(
    connection: sa.Connection, database: str | None = None, schema: str | None = None
) -> list[TranslatorRecord]:
    """Return the live translators, ordered by name, of one database or schema when given."""
    query = _LIVE_TRANSLATORS
    if database is not None:
        query = query.where(_D_TRANSLATORS.c.name == database)
    if schema is not None:
        query = query.where(_S_TRANSLATORS.c.name == schema)
    return [_record_translators(row) for row in connection.execute(query)]


def create_translator(  # noqa: PLR0913 - the clauses of CREATE FUNCTION
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
    _, schema_id = schema_of(connection, name.database, name.schema, lock=True)
    if replaced is not None:
        _mark_dropped(connection, replaced, now)
    beside = [each for each in overloads(connection, name) if each.takes_count(1)]
    there = translators_of(connection, name.database, name.schema)
    if beside or name in {each.name for each in there}:
        raise AlreadyExists(kind="Function", name=f"{name}(OBJECT)")
    named = replace(translator, name=str(name))
    connection.execute(
        sa.insert(_T_TRANSLATORS).values(
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
    users = functions_by(connection, str(record.name))
    if users:
        shown = ", ".join(each.shown for each in users)
        raise UserError(
            f"Translator {record.name} is still used by {shown}; drop these first, or UNSET their "
            "translators."
        )
    _mark_dropped(connection, record, now)


def _mark_dropped(connection: sa.Connection, record: TranslatorRecord, now: dt.datetime) -> None:
    connection.execute(
        sa.update(_T_TRANSLATORS)
        .where(_T_TRANSLATORS.c.translator_id == record.translator_id)
        .values(dropped_at=now)
    )


def _record_translators(row: sa.Row[Any]) -> TranslatorRecord:
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
