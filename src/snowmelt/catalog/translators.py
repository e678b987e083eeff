"""Translators of external functions: their source, and who may use it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.external_functions import FunctionName, functions_by, overloads
from snowmelt.catalog.tables import schema_of
from snowmelt.errors import AlreadyExists, NotFound, UserError
from snowmelt.functions.definition import Translator

if TYPE_CHECKING:
    import datetime as dt

    from snowmelt.catalog.access import Kind

_T = model.translators
_S = model.schemas
_D = model.databases
_LIVE: sa.Select[Any] = (
    sa.select(*_T.c, _S.c.database_id, _S.c.name.label("schema"), _D.c.name.label("database"))
    .select_from(
        _T.join(_S, _T.c.schema_id == _S.c.schema_id).join(_D, _S.c.database_id == _D.c.database_id)
    )
    .where(_T.c.dropped_at.is_(None))
    .order_by(_D.c.name, _S.c.name, _T.c.name)
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
        _LIVE.where(
            _D.c.name == name.database, _S.c.name == name.schema, _T.c.name == name.function
        )
    ).first()
    if row is None:
        raise NotFound(kind="Translator", name=str(name))
    return _record(row)


def lock_translator(connection: sa.Connection, record: TranslatorRecord) -> None:
    """Keep a translator from being dropped or replaced until the transaction ends.

    Raises:
        NotFound: It is gone already.
    """
    query = sa.select(_T.c.translator_id).where(
        _T.c.translator_id == record.translator_id, _T.c.dropped_at.is_(None)
    )
    if connection.execute(query.with_for_update()).first() is None:
        raise NotFound(kind="Translator", name=str(record.name))


def translators_of(
    connection: sa.Connection, database: str | None = None, schema: str | None = None
) -> list[TranslatorRecord]:
    """Return the live translators, ordered by name, of one database or schema when given."""
    query = _LIVE
    if database is not None:
        query = query.where(_D.c.name == database)
    if schema is not None:
        query = query.where(_S.c.name == schema)
    return [_record(row) for row in connection.execute(query)]


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
        sa.insert(_T).values(
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
        sa.update(_T).where(_T.c.translator_id == record.translator_id).values(dropped_at=now)
    )


def _record(row: sa.Row[Any]) -> TranslatorRecord:
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
