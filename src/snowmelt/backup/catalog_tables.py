"""Export tables of the catalog to Parquet files that any database can import.

The files contain values as stored: timestamps are microseconds. Three columns differ from the
catalog: `pointer` of `tables` is a path in the warehouse. Table keys and the secrets of access keys
are sealed with the public key of the backup.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa

from snowmelt.backup.manifests import BackupRejected
from snowmelt.catalog import model

_ROWS_PER_BATCH = 5_000
_COMPRESSION = "zstd"

# Converts a row; may return the row itself.
RowConverter = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class TableExport:
    """A file with the rows of a table. `last_id` is the last number that the table assigned."""

    path: Path
    rows: int
    last_id: int | None


def export_table(
    connection: sa.Connection, table: sa.Table, folder: Path, convert: RowConverter | None
) -> TableExport:
    """Write the rows of a table to a file.

    Omits chunks whose blobs are being deleted: their rows are in native files.
    """
    stored = stored_form(table)
    query = sa.select(stored)
    if table is model.chunks:
        query = query.where(stored.c.retired_at.is_(None))
    query = query.order_by(*(stored.c[column.name] for column in table.primary_key))
    schema = pa.schema([(column.name, _arrow_type(column)) for column in stored.c])
    path = folder / f"{table.name}.parquet"
    count = 0
    found = connection.execution_options(yield_per=_ROWS_PER_BATCH).execute(query).mappings()
    with pq.ParquetWriter(path, schema, compression=_COMPRESSION) as writer:
        rows = map(dict, found)
        while batch := list(islice(rows, _ROWS_PER_BATCH)):
            converted = batch if convert is None else [convert(row) for row in batch]
            writer.write_table(pa.Table.from_pylist(converted, schema))
            count += len(batch)
    return TableExport(path, count, read_last_id(connection, table))


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of an exported table."""
    for batch in pq.ParquetFile(path).iter_batches(_ROWS_PER_BATCH):
        yield from batch.to_pylist()


def import_table(
    connection: sa.Connection,
    table: sa.Table,
    path: Path,
    last_id: int | None,
    convert: RowConverter | None,
) -> int:
    """Insert the rows of a file into an empty table, and return the number of rows.

    Columns that are missing in the file get their default values.

    Raises:
        BackupRejected: If the file has a column that the catalog lacks, or text that the database cannot
            store.
    """
    stored = stored_form(table)
    unknown = set(pq.read_schema(path).names) - set(stored.c.keys())
    if unknown:
        raise BackupRejected(
            reason=f"column {min(unknown)!r} of {table.name!r} is unknown. Use the Snowmelt that wrote "
            "the backup, or a newer one"
        )
    count = 0
    rows = read_rows(path)
    while batch := list(islice(rows, _ROWS_PER_BATCH)):
        converted = batch if convert is None else [convert(row) for row in batch]
        if connection.dialect.name == "postgresql":
            reject_nul(table, converted)
        connection.execute(sa.insert(stored), converted)
        count += len(batch)
    if last_id is not None:
        write_last_id(connection, table, last_id)
    return count


@functools.cache
def stored_form(table: sa.Table) -> sa.TableClause:
    """Return a table definition that reads values as stored, without conversion of timestamps."""
    return sa.table(
        table.name,
        *(
            sa.column(
                column.name,
                sa.BigInteger() if isinstance(column.type, model.UtcTimestamp) else column.type,
            )
            for column in table.c
        ),
    )


def _arrow_type(column: sa.ColumnClause[Any]) -> pa.DataType:
    kind = column.type
    if isinstance(kind, sa.Boolean):
        return pa.bool_()
    if isinstance(kind, sa.LargeBinary):
        return pa.binary()
    return pa.string() if isinstance(kind, sa.Text) else pa.int64()


def reject_nul(table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Check that the texts of rows contain no NUL, which PostgreSQL cannot store.

    Raises:
        BackupRejected: If a text has a NUL character.
    """
    for row in rows:
        for name, value in row.items():
            if isinstance(value, str) and "\0" in value:
                raise BackupRejected(
                    reason=f"column {name!r} of {table.name!r} has a text with a NUL character "
                    f"({value[:80]!r}), which PostgreSQL does not store. Restore into SQLite"
                )


def _id_column(table: sa.Table) -> sa.Column[Any] | None:
    column = table.autoincrement_column
    return (
        column if column is not None and table.dialect_options["sqlite"]["autoincrement"] else None
    )


def read_last_id(connection: sa.Connection, table: sa.Table) -> int | None:
    """Return the last row number that a table assigned, or None if it does not number rows."""
    column = _id_column(table)
    if column is None:
        return None
    if connection.dialect.name == "sqlite":
        query = sa.text("SELECT seq FROM sqlite_sequence WHERE name = :name")
        return connection.execute(query, {"name": table.name}).scalar() or 0
    query = sa.text("SELECT pg_sequence_last_value(pg_get_serial_sequence(:name, :column))")
    parameters = {"name": table.name, "column": column.name}
    return connection.execute(query, parameters).scalar() or 0


def write_last_id(connection: sa.Connection, table: sa.Table, last_id: int) -> None:
    """Make a table continue its row numbers after `last_id`."""
    column = _id_column(table)
    if column is None or last_id < 1:
        return
    if connection.dialect.name == "sqlite":
        connection.execute(
            sa.text("DELETE FROM sqlite_sequence WHERE name = :name"), {"name": table.name}
        )
        connection.execute(
            sa.text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :last)"),
            {"name": table.name, "last": last_id},
        )
        return
    connection.execute(
        sa.text("SELECT setval(pg_get_serial_sequence(:name, :column), :last)"),
        {"name": table.name, "column": column.name, "last": last_id},
    )
