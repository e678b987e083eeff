"""Changes of what is there: names, a table's order, whether its columns follow its rows.

Columns change by `tables.add_schema_version`. Functions take a connection and commit nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.objects.channel_tombstones import carry_over
from snowmelt.catalog.objects.namespaces import databases_of, schemas_of
from snowmelt.catalog.objects.tables import (
    add_schema_version,
    find_table,
    lock_tables,
    schema_of,
    schema_versions,
    table_by_id,
)
from snowmelt.catalog.security.access_control import has, require_table
from snowmelt.catalog.sql.column_types import read_type
from snowmelt.catalog.sql.cursor import Cursor
from snowmelt.errors import (
    AlreadyExists,
    EvolutionRefused,
    NotFound,
    PrivilegeMissing,
    TableNotFound,
    Unsupported,
)
from snowmelt.schema.evolution import next_ordinal
from snowmelt.schema.types import Column, TableName, display_name

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection, Sequence

    from snowmelt.catalog.model.records import DatabaseRecord, SchemaRecord, TableRecord

_T = model.tables
_S = model.schemas
_D = model.databases


def locked(connection: sa.Connection, table: TableRecord) -> TableRecord:
    """Lock a table and return it as it is now.

    Raises:
        TableNotFound: It was dropped meanwhile.
    """
    if not lock_tables(connection, [table.table_id]):
        raise TableNotFound(table=table.name)
    return table_by_id(connection, table.table_id)


def has_had_rows(table: TableRecord) -> bool:
    """Tell whether rows were ever committed to a table, by channels or by loads."""
    return table.last_seq > 0 or table.pointer is not None


def set_cluster_by(connection: sa.Connection, table: TableRecord, columns: Sequence[str]) -> None:
    """Sort the native files that are written from now on by these columns, by internal names."""
    packed = msgspec.json.encode(list(columns)).decode()
    _update(connection, table, cluster_by=packed)


def rename_table(
    connection: sa.Connection, table: TableRecord, name: TableName, now: dt.datetime
) -> TableRecord:
    """Give a table another name, perhaps in another schema; rows, grants and channels stay.

    A channel that is open stays so; one that is opened counts on above all that the name has seen.

    Raises:
        AlreadyExists: There is a table of that name.
        DatabaseNotFound: The new name's database does not exist.
        SchemaNotFound: The new name's schema does not exist.
        TableNotFound: The table was dropped meanwhile.
    """
    # The schema before the table, as everywhere.
    _, schema_id = schema_of(connection, name.database, name.schema, lock=True)
    table = locked(connection, table)
    try:
        find_table(connection, name)
    except TableNotFound:
        pass
    else:
        raise AlreadyExists(kind="Table", name=name)
    carry_over(connection, table.table_id, now)
    _update(connection, table, name=name.table, schema_id=schema_id)
    return table_by_id(connection, table.table_id)


def rename_schema(
    connection: sa.Connection,
    schema: SchemaRecord,
    database: DatabaseRecord,
    name: str,
    now: dt.datetime,
) -> None:
    """Give a schema another name, perhaps in another database; all that is in it goes along.

    Raises:
        AlreadyExists: There is a schema of that name.
    """
    lock = sa.select(_D.c.database_id).where(
        _D.c.database_id.in_([schema.database_id, database.database_id])
    )
    connection.execute(lock.order_by(_D.c.database_id).with_for_update())
    if name in {each.name for each in schemas_of(connection, database.name)}:
        shown = f"{display_name(database.name)}.{display_name(name)}"
        raise AlreadyExists(kind="Schema", name=shown)
    _carry_all(connection, [schema.schema_id], now)
    connection.execute(
        sa.update(_S)
        .where(_S.c.schema_id == schema.schema_id)
        .values(name=name, database_id=database.database_id)
    )


def rename_database(
    connection: sa.Connection, database: DatabaseRecord, name: str, now: dt.datetime
) -> None:
    """Give a database another name; all that is in it goes along.

    Raises:
        AlreadyExists: There is a database of that name.
    """
    lock = sa.select(_D.c.database_id).where(_D.c.database_id == database.database_id)
    connection.execute(lock.with_for_update())
    if name in {each.name for each in databases_of(connection)}:
        raise AlreadyExists(kind="Database", name=display_name(name))
    schemas = [each.schema_id for each in schemas_of(connection, database.name)]
    _carry_all(connection, schemas, now)
    connection.execute(
        sa.update(_D).where(_D.c.database_id == database.database_id).values(name=name)
    )


def _carry_all(connection: sa.Connection, schema_ids: Sequence[int], now: dt.datetime) -> None:
    """Before schemas get to another place: leave what their tables' channels count to."""
    connection.execute(
        sa.select(_S.c.schema_id)
        .where(_S.c.schema_id.in_(schema_ids))
        .order_by(_S.c.schema_id)
        .with_for_update()
    )
    inside = sa.select(_T.c.table_id).where(
        _T.c.schema_id.in_(schema_ids), _T.c.dropped_at.is_(None)
    )
    for table_id in lock_tables(connection, list(connection.execute(inside).scalars())):
        carry_over(connection, table_id, now)


