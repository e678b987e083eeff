"""Changes to existing tables: renames, clustering columns, properties of engines, schema evolution.

`tables.add_schema_version` changes columns. Functions take a connection and do not commit. Schema
evolution only adds nullable columns and removes NOT NULL, so stored rows stay unchanged. The caller
infers the types of new columns. A column that already exists keeps its type.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import msgspec
import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.jobs.load_history import rename_pipe_in_loads
from snowmelt.catalog.model.records import DatabaseRecord, SchemaRecord, TableRecord
from snowmelt.catalog.objects.channel_tombstones import carry_tombstones, write_rename_tombstones
from snowmelt.catalog.objects.namespaces import (
    list_databases,
    list_schemas,
    lock_rows,
)
from snowmelt.catalog.objects.tables import (
    PipeRecord,
    add_schema_version,
    find_namespace_ids,
    find_table,
    find_table_by_id,
    join_namespaces,
    list_pipes,
    list_table_schema_versions,
    lock_found_table,
    lock_table_by_name,
    lock_tables,
)
from snowmelt.catalog.security.access_control import has_privilege, require_table_privilege
from snowmelt.catalog.sql.column_types import parse_column_type
from snowmelt.catalog.sql.cursor import TokenCursor
from snowmelt.errors import (
    AlreadyExists,
    EvolutionRefused,
    NotFound,
    PrivilegeMissing,
    TableNotFound,
    TransactionConflict,
    Unsupported,
)
from snowmelt.schema.inference import next_ordinal
from snowmelt.schema.types import Column, TableName, to_display_name

_TABLES = model.tables
_SCHEMAS = model.schemas
_DATABASES = model.databases


def lock_table(connection: sa.Connection, table: TableRecord) -> TableRecord:
    """Lock a table and return its current record.

    Raises:
        TableNotFound: If it was dropped meanwhile.
    """
    if not lock_tables(connection, [table.table_id]):
        raise TableNotFound(table=table.name)
    return find_table_by_id(connection, table.table_id)


def has_had_rows(table: TableRecord) -> bool:
    """Return True if a channel or load has ever committed rows to a table."""
    return table.last_seq > 0 or table.pointer is not None


def set_cluster_by(connection: sa.Connection, table: TableRecord, columns: Sequence[str]) -> None:
    """Set the columns (internal names) by which new native files are sorted."""
    packed = msgspec.json.encode(list(columns)).decode()
    _update_table_row(connection, table, cluster_by=packed)


def update_engine_properties(
    connection: sa.Connection, table: TableRecord, update: Callable[[dict[str, str]], None]
) -> None:
    """Change the properties that other engines set. `update` receives and modifies the dictionary.

    Raises:
        TableNotFound: If the table was dropped meanwhile.
    """
    current = lock_table(connection, table)
    properties = msgspec.json.decode(current.engine_properties or "{}", type=dict[str, str])
    update(properties)
    packed = msgspec.json.encode(properties).decode() if properties else None
    _update_table_row(connection, table, engine_properties=packed)


def rename_table(
    connection: sa.Connection, table: TableRecord, name: TableName, now: dt.datetime
) -> TableRecord:
    """Rename a table, possibly into another schema. Rows, grants and channels stay.

    Open channels stay open. The sequencer of a new channel is above all earlier ones of its name.

    Raises:
        AlreadyExists: If there is a table of that name.
        DatabaseNotFound: If the database of the new name does not exist.
        SchemaNotFound: If the schema of the new name does not exist.
        TableNotFound: If the table was dropped or renamed meanwhile.
        TransactionConflict: If the table was replaced meanwhile.
    """
    # Lock order: the schema before the table.
    _, schema_id = find_namespace_ids(connection, name.database, name.schema, lock=True)
    table = lock_found_table(connection, table)
    try:
        find_table(connection, name)
    except TableNotFound:
        pass
    else:
        raise AlreadyExists(kind="Table", name=name)
    write_rename_tombstones(connection, table.table_id, now)
    former = table.name
    carry_tombstones(
        connection,
        (former.database, former.schema, former.table),
        (name.database, name.schema, name.table),
    )
    _keep_folder_names(connection, _TABLES.c.table_id == table.table_id)
    _update_table_row(connection, table, name=name.table, schema_id=schema_id)
    return find_table_by_id(connection, table.table_id)


def rename_schema(
    connection: sa.Connection,
    schema: SchemaRecord,
    database: DatabaseRecord,
    name: str,
    now: dt.datetime,
) -> None:
    """Rename a schema, possibly into another database, with its contents.

    Raises:
        AlreadyExists: If there is a schema of that name.
        TransactionConflict: If the schema or the database was dropped or renamed meanwhile.
    """
    lock_rows(connection, _DATABASES, [schema.database_id, database.database_id])
    named = sa.and_(_SCHEMAS.c.name == schema.name, _SCHEMAS.c.database_id == schema.database_id)
    _require_live(connection, _SCHEMAS, schema.schema_id, named)
    _require_live(connection, _DATABASES, database.database_id, _DATABASES.c.name == database.name)
    if name in {each.name for each in list_schemas(connection, database.name)}:
        shown = f"{to_display_name(database.name)}.{to_display_name(name)}"
        raise AlreadyExists(kind="Schema", name=shown)
    pipes = list_pipes(connection, None, None)
    _write_schema_rename_tombstones(connection, [schema.schema_id], now)
    carry_tombstones(connection, (schema.database, schema.name), (database.name, name))
    _keep_folder_names(connection, _TABLES.c.schema_id == schema.schema_id)
    connection.execute(
        sa.update(_SCHEMAS)
        .where(_SCHEMAS.c.schema_id == schema.schema_id)
        .values(name=name, database_id=database.database_id)
    )
    _rename_pipes_in_loads(connection, pipes)


def rename_database(
    connection: sa.Connection, database: DatabaseRecord, name: str, now: dt.datetime
) -> None:
    """Rename a database with its contents.

    Raises:
        AlreadyExists: If there is a database of that name.
        TransactionConflict: If the database was dropped or renamed meanwhile.
    """
    _require_live(connection, _DATABASES, database.database_id, _DATABASES.c.name == database.name)
    if name in {each.name for each in list_databases(connection)}:
        raise AlreadyExists(kind="Database", name=to_display_name(name))
    schemas = [each.schema_id for each in list_schemas(connection, database.name)]
    pipes = list_pipes(connection, None, None)
    _write_schema_rename_tombstones(connection, schemas, now)
    carry_tombstones(connection, (database.name,), (name,))
    _keep_folder_names(connection, _DATABASES.c.database_id == database.database_id)
    connection.execute(
        sa.update(_DATABASES)
        .where(_DATABASES.c.database_id == database.database_id)
        .values(name=name)
    )
    _rename_pipes_in_loads(connection, pipes)


def _require_live(
    connection: sa.Connection, table: sa.Table, row_id: int, is_named: sa.ColumnElement[bool]
) -> None:
    """Lock a database or schema that this transaction found by its name.

    Raises:
        TransactionConflict: If another transaction dropped or renamed it before this lock.
    """
    (key,) = table.primary_key
    query = sa.select(key).where(key == row_id, is_named, table.c.dropped_at.is_(None))
    if connection.execute(query.with_for_update()).first() is None:
        raise TransactionConflict


def _rename_pipes_in_loads(connection: sa.Connection, before: Sequence[PipeRecord]) -> None:
    """Make pipes whose schema was renamed keep their loads. `before` are the pipes before it."""
    names = {each.pipe_id: str(each) for each in list_pipes(connection, None, None)}
    for pipe in before:
        name = names.get(pipe.pipe_id, str(pipe))
        if name != str(pipe):
            rename_pipe_in_loads(connection, str(pipe), name, since=pipe.created_at)


def _write_schema_rename_tombstones(
    connection: sa.Connection, schema_ids: Sequence[int], now: dt.datetime
) -> None:
    """Write tombstones for channels under their old names, before schemas are renamed."""
    lock_rows(connection, _SCHEMAS, schema_ids)
    inside = sa.select(_TABLES.c.table_id).where(
        _TABLES.c.schema_id.in_(schema_ids), _TABLES.c.dropped_at.is_(None)
    )
    for table_id in lock_tables(connection, list(connection.execute(inside).scalars())):
        write_rename_tombstones(connection, table_id, now)


def _keep_folder_names(connection: sa.Connection, are_renamed: sa.ColumnElement[bool]) -> None:
    """Store the names in the folders of tables before their first rename.

    Loads, migrations and publications may already have written files. Dropped tables are included,
    because UNDROP restores them under the new name.
    """
    names = (_DATABASES.c.name, _SCHEMAS.c.name, _TABLES.c.name)
    found = connection.execute(
        sa.select(_TABLES.c.table_id, *names)
        .select_from(join_namespaces(_TABLES))
        .where(are_renamed, _TABLES.c.folder_name.is_(None), _TABLES.c.purged_at.is_(None))
        .order_by(_TABLES.c.table_id)
    ).all()
    for table_id, *parts in found:
        connection.execute(
            sa.update(_TABLES)
            .where(_TABLES.c.table_id == table_id)
            .values(folder_name=msgspec.json.encode(parts).decode())
        )


def _update_table_row(connection: sa.Connection, table: TableRecord, **values: object) -> None:
    connection.execute(
        sa.update(_TABLES).where(_TABLES.c.table_id == table.table_id).values(values)
    )


# Schema evolution: changes of columns by loads and clients, without ALTER TABLE.

# Maximum number of new columns per call, as for one COPY in Snowflake.
MAX_NEW_COLUMNS = 100
_EVOLVE_PRIVILEGE = "EVOLVE SCHEMA"


@dataclass(frozen=True, slots=True)
class EvolutionResult:
    """A table after schema evolution, with the changes of this call.

    The changes are empty if another call made them before. `added_columns` and `relaxed_columns`
    (NOT NULL dropped) are internal names in table order.
    """

    table: TableRecord
    added_columns: tuple[str, ...] = ()
    relaxed_columns: tuple[str, ...] = ()


def make_column(name: str, type_text: str) -> Column:
    """Return a new column of this internal name and SQL type.

    Raises:
        StatementError: If the type is invalid.
    """
    cursor = TokenCursor(type_text)
    found = parse_column_type(cursor)
    cursor.expect_end("the type of a column")
    return found.to_column(name)


def evolve_table(
    connection: sa.Connection,
    name: TableName,
    *,
    new_columns: Sequence[Column] = (),
    no_longer_required: Collection[str] = (),
    role: str,
    now: dt.datetime,
) -> EvolutionResult:
    """Add missing columns and drop NOT NULL constraints.

    Existing columns keep their type; the caller converts its values to the columns of
    `EvolutionResult.table`. At most one schema version is written.

    Args:
        connection: Connection in a write transaction.
        name: The table.
        new_columns: Columns of the rows that may be missing in the table. They have no ordinals and
            become nullable.
        no_longer_required: Internal names of columns that are NULL or missing in rows.
        role: Role that owns the table or has EVOLVE SCHEMA.
        now: Creation time of the schema version.

    Raises:
        TableNotFound: If the table does not exist or the role lacks privileges on it.
        PrivilegeMissing: If the role may not evolve the table.
        EvolutionRefused: If schema evolution is disabled, more than 100 columns are new, or a new
            column has the name of a companion column.
        NotFound: If a column of `no_longer_required` does not exist.
    """
    table = lock_table_by_name(connection, name)
    require_table_privilege(connection, role, table, "INSERT", "SELECT", _EVOLVE_PRIVILEGE)
    if not has_privilege(connection, role, "TABLE", table.table_id, _EVOLVE_PRIVILEGE):
        raise PrivilegeMissing(
            role=to_display_name(role), privilege=_EVOLVE_PRIVILEGE, object=f"table {name}"
        )
    if not table.schema_evolution:
        raise EvolutionRefused(
            table=name,
            reason=f"schema evolution is off. Run ALTER TABLE {name} SET "
            "ENABLE_SCHEMA_EVOLUTION = TRUE, or ADD COLUMN",
        )
    there = {column.name for column in table.schema.columns}
    missing = {each.name: each for each in new_columns if each.name not in there}
    if len(missing) > MAX_NEW_COLUMNS:
        raise EvolutionRefused(
            table=name,
            reason=f"{len(missing)} columns are new, expected at most {MAX_NEW_COLUMNS}. Check that these "
            "are rows of this table, or run ADD COLUMN",
        )
    for wanted in no_longer_required:
        if wanted not in there and wanted not in missing:
            raise NotFound(kind="Column", name=to_display_name(wanted))
    try:
        return _apply_evolution(
            connection, table, list(missing.values()), set(no_longer_required), now
        )
    except Unsupported as error:
        raise EvolutionRefused(table=name, reason=str(error)) from error


def _apply_evolution(
    connection: sa.Connection,
    table: TableRecord,
    new_columns: Sequence[Column],
    nullable_names: set[str],
    now: dt.datetime,
) -> EvolutionResult:
    lifted = tuple(
        each.name
        for each in table.schema.columns
        if each.name in nullable_names and not each.nullable
    )
    if not (new_columns or lifted):
        return EvolutionResult(table)
    ordinal = next_ordinal(list_table_schema_versions(connection, table.table_id).values())
    columns = [
        replace(each, nullable=True) if each.name in lifted else each
        for each in table.schema.columns
    ]
    columns += [
        replace(each, ordinal=number, nullable=True)
        for number, each in enumerate(new_columns, start=ordinal)
    ]
    add_schema_version(connection, table, columns, now=now)
    added = tuple(each.name for each in new_columns)
    return EvolutionResult(find_table_by_id(connection, table.table_id), added, lifted)
