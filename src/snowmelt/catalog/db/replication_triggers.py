"""Database triggers that record changes on a primary and reject writes on other sites.

A trigger fires for every write, so every change of the catalog is replicated. An installation
without a failover group has no triggers.

Creating a trigger also fences writers. SQLite and PostgreSQL wait for open transactions that have
written to the table, and the trigger fires for every later write. Once the transaction that rejects
writes has committed, no earlier writer can commit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.errors import SiteReadOnly

# The text of the error that a rejected write raises.
READ_ONLY_MESSAGE = "this site does not accept writes"

_SELECT_ROLE = sa.select(model.failover_groups.c.role)
_PREFIX = "snowmelt_"
# A registration records only the changed rows of `tables`. An export finds new chunks by their
# sequence, and the channels that they advance by the channel names in the chunks. To record each
# channel takes a fifth more processor time for a registration.
_CHUNKS = model.chunks.name
_CHANNELS = model.channels.name
# Columns that only registrations of chunks change, together.
_LAST_CHUNK_COLUMNS = ("last_path", "last_chunk_offset")
_REGISTRATION_COLUMNS = (
    *_LAST_CHUNK_COLUMNS,
    *("row_sequencer", "offset_token", "last_client_sequencer", "last_chunk_md5", "last_key_id"),
    *("last_commit_at", "rows", "bytes"),
)
# Leases are local to a site, and a read-only site must still write them.
_UNGUARDED_TABLES = frozenset({model.leases.name})
_OPERATIONS = ("INSERT", "UPDATE", "DELETE")
_APPLYING = "EXISTS (SELECT 1 FROM failover_groups WHERE applying)"


def record_changes(connection: sa.Connection) -> None:
    """Record the keys of rows that are written from now on, in `changed_rows`."""
    remove_triggers(connection)
    write = _record_on_sqlite if _is_sqlite(connection) else _record_on_postgres
    for table in model.list_portable_tables():
        write(connection, table)


def reject_writes(connection: sa.Connection) -> None:
    """Reject writes to replicated tables, except by the transaction that sets `applying`.

    Waits for transactions that have written to them.
    """
    remove_triggers(connection)
    if not _is_sqlite(connection):
        _execute(
            connection,
            f"CREATE OR REPLACE FUNCTION {_PREFIX}reject() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF NOT {_APPLYING} THEN RAISE EXCEPTION '{READ_ONLY_MESSAGE}' USING ERRCODE = '25006'; "
            "END IF; RETURN NULL; END $$",
        )
    for table in model.list_portable_tables():
        if table.name in _UNGUARDED_TABLES:
            continue
        for operation in _OPERATIONS:
            name = f"{_PREFIX}reject_{table.name}_{operation.lower()}"
            if _is_sqlite(connection):
                _execute(
                    connection,
                    f"CREATE TRIGGER {name} BEFORE {operation} ON {table.name} WHEN NOT {_APPLYING} "
                    f"BEGIN SELECT RAISE(ABORT, '{READ_ONLY_MESSAGE}'); END",
                )
            else:
                _execute(
                    connection,
                    f"CREATE TRIGGER {name} BEFORE {operation} ON {table.name} "
                    f"FOR EACH STATEMENT EXECUTE FUNCTION {_PREFIX}reject()",
                )


def remove_triggers(connection: sa.Connection) -> None:
    """Remove all triggers of replication."""
    if _is_sqlite(connection):
        query = "SELECT name, tbl_name FROM sqlite_master WHERE type = 'trigger'"
    else:
        query = (
            "SELECT tgname, relname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid "
            "WHERE NOT tgisinternal AND pg_table_is_visible(pg_class.oid)"
        )
    for name, table in connection.exec_driver_sql(query).all():
        if name.startswith(_PREFIX):
            suffix = "" if _is_sqlite(connection) else f" ON {table}"
            _execute(connection, f"DROP TRIGGER {name}{suffix}")


def require_writable(connection: sa.Connection) -> None:
    """Check that this site accepts writes, for operations that may have nothing to write.

    Without this check, such an operation would succeed on a follower, whose state may be old.

    Raises:
        SiteReadOnly: If this site does not accept writes.
    """
    role = connection.execute(_SELECT_ROLE).scalar()
    if role not in {None, "primary"}:
        raise SiteReadOnly


def refresh_triggers(connection: sa.Connection) -> None:
    """Create the triggers again after an upgrade of the catalog's tables."""
    role = connection.execute(_SELECT_ROLE).scalar()
    if role is not None:
        (record_changes if role == "primary" else reject_writes)(connection)


def parse_row_key(table: sa.Table, key: str) -> tuple[Any, ...]:
    """Return the values of the primary key that a trigger has recorded."""
    return tuple(
        bytes.fromhex(value) if isinstance(column.type, sa.LargeBinary) else value
        for column, value in zip(table.primary_key, json.loads(key), strict=True)
    )


