"""ALTER TABLE. Rows stay as they are: what they lack is NULL, what is dropped is not read."""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch
from typing import TYPE_CHECKING

from snowmelt.catalog.commands.ddl import change
from snowmelt.catalog.commands.error_tables import resolved
from snowmelt.catalog.commands.session import Result, Session
from snowmelt.catalog.model.records import TableRecord
from snowmelt.catalog.objects import retention, tables
from snowmelt.catalog.objects import table_changes as altering
from snowmelt.catalog.security.access_control import has
from snowmelt.catalog.sql.ast import (
    AddColumns,
    AlterColumns,
    AlterTable,
    ClusterBy,
    DropColumns,
    RenameColumn,
    RenameTable,
    SetProperties,
)
from snowmelt.catalog.sql.identifiers import schema_shown
from snowmelt.errors import (
    DatabaseNotFound,
    InternalError,
    PrivilegeMissing,
    SchemaNotFound,
    StatementError,
    TableNotFound,
)
from snowmelt.schema.evolution import next_ordinal, widen_type
from snowmelt.schema.types import TableName, display_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.catalog.sql.ast import ColumnChange, ColumnName, TableChange
    from snowmelt.catalog.sql.lexer import Place
    from snowmelt.schema.types import Column

_SHOWN_COLUMNS = 20


@change.register
def _alter_table(statement: AlterTable, session: Session) -> Result:
    try:
        table = session.find_table(session.table_name(statement.name))
    except (DatabaseNotFound, SchemaNotFound, TableNotFound) as error:
        if not statement.if_exists:
            raise
        return Result(message=f"{error} Nothing was done.")
    what = statement.change
    _require(what, session, table)
    if isinstance(what, SetProperties):
        what = SetProperties(resolved(what.values, session, table.name))
    if not isinstance(what, RenameTable):
        # A renaming locks the schema first.
        table = altering.locked(session.connection, table)
    return Result(message=alter(what, session, table))


def _require(what: TableChange, session: Session, table: TableRecord) -> None:
    """Let pass the owner, and for what evolution does by itself whoever may evolve the table."""
    evolves = isinstance(what, AddColumns) or (
        isinstance(what, AlterColumns) and all(each.new_type is None for each in what.changes)
    )
    privileges = ("OWNERSHIP", "EVOLVE SCHEMA") if evolves else ("OWNERSHIP",)
    if not has(session.connection, session.role, "TABLE", table.table_id, *privileges):
        raise PrivilegeMissing(
            role=display_name(session.role),
            privilege=" or ".join(privileges),
            object=f"table {table.name}",
        )


@singledispatch
def alter(what: TableChange, session: Session, table: TableRecord) -> str:
    """Carry out one change of a locked table, and say what was done.

    Raises:
        StatementError: It does not go with the table as it is; says where and what would.
        AlreadyExists: The new name is taken.
    """
    del session, table
    raise InternalError(f"{type(what).__name__} alters nothing.")


@alter.register
def _add(what: AddColumns, session: Session, table: TableRecord) -> str:
    ordinal = next_ordinal(tables.schema_versions(session.connection, table.table_id).values())
    added: list[Column] = []
    for column, place in zip(what.columns, what.places, strict=True):
        if table.schema.column(column.name) is not None:
            if column.name in what.keeping:
                continue
            raise _error(
                f"Table {table.name} has a column {column.display_name} already; write another "
                "name, or ADD COLUMN IF NOT EXISTS",
                place,
            )
        if not column.nullable and altering.has_had_rows(table):
            raise _error(
                f"Column {column.display_name} cannot be NOT NULL: table {table.name} has rows, "
                "which have no value for it; leave NOT NULL out",
                place,
            )
        added.append(replace(column, ordinal=ordinal + len(added)))
    if not added:
        return f"Table {table.name} has these columns already; nothing was done."
    _set_columns(session, table, [*table.schema.columns, *added])
    return f"Table {table.name}: {_listed(added)} added."


