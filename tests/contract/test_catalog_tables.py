from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from fixtures.catalog import COLUMNS, NAME, World, advance
from snowmelt.catalog import model
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.model.records import ACCOUNTADMIN, MetadataPointer, TableRecord
from snowmelt.catalog.objects import namespaces, tables
from snowmelt.catalog.streaming import channels, chunks
from snowmelt.errors import (
    AlreadyExists,
    CommitLost,
    DatabaseNotFound,
    NotFound,
    SchemaNotFound,
    SnowmeltError,
    TableNotFound,
    TransactionConflict,
)
from snowmelt.schema.types import Column, LogicalType, TableName


@pytest.fixture
def writing(world: World) -> Iterator[sa.Connection]:
    with world.database.writing() as connection:
        yield connection


def test_a_table_is_found_as_it_was_created(world: World) -> None:
    columns = (
        Column("ID", LogicalType.FIXED, 1, nullable=False, precision=10, scale=2),
        Column("lower case", LogicalType.TIMESTAMP_TZ, 2, scale=9),
        Column("☃", LogicalType.TEXT, 3, length=5, byte_length=20),
    )
    name = TableName("DB", "PUBLIC", "ünï")
    with world.database.writing() as connection:
        created = tables.create_table(
            connection, name, columns, cluster_by=["☃"], owner="WRITER", now=world.now
        )
    with world.database.reading() as connection:
        assert tables.find_table(connection, name) == created
        assert tables.find_table_by_id(connection, created.table_id) == created
    assert created.schema.columns == columns
    assert (created.schema.version, created.cluster_by, created.owner) == (1, ("☃",), "WRITER")
    assert (created.last_seq, created.migrated_seq, created.pointer) == (0, 0, None)
    assert created.created_at == world.now


@pytest.mark.parametrize(
    ("name", "error"),
    [
        (TableName("X", "PUBLIC", "T"), DatabaseNotFound),
        (TableName("DB", "X", "T"), SchemaNotFound),
        (TableName("DB", "PUBLIC", "X"), TableNotFound),
    ],
)
def test_what_is_missing_is_named(
    world: World,
    name: TableName,
    error: type[DatabaseNotFound] | type[SchemaNotFound] | type[TableNotFound],
) -> None:
    with pytest.raises(error, match="X"), world.database.reading() as connection:
        tables.find_table(connection, name)


def test_a_name_is_taken_once(world: World, writing: sa.Connection) -> None:
    with pytest.raises(AlreadyExists):
        tables.create_table(writing, NAME, COLUMNS, owner="WRITER", now=world.now)
    kept = tables.create_table(
        writing, NAME, COLUMNS[:1], owner="WRITER", now=world.now, if_not_exists=True
    )
    assert kept.schema.columns == COLUMNS


def test_replacing_makes_a_new_incarnation(world: World, writing: sa.Connection) -> None:
    old = tables.find_table(writing, NAME)
    new = tables.create_table(
        writing, NAME, COLUMNS[:1], owner="WRITER", now=world.now, replace=True
    )
    assert new.incarnation != old.incarnation
    assert tables.list_tables(writing, "DB", "PUBLIC") == [new]
    (dropped,) = tables.list_dropped_tables(writing)
    assert (dropped.table_id, dropped.dropped_at) == (old.table_id, world.now)


def test_columns_are_checked(world: World, writing: sa.Connection) -> None:
    name = TableName("DB", "PUBLIC", "U")
    with pytest.raises(AlreadyExists, match="Column A"):
        tables.create_table(writing, name, COLUMNS + COLUMNS[:1], owner="WRITER", now=world.now)
    with pytest.raises(NotFound, match="Column X"):
        tables.create_table(writing, name, COLUMNS, cluster_by=["X"], owner="WRITER", now=world.now)


