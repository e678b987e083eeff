"""ALTER TABLE execution, without rewriting stored rows.

Columns that a stored row lacks read as NULL. Dropped columns are not read.
"""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch
from typing import TYPE_CHECKING

from snowmelt.catalog.commands.ddl import execute_ddl
from snowmelt.catalog.commands.error_table_property import resolve_error_table_property
from snowmelt.catalog.commands.statement_context import StatementResult, StatementSession
from snowmelt.catalog.model.records import TableRecord
from snowmelt.catalog.objects import renames_and_evolution, retention, tables
from snowmelt.catalog.security.access_control import has_privilege
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
from snowmelt.catalog.sql.object_name_types import display_schema
from snowmelt.errors import (
    DatabaseNotFound,
    InternalError,
    PrivilegeMissing,
    SchemaNotFound,
    StatementError,
    TableNotFound,
)
from snowmelt.schema.column_change_compatibility import next_ordinal, widen_column_type
from snowmelt.schema.types import TableName, to_display_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.catalog.sql.ast import ColumnChange, ColumnName, TableChange
    from snowmelt.catalog.sql.lexer import SourcePosition
    from snowmelt.schema.types import Column

_MAX_LISTED_COLUMNS = 20


@execute_ddl.register
def _alter_table(statement: AlterTable, session: StatementSession) -> StatementResult:
    try:
        table = session.find_table(session.resolve_table_name(statement.name))
    except (DatabaseNotFound, SchemaNotFound, TableNotFound) as error:
        if not statement.if_exists:
            raise
        return StatementResult(message=f"{error} Nothing was done.")
    what = statement.change
    _require_alter_privilege(what, session, table)
    if isinstance(what, SetProperties):
        what = SetProperties(resolve_error_table_property(what.properties, session, table.name))
    if not isinstance(what, RenameTable):
        # A renaming locks the schema first.
        table = renames_and_evolution.lock_table(session.connection, table)
    return StatementResult(message=apply_table_change(what, session, table))


def _require_alter_privilege(
    table_change: TableChange, session: StatementSession, table: TableRecord
) -> None:
    """Let pass the owner, and for what evolution does by itself whoever may evolve the table."""
    evolves = isinstance(table_change, AddColumns) or (
        isinstance(table_change, AlterColumns)
        and all(each.new_type is None for each in table_change.changes)
    )
    privileges = ("OWNERSHIP", "EVOLVE SCHEMA") if evolves else ("OWNERSHIP",)
    if not has_privilege(session.connection, session.role, "TABLE", table.table_id, *privileges):
        raise PrivilegeMissing(
            role=to_display_name(session.role),
            privilege=" or ".join(privileges),
            object=f"table {table.name}",
        )


@singledispatch
def apply_table_change(
    table_change: TableChange, session: StatementSession, table: TableRecord
) -> str:
    """Carry out one change of a locked table, and say what was done.

    Raises:
        StatementError: It does not go with the table as it is; says where and what would.
        AlreadyExists: The new name is taken.
    """
    del session, table
    raise InternalError(f"{type(table_change).__name__} alters nothing.")


@apply_table_change.register
def _add_columns(table_change: AddColumns, session: StatementSession, table: TableRecord) -> str:
    ordinal = next_ordinal(
        tables.list_table_schema_versions(session.connection, table.table_id).values()
    )
    added: list[Column] = []
    for column, place in zip(table_change.columns, table_change.positions, strict=True):
        if table.schema.column(column.name) is not None:
            if column.name in table_change.if_not_exists_names:
                continue
            raise _statement_error(
                f"Table {table.name} has a column {column.display_name} already; write another "
                "name, or ADD COLUMN IF NOT EXISTS",
                place,
            )
        if not column.nullable and renames_and_evolution.has_had_rows(table):
            raise _statement_error(
                f"Column {column.display_name} cannot be NOT NULL: table {table.name} has rows, "
                "which have no value for it; leave NOT NULL out",
                place,
            )
        added.append(replace(column, ordinal=ordinal + len(added)))
    if not added:
        return f"Table {table.name} has these columns already; nothing was done."
    _save_columns(session, table, [*table.schema.columns, *added])
    return f"Table {table.name}: {_display_columns(added)} added."


