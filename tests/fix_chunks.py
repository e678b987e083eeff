"""A catalog with a stage and a warehouse, and chunks put on it as a client would, without one."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest

from catalog_file import new_catalog
from snowmelt.blob.bdec import blob_path
from snowmelt.blob.writer import ChunkSource, build_blob
from snowmelt.catalog.commands.executor import execute
from snowmelt.catalog.db.database import Database, open_database
from snowmelt.catalog.objects.namespaces import create_database, create_schema
from snowmelt.catalog.objects.tables import create_table, drop_table, find_table
from snowmelt.catalog.security.access_control import create_user, grant_role
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.catalog.streaming.channels import find_channel, open_channel
from snowmelt.catalog.streaming.registration import ChannelAdvance, ChunkOffer, register
from snowmelt.catalog.streaming.stages import issue_prefix
from snowmelt.clock import Clock, SystemClock
from snowmelt.schema.chunk_types import chunk_schema
from snowmelt.schema.statistics import collect
from snowmelt.schema.types import Column, Kind, TableName, TableSchema
from snowmelt.storage.local_store import LocalStore
from snowmelt.table.garbage_collection import collect as collect_garbage
from snowmelt.table.migration import MigrationSettings, migrate_locally
from snowmelt.table.table_reader import read_table
from snowmelt.table.warehouse import open_warehouse
from snowmelt.wire.column_statistics import to_wire

if TYPE_CHECKING:
    from pathlib import Path

USER = "LOADER"
ROLE = "ACCOUNTADMIN"
NUMBERS = TableName("DEMO", "PUBLIC", "NUMBERS")
COLUMNS = (
    Column("N", Kind.FIXED, 1, nullable=False, precision=18, scale=0),
    Column("WORD", Kind.TEXT, 2, length=100, byte_length=400),
)


@dataclass
class Lakehouse:
    """Everything a table needs, in one folder; reopen it in another process by its folder."""

    folder: Path
    clock: Clock = field(default_factory=SystemClock)
    database: Database | None = None

    def __post_init__(self):
        if self.database is None:
            path = new_catalog(self.folder / "catalog.db")
            self.database = open_database(str(path), clock=self.clock)
        self.keyring = KeyRing(load_master_key(self.folder / "keys"))
        self.stage = LocalStore(self.folder / "stage")
        self.warehouse = open_warehouse(str(self.folder / "warehouse"))
        self._counter = 0
        self._prefix: str | None = None
        self._openings = 0

    def close(self):
        self.database.close()

    def create(self, name=NUMBERS, columns=COLUMNS, *, cluster_by=(), replace=False):
        """Create a table, its namespaces when missing, and the user who loads."""
        now = self.clock.now()
        with self.database.writing() as connection:
            if not replace:
                create_user(connection, USER, now=now)
                grant_role(connection, ROLE, USER)
                create_database(connection, name.database, owner=ROLE, now=now)
                if name.schema != "PUBLIC":
                    create_schema(connection, name.database, name.schema, owner=ROLE, now=now)
            return create_table(
                connection,
                name,
                columns,
                cluster_by=cluster_by,
                owner=ROLE,
                now=now,
                replace=replace,
            )

    def drop(self, name=NUMBERS):
        with self.database.writing() as connection:
            return drop_table(connection, name, self.clock.now())

    def table(self, name=NUMBERS):
        with self.database.reading() as connection:
            return find_table(connection, name)

    def undrop(self, name=NUMBERS):
        """Restore a table; its channels are opened again before the next rows."""
        execute(self.database, f"UNDROP TABLE {name}", clock=self.clock)
        self._openings += 1

    def put(self, rows: pa.Table, name=NUMBERS, *, channel="C"):
        """Stage and register rows (chunk form) as one chunk; return its path on the stage."""
        return self.put_all([(name, rows)], channel=channel)

    def put_all(self, tables: list[tuple[TableName, pa.Table]], *, channel="C"):
        """Stage and register several chunks as one blob; return its path on the stage."""
        now = self.clock.now()
        with self.database.writing() as connection:
            if self._prefix is None:
                self._prefix = issue_prefix(connection, USER, now)
            records = [find_table(connection, name) for name, _ in tables]
            keys = [self.keyring.data_key(connection, record, USER) for record in records]
            opened = [
                open_channel(
                    connection,
                    record,
                    channel,
                    user=USER,
                    client_prefix=self._prefix,
                    request_id=f"{self._prefix}-{record.table_id}-{self._openings}",
                    now=now,
                ).record
                for record in records
            ]
        self._counter += 1
        path = blob_path(now, self._prefix, 1, self._counter)
        blob = build_blob(
            path,
            [
                ChunkSource(rows, record.schema, key.key)
                for (_, rows), record, key in zip(tables, records, keys, strict=True)
            ],
        )
        self.stage.put(f"{self._prefix}/{path}", blob.data)
        with self.database.writing() as connection:
            numbers = [
                find_channel(connection, record, channel).row_sequencer for record in records
            ]
            offers = [
                ChunkOffer(
                    path=path,
                    blob_md5=blob.md5,
                    prefix=self._prefix,
                    user=USER,
                    role=ROLE,
                    table=name,
                    offset=chunk.offset,
                    length=chunk.length,
                    md5=chunk.md5,
                    key_id=key.key_id,
                    rows=chunk.rows,
                    schema_version=record.schema.version,
                    statistics=msgspec.json.encode(
                        to_wire(record.schema, collect(rows, record.schema))
                    ),
                    first_insert_ms=None,
                    last_insert_ms=None,
                    channels=(
                        ChannelAdvance(channel, state.client_sequencer, number + 1, None, None),
                    ),
                )
                for (name, rows), record, key, state, number, chunk in zip(
                    tables, records, keys, opened, numbers, blob.chunks, strict=True
                )
            ]
            for verdicts in register(connection, offers, now=now):
                assert [verdict.code for verdict in verdicts] == [0], verdicts
        return f"{self._prefix}/{path}"

    def put_numbers(self, start: int, count: int, name=NUMBERS):
        """Register the numbers from `start` on as one chunk."""
        return self.put(numbers(start, count), name)

    def migrate(self, name=NUMBERS, *, clock=None):
        return migrate_locally(
            self.database,
            self.keyring,
            name,
            MigrationSettings(self.stage.url, self.warehouse.url),
            clock=clock or self.clock,
        )

    def read(self, name=NUMBERS, columns=None):
        return read_table(self.database, self.keyring, self.stage, name, columns, clock=self.clock)

    def read_numbers(self, name=NUMBERS) -> list[int]:
        return [int(number) for number in self.read(name, ["N"])["N"].to_pylist()]

    def collect(self, retention_s=3600.0, **more):
        return collect_garbage(
            self.database,
            self.stage,
            self.warehouse.store,
            clock=self.clock,
            retention_s=retention_s,
            **more,
        )

    def files(self, store=None, prefix="") -> set[str]:
        return {info.path for info in (store or self.warehouse.store).list(prefix)}

    def data_files(self) -> set[str]:
        return {path for path in self.files() if "/data/" in path}


def numbers(start: int, count: int, columns=COLUMNS) -> pa.Table:
    """Return rows of the numbers table in chunk form."""
    schema = chunk_schema(TableSchema(1, columns))
    values = range(start, start + count)
    return pa.table(
        [
            pa.array([Decimal(value) for value in values], schema.field(0).type),
            pa.array([f"word {value}" if value % 7 else None for value in values], pa.string()),
        ],
        schema=schema,
    )


@pytest.fixture
def lakehouse(tmp_path):
    """An empty lakehouse with the real clock."""
    with contextlib.closing(Lakehouse(tmp_path)) as found:
        yield found


@pytest.fixture
def numbers_table(lakehouse):
    """A lakehouse with the table NUMBERS."""
    lakehouse.create()
    return lakehouse