def _update(connection: sa.Connection, table: TableRecord, **values: object) -> None:
    connection.execute(sa.update(_T).where(_T.c.table_id == table.table_id).values(values))


# --- Columns that follow their rows: what loads and clients add to a table without an ALTER.
#
# Only what leaves every stored row as it is: new columns, which may be NULL, and NOT NULL taken
# off. Who asks has inferred the types; whoever comes second gets the columns of the first.

# As many as one COPY adds in Snowflake.
MAX_NEW_COLUMNS = 100
_PRIVILEGE = "EVOLVE SCHEMA"


@dataclass(frozen=True, slots=True)
class Evolved:
    """A table as it is now, and what this call has changed: nothing, when others were faster.

    `added` and `lifted` (NOT NULL taken off) are internal names in the order of the table.
    """

    table: TableRecord
    added: tuple[str, ...] = ()
    lifted: tuple[str, ...] = ()


def new_column(name: str, type_text: str) -> Column:
    """Return a column to be added, by internal name and a type as DDL writes it.

    Raises:
        StatementError: It is no type.
    """
    cursor = Cursor(type_text)
    found = read_type(cursor)
    cursor.end("the type of a column")
    return Column(
        name=name,
        kind=found.kind,
        ordinal=0,
        precision=found.precision,
        scale=found.scale,
        length=found.length,
        byte_length=found.byte_length,
    )


def evolve_table(
    connection: sa.Connection,
    name: TableName,
    *,
    new_columns: Sequence[Column] = (),
    no_longer_required: Collection[str] = (),
    role: str,
    now: dt.datetime,
) -> Evolved:
    """Add columns and take NOT NULL off, as far as that is still to be done.

    A column that is there by that name stays as it is, whatever its type: the caller looks at
    `Evolved.table` and fits its values to that. Columns come without ordinals; all of them may be
    NULL. One version of the columns is written at most.

    Args:
        connection: A writing transaction.
        name: The table.
        new_columns: What the rows have and the table may lack.
        no_longer_required: Internal names of columns that the rows leave out or have NULL in.
        role: Who asks: the owner, or a role with EVOLVE SCHEMA.
        now: The time.

    Raises:
        TableNotFound: There is no such table, or the role may not use it.
        PrivilegeMissing: The role may not evolve it.
        EvolutionRefused: The table is not set to evolve, or too many columns come at once.
        NotFound: There is no column to take NOT NULL off.
    """
    table = find_table(connection, name)
    require_table(connection, role, table, "INSERT", "SELECT", _PRIVILEGE)
    if not has(connection, role, "TABLE", table.table_id, _PRIVILEGE):
        raise PrivilegeMissing(
            role=display_name(role), privilege=_PRIVILEGE, object=f"table {name}"
        )
    table = locked(connection, table)
    if not table.schema_evolution:
        raise EvolutionRefused(
            table=name,
            reason=f"its columns do not follow its rows: ALTER TABLE {name} SET "
            "ENABLE_SCHEMA_EVOLUTION = TRUE, or ADD COLUMN by hand",
        )
    there = {column.name for column in table.schema.columns}
    missing = {each.name: each for each in new_columns if each.name not in there}
    if len(missing) > MAX_NEW_COLUMNS:
        raise EvolutionRefused(
            table=name,
            reason=f"{len(missing)} columns would be new at once, {MAX_NEW_COLUMNS} may be: look "
            "whether these are rows of this table, or ADD COLUMN by hand",
        )
    for wanted in no_longer_required:
        if wanted not in there and wanted not in missing:
            raise NotFound(kind="Column", name=display_name(wanted))
    try:
        return _evolved(connection, table, list(missing.values()), set(no_longer_required), now)
    except Unsupported as error:
        raise EvolutionRefused(table=name, reason=str(error)) from error


def _evolved(
    connection: sa.Connection,
    table: TableRecord,
    missing: Sequence[Column],
    free: set[str],
    now: dt.datetime,
) -> Evolved:
    lifted = tuple(
        each.name for each in table.schema.columns if each.name in free and not each.nullable
    )
    if not (missing or lifted):
        return Evolved(table)
    ordinal = next_ordinal(schema_versions(connection, table.table_id).values())
    columns = [
        replace(each, nullable=True) if each.name in lifted else each
        for each in table.schema.columns
    ]
    columns += [
        replace(each, ordinal=number, nullable=True)
        for number, each in enumerate(missing, start=ordinal)
    ]
    add_schema_version(connection, table, columns, now=now)
    added = tuple(each.name for each in missing)
    return Evolved(table_by_id(connection, table.table_id), added, lifted)
