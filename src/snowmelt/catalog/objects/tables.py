"""Tables: schema versions, error tables, pipes, and the pointer to the native metadata.

Functions take a connection and do not commit. A function that changes a table locks its row first,
so that changes and chunk registrations are serialized.
"""

from __future__ import annotations

import datetime as dt
import functools
import uuid
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec
import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import make_record
from snowmelt.catalog.model.records import DEFAULT_RETENTION_DAYS, MetadataPointer, TableRecord
from snowmelt.catalog.objects.channel_tombstones import write_table_drop_tombstones
from snowmelt.catalog.security.access_control import has_privilege
from snowmelt.catalog.sql.pipe_copy import PipeCopy
from snowmelt.errors import (
    AlreadyExists,
    CommitLost,
    DatabaseNotFound,
    NotFound,
    PipeNotFound,
    SchemaNotFound,
    TableNotFound,
    TransactionConflict,
    Unsupported,
)
from snowmelt.schema.iceberg_table_form import find_companion_conflict
from snowmelt.schema.types import Column, TableName, TableSchema, to_display_name

_TABLES = model.tables
_SCHEMAS = model.schemas
_DATABASES = model.databases
_SCHEMA_VERSIONS = model.schema_versions
_FIRST_VERSION = 1
_DATA_KEYS = model.data_keys
_columns_decoder = msgspec.json.Decoder(tuple[Column, ...])
_EFFECTIVE_RETENTION_DAYS = sa.func.coalesce(
    _TABLES.c.retention_days,
    _SCHEMAS.c.retention_days,
    _DATABASES.c.retention_days,
    DEFAULT_RETENTION_DAYS,
)


def join_namespaces(objects: sa.FromClause) -> sa.Join:
    """Join objects of schemas with their schemas and databases."""
    return objects.join(_SCHEMAS, objects.c.schema_id == _SCHEMAS.c.schema_id).join(
        _DATABASES, _SCHEMAS.c.database_id == _DATABASES.c.database_id
    )


def select_in_schemas(
    objects: sa.Table, database: str | None, schema: str | None, name: str | None
) -> sa.Select[Any]:
    """Build the query for live objects ordered by name, optionally of one database, schema or name.

    Rows have the columns of the object's table, and `database`, `schema` and `database_id`.
    """
    wanted = ((_DATABASES.c.name, database), (_SCHEMAS.c.name, schema), (objects.c.name, name))
    return (
        sa.select(
            *objects.c,
            _SCHEMAS.c.database_id,
            _SCHEMAS.c.name.label("schema"),
            _DATABASES.c.name.label("database"),
        )
        .select_from(join_namespaces(objects))
        .where(
            *(each.c.dropped_at.is_(None) for each in (objects, _SCHEMAS, _DATABASES)),
            *(column == value for column, value in wanted if value is not None),
        )
        .order_by(_DATABASES.c.name, _SCHEMAS.c.name, objects.c.name)
    )


def find_table(connection: sa.Connection, name: TableName) -> TableRecord:
    """Return the live table of this name.

    Raises:
        DatabaseNotFound: If the database does not exist.
        SchemaNotFound: If the schema does not exist.
        TableNotFound: If the table does not exist.
    """
    row = connection.execute(
        _select_tables().where(
            _DATABASES.c.name == name.database,
            _SCHEMAS.c.name == name.schema,
            _TABLES.c.name == name.table,
            *(each.c.dropped_at.is_(None) for each in (_DATABASES, _SCHEMAS, _TABLES)),
        )
    ).first()
    if row is not None:
        return _to_table_record(row)
    find_namespace_ids(connection, name.database, name.schema)
    raise TableNotFound(table=name)


def find_table_by_id(connection: sa.Connection, table_id: int) -> TableRecord:
    """Return the table with this ID, even if it is dropped.

    Raises:
        TableNotFound: If it never existed or was deleted.
    """
    row = connection.execute(_select_table_by_id(), {"id": table_id}).first()
    if row is None:
        raise TableNotFound(table=f"number {table_id}")
    return _to_table_record(row)