@apply_table_change.register
def _drop_columns(table_change: DropColumns, session: StatementSession, table: TableRecord) -> str:
    dropped: list[Column] = []
    for wanted in table_change.columns:
        if table_change.if_exists and table.schema.column(wanted.name) is None:
            continue
        column = _require_column(wanted, table)
        if column.name in table.cluster_by:
            raise _statement_error(
                f"Table {table.name} is clustered by {column.display_name}: first CLUSTER BY "
                "other columns, or DROP CLUSTERING KEY",
                wanted.position,
            )
        dropped.append(column)
    if not dropped:
        return f"Table {table.name} has no such columns; nothing was done."
    left = [column for column in table.schema.columns if column not in dropped]
    if not left:
        raise _statement_error(
            f"Table {table.name} would have no column left: DROP TABLE, or add another first",
            table_change.columns[0].position,
        )
    _save_columns(session, table, left)
    return f"Table {table.name}: {_display_columns(dropped)} dropped."


@apply_table_change.register
def _rename_column(
    table_change: RenameColumn, session: StatementSession, table: TableRecord
) -> str:
    column = _require_column(table_change.column, table)
    if table.schema.column(table_change.new_name.name) is not None:
        raise _statement_error(
            f"Table {table.name} has a column {to_display_name(table_change.new_name.name)} already; write "
            "another name",
            table_change.new_name.position,
        )
    renamed = replace(column, name=table_change.new_name.name)
    _save_columns(
        session, table, [renamed if each is column else each for each in table.schema.columns]
    )
    if column.name in table.cluster_by:
        clustered = [renamed.name if name == column.name else name for name in table.cluster_by]
        renames_and_evolution.set_cluster_by(session.connection, table, clustered)
    return f"Table {table.name}: column {column.display_name} is called {renamed.display_name} now."


@apply_table_change.register
def _alter_columns(
    table_change: AlterColumns, session: StatementSession, table: TableRecord
) -> str:
    changed = {each.column.name: _apply_column_change(each, table) for each in table_change.changes}
    columns = [changed.get(column.name, column) for column in table.schema.columns]
    if tuple(columns) == table.schema.columns:
        return f"Table {table.name} is so already; nothing was done."
    _save_columns(session, table, columns)
    return f"Table {table.name}: {_display_columns(list(changed.values()))} changed."


def _apply_column_change(column_change: ColumnChange, table: TableRecord) -> Column:
    column = _require_column(column_change.column, table)
    if column_change.new_type is None:
        return replace(column, nullable=True)
    found = widen_column_type(column, column_change.new_type)
    if isinstance(found, str):
        raise _statement_error(
            f"Column {column.display_name} of type {column.sql_type} cannot become "
            f"{column_change.new_type.sql_type}: {found}",
            column_change.column.position,
        )
    return found


@apply_table_change.register
def _set_cluster_by(table_change: ClusterBy, session: StatementSession, table: TableRecord) -> str:
    names = [_require_column(column, table).name for column in table_change.columns]
    renames_and_evolution.set_cluster_by(session.connection, table, names)
    if not names:
        return f"Table {table.name} is not clustered any more."
    shown = ", ".join(map(to_display_name, names))
    return f"Table {table.name} is clustered by {shown} from now on; older files stay as they are."


@apply_table_change.register
def _set_properties(
    table_change: SetProperties, session: StatementSession, table: TableRecord
) -> str:
    retention.set_object_properties(
        session.connection, "TABLE", table.table_id, table_change.properties
    )
    return f"Table {table.name} altered."


@apply_table_change.register
def _rename_table(table_change: RenameTable, session: StatementSession, table: TableRecord) -> str:
    old = table.name
    place = (old.database, old.schema)[: 3 - len(table_change.new_name_parts)]
    name = TableName(*place, *table_change.new_name_parts)
    target = session.find_schema(name.database, name.schema)
    shown = display_schema(name.database, name.schema)
    session.require_privilege("SCHEMA", target.schema_id, "CREATE TABLE", shown)
    renames_and_evolution.rename_table(session.connection, table, name, session.now)
    return f"Table {old} is called {name} now."


def _save_columns(session: StatementSession, table: TableRecord, columns: Sequence[Column]) -> None:
    tables.add_schema_version(session.connection, table, columns, now=session.now)


def _require_column(column_name: ColumnName, table: TableRecord) -> Column:
    column = table.schema.column(column_name.name)
    if column is None:
        names = [each.display_name for each in table.schema.columns]
        more = ", …" if len(names) > _MAX_LISTED_COLUMNS else ""
        raise _statement_error(
            f"Table {table.name} has no column {to_display_name(column_name.name)}; there are "
            f"{', '.join(names[:_MAX_LISTED_COLUMNS])}{more}",
            column_name.position,
        )
    return column


def _display_columns(columns: Sequence[Column]) -> str:
    names = ", ".join(column.display_name for column in columns)
    return f"column{'' if len(columns) == 1 else 's'} {names}"


def _statement_error(reason: str, position: SourcePosition) -> StatementError:
    return StatementError(reason=reason, line=position.line, column=position.column)