def test_a_forgotten_table_leaves_nothing_but_history(world: World) -> None:
    client = world.client()
    client.open("C")
    world.register(client.offer(advance("C", 0, 1)))
    table = world.table()
    with world.database.writing() as connection:
        tables.drop_table(connection, NAME, world.now)
        tables.delete_table_record(connection, table.table_id)
        for left in ("chunks", "data_keys", "table_keys", "schema_versions", "tables", "channels"):
            rows = connection.execute(sa.select(model.metadata.tables[left])).all()
            assert rows == [], left
        events = channels.list_channel_history(connection, table.table_id)
        assert [event.event for event in events] == ["table dropped", "opened"]
    assert world.create_table().table_id > table.table_id


def test_the_pointer_is_swapped_only_from_what_was_expected(
    world: World, writing: sa.Connection
) -> None:
    table = tables.find_table(writing, NAME)
    writing.execute(sa.update(model.tables).values(last_seq=9))
    first, second = MetadataPointer("m1", 5), MetadataPointer("m2", 9)
    tables.swap_metadata_pointer(writing, table, expected=MetadataPointer(None, 0), new=first)
    for wrong in (MetadataPointer(None, 0), MetadataPointer("m1", 0), MetadataPointer("m0", 5)):
        with pytest.raises(CommitLost):
            tables.swap_metadata_pointer(writing, table, expected=wrong, new=second)
    with pytest.raises(CommitLost):
        tables.swap_metadata_pointer(writing, table, expected=first, new=MetadataPointer("m2", 10))
    tables.swap_metadata_pointer(writing, table, expected=first, new=second)
    after = tables.find_table(writing, NAME)
    assert (after.pointer, after.migrated_seq) == ("m2", 9)
    tables.drop_table(writing, NAME, world.now)
    with pytest.raises(CommitLost):
        tables.swap_metadata_pointer(writing, table, expected=second, new=second)


def test_dropping_a_schema_drops_its_tables(world: World, writing: sa.Connection) -> None:
    namespaces.create_schema(writing, "DB", "S", owner="WRITER", now=world.now)
    tables.create_table(writing, TableName("DB", "S", "T"), COLUMNS, owner="WRITER", now=world.now)
    namespaces.drop_schema(writing, "DB", "S", world.now)
    assert [table.name for table in tables.list_tables(writing)] == [NAME]
    assert [schema.name for schema in namespaces.list_schemas(writing, "DB")] == ["PUBLIC"]
    with pytest.raises(SchemaNotFound):
        namespaces.find_schema(writing, "DB", "S")


def test_dropping_a_database_frees_its_name(world: World, writing: sa.Connection) -> None:
    before = namespaces.drop_database(writing, "DB", world.now)
    assert namespaces.list_databases(writing) == []
    assert tables.list_tables(writing) == []
    after = namespaces.create_database(writing, "DB", owner="WRITER", now=world.now)
    assert after.database_id > before.database_id
    assert [schema.name for schema in namespaces.list_schemas(writing)] == ["PUBLIC"]


def test_namespaces_exist_once_unless_replaced(world: World, writing: sa.Connection) -> None:
    with pytest.raises(AlreadyExists):
        namespaces.create_database(writing, "DB", owner="WRITER", now=world.now)
    with pytest.raises(AlreadyExists):
        namespaces.create_schema(writing, "DB", "PUBLIC", owner="WRITER", now=world.now)
    keep: dict[str, Any] = {"owner": "WRITER", "now": world.now, "if_not_exists": True}
    assert namespaces.create_database(writing, "DB", **keep).owner == ACCOUNTADMIN
    assert namespaces.create_schema(writing, "DB", "PUBLIC", **keep).owner == ACCOUNTADMIN
    replace: dict[str, Any] = {"owner": "WRITER", "now": world.now, "replace": True}
    assert namespaces.create_schema(writing, "DB", "PUBLIC", **replace).owner == "WRITER"
    assert tables.list_tables(writing) == []
    assert namespaces.create_database(writing, "DB", **replace).owner == "WRITER"