def find_current_name(
    connection: sa.Connection, name: TableName, key_id: int | None, user: str
) -> TableName:
    """Return the current name of the table that the key `key_id` of `user` belongs to, else `name`.

    Opening a channel creates a key for the user, which identifies the table after a rename.
    """
    if key_id is None:
        return name
    query = (
        sa.select(
            _DATABASES.c.name.label("database"), _SCHEMAS.c.name.label("schema"), _TABLES.c.name
        )
        .select_from(
            join_namespaces(_TABLES).join(_DATA_KEYS, _DATA_KEYS.c.table_id == _TABLES.c.table_id)
        )
        .where(
            _DATA_KEYS.c.key_id == key_id,
            _DATA_KEYS.c.user == user,
            *(each.c.dropped_at.is_(None) for each in (_DATABASES, _SCHEMAS, _TABLES)),
        )
    )
    row = connection.execute(query).first()
    return name if row is None else TableName(row.database, row.schema, row.name)


def list_tables(
    connection: sa.Connection, database: str | None = None, schema: str | None = None
) -> list[TableRecord]:
    """Return the live tables, ordered by name, optionally of one database or schema."""
    query = _select_tables().where(_TABLES.c.dropped_at.is_(None))
    if database is not None:
        query = query.where(_DATABASES.c.name == database)
    if schema is not None:
        query = query.where(_SCHEMAS.c.name == schema)
    rows = connection.execute(query.order_by(_DATABASES.c.name, _SCHEMAS.c.name, _TABLES.c.name))
    return [_to_table_record(row) for row in rows]


def list_restorable_tables(connection: sa.Connection, now: dt.datetime) -> list[TableRecord]:
    """Return the dropped tables that UNDROP can restore, most recently dropped first."""
    query = _select_tables().where(
        _TABLES.c.dropped_at.is_not(None), _TABLES.c.kept_until > now, _TABLES.c.purged_at.is_(None)
    )
    ordered = query.order_by(_TABLES.c.dropped_at.desc(), _TABLES.c.table_id.desc())
    return [_to_table_record(row) for row in connection.execute(ordered)]


def list_dropped_tables(connection: sa.Connection) -> list[TableRecord]:
    """Return the dropped tables that are not deleted yet, in the order of their drops."""
    query = _select_tables().where(_TABLES.c.dropped_at.is_not(None))
    ordered = query.order_by(_TABLES.c.dropped_at, _TABLES.c.table_id)
    return [_to_table_record(row) for row in connection.execute(ordered)]


def create_table(
    connection: sa.Connection,
    name: TableName,
    columns: Sequence[Column],
    *,
    cluster_by: Sequence[str] = (),
    owner: str,
    now: dt.datetime,
    replace: bool = False,
    if_not_exists: bool = False,
) -> TableRecord:
    """Create a table. The ordinals of its columns must be unique and at least 1.

    `cluster_by` has internal names of columns by which native files are sorted. With `replace`, an
    existing table of that name is dropped first. With `if_not_exists`, it is returned unchanged.

    Raises:
        AlreadyExists: If the table exists, or two columns have the same name.
        Unsupported: If a column has the name of another column's companion (`iceberg_table_form`).
        DatabaseNotFound: If the database does not exist.
        SchemaNotFound: If the schema does not exist.
        NotFound: If a column of `cluster_by` does not exist.
    """
    _check_columns(columns, cluster_by)
    _, schema_id = find_namespace_ids(connection, name.database, name.schema, lock=True)
    query = sa.select(_TABLES.c.table_id).where(
        _TABLES.c.schema_id == schema_id,
        _TABLES.c.name == name.table,
        _TABLES.c.dropped_at.is_(None),
    )
    # The lock prevents the drop of a table that another transaction moves to another schema.
    existing = connection.execute(query.with_for_update() if replace else query).scalar()
    if existing is not None:
        if if_not_exists:
            return find_table_by_id(connection, existing)
        if not replace:
            raise AlreadyExists(kind="Table", name=name)
        drop_tables(connection, [existing], now)
    table_id = connection.execute(
        sa.insert(_TABLES)
        .values(
            schema_id=schema_id,
            incarnation=uuid.uuid4().hex,
            name=name.table,
            owner=owner,
            cluster_by=msgspec.json.encode(list(cluster_by)).decode(),
            schema_version=_FIRST_VERSION,
            last_seq=0,
            migrated_seq=0,
            created_at=now,
            lineage_from_seq=0,
        )
        .returning(_TABLES.c.table_id)
    ).scalar_one()
    connection.execute(
        sa.insert(_SCHEMA_VERSIONS).values(
            table_id=table_id,
            version=_FIRST_VERSION,
            columns=msgspec.json.encode(tuple(columns)).decode(),
            since_seq=0,
            created_at=now,
        )
    )
    return find_table_by_id(connection, table_id)