@alter.register
def _drop(what: DropColumns, session: Session, table: TableRecord) -> str:
    dropped: list[Column] = []
    for wanted in what.columns:
        if what.if_exists and table.schema.column(wanted.name) is None:
            continue
        column = _found(wanted, table)
        if column.name in table.cluster_by:
            raise _error(
                f"Table {table.name} is clustered by {column.display_name}: first CLUSTER BY "
                "other columns, or DROP CLUSTERING KEY",
                wanted.place,
            )
        dropped.append(column)
    if not dropped:
        return f"Table {table.name} has no such columns; nothing was done."
    left = [column for column in table.schema.columns if column not in dropped]
    if not left:
        raise _error(
            f"Table {table.name} would have no column left: DROP TABLE, or add another first",
            what.columns[0].place,
        )
    _set_columns(session, table, left)
    return f"Table {table.name}: {_listed(dropped)} dropped."


@alter.register
def _rename_column(what: RenameColumn, session: Session, table: TableRecord) -> str:
    column = _found(what.column, table)
    if table.schema.column(what.new.name) is not None:
        raise _error(
            f"Table {table.name} has a column {display_name(what.new.name)} already; write "
            "another name",
            what.new.place,
        )
    renamed = replace(column, name=what.new.name)
    _set_columns(
        session, table, [renamed if each is column else each for each in table.schema.columns]
    )
    if column.name in table.cluster_by:
        clustered = [renamed.name if name == column.name else name for name in table.cluster_by]
        altering.set_cluster_by(session.connection, table, clustered)
    return f"Table {table.name}: column {column.display_name} is called {renamed.display_name} now."


@alter.register
def _alter_columns(what: AlterColumns, session: Session, table: TableRecord) -> str:
    changed = {each.column.name: _changed(each, table) for each in what.changes}
    columns = [changed.get(column.name, column) for column in table.schema.columns]
    if tuple(columns) == table.schema.columns:
        return f"Table {table.name} is so already; nothing was done."
    _set_columns(session, table, columns)
    return f"Table {table.name}: {_listed(list(changed.values()))} changed."


def _changed(what: ColumnChange, table: TableRecord) -> Column:
    column = _found(what.column, table)
    if what.new_type is None:
        return replace(column, nullable=True)
    found = widen_type(column, what.new_type)
    if isinstance(found, str):
        raise _error(
            f"Column {column.display_name} of type {column.sql_type} cannot become "
            f"{what.new_type.sql_type}: {found}",
            what.column.place,
        )
    return found


@alter.register
def _cluster(what: ClusterBy, session: Session, table: TableRecord) -> str:
    names = [_found(column, table).name for column in what.columns]
    altering.set_cluster_by(session.connection, table, names)
    if not names:
        return f"Table {table.name} is not clustered any more."
    shown = ", ".join(map(display_name, names))
    return f"Table {table.name} is clustered by {shown} from now on; older files stay as they are."


@alter.register
def _set_properties(what: SetProperties, session: Session, table: TableRecord) -> str:
    retention.set_properties(session.connection, "TABLE", table.table_id, what.values)
    return f"Table {table.name} altered."


@alter.register
def _rename_table(what: RenameTable, session: Session, table: TableRecord) -> str:
    old = table.name
    place = (old.database, old.schema)[: 3 - len(what.parts)]
    name = TableName(*place, *what.parts)
    target = session.find_schema(name.database, name.schema)
    shown = schema_shown(name.database, name.schema)
    session.require("SCHEMA", target.schema_id, "CREATE TABLE", shown)
    altering.rename_table(session.connection, table, name, session.now)
    return f"Table {old} is called {name} now."


def _set_columns(session: Session, table: TableRecord, columns: Sequence[Column]) -> None:
    tables.add_schema_version(session.connection, table, columns, now=session.now)


def _found(wanted: ColumnName, table: TableRecord) -> Column:
    column = table.schema.column(wanted.name)
    if column is None:
        names = [each.display_name for each in table.schema.columns]
        more = ", …" if len(names) > _SHOWN_COLUMNS else ""
        raise _error(
            f"Table {table.name} has no column {display_name(wanted.name)}; there are "
            f"{', '.join(names[:_SHOWN_COLUMNS])}{more}",
            wanted.place,
        )
    return column


def _listed(columns: Sequence[Column]) -> str:
    names = ", ".join(column.display_name for column in columns)
    return f"column{'' if len(columns) == 1 else 's'} {names}"


def _error(reason: str, place: Place) -> StatementError:
    return StatementError(reason=reason, line=place.line, column=place.column)
