"""Steps of a run that create, rename, replace, drop, restore and truncate tables."""

from __future__ import annotations

from typing import Any

from support.system_model import row_api_operations, sdk_operations
from support.system_model.model import Table, tick
from support.system_model.run import SCHEMAS, Run
from support.system_model.values import (
    ColumnType,
    random_type,
    random_value,
    to_sql_literal,
)

ERROR_TABLE = "DEMO.PUBLIC.ERRS"
_MAX_TABLES = 4
_NAMES = ("T1", "T2", "T3", "t lower", "T5", "T6")


def random_default(run: Run, column_type: ColumnType) -> Any:
    """Return a value that DEFAULT accepts as a constant, or None."""
    if column_type.is_document or column_type.kind == "FLOAT":
        return None
    value = random_value(column_type, run.source)
    if column_type.kind == "VARCHAR" and any(ord(each) < 32 for each in value):
        return None
    return value


def create_table(run: Run, schema: str, name: str, *, replace: bool = False) -> None:
    """Create a table with random columns and options."""
    source = run.source
    table = Table(schema, name)
    table.add_column("K", ColumnType("NUMBER", source.choice([18, 38])), is_required=True)
    definitions = [table.key.definition]
    for _ in range(source.randint(1, 6)):
        column_type = random_type(source)
        default = random_default(run, column_type) if source.random() < 0.3 else None
        column = table.add_column(
            run.new_column_name(),
            column_type,
            is_required=source.random() < 0.15,
            default=default,
            has_default=default is not None,
        )
        text = "" if default is None else f" DEFAULT {to_sql_literal(column_type, default)}"
        definitions.append(column.definition + text)
    table.evolves, table.has_error_table = source.random() < 0.3, source.random() < 0.5
    options = [
        *(["CLUSTER BY (K)"] if source.random() < 0.3 else []),
        *(["ENABLE_SCHEMA_EVOLUTION = TRUE"] if table.evolves else []),
        *([f"ERROR_TABLE = {ERROR_TABLE}"] if table.has_error_table else []),
    ]
    verb = "CREATE OR REPLACE TABLE" if replace else "CREATE TABLE"
    statement = f"{verb} {table.full_name} ({', '.join(definitions)}) {' '.join(options)}"
    if run.change(statement.rstrip()):
        run.tables.append(table)


def _is_free(run: Run, schema: str, name: str) -> bool:
    return not any((each.schema, each.name) == (schema, name) for each in run.tables)


def create_any(run: Run) -> None:
    schema, name = run.source.choice(SCHEMAS), run.source.choice(_NAMES)
    if len(run.tables) < _MAX_TABLES and _is_free(run, schema, name):
        create_table(run, schema, name)


def replace_any(run: Run) -> None:
    table = run.choose_table()
    if run.source.random() < 0.5:
        sdk_operations.flush_table(run, table)
    run.tables.remove(table)
    run.dropped.append(table)
    create_table(run, table.schema, table.name, replace=True)
    run.close_handles(table)


def drop_any(run: Run) -> None:
    table = run.choose_table()
    if run.source.random() < 0.5:
        sdk_operations.flush_table(run, table)
    if run.change(f"DROP TABLE {table.full_name}"):
        run.tables.remove(table)
        run.dropped.append(table)
        run.close_handles(table)


def undrop_any(run: Run) -> None:
    """Restore the table of a name that was dropped last, and open its channels again."""
    if not run.dropped:
        return
    chosen = run.source.choice(run.dropped)
    schema, name = chosen.schema, chosen.name
    if not _is_free(run, schema, name):
        return
    table = [each for each in run.dropped if (each.schema, each.name) == (schema, name)][-1]
    if not run.change(f"UNDROP TABLE {table.full_name}"):
        return
    run.dropped.remove(table)
    run.tables.append(table)
    reopen_channels(run, table)


def reopen_channels(run: Run, table: Table) -> None:
    """Open all channels of a table: this shows which of their batches are committed."""
    for channel in list(table.channels.values()):
        if run.source.random() < 0.5:
            writer = run.source.choice(run.writers)
            sdk_operations.open_channel(run, writer, table, channel.name)
        else:
            row_api_operations.open_channel(run, table, channel.name)


def truncate_any(run: Run) -> None:
    """Replace a table by an empty one. The full one can be restored after a rename."""
    table = run.choose_table()
    if run.source.random() < 0.5:
        sdk_operations.flush_table(run, table)
    if not run.change(f"TRUNCATE TABLE {table.full_name}"):
        return
    run.close_handles(table)
    # The tokens show which rows were committed before.
    reopen_channels(run, table)
    run.dropped.append(table.copy_as_dropped())
    table.rows = {}
    table.renumber({each.name: each.ordinal for each in run.describe(table)})


def rename_any(run: Run) -> None:
    table = run.choose_table()
    schema, name = run.source.choice(SCHEMAS), run.source.choice(_NAMES)
    if not _is_free(run, schema, name):
        return
    renamed = Table(schema, name).full_name
    if run.change(f"ALTER TABLE {table.full_name} RENAME TO {renamed}"):
        table.rename(schema, name)


def exchange_any(run: Run) -> None:
    """Let two tables exchange their names."""
    if len(run.tables) < 2:
        return
    one, other = run.source.sample(run.tables, 2)
    names, between = (one.full_name, other.full_name), f"DEMO.PUBLIC.BETWEEN{tick()}"
    steps = ((names[0], between), (names[1], names[0]), (between, names[1]))
    if all(run.change(f"ALTER TABLE {old} RENAME TO {new}") for old, new in steps):
        one_name = (one.schema, one.name)
        one.rename(other.schema, other.name)
        other.rename(*one_name)