def drop_table(connection: sa.Connection, name: TableName, now: dt.datetime) -> TableRecord:
    """Drop a table. Its name becomes available, and its channels invalid.

    Rows, chunks and keys stay until the retention time has passed and garbage collection deletes
    them. Until then `undrop_table` can restore the table.

    Raises:
        DatabaseNotFound: If the database does not exist.
        SchemaNotFound: If the schema does not exist.
        TableNotFound: If the table does not exist.
    """
    table = lock_table_by_name(connection, name)
    drop_tables(connection, [table.table_id], now)
    return table


def drop_tables(
    connection: sa.Connection,
    table_ids: Collection[int],
    now: dt.datetime,
    *,
    kept_until: dt.datetime | None = None,
) -> int:
    """Drop tables by ID and return how many were live.

    `kept_until` is given if they are dropped with their schema or database. They are then kept
    until that time, regardless of their own retention time, and restored together with it.
    """
    live = lock_tables(connection, table_ids)
    if not live:
        return 0
    write_table_drop_tombstones(connection, live, now)
    until: object = kept_until
    if kept_until is None:
        days = dict(
            connection.execute(
                sa.select(_TABLES.c.table_id, _EFFECTIVE_RETENTION_DAYS)
                .select_from(join_namespaces(_TABLES))
                .where(_TABLES.c.table_id.in_(live))
            ).all()
        )
        ends = {each: now + dt.timedelta(days=days[each]) for each in live}
        literals = {each: sa.literal(end, model.UtcTimestamp) for each, end in ends.items()}
        until = sa.case(literals, value=_TABLES.c.table_id)
    connection.execute(
        sa.update(_TABLES)
        .where(_TABLES.c.table_id.in_(live))
        .values(dropped_at=now, kept_until=until, dropped_with_parent=kept_until is not None)
    )
    return len(live)


def delete_table_record(connection: sa.Connection, table_id: int) -> None:
    """Delete the catalog rows of a dropped table. Its files and blobs must already be deleted."""
    ids = sa.select(model.channels.c.channel_id).where(model.channels.c.table_id == table_id)
    for rows in (model.row_channels, model.client_rejections):
        connection.execute(sa.delete(rows).where(rows.c.channel_id.in_(ids)))
    keys = (model.data_keys, model.table_keys)
    published = (model.fresh_files, model.published_snapshots, model.snapshot_demand)
    proof = (model.chunk_ledger, model.rowless_commits, model.native_files)
    for table in (model.chunks, model.channels, *keys, *published, *proof, _SCHEMA_VERSIONS):
        connection.execute(sa.delete(table).where(table.c.table_id == table_id))
    grants = model.grants
    connection.execute(
        sa.delete(grants).where(grants.c.kind == "TABLE", grants.c.object_id == table_id)
    )
    connection.execute(
        sa.delete(_TABLES).where(_TABLES.c.table_id == table_id, _TABLES.c.dropped_at.is_not(None))
    )


_LOCK_TABLES = (
    sa.select(_TABLES.c.table_id)
    .where(
        _TABLES.c.table_id.in_(sa.bindparam("table_ids", expanding=True)),
        _TABLES.c.dropped_at.is_(None),
    )
    .order_by(_TABLES.c.table_id)
    .with_for_update()
)


def lock_tables(connection: sa.Connection, table_ids: Collection[int]) -> list[int]:
    """Lock the rows of tables in the order of their IDs, and return the IDs of live tables.

    The order prevents deadlocks.
    """
    return list(connection.execute(_LOCK_TABLES, {"table_ids": sorted(table_ids)}).scalars())