def test_of_two_that_create_the_same_table_one_is_told_so(
    world: World, open_catalog: Callable[..., Database]
) -> None:
    name = TableName("DB", "PUBLIC", "U")
    outcomes: list[Any] = []

    def work(database: Database) -> None:
        try:
            with database.writing() as connection:
                tables.create_table(connection, name, COLUMNS, owner="WRITER", now=world.now)
            outcomes.append("created")
        except (AlreadyExists, TransactionConflict):
            outcomes.append("refused")
        except SnowmeltError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=work, args=(open_catalog(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["created", "refused", "refused"]


# --- chunks of a table


@pytest.fixture
def registered(world: World) -> TableRecord:
    """A table with four chunks, the last two in one blob."""
    client = world.client()
    client.open("C")
    offers = [client.offer(advance("C", 0, number, str(number))) for number in (1, 2, 3)]
    shared = client.offer(advance("C", 0, 4, "4"), path=offers[2].path, offset=1008)
    world.register(*offers, shared)
    return world.table()


def test_chunks_are_listed_by_sequence(world: World, registered: TableRecord) -> None:
    with world.database.reading() as connection:
        found = chunks.list_chunks(connection, registered.table_id, 1, 3)
        assert [chunk.seq for chunk in found] == [2, 3]
        assert len(chunks.list_chunks(connection, registered.table_id, 0, 9, limit=3)) == 3


def test_the_backlog_is_what_lies_above_the_migrated_sequence(
    world: World, registered: TableRecord
) -> None:
    with world.database.writing() as connection:
        everything = chunks.measure_backlog(connection, registered.table_id)
        assert everything == chunks.MigrationBacklog(4, 40, 4000, world.now)
        assert chunks.list_backlogged_table_ids(connection) == [registered.table_id]
        tables.swap_metadata_pointer(
            connection, registered, expected=MetadataPointer(None, 0), new=MetadataPointer("m", 3)
        )
        assert chunks.measure_backlog(connection, registered.table_id).chunks == 1
        tables.swap_metadata_pointer(
            connection, registered, expected=MetadataPointer("m", 3), new=MetadataPointer("m", 4)
        )
        assert chunks.measure_backlog(connection, registered.table_id) == chunks.MigrationBacklog(
            0, 0, 0, None
        )
        assert chunks.list_backlogged_table_ids(connection) == []


def test_a_blob_may_go_when_all_its_chunks_are_retired(
    world: World, registered: TableRecord
) -> None:
    with world.database.writing() as connection:
        table_id = registered.table_id
        every = chunks.list_chunks(connection, table_id, 0, 9)
        assert chunks.retire_chunks(connection, table_id, 3, world.now) == 3
        first = chunks.list_deletable_blobs(connection)
        assert {blob.path for blob in first} == {every[0].path, every[1].path}
        chunks.replace_with_tombstones(connection, first, world.now)
        assert chunks.list_deletable_blobs(connection) == []
        assert chunks.retire_chunks(connection, table_id, 4, world.now) == 1
        last = chunks.list_deletable_blobs(connection)
        assert [blob.path for blob in last] == [every[3].path]
        chunks.replace_with_tombstones(connection, last, world.now)
        assert chunks.list_chunks(connection, table_id, 0, 9) == []


def test_a_chunk_in_quarantine_is_visible_and_kept(world: World, registered: TableRecord) -> None:
    with world.database.writing() as connection:
        chunks.quarantine_chunk(connection, registered.table_id, 2, "bad page")
        (set_aside,) = chunks.list_quarantined_chunks(connection)
        assert (set_aside.seq, set_aside.rows, set_aside.reason) == (2, 10, "bad page")
        assert chunks.list_quarantined_chunks(connection, registered.table_id) == [set_aside]
        assert chunks.retire_chunks(connection, registered.table_id, 4, world.now) == 3
        assert len(chunks.list_deletable_blobs(connection)) == 2
