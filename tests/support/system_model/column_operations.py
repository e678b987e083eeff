"""Steps of a run that change the columns of tables."""

from __future__ import annotations

from support.system_model import sdk_operations
from support.system_model.model import quote, tick
from support.system_model.run import Run
from support.system_model.table_operations import random_default
from support.system_model.values import ColumnType, random_type, to_sql_literal, widen_type

_MAX_COLUMNS = 14


def add_any(run: Run) -> None:
    """Add a column, sometimes with a former name, and sometimes NOT NULL."""
    source, table = run.source, run.choose_table()
    if len(table.columns) > _MAX_COLUMNS:
        return
    column_type, is_required = random_type(source), source.random() < 0.1
    name, is_former = run.new_column_name(), source.random() < 0.2
    if is_former:
        name = source.choice(sorted(table.used_names))
        if any(each.name.upper() == name.upper() for each in table.columns):
            return
        # Buffered values of the former column could get into the new one.
        sdk_operations.flush_table(run, table)
    required = " NOT NULL" if is_required else ""
    statement = (
        f"ALTER TABLE {table.full_name} ADD COLUMN {quote(name)} {column_type.sql}{required}"
    )
    if is_required:
        # A table that has ever had rows rejects it.
        if run.execute(statement) is not None:
            return
        if table.rows:
            run.differ(f"accepted: {statement}")
    elif not run.change(statement):
        return
    table.add_column(name, column_type, is_required=is_required)
    if is_required or is_former:
        for handle in run.list_sdk_handles(table):
            if not handle.is_closed:
                sdk_operations.reopen(run, handle)


def drop_any(run: Run) -> None:
    table = run.choose_table()
    if len(table.columns) < 3:
        return
    column = run.source.choice(table.columns[1:])
    if run.change(f"ALTER TABLE {table.full_name} DROP COLUMN {quote(column.name)}"):
        table.columns.remove(column)


def rename_any(run: Run) -> None:
    table = run.choose_table()
    if len(table.columns) < 2:
        return
    column, name = run.source.choice(table.columns[1:]), run.new_column_name()
    names = f"{quote(column.name)} TO {quote(name)}"
    if run.change(f"ALTER TABLE {table.full_name} RENAME COLUMN {names}"):
        column.name = name
        table.used_names.add(name.upper())
        table.has_renamed_columns = True


def widen_any(run: Run) -> None:
    """Widen a type. A narrower one must be rejected."""
    table = run.choose_table()
    column = run.source.choice(table.columns)
    prefix = f"ALTER TABLE {table.full_name} ALTER COLUMN {quote(column.name)} SET DATA TYPE "
    wider = widen_type(column.type, run.source)
    if wider is None:
        if column.type.kind == "NUMBER" and column.type.size > 1:
            run.must_reject(prefix + ColumnType("NUMBER", column.type.size - 1).sql)
        return
    if not run.change(prefix + wider.sql):
        return
    # Channels that were opened before an earlier change may know the type from before that one.
    if not any(each.opened_at <= column.type_at for each in run.list_sdk_handles(table)):
        column.former_type = column.type
    column.type, column.type_at = wider, tick()


def drop_required_any(run: Run) -> None:
    table = run.choose_table()
    prefix = f"ALTER TABLE {table.full_name} ALTER COLUMN "
    if run.source.random() < 0.1:
        run.must_reject(f"{prefix}{quote(run.source.choice(table.columns).name)} SET NOT NULL")
        return
    required = [each for each in table.columns[1:] if each.is_required]
    if not required:
        return
    column = run.source.choice(required)
    if run.change(f"{prefix}{quote(column.name)} DROP NOT NULL"):
        column.drop_required()


def change_default_any(run: Run) -> None:
    table = run.choose_table()
    if len(table.columns) < 2:
        return
    column = run.source.choice(table.columns[1:])
    prefix = f"ALTER TABLE {table.full_name} ALTER COLUMN {quote(column.name)} "
    if column.has_default and run.source.random() < 0.5:
        if run.change(prefix + "DROP DEFAULT"):
            column.set_default(None, exists=False)
        return
    value = random_default(run, column.type)
    if value is None:
        return
    if run.change(f"{prefix}SET DEFAULT {to_sql_literal(column.type, value)}"):
        column.set_default(value, exists=True)