def lock_table_by_name(connection: sa.Connection, name: TableName) -> TableRecord:
    """Lock the live table of this name, and return its record.

    Raises:
        DatabaseNotFound: If the database does not exist.
        SchemaNotFound: If the schema does not exist.
        TableNotFound: If the table does not exist.
    """
    while True:
        table = find_table(connection, name)
        if lock_tables(connection, [table.table_id]):
            current = find_table_by_id(connection, table.table_id)
            if current.name == name:
                return current
        # Another transaction dropped, replaced or renamed the table before this lock.


def lock_found_table(connection: sa.Connection, table: TableRecord) -> TableRecord:
    """Lock a table that this transaction found by its name, and return its current record.

    Raises:
        DatabaseNotFound: If the database was dropped or renamed since.
        SchemaNotFound: If the schema was dropped or renamed since.
        TableNotFound: If the table was dropped or renamed since.
        TransactionConflict: If the table was replaced since, for example by TRUNCATE.
    """
    if not lock_tables(connection, [table.table_id]):
        raise_changed_table(connection, table)
    current = find_table_by_id(connection, table.table_id)
    if current.name != table.name:
        raise_changed_table(connection, table)
    return current


def raise_changed_table(connection: sa.Connection, table: TableRecord) -> NoReturn:
    """Raise the error for a table that another transaction changed before this one locked it.

    Raises:
        DatabaseNotFound: If the database was dropped or renamed.
        SchemaNotFound: If the schema was dropped or renamed.
        TableNotFound: If the table was dropped or renamed.
        TransactionConflict: If another table has its name, as after TRUNCATE.
    """
    find_table(connection, table.name)
    raise TransactionConflict


def list_table_schema_versions(connection: sa.Connection, table_id: int) -> dict[int, TableSchema]:
    """Return all versions of a table's columns by number."""
    query = sa.select(_SCHEMA_VERSIONS.c.version, _SCHEMA_VERSIONS.c.columns).where(
        _SCHEMA_VERSIONS.c.table_id == table_id
    )
    return {
        version: TableSchema(version, _columns_decoder.decode(columns))
        for version, columns in connection.execute(query)
    }


def find_schema_at(connection: sa.Connection, table_id: int, timestamp: dt.datetime) -> TableSchema:
    """Return the columns that a table had at a time after its creation."""
    versions = _SCHEMA_VERSIONS.c
    row = connection.execute(
        sa.select(versions.version, versions.columns)
        .where(versions.table_id == table_id)
        # The first version has the columns of the creation.
        .where((versions.created_at <= timestamp) | (versions.version == _FIRST_VERSION))
        .order_by(versions.version.desc())
        .limit(1)
    ).one()
    return TableSchema(row.version, _columns_decoder.decode(row.columns))


def add_schema_version(
    connection: sa.Connection, table: TableRecord, columns: Sequence[Column], *, now: dt.datetime
) -> TableSchema:
    """Add a version of a table's columns. Ordinals of dropped columns stay unused.

    Raises:
        TableNotFound: If the table was dropped meanwhile.
        AlreadyExists: If two columns have the same name.
        Unsupported: If a column has the name of another column's companion (`iceberg_table_form`).
    """
    _check_columns(columns, ())
    if not lock_tables(connection, [table.table_id]):
        raise TableNotFound(table=table.name)
    current = find_table_by_id(connection, table.table_id)
    version = current.schema.version + 1
    connection.execute(
        sa.insert(_SCHEMA_VERSIONS).values(
            table_id=table.table_id,
            version=version,
            columns=msgspec.json.encode(tuple(columns)).decode(),
            since_seq=current.last_seq,
            created_at=now,
        )
    )
    connection.execute(
        sa.update(_TABLES)
        .where(_TABLES.c.table_id == table.table_id)
        .values(schema_version=version)
    )
    return TableSchema(version, tuple(columns))