def _record_on_sqlite(connection: sa.Connection, table: sa.Table) -> None:
    for operation in _recorded_operations(table):
        rows = {"INSERT": ("NEW",), "UPDATE": ("OLD", "NEW"), "DELETE": ("OLD",)}[operation]
        columns = _key_columns(table)
        inserts = []
        for row in rows:
            values = ", ".join(_key_value(table, row, name, "hex({})") for name in columns)
            # If the key changes, record the old key and the new key.
            where = (
                f" WHERE NOT ({_same(columns)})" if operation == "UPDATE" and row == "NEW" else ""
            )
            inserts.append(
                f"INSERT INTO changed_rows (table_name, row_key) "
                f"SELECT '{table.name}', json_array({values}){where};"
            )
        _execute(
            connection,
            f"CREATE TRIGGER {_PREFIX}record_{table.name}_{operation.lower()} AFTER {operation} "
            f"ON {table.name} {_when(table, operation)}BEGIN {' '.join(inserts)} END",
        )


def _record_on_postgres(connection: sa.Connection, table: sa.Table) -> None:
    function = f"{_PREFIX}record_{table.name}"

    def insert(source: str) -> str:
        values = ", ".join(
            _key_value(table, "r", name, "encode({}, 'hex')") for name in _key_columns(table)
        )
        return (
            "INSERT INTO changed_rows (table_name, row_key) "
            f"SELECT DISTINCT '{table.name}', jsonb_build_array({values})::text FROM {source} r;"
        )

    if table.name in {_CHUNKS, _CHANNELS}:
        # Only triggers of rows can have a condition. The keys of these tables never change.
        _execute(
            connection,
            f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF TG_OP = 'INSERT' THEN {insert('(SELECT NEW.*)')} "
            f"ELSE {insert('(SELECT OLD.*)')} END IF; RETURN NULL; END $$",
        )
        for operation in _recorded_operations(table):
            _execute(
                connection,
                f"CREATE TRIGGER {function}_{operation.lower()} AFTER {operation} ON {table.name} "
                f"FOR EACH ROW {_when(table, operation, same='IS NOT DISTINCT FROM')}"
                f"EXECUTE FUNCTION {function}()",
            )
        return
    _execute(
        connection,
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF TG_OP = 'INSERT' THEN {insert('new_rows')} "
        f"ELSIF TG_OP = 'DELETE' THEN {insert('old_rows')} "
        f"ELSE {insert('(SELECT * FROM old_rows UNION ALL SELECT * FROM new_rows)')} END IF; "
        "RETURN NULL; END $$",
    )
    for operation, tables in (
        ("INSERT", "NEW TABLE AS new_rows"),
        ("UPDATE", "OLD TABLE AS old_rows NEW TABLE AS new_rows"),
        ("DELETE", "OLD TABLE AS old_rows"),
    ):
        _execute(
            connection,
            f"CREATE TRIGGER {function}_{operation.lower()} AFTER {operation} ON {table.name} "
            f"REFERENCING {tables} FOR EACH STATEMENT EXECUTE FUNCTION {function}()",
        )


def _recorded_operations(table: sa.Table) -> Sequence[str]:
    return [each for each in _OPERATIONS if (table.name, each) != (_CHUNKS, "INSERT")]


def _when(table: sa.Table, operation: str, same: str = "IS") -> str:
    """Return the condition under which an operation on a row is recorded."""
    if operation != "UPDATE":
        return ""
    if table.name == _CHUNKS:
        return f"WHEN (NOT ({_same(['quarantine_reason'], same)})) "
    if table.name == _CHANNELS:
        others = [each.name for each in table.c if each.name not in _REGISTRATION_COLUMNS]
        return f"WHEN (({_same(_LAST_CHUNK_COLUMNS, same)}) OR NOT ({_same(others, same)})) "
    return ""


def _same(names: Sequence[str], same: str = "IS") -> str:
    return " AND ".join(f'OLD."{name}" {same} NEW."{name}"' for name in names)


def _key_columns(table: sa.Table) -> Sequence[str]:
    return [column.name for column in table.primary_key]


def _key_value(table: sa.Table, row: str, name: str, encode: str) -> str:
    value = f'{row}."{name}"'
    is_bytes = isinstance(table.c[name].type, sa.LargeBinary)
    return encode.format(value) if is_bytes else value


def _is_sqlite(connection: sa.Connection) -> bool:
    return connection.dialect.name == "sqlite"


def _execute(connection: sa.Connection, statement: str) -> None:
    # The statement contains no user input.
    connection.exec_driver_sql(statement)
