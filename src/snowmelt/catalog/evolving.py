"""Columns that follow their rows: what loads and clients add to a table without an ALTER.

Only what leaves every stored row as it is: new columns, which may be NULL, and NOT NULL taken
off. Who asks has inferred the types; whoever comes second gets the columns of the first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from snowmelt.catalog import altering
from snowmelt.catalog.access import has, require_table
from snowmelt.catalog.column_types import read_type
from snowmelt.catalog.cursor import Cursor
from snowmelt.catalog.tables import add_schema_version, find_table, schema_versions, table_by_id
from snowmelt.errors import EvolutionRefused, NotFound, PrivilegeMissing, Unsupported
from snowmelt.schema.evolution import next_ordinal
from snowmelt.schema.types import Column, display_name

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection, Sequence

    import sqlalchemy as sa

    from snowmelt.catalog.tables import TableRecord
    from snowmelt.schema.types import TableName

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
    table = altering.locked(connection, table)
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