def swap_metadata_pointer(
    connection: sa.Connection,
    table: TableRecord,
    *,
    expected: MetadataPointer,
    new: MetadataPointer,
) -> None:
    """Swap the metadata pointer of the native table. This step makes a native commit visible.

    Raises:
        CommitLost: If the table was dropped, or its pointer or sequence differs from `expected`.
    """
    swapped = connection.execute(
        sa.update(_TABLES)
        .where(
            _TABLES.c.table_id == table.table_id,
            _TABLES.c.incarnation == table.incarnation,
            _TABLES.c.dropped_at.is_(None),
            _TABLES.c.pointer.is_not_distinct_from(expected.location),
            _TABLES.c.migrated_seq == expected.migrated_seq,
            _TABLES.c.last_seq >= new.migrated_seq,
        )
        .values(pointer=new.location, migrated_seq=new.migrated_seq)
    )
    if swapped.rowcount != 1:
        raise CommitLost(table=table.name, reason="its pointer or its incarnation has changed")


def find_namespace_ids(
    connection: sa.Connection, database: str, schema: str, *, lock: bool = False
) -> tuple[int, int]:
    """Return the IDs of a live database and schema. `lock` prevents the drop of the schema.

    Raises:
        DatabaseNotFound: If the database does not exist.
        SchemaNotFound: If the schema does not exist.
    """
    if lock:
        # CREATE OR REPLACE replaces a schema. A statement that waits for its lock does not see the new
        # one, and the next statement does.
        with suppress(DatabaseNotFound, SchemaNotFound):
            return _find_namespace_ids(connection, database, schema, lock=True)
    return _find_namespace_ids(connection, database, schema, lock=lock)


def _find_namespace_ids(
    connection: sa.Connection, database: str, schema: str, *, lock: bool
) -> tuple[int, int]:
    query = sa.select(_DATABASES.c.database_id).where(
        _DATABASES.c.name == database, _DATABASES.c.dropped_at.is_(None)
    )
    database_id = connection.execute(query).scalar()
    if database_id is None:
        raise DatabaseNotFound(database=to_display_name(database))
    query = sa.select(_SCHEMAS.c.schema_id).where(
        _SCHEMAS.c.database_id == database_id,
        _SCHEMAS.c.name == schema,
        _SCHEMAS.c.dropped_at.is_(None),
    )
    schema_id = connection.execute(query.with_for_update() if lock else query).scalar()
    if schema_id is None:
        raise SchemaNotFound(schema=f"{to_display_name(database)}.{to_display_name(schema)}")
    return database_id, schema_id


def _check_columns(columns: Sequence[Column], cluster_by: Sequence[str]) -> None:
    names = set[str]()
    for column in columns:
        if column.name in names:
            raise AlreadyExists(kind="Column", name=column.display_name)
        names.add(column.name)
    taken = find_companion_conflict(columns)
    if taken is not None:
        raise Unsupported(
            what=f"Column {to_display_name(taken)}",
            instead="native files keep the nanoseconds or the offset of another column of this "
            "table under that name; give it another name",
        )
    for name in cluster_by:
        if name not in names:
            raise NotFound(kind="Column", name=to_display_name(name))


def _select_tables() -> sa.Select[Any]:
    current = sa.and_(
        _SCHEMA_VERSIONS.c.table_id == _TABLES.c.table_id,
        _SCHEMA_VERSIONS.c.version == _TABLES.c.schema_version,
    )
    return sa.select(
        *_TABLES.c,
        _SCHEMA_VERSIONS.c.columns,
        _SCHEMAS.c.name.label("schema"),
        _DATABASES.c.name.label("database"),
        _DATABASES.c.database_id,
        _EFFECTIVE_RETENTION_DAYS.label("effective_retention_days"),
    ).select_from(join_namespaces(_TABLES).join(_SCHEMA_VERSIONS, current))


@functools.cache
def _select_table_by_id() -> sa.Select[Any]:
    return _select_tables().where(_TABLES.c.table_id == sa.bindparam("id"))


def _to_table_record(row: sa.Row[Any]) -> TableRecord:
    name = TableName(row.database, row.schema, row.name)
    return make_record(
        TableRecord,
        row,
        name=name,
        schema=TableSchema(row.schema_version, _columns_decoder.decode(row.columns)),
        cluster_by=msgspec.json.decode(row.cluster_by, type=tuple[str, ...]),
        retention_days=row.effective_retention_days,
        folder_name=name
        if row.folder_name is None
        else TableName(*msgspec.json.decode(row.folder_name, type=tuple[str, str, str])),
    )


# Error tables store the rows that other tables reject. A client needs no privilege on the error
# table, because it inserts into the other table.


def find_error_table(connection: sa.Connection, table: TableRecord) -> TableRecord | None:
    """Return the error table of a table, or None if there is none."""
    if table.error_table_id is None:
        return None
    try:
        found = find_table_by_id(connection, table.error_table_id)
    except TableNotFound:
        return None
    return found if found.dropped_at is None else None


def can_write_error_rows(connection: sa.Connection, role: str, error_table_id: int) -> bool:
    """Return True if a role may insert into at least one table that uses this error table."""
    feeding = sa.select(_TABLES.c.table_id).where(
        _TABLES.c.error_table_id == error_table_id, _TABLES.c.dropped_at.is_(None)
    )
    ids = connection.execute(feeding).scalars().all()
    return any(has_privilege(connection, role, "TABLE", each, "INSERT") for each in ids)


def redirect_error_rows(connection: sa.Connection, table_id: int, new_table_id: int) -> None:
    """Make tables that use an error table use the table that replaces it."""
    connection.execute(
        sa.update(_TABLES)
        .where(_TABLES.c.error_table_id == table_id)
        .values(error_table_id=new_table_id)
    )


# Pipes: named entry points of a table. The COPY statement of a pipe transforms its rows.

# Suffix of the name of each table's default pipe.
DEFAULT_PIPE_SUFFIX = "-STREAMING"
_PIPES = model.pipes


@dataclass(frozen=True, slots=True)
class PipeRecord:
    """A pipe. `definition` is the text of its COPY statement."""

    pipe_id: int
    database: str
    schema: str
    name: str
    owner: str
    definition: str
    comment: str | None
    created_at: dt.datetime

    def __str__(self) -> str:
        return ".".join(map(to_display_name, (self.database, self.schema, self.name)))


def resolve_pipe_table(pipe_copy: PipeCopy, pipe_name: TableName) -> TableName:
    """Return the target table of a pipe. A short name is resolved in the schema of the pipe."""
    parts = pipe_copy.table.parts
    return TableName(*(pipe_name.database, pipe_name.schema)[: 3 - len(parts)], *parts)


def find_pipe(connection: sa.Connection, name: TableName) -> PipeRecord | None:
    """Return the live pipe of this name, or None if there is none."""
    found = list_pipes(connection, name.database, name.schema, name.table)
    return found[0] if found else None


def list_pipes(
    connection: sa.Connection, database: str | None, schema: str | None, name: str | None = None
) -> list[PipeRecord]:
    """Return the live pipes, ordered by name, optionally of one database, schema and name."""
    query = select_in_schemas(_PIPES, database, schema, name)
    return [make_record(PipeRecord, row) for row in connection.execute(query)]


def create_pipe(
    connection: sa.Connection,
    name: TableName,
    schema_id: int,
    *,
    owner: str,
    definition: str,
    comment: str | None,
    now: dt.datetime,
) -> int:
    """Create a pipe and return its ID.

    Raises:
        AlreadyExists: If there is a pipe of this name.
    """
    if find_pipe(connection, name) is not None:
        raise AlreadyExists(kind="Pipe", name=name)
    created = connection.execute(
        sa.insert(_PIPES).values(
            schema_id=schema_id,
            name=name.table,
            owner=owner,
            definition=definition,
            comment=comment,
            created_at=now,
        )
    )
    return int(created.inserted_primary_key[0])  # type: ignore[index]


def set_pipe_comment(connection: sa.Connection, pipe_id: int, comment: str | None) -> None:
    """Set or remove the comment of a pipe."""
    connection.execute(sa.update(_PIPES).where(_PIPES.c.pipe_id == pipe_id).values(comment=comment))


def drop_pipe(connection: sa.Connection, name: TableName, now: dt.datetime) -> None:
    """Drop a pipe. Its rows and the channels of the table stay.

    Raises:
        PipeNotFound: If there is no pipe of this name.
    """
    found = find_pipe(connection, name)
    if found is None:
        raise PipeNotFound(pipe=name)
    connection.execute(
        sa.update(_PIPES).where(_PIPES.c.pipe_id == found.pipe_id).values(dropped_at=now)
    )
